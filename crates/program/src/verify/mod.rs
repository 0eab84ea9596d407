//! Proves of a program, apart from how it was lowered, that it can be run.
//!
//! Each file proves one property. Those of single instructions are looked at first; the others follow
//! ranks through a [row](Row) of steps from an empty pipeline to an empty one, in either arm of guards.

mod averages;
mod buckets;
mod communication;
mod deltas;
mod gradients;
mod guards;
mod lifetimes;
mod negotiation;
mod norms;
mod operands;
mod operators;
mod races;
mod routes;
mod row;
mod rows;
mod servers;
mod summing;
mod tables;
mod updates;
mod versions;
mod violation;

pub use communication::run_blocking;
pub use row::Row;
pub use servers::{Explored, explore};
pub use violation::{Site, Violation};

use std::collections::BTreeSet;

use crate::{BodyId, Entry, Program, Run};

/// Checks a program.
///
/// # Errors
/// Every rule that it breaks, each at the places where it does. If single instructions, parameters or
/// routes are wrong, only these are named.
pub fn verify(program: &Program) -> Result<(), Vec<Violation>> {
    let mut found = vec![];
    parts(program, &mut found);
    if found.is_empty() {
        rows(program, &mut found);
    }
    let mut known = BTreeSet::new();
    found.retain(|violation| known.insert(violation.clone()));
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// What can be said without running anything.
fn parts(program: &Program, found: &mut Vec<Violation>) {
    routes::check(program, found);
    servers::check(program, found);
    for (id, class) in program.classes() {
        buckets::check(class, found);
        if !found.is_empty() {
            continue;
        }
        let bodies = (0..class.bodies.len() as u32).map(BodyId);
        let entries = bodies.map(|body| Entry::new(body, None));
        let all: Vec<Run> = entries.map(Run::alone).collect();
        for step in row::instructions(class, id, &all) {
            if operands::check(program, &step, found) {
                routes::check_end(program, &step, found);
            }
            races::check_queue(program, &step, found);
            if found.is_empty() {
                negotiation::check(program, &step, found);
            }
        }
    }
    if found.is_empty() {
        operators::check(program, found);
        program.classes().for_each(|(id, _)| servers::ranges(program, id, found));
        servers::pieces(program, found);
        tables::check(program, found);
        tables::messages(program, found);
        program.classes().for_each(|(id, class)| rows::check(class, id, found));
    }
}

/// What shows when ranks run.
fn rows(program: &Program, found: &mut Vec<Violation>) {
    for (id, _) in program.classes() {
        versions::check(program, id, found);
    }
    operators::check_counts(program, found);
    guards::check(program, found);
    for row in Row::all(program) {
        tables::follow(program, row, found);
        for (id, _) in program.classes() {
            lifetimes::check(program, id, row, found);
            races::check(program, id, row, found);
            if row != Row::Evaluation {
                updates::check(program, id, row, found);
            }
        }
        if row != Row::Evaluation {
            norms::check(program, row, found);
            gradients::check(program, row, found);
            averages::check(program, row, found);
            summing::check(program, row, found);
            deltas::check(program, row, found);
        }
        found.extend(run_blocking(program, row).err());
    }
}
