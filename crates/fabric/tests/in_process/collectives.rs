use proptest::{prelude::*, test_runner::RngSeed};
use shardloom_collectives::{Algorithm, Combine, Kind, Member, Reduction, StepList, pairs, plan};
use shardloom_fabric::FabricError;

use crate::ranks::{PATIENT, on_ranks};

/// The nearest length not above `elements` that the kind takes.
fn fitting(kind: Kind, elements: usize, members: u32) -> usize {
    match kind {
        Kind::AllToAll => elements - elements % members as usize,
        _ => elements,
    }
}

struct Ran {
    /// Buffers afterwards, by member.
    buffers: Vec<Vec<f32>>,
    /// Bytes sent, by member.
    bytes: Vec<u64>,
}

/// Every pair on one engine, one after the other, each from the buffers of `before`.
fn run_all(
    pairs: &[(Kind, Algorithm)],
    reduction: Reduction,
    before: &[Vec<f32>],
) -> Result<Vec<Ran>, FabricError> {
    let members = before.len() as u32;
    let by_rank = on_ranks(members, PATIENT, |endpoint| {
        let mut world = endpoint.group(&(0..members).collect::<Vec<_>>())?;
        let mut ran = Vec::new();
        for &(kind, algorithm) in pairs {
            let mut buffer = before[endpoint.rank() as usize].clone();
            buffer.truncate(fitting(kind, buffer.len(), members));
            let sent_before = endpoint.counters().collective_bytes;
            world.collective(kind, algorithm, reduction, &mut buffer)?;
            ran.push((buffer, endpoint.counters().collective_bytes - sent_before));
        }
        assert_eq!(endpoint.counters().collectives, pairs.len() as u64);
        Ok::<_, FabricError>(ran)
    });
    let by_rank = by_rank.into_iter().collect::<Result<Vec<_>, _>>()?;
    let of_pair = |index: usize| {
        let (buffers, bytes) = by_rank.iter().map(|ran| ran[index].clone()).unzip();
        Ran { buffers, bytes }
    };
    Ok((0..pairs.len()).map(of_pair).collect())
}

/// `StepList::apply` in single precision, to compare rounding too.
fn interpret(list: &StepList, buffers: &mut [Vec<f32>], reduction: Reduction) {
    for step in &list.steps {
        let before = buffers.to_vec();
        for transfer in step {
            let arriving = &before[transfer.from.0 as usize][transfer.source.clone()];
            let target = &mut buffers[transfer.to.0 as usize][transfer.target..];
            for (to, &with) in target.iter_mut().zip(arriving) {
                *to = match (transfer.combine, reduction) {
                    (Combine::Overwrite, _) => with,
                    (Combine::Reduce, Reduction::Sum) => *to + with,
                    (Combine::Reduce, Reduction::Max) => to.max(with),
                };
            }
        }
    }
}

fn bits(buffers: &[Vec<f32>]) -> Vec<Vec<u32>> {
    buffers.iter().map(|buffer| buffer.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Distinct small integers, so that every sum is exact in either precision.
fn integers(members: u32, elements: usize) -> Vec<Vec<f32>> {
    let value = |member: u32, index: usize| (member as usize * 1009 + index * 31 % 997) as f32;
    (0..members).map(|m| (0..elements).map(|i| value(m, i)).collect()).collect()
}

/// Values whose sums round differently in every order.
fn fractions(members: u32, elements: usize) -> Vec<Vec<f32>> {
    let value = |member: u32, index: usize| {
        ((member as usize * 7919 + index * 104_729 + 1) % 10_007) as f32 / 97.0 - 50.0
    };
    (0..members).map(|m| (0..elements).map(|i| value(m, i)).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 48 },
        rng_seed: RngSeed::Fixed(2009),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_pair_equals_the_interpreter_and_sends_its_bytes(
        members in 1u32..=if cfg!(miri) { 3 } else { 8 },
        elements in 0usize..=if cfg!(miri) { 20 } else { 200 },
        root in 0u32..8,
        maximum: bool,
    ) {
        let reduction = if maximum { Reduction::Max } else { Reduction::Sum };
        let pairs = pairs(members, Member(root % members));
        let before = integers(members, elements);
        let all_ran = run_all(&pairs, reduction, &before)?;
        for (&(kind, algorithm), ran) in pairs.iter().zip(all_ran) {
            let fitting = fitting(kind, elements, members);
            let list = plan(kind, algorithm, members, fitting)?;
            let mut expected: Vec<Vec<f64>> = before
                .iter()
                .map(|buffer| buffer[..fitting].iter().map(|&value| value.into()).collect())
                .collect();
            list.apply(&mut expected, reduction)?;
            let after: Vec<Vec<f64>> = ran
                .buffers
                .iter()
                .map(|buffer| buffer.iter().map(|&value| value.into()).collect())
                .collect();
            prop_assert_eq!(after, expected, "{} by {}", kind, algorithm);
            let bytes: Vec<u64> =
                (0..members).map(|member| 4 * list.sent_elements(Member(member)) as u64).collect();
            prop_assert_eq!(ran.bytes, bytes, "{} by {}", kind, algorithm);
        }
    }

    #[test]
    fn every_pair_rounds_as_the_order_of_its_list_does(
        members in 1u32..=if cfg!(miri) { 3 } else { 8 },
        elements in 0usize..=if cfg!(miri) { 20 } else { 200 },
        root in 0u32..8,
    ) {
        let pairs = pairs(members, Member(root % members));
        let before = fractions(members, elements);
        let all_ran = run_all(&pairs, Reduction::Sum, &before)?;
        for (&(kind, algorithm), ran) in pairs.iter().zip(all_ran) {
            let fitting = fitting(kind, elements, members);
            let mut expected = before.clone();
            expected.iter_mut().for_each(|buffer| buffer.truncate(fitting));
            interpret(&plan(kind, algorithm, members, fitting)?, &mut expected, Reduction::Sum);
            prop_assert_eq!(bits(&ran.buffers), bits(&expected), "{} by {}", kind, algorithm);
        }
    }
}

#[test]
fn a_direct_all_reduce_over_many_blocks_is_bitwise_the_serial_sum_on_all_members() {
    let (members, elements) = (3, if cfg!(miri) { 3100 } else { 20_011 });
    let before = fractions(members, elements);
    let ran = run_all(&[(Kind::AllReduce, Algorithm::Direct)], Reduction::Sum, &before).unwrap();
    let serial: Vec<f32> =
        (0..elements).map(|i| before[0][i] + before[1][i] + before[2][i]).collect();
    assert_eq!(bits(&ran[0].buffers), bits(&[serial.clone(), serial.clone(), serial]));
}

#[test]
fn control_scalars_are_reduced_in_double_precision_in_ascending_order() {
    let value = |rank: u32| 0.1 * f64::from(rank + 1);
    let after = on_ranks(4, PATIENT, |endpoint| {
        let mut group = endpoint.group(&[2, 0, 3, 1]).unwrap();
        let mut sum = [value(endpoint.rank()); 5];
        group.all_reduce_f64(&mut sum, Reduction::Sum).unwrap();
        let mut maximum = [f64::from(endpoint.rank()), -f64::from(endpoint.rank())];
        group.all_reduce_f64(&mut maximum, Reduction::Max).unwrap();
        (sum, maximum, endpoint.counters().collective_bytes)
    });
    let serial = value(2) + value(0) + value(3) + value(1);
    for (rank, (sum, maximum, bytes)) in after.into_iter().enumerate() {
        assert_eq!(sum.map(f64::to_bits), [serial.to_bits(); 5]);
        assert_eq!(maximum, [3.0, 0.0]);
        let position = [1, 3, 0, 2][rank];
        let sent = |elements| {
            let list = plan(Kind::AllReduce, Algorithm::Direct, 4, elements).unwrap();
            8 * list.sent_elements(Member(position)) as u64
        };
        assert_eq!(bytes, sent(5) + sent(2));
    }
}

#[test]
fn hundreds_of_direct_collectives_with_more_ranks_than_cores_stay_exact() {
    let (ranks, repeats) = if cfg!(miri) { (3, 10) } else { (8, 500) };
    let world: Vec<u32> = (0..ranks).collect();
    on_ranks(ranks, PATIENT, |endpoint| {
        let mut group = endpoint.group(&world).unwrap();
        for repeat in 0..repeats {
            let mut buffer = [(endpoint.rank() + repeat) as f32; 11];
            group
                .collective(Kind::AllReduce, Algorithm::Direct, Reduction::Sum, &mut buffer)
                .unwrap();
            let sum = ranks * (ranks - 1) / 2 + ranks * repeat;
            assert_eq!(buffer, [sum as f32; 11]);
            if repeat % 3 == 0 {
                group.barrier().unwrap();
            }
        }
    });
}

#[test]
fn a_collective_that_does_not_exist_is_refused_everywhere_and_leaves_the_group_usable() {
    on_ranks(3, PATIENT, |endpoint| {
        let mut group = endpoint.group(&[0, 1, 2]).unwrap();
        let mut buffer = [1.0; 4];
        let mut sum = |kind, algorithm, buffer: &mut [f32]| {
            group.collective(kind, algorithm, Reduction::Sum, buffer)
        };
        let error = sum(Kind::AllToAll, Algorithm::Ring, &mut buffer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "all-to-all has no ring algorithm; it has direct, hierarchical"
        );
        let error = sum(Kind::AllToAll, Algorithm::Direct, &mut buffer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "all-to-all over 3 members needs a buffer divisible by 3, got 4 elements"
        );
        let outside = Kind::Broadcast { root: Member(3) };
        let error = sum(outside, Algorithm::Direct, &mut buffer).unwrap_err();
        assert_eq!(error.to_string(), "root 3 is outside the group: members are 0 to 2");
        sum(Kind::AllReduce, Algorithm::Ring, &mut buffer).unwrap();
        assert_eq!(buffer, [3.0; 4]);
        assert_eq!(endpoint.counters().collectives, 1);
    });
}
