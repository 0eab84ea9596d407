//! Every supported pair leaves what its kind promises.

use proptest::{prelude::*, test_runner::RngSeed};
use shardloom_collectives::{
    Algorithm, CollectiveError, Kind, Member, Reduction, chunk, pairs, plan,
};

/// Distinct small integers, so that every sum is exact in any order.
fn integer_buffers(members: u32, elements: usize) -> Vec<Vec<f64>> {
    let value = |member: u32, index: usize| (member as usize * 1009 + index * 31 % 997) as f64;
    (0..members).map(|m| (0..elements).map(|i| value(m, i)).collect()).collect()
}

/// The part of each buffer the kind makes a promise about, computed serially.
fn expected(
    kind: Kind,
    before: &[Vec<f64>],
    reduction: Reduction,
) -> Vec<(usize, std::ops::Range<usize>, Vec<f64>)> {
    let (members, elements) = (before.len(), before[0].len());
    let reduced: Vec<f64> = (0..elements)
        .map(|index| {
            let column = before.iter().map(|buffer| buffer[index]);
            match reduction {
                Reduction::Sum => column.sum(),
                Reduction::Max => column.fold(f64::NEG_INFINITY, f64::max),
            }
        })
        .collect();
    let part = |index| chunk(elements, members, index);
    let everyone = |full: Vec<f64>| (0..members).map(|m| (m, 0..elements, full.clone())).collect();
    match kind {
        Kind::AllReduce => everyone(reduced),
        Kind::ReduceScatter => {
            (0..members).map(|m| (m, part(m), reduced[part(m)].to_vec())).collect()
        }
        Kind::AllGather => {
            everyone((0..members).flat_map(|m| before[m][part(m)].to_vec()).collect())
        }
        Kind::AllToAll => (0..members)
            .map(|m| {
                let full = (0..members).flat_map(|j| before[j][part(m)].to_vec()).collect();
                (m, 0..elements, full)
            })
            .collect(),
        Kind::Broadcast { root } => everyone(before[root.0 as usize].clone()),
        Kind::Reduce { root } => vec![(root.0 as usize, 0..elements, reduced)],
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(2009),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_supported_pair_equals_the_serial_result(
        members in 1u32..=17,
        root in 0u32..17,
        elements in 0usize..90,
        maximum: bool,
    ) {
        let reduction = if maximum { Reduction::Max } else { Reduction::Sum };
        for (kind, algorithm) in pairs(members, Member(root % members)) {
            let elements = match kind {
                Kind::AllToAll => elements / members as usize * members as usize,
                _ => elements,
            };
            let before = integer_buffers(members, elements);
            let list = plan(kind, algorithm, members, elements)?;
            let mut after = before.clone();
            list.apply(&mut after, reduction)?;
            for (member, range, values) in expected(kind, &before, reduction) {
                prop_assert_eq!(
                    &after[member][range], &values[..],
                    "{} by {} on member {} of {}", kind, algorithm, member, members
                );
            }
        }
    }

    #[test]
    fn an_all_reduce_is_bitwise_identical_on_all_members(
        members in 1u32..=17,
        buffers in prop::collection::vec(prop::collection::vec(-1.0f64..1.0, 40), 17),
    ) {
        for (kind, algorithm) in pairs(members, Member(0)) {
            if kind == Kind::AllReduce {
                let mut after = buffers[..members as usize].to_vec();
                plan(kind, algorithm, members, 40)?.apply(&mut after, Reduction::Sum)?;
                for buffer in &after {
                    let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(buffer), bits(&after[0]), "{}", algorithm);
                }
            }
        }
    }

    #[test]
    fn a_direct_sum_is_bitwise_the_serial_sum_however_the_buffer_is_cut(
        buffers in prop::collection::vec(prop::collection::vec(-1.0f64..1.0, 23), 1..9),
    ) {
        let serial: Vec<f64> = (0..23)
            .map(|index| buffers[1..].iter().fold(buffers[0][index], |sum, b| sum + b[index]))
            .collect();
        let mut after = buffers.clone();
        plan(Kind::AllReduce, Algorithm::Direct, buffers.len() as u32, 23)?
            .apply(&mut after, Reduction::Sum)?;
        prop_assert_eq!(&after[0], &serial);
        prop_assert_eq!(&after[buffers.len() - 1], &serial);
    }

    #[test]
    fn chunks_tile_and_are_balanced(elements in 0usize..1000, parts in 1usize..40) {
        let chunks: Vec<_> = (0..parts).map(|index| chunk(elements, parts, index)).collect();
        prop_assert_eq!(chunks[0].start, 0);
        prop_assert_eq!(chunks[parts - 1].end, elements);
        for pair in chunks.windows(2) {
            prop_assert_eq!(pair[0].end, pair[1].start);
            prop_assert!(pair[0].len() == pair[1].len() || pair[0].len() == pair[1].len() + 1);
        }
        prop_assert!(chunks[0].len() - chunks[parts - 1].len() <= 1);
    }
}

#[test]
fn all_to_all_twice_is_the_identity() {
    for (kind, algorithm) in pairs(12, Member(0)) {
        if kind == Kind::AllToAll {
            let before = integer_buffers(12, 36);
            let mut after = before.clone();
            let list = plan(kind, algorithm, 12, 36).unwrap();
            list.apply(&mut after, Reduction::Sum).unwrap();
            assert_ne!(after, before, "{algorithm}");
            list.apply(&mut after, Reduction::Sum).unwrap();
            assert_eq!(after, before, "{algorithm}");
        }
    }
}

#[test]
fn a_pair_that_does_not_exist_is_refused_with_those_that_do() {
    let error = plan(Kind::AllToAll, Algorithm::Ring, 4, 8).unwrap_err();
    assert_eq!(error.to_string(), "all-to-all has no ring algorithm; it has direct, hierarchical");
    let error = plan(Kind::ReduceScatter, Algorithm::DoubleBinaryTree, 4, 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "reduce-scatter has no double-binary-tree algorithm; it has direct, ring, \
         halving-doubling, hierarchical"
    );
}

#[test]
fn impossible_groups_are_refused_with_the_reason() {
    let refused = |kind, algorithm, members, elements| {
        plan(kind, algorithm, members, elements).unwrap_err().to_string()
    };
    let reduce = Kind::AllReduce;
    assert_eq!(
        refused(reduce, Algorithm::Ring, 0, 8),
        "a collective needs at least 1 member, got 0"
    );
    assert_eq!(
        refused(Kind::Broadcast { root: Member(4) }, Algorithm::Ring, 4, 8),
        "root 4 is outside the group: members are 0 to 3"
    );
    assert_eq!(
        refused(Kind::AllToAll, Algorithm::Direct, 4, 10),
        "all-to-all over 4 members needs a buffer divisible by 4, got 10 elements"
    );
    for algorithm in Algorithm::NESTED.into_iter().flat_map(|of_inner| [0, 3].map(of_inner)) {
        assert_eq!(
            plan(reduce, algorithm, 4, 8),
            Err(CollectiveError::InnerDoesNotDivide { algorithm, members: 4 })
        );
    }
    assert_eq!(
        refused(reduce, Algorithm::MultiStar { inner: 3 }, 4, 8),
        "multi-star:3 cannot cut 4 members into inner groups of that size, which must divide 4"
    );
}

#[test]
fn buffers_of_another_shape_are_refused_untouched() {
    let list = plan(Kind::AllReduce, Algorithm::Ring, 2, 3).unwrap();
    let mut buffers = vec![vec![1.0; 3], vec![1.0; 4]];
    let error = list.apply(&mut buffers, Reduction::Sum).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the step list is for 2 buffers of 3 elements each, got lengths [3, 4]"
    );
    assert_eq!(buffers, vec![vec![1.0; 3], vec![1.0; 4]]);
}
