//! Chimera (Li & Hoefler 2021, "Chimera: Efficiently Training Large-Scale Neural Networks with
//! Bidirectional Pipelines", SC, arXiv 2107.06925).

pub(crate) mod planner;

use planner::{ChimeraConfiguration, ChimeraRequest, chimera};
use shardloom_plan::ScheduleKind;

use super::equal_stages::{
    Shape, equal, memory_bytes, no_room, shapes, state_bytes_per_weight_byte,
};
use crate::choice::Task;
use crate::configuration::Configuration;
use crate::depth::require_depth;
use crate::interconnect::Interconnect;
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// A pair of pipelines in opposite directions.
pub(crate) const METHOD: Method = Method {
    name: "chimera",
    family: Family::BidirectionalPipeline,
    paper: "Li & Hoefler 2021, Chimera: Efficiently Training Large-Scale Neural Networks with \
            Bidirectional Pipelines, SC, arXiv 2107.06925",
    about: "Two pipelines in opposite directions fill each other's bubbles; parameters are held twice. \
            Width, depth and micro-batch by the paper's model of time and memory.",
    rules: |_| Rules::FLUSH,
    chooser: choose,
};

/// The fastest of what the paper's model puts first, with and without forward doubling.
fn choose(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let request = ChimeraRequest {
        workers: task.cluster.device_count(),
        global_batch: task.request.global_batch as u32,
        memory_bytes: memory_bytes(task),
        links: Interconnect::of(task.cluster),
        state_bytes_per_weight_byte: state_bytes_per_weight_byte(
            task.request.precision,
            &task.request.optimizer,
        ),
    };
    let found = chimera(&request, |samples| task.layers(samples as usize).map(<[_]>::to_vec))?;
    let mut configurations = vec![];
    let planned = found.iter().map(|it| {
        let ChimeraConfiguration { width, depth, microbatch, microbatches, .. } = *it;
        (Shape { width, depth, microbatch, microbatches }, it.recompute)
    });
    for (shape, recompute) in shapes(planned, task.cluster.stack()) {
        let with =
            |schedule| Configuration { schedule, chunks: 2, ..equal(shape, recompute.clone()) };
        configurations.push(with(ScheduleKind::Chimera));
        // Doubling runs the micro-batches of each of the two pipelines in pairs.
        if shape.microbatches.is_multiple_of(4) {
            configurations.push(with(ScheduleKind::ChimeraDoubling));
        }
    }
    if configurations.is_empty() {
        return Err(refusal(task));
    }
    task.fastest(&configurations)
}

fn refusal(task: &Task<'_>) -> MethodError {
    let devices = task.cluster.device_count() as usize;
    let allowed = |depth: usize| devices.is_multiple_of(depth) && depth.is_multiple_of(2);
    if let Err(refusal) = require_depth(task, allowed, |depth| depth) {
        return refusal;
    }
    // Of an even batch one replica has an even number of micro-batches of a sample each.
    let global_batch = task.request.global_batch;
    if !global_batch.is_multiple_of(2) {
        let rule = "two pipelines share the micro-batches of a step evenly; an even number of samples \
                    would do";
        return task.impossible("global_batch", global_batch, rule);
    }
    no_room(task)
}
