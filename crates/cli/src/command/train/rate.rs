//! The options that make a learning rate.

use clap::{Args, ValueEnum};
use shardloom::train::learning_rate::{Curve, LearningRate};

use crate::failure::Failure;
use crate::number::{not_negative, whole};

/// The learning rate over the steps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Learning rate")]
pub struct Rate {
    /// The highest learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3, value_parser = not_negative)]
    learning_rate: f64,

    /// How it goes on after the warmup
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Kind::Constant)]
    lr_schedule: Kind,

    /// Steps in which it rises to its highest
    #[arg(long, value_name = "STEPS", default_value_t = 0, value_parser = whole::<u64>)]
    warmup: u64,

    /// What cosine and linear fall to at the last step [default: a tenth of the highest]
    #[arg(long, value_name = "RATE", value_parser = not_negative)]
    lr_floor: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Constant,
    Cosine,
    Linear,
    InverseSquareRoot,
}

impl Rate {
    /// The rate over `steps` steps.
    pub fn learning_rate(&self, steps: u64) -> Result<LearningRate, Failure> {
        let (peak, warmup_steps, total_steps) = (self.learning_rate, self.warmup, steps);
        let floor = self.lr_floor.unwrap_or(peak / 10.0);
        let falls = matches!(self.lr_schedule, Kind::Cosine | Kind::Linear);
        if self.lr_floor.is_some() && !falls {
            let message = "--lr-floor is for --lr-schedule cosine and linear, which fall to it";
            return Err(Failure::usage("--lr-floor", message));
        }
        let curve = match self.lr_schedule {
            Kind::Constant if warmup_steps == 0 => Curve::Constant { peak },
            Kind::Constant => Curve::Warmup { peak, warmup_steps },
            Kind::Cosine => Curve::Cosine { peak, warmup_steps, total_steps, floor },
            Kind::Linear => Curve::Linear { peak, warmup_steps, total_steps, floor },
            Kind::InverseSquareRoot => Curve::InverseSquareRoot { peak, warmup_steps },
        };
        Ok(LearningRate::new(curve).map_err(shardloom::Error::from)?)
    }
}
