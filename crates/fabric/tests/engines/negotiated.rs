//! Members that agree while running in which order they carry collectives out.

use std::{thread, time::Duration};

use shardloom_collectives::{Algorithm, Kind, Member, Reduction, plan};
use shardloom_fabric::{Contents, FabricError, Format, Negotiated, Negotiation, Request};

use crate::ranks::{IMPATIENT, PATIENT, Rank, Tested, as_reals, on_ranks, reals};

/// Elements of the requests. The fifth is larger than what is carried out as one.
const SIZES: [usize; 7] = [3, 1, 8, 2, 40, 5, 4];
const FUSED_BYTES: usize = 15 * 4;

fn negotiated(
    endpoint: &mut Rank,
    algorithm: Algorithm,
    cycle: Duration,
    timeout: Duration,
) -> Negotiated<Contents> {
    let room = Contents::zeroed(Format::F32, FUSED_BYTES / 4);
    negotiated_in(vec![room], endpoint, algorithm, cycle, timeout)
}

/// With these rooms for what is carried out as one.
fn negotiated_in(
    rooms: Vec<Contents>,
    endpoint: &mut Rank,
    algorithm: Algorithm,
    cycle: Duration,
    timeout: Duration,
) -> Negotiated<Contents> {
    let members: Vec<u32> = (0..endpoint.ranks()).collect();
    let request =
        |elements| Request { algorithm, reduction: Reduction::Sum, format: Format::F32, elements };
    let requests: Vec<Request> = SIZES.map(request).into();
    let told = Contents::zeroed(Format::U32, requests.len());
    let negotiation = Negotiation { requests, cycle, fused_bytes: FUSED_BYTES, timeout };
    let group = endpoint.group_apart(&members).unwrap();
    Negotiated::new(group, negotiation, told, rooms).unwrap()
}

/// Numbers that look as if they had been drawn.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }

    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..SIZES.len()).collect();
        (1..order.len()).rev().for_each(|last| order.swap(last, self.below(last + 1)));
        order
    }

    /// Lets others go first, or not.
    fn pause(&mut self) {
        (0..self.below(4)).for_each(|_| thread::yield_now());
    }
}

/// What a rank lends for a request: numbers whose sum depends on the order of additions.
fn part(rank: u32, request: usize, round: usize) -> Vec<f32> {
    let value = |at: usize| 1.0 / (1 + at + 3 * request + 7 * round + 11 * rank as usize) as f32;
    (0..SIZES[request]).map(value).collect()
}

/// Makes all requests in an order of the rank's own, waiting for some in between that all ranks have made before
/// they wait for anything, and says what each came to.
fn round(
    negotiated: &mut Negotiated<Contents>,
    rank: u32,
    round: usize,
    draws: &mut Draws,
) -> Result<Vec<Contents>, FabricError> {
    // What a rank waits for before it makes the rest, and whether, is its program, and the same whatever is drawn.
    let first_wait = if round.is_multiple_of(2) { 1 } else { 4 };
    let waits = (round + rank as usize).is_multiple_of(3);
    let (early, late): (Vec<usize>, Vec<usize>) =
        draws.order().into_iter().partition(|&it| it == first_wait || it.is_multiple_of(3));
    let mut handles = vec![];
    let mut results: Vec<Option<Contents>> = SIZES.map(|_| None).into();
    for (index, request) in early.iter().chain(&late).copied().enumerate() {
        if index == early.len() && waits {
            let place = handles.iter().position(|&(request, _)| request == first_wait);
            let (request, handle) = handles.swap_remove(place.expect("it was made early"));
            let (sum, outcome) = negotiated.wait(handle);
            outcome?;
            results[request] = Some(sum);
        }
        draws.pause();
        handles.push((request, negotiated.start(request, reals(&part(rank, request, round)))));
    }
    while !handles.is_empty() {
        let (request, handle) = handles.swap_remove(draws.below(handles.len()));
        let (sum, outcome) = negotiated.wait(handle);
        outcome?;
        results[request] = Some(sum);
    }
    Ok(results.into_iter().map(|it| it.expect("all were waited for")).collect())
}

const ROUNDS: usize = if cfg!(miri) { 2 } else { 12 };

pub fn ranks_that_get_ready_in_any_order_carry_out_the_same_lists(engine: &Tested) {
    for (ranks, cycle) in [(2, 0), (3, 0), (4, 200)] {
        let came_to = on_ranks(engine, ranks, PATIENT, |mut endpoint| {
            let cycle = Duration::from_micros(cycle);
            let mut members = negotiated(&mut endpoint, Algorithm::Direct, cycle, PATIENT);
            let rank = endpoint.rank();
            let mut draws = Draws(u64::from(rank) + 100 * u64::from(ranks));
            let sums: Vec<Vec<Contents>> = (0..ROUNDS)
                .map(|number| round(&mut members, rank, number, &mut draws).unwrap())
                .collect();
            let (lists, cycles) = (members.take_lists(), members.cycles());
            assert!(members.take_lists().is_empty(), "lists are handed out once");
            let sent = endpoint.counters().collective_bytes;
            let sums: Vec<Vec<f32>> =
                sums.iter().flatten().map(|it| as_reals(it.view()).to_vec()).collect();
            (sums, lists, cycles, sent)
        });
        let expected = |number: usize, request: usize| -> Vec<f32> {
            let parts = (0..ranks).map(|rank| part(rank, request, number));
            parts.reduce(|sum, part| sum.iter().zip(part).map(|(a, b)| a + b).collect()).unwrap()
        };
        let (_, lists, cycles, _) = &came_to[0];
        for (rank, (sums, same, own_cycles, sent)) in came_to.iter().enumerate() {
            for (at, sum) in sums.iter().enumerate() {
                // Chunks of a direct all-reduce are summed in the order of ranks, however many are fused.
                assert_eq!(*sum, expected(at / SIZES.len(), at % SIZES.len()));
            }
            assert_eq!((same, own_cycles), (lists, cycles));
            let bytes = |kind, elements| {
                let list = plan(kind, Algorithm::Direct, ranks, elements).unwrap();
                4 * list.sent_elements(Member(rank as u32)) as u64
            };
            let of_list = |list: &Vec<u32>| {
                bytes(Kind::AllReduce, list.iter().map(|&it| SIZES[it as usize]).sum())
            };
            let root = Member(0);
            let of_cycle = bytes(Kind::Reduce { root }, SIZES.len())
                + bytes(Kind::Broadcast { root }, SIZES.len());
            assert_eq!(*sent, lists.iter().map(of_list).sum::<u64>() + cycles * of_cycle);
        }
        // Every request once a round, and no more bytes together than there may be.
        let mut times = [0; SIZES.len()];
        lists.iter().flatten().for_each(|&request| times[request as usize] += 1);
        assert_eq!(times, [ROUNDS; SIZES.len()]);
        for list in lists {
            let elements: usize = list.iter().map(|&it| SIZES[it as usize]).sum();
            assert!(list.len() == 1 || 4 * elements <= FUSED_BYTES, "{list:?}");
        }
    }
}

pub fn lists_that_are_repeated_come_to_the_same_bits(engine: &Tested) {
    // The sums of a ring depend on where chunks begin, and so on what is fused.
    let run = |seed: u64, repeated: Option<Vec<Vec<u32>>>| {
        on_ranks(engine, 3, PATIENT, |mut endpoint| {
            let mut members = negotiated(&mut endpoint, Algorithm::Ring, Duration::ZERO, PATIENT);
            members.repeat(repeated.clone());
            let rank = endpoint.rank();
            let mut draws = Draws(seed + u64::from(rank));
            let sums: Vec<Vec<u32>> = (0..ROUNDS)
                .flat_map(|number| round(&mut members, rank, number, &mut draws).unwrap())
                .map(|sum| as_reals(sum.view()).iter().map(|it| it.to_bits()).collect())
                .collect();
            (sums, members.take_lists())
        })
    };
    let first = run(5, None);
    // Another order of getting ready, the same answers.
    let again = run(77, Some(first[0].1.clone()));
    assert_eq!(first, again);
}

pub fn a_rank_that_fails_ends_all_requests_with_its_reason(engine: &Tested) {
    let errors = on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let mut members = negotiated(&mut endpoint, Algorithm::Direct, Duration::ZERO, PATIENT);
        let rank = endpoint.rank();
        round(&mut members, rank, 0, &mut Draws(3)).unwrap();
        let made = if rank == 1 { 3 } else { SIZES.len() };
        let start = |request| members.start(request, reals(&part(rank, request, 1)));
        let handles: Vec<_> = (0..made).map(start).collect();
        if rank == 1 {
            endpoint.fail("loss is NaN at step 7");
            return vec![];
        }
        let errors = handles.into_iter().filter_map(|handle| members.wait(handle).1.err());
        let errors: Vec<FabricError> = errors.collect();
        let after = members.start(0, reals(&part(rank, 0, 2)));
        assert_eq!(members.wait(after).1.as_ref().err(), errors.last(), "it stays broken");
        errors
    });
    for (rank, errors) in errors.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        // The three that all have made may have been carried out before.
        assert!(errors.len() >= SIZES.len() - 3, "rank {rank}: {errors:?}");
        for error in errors {
            let text = error.to_string();
            let gone = "rank 1 is gone (loss is NaN at step 7)";
            assert!(text.contains(gone), "rank {rank}: {text}");
        }
    }
}

pub fn a_list_that_is_carried_out_one_by_one_ends_with_the_first_that_fails(engine: &Tested) {
    let list = [0u32, 1, 2];
    let outcomes = on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let rank = endpoint.rank();
        // They agree on a list, and not on how its requests are carried out.
        let algorithm = if rank == 1 { Algorithm::Ring } else { Algorithm::Direct };
        let mut members = negotiated_in(vec![], &mut endpoint, algorithm, Duration::ZERO, PATIENT);
        members.repeat(Some(vec![list.to_vec()]));
        let made = list.map(|it| it as usize);
        let handles = made.map(|it| members.start(it, reals(&part(rank, it, 0))));
        handles.map(|handle| members.wait(handle).1)
    });
    for [first, others @ ..] in &outcomes {
        assert!(matches!(first, Err(FabricError::Mismatch { .. })), "{first:?}");
        assert!(others.iter().all(|it| it == first), "{others:?} behind {first:?}");
    }
}

/// In room for 12 numbers: a sum and a maximum, and two sums of 8.
pub fn requests_that_are_unlike_or_too_large_together_are_carried_out_one_by_one(engine: &Tested) {
    const REQUESTS: [(Reduction, usize); 4] =
        [(Reduction::Sum, 3), (Reduction::Max, 3), (Reduction::Sum, 8), (Reduction::Sum, 8)];
    let all = on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let (algorithm, format) = (Algorithm::Direct, Format::F32);
        let request = |(reduction, elements)| Request { algorithm, reduction, format, elements };
        let requests = REQUESTS.map(request).into();
        let (cycle, timeout) = (Duration::ZERO, PATIENT);
        let negotiation = Negotiation { requests, cycle, fused_bytes: 0, timeout };
        let group = endpoint.group_apart(&[0, 1]).unwrap();
        let [told, room] = [(Format::U32, REQUESTS.len()), (format, 12)]
            .map(|(format, elements)| Contents::zeroed(format, elements));
        let mut members = Negotiated::new(group, negotiation, told, vec![room]).unwrap();
        members.repeat(Some(vec![vec![0, 1], vec![2, 3]]));
        let own = (endpoint.rank() + 1) as f32;
        let start = |request: usize| members.start(request, reals(&vec![own; REQUESTS[request].1]));
        let handles: Vec<_> = (0..REQUESTS.len()).map(start).collect();
        let result = |handle| {
            let (sum, outcome) = members.wait(handle);
            outcome.unwrap();
            as_reals(sum.view()).to_vec()
        };
        handles.into_iter().map(result).collect::<Vec<Vec<f32>>>()
    });
    for found in all {
        assert_eq!(found, [vec![3.0; 3], vec![2.0; 3], vec![3.0; 8], vec![3.0; 8]]);
    }
}

pub fn requests_that_others_do_not_make_are_given_up(engine: &Tested) {
    let errors = on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let cycle = Duration::from_micros(100);
        let mut members = negotiated(&mut endpoint, Algorithm::Direct, cycle, IMPATIENT);
        let own = endpoint.rank() as usize;
        let handle = members.start(own, reals(&part(0, own, 0)));
        let error = members.wait(handle).1.unwrap_err();
        // The other hears that this one is gone, at the latest.
        endpoint.fail(&error.to_string());
        error
    });
    let is_unanswered = |error: &&FabricError| matches!(error, FabricError::Unanswered { .. });
    assert!(errors.iter().find(is_unanswered).is_some(), "{errors:?}");
}
