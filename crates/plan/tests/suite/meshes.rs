//! Meshes: how many replicas share.

use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, AxisSet, Mesh, Sync, Uniform};

#[test]
fn replicas_are_cut_into_groups_that_share_where_their_size_divides_them() {
    for (dp, width) in (1..=12_u32).flat_map(|dp| (0..=13).map(move |width| (dp, width))) {
        let mesh = Mesh::of(dp, 2, 3);
        let divides = width > 0 && dp % width == 0;
        match mesh.sharing_within(width) {
            Some(within) => {
                assert!(divides, "{width} of {dp}");
                let widths = [Axis::DP, Axis::REPLICA, Axis::CP, Axis::TP];
                let widths = widths.map(|axis| within.width(axis) as u32);
                assert_eq!(widths, [width, dp / width, 2, 3]);
                assert_eq!((within.dp(), within.size()), (dp, mesh.size()));
            }
            None => assert!(!divides, "{width} of {dp}"),
        }
    }
}

#[test]
fn groups_that_share_are_cut_out_of_the_replicas_of_batch_and_sequence_alike() {
    let graph =
        ModelSpec::parse("gpt:layers=1,hidden=8,heads=2,seq=8,vocab=16").unwrap().graph().unwrap();
    let cases = (0..=3).flat_map(|zero| [(zero, 1), (zero, 2)]);
    for (zero, groups) in cases {
        for (dp, cp, tp) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 2, 2), (1, 1, 2)] {
            let mesh = Mesh::of(dp * groups, cp, tp).sharing_within(dp).expect("it divides");
            let sync = Sync { zero, ..Sync::default() };
            let uniform = Uniform { mesh, sync, ..Uniform::default() };
            let shares = uniform.plan(&graph, "m", "c").sync.shard_over;
            // What the replicas of a group have in common is cut over all of them, in their order: data parallel
            // ones and, as in Megatron-LM, those that have other parts of the same sequences.
            let over = match (zero > 0 && groups > 1, dp > 1, cp > 1) {
                (false, ..) => None,
                (true, true, true) => AxisSet::of(&[Axis::DP, Axis::CP]),
                (true, false, true) => AxisSet::of(&[Axis::CP]),
                (true, ..) => AxisSet::of(&[Axis::DP]),
            };
            assert_eq!(shares, over, "ZeRO {zero}, {groups} groups of {dp} by {cp} by {tp}");
        }
    }
}
