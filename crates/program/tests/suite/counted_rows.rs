//! Rows, as many as turn out while running: what counts them, and along what they go from rank to rank.

use std::collections::BTreeSet;

use shardloom_graph::Graph;
use shardloom_plan::{Axis, Mesh};
use shardloom_program::{Action, Class, Counted, Group, Program, Shape, TensorId, lower};

use crate::verifier::programs::routed_plan;

/// Programs whose experts every rank holds, that have some of them each, and that have some within groups.
fn programs() -> Vec<(Graph, Program)> {
    let over_dp = "expert:dp, batch:dp";
    let plans = [
        (1, Mesh::of(2, 1, 1), "batch:dp"),
        (1, Mesh::of(2, 1, 1), over_dp),
        (2, Mesh::of(2, 1, 1), over_dp),
        (1, Mesh::of(4, 1, 1), over_dp),
        (1, Mesh::of(2, 2, 1), "expert:cp, batch:dp, batch:cp"),
    ];
    let lowered = |(pp, mesh, layout)| {
        let (graph, plan) = routed_plan(pp, mesh, layout);
        let program = lower(&graph, &plan, plan.device_count());
        (graph, program.unwrap_or_else(|error| panic!("{layout}: {error}")))
    };
    plans.into_iter().map(lowered).collect()
}

#[test]
fn what_counts_rows_has_a_number_for_each_expert_and_sample_that_a_rank_has_room_for() {
    let mut layouts = BTreeSet::new();
    for (graph, program) in programs() {
        let extents = program.microbatch_extents(&graph);
        for class in &program.classes {
            for tensor in &class.tensors {
                let Shape::AtMost { bound, counts, counted } = &tensor.shape else { continue };
                let node = graph.value(counted.by);
                let shape = extents.shape(&node.axes);
                let name = format!("{} of {}", tensor.name, class.place());
                // Experts and samples come first, then slots and the elements of a row.
                assert_eq!((bound.len(), shape.len()), (4, 2), "{name}");
                assert_eq!(counted.layout.splits.len(), shape.len(), "{name}");
                assert_eq!(counted.layout.partial, [], "{name}");
                assert_eq!(counted.layout.local_shape(&shape, &class.mesh), bound[..2], "{name}");
                assert_eq!(class.shape(*counts), &bound[..2], "{name}");
                let counts = class.tensor(counts.tensor);
                assert!(counts.name.starts_with(node.name.as_str()), "{} of {name}", counts.name);
                layouts.insert(counted.layout.clone());
            }
        }
    }
    assert!(layouts.len() > 3, "{layouts:?}");
}

/// The axes that split a thing before or afterwards, and not both.
fn changed(before: &[Axis], after: &[Axis]) -> BTreeSet<Axis> {
    let [before, after] = [before, after].map(|axes| axes.iter().copied().collect::<BTreeSet<_>>());
    before.symmetric_difference(&after).copied().collect()
}

#[test]
fn rows_go_along_the_axis_that_splits_samples_on_one_side_and_experts_on_the_other() {
    let mut found = BTreeSet::new();
    for (_, program) in programs() {
        for class in &program.classes {
            for (_, _, instruction) in class.instructions().filter(|it| it.2.moves_rows(class)) {
                let Action::Collective { group: Group::Mesh(axes), .. } = &instruction.action
                else {
                    panic!("rows go within a stage: {instruction:?}")
                };
                let [before, after] = [instruction.reads[0], instruction.writes[0].to]
                    .map(|view| &counted(class, view.tensor).layout.splits);
                let group: BTreeSet<Axis> = axes.iter().copied().collect();
                // Experts, then samples.
                for at in 0..2 {
                    assert_eq!(changed(&before[at], &after[at]), group, "{instruction:?}");
                }
                found.insert(axes.clone());
            }
        }
    }
    assert_eq!(found, BTreeSet::from([vec![Axis::DP], vec![Axis::CP]]));
}

fn counted(class: &Class, tensor: TensorId) -> &Counted {
    match &class.tensor(tensor).shape {
        Shape::AtMost { counted, .. } => counted,
        other => panic!("{other:?} is no number of rows that turns out"),
    }
}
