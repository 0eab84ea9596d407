//! How many buckets' whole gradients a rank holds at once, where it does not wait for their reductions.
//!
//! With ZeRO from stage 2 on, whole gradients of a bucket are there until they have been reduced. A rank that
//! waits for nothing before its update would have those of all buckets by then. So those of a bucket are
//! first written when all reductions but the last are over: at most two buckets' lie there besides those that
//! are still being added to, as gathered weights of two blocks do.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Action, BodyId, Class, Content, Instruction, Keep, Point, Program, TensorId};

/// An instruction of a body.
type Place = (BodyId, u32);

/// Has the first write of whole gradients that come and go wait for the last reduction but one before it.
pub(super) fn bound(program: &mut Program) {
    // From the second round on, steps begin with what others left behind.
    let steps = 2 * program.ahead + 2;
    for index in 0..program.classes.len() {
        let points = points(program, &program.classes[index], steps);
        for ((body, instruction), more) in points {
            let body = &mut program.classes[index].bodies[body.0 as usize];
            let after = &mut body.instructions[instruction as usize].after;
            after.extend(more);
            after.sort_unstable();
            after.dedup();
        }
    }
}

fn points(program: &Program, class: &Class, steps: u32) -> BTreeMap<Place, BTreeSet<Point>> {
    let comes_and_goes = |tensor: TensorId| {
        let tensor = class.tensor(tensor);
        tensor.content == Content::Gradient
            && tensor.keep == Keep::Transient
            && tensor.bucket.is_some()
    };
    let mut points: BTreeMap<Place, BTreeSet<Point>> = BTreeMap::new();
    let mut there: BTreeSet<TensorId> = BTreeSet::new();
    // Where the last two reductions stand, and in which entries.
    let mut reductions: [Option<(usize, Place)>; 2] = [None; 2];
    for (entry, run) in program.cursor(class, steps).runs(true).enumerate() {
        let body = run.entry.body;
        for (index, instruction) in (0u32..).zip(&class.body(body).instructions) {
            let written = instruction.writes.iter().map(|write| write.to.tensor);
            let mut begins = false;
            for tensor in written.filter(|&it| comes_and_goes(it)) {
                begins |= there.insert(tensor);
            }
            if begins && let Some((of, (other, place))) = reductions[0] {
                points.entry((body, index)).or_default().insert(match of == entry {
                    true => Point::Here(place),
                    false => Point::Latest(other, place),
                });
            }
            for tensor in reduced(instruction).filter(|&it| comes_and_goes(it)) {
                there.remove(&tensor);
                reductions = [reductions[1], Some((entry, (body, index)))];
            }
        }
    }
    points
}

/// What a collective is the last to touch.
fn reduced(instruction: &Instruction) -> impl Iterator<Item = TensorId> {
    let is_collective = matches!(instruction.action, Action::Collective { .. });
    instruction.frees.iter().copied().filter(move |_| is_collective)
}
