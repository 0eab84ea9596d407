use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Collective, FabricError};

use crate::ranks::{IMPATIENT, PATIENT, Tested, as_reals, connect, on_ranks, reals};

const SUM: Collective<'static> = Collective::Equal {
    kind: Kind::AllReduce,
    algorithm: Algorithm::Ring,
    reduction: Reduction::Sum,
};

pub fn what_was_started_comes_back_to_who_waits_in_whatever_order(engine: &Tested) {
    on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&[0, 1, 2]).unwrap();
        for round in 0..if cfg!(miri) { 2 } else { 50 } {
            let value = |n: u32| (endpoint.rank() + 10 * n + round) as f32;
            let first = group.start(SUM, reals(&[value(0); 5]));
            let second = group.start(SUM, reals(&[value(1); 7]));
            let third = group.start(SUM, reals(&[value(2); 2]));
            for (handle, n, len) in [(third, 2, 2), (first, 0, 5), (second, 1, 7)] {
                let (lent, outcome) = group.wait(handle);
                outcome.unwrap();
                assert_eq!(as_reals(lent.view()), vec![(3 + 30 * n + 3 * round) as f32; len]);
            }
        }
    });
}

pub fn who_waited_elsewhere_finds_it_complete(engine: &Tested) {
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&[0, 1]).unwrap();
        let first = group.start(SUM, reals(&[1.0; 5]));
        let second = group.start(SUM, reals(&[2.0; 5]));
        // In the order in which they were started, so the first has ended with the second.
        group.wait(second).1.unwrap();
        assert!(group.test(&first));
        assert_eq!(as_reals(group.wait(first).0.view()), [2.0; 5]);
    });
}

pub fn a_handle_brings_the_error_of_its_collective_and_what_was_lent(engine: &Tested) {
    let mut ranks = connect(engine, 2, IMPATIENT);
    let mut group = ranks[0].group(&[0, 1]).unwrap();
    let first = group.start(SUM, reals(&[1.0; 3]));
    let second = group.start(SUM, reals(&[2.0; 4]));
    let (lent, outcome) = group.wait(first);
    assert_eq!(as_reals(lent.view()), [1.0; 3]);
    let error = outcome.unwrap_err();
    assert_eq!(
        error.to_string(),
        "all-reduce of 3 f32 (ring, sum) in group [0, 1] timed out on rank 0 after 5ms, still \
         waiting for rank 1"
    );
    let (lent, outcome) = group.wait(second);
    assert_eq!(as_reals(lent.view()), [2.0; 4]);
    assert_eq!(outcome, Err::<(), FabricError>(error), "a broken group stays broken");
}
