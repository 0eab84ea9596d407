//! What logs say at their beginning that a run is: names, dots and values, as Megatron-LM and DeepSpeed
//! print their arguments.

use std::fmt;

use super::number;

/// What can be said of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Argument {
    /// Samples of a step.
    GlobalBatch,
    /// Tokens of a sample.
    SequenceLength,
    /// Devices.
    Devices,
    /// Samples of a micro-batch on one replica.
    MicroBatch,
    /// Width of tensor parallelism.
    TensorParallel,
    /// Devices that a pipeline goes through.
    PipelineParallel,
}

/// What a log says that a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedArgument {
    /// What it is about.
    pub argument: Argument,
    /// Its value.
    pub value: u64,
    /// The line of the log, from 1.
    pub line: usize,
}

/// The names that arguments have, with what they mean.
const NAMES: [(&str, Argument); 8] = [
    ("global_batch_size", Argument::GlobalBatch),
    ("train_batch_size", Argument::GlobalBatch),
    ("seq_length", Argument::SequenceLength),
    ("world_size", Argument::Devices),
    ("micro_batch_size", Argument::MicroBatch),
    ("train_micro_batch_size_per_gpu", Argument::MicroBatch),
    ("tensor_model_parallel_size", Argument::TensorParallel),
    ("pipeline_model_parallel_size", Argument::PipelineParallel),
];

impl fmt::Display for Argument {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Argument::GlobalBatch => "the global batch size",
            Argument::SequenceLength => "the sequence length",
            Argument::Devices => "the number of devices",
            Argument::MicroBatch => "the micro-batch size",
            Argument::TensorParallel => "the tensor-parallel degree",
            Argument::PipelineParallel => "the number of devices of a pipeline",
        })
    }
}

/// The arguments in a log; of several values the first counts.
pub(super) fn of_text(text: &str) -> Vec<LoggedArgument> {
    let mut found: Vec<LoggedArgument> = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        for (name, argument) in NAMES {
            let Some((before, rest)) = line.split_once(name) else { continue };
            // A part of a longer name is another one.
            if !before.is_empty() && !before.ends_with(char::is_whitespace) {
                continue;
            }
            let value = rest.trim_start_matches([' ', '.']);
            let is_listed = rest.len() > value.len() && rest.starts_with(' ');
            let known = found.iter().any(|it| it.argument == argument);
            if let Some(value) = number::after(value, "").filter(|_| is_listed && !known) {
                found.push(LoggedArgument { argument, value: value as u64, line: number });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_dots_are_arguments() {
        let text = "\
  global_batch_size ............................... 512
  rampup_global_batch_size ........................ 7
[2024-09-15 00:13:21,400] [INFO] [config.py:1003:print]   train_micro_batch_size_per_gpu  4
  seq_length ...................................... 4096
  world_size ...................................... 64
  seq_length ...................................... 8
the micro_batch_size of a run
";
        let right = [
            (Argument::GlobalBatch, 512, 1),
            (Argument::MicroBatch, 4, 3),
            (Argument::SequenceLength, 4096, 4),
            (Argument::Devices, 64, 5),
        ];
        let right = right.map(|(argument, value, line)| LoggedArgument { argument, value, line });
        assert_eq!(of_text(text), right);
    }
}
