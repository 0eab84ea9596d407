//! Workers of one device each, and servers: which of the devices are servers.

use std::collections::VecDeque;

use shardloom_graph::Extents;
use shardloom_plan::{Mesh, Plan, Recompute, Servers, Uniform};
use shardloom_program::ProgramError;
use shardloom_program::quantity::bytes;
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

/// The most memory that a device has for plans.
fn room(task: &Task<'_>) -> f64 {
    let profiles = task.cluster.profiles();
    let memory = profiles.iter().map(|it| task.cluster.memory_bytes(&it.device)).max().unwrap_or(0);
    task.request.memory_share * memory as f64
}

/// Refuses models whose weights and gradients alone take more memory than any device has for them, before plans are
/// simulated that cannot fit. Tables are not counted, as they may lie on servers.
///
/// # Errors
/// If they do.
pub(super) fn require_room(task: &Task<'_>) -> Result<(), MethodError> {
    let (graph, request) = (task.graph, task.request);
    let extents = Extents::global(graph, 1);
    let of_tables = graph.tables().map(|table| extents.elements(&graph.value(table).axes) as u64);
    let numbers = graph.parameter_count().saturating_sub(of_tables.sum());
    let formats = request.precision;
    let gradient = if request.frozen.is_empty() { formats.gradients.bytes() } else { 0 };
    let held = numbers * (formats.compute.bytes() + gradient) as u64;
    if held as f64 <= room(task) {
        return Ok(());
    }
    let rule = format!(
        "workers have no room for the model, whose weights and gradients without tables take {}, where a device has {}; \
         take larger devices, or a method that splits it, such as zero or megatron-lm",
        bytes(held),
        bytes(room(task) as u64)
    );
    Err(task.impossible("devices", task.cluster.device_count(), rule))
}

/// What to know of ranges that are larger than published, if they are.
pub(super) fn note_of_ranges(plan: &Plan) -> Option<String> {
    let (size, published) = (plan.sync.bucket_bytes, Servers::PARTITION_BYTES);
    (size > published).then(|| {
        format!(
            "ranges hold at most {size} bytes: with {published}, which is usual, workers would send more than 65,536 of \
             them together"
        )
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
    require_room(task)?;
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
        // After the first, where it does not fit, what takes least memory: if that does not fit either, nothing does.
        let (mut is_least, mut has_tried_least) = (false, false);
        while let Some((recompute, microbatches)) =
            if is_least { left.pop_back() } else { left.pop_front() }
        {
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
            // Where servers hold nothing, workers hold as much with any number of them, apart from servers beside them.
            let holds_all = plan.sync.summation.is_some() && plan.parameters.is_empty();
            let mut peaks = judgement.memory.iter().map(|it| it.peak_bytes as f64);
            let is_too_much_alone = holds_all && peaks.any(|peak| peak > room(task));
            match selection.offer(plan, judgement) {
                true if is_least => is_least = false,
                true => break,
                false if is_least && is_too_much_alone => break 'counts,
                false if is_least => break,
                false => {
                    is_least = !has_tried_least;
                    has_tried_least = true;
                }
            }
        }
    }
    let nothing = || task.impossible("devices", devices, rule);
    let found = selection.finish(task).map_err(|why| why.unwrap_or_else(nothing))?;
    Ok(found.choice(simulated, simulated).noting_idle(devices, "workers"))
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_plan::Sync;

    use super::*;

    #[test]
    fn ranges_larger_than_published_are_said() {
        let model = "mlp:inputs=4,hidden=4,layers=2,classes=4";
        let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
        let note = |bucket_bytes| {
            let sync = Sync { bucket_bytes, ..Sync::default() };
            note_of_ranges(&Uniform { sync, ..Uniform::default() }.plan(&graph, model, "c"))
        };
        assert_eq!(note(4_096_000), None);
        let said = note(4_096_001).expect("they are larger");
        assert!(said.starts_with("ranges hold at most 4096001 bytes: with 4096000"), "{said}");
    }
}
