use std::sync::atomic::{AtomicU32, Ordering};

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::FabricError;

use crate::ranks::{Members, PATIENT, Tested, collective, on_ranks, pool, receive, send};

const REPEATS: u32 = if cfg!(miri) { 3 } else { 200 };

fn sum(group: &mut Members, value: u32, algorithm: Algorithm) -> u32 {
    let mut buffer = [value as f32; 5];
    collective(group, Kind::AllReduce, algorithm, Reduction::Sum, &mut buffer).unwrap();
    assert_eq!(buffer, [buffer[0]; 5]);
    buffer[0] as u32
}

pub fn disjoint_groups_work_at_once(engine: &Tested) {
    on_ranks(engine, 5, PATIENT, |mut endpoint| {
        let members: &[u32] = if endpoint.rank() < 2 { &[1, 0] } else { &[2, 3, 4] };
        let mut group = endpoint.group(members).unwrap();
        assert_eq!(endpoint.ranks(), 5);
        assert_eq!(group.members(), members);
        assert_eq!(members[group.position() as usize], endpoint.rank());
        for repeat in 0..REPEATS {
            let expected = if endpoint.rank() < 2 { 1 + 2 * repeat } else { 9 + 3 * repeat };
            for algorithm in [Algorithm::Direct, Algorithm::Ring] {
                assert_eq!(sum(&mut *group, endpoint.rank() + repeat, algorithm), expected);
            }
        }
    });
}

pub fn subgroups_and_world_interleave(engine: &Tested) {
    on_ranks(engine, 4, PATIENT, |mut endpoint| {
        let rank = endpoint.rank();
        let mut row = endpoint.group(if rank < 2 { &[0, 1] } else { &[2, 3] }).unwrap();
        let mut world = endpoint.group(&[0, 1, 2, 3]).unwrap();
        let mut column = endpoint.group(&[rank % 2, rank % 2 + 2]).unwrap();
        for repeat in 0..REPEATS {
            let algorithm = if repeat % 2 == 0 { Algorithm::Direct } else { Algorithm::Ring };
            assert_eq!(sum(&mut *row, rank, algorithm), if rank < 2 { 1 } else { 5 });
            assert_eq!(sum(&mut *world, rank + repeat, algorithm), 6 + 4 * repeat);
            assert_eq!(sum(&mut *column, rank, algorithm), 2 * (rank % 2) + 2);
        }
    });
}

pub fn the_uses_of_one_list_are_matched_in_order_and_kept_apart(engine: &Tested) {
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let mut first = endpoint.group(&[0, 1]).unwrap();
        let mut second = endpoint.group(&[0, 1]).unwrap();
        // Were they one group, rank 0's first call would meet rank 1's second.
        if endpoint.rank() == 0 {
            let one = pool(&mut endpoint, 1, 1);
            send(&mut endpoint, one, 0, 0.0).unwrap();
            assert_eq!(sum(&mut *first, 1, Algorithm::Direct), 11);
            assert_eq!(sum(&mut *second, 2, Algorithm::Ring), 22);
        } else {
            receive(&mut endpoint, 0, 0).unwrap();
            assert_eq!(sum(&mut *first, 10, Algorithm::Direct), 11);
            assert_eq!(sum(&mut *second, 20, Algorithm::Ring), 22);
        }
        first.barrier().unwrap();
        let mut third = endpoint.group(&[0, 1]).unwrap();
        assert_eq!(sum(&mut *third, 3, Algorithm::Direct), 6);
    });
}

pub fn a_group_may_run_on_another_thread_than_its_endpoint(engine: &Tested) {
    on_ranks(engine, 2, PATIENT, |mut endpoint| {
        let mut group = endpoint.group(&[0, 1]).unwrap();
        let other = 1 - endpoint.rank();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(sum(&mut *group, 4, Algorithm::Direct), 8));
            let one = pool(&mut endpoint, other, 1);
            send(&mut endpoint, one, 1, 1.0).unwrap();
            assert_eq!(receive(&mut endpoint, other, 1), Ok(1.0));
        });
    });
}

pub fn nobody_passes_a_barrier_before_everybody_came(engine: &Tested) {
    let came = AtomicU32::new(0);
    on_ranks(engine, 4, PATIENT, |mut endpoint| {
        let mut world = endpoint.group(&[0, 1, 2, 3]).unwrap();
        for repeat in 1..=REPEATS {
            came.fetch_add(1, Ordering::Relaxed);
            world.barrier().unwrap();
            assert!(came.load(Ordering::Relaxed) >= 4 * repeat);
        }
        let counters = endpoint.counters();
        let found = (counters.collectives, counters.collective_bytes, counters.messages);
        assert_eq!(found, (u64::from(REPEATS), 0, 0), "a barrier sends nothing that counts");
    });
}

pub fn impossible_member_lists_are_refused_with_the_reason(engine: &Tested) {
    let refused = on_ranks(engine, 3, PATIENT, |mut endpoint| {
        let rank_is_one = endpoint.rank() == 1;
        let mut refused = |members: &[u32]| {
            endpoint.group(members).err().expect("members that no group can have")
        };
        rank_is_one.then(|| [refused(&[]), refused(&[0, 2]), refused(&[0, 1, 0]), refused(&[1, 3])])
    });
    let errors = refused[1].as_ref().unwrap();
    assert_eq!(errors[0], FabricError::NotAMember { members: vec![], rank: 1 });
    assert_eq!(errors[1].to_string(), "rank 1 cannot build group [0, 2]: only members can");
    assert_eq!(
        errors[2].to_string(),
        "group [0, 1, 0] lists rank 0 more than once; members must be distinct"
    );
    assert_eq!(errors[3].to_string(), "there is no rank 3: ranks are below 3");
}
