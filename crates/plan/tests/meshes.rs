//! Meshes: how many replicas share.

use shardloom_plan::{Axis, Mesh};

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
