//! Everyone to everyone: one step per phase.

use crate::{
    Combine, Kind, Transfer,
    chunk::chunk,
    step_list::{Step, overlay},
};

pub(crate) fn steps(kind: Kind, members: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let phases = match kind {
        Kind::AllReduce => vec![scatter(members, elements), gather(members, elements)],
        Kind::ReduceScatter => vec![scatter(members, elements)],
        Kind::AllGather => vec![gather(members, elements)],
        Kind::AllToAll => vec![exchange(members, elements)],
        Kind::Broadcast { root } => {
            let mut step = Step::default();
            for to in (0..members).filter(|&to| to != root.0) {
                step.send(root.0, to, 0..elements, Combine::Overwrite);
            }
            vec![step]
        }
        Kind::Reduce { root } => {
            let mut step = Step::default();
            reduce_at(&mut step, root.0, members, 0..elements);
            vec![step]
        }
    };
    let mut steps = Vec::new();
    overlay(&mut steps, 0, phases);
    steps
}

/// Elements that `member` sends.
pub(crate) fn sent(kind: Kind, members: u32, elements: usize, member: u32) -> usize {
    let own = chunk(elements, members as usize, member as usize).len();
    let others = (members - 1) as usize;
    match kind {
        Kind::AllReduce => elements - own + others * own,
        Kind::ReduceScatter | Kind::AllToAll => elements - own,
        Kind::AllGather => others * own,
        Kind::Broadcast { root } => {
            if root.0 == member {
                others * elements
            } else {
                0
            }
        }
        Kind::Reduce { root } => {
            if root.0 == member {
                0
            } else {
                elements
            }
        }
    }
}

/// All contributions to `range`, in ascending member order whoever the owner is:
/// the first replaces the owner's own value, which comes in at its turn. The sum
/// is therefore bitwise that of a serial loop over members.
fn reduce_at(step: &mut Step, owner: u32, members: u32, range: std::ops::Range<usize>) {
    step.send(0, owner, range.clone(), Combine::Overwrite);
    for from in 1..members {
        step.send(from, owner, range.clone(), Combine::Reduce);
    }
}

fn scatter(members: u32, elements: usize) -> Step {
    let mut step = Step::default();
    for owner in 0..members {
        reduce_at(&mut step, owner, members, chunk(elements, members as usize, owner as usize));
    }
    step
}

fn gather(members: u32, elements: usize) -> Step {
    let mut step = Step::default();
    for owner in 0..members {
        for to in (0..members).filter(|&to| to != owner) {
            let range = chunk(elements, members as usize, owner as usize);
            step.send(owner, to, range, Combine::Overwrite);
        }
    }
    step
}

fn exchange(members: u32, elements: usize) -> Step {
    let mut step = Step::default();
    for from in 0..members {
        for to in (0..members).filter(|&to| to != from) {
            let source = chunk(elements, members as usize, to as usize);
            let target = chunk(elements, members as usize, from as usize).start;
            step.send_to(from, to, source, target, Combine::Overwrite);
        }
    }
    step
}
