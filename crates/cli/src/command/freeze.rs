//! `--freeze`: which parameters stay as they are.

use shardloom::Model;
use shardloom::plan::{ParameterGroup, ParameterGroups, PlanError};

use crate::failure::Failure;

/// A group of frozen parameters for each time that the option was given.
///
/// # Errors
/// If one is no pattern, or no parameter has such a name.
pub fn frozen(given: &[String], model: &Model) -> Result<Vec<ParameterGroup>, Failure> {
    let groups = given.iter().map(|what| group(what, model)).collect::<Result<Vec<_>, _>>()?;
    let is_frozen = |name: &str| groups.iter().any(|(_, has)| has(name));
    if model.graph().parameters().all(|(_, node)| is_frozen(&node.name)) {
        let message = format!(
            "--freeze {}: all parameters are frozen, so that there is nothing to train; leave some out",
            given.join(",")
        );
        return Err(Failure::option("--freeze", message));
    }
    Ok(groups.into_iter().map(|(group, _)| group).collect())
}

/// The group of these parameters, and whether one of a name is among them.
fn group(
    what: &str,
    model: &Model,
) -> Result<(ParameterGroup, impl Fn(&str) -> bool + use<>), Failure> {
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
    let has = ParameterGroups::from_groups(std::slice::from_ref(&frozen)).map_err(|error| {
        let how = "* is any characters, ? is one, and [ab] is one of these";
        let PlanError::Field { rule, .. } = error else { return refuse(error.to_string()) };
        refuse(format!("it is no pattern of names: {rule}; {how}"))
    })?;
    let names: Vec<&str> = graph.parameters().map(|(_, node)| node.name.as_str()).collect();
    if names.iter().any(|name| has.group(name).is_some()) {
        return Ok((frozen, move |name: &str| has.group(name).is_some()));
    }
    let some = names[..names.len().min(3)].join(", ");
    Err(refuse(format!("no parameter has such a name; names are {some} and so on")))
}
