//! The TOML form of a plan.

use shardloom_document::{Fault, at_line, toml_fault, toml_line_of};
use toml::Table;

use crate::{FORMAT, Plan, PlanError};

impl Plan {
    /// Reads a plan; `place` names the text in errors (a path).
    ///
    /// # Errors
    /// If the text is no TOML, has unknown, missing or ill-typed keys (named with their line), or is of
    /// another format version.
    pub fn from_toml(text: &str, place: &str) -> Result<Plan, PlanError> {
        let wrong = |line: Option<usize>, message: String| {
            let place = line.map_or_else(|| place.to_owned(), |line| format!("{place}:{line}"));
            PlanError::Text { place, message }
        };
        // The version is looked at first, so that a plan of a later version is not refused for a key.
        if let Ok(table) = text.parse::<Table>() {
            match table.get("format") {
                Some(format) if format.as_integer() == Some(i64::from(FORMAT)) => {}
                Some(format) => {
                    let message = format!("format = {format}, but this version reads {FORMAT}");
                    return Err(wrong(toml_line_of(text, "format"), message));
                }
                None => return Err(wrong(Some(1), no_plan(&table))),
            }
        }
        let plan: Result<Plan, toml::de::Error> = toml::from_str(text);
        plan.map(Plan::arranged).map_err(|error| {
            let Fault { line, message } = toml_fault(text, &error);
            let begins = text.lines().any(|line| line.trim_start().starts_with("format"));
            match begins {
                true => wrong(line, message),
                // Most likely another file altogether.
                false => wrong(
                    line,
                    format!("this is no plan, which begins with format = {FORMAT}: {message}"),
                ),
            }
        })
    }

    /// This plan with the axes of meshes in the plan's order: in the text they are in any.
    fn arranged(mut self) -> Plan {
        for stage in self.pipeline.iter_mut().flat_map(|pipeline| &mut pipeline.stage) {
            stage.mesh = stage.mesh.arranged(&self.axes);
        }
        self
    }

    /// Says where in a plan's text the field stands that `error` is about; `place` names the text.
    pub fn place_error(text: &str, place: &str, error: PlanError) -> PlanError {
        let PlanError::Field { key, value, rule } = &error else { return error };
        let place = at_line(place, toml_line_of(text, key));
        PlanError::Text { place, message: format!("{key} = {value}: {rule}") }
    }

    /// Writes the plan.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan has only tables, arrays, strings and numbers")
    }
}

/// What a table that says no format looks like, and what plans and models begin with.
fn no_plan(table: &Table) -> String {
    let has = |keys: &[&str]| keys.iter().any(|key| table.contains_key(*key));
    let is_table = |key: &str| table.get(key).is_some_and(toml::Value::is_table);
    let plans = format!("a plan begins with format = {FORMAT}");
    if has(&["pipeline", "global_batch", "microbatches", "schedule"]) {
        return format!("this is a plan without the key `format`; {plans}");
    }
    let networks =
        ["gpt", "llama", "mlp", "u-transformer", "lstm", "dlrm", "dims", "input", "block"];
    let looks = if is_table("model") {
        ", but rather a model"
    } else if has(&networks) {
        ", but rather a model without its table [model]"
    } else if has(&["group", "machine"]) {
        ", but rather a cluster, which --cluster takes"
    } else if has(&["device", "node"]) {
        ", but rather the profile of a machine, which --profile takes"
    } else if has(&["host", "operators", "collective"]) {
        ", but rather a software stack, which --stack takes"
    } else {
        ""
    };
    format!(
        "this is neither a plan nor a model{looks}: {plans}, and a model with a table [model] that has its name"
    )
}
