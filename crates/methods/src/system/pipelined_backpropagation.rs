//! Pipelined backpropagation (Kosson et al. 2021, "Pipelined Backpropagation at Scale: Training Large
//! Models without Batches", MLSys, arXiv 2003.11666).

use shardloom_plan::{Corrections, Optimizer, Prediction, ScheduleKind, Weights};
use shardloom_program::quantity::counted;

use crate::choice::Task;
use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method};
use crate::{Choice, MethodError};

/// Updates after every micro-batch in as many stages as there can be, with spike compensation and linear weight prediction.
pub(crate) const METHOD: Method = Method {
    name: "pipelined-backpropagation",
    family: Family::AsynchronousPipeline,
    paper: "Kosson et al. 2021, Pipelined Backpropagation at Scale: Training Large Models without \
            Batches, MLSys, arXiv 2003.11666",
    about: "As many stages as there can be; every micro-batch is a step and no step waits for another; \
            spike compensation and linear weight prediction make up for the delay.",
    chooser: choose,
};

fn choose(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let (momentum, reference_batch) = match task.request.optimizer {
        Optimizer::Sgd { momentum, reference_batch, .. } => (momentum > 0.0, reference_batch),
        _ => (false, None),
    };
    // Spike compensation and prediction along the velocity are defined by SGD's momentum.
    let corrections = match momentum {
        true => Corrections {
            spike: Some(1.0),
            prediction: Some(Prediction::Velocity),
            ..Corrections::default()
        },
        false => Corrections { prediction: Some(Prediction::Weights), ..Corrections::default() },
    };
    let pipelines = Pipelines {
        weights: Weights::Newest { corrections },
        counts: |_| Counts::SINGLE,
        // A worker for every layer, as far as there are workers.
        deepest: true,
        ..Pipelines::of(ScheduleKind::PipeMare)
    };
    let mut choice = pipelines.choose(task)?.without_flush(task);
    if !momentum {
        let note = "spike compensation and prediction along the velocity are defined for SGD with \
                    momentum; with another optimizer weights are predicted along their last update, and \
                    that is all";
        choice.notes.push(note.into());
    }
    if momentum && reference_batch.is_none() {
        let note = format!(
            "momentum and learning rate are taken for updates of {}; if they are those of another batch, \
             reference_batch of the optimizer scales them",
            counted(choice.plan.global_batch, "sample")
        );
        choice.notes.push(note);
    }
    Ok(choice)
}
