//! Pipelined backpropagation (Kosson et al. 2021, "Pipelined Backpropagation at Scale: Training Large
//! Models without Batches", MLSys, arXiv 2003.11666).

use shardloom_plan::{Corrections, Optimizer, Prediction, ScheduleKind, Updates, Weights};
use shardloom_program::quantity::counted;

use crate::choice::Task;
use crate::configuration::{Counts, Pipelines};
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// Updates after every micro-batch in as many stages as there can be, with spike compensation and linear weight prediction.
pub(crate) const METHOD: Method = Method {
    name: "pipelined-backpropagation",
    family: Family::AsynchronousPipeline,
    paper: "Kosson et al. 2021, Pipelined Backpropagation at Scale: Training Large Models without \
            Batches, MLSys, arXiv 2003.11666",
    about: "As many stages as there can be; every micro-batch is a step and no step waits for another; \
            spike compensation and linear weight prediction make up for the delay.",
    rules,
    chooser: choose,
};

fn rules(optimizer: &Optimizer) -> Rules {
    // Spike compensation and prediction along the velocity are defined by SGD's momentum.
    let corrections = match has_momentum(optimizer) {
        true => Corrections {
            spike: Some(1.0),
            prediction: Some(Prediction::Velocity),
            ..Corrections::default()
        },
        false => Corrections { prediction: Some(Prediction::Weights), ..Corrections::default() },
    };
    // Every micro-batch is a step.
    Rules { weights: Weights::Newest { corrections }, updates: Updates::Round, ..Rules::FLUSH }
}

fn has_momentum(optimizer: &Optimizer) -> bool {
    matches!(optimizer, Optimizer::Sgd { momentum, .. } if *momentum > 0.0)
}

fn choose(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let optimizer = task.request.optimizer;
    let momentum = has_momentum(&optimizer);
    let reference_batch = match optimizer {
        Optimizer::Sgd { reference_batch, .. } => reference_batch,
        _ => None,
    };
    let pipelines = Pipelines {
        weights: rules(&optimizer).weights,
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
