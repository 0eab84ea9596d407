//! Replicas of the whole model, each on a device.

use shardloom_plan::{Mesh, Plan, Recompute, Uniform};
use shardloom_search::{divisors, judge};

use crate::choice::Task;
use crate::selection::Selection;
use crate::{Choice, MethodError};

/// Replicas on as many devices as the batch can be dealt to, with the largest micro-batches that fit, of plans that
/// `change` makes of what the request says.
pub(super) fn with_largest_microbatches(
    task: &mut Task<'_>,
    change: impl Fn(Uniform) -> Uniform,
) -> Result<Choice, MethodError> {
    let (cluster, request) = (task.cluster, task.request);
    let batch = request.global_batch as u32;
    let devices = cluster.device_count();
    let replicas = most(task);
    let mut selection = Selection::new(request.memory_share);
    let mut simulated = 0;
    for microbatches in divisors(batch / replicas) {
        let common = task.uniform(1, Mesh::of(replicas, 1, 1), microbatches as usize);
        let recompute = Recompute::None.under(cluster.stack());
        let uniform = change(Uniform { recompute, ..common });
        let plan = uniform.plan(task.graph, &request.model, &request.cluster);
        let plan = task.completed(Plan { parameters: request.frozen.clone(), ..plan });
        let judgement = judge(task.graph, cluster, &plan)?;
        simulated += 1;
        if selection.offer(plan, judgement) {
            break;
        }
    }
    let nothing = || task.impossible("global_batch", batch, "at least 1");
    let found = selection.finish(task).map_err(|why| why.unwrap_or_else(nothing))?;
    Ok(found.choice(simulated, simulated).noting_idle(devices, "replicas"))
}

/// On how many devices the batch can be dealt to replicas.
pub(super) fn most(task: &Task<'_>) -> u32 {
    let devices = task.cluster.device_count();
    divisors(task.request.global_batch as u32).filter(|&it| it <= devices).max().unwrap_or(1)
}
