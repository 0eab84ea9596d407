use shardloom_fabric::{Contents, FabricError, Format, Operation, View, ViewMut, Window};

use crate::ranks::{IMPATIENT, PATIENT, Rank, Tested, as_reals, connect, on_ranks, reals};

const WORDS: usize = 300;

/// Room for a publication: parts of two formats and sizes.
fn parts() -> Vec<Contents> {
    vec![reals(&[0.0; 7]), Contents::zeroed(Format::Bf16, WORDS)]
}

/// Publishes what only this number has.
fn publish(window: &mut dyn Window<Contents>, number: u64) {
    let mut fill = |parts: &mut [Contents]| {
        for part in parts {
            match part.view_mut() {
                ViewMut::F32(reals) => reals.fill(number as f32),
                ViewMut::Bf16(words) => words.fill(number as u16),
                other => panic!("{other:?}"),
            }
        }
    };
    window.publish(number, &mut fill).unwrap();
}

/// Fetches a publication, which is all of one.
fn fetch(window: &mut dyn Window<Contents>, from: u32, least: u64) -> u64 {
    let mut into = parts();
    let number = window.fetch(from, least, &mut into).unwrap();
    assert!(number >= least, "{number} for {least}");
    assert_eq!(as_reals(into[0].view()), [number as f32; 7]);
    assert_eq!(into[1].view(), View::Bf16(&[number as u16; WORDS]));
    number
}

fn own(rank: &mut Rank) -> Box<dyn Window<Contents>> {
    rank.window(parts())
}

pub fn who_fetches_finds_one_publication_whole_and_none_older_than_asked_for(engine: &Tested) {
    const LAST: u64 = 200;
    on_ranks(engine, 4, PATIENT, |mut rank| {
        let mut window = own(&mut rank);
        let mut world = rank.group(&[0, 1, 2, 3]).unwrap();
        if rank.rank() == 2 {
            (1..=LAST).for_each(|number| publish(&mut *window, number));
        } else {
            let mut number = 0;
            while number < LAST {
                let next = fetch(&mut *window, 2, number + 1);
                assert!(next > number);
                number = next;
            }
            // It stays there.
            assert_eq!(fetch(&mut *window, 2, 1), LAST);
        }
        world.barrier().unwrap();
    });
}

pub fn ranks_that_fetch_from_each_other_hold_nobody_up(engine: &Tested) {
    on_ranks(engine, 4, PATIENT, |mut rank| {
        let mut window = own(&mut rank);
        let mut world = rank.group(&[0, 1, 2, 3]).unwrap();
        let own = rank.rank();
        for step in 1..=50 {
            publish(&mut *window, step);
            let other = (own + 1 + step as u32 % 3) % 4;
            fetch(&mut *window, other, 1);
            // And from itself what it has just published.
            assert_eq!(fetch(&mut *window, own, 1), step);
        }
        world.barrier().unwrap();
    });
}

pub fn what_is_fetched_counts_for_who_fetches(engine: &Tested) {
    let bytes = 7 * 4 + 2 * WORDS as u64;
    on_ranks(engine, 4, PATIENT, |mut rank| {
        let mut window = own(&mut rank);
        let mut world = rank.group(&[0, 1, 2, 3]).unwrap();
        publish(&mut *window, 1);
        // As often as its number, and from itself for nothing.
        (0..rank.rank()).for_each(|other| {
            fetch(&mut *window, other, 1);
        });
        fetch(&mut *window, rank.rank(), 1);
        world.barrier().unwrap();
        assert_eq!(rank.counters().message_bytes, u64::from(rank.rank()) * bytes);
    });
}

pub fn a_fetch_hears_that_the_other_is_gone_or_late_and_can_be_tried_again(engine: &Tested) {
    let mut ranks = connect(engine, 2, IMPATIENT);
    let mut windows: Vec<_> = ranks.iter_mut().map(own).collect();
    publish(&mut *windows[1], 3);
    assert_eq!(fetch(&mut *windows[0], 1, 1), 3);
    let late = windows[0].fetch(1, 4, &mut parts()).unwrap_err();
    let FabricError::Timeout { rank: 0, operation, waiting_for, .. } = late else {
        panic!("{late}");
    };
    assert_eq!(operation, Operation::Fetch { from: 1 });
    assert_eq!(operation.to_string(), "fetch of what rank 1 publishes");
    assert_eq!(waiting_for, [1]);
    // The answer to what was given up is not taken for that to what is asked next.
    publish(&mut *windows[1], 4);
    publish(&mut *windows[1], 5);
    assert_eq!(fetch(&mut *windows[0], 1, 5), 5);
    ranks[1].fail("out of memory");
    let gone = windows[0].fetch(1, 6, &mut parts()).unwrap_err();
    // Nor is what it had published before fetched any more.
    assert_eq!(windows[0].fetch(1, 5, &mut parts()).unwrap_err(), gone);
    let expected =
        "fetch of what rank 1 publishes on rank 0 cannot finish: rank 1 is gone (out of memory)";
    assert_eq!(gone.to_string(), expected);
    let nobody = windows[0].fetch(7, 1, &mut parts()).unwrap_err();
    assert_eq!(nobody, FabricError::NoSuchRank { rank: 7, ranks: 2 });
}

pub fn what_does_not_fit_is_refused_by_who_fetches(engine: &Tested) {
    let mut ranks = connect(engine, 2, PATIENT);
    let mut windows: Vec<_> = ranks.iter_mut().map(own).collect();
    publish(&mut *windows[1], 1);
    let fewer = windows[0].fetch(1, 1, &mut parts()[..1]).unwrap_err();
    let expected = "rank 0 cannot fetch what rank 1 publishes: 2 parts for room for 1";
    assert_eq!(fewer.to_string(), expected);
    let mut larger = parts();
    larger.push(reals(&[0.0]));
    let more = windows[0].fetch(1, 1, &mut larger).unwrap_err();
    let expected = "rank 0 cannot fetch what rank 1 publishes: 2 parts for room for 3";
    assert_eq!(more.to_string(), expected);
    let mut smaller = parts();
    smaller[0] = reals(&[0.0; 6]);
    let smaller = windows[0].fetch(1, 1, &mut smaller).unwrap_err();
    let expected = "rank 0 cannot fetch what rank 1 publishes: 7 f32 for room for 6 f32";
    assert_eq!(smaller.to_string(), expected);
    let mut others = parts();
    others[1] = Contents::zeroed(Format::F16, WORDS);
    let others = windows[0].fetch(1, 1, &mut others).unwrap_err().to_string();
    assert!(others.ends_with("300 bf16 for room for 300 f16"), "{others}");
    assert_eq!(fetch(&mut *windows[0], 1, 1), 1);
}

pub fn who_publishes_waits_until_it_was_fetched_as_often_as_it_says(engine: &Tested) {
    on_ranks(engine, 4, PATIENT, |mut rank| {
        let mut window = own(&mut rank);
        let mut world = rank.group(&[0, 1, 2, 3]).unwrap();
        let others = u64::from(rank.ranks() - 1);
        assert_eq!(window.fetched(), 0);
        for number in 1..=20 {
            // Nobody is late, so each finds every publication.
            publish(&mut *window, number);
            for other in (0..4).filter(|&other| other != rank.rank()) {
                assert_eq!(fetch(&mut *window, other, number), number);
            }
            window.wait_until_fetched(others * number).unwrap();
            assert_eq!(window.fetched(), others * number);
        }
        world.barrier().unwrap();
    });
    let mut ranks = connect(engine, 2, IMPATIENT);
    let mut windows: Vec<_> = ranks.iter_mut().map(own).collect();
    publish(&mut *windows[0], 1);
    let late = windows[0].wait_until_fetched(1).unwrap_err();
    let FabricError::Timeout { rank: 0, operation, waiting_for, .. } = late else {
        panic!("{late}");
    };
    assert_eq!(operation.to_string(), "wait for 1 fetches of what it publishes");
    assert_eq!(waiting_for, [1]);
    ranks[1].fail("out of memory");
    let gone = windows[0].wait_until_fetched(1).unwrap_err().to_string();
    assert!(gone.contains("rank 1 is gone (out of memory)"), "{gone}");
}
