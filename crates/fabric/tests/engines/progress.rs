//! What was started proceeds beside what its rank computes, with nobody waiting for it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Collective, Handle};

use crate::ranks::{Members, PATIENT, Rank, Tested, as_reals, on_ranks, reals};

/// Some megabytes, which no transport sends along with a header.
const ELEMENTS: usize = if cfg!(miri) { 100 } else { 1 << 20 };

/// By sender, how many elements each rank gets: all goes one way, or most of it.
const PARTS: [[[usize; 2]; 2]; 2] =
    [[[0, ELEMENTS], [0, 0]], [[3, ELEMENTS / 8], [ELEMENTS, ELEMENTS / 2]]];

const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::Direct, Algorithm::Ring, Algorithm::DoubleBinaryTree];

/// How many collectives each of two ranks carries out.
pub const COLLECTIVES: usize = ALGORITHMS.len() + PARTS.len();

/// How ranks know of each other that one has ended, without the engine.
pub trait Ended: Sync {
    /// A rank has found that its collective of this number has ended.
    fn note(&self, number: usize, rank: u32);

    /// Whether both ranks have.
    fn all(&self, number: usize) -> bool;
}

#[derive(Default)]
struct Counted([AtomicUsize; COLLECTIVES]);

impl Ended for Counted {
    fn note(&self, number: usize, _: u32) {
        self.0[number].fetch_add(1, Ordering::AcqRel);
    }

    fn all(&self, number: usize) -> bool {
        self.0[number].load(Ordering::Acquire) == 2
    }
}

/// A small product of matrices, over and over until it is so; fails where it never is.
fn compute_until(what: &str, mut is_so: impl FnMut() -> bool) {
    const SIDE: usize = 32;
    let (one, mut other) = (vec![0.03_f32; SIDE * SIDE], vec![1.0_f32; SIDE * SIDE]);
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENT, "{what} has not ended while ranks computed");
        let product: Vec<f32> = (0..SIDE * SIDE)
            .map(|at| {
                let (row, column) = (at / SIDE, at % SIDE);
                (0..SIDE).map(|k| one[row * SIDE + k] * other[k * SIDE + column]).sum()
            })
            .collect();
        other = black_box(product);
    }
}

/// Computes until both ranks have found, without waiting, that the collective has ended.
fn compute_beside(
    group: &mut Members,
    handle: &Handle,
    (number, ended): (usize, &dyn Ended),
    what: &str,
) {
    compute_until(what, || group.test(handle));
    ended.note(number, group.position());
    // Whoever is done goes on computing: the other is not helped by one that waits or ends.
    compute_until(what, || ended.all(number));
    assert!(group.test(handle), "{what} stays ended");
}

fn summed(algorithm: Algorithm) -> Collective<'static> {
    Collective::Equal { kind: Kind::AllReduce, algorithm, reduction: Reduction::Sum }
}

/// What each of two ranks does.
pub fn rank_of_two(mut endpoint: Rank, ended: &dyn Ended) {
    let own = endpoint.rank() as usize;
    let mut group = endpoint.group(&[0, 1]).unwrap();
    for (number, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let handle = group.start(summed(algorithm), reals(&vec![own as f32 + 1.0; ELEMENTS]));
        compute_beside(&mut *group, &handle, (number, ended), &format!("{algorithm} all-reduce"));
        let (sum, outcome) = group.wait(handle);
        outcome.unwrap();
        assert!(as_reals(sum.view()).iter().all(|&it| it == 3.0), "{algorithm}");
    }
    for (number, parts) in (ALGORITHMS.len()..).zip(PARTS) {
        let (sent, received) = (parts[own], parts.map(|parts| parts[own]));
        let room = sent.iter().sum::<usize>().max(received.iter().sum());
        let counts = Collective::AllToAllV { sent: &sent, received: &received };
        let handle = group.start(counts, reals(&vec![own as f32 + 1.0; room]));
        let what = format!("all-to-all-v of {parts:?}");
        compute_beside(&mut *group, &handle, (number, ended), &what);
        let (after, outcome) = group.wait(handle);
        outcome.unwrap();
        let (first, second) = as_reals(after.view())[..received.iter().sum()].split_at(received[0]);
        assert!(first.iter().all(|&it| it == 1.0) && second.iter().all(|&it| it == 2.0), "{what}");
    }
}

pub fn what_was_started_ends_beside_what_ranks_compute(engine: &Tested) {
    let ended = Counted::default();
    on_ranks(engine, 2, PATIENT, |endpoint| rank_of_two(endpoint, &ended));
}

pub fn what_another_rank_has_not_started_has_not_ended(engine: &Tested) {
    const LOOKS: usize = if cfg!(miri) { 3 } else { 200 };
    let counts = [[[1, 2], [3, 4]], [[0, 0], [0, 0]]];
    let (looked, ended): (Vec<_>, Vec<_>) =
        (0..4).map(|_| (AtomicBool::new(false), AtomicBool::new(false))).unzip();
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let own = endpoint.rank() as usize;
        let mut group = endpoint.group(&[0, 1]).unwrap();
        for number in 0..4 {
            // Each rank is the late one in turn.
            let is_late = own == number % 2;
            let of = counts[number % 2];
            let (sent, received) = (of[own], of.map(|parts| parts[own]));
            let collective = match number < 2 {
                true => summed(Algorithm::Direct),
                false => Collective::AllToAllV { sent: &sent, received: &received },
            };
            if is_late {
                compute_until("what is looked at", || looked[number].load(Ordering::Acquire));
            }
            let handle = group.start(collective, reals(&[1.0; 7]));
            if !is_late {
                let mut looks = 0;
                compute_until("looking", || {
                    assert!(!group.test(&handle), "rank {} has not started {number}", 1 - own);
                    looks += 1;
                    looks == LOOKS
                });
                looked[number].store(true, Ordering::Release);
            }
            // The late rank is in no hurry to look.
            compute_until("a collective", || group.test(&handle));
            match is_late {
                true => ended[number].store(true, Ordering::Release),
                false => compute_until("the late rank's", || ended[number].load(Ordering::Acquire)),
            }
            group.wait(handle).1.unwrap();
        }
    });
}
