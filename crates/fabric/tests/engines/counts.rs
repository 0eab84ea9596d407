use shardloom_collectives::{Counts, Member, Reduction, all_to_all_v};
use shardloom_fabric::{Collective, Contents, FabricError, Format, View, ViewMut};

use crate::ranks::{Members, PATIENT, Tested, as_reals, on_ranks, reals};

/// How many elements go from one member to another.
type Table = [[usize; 3]; 3];

fn column(table: &Table, to: usize) -> [usize; 3] {
    table.map(|row| row[to])
}

/// The n-th element that goes from one member to another.
fn element(from: usize, to: usize, n: usize) -> f32 {
    (100 * from + 10 * to + n) as f32
}

/// Exchanges by a table: what this member has afterwards, of what it received.
fn exchange(group: &mut Members, table: &Table) -> Vec<f32> {
    let own = group.position() as usize;
    let (sent, received) = (table[own], column(table, own));
    let parts = sent.iter().enumerate();
    let mut buffer: Vec<f32> =
        parts.flat_map(|(to, &count)| (0..count).map(move |n| element(own, to, n))).collect();
    let arriving: usize = received.iter().sum();
    buffer.resize(buffer.len().max(arriving), -1.0);
    let counts = Collective::AllToAllV { sent: &sent, received: &received };
    let (after, outcome) = group.run(counts, reals(&buffer));
    outcome.unwrap();
    as_reals(after.view())[..arriving].to_vec()
}

fn expected(own: usize, table: &Table) -> Vec<f32> {
    let parts = column(table, own).into_iter().enumerate();
    parts.flat_map(|(from, count)| (0..count).map(move |n| element(from, own, n))).collect()
}

pub fn every_part_arrives_whatever_the_counts(engine: &Tested) {
    let tables: [Table; 5] = [
        [[1, 2, 3], [4, 0, 2], [0, 0, 5]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 7, 0], [0, 0, 7], [7, 0, 0]],
        [[3, 0, 0], [0, 1, 0], [0, 0, 2]],
        [[2, 2, 2], [2, 2, 2], [2, 2, 2]],
    ];
    for table in tables {
        on_ranks(engine, 3, PATIENT, |mut endpoint| {
            let mut world = endpoint.group(&[2, 0, 1]).unwrap();
            let own = world.position() as usize;
            assert_eq!(exchange(&mut *world, &table), expected(own, &table));
            let sent: usize = (0..3).filter(|&to| to != own).map(|to| table[own][to]).sum();
            assert_eq!(endpoint.counters().collective_bytes, 4 * sent as u64);
            assert_eq!(endpoint.counters().collectives, 1);
        });
    }
}

pub fn parts_arrive_where_the_step_list_puts_them_and_send_its_bytes(engine: &Tested) {
    for (members, seed) in [(1, 3), (2, 5), (3, 7), (4, 11), (4, 12)] {
        let counts = Counts::new(members, |from, to| {
            // Some members send nothing, some receive nothing.
            ((from.0 * 7 + to.0 * 5 + seed) % 4 * (to.0 + seed) % 3) as usize
        });
        let of = |own: Member| -> [Vec<usize>; 2] {
            [counts.sends(own).collect(), counts.receives(own).collect()]
        };
        let list = all_to_all_v(&counts);
        let brought = |own: u32, room: usize| -> Vec<f32> {
            let sent: usize = counts.sends(Member(own)).sum();
            let mut buffer: Vec<f32> = (0..sent).map(|n| (own as usize * 100 + n) as f32).collect();
            buffer.resize(room, -1.0);
            buffer
        };
        let mut listed: Vec<Vec<f32>> =
            (0..members).map(|own| brought(own, list.elements)).collect();
        list.apply(&mut listed, Reduction::Sum).unwrap();
        on_ranks(engine, members, PATIENT, |mut endpoint| {
            let mut world = endpoint.group(&(0..members).collect::<Vec<_>>()).unwrap();
            let own = Member(endpoint.rank());
            let [sent, received] = of(own);
            let [leaving, arriving] = [&sent, &received].map(|each| each.iter().sum::<usize>());
            let each = Collective::AllToAllV { sent: &sent, received: &received };
            let buffer = brought(own.0, leaving.max(arriving));
            let (after, outcome) = world.run(each, reals(&buffer));
            outcome.unwrap();
            let expected = &listed[own.0 as usize][leaving..leaving + arriving];
            assert_eq!(as_reals(after.view())[..arriving], *expected);
            let bytes = 4 * list.sent_elements(own) as u64;
            assert_eq!(endpoint.counters().collective_bytes, bytes);
        });
    }
}

pub fn counts_may_change_from_call_to_call(engine: &Tested) {
    let repeats = if cfg!(miri) { 3 } else { 100 };
    on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let mut world = endpoint.group(&[0, 1, 2]).unwrap();
        for repeat in 0..repeats {
            let table: Table =
                [0, 1, 2].map(|from| [0, 1, 2].map(|to| (repeat * (from + 2 * to) + from) % 7));
            let own = endpoint.rank() as usize;
            assert_eq!(exchange(&mut *world, &table), expected(own, &table));
            // Words are exchanged by the same group, and bytes.
            let mut bytes = Contents::zeroed(Format::U8, 3);
            let ViewMut::U8(values) = bytes.view_mut() else { unreachable!("they are bytes") };
            values.copy_from_slice(&[0, 1, 2].map(|to| (10 * own + to) as u8));
            let each = Collective::AllToAllV { sent: &[1; 3], received: &[1; 3] };
            let (after, outcome) = world.run(each, bytes);
            outcome.unwrap();
            assert_eq!(after.view(), View::U8(&[own as u8, 10 + own as u8, 20 + own as u8]));
        }
    });
}

pub fn counts_that_differ_break_the_group_on_all_members(engine: &Tested) {
    // More is expected than comes, or less, or nothing.
    for expected in [3, 1, 0] {
        differing(engine, expected);
    }
}

fn differing(engine: &Tested, expected: usize) {
    let errors = on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&[0, 1]).unwrap();
        let received = [2, if endpoint.rank() == 0 { expected } else { 2 }];
        let counts = Collective::AllToAllV { sent: &[2, 2], received: &received };
        let (_, outcome) = group.run(counts, reals(&[0.0; 8]));
        // Rank 1 may have got all that it expects.
        let later = group.barrier().unwrap_err();
        assert!(outcome.is_ok() || outcome == Err(later.clone()), "{outcome:?}");
        later
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(
        errors[0].to_string(),
        format!(
            "all-to-all with counts in group [0, 1] on rank 0: rank 1 sends 2 elements where {expected} are expected"
        )
    );
}

pub fn counts_that_do_not_fit_are_refused_with_their_numbers(engine: &Tested) {
    let refusal = |sent: &[usize], received: &[usize]| {
        let refused = on_ranks(engine, 1, PATIENT, |mut endpoint| {
            let mut group = endpoint.group(&[0]).unwrap();
            let counts = Collective::AllToAllV { sent, received };
            let (lent, outcome) = group.run(counts, reals(&[1.0, 2.0]));
            assert_eq!(as_reals(lent.view()), [1.0, 2.0]);
            outcome.unwrap_err()
        });
        let FabricError::Counts { rank: 0, reason, .. } = &refused[0] else {
            panic!("{}", refused[0]);
        };
        reason.clone()
    };
    assert_eq!(refusal(&[1, 1], &[2]), "2 and 1 counts for 1 members");
    assert_eq!(refusal(&[1], &[0, 1]), "1 and 2 counts for 1 members");
    assert_eq!(refusal(&[], &[1]), "0 and 1 counts for 1 members");
    assert_eq!(refusal(&[3], &[1]), "3 elements to send and 1 to receive in 2");
    assert_eq!(refusal(&[1], &[3]), "1 elements to send and 3 to receive in 2");
    assert_eq!(refusal(&[3], &[3]), "3 elements to send and 3 to receive in 2");
}
