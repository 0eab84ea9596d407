//! A second copy of shared weights (ZeRO++'s hpZ): who gathers what from whom, and what ranks hold for it.

use std::collections::BTreeMap;

use shardloom_plan::{Axis, AxisSet, Mesh, ParameterGroup, Plan, ScheduleKind, Sync, Uniform};
use shardloom_program::verify::verify;
use shardloom_program::{
    Action, BodyKind, Class, Collective, Content, Group, Program, View, lower,
};

use super::invariants::check_invariants;
use super::model::{gpt, llama, single};

/// So many replicas that all share weights, of which those along dp share a second copy if they are told so.
fn replicas(mesh: Mesh, has_second: bool) -> Uniform {
    let second_copy_over = AxisSet::of(&[Axis::DP]).filter(|_| has_second);
    let shard_over = AxisSet::of(&[Axis::REPLICA, Axis::DP]);
    Uniform {
        mesh,
        global_batch: 24,
        microbatches: 2,
        sync: Sync { zero: 3, bucket_bytes: 1, shard_over, second_copy_over, ..Sync::default() },
        ..single()
    }
}

/// Two nodes of three replicas.
fn nodes() -> Mesh {
    Mesh::of(6, 1, 1).sharing_within(3).expect("two nodes")
}

fn program(plan: &Plan, graph: &shardloom_graph::Graph) -> Program {
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Over which axes weights are gathered in bodies of each kind, and how many elements in all.
fn gathered(class: &Class) -> BTreeMap<(BodyKind, Vec<Axis>), usize> {
    let mut found = BTreeMap::new();
    let evaluation = class.evaluation.iter().map(|&body| class.body(body));
    let bodies = class.bodies.iter().filter(|it| it.kind != BodyKind::Evaluation);
    for body in bodies.chain(evaluation) {
        for instruction in &body.instructions {
            let Action::Collective { kind: Collective::AllGather { .. }, group, .. } =
                &instruction.action
            else {
                continue;
            };
            let (Group::Mesh(axes), write) = (group, instruction.writes[0].to) else { panic!() };
            if class.tensor(write.tensor).content == Content::Weight {
                *found.entry((body.kind, axes.clone())).or_default() +=
                    class.view_range(write, 0).len();
            }
        }
    }
    found
}

/// Forward passes and evaluations gather from all replicas, and backward passes from those of the node; nothing else of
/// the program is another.
#[test]
fn backward_passes_gather_within_the_node() {
    for graph in [gpt(true), llama()] {
        let [first, both] = [false, true]
            .map(|it| program(&replicas(nodes(), it).plan(&graph, "model", "cluster"), &graph));
        check_invariants(&first);
        check_invariants(&both);
        let all = vec![Axis::REPLICA, Axis::DP];
        for (first, both) in first.classes.iter().zip(&both.classes) {
            let (before, after) = (gathered(first), gathered(both));
            let expected = before.iter().map(|((kind, axes), &elements)| {
                assert_eq!(*axes, all);
                let is_backward = *kind == BodyKind::Backward;
                ((*kind, if is_backward { vec![Axis::DP] } else { all.clone() }), elements)
            });
            assert_eq!(after, expected.collect());
            assert!(after.contains_key(&(BodyKind::Backward, vec![Axis::DP])));
            assert!(after.contains_key(&(BodyKind::Evaluation, all.clone())));
        }
    }
}

/// Its share is kept right before the first operator that reads the weights, so that computation waits for no gather before
/// it has to.
#[test]
fn shares_are_kept_where_weights_are_first_used() {
    let graph = gpt(false);
    let program = program(&replicas(nodes(), true).plan(&graph, "model", "cluster"), &graph);
    let class = &program.classes[0];
    let forward = class.bodies.iter().find(|it| it.kind == BodyKind::Forward).expect("passes");
    let mut kept = 0;
    for (index, instruction) in forward.instructions.iter().enumerate() {
        let copied = instruction.writes.first().map(|write| class.tensor(write.to.tensor));
        let Some(second) = copied.filter(|it| it.content == Content::SecondWeight) else {
            continue;
        };
        let reads = |it: &&shardloom_program::Instruction| {
            let of_bucket = |read: &View| class.tensor(read.tensor).bucket == second.bucket;
            matches!(it.action, Action::Kernel { .. }) && it.reads.iter().any(of_bucket)
        };
        assert!(!forward.instructions[..index].iter().any(|it| reads(&it)));
        let next = forward.instructions[index..]
            .iter()
            .find(|it| matches!(it.action, Action::Kernel { .. }));
        assert!(reads(&next.expect("an operator follows")), "{}", second.name);
        kept += 1;
    }
    assert_eq!(kept, class.buckets.len());
}

/// Each rank holds a third of the weights besides what it held, another one along dp and the same along the nodes; and no
/// gradients, no state and nothing that is saved for it.
#[test]
fn a_rank_holds_its_share_of_the_node_besides() {
    let graph = gpt(false);
    let [first, both] = [false, true]
        .map(|it| program(&replicas(nodes(), it).plan(&graph, "model", "cluster"), &graph));
    let (first, both) = (&first.classes[0], &both.classes[0]);
    for position in 0..6 {
        let second = both.tensors().filter(|(_, it)| it.content == Content::SecondWeight);
        let mut elements = 0;
        for (id, tensor) in second {
            let bucket = both.bucket(tensor.bucket.expect("it is of a bucket"));
            let held = both.bucket_range(View::whole(id), position);
            assert_eq!(held.len(), both.elements(id, position));
            let (size, place) = (bucket.elements, position % 3);
            // The first of uneven shares are the larger ones.
            let start = place * (size / 3) + place.min(size % 3);
            assert_eq!(held, start..start + size / 3 + usize::from(place < size % 3));
            elements += held.len();
        }
        assert!(elements >= both.buckets.iter().map(|it| it.elements / 3).sum());
        let [before, after] = [first, both].map(|class| class.persistent_bytes(position));
        assert_eq!(after.weights, before.weights + 2 * elements as u64);
        assert_eq!(
            (after.gradients, after.state, after.other),
            (before.gradients, before.state, before.other)
        );
    }
}

/// Under every schedule with a flush and with frozen parameters, and in stages of other widths: where no more than a
/// node's ranks share there is no second copy.
#[test]
fn every_schedule_with_a_flush_has_it() {
    let graph = gpt(true);
    for schedule in [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::Interleaved,
        ScheduleKind::ZeroBubbleH1,
        ScheduleKind::Chimera,
    ] {
        let mesh = Mesh::of(4, 1, 2).sharing_within(2).expect("two nodes");
        let uniform =
            Uniform { pp: 2, schedule, global_batch: 16, microbatches: 4, ..replicas(mesh, true) };
        let mut plan = uniform.plan(&graph, "model", "cluster");
        let frozen = ParameterGroup { frozen: true, ..ParameterGroup::named("*ffn*") };
        for parameters in [vec![], vec![frozen]] {
            plan.parameters = parameters;
            let program = program(&plan, &graph);
            check_invariants_of_trained(&program, &plan);
            for class in &program.classes {
                assert!(class.buckets.iter().all(|it| it.second_shards == [Axis::DP]));
            }
        }
    }
}

/// Frozen parameters have no gradients, which `check_invariants` asks of all.
fn check_invariants_of_trained(program: &Program, plan: &Plan) {
    match plan.parameters.is_empty() {
        true => check_invariants(program),
        false => assert_eq!(verify(program), Ok(())),
    }
}
