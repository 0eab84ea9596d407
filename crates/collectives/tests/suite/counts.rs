//! Byte and step counts: the lists against the closed forms and the published numbers.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_collectives::{
    Algorithm, Kind, Member, StepList, bottleneck_bytes, bytes_sent_per_member, fused, pairs, plan,
    rounds, sent_elements, sent_elements_by_all,
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

/// Also of buffers that divide into nothing, and that are shorter than the group.
#[test]
fn what_each_and_all_send_is_that_of_the_list_to_the_element() {
    for members in (1..=17).chain([24, 31, 33, 96]) {
        for (kind, algorithm) in pairs(members, Member(members / 2)) {
            for elements in [0, 1, 7, members as usize, 6 * members as usize, 1009] {
                let what = format!("{kind} of {elements} by {algorithm} over {members}");
                let all = sent_elements_by_all(kind, algorithm, members, elements);
                let Ok(list) = plan(kind, algorithm, members, elements) else {
                    assert!(kind == Kind::AllToAll && all.is_err(), "{what}");
                    continue;
                };
                let listed = (0..members).map(|member| list.sent_elements(Member(member)));
                let listed: Vec<usize> = listed.collect();
                let of = |member| sent_elements(kind, algorithm, members, elements, Member(member));
                let counted: Vec<usize> = (0..members).map(|member| of(member).unwrap()).collect();
                assert_eq!(counted, listed, "{what}");
                assert_eq!(of(members), Ok(0), "{what}");
                assert_eq!(all, Ok(listed.iter().sum()), "{what}");
                if kind == Kind::AllReduce {
                    assert_eq!(all, Ok(2 * (members as usize - 1) * elements), "{what}");
                }
            }
        }
    }
}

/// Groups of one member and a single group are trees of fewer levels, as any other.
#[test]
fn trees_of_groups_are_there_for_all_sizes_that_groups_divide() {
    for (inner, outer) in (1..=5).flat_map(|inner| (1..=5).map(move |outer| (inner, outer))) {
        let members = inner * outer;
        let named = [
            (Algorithm::TwoLevelStar { inner }, 1),
            (Algorithm::MultiStar { inner }, outer),
            (Algorithm::BinaryTreeStar { inner }, 1),
            (Algorithm::MultiBinaryTreeStar { inner }, outer),
        ];
        for (algorithm, trees) in named {
            let tree = algorithm.star_tree(members).expect("groups divide the members");
            assert_eq!((tree.inner, tree.outer, tree.trees), (inner, outer, trees), "{algorithm}");
            assert_eq!(algorithm.star_tree(members + 1).is_some(), inner == 1, "{algorithm}");
            assert_eq!(algorithm.star_tree(0), None, "{algorithm}");
        }
        let star = Algorithm::Star.star_tree(members).expect("a star has any members");
        assert_eq!((star.inner, star.outer, star.trees), (members, 1, 1));
        assert_eq!(star.depth(), u32::from(members > 1));
    }
}

/// By definition: runs follow each other, are of one kind and fit, and none could have had the next buffer too.
#[test]
fn buffers_that_fit_together_are_reduced_as_one_and_no_others() {
    let (kinds, sizes) = ([0, 0, 1, 0, 0, 0, 1, 1, 1, 0], [3, 4, 1, 9, 2, 5, 0, 7, 1, 6]);
    let buffers: Vec<(u8, usize)> = kinds.into_iter().zip(sizes).collect();
    for most in 0..30 {
        let mut rest = &buffers[..];
        for length in fused(buffers.iter().copied(), most) {
            let (run, after) = rest.split_at(length);
            let held = run.iter().map(|it| it.1).sum::<usize>();
            assert!(run.iter().all(|it| it.0 == run[0].0), "{run:?}");
            assert!(length == 1 || held <= most, "{run:?} of at most {most}");
            if let Some(next) = after.first() {
                assert!(next.0 != run[0].0 || held + next.1 > most, "{run:?}, then {next:?}");
            }
            rest = after;
        }
        assert!(rest.is_empty(), "{rest:?} are in no run");
    }
    assert_eq!(fused([('a', usize::MAX), ('a', 1)], usize::MAX - 1), [1, 1]);
}

#[test]
fn a_pair_that_does_not_exist_has_neither_list_nor_closed_form() {
    let all = pairs(12, Member(6));
    // By the table in the crate's documentation, row by row; 12 has six divisors.
    assert_eq!(all.len(), (6 + 5 * 6) + 2 * (3 + 6) + (1 + 6) + 2 * 3);
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
        let between_nodes: usize = list
            .steps
            .iter()
            .flatten()
            .filter(|t| t.from.0 == member && t.to.0 / inner != member / inner)
            .map(|t| t.source.len())
            .sum();
        assert_eq!(between_nodes, 2 * 2 * elements / 12);
    }
}

/// Two nodes of two: in one phase heads pass a quarter of the buffer at a time up or down two levels.
#[test]
fn a_star_in_each_node_and_a_tree_between_them_send_what_their_graphs_say() {
    let sent = |algorithm, members, elements| {
        let list = plan(Kind::AllReduce, algorithm, members, elements).unwrap();
        let sent = (0..members).map(|member| list.sent_elements(Member(member)));
        (list.steps.len(), sent.collect::<Vec<_>>())
    };
    assert_eq!(sent(Algorithm::Star, 5, 10), (2, vec![40, 10, 10, 10, 10]));
    let inner = 2;
    // Node 0 is the parent of nodes 1 and 2, and node 1 that of node 3.
    let tree = sent(Algorithm::BinaryTreeStar { inner }, 8, 10);
    assert_eq!(tree, (2 * (4 * 3 + 2), vec![30, 10, 30, 10, 20, 10, 20, 10]));
    let star = sent(Algorithm::TwoLevelStar { inner }, 8, 10);
    assert_eq!(star, (2 * (4 * 2 + 1), vec![40, 10, 20, 10, 20, 10, 20, 10]));
    // Of four trees each head is the root of one, so that all have as much to do.
    for algorithm in [Algorithm::MultiStar { inner }, Algorithm::MultiBinaryTreeStar { inner }] {
        let (_, sent) = sent(algorithm, 8, 12 * 16);
        let head = 12 * 16 + 2 * 3 * (12 * 16) / 4;
        assert_eq!(sent, [head, 12 * 16].repeat(4), "{algorithm}");
    }
}

#[test]
fn the_levels_that_are_busy_in_a_step_of_a_reduction_are_those_of_who_receives() {
    for (inner, outer) in [(1, 7), (1, 12), (2, 5), (4, 6), (3, 1)] {
        let (algorithm, members) = (Algorithm::BinaryTreeStar { inner }, inner * outer);
        let trees = algorithm.star_tree(members).unwrap();
        let list = plan(Kind::AllReduce, algorithm, members, divisible(members)).unwrap();
        let steps = trees.depth() + trees.segments() - 1;
        assert_eq!(list.steps.len(), 2 * steps as usize);
        for (index, step) in (0..steps).zip(&list.steps) {
            // Only heads receive, of which that of role i is the first of the i-th group.
            let level = |member: Member| (member.0 / inner + 1).ilog2();
            let receive: BTreeSet<u32> = step.iter().map(|it| level(it.to)).collect();
            let (first, end) = trees.busy(index);
            assert_eq!(receive, (first..end).collect(), "{algorithm} of {members}, step {index}");
        }
    }
}

#[test]
fn only_first_members_of_inner_groups_talk_to_other_groups() {
    for of_inner in &Algorithm::NESTED[1..] {
        for (inner, outer) in [(1, 5), (2, 3), (4, 4), (3, 7)] {
            let algorithm = of_inner(inner);
            let list = plan(Kind::AllReduce, algorithm, inner * outer, 420).unwrap();
            for transfer in list.steps.iter().flatten() {
                let [from, to] = [transfer.from.0, transfer.to.0];
                let stays = from / inner == to / inner;
                let both_first = from % inner == 0 && to % inner == 0;
                assert!(stays || both_first, "{algorithm}: {from} to {to}");
            }
        }
    }
}

/// One star around each member is the direct algorithm: KungFu's `CLIQUE`.
#[test]
fn a_star_around_every_member_moves_what_the_direct_algorithm_does() {
    for members in 2..=9 {
        let elements = 5 * members as usize;
        let moved = |algorithm| {
            let mut list = plan(Kind::AllReduce, algorithm, members, elements).unwrap();
            for step in &mut list.steps {
                step.retain(|transfer| transfer.from != transfer.to);
                step.sort_by_key(|it| (it.from, it.to));
            }
            let ends = |step: Vec<shardloom_collectives::Transfer>| -> Vec<_> {
                step.into_iter().map(|it| (it.from, it.to, it.source)).collect()
            };
            list.steps.into_iter().map(ends).collect::<Vec<_>>()
        };
        assert_eq!(moved(Algorithm::MultiStar { inner: 1 }), moved(Algorithm::Direct));
    }
}
