//! What norms, statistics and updates take, by one cause at a time.

use shardloom_cluster::{Cluster, Curve};
use shardloom_plan::{Optimizer, Precision, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Estimator, Settings};

use super::candidates::pipeline;
use super::simulated::{MIXED, assert_as_simulated, model, program, times};
use crate::scenario::{cores, gpt, h100};

/// All ranks read their gradients, and add up one number of 64 bits.
#[test]
fn waiting_for_the_norm_takes_a_sum_of_one_number_and_a_pass_over_gradients() {
    let graph = gpt(4, false);
    let mut groups = cores(2).groups().to_vec();
    groups[0].profile.node.intra.bytes_per_second = 1e4;
    let cluster = Cluster::new(groups).expect("a cluster");
    let candidate = pipeline(1, 2, 2);
    let [without, with] = [false, true].map(|norm| {
        let settings = Settings { precision: Precision::FP32, norm, ..MIXED };
        let mut estimator =
            Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
        estimator.estimate(&candidate).expect("costs").expect("a layout").step_seconds
    });
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    let mut estimator = Estimator::new(&graph, &cluster, settings.clone()).expect("an estimator");
    let program = program(&graph, &mut estimator, &settings, &candidate);
    let elements: usize = program.classes[0].buckets.iter().map(|it| it.elements).sum();
    // Half of the number goes each way, twice.
    let sum = 2.0 * (2e-6 + 4.0 / 1e4);
    let read = 4.0 * elements as f64 / 8e9;
    let found = with - without;
    assert!((found / (sum + read) - 1.0).abs() < 1e-6, "{found} is not {sum} + {read}");
}

/// The second stage of each mesh counts too.
#[test]
fn a_mesh_passes_over_the_gradients_of_all_of_its_stages_for_the_norm() {
    let graph = gpt(10, false);
    let mut groups = cores(2).groups().to_vec();
    let slow = Curve::new(vec![(1.0, 1e-5)]).expect("a curve");
    groups[0].profile.device.rates.insert("norm".to_owned(), slow);
    let cluster = Cluster::new(groups).expect("a cluster");
    let settings = Settings { precision: Precision::FP32, ..MIXED };
    for (schedule, chunks) in
        [(ScheduleKind::OneForwardOneBackward, 1), (ScheduleKind::Interleaved, 2)]
    {
        let candidate = Candidate { schedule, chunks, ..pipeline(2, 1, 4) };
        assert_as_simulated(&times(&graph, &cluster, &settings, &[candidate]), 0.02);
    }
}

/// Each round of statistics of a split bucket is added up in its tensor-parallel group; who holds a whole
/// bucket knows all of it. An embedding that tensor parallelism divides has no whole bucket.
#[test]
fn statistics_are_added_up_by_those_who_share_a_bucket() {
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    let settings = Settings {
        precision: Precision::FP32,
        optimizer: lamb,
        norm: false,
        bucket_bytes: 1,
        ..MIXED
    };
    let mut groups = cores(2).groups().to_vec();
    groups[0].profile.node.intra.latency_seconds = 1e-2;
    let cluster = Cluster::new(groups).expect("a cluster");
    for vocab in [128, 129] {
        let text = "llama:layers=1,hidden=64,heads=4,kv_heads=4,seq=32,ffn=96";
        let graph = model(&format!("{text},vocab={vocab}"));
        assert_as_simulated(&times(&graph, &cluster, &settings, &[pipeline(1, 2, 1)]), 0.01);
    }
}

/// Blocks of a weight and a bias, of which each of two replicas updates one.
#[test]
fn shards_of_a_single_number_take_what_launching_their_updates_takes() {
    let graph = model("mlp:inputs=1,hidden=1,layers=4,classes=2");
    let settings = Settings { norm: false, bucket_bytes: 1, ..MIXED };
    let candidates = [1, 2].map(|zero| Candidate { dp: 2, zero, sharing: 2, ..pipeline(1, 1, 1) });
    assert_as_simulated(&times(&graph, &h100(2), &settings, &candidates), 1e-6);
}
