//! Byte and step counts: the lists against the closed forms and the published numbers.

use std::collections::BTreeMap;

use shardloom_collectives::{
    Algorithm, Kind, Member, StepList, bottleneck_bytes, bytes_sent_per_member, pairs, plan, rounds,
};

/// Divisible by `members`, by powers of two, and by twice the segments of any tree here.
fn divisible(members: u32) -> usize {
    members as usize * 2 * 4 * 60 * 64
}

fn busiest_sent(list: &StepList) -> usize {
    (0..list.members).map(|member| list.sent_elements(Member(member))).max().unwrap()
}

fn bottleneck(list: &StepList) -> usize {
    list.steps
        .iter()
        .map(|step| {
            let mut ports = BTreeMap::<(bool, Member), usize>::new();
            for transfer in step.iter().filter(|transfer| transfer.from != transfer.to) {
                *ports.entry((true, transfer.from)).or_default() += transfer.source.len();
                *ports.entry((false, transfer.to)).or_default() += transfer.source.len();
            }
            ports.values().copied().max().unwrap_or(0)
        })
        .sum()
}

#[test]
fn closed_forms_equal_the_lists_for_every_pair_and_size() {
    for members in (1..=17).chain([31, 32, 33, 40]) {
        let elements = divisible(members);
        for (kind, algorithm) in pairs(members, Member(members / 2)) {
            let list = plan(kind, algorithm, members, elements).unwrap();
            let what = format!("{kind} by {algorithm} over {members}");
            let counted = rounds(kind, algorithm, members).unwrap();
            assert_eq!(counted as usize, list.steps.len(), "{what}");
            let bytes = 4.0 * elements as f64;
            let close = |closed: f64, listed: usize| {
                let listed = 4.0 * listed as f64;
                assert!((closed - listed).abs() <= 1e-12 * bytes, "{what}: {closed}, {listed}");
            };
            let sent = bytes_sent_per_member(kind, algorithm, members, bytes).unwrap();
            close(sent, busiest_sent(&list));
            let path = bottleneck_bytes(kind, algorithm, members, bytes).unwrap();
            close(path, bottleneck(&list));
        }
    }
}

#[test]
fn a_pair_that_does_not_exist_has_neither_list_nor_closed_form() {
    let all = pairs(12, Member(6));
    // By the table in the crate's documentation, row by row; 12 has six divisors.
    assert_eq!(all.len(), (5 + 6) + 2 * (3 + 6) + (1 + 6) + 2 * 3);
    for (kind, _) in &all {
        for (_, algorithm) in &all {
            let exists = all.contains(&(*kind, *algorithm));
            assert_eq!(plan(*kind, *algorithm, 12, 60).is_ok(), exists, "{kind} by {algorithm}");
            assert_eq!(rounds(*kind, *algorithm, 12).is_ok(), exists, "{kind} by {algorithm}");
        }
    }
}

#[test]
fn every_ring_member_sends_exactly_its_share_of_the_buffer() {
    for members in 2..=17u32 {
        let share = 5;
        let elements = share * members as usize;
        let list = plan(Kind::AllReduce, Algorithm::Ring, members, elements).unwrap();
        assert_eq!(list.steps.len(), 2 * (members as usize - 1));
        for member in (0..members).map(Member) {
            assert_eq!(list.sent_elements(member), 2 * (members as usize - 1) * share);
            assert_eq!(list.received_elements(member), 2 * (members as usize - 1) * share);
        }
    }
}

#[test]
fn all_sent_is_received() {
    for (kind, algorithm) in pairs(12, Member(6)) {
        let list = plan(kind, algorithm, 12, 60).unwrap();
        let sum = |count: fn(&StepList, Member) -> usize| -> usize {
            (0..12).map(|member| count(&list, Member(member))).sum()
        };
        let sent = sum(StepList::sent_elements);
        assert!(sent > 0, "{kind} by {algorithm}");
        assert_eq!(sent, sum(StepList::received_elements), "{kind} by {algorithm}");
    }
}

#[test]
fn no_double_tree_member_sends_more_than_twice_the_buffer() {
    for members in 2..=40u32 {
        let elements = divisible(members);
        let list = plan(Kind::AllReduce, Algorithm::DoubleBinaryTree, members, elements).unwrap();
        for member in (0..members).map(Member) {
            assert!(list.sent_elements(member) <= 2 * elements, "member {} of {members}", member.0);
            assert!(list.received_elements(member) <= 2 * elements);
        }
    }
}

#[test]
fn a_tree_needs_fewer_steps_than_a_ring_in_a_big_group() {
    let steps = |algorithm| rounds(Kind::AllReduce, algorithm, 1024).unwrap();
    assert_eq!(steps(Algorithm::Direct), 2);
    assert_eq!(steps(Algorithm::HalvingDoubling), 20);
    assert_eq!(steps(Algorithm::DoubleBinaryTree), 98);
    assert_eq!(steps(Algorithm::Hierarchical { inner: 8 }), 268);
    assert_eq!(steps(Algorithm::Ring), 2046);
}

#[test]
fn a_two_level_all_reduce_crosses_nodes_with_a_fraction_of_the_bytes() {
    let (inner, elements) = (4u32, 4 * 3 * 10);
    let list = plan(Kind::AllReduce, Algorithm::Hierarchical { inner }, 12, elements).unwrap();
    for member in 0..12u32 {
        let crossing: usize = list
            .steps
            .iter()
            .flatten()
            .filter(|t| t.from.0 == member && t.to.0 / inner != member / inner)
            .map(|t| t.source.len())
            .sum();
        assert_eq!(crossing, 2 * 2 * elements / 12);
    }
}
