//! The entries of a step under titles that tell them apart. Instructions stand below the first entry that
//! has them; later ones say which that was.

use std::collections::BTreeMap;

use crate::{Body, BodyId, BodyKind, Class, Program, StreamItem};

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
        let names = names(class);
        let step = class.stream.iter().zip(names);
        let step = step.map(|(item, name)| listed((name, notes(program, item), item.body)));
        let step = step.collect();
        let evaluation = class.evaluation.iter();
        let evaluation =
            evaluation.map(|&body| listed((name(class.body(body), None), vec![], body)));
        let evaluation = evaluation.collect();
        Entries { step, evaluation, bodies }
    }
}

/// When an entry runs and on which weights, where that is not as usual.
fn notes(program: &Program, item: &StreamItem) -> Vec<String> {
    let mut notes = vec![];
    if let Some(microbatch) = item.microbatch {
        let count = program.microbatches as u32;
        match microbatch / count {
            0 => {}
            1 => notes.push(format!("micro-batch {} of the next step", microbatch % count)),
            steps => {
                notes.push(format!("micro-batch {} of {steps} steps later", microbatch % count));
            }
        }
    }
    match item.age {
        0 => {}
        1 => notes.push("with weights 1 update old".into()),
        updates => notes.push(format!("with weights {updates} updates old")),
    }
    if item.late {
        notes.push("ends the step before, so not in the first step".into());
    }
    if item.amends {
        notes.push("only where the update of the step before was wrong".into());
    }
    notes
}

/// The names of a step's entries. Pieces of a pass, and what stands in a step several times, are numbered.
fn names(class: &Class) -> Vec<String> {
    let name = |item: &StreamItem| {
        let name = name(class.body(item.body), item.microbatch);
        match (item.amends, item.microbatch) {
            (true, Some(_)) if !class.repeats(item) => {
                format!("{name}, dropping what was sent for it")
            }
            (true, _) => format!("{name} once more"),
            (false, _) => name,
        }
    };
    let plain: Vec<String> = class.stream.iter().map(name).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    plain.iter().for_each(|name| *counts.entry(name).or_insert(0) += 1);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut numbered = vec![];
    for (item, name) in class.stream.iter().zip(&plain) {
        let index = seen.entry(name).or_insert(0);
        *index += 1;
        numbered.push(match counts[name.as_str()] {
            1 => name.clone(),
            count if item.microbatch.is_some() => format!("{name}, piece {index} of {count}"),
            count => format!("{name}, {index} of {count}"),
        });
    }
    numbered
}

/// What a body does, and on which micro-batch.
fn name(body: &Body, microbatch: Option<u32>) -> String {
    let kind = match body.kind {
        BodyKind::Forward => "forward",
        BodyKind::Backward => "backward",
        BodyKind::BackwardInput => "input gradients",
        BodyKind::BackwardWeight => "weight gradients",
        BodyKind::Synchronisation => "synchronisation",
        BodyKind::Epilogue => "update",
        BodyKind::Evaluation => "evaluation",
        BodyKind::Validation => "validation of the update",
        BodyKind::Amendment => "update",
    };
    let microbatch = microbatch.map_or(String::new(), |it| format!(" {it}"));
    let chunk = body.part.chunk.map_or(String::new(), |it| format!(", chunk {it}"));
    let reverse = if body.part.reverse { ", reverse pipeline" } else { "" };
    format!("{kind}{microbatch}{chunk}{reverse}")
}
