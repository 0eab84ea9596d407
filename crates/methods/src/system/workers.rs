//! Workers of one device each, and servers: which of the devices are servers.

use std::collections::VecDeque;

use shardloom_plan::{Mesh, Plan, Recompute, Uniform};
use shardloom_program::ProgramError;
use shardloom_search::{SearchError, divisors, judge};

use crate::choice::Task;
use crate::selection::Selection;
use crate::{Choice, MethodError};

/// The fastest of the plans that [`fastest_plan`] tries with so many servers. `with` says what plans with a number of
/// them have.
pub(super) fn fastest(
    task: &Task<'_>,
    servers: FewestServers,
    with: impl Fn(u32, Uniform) -> Uniform,
) -> Result<Choice, MethodError> {
    let request = task.request;
    fastest_plan(task, servers, |count, common| {
        let plan = with(count, common).plan(task.graph, &request.model, &request.cluster);
        Some(Plan { parameters: request.frozen.clone(), ..plan })
    })
}

/// The fewest servers on devices of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FewestServers {
    One,
    /// None, as workers' devices have some too.
    None,
}

/// So many servers at least, and one, two, four and so on up to half of the devices; of the others as many workers as the batch can be
/// dealt to, each with the largest micro-batches that fit, and with its blocks computed twice only where no others do.
/// A worker's forward pass is followed by its backward pass, so that smaller micro-batches take less memory. `with`
/// makes the plan with so many servers, if there is one.
pub(super) fn fastest_plan(
    task: &Task<'_>,
    servers: FewestServers,
    with: impl Fn(u32, Uniform) -> Option<Plan>,
) -> Result<Choice, MethodError> {
    let (cluster, request) = (task.cluster, task.request);
    let devices = cluster.device_count();
    let rule = "at least 2, a worker and a server";
    if devices < 2 {
        return Err(task.impossible("devices", devices, rule));
    }
    let none = (servers == FewestServers::None).then_some(0);
    let counts = none.into_iter().chain(std::iter::successors(Some(1), |count| Some(2 * count)));
    let mut selection = Selection::new(request.memory_share);
    let mut simulated = 0;
    'counts: for count in counts.take_while(|it| 2 * it <= devices) {
        let batch = request.global_batch as u32;
        let workers = divisors(batch).filter(|&it| it <= devices - count).max().unwrap_or(1);
        let tried = |recompute| divisors(batch / workers).map(move |it| (recompute, it));
        let mut left: VecDeque<(Recompute, u32)> =
            [Recompute::None, Recompute::Full].into_iter().flat_map(tried).collect();
        while let Some((recompute, microbatches)) = left.pop_front() {
            let common = task.uniform(1, Mesh::of(workers, 1, 1), microbatches as usize);
            let recompute = recompute.under(cluster.stack());
            let Some(plan) = with(count, Uniform { recompute, ..common }) else {
                continue;
            };
            let plan = task.completed(plan);
            let judgement = match judge(task.graph, cluster, &plan) {
                Ok(judgement) => judgement,
                // So it is with more servers, too.
                Err(SearchError::Program(ProgramError::TooManyServers { .. })) if count > 1 => {
                    break 'counts;
                }
                Err(error) => return Err(error.into()),
            };
            simulated += 1;
            // What does not fit whatever is kept comes closest with the least of it, which is the last.
            let lasting =
                judgement.memory.iter().map(|it| (it.persistent.total(), it.memory_bytes));
            let mut lasting = lasting.map(|(held, all)| held as f64 / all as f64);
            let lasts_too_much = lasting.any(|share| share > request.memory_share);
            if lasts_too_much {
                left.drain(..left.len().saturating_sub(1));
            }
            // Where servers hold nothing, workers hold as much with any number of them.
            let is_alike = plan.sync.summation.is_some() && plan.parameters.is_empty();
            if selection.offer(plan, judgement) {
                break;
            }
            if lasts_too_much && is_alike && left.is_empty() {
                break 'counts;
            }
        }
    }
    let nothing = || task.impossible("devices", devices, rule);
    let found = selection.finish(task).map_err(|why| why.unwrap_or_else(nothing))?;
    Ok(found.choice(simulated, simulated).noting_idle(devices, "workers"))
}
