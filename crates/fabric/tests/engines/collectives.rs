use proptest::{
    prelude::*,
    test_runner::{RngSeed, TestRunner},
};
use shardloom_collectives::{Algorithm, Combine, Kind, Member, Reduction, StepList, pairs, plan};
use shardloom_fabric::{Collective, Contents, FabricError, Format, View, ViewMut};

use crate::{
    arithmetic::{bf16, f16, from_bf16, from_f16},
    ranks::{PATIENT, Tested, all_reduce_f64, collective, on_ranks},
};

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
    engine: &Tested,
    pairs: &[(Kind, Algorithm)],
    reduction: Reduction,
    before: &[Vec<f32>],
) -> Result<Vec<Ran>, FabricError> {
    let members = before.len() as u32;
    let by_rank = on_ranks(engine, members, PATIENT, |mut endpoint| {
        let mut world = endpoint.group(&(0..members).collect::<Vec<_>>())?;
        let mut ran = Vec::new();
        for &(kind, algorithm) in pairs {
            let mut buffer = before[endpoint.rank() as usize].clone();
            buffer.truncate(fitting(kind, buffer.len(), members));
            let sent_before = endpoint.counters().collective_bytes;
            collective(&mut *world, kind, algorithm, reduction, &mut buffer)?;
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

fn runner() -> TestRunner {
    TestRunner::new(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 48 },
        rng_seed: RngSeed::Fixed(2009),
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

/// Members, elements and a root.
fn sizes() -> impl Strategy<Value = (u32, usize, u32)> {
    let (members, elements): (u32, usize) = if cfg!(miri) { (3, 20) } else { (8, 200) };
    (1..=members, 0..=elements, 0..8_u32)
}

/// Members may name another reduction each where nothing is reduced.
pub fn what_is_reduced_by_is_passed_over_where_nothing_is(engine: &Tested) {
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let mut world = endpoint.group(&[0, 1]).unwrap();
        let own = endpoint.rank() as f32;
        let reduction = if endpoint.rank() == 0 { Reduction::Sum } else { Reduction::Max };
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            let root = Member(1);
            for (kind, expected) in [
                (Kind::AllGather, [0.0, 11.0]),
                (Kind::AllToAll, [own, 10.0 + own]),
                (Kind::Broadcast { root }, [10.0, 11.0]),
            ] {
                if plan(kind, algorithm, 2, 2).is_err() {
                    continue;
                }
                let mut buffer = [10.0 * own, 10.0 * own + 1.0];
                collective(&mut *world, kind, algorithm, reduction, &mut buffer).unwrap();
                assert_eq!(buffer, expected, "{kind:?} by {algorithm:?}");
            }
        }
    });
}

pub fn every_pair_equals_the_interpreter_and_sends_its_bytes(engine: &Tested) {
    let tested = runner().run(&(sizes(), any::<bool>()), |((members, elements, root), maximum)| {
        let reduction = if maximum { Reduction::Max } else { Reduction::Sum };
        let pairs = pairs(members, Member(root % members));
        let before = integers(members, elements);
        let all_ran = run_all(engine, &pairs, reduction, &before)?;
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
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

pub fn every_pair_rounds_as_the_order_of_its_list_does(engine: &Tested) {
    let tested = runner().run(&sizes(), |(members, elements, root)| {
        let pairs = pairs(members, Member(root % members));
        let before = fractions(members, elements);
        let all_ran = run_all(engine, &pairs, Reduction::Sum, &before)?;
        for (&(kind, algorithm), ran) in pairs.iter().zip(all_ran) {
            let fitting = fitting(kind, elements, members);
            let mut expected = before.clone();
            expected.iter_mut().for_each(|buffer| buffer.truncate(fitting));
            interpret(&plan(kind, algorithm, members, fitting)?, &mut expected, Reduction::Sum);
            prop_assert_eq!(bits(&ran.buffers), bits(&expected), "{} by {}", kind, algorithm);
        }
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

/// Integers below 256 in a format.
fn contents(format: Format, values: &[f32]) -> Contents {
    let mut contents = Contents::zeroed(format, values.len());
    let values = values.iter().copied();
    match contents.view_mut() {
        ViewMut::F32(into) => into.iter_mut().zip(values).for_each(|(into, it)| *into = it),
        ViewMut::F64(into) => into.iter_mut().zip(values).for_each(|(into, it)| *into = it.into()),
        ViewMut::Bf16(into) => into.iter_mut().zip(values).for_each(|(into, it)| *into = bf16(it)),
        ViewMut::F16(into) => into.iter_mut().zip(values).for_each(|(into, it)| *into = f16(it)),
        ViewMut::U32(into) => into.iter_mut().zip(values).for_each(|(into, it)| *into = it as u32),
        ViewMut::U8(into) => into.iter_mut().zip(values).for_each(|(into, it)| *into = it as u8),
    }
    contents
}

fn values(contents: &Contents) -> Vec<f32> {
    match contents.view() {
        View::F32(it) => it.to_vec(),
        View::F64(it) => it.iter().map(|&it| it as f32).collect(),
        View::Bf16(it) => it.iter().map(|&it| from_bf16(it)).collect(),
        View::F16(it) => it.iter().map(|&it| from_f16(it)).collect(),
        View::U32(it) => it.iter().map(|&it| it as f32).collect(),
        View::U8(it) => it.iter().map(|&it| f32::from(it)).collect(),
    }
}

pub fn every_format_is_exchanged_and_reduced(engine: &Tested) {
    const MEMBERS: u32 = 3;
    // An odd number, so that parts of words are exchanged, and sums that 8 bits hold.
    let start = |rank: u32| (0..9).map(|i| (rank * 20 + i) as f32).collect::<Vec<f32>>();
    let formats = [Format::F32, Format::F64, Format::Bf16, Format::F16, Format::U32, Format::U8];
    on_ranks(engine, MEMBERS, PATIENT, |mut endpoint| {
        let mut world = endpoint.group(&[0, 1, 2]).unwrap();
        for (index, format) in formats.into_iter().enumerate() {
            let mut sent = endpoint.counters().collective_bytes;
            for (kind, algorithm) in pairs(MEMBERS, Member(1)) {
                let reduction = if index % 2 == 0 { Reduction::Sum } else { Reduction::Max };
                let lent = contents(format, &start(endpoint.rank()));
                let equal = Collective::Equal { kind, algorithm, reduction };
                let (after, outcome) = world.run(equal, lent);
                outcome.unwrap();
                let list = plan(kind, algorithm, MEMBERS, 9).unwrap();
                let mut expected: Vec<Vec<f32>> = (0..MEMBERS).map(start).collect();
                interpret(&list, &mut expected, reduction);
                let (own, what) = (endpoint.rank(), format!("{format} {kind} by {algorithm}"));
                assert_eq!(values(&after), expected[own as usize], "{what}");
                sent += (list.sent_elements(Member(own)) * format.bytes()) as u64;
                assert_eq!(endpoint.counters().collective_bytes, sent, "{what}");
            }
        }
    });
}

pub fn a_direct_all_reduce_over_many_blocks_is_bitwise_the_serial_sum_on_all_members(
    engine: &Tested,
) {
    let (members, elements) = (3, if cfg!(miri) { 3100 } else { 20_011 });
    let before = fractions(members, elements);
    let ran =
        run_all(engine, &[(Kind::AllReduce, Algorithm::Direct)], Reduction::Sum, &before).unwrap();
    let serial: Vec<f32> =
        (0..elements).map(|i| before[0][i] + before[1][i] + before[2][i]).collect();
    assert_eq!(bits(&ran[0].buffers), bits(&[serial.clone(), serial.clone(), serial]));
}

pub fn control_scalars_are_reduced_in_double_precision_in_ascending_order(engine: &Tested) {
    let value = |rank: u32| 0.1 * f64::from(rank + 1);
    let after = on_ranks(engine, 4, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&[2, 0, 3, 1]).unwrap();
        let mut sum = [value(endpoint.rank()); 5];
        all_reduce_f64(&mut *group, &mut sum, Reduction::Sum).unwrap();
        let mut maximum = [f64::from(endpoint.rank()), -f64::from(endpoint.rank())];
        all_reduce_f64(&mut *group, &mut maximum, Reduction::Max).unwrap();
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

pub fn hundreds_of_direct_collectives_with_more_ranks_than_cores_stay_exact(engine: &Tested) {
    let (ranks, repeats) = if cfg!(miri) { (3, 10) } else { (8, 500) };
    let world: Vec<u32> = (0..ranks).collect();
    on_ranks(engine, ranks, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&world).unwrap();
        for repeat in 0..repeats {
            let mut buffer = [(endpoint.rank() + repeat) as f32; 11];
            let (kind, algorithm) = (Kind::AllReduce, Algorithm::Direct);
            collective(&mut *group, kind, algorithm, Reduction::Sum, &mut buffer).unwrap();
            let sum = ranks * (ranks - 1) / 2 + ranks * repeat;
            assert_eq!(buffer, [sum as f32; 11]);
            if repeat % 3 == 0 {
                group.barrier().unwrap();
            }
        }
    });
}

pub fn a_collective_that_does_not_exist_is_refused_everywhere_and_leaves_the_group_usable(
    engine: &Tested,
) {
    on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&[0, 1, 2]).unwrap();
        let mut buffer = [1.0; 4];
        let mut sum = |kind, algorithm, buffer: &mut [f32]| {
            collective(&mut *group, kind, algorithm, Reduction::Sum, buffer)
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
