//! The entries of a step under titles that tell them apart. Instructions stand below the first entry that
//! has them; later ones say which that was.

use std::collections::BTreeMap;

use shardloom_plan::Staleness;

use crate::quantity::counted;
use crate::{
    Action, Body, BodyId, BodyKind, Class, Client, Content, Control, Entry as Run, Group, Guard,
    Instruction, Program, TensorId, When,
};

/// An entry of a step.
pub(super) struct Entry {
    /// What it is, when it runs, and whose instructions it has if they stand elsewhere.
    pub title: String,
    /// The body whose instructions stand below it.
    pub body: Option<BodyId>,
}

/// All entries of a class.
pub(super) struct Entries {
    /// Those of a step, in order.
    pub step: Vec<Entry>,
    /// Those of a forward pass that keeps nothing.
    pub evaluation: Vec<Entry>,
    /// The name of the entry below which the instructions of each body stand.
    pub bodies: BTreeMap<BodyId, String>,
}

impl Entries {
    pub fn of(program: &Program, class: &Class) -> Entries {
        let mut shown: Vec<(BodyId, String)> = vec![];
        let mut bodies = BTreeMap::new();
        let mut listed = |(name, notes, body): (String, Vec<String>, BodyId)| {
            let notes = match notes.as_slice() {
                [] => String::new(),
                _ => format!("  ({})", notes.join("; ")),
            };
            let same = |other: BodyId| {
                let instructions = |id| &class.body(id).instructions;
                other == body || instructions(other) == instructions(body)
            };
            if class.body(body).instructions.is_empty() {
                return Entry { title: format!("{name}: nothing to do{notes}"), body: None };
            }
            match shown.iter().find(|(other, _)| same(*other)) {
                Some((_, first)) => {
                    bodies.insert(body, first.clone());
                    Entry { title: format!("{name}: as {first}{notes}"), body: None }
                }
                None => {
                    shown.push((body, name.clone()));
                    bodies.insert(body, name.clone());
                    Entry { title: name + &notes, body: Some(body) }
                }
            }
        };
        let mut names = names(program, class).into_iter();
        let mut step = vec![];
        for part in &class.control {
            let entries: Vec<(&Run, Vec<String>)> = match part {
                Control::Run(run) => vec![(run, notes(run, None))],
                Control::Guard(guard) => {
                    step.push(Entry { title: guard_title(class, guard), body: None });
                    let arm = |holds| {
                        guard.arm(holds).iter().map(move |run| (run, notes(run, Some(holds))))
                    };
                    arm(true).chain(arm(false)).collect()
                }
                Control::Serve(serve) => {
                    let title =
                        "for each step of each client, in the order in which they come:".into();
                    step.push(Entry { title, body: None });
                    serve.clients.iter().flat_map(served).collect()
                }
                Control::AsReceived(entries) => {
                    let title = "in the order in which all that they receive has come:".into();
                    step.push(Entry { title, body: None });
                    entries.iter().map(|run| (run, notes(run, None))).collect()
                }
            };
            for ((run, notes), name) in entries.into_iter().zip(&mut names) {
                step.push(listed((name, notes, run.body)));
            }
        }
        let evaluation = class.evaluation.iter();
        let evaluation =
            evaluation.map(|&body| listed((name(class.body(body), None), vec![], body)));
        let evaluation = evaluation.collect();
        Entries { step, evaluation, bodies }
    }
}

/// What a guard goes by, and who goes alike.
fn guard_title(class: &Class, guard: &Guard) -> String {
    let who = match &guard.agreed {
        Group::World => "all ranks alike".into(),
        Group::Mesh(axes) => {
            let axes: Vec<&str> = axes.iter().map(|axis| axis.name()).collect();
            format!("ranks along {} alike", axes.join(", "))
        }
        Group::Classes(_) => "ranks at the same place of several stages alike".into(),
    };
    let flag = &class.tensor(guard.on.tensor).name;
    let late = if guard.shift < 0 { "; not in the first step" } else { "" };
    format!("guard by {flag}  ({who}{late})")
}

/// What is done for a client, each with when.
fn served(client: &Client) -> impl Iterator<Item = (&Run, Vec<String>)> {
    client.handlers.iter().map(|it| (&it.run, vec![when(it.when)]))
}

/// When a handler may run.
fn when(when: When) -> String {
    match when {
        When::Sent => "once it has sent them".into(),
        When::InTurn => "once it has sent them, after the clients before it".into(),
        When::Within(Staleness::Within(0)) => "once no client is behind".into(),
        When::Within(Staleness::Unbounded) => {
            "at any time, at the end of a row once no client is behind".into()
        }
        When::Within(Staleness::Within(steps)) => {
            let steps = counted(steps as usize, "step");
            format!("once no client is more than {steps} behind, at the end of a row none")
        }
    }
}

/// When an entry runs and on which weights, where that is not as usual.
fn notes(run: &Run, arm: Option<bool>) -> Vec<String> {
    let mut notes = vec![];
    match (run.microbatch, run.shift) {
        (Some(microbatch), 1) => notes.push(format!("micro-batch {microbatch} of the next step")),
        (Some(microbatch), steps @ 2..) => {
            notes.push(format!("micro-batch {microbatch} of {steps} steps later"));
        }
        _ => {}
    }
    match run.age {
        0 => {}
        1 => notes.push("with weights 1 update old".into()),
        updates => notes.push(format!("with weights {updates} updates old")),
    }
    if run.shift < 0 && arm.is_none() {
        notes
            .push("of the step before: not in the first step, and once more after the last".into());
    }
    match arm {
        None => {}
        Some(true) => notes.push("only where it holds".into()),
        Some(false) => notes.push("only where it does not hold".into()),
    }
    notes
}

/// The names of a step's entries. Pieces of a pass, and what stands in a step several times, are numbered.
fn names(program: &Program, class: &Class) -> Vec<String> {
    let name = |(arm, run): (Option<bool>, &Run)| {
        // Micro-batches of later steps are numbered on.
        let number = |it| it + run.shift.max(0) as u32 * program.microbatches as u32;
        let body = class.body_of(run);
        let name = name(body, run.microbatch.map(number));
        let receives = |it: &Instruction| matches!(it.action, Action::Receive { .. });
        let name = match arm {
            Some(_) if class.repeats(run) => format!("{name} once more"),
            Some(_) if body.instructions.iter().all(receives) => {
                format!("{name}, dropping what was sent for it")
            }
            _ => name,
        };
        (arm, name)
    };
    let plain: Vec<(Option<bool>, String)> = match class.serves() {
        None => class.entries_by_arm().map(name).collect(),
        Some(serve) => {
            let clients = serve.clients.iter();
            clients.flat_map(|it| names_for(program, class, it)).map(|it| (None, it)).collect()
        }
    };
    let mut counts: BTreeMap<&(Option<bool>, String), usize> = BTreeMap::new();
    plain.iter().for_each(|name| *counts.entry(name).or_insert(0) += 1);
    let mut seen: BTreeMap<&(Option<bool>, String), usize> = BTreeMap::new();
    let mut numbered = vec![];
    for (run, plain) in class.entries().zip(&plain) {
        let index = seen.entry(plain).or_insert(0);
        *index += 1;
        let name = &plain.1;
        numbered.push(match counts[plain] {
            1 => name.clone(),
            count if run.microbatch.is_some() => format!("{name}, piece {index} of {count}"),
            count => format!("{name}, {index} of {count}"),
        });
    }
    numbered
}

/// The names of what a server does for a client.
fn names_for<'p>(
    program: &'p Program,
    class: &'p Class,
    client: &'p Client,
) -> impl Iterator<Item = String> + 'p {
    let rank = program.class(client.class).first_rank.0;
    client.handlers.iter().map(move |handler| {
        let body = class.body_of(&handler.run);
        let does = |is: fn(&Action) -> bool| body.instructions.iter().any(|it| is(&it.action));
        let adds = does(|it| *it == Action::Add);
        let receives = does(|it| matches!(it, Action::Receive { .. }));
        let is_delta = |it: &TensorId| class.tensor(*it).content == Content::WeightDelta;
        let adds_deltas = body.instructions.iter().any(|it| it.frees.iter().any(is_delta));
        match body.kind {
            BodyKind::Epilogue if adds_deltas => format!("add what rank {rank} has changed"),
            BodyKind::Epilogue if adds => {
                format!("gradients of rank {rank}, update with those of all")
            }
            BodyKind::Epilogue => format!("update with gradients of rank {rank}"),
            _ if receives => format!("gradients of rank {rank}"),
            _ => format!("weights for rank {rank}"),
        }
    })
}

/// What a body does, and on which micro-batch.
fn name(body: &Body, microbatch: Option<u32>) -> String {
    let all = |is: &dyn Fn(&Action) -> bool| body.instructions.iter().all(|it| is(&it.action));
    let any = |is: &dyn Fn(&Action) -> bool| body.instructions.iter().any(|it| is(&it.action));
    let kind = match body.kind {
        BodyKind::Forward => "forward",
        BodyKind::Backward => "backward",
        BodyKind::BackwardInput => "input gradients",
        BodyKind::BackwardWeight => "weight gradients",
        BodyKind::Synchronisation if all(&|it| matches!(it, Action::Receive { .. })) => {
            "weights from servers"
        }
        BodyKind::Synchronisation if all(&|it| matches!(it, Action::Send { .. })) => {
            "gradients to servers"
        }
        BodyKind::Synchronisation => "synchronisation",
        BodyKind::Epilogue => "update",
        BodyKind::PartOfUpdate => "update of what is used next",
        BodyKind::Evaluation => "evaluation",
        BodyKind::Averaging if all(&|it| matches!(it, Action::Due { .. })) => {
            "question whether to average"
        }
        BodyKind::Averaging if any(&|it| matches!(it, Action::Publish { .. })) => {
            "publication and fetch"
        }
        BodyKind::Averaging if all(&|it| *it == Action::Free) => "no averaging",
        BodyKind::Averaging => "averaging",
        BodyKind::Test => "test of the update",
        BodyKind::Release => "release of backups",
        BodyKind::Rollback if microbatch.is_some() => "discarding of micro-batch",
        BodyKind::Rollback => "rollback of the update",
        BodyKind::Redo => "update once more",
    };
    let microbatch = microbatch.map_or(String::new(), |it| format!(" {it}"));
    let chunk = body.part.chunk.map_or(String::new(), |it| format!(", chunk {it}"));
    let reverse = if body.part.reverse { ", reverse pipeline" } else { "" };
    format!("{kind}{microbatch}{chunk}{reverse}")
}
