//! The order in which PipeDream-2BW's planner names its configurations.

use shardloom_cluster::Cluster;
use shardloom_methods::partition::{Interconnect, LayerProfile, TwoBwRequest, Updates, two_bw};

/// All work is in the first of five blocks and takes a second, whatever the micro-batch. So one pipeline of
/// five stages with two samples in a micro-batch trains two samples a second on five devices, and two
/// pipelines of three stages with one sample each do it on six.
#[test]
fn of_equally_fast_pipelines_those_on_fewer_devices_come_first_however_wide_they_are() {
    let request = TwoBwRequest {
        workers: 6,
        global_batch: 12,
        memory_bytes: f64::INFINITY,
        links: Interconnect::of(&Cluster::parse("v100-16g:1x8").expect("a preset")),
        updates: Updates::DoubleBuffered,
        state_bytes_per_weight_byte: 0.0,
    };
    let idle = LayerProfile::default();
    let busy = LayerProfile { forward_seconds: 1.0, ..idle };
    let layers = vec![busy, idle, idle, idle, idle];
    let found = two_bw(&request, |_| Ok(layers.clone())).expect("a plan");
    let plain = found.iter().filter(|it| !it.recompute);
    let shape = |it: &shardloom_methods::partition::TwoBwConfiguration| {
        assert_eq!(it.slot_seconds, 1.0);
        (it.width, it.depth, it.microbatch)
    };
    let shapes: Vec<(u32, u32, u32)> = plain.map(shape).collect();
    let place = |shape| shapes.iter().position(|&it| it == shape).expect("in the space");
    assert!(place((1, 5, 2)) < place((2, 3, 1)), "{shapes:?}");
    for pair in shapes.windows(2) {
        let key = |(width, depth, microbatch): (u32, u32, u32)| {
            (std::cmp::Reverse(width * microbatch), width * depth)
        };
        assert!(key(pair[0]) <= key(pair[1]), "{pair:?}");
    }
}
