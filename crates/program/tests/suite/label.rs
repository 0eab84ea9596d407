//! What timelines call what ranks do, and what ranks are called.

use std::collections::BTreeMap;

use shardloom_program::timeline::{Activity, Lane};
use shardloom_program::{
    Action, Body, BodyKind, Class, Collective, Content, Control, Instruction, Part, Queue, View,
};

use crate::every_kind::{self, Example};

#[test]
fn passes_are_called_by_a_letter_their_micro_batch_chunk_and_direction() {
    let label = |kind, microbatch, chunk, reverse| {
        let part = Part { chunk, reverse };
        Body { kind, part, instructions: vec![] }.label(microbatch)
    };
    assert_eq!(label(BodyKind::Forward, Some(3), None, false), "F3");
    assert_eq!(label(BodyKind::Backward, Some(0), Some(1), true), "B0@1<");
    assert_eq!(label(BodyKind::BackwardInput, Some(12), Some(0), false), "I12@0");
    assert_eq!(label(BodyKind::BackwardWeight, Some(7), None, true), "W7<");
    assert_eq!(label(BodyKind::Evaluation, Some(0), None, false), "V0");
    assert_eq!(label(BodyKind::Epilogue, None, None, false), "update");
    assert_eq!(label(BodyKind::PartOfUpdate, None, None, false), "update");
    assert_eq!(label(BodyKind::Synchronisation, None, None, false), "synchronise");
    assert_eq!(label(BodyKind::Averaging, None, None, false), "averaging");
    assert_eq!(label(BodyKind::Test, None, None, false), "test");
    assert_eq!(label(BodyKind::Release, None, None, false), "release");
    assert_eq!(label(BodyKind::Rollback, None, None, false), "roll back");
    assert_eq!(label(BodyKind::Redo, None, None, false), "redo");
}

#[test]
fn computation_is_its_pass_an_update_or_what_prepares_a_collective() {
    let activity = |kind: BodyKind| Instruction::new(Action::Add, [], []).activity(kind);
    assert_eq!(activity(BodyKind::Forward), Activity::Forward);
    assert_eq!(activity(BodyKind::Evaluation), Activity::Forward);
    assert_eq!(activity(BodyKind::Backward), Activity::Backward);
    assert_eq!(activity(BodyKind::BackwardInput), Activity::BackwardInput);
    assert_eq!(activity(BodyKind::BackwardWeight), Activity::BackwardWeight);
    assert_eq!(activity(BodyKind::Synchronisation), Activity::Collective);
    for kind in [
        BodyKind::Epilogue,
        BodyKind::PartOfUpdate,
        BodyKind::Averaging,
        BodyKind::Test,
        BodyKind::Release,
        BodyKind::Rollback,
        BodyKind::Redo,
    ] {
        assert_eq!(activity(kind), Activity::Update);
    }
}

/// All instructions of examples with where they stand.
fn everywhere(mut look: impl FnMut(&str, &Class, &Body, &Instruction)) {
    for Example { name, program, .. } in every_kind::all() {
        for class in &program.classes {
            for body in &class.bodies {
                body.instructions.iter().for_each(|it| look(&name, class, body, it));
            }
        }
    }
}

#[test]
fn the_lane_of_an_instruction_is_that_of_its_queue() {
    let mut seen: BTreeMap<Lane, usize> = BTreeMap::new();
    everywhere(|name, _, body, instruction| {
        let expected = match instruction.queue {
            Queue::Compute => Lane::Compute,
            Queue::Send | Queue::Prioritised => Lane::CommunicationOut,
            Queue::Receive | Queue::Communicator(_) | Queue::Negotiated(_) => Lane::CommunicationIn,
        };
        assert_eq!(instruction.lane(), expected, "{name}: {instruction:?}");
        let activity = instruction.activity(body.kind);
        match instruction.action {
            Action::Collective { .. } => assert_eq!(activity, Activity::Collective),
            Action::Send { .. } => assert_eq!(activity, Activity::Send),
            Action::Receive { .. } | Action::Fetch { .. } => {
                assert_eq!(activity, Activity::Receive);
            }
            // Also where a pass does it.
            Action::Optimizer | Action::Cast => assert_eq!(activity, Activity::Update),
            _ => assert_eq!(activity, body.kind.activity()),
        }
        *seen.entry(expected).or_default() += 1;
    });
    assert!(seen.len() == 3 && seen.values().all(|&count| count > 100), "{seen:?}");
}

#[test]
fn communication_is_called_by_what_it_does_to_what_and_computation_by_its_pass() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    everywhere(|name, class, body, instruction| {
        let label = instruction.label(class, body, Some(3));
        let tensor = |view: View| class.tensor(view.tensor);
        let (what, of) = match &instruction.action {
            Action::Send { .. } => ("send", tensor(instruction.reads[0])),
            Action::Receive { .. } => ("receive", tensor(instruction.writes[0].to)),
            Action::Collective { kind, .. } => {
                let read = tensor(instruction.reads[0]);
                let what = match kind {
                    Collective::AllReduce(_) => "all-reduce",
                    Collective::ReduceScatter { .. } => "reduce-scatter",
                    Collective::AllGather { .. } => "all-gather",
                    // Of as many rows as turn out while running.
                    Collective::AllToAll { .. } if read.counts().is_some() => "all-to-all-v",
                    Collective::AllToAll { .. } => "all-to-all",
                };
                (what, read)
            }
            Action::Fetch { .. } => return assert_eq!(label, "fetch published weights"),
            _ => return assert_eq!(label, body.label(Some(3)), "{name}"),
        };
        *seen.entry(what).or_default() += 1;
        let is_collective = matches!(instruction.action, Action::Collective { .. });
        if is_collective && matches!(of.content, Content::Norm | Content::Statistics) {
            return assert_eq!(label, of.name, "{name}");
        }
        let (found, subject) = label.split_once(' ').unwrap_or_else(|| panic!("{label}"));
        assert_eq!(found, what, "{name}");
        // Weights and gradients are called by the parameters that they are of.
        let bucket = of.bucket.map(|bucket| class.bucket(bucket).name.as_str());
        assert!(subject == of.name || Some(subject) == bucket, "{name}: {label}");
        let is_flat = of.local_shape().is_empty();
        if is_flat && matches!(of.content, Content::Weight | Content::Gradient) {
            // A sum of pieces on a server is of no bucket.
            assert_eq!(subject, bucket.unwrap_or(&of.name), "{name}");
        }
    });
    let all = ["all-gather", "all-reduce", "all-to-all-v", "receive", "reduce-scatter", "send"];
    assert!(all.iter().all(|it| seen.contains_key(it)), "{seen:?}");
}

/// The kinds of servers of each example that has any, and how many of each.
#[test]
fn servers_are_called_by_what_they_do_and_their_number() {
    for Example { name, plan, program, .. } in every_kind::with_servers() {
        let mut numbers: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for class in &program.classes {
            let place = class.place();
            if !class.stages.is_empty() {
                assert!(place.starts_with("stage 0"), "{name}: {place}");
                continue;
            }
            let answers = class.control.iter().any(|it| matches!(it, Control::Serve(_)));
            // Rows are looked up in weights.
            let weights = class.tensors.iter().any(|it| it.content == Content::Weight);
            let kind = match (answers, weights) {
                (true, true) => "parameter server ",
                (false, true) => "table server ",
                (false, false) => "summing server ",
                (true, false) => panic!("{name}: {place} has nothing to answer with"),
            };
            let number = place.strip_prefix(kind).unwrap_or_else(|| panic!("{name}: {place}"));
            numbers.entry(kind).or_default().push(number.parse().expect("a number"));
        }
        let tables = plan.parameters.iter().any(|group| group.sparse == Some(true));
        assert_eq!(numbers.contains_key("table server "), tables, "{name}: {numbers:?}");
        let sums = plan.sync.summation.is_some();
        assert_eq!(numbers.contains_key("parameter server "), !sums, "{name}: {numbers:?}");
        for (kind, numbers) in numbers {
            let expected: Vec<u32> = (0..numbers.len() as u32).collect();
            assert_eq!(numbers, expected, "{name}: {kind}");
        }
    }
}
