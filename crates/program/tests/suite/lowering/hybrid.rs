//! Replicas of which some share state: what is reduced over whom, how often, and what ranks hold.

use std::collections::BTreeMap;

use shardloom_graph::Reduction;
use shardloom_plan::{Axis, AxisSet, Mesh, ParameterGroup, Plan, Sync, Uniform};
use shardloom_program::{Action, Class, Collective, Content, Group, Program, lower};

use super::invariants::check_invariants;
use super::model::{gpt, llama, single};

/// Four replicas in pairs that share, of two stages.
fn pairs(zero: u8) -> Uniform {
    Uniform {
        pp: 2,
        mesh: Mesh::of(4, 1, 1).sharing_within(2).expect("two pairs"),
        global_batch: 16,
        microbatches: 4,
        sync: Sync { zero, bucket_bytes: 1, ..Sync::default() },
        ..single()
    }
}

/// Over which axes gradients are scattered, and over which they are summed up, how often in a step and over
/// how many elements in all.
fn reduced(class: &Class) -> BTreeMap<(bool, Vec<Axis>), (usize, usize)> {
    let mut found: BTreeMap<(bool, Vec<Axis>), (usize, usize)> = BTreeMap::new();
    for instruction in class.entries().flat_map(|entry| &class.body_of(entry).instructions) {
        let Action::Collective { kind, group: Group::Mesh(axes), .. } = &instruction.action else {
            continue;
        };
        let read = instruction.reads[0];
        if class.tensor(read.tensor).content != Content::Gradient {
            continue;
        }
        let scatters = match kind {
            Collective::ReduceScatter { .. } => true,
            kind => {
                assert_eq!(*kind, Collective::AllReduce(Reduction::Sum));
                false
            }
        };
        let count = found.entry((scatters, axes.clone())).or_default();
        *count = (count.0 + 1, count.1 + class.view_range(read, 0).len());
    }
    found
}

fn program(plan: &Plan, graph: &shardloom_graph::Graph) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn shares_are_summed_up_once_a_step_over_those_who_hold_the_same() {
    let graph = llama();
    for (zero, scatters) in [(1, 1), (2, 4), (3, 4)] {
        let plan = pairs(zero).plan(&graph, "model", "local");
        assert_eq!(plan.sync.shard_over, AxisSet::of(&[Axis::DP]));
        let program = program(&plan, &graph);
        check_invariants(&program);
        for class in &program.classes {
            let buckets = class.buckets.len();
            let elements: usize = class.buckets.iter().map(|bucket| bucket.elements).sum();
            let shares: usize =
                class.buckets.iter().map(|bucket| class.shard_range(bucket, 0).len()).sum();
            assert!(shares < elements / 2 + buckets);
            let expected = [
                ((false, vec![Axis::REPLICA]), (buckets, shares)),
                ((true, vec![Axis::DP]), (scatters * buckets, scatters * elements)),
            ];
            assert_eq!(reduced(class), expected.into(), "ZeRO {zero}");
        }
    }
}

/// Under ZeRO-1 with all-reduces each replica has the sums of all gradients, and updates its share of the weights.
#[test]
fn replicas_may_all_reduce_gradients_of_which_each_updates_a_share() {
    let graph = llama();
    let sync = Sync { zero: 1, all_reduces: true, bucket_bytes: 1, ..Sync::default() };
    let uniform = Uniform { mesh: Mesh::of(4, 1, 1), global_batch: 16, sync, ..single() };
    let program = program(&uniform.plan(&graph, "model", "local"), &graph);
    check_invariants(&program);
    let class = &program.classes[0];
    let elements: usize = class.buckets.iter().map(|bucket| bucket.elements).sum();
    let whole = ((false, vec![Axis::DP]), (class.buckets.len(), elements));
    assert_eq!(reduced(class), [whole].into());
    let updates = class.entries().flat_map(|entry| &class.body_of(entry).instructions);
    let updated = updates.filter(|it| it.action == Action::Optimizer);
    let updated: usize = updated.map(|it| class.view_range(it.reads[0], 0).len()).sum();
    let shares = class.buckets.iter().map(|bucket| class.shard_range(bucket, 0).len());
    assert_eq!(updated, shares.sum::<usize>());
}

#[test]
fn a_rank_holds_what_it_would_hold_if_only_those_it_shares_with_were_there() {
    let graph = gpt(true);
    for zero in 1..4 {
        let some = program(&pairs(zero).plan(&graph, "model", "local"), &graph);
        let alone = Uniform { mesh: Mesh::of(2, 1, 1), global_batch: 8, ..pairs(zero) };
        let alone = program(&alone.plan(&graph, "model", "local"), &graph);
        for (some_class, alone_class) in some.classes.iter().zip(&alone.classes) {
            for position in 0..4 {
                let held = some_class.memory_use(&some, position).peak_bytes;
                let expected = alone_class.memory_use(&alone, position % 2).peak_bytes;
                assert_eq!(held, expected, "ZeRO {zero}, position {position}");
            }
        }
    }
}

#[test]
fn every_element_has_one_owner() {
    let graph = gpt(false);
    for mesh in [Mesh::of(4, 1, 1), Mesh::of(4, 1, 2), Mesh::of(4, 2, 1)] {
        let mesh = mesh.sharing_within(2).expect("two pairs");
        let program = program(&Uniform { mesh, ..pairs(2) }.plan(&graph, "m", "c"), &graph);
        for class in &program.classes {
            for bucket in &class.buckets {
                let mut owners = vec![0; bucket.elements];
                let copies = class.mesh.members_along(0, &bucket.copies);
                for position in copies {
                    owners[class.owned(bucket, position)].iter_mut().for_each(|it| *it += 1);
                }
                let once = if bucket.owned_here { 1 } else { 0 };
                assert!(owners.iter().all(|&it| it == once), "{mesh}: {}", bucket.name);
            }
        }
    }
}

#[test]
fn groups_of_parameters_say_it_for_themselves() {
    let graph = llama();
    let mut plan = pairs(0).plan(&graph, "model", "local");
    plan.parameters = vec![ParameterGroup {
        zero: Some(2),
        shard_over: AxisSet::of(&[Axis::DP]),
        ..ParameterGroup::named("*ffn*")
    }];
    let program = program(&plan, &graph);
    check_invariants(&program);
    for class in &program.classes {
        let found = reduced(class);
        let all = vec![Axis::REPLICA, Axis::DP];
        assert!(found.contains_key(&(false, all)), "others reduce over all replicas");
        assert!(found.contains_key(&(true, vec![Axis::DP])));
        assert!(found.contains_key(&(false, vec![Axis::REPLICA])));
    }
}

#[test]
fn parameters_along_whose_axes_nobody_shares_are_reduced_whole() {
    let graph = llama();
    let mesh = Mesh::of(2, 2, 1).sharing_within(1).expect("two replicas");
    let mut plan = Uniform { mesh, ..pairs(2) }.plan(&graph, "model", "local");
    assert_eq!(plan.sync.shard_over, AxisSet::of(&[Axis::CP]));
    plan.sync.shard_over = AxisSet::of(&[Axis::DP]);
    let program = program(&plan, &graph);
    check_invariants(&program);
    for class in &program.classes {
        let (buckets, elements) = class
            .buckets
            .iter()
            .fold((0, 0), |(count, sum), bucket| (count + 1, sum + bucket.elements));
        let all = vec![Axis::REPLICA, Axis::CP];
        assert_eq!(reduced(class), [((false, all), (buckets, elements))].into());
    }
}
