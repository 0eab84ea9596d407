//! The rules of Megatron-LM (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
//! Clusters Using Megatron-LM", SC, arXiv 2104.04473, section 3).

use std::cmp::Reverse;

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{AttentionKind, Recompute, ScheduleKind};
use shardloom_search::{Baseline, Request, SearchError, Space};
use shardloom_sim::estimate::{Candidate, Cut};

use crate::method::{Family, Method, Rules};

/// Tensor parallelism in the node, 1F1B between nodes, data parallelism outermost.
pub(crate) const METHOD: Method = Method {
    name: "megatron-lm",
    family: Family::ThreeDimensional,
    paper: "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using \
            Megatron-LM, SC, arXiv 2104.04473",
    about: "Tensor parallelism within a node as wide as is needed to fit, pipeline stages beyond, data \
            parallelism outermost.",
    rules: |_| Rules::FLUSH,
    chooser: |task| task.by_rules(vec![baseline(task.graph, task.cluster, task.request)?]),
};

/// Narayanan et al. 2021, section 3, with sequence parallelism, selective recomputation (Korthikanti et al.
/// 2022, arXiv 2205.05198) and a sharded optimizer: tensor parallelism within a node up to what is needed to
/// fit, then pipeline stages, data parallelism outermost, at least four micro-batches a stage where the
/// batch has them, then the largest micro-batch.
///
/// # Errors
/// If the request asks for what cannot be.
pub(crate) fn baseline(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Baseline, SearchError> {
    let candidates = candidates(graph, cluster, request)?;
    Baseline::first_fitting("megatron rules", candidates, graph, cluster, request)
}

/// What the rules choose from, best first.
fn candidates(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Vec<Candidate>, SearchError> {
    let schedule = match request.schedules.contains(&ScheduleKind::OneForwardOneBackward) {
        true => ScheduleKind::OneForwardOneBackward,
        false => request.schedules[0],
    };
    let space = Space::new(graph, cluster, request)?;
    let all: Vec<Candidate> = space.candidates().filter(|it| it.cp == 1).collect();
    let widest = all.iter().map(|it| it.tp).max().unwrap_or(1);
    let mut sequences: Vec<u32> =
        all.iter().filter(|it| it.sequence_parallel).map(|it| it.tp).collect();
    sequences.dedup();
    // No scores are kept.
    let kept = match graph.attention() {
        Some(AttentionKind::Fused) => Recompute::None,
        _ => Recompute::Selective,
    };
    let usual = |it: &Candidate| {
        it.recompute == kept
            && it.zero == u8::from(request.shards() && it.dp > 1)
            && it.sharing == it.dp
            && it.cut == Cut::Even
            && (it.pp == 1 || (it.schedule == schedule && it.tp == widest))
            && it.sequence_parallel == sequences.contains(&it.tp)
    };
    let mut candidates: Vec<Candidate> = all.into_iter().filter(usual).collect();
    let scarce = |it: &Candidate| u64::from(it.microbatches) < 4 * u64::from(it.pp);
    candidates.sort_by_key(|it| {
        let left_out = cluster.device_count() - it.devices();
        (left_out, it.pp, it.tp, scarce(it), Reverse(it.microbatch))
    });
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::{NodeGroup, Profile};
    use shardloom_collectives::Algorithm;
    use shardloom_graph::ModelSpec;

    use super::*;

    /// Stages, replicas, width of tensor parallelism, samples of a micro-batch, and micro-batches.
    type Words = (u32, u32, u32, u32, u32);

    /// All splits of `devices` on nodes of so many and of the batch, of which tensor parallelism divides four heads.
    fn all(devices: u32, per_node: u32, batch: u32) -> Vec<Words> {
        let widest = [4, 2, 1].into_iter().find(|it| *it <= per_node).expect("one device");
        let mut all = vec![];
        for (pp, tp) in (1..=8).flat_map(|pp| [1, 2, 4].map(|tp| (pp, tp))) {
            let divides = tp <= per_node && pp * tp <= devices && (devices / tp).is_multiple_of(pp);
            if !divides || (pp > 1 && tp != widest) {
                continue;
            }
            let dp = (1..=devices / tp / pp)
                .rev()
                .find(|it| batch.is_multiple_of(*it))
                .expect("one does");
            for microbatch in (1..=batch / dp).filter(|it| (batch / dp).is_multiple_of(*it)) {
                all.push((pp, dp, tp, microbatch, batch / dp / microbatch));
            }
        }
        let used = |it: &Words| it.0 * it.1 * it.2;
        let fills = |it: &Words| it.4 >= 4 * it.0;
        all.sort_by(|one, other| {
            let shapes = (one.0, one.2).cmp(&(other.0, other.2));
            let sizes = fills(other).cmp(&fills(one)).then(other.3.cmp(&one.3));
            used(other).cmp(&used(one)).then(shapes).then(sizes)
        });
        all
    }

    #[test]
    fn the_rules_name_all_splits_with_the_least_model_parallelism_first() {
        use ScheduleKind::{Afab, OneForwardOneBackward};
        for (seq, kind) in
            [(24, AttentionKind::Fused), (6, AttentionKind::Unfused), (9, AttentionKind::Fused)]
        {
            let text = format!("gpt:layers=6,hidden=64,heads=4,seq={seq},vocab=64");
            let model = ModelSpec::parse(&text).and_then(|spec| spec.graph()).expect("a model");
            for ((nodes, per_node), batch) in [(1, 1), (2, 2), (2, 4), (3, 2)]
                .into_iter()
                .flat_map(|machines| [1, 6, 32, 48].map(|batch| (machines, batch)))
            {
                let profile = Profile::preset("h100-80g").expect("a preset");
                let group = NodeGroup { profile, nodes, devices_per_node: per_node };
                let cluster = Cluster::new(vec![group]).expect("a cluster");
                for (algorithm, schedules, schedule) in [
                    (Algorithm::Ring, vec![OneForwardOneBackward], OneForwardOneBackward),
                    (
                        Algorithm::BinaryTree,
                        vec![Afab, OneForwardOneBackward],
                        OneForwardOneBackward,
                    ),
                    (Algorithm::Ring, vec![Afab], Afab),
                ] {
                    let attention = Some(kind);
                    let request = Request::new(&text, "cluster", batch);
                    let request = Request { algorithm, schedules, attention, ..request };
                    let graph = request.graph_of(&model, &cluster).expect("a graph");
                    let found = candidates(&graph, &cluster, &request).expect("candidates");
                    let words =
                        |it: &Candidate| (it.pp, it.dp, it.tp, it.microbatch, it.microbatches);
                    let names: Vec<Words> = found.iter().map(words).collect();
                    let at = format!("{seq}, {nodes} x {per_node}, {batch} samples, {algorithm}");
                    assert_eq!(names, all(nodes * per_node, per_node, batch as u32), "{at}");
                    let recompute = match kind {
                        AttentionKind::Fused => Recompute::None,
                        AttentionKind::Unfused => Recompute::Selective,
                    };
                    for it in &found {
                        let shares = it.dp > 1 && algorithm == Algorithm::Ring;
                        assert_eq!((it.cp, it.zero), (1, u8::from(shares)), "{at}");
                        assert_eq!((it.sharing, it.recompute), (it.dp, recompute), "{at}");
                        let splits = it.tp > 1 && seq % it.tp == 0;
                        assert_eq!((it.sequence_parallel, it.cut), (splits, Cut::Even), "{at}");
                        assert!(it.pp == 1 || it.schedule == schedule, "{at}");
                    }
                }
            }
        }
    }
}
