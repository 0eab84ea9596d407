//! Entries ask for versions of weights that are held, and all passes of a micro-batch for the same.

use std::collections::BTreeMap;

use super::row::{Row, entries, place};
use super::violation::Violation;
use crate::{BodyKind, Class, ClassId, Content, Copies, Keep, Program};

/// Checks the ages of a class's entries. A class that holds one version runs whatever is newest; one that
/// holds several does so to run both passes of a micro-batch with the same.
pub(super) fn check(program: &Program, id: ClassId, found: &mut Vec<Violation>) {
    let class = program.class(id);
    let Some(held) = versions(class) else { return };
    let late = class.entries().filter(|entry| entry.age >= held);
    let too_late = late.map(|entry| Violation::Age {
        place: place(class, entry.body),
        age: entry.age,
        versions: held,
    });
    found.extend(too_late);
    if held == 1 {
        return;
    }
    let mut updates = 0;
    let mut known: BTreeMap<(Option<u32>, bool, u32), i64> = BTreeMap::new();
    for run in entries(program, class, Row::Usual) {
        let body = class.body_of(&run.entry);
        if body.kind == BodyKind::Epilogue {
            updates += 1;
        }
        let Some(microbatch) = run.microbatch else { continue };
        // The version from the start is the oldest that there is.
        let version = (updates - i64::from(run.entry.age)).max(0);
        let key = (body.part.chunk, body.part.reverse, microbatch);
        if *known.entry(key).or_insert(version) != version {
            let place = place(class, run.entry.body);
            found.push(Violation::Versions { place, microbatch });
        }
    }
}

/// The fewest versions that are held of any of a class's weights that are not frozen; none if it has none.
fn versions(class: &Class) -> Option<u32> {
    let weights = class
        .tensors
        .iter()
        .filter(|tensor| tensor.content == Content::Weight && tensor.keep != Keep::Transient)
        .filter(|tensor| !tensor.bucket.is_some_and(|bucket| class.bucket(bucket).is_frozen));
    let held = weights.map(|tensor| match tensor.copies {
        Copies::Versions(versions) => versions,
        Copies::One | Copies::PerMicrobatch => 1,
    });
    held.min()
}
