use shardloom_fabric::{Counters, FabricError, InProcess, Payload};

use crate::ranks::{IMPATIENT, PATIENT, on_ranks};

#[test]
fn messages_of_a_tag_stay_in_order_and_others_wait_until_asked_for() {
    on_ranks(2, PATIENT, |endpoint| {
        if endpoint.rank() == 0 {
            for index in 0..100 {
                endpoint.send(1, index % 2, vec![index as f32]).unwrap();
            }
        } else {
            for tag in [1, 0] {
                for index in (tag..100).step_by(2) {
                    assert_eq!(endpoint.receive(0, tag).unwrap(), [index as f32]);
                }
            }
        }
    });
}

#[test]
fn a_message_is_moved_not_copied() {
    let [zero, one] = &InProcess::new(2, PATIENT)[..] else { unreachable!("two ranks") };
    let message = vec![1.0_f32; 9];
    let address = message.as_ptr().addr();
    zero.send(1, 0, message).unwrap();
    let received = one.receive(0, 0).unwrap();
    assert_eq!(received.as_ptr().addr(), address);
}

#[test]
fn try_receive_finds_what_is_there_and_nothing_else() {
    let [zero, one] = &InProcess::new(2, PATIENT)[..] else { unreachable!("two ranks") };
    assert_eq!(one.try_receive(0, 5), Ok(None));
    zero.send(1, 6, vec![6.0]).unwrap();
    assert_eq!(one.try_receive(0, 5), Ok(None));
    zero.send(1, 5, vec![5.0]).unwrap();
    assert_eq!(one.try_receive(0, 5), Ok(Some(vec![5.0])));
    assert_eq!(one.try_receive(0, 5), Ok(None));
    assert_eq!(one.try_receive(0, 6), Ok(Some(vec![6.0])));
    assert_eq!(one.try_receive(1, 6), Ok(None));
}

#[test]
fn a_full_channel_holds_the_sender_and_says_so() {
    let ranks = InProcess::new(2, IMPATIENT);
    ranks[0].send(1, 3, vec![0.0]).unwrap();
    ranks[0].send(1, 3, vec![1.0]).unwrap();
    let error = ranks[0].send(1, 3, vec![2.0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "send of tag 3 to rank 1 timed out on rank 0 after 5ms, still waiting for rank 1"
    );
    // The other direction, and other receivers, have room of their own.
    ranks[1].send(0, 3, vec![3.0]).unwrap();
    ranks[0].send(0, 3, vec![4.0]).unwrap();
    assert_eq!(ranks[1].receive(0, 3), Ok(vec![0.0]));
    ranks[0].send(1, 3, vec![5.0]).unwrap();
    assert_eq!(ranks[1].receive(0, 3), Ok(vec![1.0]));
    assert_eq!(ranks[1].receive(0, 3), Ok(vec![5.0]));
}

#[test]
fn a_channel_of_two_passes_any_number_of_messages() {
    on_ranks(3, PATIENT, |endpoint| {
        let (next, previous) = ((endpoint.rank() + 1) % 3, (endpoint.rank() + 2) % 3);
        let count = if cfg!(miri) { 5 } else { 1000 };
        for index in 0..count {
            endpoint.send(next, 1, vec![index as f32]).unwrap();
            assert_eq!(endpoint.receive(previous, 1).unwrap(), [index as f32]);
        }
        assert_eq!(endpoint.counters().message_bytes, 4 * count);
    });
}

struct Described(u64);

impl Payload for Described {
    fn bytes(&self) -> u64 {
        self.0
    }
}

#[test]
fn counters_are_exact_and_leave_out_what_failed_and_what_stays_at_home() {
    let ranks = InProcess::new(3, IMPATIENT);
    ranks[0].send(1, 0, Described(10)).unwrap();
    ranks[0].send(2, 0, Described(7)).unwrap();
    ranks[0].send(0, 0, Described(1000)).unwrap();
    ranks[0].send(1, 0, Described(5)).unwrap();
    assert!(ranks[0].send(1, 0, Described(100)).is_err());
    let expected = Counters { messages: 4, message_bytes: 22, ..Counters::default() };
    assert_eq!(ranks[0].counters(), expected);
    assert_eq!(ranks[1].counters(), Counters::default());
}

#[test]
fn ranks_that_do_not_exist_are_refused() {
    let ranks = InProcess::<Vec<f32>>::new(2, PATIENT);
    let error = FabricError::NoSuchRank { rank: 2, ranks: 2 };
    assert_eq!(ranks[0].send(2, 0, vec![]), Err(error.clone()));
    assert_eq!(ranks[0].receive(2, 0), Err(error.clone()));
    assert_eq!(ranks[0].try_receive(2, 0), Err(error));
}

#[test]
fn who_waits_before_a_send_goes_on_when_nudged() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static ROOM: AtomicBool = AtomicBool::new(false);
    on_ranks(2, PATIENT, |endpoint| {
        if endpoint.rank() == 0 {
            let room = || ROOM.load(Ordering::Relaxed).then_some("room");
            assert_eq!(endpoint.wait_before_send(1, 0, room), Ok("room"));
            endpoint.send(1, 0, vec![1.0]).unwrap();
        } else {
            ROOM.store(true, Ordering::Relaxed);
            endpoint.nudge(0).unwrap();
            assert_eq!(endpoint.receive(0, 0).unwrap(), [1.0]);
        }
    });
}

#[test]
fn who_waits_before_a_send_hears_that_the_receiver_is_gone_or_late() {
    let ranks = InProcess::<Vec<f32>>::new(2, IMPATIENT);
    let error = ranks[0].wait_before_send(1, 3, || None::<()>).unwrap_err();
    assert!(matches!(error, FabricError::Timeout { .. }), "{error}");
    ranks[1].fail("out of order");
    let error = ranks[0].wait_before_send(1, 3, || None::<()>).unwrap_err();
    assert!(matches!(error, FabricError::PeerGone { .. }), "{error}");
    // What is there already needs nobody.
    assert_eq!(ranks[0].wait_before_send(1, 3, || Some(7)), Ok(7));
}

#[test]
fn receiving_from_any_takes_what_is_there_first_in_the_list_and_waits_for_the_rest() {
    on_ranks(4, PATIENT, |endpoint| {
        let rank = endpoint.rank();
        if rank > 0 {
            endpoint.send(0, 7, vec![rank as f32]).unwrap();
            endpoint.send(0, 8, vec![10.0 * rank as f32]).unwrap();
            return;
        }
        let mut from = vec![(3, 8), (1, 8), (2, 8)];
        let mut received = vec![];
        while !from.is_empty() {
            let (place, message) = endpoint.receive_any(&from).unwrap();
            let (sender, _) = from.remove(place);
            assert_eq!(message, [10.0 * sender as f32]);
            received.push(sender);
        }
        received.sort_unstable();
        assert_eq!(received, [1, 2, 3]);
        let (place, message) = endpoint.receive_any(&[(2, 9), (3, 7), (1, 7)]).unwrap();
        assert_eq!((place, message), (1, vec![3.0]));
    });
}

#[test]
fn receiving_from_any_fails_once_a_peer_is_gone_and_nothing_is_there() {
    let [zero, one, two] = &InProcess::new(3, IMPATIENT)[..] else { unreachable!("three") };
    two.send(0, 1, vec![2.0]).unwrap();
    one.fail("it broke");
    assert_eq!(zero.receive_any(&[(1, 1), (2, 1)]), Ok((1, vec![2.0])));
    let error = zero.receive_any(&[(1, 1), (2, 1)]).unwrap_err().to_string();
    assert!(error.contains("it broke"), "{error}");
    let error = zero.receive_any(&[(2, 1)]).unwrap_err().to_string();
    assert!(error.contains("timed out"), "{error}");
    assert!(matches!(zero.receive_any(&[(9, 1)]), Err(FabricError::NoSuchRank { .. })));
}
