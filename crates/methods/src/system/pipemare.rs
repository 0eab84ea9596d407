//! PipeMare (Yang et al. 2021, "PipeMare: Asynchronous Pipeline Parallel DNN Training", MLSys, arXiv
//! 1910.05124).

use shardloom_plan::{Corrections, Optimizer, ScheduleKind, Weights};

use crate::configuration::Pipelines;
use crate::method::{Family, Method, Rules};

/// Steps over which the learning rate recovers. The paper sets them by model, to a quarter of the first
/// phase of a step-wise learning rate or to a few times the steps of a linear warm-up; plans do not know
/// how long training goes on, so this is a number to begin with.
const ANNEAL_STEPS: u64 = 1000;

/// To how much of itself the mean velocity decays over the delay: e^-2, as the paper has it.
const DECAY: f64 = 0.135;

/// Newest weights with the corrections T1 and T2.
pub(crate) const METHOD: Method = Method {
    name: "pipemare",
    family: Family::AsynchronousPipeline,
    paper: "Yang et al. 2021, PipeMare: Asynchronous Pipeline Parallel DNN Training, MLSys, arXiv \
            1910.05124",
    about: "A forward and a backward pass in every slot and one version of the weights; the learning \
            rate is lowered by the delay at first, and backward passes move the weights back.",
    rules,
    chooser: |task| {
        let weights = rules(&task.request.optimizer).weights;
        let pipelines = Pipelines { weights, ..Pipelines::of(ScheduleKind::PipeMare) };
        Ok(pipelines.choose(task)?.without_flush(task))
    },
};

fn rules(_: &Optimizer) -> Rules {
    let corrections = Corrections {
        anneal_steps: Some(ANNEAL_STEPS),
        discrepancy: Some(DECAY),
        ..Corrections::default()
    };
    Rules { weights: Weights::Newest { corrections }, ..Rules::FLUSH }
}
