//! Parameter servers (Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI).

use shardloom_plan::{Precision, Servers, Staleness, Sync, Uniform};

use super::workers::{self, FewestServers};
use crate::choice::Task;
use crate::method::{Family, Method, Rules};
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

/// Synchronous, since the paper leaves staleness to who trains.
fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let request = task.request;
    if request.post_validation {
        let rule = "no update of a server depends on the norm of all gradients";
        return Err(task.impossible("post_validation", true, rule));
    }
    let graph = task.graph;
    let mut choice = workers::fastest(task, FewestServers::One, |count, common| {
        let servers = Servers::of(count, Staleness::SYNCHRONOUS);
        let bucket_bytes = servers.bucket_bytes(graph, common.mesh.dp() as usize);
        Uniform {
            sync: Sync { servers: Some(servers), bucket_bytes, ..common.sync },
            precision: Precision::FP32,
            clip_norm: None,
            ..common
        }
    })?;
    choice.notes.push(
        "workers wait for each other after every step: `staleness` of `sync.servers` says how far ahead of \
         the slowest they may be, or \"unbounded\""
            .into(),
    );
    choice.notes.extend(workers::note_of_ranges(&choice.plan));
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
