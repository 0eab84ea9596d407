//! How replicas stay equal: ZeRO stages, buckets and algorithms.

use shardloom_plan::{Axis, AxisSet, Mesh, Plan, ScheduleKind, Sync, Uniform, Weights};

use crate::scenario::{complaint, graph, plan};

#[test]
fn there_are_four_zero_stages_whose_algorithm_scatters_and_buckets_hold_something() {
    assert_eq!(complaint(|it| it.sync.zero = 4), "sync.zero = 4: a ZeRO stage is 0 to 3");
    assert_eq!(complaint(|it| it.sync.bucket_bytes = 0), "sync.bucket_bytes = 0: at least 1");
    let with = |algorithm: &str, zero| {
        let algorithm = algorithm.parse().expect("an algorithm");
        complaint(|it| it.sync = Sync { algorithm, zero, ..Sync::default() })
    };
    assert_eq!(
        with("binary-tree", 1),
        "sync.algorithm = binary-tree: ZeRO scatters and gathers, which this algorithm does not do; \
         ring, direct, halving-doubling and hierarchical do"
    );
}

#[test]
fn buckets_end_within_blocks_where_weights_are_not_gathered_by_block() {
    let with = |zero| complaint(|it| it.sync = Sync { zero, splits_blocks: true, ..it.sync });
    let rule = "for weights that are not gathered block by block: zero up to 2, or leave splits_blocks out";
    assert_eq!(with(3), format!("sync.splits_blocks = true: {rule}"));
}

#[test]
fn gradients_are_all_reduced_where_states_alone_are_shared() {
    let with = |zero| complaint(|it| it.sync = Sync { zero, all_reduces: true, ..it.sync });
    let rule = "for replicas that share optimizer state alone: zero = 1, or leave all_reduces out";
    for zero in [0, 2, 3] {
        assert_eq!(with(zero), format!("sync.all_reduces = true: {rule}"));
    }
}

#[test]
fn replicas_share_along_axes_that_have_replicas_if_they_share_at_all() {
    let graph = graph();
    let message = |zero: u8, axes: &[Axis]| {
        let mut plan = plan();
        plan.sync = Sync { zero, shard_over: AxisSet::of(axes), ..plan.sync };
        plan.validate(&graph, plan.device_count()).map_err(|error| error.to_string())
    };
    assert_eq!(message(1, &[Axis::DP]), Ok(()));
    assert_eq!(message(3, &[Axis::CP, Axis::DP]), Ok(()));
    assert_eq!(
        message(0, &[Axis::DP]),
        Err("sync.shard_over = [dp]: with zero = 0 nothing is shared; 1 to 3 share".into())
    );
    assert_eq!(
        message(1, &[]),
        Err("sync.shard_over = []: at least one axis; zero = 0 shares nothing".into())
    );
    let along_tp = message(2, &[Axis::DP, Axis::TP]).expect_err("operators are split");
    assert!(along_tp.starts_with("sync.shard_over = [dp, tp]: the axes that have replicas are"));
}

#[test]
fn a_second_copy_is_of_shared_weights_and_among_fewer_who_share_them() {
    let graph = graph();
    let message = |axes: &[Axis], change: fn(&mut Plan)| {
        let (pp, mesh) = (2, Mesh::of(2, 2, 1));
        let uniform = Uniform { pp, mesh, global_batch: 8, microbatches: 2, ..Uniform::default() };
        let mut plan = uniform.plan(&graph, "model", "cluster");
        let second_copy_over = AxisSet::of(axes);
        plan.sync = Sync { zero: 3, second_copy_over, ..plan.sync };
        change(&mut plan);
        plan.validate(&graph, plan.device_count()).map_err(|error| error.to_string())
    };
    assert_eq!(message(&[Axis::CP], |_| {}), Ok(()));
    assert_eq!(message(&[Axis::DP], |_| {}), Ok(()));
    let said =
        |axes: &[Axis], change: fn(&mut Plan)| message(axes, change).expect_err("it is refused");
    let begins = |found: String, with: &str| assert!(found.starts_with(with), "{found}");
    begins(
        said(&[Axis::DP], |plan| plan.sync.zero = 2),
        "sync.second_copy_over = [dp]: a second copy is of weights that are shared: zero = 3",
    );
    let fewer = "it is shared by at least two ranks, and by fewer than the first copy";
    begins(
        said(&[Axis::DP, Axis::CP], |_| {}),
        &format!("sync.second_copy_over = [dp, cp]: {fewer}"),
    );
    begins(said(&[], |_| {}), &format!("sync.second_copy_over = []: {fewer}"));
    begins(
        said(&[Axis::DP], |plan| plan.sync.shard_over = AxisSet::of(&[Axis::DP])),
        &format!("sync.second_copy_over = [dp]: {fewer}"),
    );
    begins(
        said(&[Axis::CP], |plan| plan.sync.shard_over = AxisSet::of(&[Axis::DP])),
        "sync.second_copy_over = [cp]: the axes along which all weights are shared are dp",
    );
    begins(
        said(&[Axis::DP], |plan| {
            plan.schedule = ScheduleKind::PipeDream;
            plan.weights = Weights::Stash;
            plan.clip_norm = None;
        }),
        "sync.second_copy_over = [dp]: it is of the last forward pass",
    );
}
