//! Parameter servers (Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI).

use shardloom_plan::{Mesh, Precision, Recompute, Servers, Staleness, Sync, Uniform};
use shardloom_program::ProgramError;
use shardloom_search::{SearchError, divisors, judge};

use crate::choice::Task;
use crate::method::{Family, Method, Rules};
use crate::selection::Selection;
use crate::{Choice, MethodError};

/// Workers and parameter servers.
pub(crate) const METHOD: Method = Method {
    name: "parameter-server",
    family: Family::DataParallel,
    paper: "Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server, OSDI",
    about: "Servers hold ranges of the parameters: workers push gradients to them and pull weights, no \
            further ahead of each other than a bound, or without one.",
    rules: |_| Rules::FLUSH,
    chooser,
};

/// One server, two, four and so on up to half of the devices; of the others as many workers as the batch can be
/// dealt to, each with the largest micro-batches that fit. Synchronous, since the paper leaves staleness to who
/// trains.
fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let (cluster, request) = (task.cluster, task.request);
    let devices = cluster.device_count();
    if devices < 2 {
        return Err(task.impossible("devices", devices, "at least 2, a worker and a server"));
    }
    if request.post_validation {
        let rule = "no update of a server depends on the norm of all gradients";
        return Err(task.impossible("post_validation", true, rule));
    }
    let counts: Vec<u32> = std::iter::successors(Some(1), |count| Some(2 * count))
        .take_while(|it| 2 * it <= devices)
        .collect();
    let mut selection = Selection::new(request.memory_share);
    let mut simulated = 0;
    'counts: for &count in &counts {
        let batch = request.global_batch as u32;
        let workers = divisors(batch).filter(|&it| it <= devices - count).max().unwrap_or(1);
        for microbatches in divisors(batch / workers) {
            let servers = Servers { count, staleness: Staleness::SYNCHRONOUS };
            let common = task.uniform(1, Mesh::of(workers, 1, 1), microbatches as usize);
            let uniform = Uniform {
                sync: Sync {
                    servers: Some(servers),
                    bucket_bytes: servers.bucket_bytes(task.graph),
                    ..common.sync
                },
                recompute: Recompute::None.under(cluster.stack()),
                precision: Precision::FP32,
                clip_norm: None,
                ..common
            };
            let plan = uniform.plan(task.graph, &request.model, &request.cluster);
            let judgement = match judge(task.graph, cluster, &plan) {
                Ok(judgement) => judgement,
                // So it is with more servers, too.
                Err(SearchError::Program(ProgramError::TooManyServers { .. })) if count > 1 => {
                    break 'counts;
                }
                Err(error) => return Err(error.into()),
            };
            simulated += 1;
            if selection.offer(plan, judgement) {
                break;
            }
        }
    }
    let nothing = || task.impossible("devices", devices, "at least 2, a worker and a server");
    let found = selection.finish(task).map_err(|why| why.unwrap_or_else(nothing))?;
    let mut choice = found.choice(simulated, simulated);
    choice.notes.push(
        "that many workers send to a server at once is not in the step time, so it is too short where what \
         comes to a server takes longer than a step computes"
            .into(),
    );
    let idle = devices - choice.plan.device_count() as u32;
    if idle > 0 {
        choice
            .notes
            .push(format!("{idle} of {devices} devices do nothing: workers divide the batch"));
    }
    choice.notes.push(
        "workers wait for each other after every step: `staleness` of `sync.servers` says how far ahead of \
         the slowest they may be, or \"unbounded\""
            .into(),
    );
    if request.precision != Precision::FP32 {
        choice.notes.push(
            "everything is in fp32, whatever was asked for: servers have no other format".into(),
        );
    }
    if let Some(norm) = request.clip_norm {
        choice.notes.push(format!(
            "gradients are not clipped to {norm}: each server updates what it holds by itself, and none \
             knows the norm of all"
        ));
    }
    Ok(choice)
}
