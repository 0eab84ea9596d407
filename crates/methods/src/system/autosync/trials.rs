//! Trials: strategies with how long a step took, and files of them.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shardloom_document::{Fault, json_fault, read_text};

use super::problem::Problem;
use super::strategy::{Strategy, Synchroniser};
use crate::MethodError;

/// A strategy that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Trial {
    /// The strategy.
    pub strategy: Strategy,
    /// A step.
    pub seconds: f64,
}

/// What was tried of one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Trials {
    /// The problem.
    pub problem: Problem,
    /// Trials in the order in which they were made.
    pub done: Vec<Trial>,
}

/// A file of trials, of one problem after the other.
#[derive(Debug, Serialize, Deserialize)]
struct File<T> {
    format: u32,
    trials: T,
}

/// What this writes, and reads.
const FORMAT: u32 = 1;

/// Reads the trials of a file; none if there is no such file.
///
/// # Errors
/// If it cannot be read, or is no such file.
pub(super) fn read(path: &Path) -> Result<Vec<Trials>, MethodError> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(wrong(path, error)),
    };
    let file: File<Vec<Trials>> = serde_json::from_str(&text).map_err(|error| {
        let Fault { line, message } = json_fault(&error);
        let fault = format!("this is no file of trials: {message}");
        MethodError::TrialsFile { path: path.to_owned(), line, fault }
    })?;
    if file.format != FORMAT {
        return Err(wrong(path, format!("format {}, not {FORMAT}", file.format)));
    }
    for trials in &file.trials {
        if let Some(fault) = trials.fault() {
            return Err(wrong(path, fault));
        }
    }
    Ok(file.trials)
}

/// How many trials of AutoSync's a file has, of all problems; 0 if there is no such file.
///
/// # Errors
/// If it cannot be read, or is no such file.
pub fn trials_in(path: &Path) -> Result<usize, MethodError> {
    Ok(read(path)?.iter().map(|trials| trials.done.len()).sum())
}

/// Writes trials to a file, in the place of what was there.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write<'a>(
    path: &Path,
    trials: impl Iterator<Item = &'a Trials>,
) -> Result<(), MethodError> {
    let file = File { format: FORMAT, trials: trials.collect::<Vec<_>>() };
    let text = serde_json::to_string(&file).map_err(|error| wrong(path, error))?;
    // A file that is half written would lose all earlier trials.
    let beside = path.with_added_extension(format!("{}.writing", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
        wrong(path, error)
    })
}

fn wrong(path: &Path, fault: impl ToString) -> MethodError {
    MethodError::TrialsFile {
        path: path.to_owned(),
        line: None,
        fault: format!("trials: {}", fault.to_string()),
    }
}

impl Trials {
    /// What does not fit together in what was read.
    fn fault(&self) -> Option<String> {
        let Problem { variables, shapes, .. } = &self.problem;
        let is_wrong = |trial: &Trial| {
            let Strategy { shape, synchronisers } = &trial.strategy;
            let servers = shapes.get(*shape).map(|it| it.server_bandwidths.len());
            let is_known = |servers: usize| {
                synchronisers.iter().all(|it| match it {
                    Synchroniser::Servers(list) => {
                        !list.is_empty() && list.iter().all(|&it| (it as usize) < servers)
                    }
                    // Workers that have servers exchange gradients as they are.
                    Synchroniser::AllReduce { compression, .. } => {
                        servers == 0 || compression.is_none()
                    }
                })
            };
            synchronisers.len() != variables.len()
                || !servers.is_some_and(is_known)
                || !(trial.seconds.is_finite() && trial.seconds > 0.0)
        };
        let place = self.done.iter().position(is_wrong)?;
        Some(format!("trial {place} of {} is no strategy of its problem", self.problem.model))
    }
}
