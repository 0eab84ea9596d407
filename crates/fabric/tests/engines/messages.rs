use shardloom_fabric::{Counters, FabricError, Format, Pool, View, ViewMut};

use crate::ranks::{
    IMPATIENT, PATIENT, Tested, connect, number, on_ranks, pool, receive, send, write,
};

pub fn messages_of_a_tag_stay_in_order_and_others_wait_until_asked_for(engine: &Tested) {
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        if endpoint.rank() == 0 {
            let pool = pool(&mut endpoint, 1, 100);
            for index in 0..100 {
                send(&mut endpoint, pool, index % 2, index as f32).unwrap();
            }
        } else {
            for tag in [1, 0] {
                for index in (tag..100).step_by(2) {
                    assert_eq!(receive(&mut endpoint, 0, tag), Ok(index as f32));
                }
            }
        }
    });
}

pub fn messages_of_every_format_arrive_as_they_were_sent(engine: &Tested) {
    let sent: [View<'_>; 6] = [
        View::F32(&[1.5, -0.0, f32::INFINITY]),
        View::F64(&[0.1, 1e300, -2.5]),
        View::Bf16(&[0x3f80, 0x8000, 0xffff]),
        View::F16(&[0x3c00, 1, 0x7bff]),
        View::U32(&[7, 0, u32::MAX]),
        View::U8(&[0, 255, 1]),
    ];
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        if endpoint.rank() == 0 {
            for view in sent {
                let format = view.format();
                let pool = Pool { to: 1, format, elements: 3, ready: 1, most: 1, priority: None };
                let pool = endpoint.pool(pool).unwrap();
                let mut message = endpoint.message(pool, 0).unwrap();
                assert_eq!((message.from(), message.to(), message.tag()), (0, 1, 0));
                assert_eq!(message.bytes(), 3 * format.bytes() as u64);
                match (message.view_mut(), view) {
                    (ViewMut::F32(to), View::F32(from)) => to.copy_from_slice(from),
                    (ViewMut::F64(to), View::F64(from)) => to.copy_from_slice(from),
                    (ViewMut::Bf16(to), View::Bf16(from)) => to.copy_from_slice(from),
                    (ViewMut::F16(to), View::F16(from)) => to.copy_from_slice(from),
                    (ViewMut::U32(to), View::U32(from)) => to.copy_from_slice(from),
                    (ViewMut::U8(to), View::U8(from)) => to.copy_from_slice(from),
                    (to, from) => panic!("{to:?} for {from:?}"),
                }
                endpoint.send(message).unwrap();
            }
        } else {
            for view in sent {
                let message = endpoint.receive(0, 0).unwrap();
                assert_eq!((message.from(), message.to(), message.tag()), (0, 1, 0));
                assert_eq!(message.view(), view);
            }
        }
    });
}

/// One buffer goes to and fro, with as much in it as each message has.
pub fn a_message_may_have_less_than_there_is_room_for(engine: &Tested) {
    let lengths = [3, 0, 5, 1, 5];
    let bytes = lengths.iter().sum::<usize>() as u64 * 4;
    let counters = on_ranks(engine, 2, PATIENT, |mut endpoint| {
        if endpoint.rank() == 0 {
            let room =
                Pool { to: 1, format: Format::U32, elements: 5, ready: 1, most: 1, priority: None };
            let room = endpoint.pool(room).unwrap();
            for length in lengths {
                let mut message = endpoint.message(room, 0).unwrap();
                assert_eq!(message.view().elements(), 5);
                message.shorten(length);
                assert_eq!(message.bytes(), 4 * length as u64);
                if let ViewMut::U32(to) = message.view_mut() {
                    (0..).zip(to).for_each(|(number, to)| *to = number);
                }
                endpoint.send(message).unwrap();
            }
        } else {
            for length in lengths {
                let message = endpoint.receive(0, 0).unwrap();
                assert_eq!(message.view(), View::U32(&[0, 1, 2, 3, 4][..length]));
            }
        }
        endpoint.counters()
    });
    assert_eq!(counters[0].message_bytes, bytes);
}

pub fn a_message_is_moved_and_not_copied(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, PATIENT)[..] else { unreachable!("two ranks") };
    let pool = pool(zero, 1, 1);
    let address = |view: View<'_>| match view {
        View::F32(values) => values.as_ptr().addr(),
        other => panic!("{other:?}"),
    };
    let message = zero.message(pool, 0).unwrap();
    let written = address(message.view());
    zero.send(message).unwrap();
    assert_eq!(address(one.receive(0, 0).unwrap().view()), written);
}

pub fn try_receive_finds_what_is_there_and_nothing_else(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, PATIENT)[..] else { unreachable!("two ranks") };
    let pool = pool(zero, 1, 2);
    let mut try_receive =
        |from, tag| one.try_receive(from, tag).map(|found| found.map(|message| number(&message)));
    assert_eq!(try_receive(0, 5), Ok(None));
    send(zero, pool, 6, 6.0).unwrap();
    assert_eq!(try_receive(0, 5), Ok(None));
    send(zero, pool, 5, 5.0).unwrap();
    assert_eq!(try_receive(0, 5), Ok(Some(5.0)));
    assert_eq!(try_receive(0, 5), Ok(None));
    assert_eq!(try_receive(0, 6), Ok(Some(6.0)));
    assert_eq!(try_receive(1, 6), Ok(None));
}

pub fn a_sender_without_a_free_buffer_waits_and_says_so(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, IMPATIENT)[..] else { unreachable!("two ranks") };
    let to_one = pool(zero, 1, 2);
    send(zero, to_one, 3, 0.0).unwrap();
    send(zero, to_one, 3, 1.0).unwrap();
    assert!(zero.try_message(to_one, 3).is_none());
    let error = send(zero, to_one, 3, 2.0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "send of tag 3 to rank 1 timed out on rank 0 after 5ms, still waiting for rank 1"
    );
    // The other direction, and other receivers, have buffers of their own.
    let (to_zero, to_itself) = (pool(one, 0, 1), pool(zero, 0, 1));
    send(one, to_zero, 3, 3.0).unwrap();
    send(zero, to_itself, 3, 4.0).unwrap();
    assert_eq!(receive(one, 0, 3), Ok(0.0));
    send(zero, to_one, 3, 5.0).unwrap();
    assert_eq!(receive(one, 0, 3), Ok(1.0));
    assert_eq!(receive(one, 0, 3), Ok(5.0));
}

pub fn two_buffers_pass_any_number_of_messages(engine: &Tested) {
    on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let (next, previous) = ((endpoint.rank() + 1) % 3, (endpoint.rank() + 2) % 3);
        let count = if cfg!(miri) { 5 } else { 1000 };
        let pool = pool(&mut endpoint, next, 2);
        for index in 0..count {
            send(&mut endpoint, pool, 1, index as f32).unwrap();
            assert_eq!(receive(&mut endpoint, previous, 1), Ok(index as f32));
        }
        assert_eq!(endpoint.counters().message_bytes, 4 * count);
        assert_eq!(endpoint.counters().late_buffers, 0);
    });
}

pub fn a_pool_makes_more_buffers_up_to_its_most(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, IMPATIENT)[..] else { unreachable!("two ranks") };
    let pool = zero
        .pool(Pool { to: 1, format: Format::F32, elements: 1, ready: 1, most: 3, priority: None })
        .unwrap();
    for value in [0.0, 1.0, 2.0] {
        send(zero, pool, 0, value).unwrap();
    }
    assert!(zero.try_message(pool, 0).is_none());
    for value in [0.0, 1.0, 2.0] {
        assert_eq!(receive(one, 0, 0), Ok(value));
    }
    let made = zero.counters().late_buffers;
    assert!(made <= 2, "{made}");
    send(zero, pool, 0, 3.0).unwrap();
    assert_eq!(zero.counters().late_buffers, made);
    let few = zero
        .pool(Pool { to: 1, format: Format::F32, elements: 1, ready: 3, most: 1, priority: None })
        .unwrap();
    let _held = zero.try_message(few, 1).expect("one");
    assert!(zero.try_message(few, 1).is_none());
}

/// Where a message is its sender's buffer, there are as many of these as messages that nobody has received.
pub fn buffers_that_are_under_way_are_made_anew(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, IMPATIENT)[..] else { unreachable!("two ranks") };
    let pool = zero
        .pool(Pool { to: 1, format: Format::F32, elements: 1, ready: 1, most: 3, priority: None })
        .unwrap();
    for (made, value) in [0.0, 1.0, 2.0].into_iter().enumerate() {
        send(zero, pool, 0, value).unwrap();
        assert_eq!(zero.counters().late_buffers, made as u64);
    }
    assert_eq!(receive(one, 0, 0), Ok(0.0));
    send(zero, pool, 0, 3.0).unwrap();
    assert_eq!(zero.counters().late_buffers, 2);
}

pub fn counters_are_exact_and_leave_out_what_failed_and_what_a_rank_sends_to_itself(
    engine: &Tested,
) {
    let mut ranks = connect(engine, 3, IMPATIENT);
    let mut pools = vec![];
    for (to, elements) in [(1, 10), (2, 7), (0, 1000), (1, 5), (2, 100)] {
        let pool = Pool { to, format: Format::U8, elements, ready: 1, most: 1, priority: None };
        pools.push(ranks[0].pool(pool).unwrap());
    }
    for &pool in &pools[..4] {
        let message = ranks[0].message(pool, 0).unwrap();
        ranks[0].send(message).unwrap();
    }
    drop(ranks.pop());
    let message = ranks[0].message(pools[4], 0).unwrap();
    assert!(ranks[0].send(message).is_err());
    // What waits for a rank that is gone waits for ever; the last one came back.
    let expected = Counters {
        messages: 4,
        message_bytes: 22,
        peak_under_way_bytes: 1122,
        ..Counters::default()
    };
    assert_eq!(ranks[0].counters(), expected);
    assert_eq!(ranks[1].counters(), Counters::default());
    // The most at once was before this one was received.
    drop(ranks[1].receive(0, 0).unwrap());
    let message = ranks[0].message(pools[0], 0).unwrap();
    assert_eq!(ranks[0].counters().peak_under_way_bytes, 1122);
    drop(message);
}

pub fn ranks_that_do_not_exist_are_refused(engine: &Tested) {
    let mut ranks = connect(engine, 2, PATIENT);
    let error = FabricError::NoSuchRank { rank: 2, ranks: 2 };
    let pool = Pool { to: 2, format: Format::F32, elements: 1, ready: 1, most: 1, priority: None };
    assert_eq!(ranks[0].pool(pool), Err(error.clone()));
    assert_eq!(receive(&mut ranks[0], 2, 0), Err(error.clone()));
    assert_eq!(ranks[0].try_receive(2, 0).unwrap_err(), error);
    assert_eq!(ranks[0].receive_any(&[(1, 0), (2, 0)]).unwrap_err(), error);
}

pub fn who_waits_for_a_buffer_hears_that_the_receiver_is_gone_or_late(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, IMPATIENT)[..] else { unreachable!("two ranks") };
    let pool = pool(zero, 1, 1);
    send(zero, pool, 3, 0.0).unwrap();
    let error = zero.message(pool, 3).unwrap_err();
    assert!(matches!(error, FabricError::Timeout { .. }), "{error}");
    one.fail("out of order");
    let error = zero.message(pool, 3).unwrap_err();
    assert_eq!(
        error.to_string(),
        "send of tag 3 to rank 1 on rank 0 cannot finish: rank 1 is gone (out of order)"
    );
}

pub fn a_free_buffer_needs_nobody(engine: &Tested) {
    let [zero, one] = &mut connect(engine, 2, PATIENT)[..] else { unreachable!("two ranks") };
    let pool = pool(zero, 1, 1);
    one.fail("out of order");
    let mut message = zero.message(pool, 3).unwrap();
    write(&mut message, 7.0);
    let error = zero.send(message).unwrap_err();
    assert!(matches!(error, FabricError::PeerGone { peer: 1, .. }), "{error}");
    // What could not be sent has given its buffer back.
    assert!(zero.try_message(pool, 3).is_some());
}

pub fn any_sender_is_received_from_and_named(engine: &Tested) {
    on_ranks(engine, 4, PATIENT, |mut endpoint| {
        let rank = endpoint.rank();
        // Who has left will send no more.
        let mut everyone = endpoint.group(&[0, 1, 2, 3]).unwrap();
        if rank > 0 {
            let pool = pool(&mut endpoint, 0, 5);
            for value in 0..5 {
                send(&mut endpoint, pool, 1, (10 * rank + value) as f32).unwrap();
                send(&mut endpoint, pool, 2, 0.0).unwrap();
            }
            everyone.barrier().unwrap();
            return;
        }
        let mut next = [0.0; 3];
        for _ in 0..15 {
            let message = endpoint.receive_any(&[(3, 1), (1, 1), (2, 1)]).unwrap();
            // Each sender's are in order.
            let of_sender = &mut next[message.from() as usize - 1];
            assert_eq!(number(&message), 10.0 * message.from() as f32 + *of_sender);
            *of_sender += 1.0;
            drop(message);
            drop(endpoint.receive_any(&[(3, 2), (1, 2), (2, 2)]).unwrap());
        }
        assert_eq!(next, [5.0; 3]);
        everyone.barrier().unwrap();
    });
}

pub fn no_sender_is_kept_waiting_by_another(engine: &Tested) {
    let [zero, one, two] = &mut connect(engine, 3, PATIENT)[..] else { unreachable!("three") };
    for sender in [&mut *one, two] {
        let pool = pool(sender, 0, 3);
        for _ in 0..3 {
            send(sender, pool, 0, 0.0).unwrap();
        }
    }
    let mut served = vec![];
    for _ in 0..6 {
        served.push(zero.receive_any(&[(1, 0), (2, 0)]).unwrap().from());
    }
    assert_eq!(served, [1, 2, 1, 2, 1, 2]);
}

pub fn a_receive_from_any_names_all_it_waited_for_and_who_is_gone(engine: &Tested) {
    let [zero, one, two] = &mut connect(engine, 3, IMPATIENT)[..] else { unreachable!("three") };
    let error = zero.receive_any(&[(1, 8), (2, 8)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "receive of any of tag 8 from rank 1, tag 8 from rank 2 timed out on rank 0 after 5ms, still \
         waiting for rank 1, 2"
    );
    let (from_one, from_two) = (pool(one, 0, 1), pool(two, 0, 1));
    send(one, from_one, 8, 1.0).unwrap();
    two.fail("out of order");
    // What is there comes before what will not come.
    assert_eq!(number(&zero.receive_any(&[(1, 8), (2, 8)]).unwrap()), 1.0);
    let error = zero.receive_any(&[(1, 8), (2, 8)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "receive of any of tag 8 from rank 1, tag 8 from rank 2 on rank 0 cannot finish: rank 2 is gone \
         (out of order)"
    );
    send(two, from_two, 8, 2.0).unwrap();
    assert_eq!(number(&zero.receive_any(&[(1, 8), (2, 8)]).unwrap()), 2.0);
}

pub fn each_rank_is_asked_for_the_tag_that_stands_beside_it(engine: &Tested) {
    let [zero, one, two] = &mut connect(engine, 3, IMPATIENT)[..] else { unreachable!("three") };
    let (from_one, from_two) = (pool(one, 0, 2), pool(two, 0, 2));
    for (tag, value) in [(7, 1.0), (8, 10.0)] {
        send(one, from_one, tag, value).unwrap();
        send(two, from_two, tag, 2.0 * value).unwrap();
    }
    let mut received = vec![];
    for from in [[(1, 8), (2, 9)], [(1, 9), (2, 8)], [(1, 7), (2, 9)]] {
        let message = zero.receive_any(&from).unwrap();
        received.push((message.from(), message.tag(), number(&message)));
    }
    assert_eq!(received, [(1, 8, 10.0), (2, 8, 20.0), (1, 7, 1.0)]);
    // What is left has another tag than any that is asked for.
    let error = zero.receive_any(&[(1, 9), (2, 9)]).unwrap_err();
    assert!(matches!(error, FabricError::Timeout { .. }), "{error}");
    let message = zero.receive_any(&[(1, 9), (2, 7)]).unwrap();
    assert_eq!((message.from(), message.tag(), number(&message)), (2, 7, 2.0));
}
