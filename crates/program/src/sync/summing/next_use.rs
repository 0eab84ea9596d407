//! Updates where what they change is used next, in the middle of the next step's first pass.

use crate::class::{Body, BodyId, BodyKind, BucketId, Part};
use crate::lower::{Order, Parameters};
use crate::{Entry, Instruction};

/// Takes the update out of the end of the step, and has each bucket's part of it, with the receives before, run in the
/// next step: right before the first instruction of that step's first pass that uses the bucket. So the pass waits for
/// the sums of a bucket only there, and a row of steps ends with what is left of its last step.
pub(super) fn update_where_used(
    order: &mut Order,
    parts: Vec<(BucketId, Vec<Instruction>)>,
    parameters: &Parameters<'_>,
) {
    let place = order.entries.iter().position(|(_, pass)| pass.is_some());
    let place = place.expect("a worker has passes");
    let (first, pass) = order.entries.remove(place);
    let Body { kind, part, instructions } = order.bodies[first.body.0 as usize].clone();
    let uses = |instruction: &Instruction, bucket: BucketId| {
        let mut of = instruction.operands().map(|view| parameters.bucket_of(view));
        of.any(|it| it == Some(bucket))
    };
    let mut cuts: Vec<(usize, Vec<Instruction>)> = vec![];
    for (bucket, update) in parts {
        let used = instructions.iter().position(|it| uses(it, bucket));
        let used = used.unwrap_or(instructions.len());
        match cuts.iter_mut().find(|(at, _)| *at == used) {
            Some((_, updates)) => updates.extend(update),
            None => cuts.push((used, update)),
        }
    }
    cuts.sort_by_key(|(at, _)| *at);
    let is_end = |body: BodyId| order.bodies[body.0 as usize].kind == BodyKind::Epilogue;
    let ends: Vec<BodyId> =
        order.entries.iter().map(|(entry, _)| entry.body).filter(|&it| is_end(it)).collect();
    order.entries.retain(|(entry, _)| !ends.contains(&entry.body));
    // Bodies that nothing runs any more make room for others.
    let is_run = |body: BodyId| order.entries.iter().any(|(entry, _)| entry.body == body);
    let mut free: Vec<BodyId> = ends.into_iter().chain([first.body]).collect();
    free.retain(|&body| !is_run(body));
    let mut add = |body: Body| match free.pop() {
        Some(id) => {
            order.bodies[id.0 as usize] = body;
            id
        }
        None => {
            order.bodies.push(body);
            BodyId(order.bodies.len() as u32 - 1)
        }
    };
    let mut entries = vec![];
    let piece = |range: std::ops::Range<usize>, add: &mut dyn FnMut(Body) -> BodyId| {
        let instructions = instructions[range].to_vec();
        let runs = !instructions.is_empty();
        runs.then(|| (Entry { body: add(Body { kind, part, instructions }), ..first }, pass))
    };
    let mut begin = 0;
    for (at, instructions) in cuts {
        entries.extend(piece(begin..at, &mut add));
        begin = at;
        let (kind, part) = (BodyKind::PartOfUpdate, Part::default());
        let update = Entry::new(add(Body { kind, part, instructions }), None);
        entries.push((Entry { shift: -1, ..update }, None));
    }
    entries.extend(piece(begin..instructions.len(), &mut add));
    order.entries.splice(place..place, entries);
}
