//! BytePS (Jiang et al. 2020, "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
//! GPU/CPU Clusters", OSDI): its Summation Service, and how much of it runs where.

use shardloom_plan::{Ranges, SendOrder, Share, Summation, Sync, Uniform};

use super::workers;
use crate::choice::Task;
use crate::method::{Family, Method, Rules};
use crate::{Choice, MethodError};

/// Workers that hold the weights, and servers that sum as much of the gradients as makes all links equally busy.
pub(crate) const METHOD: Method = Method {
    name: "byteps",
    family: Family::DataParallel,
    paper: "Jiang et al. 2020, A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous \
            GPU/CPU Clusters, OSDI",
    about: "Servers sum pieces of the gradients, those first that are used next, and send the sums back, and workers \
            update; servers and workers share the sums so that all links are equally busy.",
    rules: |_| Rules::FLUSH,
    chooser,
};

fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let graph = task.graph;
    let mut choice = workers::fastest(task, |servers, common| {
        let (ranges, share, order) = (Ranges::Hashed, Share::Balanced, SendOrder::NextUse);
        let summation = Summation { ranges, share, order, ..Summation::of(servers) };
        let bucket_bytes = summation.bucket_bytes(graph, common.sync.bucket_bytes);
        let sync = Sync { summation: Some(summation), bucket_bytes, ..common.sync };
        Uniform { sync, ..common }
    })?;
    let (workers, summation) = (choice.plan.pipeline.len(), choice.plan.sync.summation);
    if let Some(Summation { servers, share, .. }) = summation {
        let part = 100.0 * share.part(workers, servers);
        choice.notes.push(format!(
            "servers sum {part:.1}% of the gradients and workers the rest, by the published split and not by step \
             time, in which messages do not slow the workers' all-reduce; servers compute nothing, so machines \
             without accelerators will do for them, at the end of the cluster"
        ));
    }
    if choice.plan.sync.summation.is_some() && choice.plan.looks_at_norm() {
        choice.notes.push(
            "the next step waits for all sums, as its updates depend on the norm of all gradients; with --no-clip it \
             begins with the layers whose sums are there"
                .into(),
        );
    }
    Ok(choice)
}
