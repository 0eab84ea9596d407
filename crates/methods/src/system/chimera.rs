//! Chimera (Li & Hoefler 2021, "Chimera: Efficiently Training Large-Scale Neural Networks with
//! Bidirectional Pipelines", SC, arXiv 2107.06925).

use shardloom_plan::ScheduleKind;
use shardloom_search::partition::{ChimeraRequest, Interconnect, chimera};

use super::equal_stages::{equal, memory_bytes, state_bytes_per_weight_byte};
use crate::choice::Task;
use crate::configuration::Configuration;
use crate::method::{Family, Method, Supports};
use crate::{Choice, MethodError};

/// A pair of pipelines in opposite directions.
pub(crate) const METHOD: Method = Method {
    name: "chimera",
    family: Family::BidirectionalPipeline,
    paper: "Li & Hoefler 2021, Chimera: Efficiently Training Large-Scale Neural Networks with \
            Bidirectional Pipelines, SC, arXiv 2107.06925",
    about: "Two pipelines in opposite directions fill each other's bubbles; parameters are held twice. \
            Width, depth and micro-batch by the paper's model of time and memory.",
    supports: Supports::ALL,
    chooser: choose,
};

/// The fastest of what the paper's model puts first, with and without forward doubling.
fn choose(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let request = ChimeraRequest {
        workers: task.cluster.device_count(),
        global_batch: task.request.global_batch as u32,
        memory_bytes: memory_bytes(task),
        links: Interconnect::of(task.cluster),
        state_bytes_per_weight_byte: state_bytes_per_weight_byte(task),
    };
    let found = chimera(&request, |samples| task.layers(samples as usize).map(<[_]>::to_vec))?;
    let mut configurations = vec![];
    for it in &found {
        let sizes = [it.width, it.depth, it.microbatch, it.microbatches];
        let with =
            |schedule| Configuration { schedule, chunks: 2, ..equal(task, sizes, it.recompute) };
        configurations.push(with(ScheduleKind::Chimera));
        // Doubling runs the micro-batches of each of the two pipelines in pairs.
        if it.microbatches.is_multiple_of(4) {
            configurations.push(with(ScheduleKind::ChimeraDoubling));
        }
    }
    if configurations.is_empty() {
        return Err(refusal(task, &request));
    }
    task.fastest(&configurations)
}

fn refusal(task: &Task<'_>, request: &ChimeraRequest) -> MethodError {
    let devices = request.workers;
    if !devices.is_multiple_of(2) {
        let rule = "pipelines in both directions have an even number of stages; take an even number of \
                    devices";
        return task.impossible("devices", devices, rule);
    }
    let rule = format!(
        "no even depth has both micro-batches in multiples of it on each of its replicas and room in \
         {:.1} GB for what it is taken to hold; a multiple of {devices} samples on larger devices, or on \
         more, would do",
        request.memory_bytes / 1e9
    );
    task.impossible("global_batch", request.global_batch, rule)
}
