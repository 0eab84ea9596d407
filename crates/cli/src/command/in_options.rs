//! What is wrong with a plan that options describe, said by the options' names.

use std::path::Path;

use shardloom::Error;
use shardloom::plan::PlanError;
use shardloom::program::ProgramError;
use shardloom::schedule::ScheduleError;

use crate::failure::Failure;

/// The failure of `error`, in the words of the option that `option_of` names for a key of plans: the option and its
/// value, and what else is to be said of it. Keys of stages are those within a stage (`mesh.tp`).
pub fn in_options(error: Error, option_of: impl Fn(&str, &str) -> Option<Named>) -> Failure {
    let (key, value, rule) = match &error {
        Error::Plan(PlanError::Field { key, value, rule }) => (key.as_str(), value.clone(), rule),
        Error::PlanSize { key, value, rule } => (*key, value.to_string(), rule),
        Error::Program(ProgramError::Schedule(ScheduleError::Count { key, value, rule })) => {
            (*key, value.to_string(), rule)
        }
        _ => return error.into(),
    };
    let key = key.rsplit_once("].").map_or(key, |(_, key)| key);
    match option_of(key, &value) {
        Some(Named { option, value, hint }) => {
            let given = format!("{option} {value}");
            Failure::option(option, format!("{}: {rule}{hint}", given.trim_end()))
        }
        None => error.into(),
    }
}

/// The failure of a plan that cannot be lowered or simulated: of one in a file with the line there, of one that options
/// describe in their words.
pub fn of_plan(error: Error, file: Option<&Path>) -> Failure {
    let options = |key: &str, value: &str| match (file, key) {
        (None, "chunks") => Some(Named::of("--chunks", value)),
        (None, "microbatches") => Some(Named::of("--microbatches", value)),
        _ => None,
    };
    in_options(error, options).in_plan(file, None)
}

/// What options say of what a search or a method is asked for, by its key.
const OF_REQUESTS: [(&str, &str); 4] = [
    ("recompute", "--recompute"),
    ("global_batch", "--global-batch"),
    ("algorithm", "--algorithm"),
    ("optimizer.*", "--optimizer *"),
];

/// The failure of a search or a method that is asked for what cannot be, in the words of the option that says it.
pub fn of_request(error: impl Into<Error>) -> Failure {
    let failure = Failure::from(error.into());
    OF_REQUESTS.iter().fold(failure, |failure, (key, option)| failure.in_option(key, option))
}

/// An option that says what a key of a plan says.
pub struct Named {
    option: &'static str,
    value: String,
    hint: String,
}

impl Named {
    /// The option with its value.
    pub fn of(option: &'static str, value: impl ToString) -> Named {
        Named { option, value: value.to_string(), hint: String::new() }
    }

    /// An option without a value.
    pub fn flag(option: &'static str) -> Named {
        Named::of(option, "")
    }

    /// With a hint behind what is wrong.
    pub fn with_hint(self, hint: impl Into<String>) -> Named {
        Named { hint: hint.into(), ..self }
    }
}
