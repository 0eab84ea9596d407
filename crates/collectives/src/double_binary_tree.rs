//! Two trees at once (Sanders, Speck and Träff, "Two-tree algorithms for full
//! bandwidth broadcast, reduction and scan", 2009, in NCCL's construction).
//!
//! The second tree is the first mirrored (even sizes) or shifted by one (odd
//! sizes), so that leaves and inner nodes change places: every member works about
//! equally, and sends at most twice the buffer.

use crate::{
    Kind, Transfer,
    binary_tree::{self, tree},
    chunk::chunk,
    step_list::overlay,
};

pub(crate) fn steps(members: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let second_member = |role| match members.is_multiple_of(2) {
        true => members - 1 - role,
        false => (role + 1) % members,
    };
    let trees = [
        tree(members, |role| role, chunk(elements, 2, 0)),
        tree(members, second_member, chunk(elements, 2, 1)),
    ];
    let mut steps = Vec::new();
    for tree in &trees {
        let up = tree.up();
        let turn = up.len();
        overlay(&mut steps, 0, up);
        overlay(&mut steps, turn, tree.down());
    }
    steps
}

/// Elements that `member` sends.
pub(crate) fn sent(members: u32, elements: usize, member: u32) -> usize {
    let second_role = match members.is_multiple_of(2) {
        true => members - 1 - member,
        false => (member + members - 1) % members,
    };
    let in_tree = |index: usize, role: u32| {
        binary_tree::sent(Kind::AllReduce, members, chunk(elements, 2, index).len(), role)
    };
    in_tree(0, member) + in_tree(1, second_role)
}
