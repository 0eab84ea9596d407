use std::{panic, thread};

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{Call, Collective, FabricError, Format, Operation};

use crate::ranks::{
    IMPATIENT, Members, PATIENT, Rank, Tested, all_reduce_f64, collective, connect, on_ranks, pool,
    reals, receive, send,
};

fn all_reduce(
    group: &mut Members,
    elements: usize,
    algorithm: Algorithm,
) -> Result<(), FabricError> {
    collective(group, Kind::AllReduce, algorithm, Reduction::Sum, &mut vec![1.0; elements])
}

fn all_reduce_call(elements: usize, algorithm: Algorithm) -> Call {
    let (kind, reduction) = (Kind::AllReduce, Reduction::Sum);
    Call::Exchange { kind, algorithm, reduction, elements, format: Format::F32 }
}

pub fn everyone_in_a_collective_learns_which_peer_was_dropped(engine: &Tested) {
    for algorithm in [Algorithm::Direct, Algorithm::Ring] {
        let errors = on_ranks(engine, 4, PATIENT, |mut endpoint| {
            let mut world = endpoint.group(&[0, 1, 2, 3]).unwrap();
            world.barrier().unwrap();
            if endpoint.rank() == 2 {
                return None;
            }
            let error = all_reduce(&mut *world, 6, algorithm).unwrap_err();
            assert_eq!(world.barrier(), Err(error.clone()), "a broken group stays broken");
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            let FabricError::PeerGone { operation, peer: 2, reason, .. } = error else {
                panic!("{error}");
            };
            let call = all_reduce_call(6, algorithm);
            assert_eq!(operation, Operation::Collective { call, members: vec![0, 1, 2, 3] });
            assert_eq!(reason, "its endpoint was dropped");
        }
    }
}

pub fn a_reported_failure_reaches_senders_receivers_and_groups_with_its_reason(engine: &Tested) {
    let errors = on_ranks(engine, 4, PATIENT, |mut endpoint| match endpoint.rank() {
        0 => {
            endpoint.fail("loss is NaN at step 7");
            endpoint.fail("a later reason");
            None
        }
        1 => Some(receive(&mut endpoint, 0, 9).unwrap_err()),
        2 => {
            let pool = pool(&mut endpoint, 0, 2);
            loop {
                if let Err(error) = send(&mut endpoint, pool, 9, 0.0) {
                    break Some(error);
                }
            }
        }
        _ => Some(endpoint.group(&[3, 0]).unwrap().barrier().unwrap_err()),
    });
    let texts: Vec<String> = errors.into_iter().flatten().map(|error| error.to_string()).collect();
    let gone = "cannot finish: rank 0 is gone (loss is NaN at step 7)";
    assert_eq!(
        texts,
        [
            format!("receive of tag 9 from rank 0 on rank 1 {gone}"),
            format!("send of tag 9 to rank 0 on rank 2 {gone}"),
            format!("barrier in group [3, 0] on rank 3 {gone}"),
        ]
    );
}

pub fn what_a_rank_sent_before_it_left_still_arrives(engine: &Tested) {
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        if endpoint.rank() == 0 {
            let pool = pool(&mut endpoint, 1, 2);
            send(&mut endpoint, pool, 1, 1.0).unwrap();
            send(&mut endpoint, pool, 2, 2.0).unwrap();
        } else {
            assert_eq!(receive(&mut endpoint, 0, 2), Ok(2.0));
            assert_eq!(receive(&mut endpoint, 0, 1), Ok(1.0));
            let error = receive(&mut endpoint, 0, 1).unwrap_err();
            assert!(matches!(error, FabricError::PeerGone { peer: 0, .. }), "{error}");
            assert_eq!(endpoint.try_receive(0, 1).unwrap_err(), error);
        }
    });
}

pub fn a_rank_may_leave_as_soon_as_its_last_collective_is_done(engine: &Tested) {
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        on_ranks(engine, 3, PATIENT, |mut endpoint| {
            let mut world = endpoint.group(&[0, 1, 2]).unwrap();
            all_reduce(&mut *world, 7, Algorithm::Direct).unwrap();
            all_reduce(&mut *world, 7, Algorithm::Ring).unwrap();
        });
    }
}

pub fn a_panicking_rank_says_so(engine: &Tested) {
    let mut ranks = connect(engine, 2, PATIENT);
    let (mut one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let died = thread::spawn(move || {
        let _endpoint = zero;
        panic::resume_unwind(Box::new("out of luck"));
    });
    assert!(died.join().is_err());
    let FabricError::PeerGone { reason, .. } = receive(&mut one, 0, 0).unwrap_err() else {
        panic!("rank 0 is gone");
    };
    assert_eq!(reason, "its thread panicked");
}

pub fn different_calls_are_reported_to_all_naming_both(engine: &Tested) {
    type Pair = fn(&mut Members) -> Result<(), FabricError>;
    let cases: [(Pair, Pair, &str, &str); 5] = [
        (
            |group| all_reduce(group, 6, Algorithm::Direct),
            |group| all_reduce(group, 5, Algorithm::Direct),
            "all-reduce of 6 f32 (direct, sum)",
            "all-reduce of 5 f32 (direct, sum)",
        ),
        (
            |group| all_reduce(group, 6, Algorithm::Ring),
            |group| {
                // What is reduced by is passed over where nothing is reduced.
                let (kind, algorithm) = (Kind::AllGather, Algorithm::Ring);
                collective(group, kind, algorithm, Reduction::Max, &mut [0.0; 6])
            },
            "all-reduce of 6 f32 (ring, sum)",
            "all-gather of 6 f32 (ring)",
        ),
        (
            |group| all_reduce(group, 6, Algorithm::Direct),
            |group| all_reduce_f64(group, &mut [0.0; 6], Reduction::Max),
            "all-reduce of 6 f32 (direct, sum)",
            "all-reduce of 6 f64 (direct, max)",
        ),
        (
            |group| group.barrier(),
            |group| all_reduce(group, 6, Algorithm::Direct),
            "barrier",
            "all-reduce of 6 f32 (direct, sum)",
        ),
        (
            |group| {
                let counts = Collective::AllToAllV { sent: &[1; 4], received: &[1; 4] };
                group.run(counts, reals(&[0.0; 4])).1
            },
            |group| {
                let (kind, algorithm) = (Kind::AllToAll, Algorithm::Direct);
                collective(group, kind, algorithm, Reduction::Sum, &mut [0.0; 4])
            },
            "all-to-all of f32 with counts",
            "all-to-all of 4 f32 (direct)",
        ),
    ];
    for (usual, odd, usual_text, odd_text) in cases {
        let errors = on_ranks(engine, 4, PATIENT, |mut endpoint| {
            let mut group = endpoint.group(&[3, 2, 1, 0]).unwrap();
            let error = if endpoint.rank() == 1 { odd(&mut *group) } else { usual(&mut *group) };
            let error = error.unwrap_err();
            assert_eq!(group.barrier(), Err(error.clone()), "a broken group stays broken");
            error.to_string()
        });
        let expected = format!(
            "the members of group [3, 2, 1, 0] disagree: rank 3 called {usual_text}, rank 1 \
             called {odd_text}; all members must make the same calls in the same order"
        );
        assert_eq!(errors, vec![expected; 4]);
    }
}

pub fn a_collective_that_nobody_else_calls_times_out_naming_who_is_missing(engine: &Tested) {
    let mut ranks = connect(engine, 3, IMPATIENT);
    let mut group = ranks[1].group(&[0, 1, 2]).unwrap();
    let mut buffer = [1.0; 6];
    let (kind, algorithm) = (Kind::AllReduce, Algorithm::Direct);
    let error = collective(&mut *group, kind, algorithm, Reduction::Sum, &mut buffer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "all-reduce of 6 f32 (direct, sum) in group [0, 1, 2] timed out on rank 1 after 5ms, \
         still waiting for rank 0, 2"
    );
    assert_eq!(buffer, [1.0; 6]);
    let mut late = ranks[0].group(&[0, 1, 2]).unwrap();
    assert_eq!(late.barrier(), Err(error), "who comes late learns why it failed");
}

pub fn all_who_wait_in_a_collective_get_the_same_timeout(engine: &Tested) {
    let mut ranks = connect(engine, 3, IMPATIENT);
    let errors = thread::scope(|scope| {
        let waiting = ranks[..2].iter_mut().map(|endpoint| {
            let mut group = endpoint.group(&[0, 1, 2]).unwrap();
            scope.spawn(move || all_reduce(&mut *group, 6, Algorithm::Ring).unwrap_err())
        });
        let waiting: Vec<_> = waiting.collect();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(errors[0], errors[1]);
    let FabricError::Timeout { waiting_for, after, .. } = &errors[0] else {
        panic!("{}", errors[0]);
    };
    assert!(waiting_for.contains(&2), "{waiting_for:?}");
    assert_eq!(*after, IMPATIENT);
}

/// Nobody passes a barrier that another has given up, whoever's time is over first.
pub fn all_who_wait_at_a_barrier_get_the_same_timeout(engine: &Tested) {
    for _ in 0..if cfg!(miri) { 1 } else { 12 } {
        let mut ranks = connect(engine, 4, IMPATIENT);
        let errors: Vec<FabricError> = thread::scope(|scope| {
            let waiting = ranks[..3].iter_mut().map(|endpoint| {
                let mut group = endpoint.group(&[0, 1, 2, 3]).unwrap();
                scope.spawn(move || group.barrier().unwrap_err())
            });
            let waiting: Vec<_> = waiting.collect();
            waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(errors.iter().all(|it| *it == errors[0]), "{errors:?}");
        let FabricError::Timeout { waiting_for, .. } = &errors[0] else { panic!("{}", errors[0]) };
        assert!(waiting_for.contains(&3), "{waiting_for:?}");
    }
}

pub fn a_receive_times_out_naming_the_sender_and_can_be_tried_again(engine: &Tested) {
    let mut ranks = connect(engine, 2, IMPATIENT);
    let error = receive(&mut ranks[1], 0, 4).unwrap_err();
    assert_eq!(
        error.to_string(),
        "receive of tag 4 from rank 0 timed out on rank 1 after 5ms, still waiting for rank 0"
    );
    let to_one = pool(&mut ranks[0], 1, 1);
    send(&mut ranks[0], to_one, 4, 4.0).unwrap();
    assert_eq!(receive(&mut ranks[1], 0, 4), Ok(4.0));
}

pub fn a_dead_peer_is_named_though_a_late_one_stands_before_it(engine: &Tested) {
    let mut ranks: Vec<Rank> = connect(engine, 3, IMPATIENT);
    drop(ranks.pop());
    let mut group = ranks[1].group(&[0, 1, 2]).unwrap();
    let error = group.barrier().unwrap_err();
    assert!(matches!(error, FabricError::PeerGone { rank: 1, peer: 2, .. }), "{error}");
}

/// What a rank has handed over may still ask for others once the rank itself is gone.
pub fn on_behalf_of_a_rank_that_is_gone_nobody_is_waited_for(engine: &Tested) {
    let mut ranks = connect(engine, 3, IMPATIENT);
    let mut group = ranks[1].group(&[0, 1, 2]).unwrap();
    ranks[1].fail("out of order");
    let error = group.barrier().unwrap_err();
    let FabricError::PeerGone { peer: 1, reason, .. } = error else { panic!("{error}") };
    assert_eq!(reason, "out of order");
}
