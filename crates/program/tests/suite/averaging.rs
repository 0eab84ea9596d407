//! Programs of replicas with weights of their own: what goes between them, and when.

use std::collections::BTreeSet;

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec, Reduction};
use shardloom_plan::{Averaging, Axis, Mesh, Plan, Precision, ScheduleKind, Sync, Uniform};
use shardloom_program::sync::{AllReduce, Replicated, Synchronisation, Unheld};
use shardloom_program::verify::verify;
use shardloom_program::{
    Action, BodyKind, Class, ClassId, Collective, Content, Control, Group, Instruction, Point,
    Program, Queue, Tensor, View, lower, lower_with,
};

fn graph() -> Graph {
    let spec =
        ModelSpec::parse("gpt:layers=4,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1,tied=true");
    spec.and_then(|spec| spec.graph()).expect("a valid model")
}

fn plan(graph: &Graph, averaging: Averaging, mesh: Mesh) -> Plan {
    uniform(averaging, mesh).plan(graph, "model", "local")
}

fn uniform(averaging: Averaging, mesh: Mesh) -> Uniform {
    let sync = Sync { averaging: Some(averaging), bucket_bytes: 4000, ..Sync::default() };
    Uniform { mesh, global_batch: 32, microbatches: 4, sync, ..Uniform::default() }
}

fn program(graph: &Graph, plan: &Plan) -> Program {
    let program = lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"));
    verify(&program).unwrap_or_else(|found| panic!("{found:#?}"));
    program
}

/// The groups of a class's collectives of some content.
fn groups(class: &Class, wanted: Content) -> BTreeSet<Group> {
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let group = |it: &Instruction| match &it.action {
        Action::Collective { group, .. } => {
            let content = class.tensor(it.reads[0].tensor).content;
            (content == wanted).then(|| group.clone())
        }
        _ => None,
    };
    instructions.filter_map(group).collect()
}

#[test]
fn what_a_step_sends_is_what_one_sends_that_averages() {
    let graph = graph();
    let sent = |every| {
        let plan = plan(&graph, Averaging::local_sgd(every), Mesh::of(2, 1, 1));
        program(&graph, &plan).sent_bytes(ClassId(0), 0)
    };
    // Of two replicas each sends half of all weights twice.
    let weights = 4 * graph.parameter_count();
    assert!(sent(1).abs_diff(weights) < weights / 100, "{} and {weights}", sent(1));
    assert_eq!(sent(3), sent(1), "it averages under a guard");
}

#[test]
fn averages_are_due_at_the_end_of_every_so_many_steps_from_the_first() {
    let graph = graph();
    for every in [2, 3] {
        let averaging = Averaging::local_sgd(every);
        let program = program(&graph, &plan(&graph, averaging, Mesh::of(2, 1, 1)));
        let class = &program.classes[0];
        let flags = class.tensors().filter(|(_, it)| it.content == Content::Flag);
        let flags: Vec<View> = flags.map(|(id, _)| View::whole(id)).collect();
        let [flag] = flags[..] else { panic!("{flags:?}") };
        let due: Vec<u64> = (0..9).filter(|&step| class.is_due(flag, step) == Some(true)).collect();
        let expected: &[u64] = if every == 2 { &[1, 3, 5, 7] } else { &[2, 5, 8] };
        assert_eq!(due, expected, "every {every} steps");
    }
}

#[test]
fn weights_are_summed_up_over_replicas_and_gradients_over_everybody_else() {
    let graph = graph();
    let of = |axes: &[Axis]| BTreeSet::from([Group::Mesh(axes.to_vec())]);
    for averaging in [Averaging::local_sgd(3), Averaging::SYNCHRONOUS] {
        let alone = program(&graph, &plan(&graph, averaging, Mesh::of(2, 1, 1)));
        assert_eq!(groups(&alone.classes[0], Content::Weight), of(&[Axis::DP]));
        assert_eq!(groups(&alone.classes[0], Content::Gradient), BTreeSet::new());
        let split = program(&graph, &plan(&graph, averaging, Mesh::of(2, 2, 1)));
        assert_eq!(groups(&split.classes[0], Content::Weight), of(&[Axis::DP]));
        assert_eq!(groups(&split.classes[0], Content::Gradient), of(&[Axis::CP]));
        for bucket in &split.classes[0].buckets {
            assert_eq!(bucket.own, [Axis::DP]);
            // Embeddings of positions are split along it.
            let is_split = bucket.splits == [Axis::CP];
            let others = if is_split { vec![] } else { vec![Axis::CP] };
            assert_eq!((&bucket.replicas, &bucket.copies), (&others, &others));
        }
    }
    let mixed = Uniform {
        precision: Precision::MIXED,
        ..uniform(Averaging::local_sgd(1), Mesh::of(2, 1, 1))
    };
    let mixed = program(&graph, &mixed.plan(&graph, "model", "local"));
    assert_eq!(groups(&mixed.classes[0], Content::MasterWeight), of(&[Axis::DP]));
    assert_eq!(groups(&mixed.classes[0], Content::Weight), BTreeSet::new());
}

#[test]
fn averages_stand_on_their_side_of_the_update_and_under_a_guard_if_not_in_every_step() {
    let graph = graph();
    let kinds = |averaging| -> Vec<String> {
        let program = program(&graph, &plan(&graph, averaging, Mesh::of(2, 1, 1)));
        let class = &program.classes[0];
        let name = |part: &Control| match part {
            Control::Run(entry) => match class.body_of(entry).kind {
                BodyKind::Epilogue => Some("update".to_owned()),
                BodyKind::Averaging => Some("averaging".to_owned()),
                _ => None,
            },
            Control::Guard(guard) => {
                Some(format!("{} or {}", guard.then.len(), guard.otherwise.len()))
            }
            Control::Serve(_) | Control::AsReceived(_) => None,
        };
        assert_eq!(program.period(), averaging.every);
        class.control.iter().filter_map(name).collect()
    };
    assert_eq!(kinds(Averaging::local_sgd(1)), ["update", "averaging"]);
    assert_eq!(kinds(Averaging::local_sgd(5)), ["update", "averaging", "1 or 1"]);
    assert_eq!(kinds(Averaging::SYNCHRONOUS), ["averaging", "update"]);
    let seldom = Averaging { every: 2, ..Averaging::SYNCHRONOUS };
    assert_eq!(kinds(seldom), ["averaging", "1 or 1", "update"]);
}

#[test]
fn pairs_publish_and_fetch_first_and_average_before_the_update_without_waiting_for_anybody() {
    let graph = graph();
    for precision in [Precision::FP32, Precision::MIXED] {
        let plan = Uniform { precision, ..uniform(Averaging::PAIRS, Mesh::of(4, 1, 1)) };
        let program = program(&graph, &plan.plan(&graph, "model", "local"));
        assert_eq!(program.period(), 1);
        let class = &program.classes[0];
        let instructions = || class.bodies.iter().flat_map(|body| &body.instructions);
        // Not even a norm is found with others.
        assert!(instructions().all(|it| !matches!(it.action, Action::Collective { .. })));
        let entries: Vec<_> = class.entries().map(|it| class.body_of(it)).collect();
        let [Action::Publish { group }, Action::Fetch { group: from }] =
            entries[0].instructions.iter().map(|it| &it.action).collect::<Vec<_>>()[..]
        else {
            panic!("{:?}", entries[0])
        };
        assert_eq!([group, from], [&Group::Mesh(vec![Axis::DP]); 2]);
        let [.., before, last] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((before.kind, last.kind), (BodyKind::Averaging, BodyKind::Epilogue));
        let fetch = &entries[0].instructions[1];
        assert_eq!(fetch.queue, Queue::Receive);
        let published: Vec<_> = fetch.writes.iter().map(|it| it.to.tensor).collect();
        for (average, fetched) in before.instructions.iter().zip(published) {
            assert_eq!(average.action, Action::Average { rate: 0.5, replicas: 1 });
            assert_eq!((average.reads[0].tensor, &average.frees), (fetched, &vec![fetched]));
        }
        // Passes go on beside it: the first that waits for it is the average.
        let (body, _, _) =
            class.instructions().find(|(_, _, it)| *it == fetch).expect("it is there");
        let waits = |it: &&Instruction| it.after.contains(&Point::Latest(body, 1));
        let waiting: Vec<_> = instructions().filter(waits).collect();
        assert_eq!(waiting.len(), 1);
        assert!(matches!(waiting[0].action, Action::Average { .. }), "{waiting:?}");
        let wanted = match precision.master {
            true => Content::MasterWeight,
            false => Content::Weight,
        };
        let contents = entries[0].instructions[0].reads.iter();
        assert!(contents.map(|it| class.tensor(it.tensor).content).all(|it| it == wanted));
    }
}

#[test]
fn a_single_replica_averages_nothing() {
    let graph = graph();
    for mesh in [Mesh::SINGLE, Mesh::of(1, 1, 2)] {
        let alone = mesh == Mesh::SINGLE;
        for averaging in
            [Some(Averaging::local_sgd(2)), alone.then_some(Averaging::PAIRS)].into_iter().flatten()
        {
            let averaged = plan(&graph, averaging, mesh);
            let mut plain = averaged.clone();
            plain.sync.averaging = None;
            assert_eq!(program(&graph, &averaged), program(&graph, &plain));
        }
    }
}

#[test]
fn schedules_with_a_flush_are_averaged_on_all_their_stages() {
    let graph = graph();
    for schedule in ScheduleKind::ALL.into_iter().filter(|it| it.flushes()) {
        if schedule == ScheduleKind::Table {
            continue;
        }
        for averaging in [Averaging::local_sgd(2), Averaging::SYNCHRONOUS] {
            let uniform = Uniform { pp: 2, schedule, ..uniform(averaging, Mesh::of(2, 1, 2)) };
            let program = program(&graph, &uniform.plan(&graph, "model", "local"));
            for class in &program.classes {
                let sums = class.tensors.iter().filter(|it| it.content == Content::SummedWeight);
                assert_eq!(sums.count(), class.buckets.len(), "{schedule:?}");
            }
        }
    }
}

/// Sums gradients up over all data-parallel ranks, whatever replicas are kept equal.
#[derive(Debug)]
struct Everywhere;

impl Synchronisation for Everywhere {
    fn tensors(&self, bucket: &Unheld<'_>, tensors: &mut Vec<Tensor>) -> Replicated {
        AllReduce { algorithm: Algorithm::Ring }.tensors(bucket, tensors)
    }

    fn after_gradient(&self, _: &Unheld<'_>, held: &Replicated) -> Vec<Instruction> {
        let kind = Collective::AllReduce(Reduction::Sum);
        let group = Group::Mesh(vec![Axis::DP, Axis::CP]);
        let action = Action::Collective { kind, group, algorithm: Algorithm::Ring };
        let gradients = View::whole(held.expect_gradients().written);
        vec![Instruction::new(action, [gradients], [gradients])]
    }
}

#[test]
fn a_way_that_reduces_gradients_of_replicas_with_weights_of_their_own_is_refused() {
    let graph = graph();
    let plan = plan(&graph, Averaging::local_sgd(1), Mesh::of(2, 2, 1));
    let refused = lower_with(&graph, &plan, 4, &Everywhere).expect_err("they are apart");
    let message = refused.to_string();
    assert!(message.contains("replicas along dp have weights of their own"), "{message}");
}
