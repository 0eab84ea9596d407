//! What replicas reduce, gather and copy, by one cause at a time.

use shardloom_cluster::Cluster;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Precision, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Settings};

use super::candidates::pipeline;
use super::simulated::{MIXED, assert_as_simulated, frozen, model, times};
use crate::scenario::{cores, gpt, h100};

/// Estimated over simulated seconds of two replicas with so many micro-batches of one sample.
fn ratio_of_replicas(
    graph: &Graph,
    cluster: &Cluster,
    settings: &Settings,
    (zero, schedule, microbatches): (u8, ScheduleKind, u32),
) -> f64 {
    let candidate = Candidate { dp: 2, zero, sharing: 2, schedule, ..pipeline(1, 1, microbatches) };
    let (estimated, simulated) = times(graph, cluster, settings, &[candidate])[0];
    estimated / simulated
}

#[test]
fn slow_reductions_of_every_pass_are_hidden_by_the_next_forward_pass_where_there_is_one() {
    let graph = model("gpt:layers=4,hidden=1024,heads=16,seq=512,vocab=8192");
    // One card for each node: gradients take longer to reduce than to compute.
    let cluster = Cluster::parse("h100-80g:2x1").expect("a preset");
    for schedule in ScheduleKind::PLAIN {
        let ratio = ratio_of_replicas(&graph, &cluster, &MIXED, (2, schedule, 16));
        assert!((0.94..=1.06).contains(&ratio), "{schedule:?}: {ratio}");
    }
}

#[test]
fn copies_of_shards_are_estimated_where_lanes_do_not_overlap() {
    let graph = gpt(4, false);
    let mut groups = cores(2).groups().to_vec();
    groups[0].profile.device.memory_bytes_per_second /= 10.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    for zero in 0..=3 {
        let ratio = ratio_of_replicas(&graph, &cluster, &settings, (zero, ScheduleKind::Afab, 2));
        assert!((0.99..=1.01).contains(&ratio), "ZeRO-{zero}: {ratio}");
    }
}

/// Over links so slow that sums of the embedding are most of a step.
#[test]
fn replicas_that_share_optimizer_state_add_up_shares_of_tied_weights() {
    let graph = model("gpt:layers=4,hidden=256,heads=4,seq=64,vocab=16384,tied=true");
    let mut groups = Cluster::parse("h100-80g:4x1").expect("a preset").groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.inter.bytes_per_second /= 50.0;
    node.uplink_bytes_per_second /= 50.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    for zero in [0, 1] {
        let candidate = Candidate { dp: 2, sharing: 2, zero, ..pipeline(2, 1, 4) };
        assert_as_simulated(&times(&graph, &cluster, &MIXED, &[candidate]), 0.05);
    }
}

/// Over slow links, which bring little but the weights of frozen blocks.
#[test]
fn sharded_weights_that_are_frozen_are_gathered_as_others_are() {
    let graph = model("gpt:layers=8,hidden=512,heads=8,seq=64,vocab=1024");
    let mut groups = Cluster::parse("h100-80g:2x1").expect("a preset").groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.inter.bytes_per_second /= 10.0;
    node.uplink_bytes_per_second /= 10.0;
    let cluster = Cluster::new(groups).expect("a cluster");
    let settings = frozen(&["block.[1-7].*"]);
    let candidate = Candidate { dp: 2, sharing: 2, zero: 3, ..pipeline(1, 1, 2) };
    assert_as_simulated(&times(&graph, &cluster, &settings, &[candidate]), 0.1);
}

#[test]
fn gathers_of_updated_weights_hold_up_the_step_where_links_are_slow() {
    let graph = model("gpt:layers=4,hidden=1024,heads=16,seq=512,vocab=8192");
    let cluster = Cluster::parse("h100-80g:2x1").expect("a preset");
    for norm in [false, true] {
        let settings = Settings { norm, ..MIXED };
        let ratio = ratio_of_replicas(&graph, &cluster, &settings, (1, ScheduleKind::Afab, 1));
        assert!((0.97..=1.03).contains(&ratio), "norm {norm}: {ratio}");
    }
}

/// While the loss, which has no weights, goes backward, those of the block before it come.
#[test]
fn a_loss_by_itself_hides_the_gather_of_the_weights_before_it() {
    let text = r#"
        [model]
        name = "loss-apart"
        [dims]
        seq = 1024
        even = 2048
        odd = 2048
        vocab = 4096
        [[input]]
        name = "features"
        kind = "real"
        axes = ["seq", "even"]
        [[input]]
        name = "targets"
        kind = "index"
        axes = ["seq"]
        [[block]]
        name = "first"
        [[block.op]]
        kind = "contract"
        inputs = ["features"]
        weight = { axes = ["even", "odd"], init = { normal = 0.02 } }
        [[block]]
        name = "second"
        [[block.op]]
        kind = "contract"
        inputs = ["first"]
        weight = { axes = ["odd", "even"], init = { normal = 0.02 } }
        [[block]]
        name = "head"
        [[block.op]]
        kind = "contract"
        inputs = ["second"]
        weight = { axes = ["vocab", "even"], init = { normal = 0.02 } }
        [[block]]
        name = "loss"
        [[block.op]]
        kind = "cross-entropy"
        inputs = ["head", "targets"]
    "#;
    let graph = ModelSpec::from_toml(text, "loss-apart.toml").and_then(|spec| spec.graph());
    let graph = graph.unwrap_or_else(|error| panic!("{error}"));
    let settings = Settings { norm: false, ..MIXED };
    let candidate = Candidate { dp: 2, zero: 3, sharing: 2, microbatch: 4, ..pipeline(1, 1, 1) };
    let times = times(&graph, &h100(2), &settings, &[candidate]);
    assert_as_simulated(&times, 1e-6);
}
