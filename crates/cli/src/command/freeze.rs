//! `--freeze`: which parameters stay as they are.

use shardloom::Model;
use shardloom::plan::ParameterGroup;

use crate::failure::Failure;

/// A group of frozen parameters for each time that the option was given.
///
/// # Errors
/// If one is no pattern, or no parameter has such a name.
pub fn frozen(given: &[String], model: &Model) -> Result<Vec<ParameterGroup>, Failure> {
    given.iter().map(|what| group(what, model)).collect()
}

fn group(what: &str, model: &Model) -> Result<ParameterGroup, Failure> {
    let refuse = |why: String| Failure::usage("--freeze", format!("--freeze {what}: {why}"));
    let graph = model.graph();
    let group = match what {
        "trunk" => {
            let trunk = graph.trunk_parameters().into_iter();
            let trunk: Vec<&str> = trunk.map(|id| graph.value(id).name.as_str()).collect();
            if trunk.is_empty() {
                return Err(refuse(
                    "the model has no head that tells classes apart; give names".into(),
                ));
            }
            ParameterGroup::of_all(&trunk)
        }
        names => ParameterGroup::named(names),
    };
    let frozen = ParameterGroup { frozen: true, ..group };
    let has = frozen.matcher().map_err(|error| refuse(error.to_string()))?;
    let names: Vec<&str> = graph.parameters().map(|(_, node)| node.name.as_str()).collect();
    if names.iter().any(|name| has.is_match(name)) {
        return Ok(frozen);
    }
    let some = names[..names.len().min(3)].join(", ");
    Err(refuse(format!("no parameter has such a name; names are {some} and so on")))
}
