//! Why a step on the machines at hand is not predicted.

use shardloom_plan::Number;
use shardloom_program::quantity::counted;

/// What stands in the way of predicting a step on the machines at hand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpredicted {
    /// This machine has not been measured as it is.
    #[error("this machine has not been measured as it is now (`shardloom profile` does)")]
    Here,
    /// The machines of several processes have not been measured as they are.
    #[error(
        "the machines of these processes have not been measured as they are now (`shardloom profile` does, started as \
         this was)"
    )]
    InProcesses,
    /// What was measured is in other formats than the plan's.
    #[error(
        "nothing was measured in {} (`shardloom profile{}` does)",
        format!("{_0:?}").to_lowercase(),
        if *_0 == Number::Fp16 { " --fp16" } else { "" }
    )]
    Format(Number),
    /// Ranks take turns.
    #[error("the plan has {}, and there are {}", counted(*ranks, "rank"), counted(*there, of))]
    Ranks {
        /// Ranks of the plan.
        ranks: usize,
        /// How many have a place of their own.
        there: usize,
        /// What that is.
        of: &'static str,
    },
}
