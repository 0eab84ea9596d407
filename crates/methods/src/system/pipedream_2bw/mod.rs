//! PipeDream-2BW (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", ICML, arXiv
//! 2006.09503).

pub(crate) mod planner;

use planner::{TwoBwConfiguration, TwoBwRequest, Updates, two_bw};
use shardloom_plan::{Optimizer, ScheduleKind, Weights};

use super::equal_stages::{
    Shape, equal, memory_bytes, no_room, shapes, state_bytes_per_weight_byte,
};
use crate::choice::Task;
use crate::configuration::Configuration;
use crate::depth::require_depth;
use crate::interconnect::Interconnect;
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// 1F1B without flush and with two versions of the weights.
pub(crate) const METHOD: Method = Method {
    name: "pipedream-2bw",
    family: Family::AsynchronousPipeline,
    paper: "Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, ICML, arXiv \
            2006.09503",
    about: "1F1B without flush: all micro-batches of a step run with the weights before the newest, so \
            that two versions suffice; equal stages from the paper's planner.",
    rules,
    chooser: |task| {
        let weights = rules(&task.request.optimizer).weights;
        let choice = planned(task, ScheduleKind::PipeDream, weights, Updates::DoubleBuffered)?;
        Ok(choice.without_flush(task))
    },
};

fn rules(_: &Optimizer) -> Rules {
    Rules { weights: Weights::DoubleBuffer, ..Rules::FLUSH }
}

/// The fastest of what the paper's planner puts first that has at least two stages and fits.
pub(super) fn planned(
    task: &mut Task<'_>,
    schedule: ScheduleKind,
    weights: Weights,
    updates: Updates,
) -> Result<Choice, MethodError> {
    let request = TwoBwRequest {
        workers: task.cluster.device_count(),
        global_batch: task.request.global_batch as u32,
        memory_bytes: memory_bytes(task),
        links: Interconnect::of(task.cluster),
        updates,
        state_bytes_per_weight_byte: state_bytes_per_weight_byte(
            task.request.precision,
            &task.request.optimizer,
        ),
    };
    let found = two_bw(&request, |samples| task.layers(samples as usize).map(<[_]>::to_vec))?;
    let pipelines = found.iter().filter(|it| it.depth > 1).map(|it| {
        let TwoBwConfiguration { width, depth, microbatch, microbatches, .. } = *it;
        (Shape { width, depth, microbatch, microbatches }, it.recompute)
    });
    let configurations: Vec<Configuration> = shapes(pipelines, task.cluster.stack())
        .into_iter()
        .map(|(shape, recompute)| Configuration { schedule, weights, ..equal(shape, recompute) })
        .collect();
    if configurations.is_empty() {
        require_depth(task, |_| true, |depth| depth)?;
        // Depth 2 is possible, in one pipeline of micro-batches of a sample each.
        if updates == Updates::DoubleBuffered && request.global_batch < 2 {
            let rule = "with two versions of the weights the paper has at least as many micro-batches a \
                        step as a pipeline has stages, so at least 2";
            return Err(task.impossible("global_batch", request.global_batch, rule));
        }
        return Err(no_room(task));
    }
    task.fastest(&configurations)
}
