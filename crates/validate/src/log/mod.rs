//! Logs of training runs: the steps that they tell of, in the forms in which training frameworks print them.

mod argument;
mod deepspeed;
mod error;
mod megatron;
mod nanotron;
mod number;
mod pace;
mod table;
mod torchtitan;

use std::fmt;
use std::path::{Path, PathBuf};

pub use argument::{Argument, LoggedArgument};
pub use error::LogError;
pub use pace::Pace;
use shardloom_document::read_file;

/// What a log says of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingLog {
    /// The file.
    pub path: PathBuf,
    /// Who printed it.
    pub format: LogFormat,
    /// The steps, or runs of steps, that it tells of, in order.
    pub steps: Vec<LoggedStep>,
    /// What it says that the run was, each once.
    pub arguments: Vec<LoggedArgument>,
    /// The most memory that a device of it held.
    pub peak: Option<LoggedPeak>,
}

/// Who prints logs of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Megatron-LM, and what is derived from it.
    Megatron,
    /// torchtitan.
    Torchtitan,
    /// DeepSpeed.
    DeepSpeed,
    /// nanotron.
    Nanotron,
    /// A table with a row for each step.
    Csv,
}

impl LogFormat {
    const ALL: [LogFormat; 5] = [
        LogFormat::Megatron,
        LogFormat::Nanotron,
        LogFormat::Torchtitan,
        LogFormat::DeepSpeed,
        LogFormat::Csv,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Megatron => "Megatron-LM",
            LogFormat::Torchtitan => "torchtitan",
            LogFormat::DeepSpeed => "DeepSpeed",
            LogFormat::Nanotron => "nanotron",
            LogFormat::Csv => "CSV",
        }
    }

    /// By what a line of it is known.
    fn sign(self) -> &'static str {
        match self {
            LogFormat::Megatron => "\"elapsed time per iteration (ms):\"",
            LogFormat::Torchtitan => "\"step:\" with \"tps:\"",
            LogFormat::DeepSpeed => "\"SamplesPerSec=\" or \"samples/sec:\"",
            LogFormat::Nanotron => "\"iteration:\" with \"tokens_per_sec:\"",
            LogFormat::Csv => "a header with a time of steps",
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A step, or the mean of several up to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoggedStep {
    /// Its number in the log.
    pub step: u64,
    /// How fast it was.
    pub rate: Rate,
    /// How large it was, where the log says it step by step.
    pub batch: Option<Batch>,
    /// The line of the log that tells of it, from 1.
    pub line: usize,
}

/// How fast steps are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Seconds of a step.
    StepSeconds(f64),
    /// Tokens a second on all devices together.
    Tokens(f64),
    /// Tokens a second on each device.
    TokensOfDevice(f64),
    /// Samples a second on all devices together.
    Samples(f64),
}

/// How large a step is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Batch {
    /// So many samples.
    Samples(u64),
    /// So many tokens, to three digits.
    Tokens(f64),
}

/// The sizes of a step, by which a rate becomes a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Samples.
    pub samples: usize,
    /// Tokens of a sample.
    pub tokens_per_sample: usize,
    /// Devices.
    pub devices: usize,
}

impl Rate {
    /// The time of a step of this size.
    pub fn step_seconds(self, size: StepSize) -> f64 {
        let samples = size.samples as f64;
        let tokens = samples * size.tokens_per_sample as f64;
        match self {
            Rate::StepSeconds(seconds) => seconds,
            Rate::Tokens(rate) => tokens / rate,
            Rate::TokensOfDevice(rate) => tokens / rate / size.devices as f64,
            Rate::Samples(rate) => samples / rate,
        }
    }

    /// Whether it is a number that a step can have.
    fn is_positive(self) -> bool {
        let (Rate::StepSeconds(it)
        | Rate::Tokens(it)
        | Rate::TokensOfDevice(it)
        | Rate::Samples(it)) = self;
        it.is_finite() && it > 0.0
    }
}

impl Batch {
    /// Whether a step of this size has it.
    pub fn is_of(self, size: StepSize) -> bool {
        match self {
            Batch::Samples(samples) => samples == size.samples as u64,
            Batch::Tokens(tokens) => {
                let right = (size.samples * size.tokens_per_sample) as f64;
                (tokens / right - 1.0).abs() < 0.006
            }
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Batch::Samples(samples) => write!(out, "{samples} samples"),
            Batch::Tokens(tokens) => write!(out, "about {tokens:.0} tokens"),
        }
    }
}

/// Memory of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoggedPeak {
    /// How much.
    pub bytes: f64,
    /// Whether that is what was reserved of the device, with gaps between tensors, and not what tensors had.
    pub reserved: bool,
}

impl LoggedPeak {
    /// The larger of two; what tensors had is told rather than what was reserved.
    fn most(known: Option<LoggedPeak>, other: LoggedPeak) -> LoggedPeak {
        match known {
            Some(it) if (it.reserved, -it.bytes) <= (other.reserved, -other.bytes) => it,
            _ => other,
        }
    }
}

/// What lines of a log say.
#[derive(Default)]
struct Lines {
    steps: Vec<LoggedStep>,
    peak: Option<LoggedPeak>,
}

impl Lines {
    fn remember(&mut self, bytes: f64, reserved: bool) {
        self.peak = Some(LoggedPeak::most(self.peak, LoggedPeak { bytes, reserved }));
    }
}

/// Reads a log, whose form is found by what its lines say.
///
/// # Errors
/// If it cannot be read, has no step, or is a table without a time.
pub fn read_log(path: &Path) -> Result<TrainingLog, LogError> {
    let bytes = read_file(path).map_err(|source| LogError::Read { path: path.into(), source })?;
    let text = number::plain(&String::from_utf8_lossy(&bytes));
    let logs = [
        (LogFormat::Megatron, megatron::lines(&text)),
        (LogFormat::Nanotron, nanotron::lines(&text)),
        (LogFormat::Torchtitan, torchtitan::lines(&text)),
        (LogFormat::DeepSpeed, deepspeed::lines(&text)),
    ];
    // Of equally many steps the first: Megatron-LM over DeepSpeed prints the lines of both.
    let mut best: Option<(LogFormat, Lines)> = None;
    for (format, lines) in logs {
        if lines.steps.len() > best.as_ref().map_or(0, |(_, it)| it.steps.len()) {
            best = Some((format, lines));
        }
    }
    let (format, lines) = match best {
        Some(found) => found,
        None => (LogFormat::Csv, table::lines(path, &text)?),
    };
    let mut steps = lines.steps;
    steps.retain(|it| it.rate.is_positive());
    if steps.is_empty() {
        let signs = LogFormat::ALL.map(|it| format!("{it} by {}", it.sign())).join(", ");
        return Err(LogError::NoSteps { path: path.into(), signs });
    }
    let arguments = argument::of_text(&text);
    Ok(TrainingLog { path: path.into(), format, steps, arguments, peak: lines.peak })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gaps between tensors are in what is reserved, so that it is more.
    #[test]
    fn the_most_that_tensors_had_is_told_rather_than_more_that_was_reserved() {
        let of = |all: &[(f64, bool)]| {
            let mut found = Lines::default();
            all.iter().for_each(|&(bytes, reserved)| found.remember(bytes, reserved));
            found.peak.map(|it| (it.bytes, it.reserved))
        };
        for (all, right) in [
            (&[(5.0, false), (9.0, true)][..], (5.0, false)),
            (&[(9.0, true), (5.0, false)], (5.0, false)),
            (&[(9.0, true), (5.0, false), (6.0, false), (10.0, true)], (6.0, false)),
            (&[(7.0, true), (9.0, true), (8.0, true)], (9.0, true)),
        ] {
            assert_eq!(of(all), Some(right), "{all:?}");
        }
    }
}
