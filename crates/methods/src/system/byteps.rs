//! BytePS (Jiang et al. 2020, "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous
//! GPU/CPU Clusters", OSDI): its Summation Service, and how much of it runs where.

use shardloom_plan::{Ranges, SendOrder, Share, Summation, Sync, Uniform};

use super::workers::{self, FewestServers};
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
            update; servers on machines of their own and on the workers' share the sums so that all links are \
            equally busy.",
    rules: |_| Rules::FLUSH,
    chooser,
};

fn chooser(task: &mut Task<'_>) -> Result<Choice, MethodError> {
    let graph = task.graph;
    let mut choice = workers::fastest(task, FewestServers::None, |servers, common| {
        let (ranges, share, order) = (Ranges::Hashed, Share::Balanced, SendOrder::NextUse);
        let summation = Summation { ranges, share, order, ..Summation::of(servers) };
        // As many servers as workers leave them nothing.
        let workers = common.mesh.dp() as usize;
        let colocated = summation.own_part(workers) < 1.0;
        let summation = Summation { colocated, ..summation };
        let bucket_bytes = summation.bucket_bytes(graph, workers, common.sync.bucket_bytes);
        let sync = Sync { summation: Some(summation), bucket_bytes, ..common.sync };
        Uniform { sync, ..common }
    })?;
    let (workers, summation) = (choice.plan.pipeline.len(), choice.plan.sync.summation);
    if let Some(summation) = summation {
        let part = 100.0 * summation.own_part(workers);
        choice.notes.push(match summation.servers {
            0 => "every worker's device has a server, and there are no others: servers on machines of their own \
                  would not make a step shorter"
                .into(),
            _ if !summation.colocated => "servers sum all of the gradients; they compute nothing, so machines \
                                          without accelerators will do for them, at the end of the cluster"
                .into(),
            _ => format!(
                "servers on machines of their own sum {part:.1}% of the gradients and those on the workers' devices \
                 the rest, by the published split; the first compute nothing, so machines without accelerators will \
                 do for them, at the end of the cluster"
            ),
        });
    }
    choice.notes.extend(workers::note_of_ranges(&choice.plan));
    if choice.plan.sync.summation.is_some() && choice.plan.looks_at_norm() {
        choice.notes.push(
            "the next step waits for all sums, as its updates depend on the norm of all gradients; without clip_norm it \
             begins with the layers whose sums are there"
                .into(),
        );
    }
    Ok(choice)
}
