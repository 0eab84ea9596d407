//! What DeepSpeed's 3D parallelism chooses.

use std::collections::BTreeSet;

use shardloom_collectives::Algorithm;
use shardloom_methods::named;
use shardloom_plan::{AttentionKind, Axis, Recompute};
use shardloom_search::Request;

use crate::baselines::{h100, model};

#[test]
fn stages_come_with_a_whole_node_of_tensor_parallelism_and_zero_1_and_blocks_are_recomputed() {
    let text = "gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024,tied=false";
    let graph = model(text);
    let request = Request {
        memory_share: 1.0,
        attention: Some(AttentionKind::Unfused),
        ..Request::new(text, "c", 64)
    };
    let deepspeed = named("deepspeed").expect("registered");
    let mut shapes = BTreeSet::new();
    // By trees nothing is shared, so that what does not fit a node of tensor parallelism needs stages.
    for algorithm in [Algorithm::Ring, Algorithm::DoubleBinaryTree] {
        for megabytes in [80_000, 60, 40, 25, 20, 16, 14, 12, 10, 8, 6, 5, 4] {
            let cluster = h100(2, 4, megabytes * 1_000_000);
            let request = Request { algorithm, ..request.clone() };
            let Ok(choice) = deepspeed.choose(&graph, &cluster, &request) else { continue };
            let plan = &choice.plan;
            assert!(choice.judgement.fits(1.0), "{megabytes} megabytes");
            assert_eq!(plan.recompute, Recompute::Full, "{megabytes} megabytes");
            let split = plan.layout.0.iter().any(|rule| rule.dim == "seq" && rule.axis == Axis::TP);
            assert!(!split, "{megabytes} megabytes: the sequence is split");
            let stages = plan.stages().count();
            let tp = plan.stages().next().map_or(0, |(_, stage)| stage.mesh.tp());
            if stages > 1 {
                assert_eq!((plan.schedule.name(), tp), ("1f1b", 4), "{megabytes} megabytes");
                assert!(plan.sync.zero <= 1, "{megabytes} megabytes");
            }
            shapes.insert((stages, tp, plan.sync.zero));
        }
    }
    assert!(shapes.iter().any(|&(stages, ..)| stages > 1), "no stages: {shapes:?}");
    assert!(shapes.contains(&(1, 1, 1)) && shapes.iter().any(|it| it.2 > 1), "{shapes:?}");
}

#[test]
fn one_device_has_nobody_to_share_with() {
    let text = "gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024";
    let request = Request::new(text, "c", 8);
    let deepspeed = named("deepspeed").expect("registered");
    let cluster = h100(1, 1, 80_000_000_000);
    let plan = deepspeed.choose(&model(text), &cluster, &request).expect("a plan").plan;
    assert_eq!((plan.device_count(), plan.sync.zero, plan.recompute), (1, 0, Recompute::Full));
}

#[test]
fn replicas_of_a_model_with_room_share_optimizer_states_however_few_they_are() {
    let text = "gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024";
    let request = Request::new(text, "c", 16);
    let deepspeed = named("deepspeed").expect("registered");
    for devices in [1, 2, 4, 8] {
        let cluster = h100(1, devices, 80_000_000_000);
        let plan = deepspeed.choose(&model(text), &cluster, &request).expect("a plan").plan;
        let mesh = plan.stages().next().expect("a stage").1.mesh;
        assert_eq!((mesh.dp(), mesh.size() as u32), (devices, devices));
        assert_eq!(plan.sync.zero, u8::from(devices > 1), "{devices} devices");
    }
}
