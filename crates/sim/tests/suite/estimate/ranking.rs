//! Estimates of many candidates rank them as the simulator does, and are near their times.

use shardloom_cluster::{Cluster, Curve, PlanDefaults, Stack};
use shardloom_collectives::Algorithm;
use shardloom_plan::{Number, Optimizer, Precision};
use shardloom_sim::estimate::{Candidate, Settings};

use super::candidates::{candidates, candidates_of_context, sample};
use super::simulated::{
    MIXED, assert_as_simulated, assert_ranked, frozen, mean_error, model, times,
};
use crate::scenario::{cores, gpt, h100};

#[test]
fn estimates_rank_plans_as_the_simulator_does() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let candidates = sample(candidates(16, 64), 24);
    assert!(candidates.len() > 80, "{} plans", candidates.len());
    let times = times(&graph, &h100(16), &MIXED, &candidates);
    assert_ranked(&times, 0.98, 0.03, "GPT on H100s");
}

#[test]
fn estimates_rank_plans_where_collectives_slow_computation_down() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let candidates = sample(candidates(16, 64), 24);
    let stack = Stack { beside_collectives: 2.0, ..Stack::default() };
    let times = times(&graph, &h100(16).under(stack), &MIXED, &candidates);
    assert_ranked(&times, 0.98, 0.03, "GPT on H100s, twice as slow beside collectives");
}

/// Each bucket takes the latency of a collective: that of the plans that PyTorch's DistributedDataParallel runs, and what
/// a replica's ranks all-reduce instead of shares.
#[test]
fn estimates_rank_plans_as_software_reduces_their_gradients() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let mut groups = h100(16).groups().to_vec();
    groups[0].profile.node.intra.latency_seconds = 5e-5;
    let cluster = Cluster::new(groups).expect("a cluster");
    let candidates = sample(candidates(16, 64), 24);
    let mut splitting = PlanDefaults::NONE;
    (splitting.splits_blocks, splitting.bucket_bytes) = (true, Some(2_000_000));
    let mut reducing = PlanDefaults::NONE;
    (reducing.all_reduces_shards, reducing.reduces_shards_at_end) = (true, true);
    for plan_defaults in [splitting, reducing] {
        let settings = Settings { plan_defaults, ..MIXED };
        let times = times(&graph, &cluster, &settings, &candidates);
        assert_ranked(&times, 0.98, 0.03, &format!("{plan_defaults:?}"));
    }
}

#[test]
fn estimates_rank_plans_with_tied_weights_and_slow_links() {
    let graph =
        model("llama:layers=6,hidden=512,heads=8,kv_heads=4,seq=512,vocab=4096,ffn=1408,tied=true");
    let cluster = Cluster::parse("v100-16g:4x4").expect("a preset");
    let settings =
        Settings { precision: Precision { compute: Number::Fp16, ..Precision::MIXED }, ..MIXED };
    let candidates: Vec<Candidate> =
        sample(candidates(16, 32), 24).into_iter().filter(|it| it.tp <= 4).collect();
    let times = times(&graph, &cluster, &settings, &candidates);
    assert_ranked(&times, 0.98, 0.05, "Llama on V100s");
}

#[test]
fn estimates_rank_plans_where_lanes_do_not_overlap() {
    let graph = gpt(8, false);
    let settings = Settings { precision: Precision::FP32, bucket_bytes: 100_000, ..MIXED };
    let candidates = sample(candidates(8, 32), 16);
    let times = times(&graph, &cores(8), &settings, &candidates);
    assert_ranked(&times, 0.98, 0.05, "GPT on cores");
}

/// Keys and values pass between nodes where a sample's devices fill more than one.
#[test]
fn estimates_rank_plans_with_context_parallelism() {
    let own = "llama:layers=6,hidden=512,heads=8,kv_heads=4,seq=4096,vocab=4096,ffn=1408";
    let positions = "gpt:layers=6,hidden=512,heads=8,seq=2048,vocab=4096";
    for (text, cluster) in [(own, h100(16)), (positions, Cluster::parse("h100-80g:4x4").unwrap())] {
        let graph = model(text);
        let of = |cp| sample(candidates_of_context(cp, 16, 32), 24);
        let candidates: Vec<Candidate> =
            [2, 4, 8].into_iter().flat_map(of).filter(|it| it.tp <= 4).collect();
        assert!(candidates.len() > 60, "{} plans", candidates.len());
        let times = times(&graph, &cluster, &MIXED, &candidates);
        assert_ranked(&times, 0.98, 0.04, text);
    }
}

/// Each rank of a node gathers what its own partner in the other node has, all at once over one uplink.
#[test]
fn groups_of_positions_beside_tensor_parallelism_share_what_leaves_a_node() {
    let graph = model("llama:layers=6,hidden=512,heads=8,kv_heads=8,seq=4096,vocab=4096,ffn=512");
    let cluster = Cluster::parse("h100-80g:2x4").expect("a preset");
    let mut groups = cluster.groups().to_vec();
    let node = &mut groups[0].profile.node;
    node.uplink_bytes_per_second = 0.05 * node.inter.bytes_per_second;
    let cluster = cluster.with_groups(groups).expect("a cluster");
    for (cp, tp) in [(2, 4), (4, 2)] {
        let is_it = |it: &Candidate| it.tp == tp && it.pp == 1 && it.zero == 0;
        let candidates: Vec<Candidate> =
            candidates_of_context(cp, 8, 2).into_iter().filter(is_it).collect();
        assert!(!candidates.is_empty());
        let times = times(&graph, &cluster, &MIXED, &candidates);
        assert_as_simulated(&times, 0.1);
    }
}

/// All below some block, whose stages have no backward passes and begin the next step while others still work on the one
/// before, which estimates know nothing of; some between; some parameters of each.
#[test]
fn estimates_rank_plans_of_which_some_parameters_are_frozen() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let trunk = ["embedding.*", "block.?.*", "block.10.*"];
    for (blocks, least, most) in
        [(&trunk[..], 0.95, 0.1), (&["block.[5-9].*"], 0.98, 0.02), (&["block.*.up.*"], 0.98, 0.02)]
    {
        let candidates = sample(candidates(16, 64), 24);
        let times = times(&graph, &h100(16), &frozen(blocks), &candidates);
        assert_ranked(&times, least, most, &format!("{blocks:?}"));
    }
}

/// What leaves a node is what is left after the ranks that share have added up theirs.
#[test]
fn estimates_rank_plans_of_which_some_replicas_share() {
    let graph = model("gpt:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    for (name, cluster) in
        [("2 nodes", h100(16)), ("4 nodes", Cluster::parse("h100-80g:4x4").unwrap())]
    {
        let shares = |it: Candidate| {
            let parts = if it.dp >= 8 { [2, 4] } else { [2, 2] };
            parts.map(|parts| Candidate { sharing: it.dp / parts, ..it })
        };
        let all = candidates(16, 64).into_iter().filter(|it| it.zero > 0 && it.dp >= 4);
        let candidates = sample(all.flat_map(shares).collect(), 24);
        assert!(candidates.len() > 60, "{} plans", candidates.len());
        let times = times(&graph, &cluster, &MIXED, &candidates);
        assert_ranked(&times, 0.98, 0.04, name);
    }
}

/// The estimate charges a skip to every cut between its ends, where the program sends it once.
#[test]
fn estimates_rank_plans_whose_stages_long_skips_connect() {
    let graph = model("u-transformer:layers=14,hidden=1024,heads=16,seq=1024,vocab=51200");
    let candidates = sample(candidates(16, 64), 24);
    let times = times(&graph, &h100(16), &MIXED, &candidates);
    assert_ranked(&times, 0.98, 0.05, "skips");
}

#[test]
fn estimates_take_measured_collectives_where_there_are_any() {
    let graph = gpt(4, false);
    let settings = Settings { precision: Precision::FP32, algorithm: Algorithm::Direct, ..MIXED };
    let mut groups = cores(4).groups().to_vec();
    for members in [2, 4] {
        for kind in ["all-reduce", "reduce-scatter", "all-gather"] {
            let curve = Curve::new(vec![(1e3, 1e-3), (1e6, 2e-2)]).expect("a curve");
            let name = format!("direct.{kind}.{members}");
            groups[0].profile.device.rates.insert(name, curve);
        }
    }
    let measured = Cluster::new(groups).expect("a cluster");
    let candidates = sample(candidates(4, 8), 8);
    let with = times(&graph, &measured, &settings, &candidates);
    let without = times(&graph, &cores(4), &settings, &candidates);
    assert!(mean_error(&with) <= 0.05, "mean error {}", mean_error(&with));
    let slower = with.iter().zip(&without).filter(|(with, without)| with.0 > without.0 + 1e-4);
    assert!(slower.count() > candidates.len() / 2);
}

#[test]
fn estimates_follow_the_optimizer() {
    let graph = model("gpt:layers=4,hidden=1024,heads=16,seq=256,vocab=8192");
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let sgd = Optimizer::sgd(0.0);
    for optimizer in [lamb, adafactor, sgd] {
        for norm in [false, true] {
            let settings = Settings { optimizer, norm, ..MIXED };
            let times = times(&graph, &h100(8), &settings, &sample(candidates(8, 8), 64));
            let error = mean_error(&times);
            assert!(error <= 0.06, "{optimizer:?}, norm {norm}: mean error {error}");
        }
    }
}
