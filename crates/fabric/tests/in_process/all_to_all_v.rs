use shardloom_collectives::{Algorithm, Counts, Kind, Member, Reduction, all_to_all_v};
use shardloom_fabric::FabricError;

use crate::ranks::{PATIENT, on_ranks};

/// What a member has to send, numbers that occur nowhere else.
fn sent(counts: &Counts, from: u32) -> Vec<f32> {
    let elements: usize = counts.sends(Member(from)).sum();
    (0..elements).map(|at| (from as usize * 100 + at) as f32).collect()
}

#[test]
fn members_receive_what_the_step_list_says_and_send_its_bytes() {
    for (members, seed) in [(1, 3), (2, 5), (3, 7), (4, 11), (4, 12)] {
        let counts = Counts::new(members, |from, to| {
            // Some members send nothing, some receive nothing.
            ((from.0 * 7 + to.0 * 5 + seed) % 4 * (to.0 + seed) % 3) as usize
        });
        let list = all_to_all_v(&counts);
        let mut expected: Vec<Vec<f32>> = (0..members)
            .map(|from| {
                let mut buffer = sent(&counts, from);
                buffer.resize(list.elements, 0.0);
                buffer
            })
            .collect();
        list.apply(&mut expected, Reduction::Sum).expect("buffers of the list's size");
        let ran = on_ranks(members, PATIENT, |endpoint| {
            let own = Member(endpoint.rank());
            let mut world = endpoint.group(&(0..members).collect::<Vec<_>>())?;
            let [sends, receives]: [Vec<usize>; 2] =
                [counts.sends(own).collect(), counts.receives(own).collect()];
            let mut received = vec![f32::NAN; receives.iter().sum()];
            let send = sent(&counts, own.0);
            // Twice, as what is published for one meeting must not be met in the next.
            for _ in 0..2 {
                world.all_to_all_v(&send, &sends, &mut received, &receives)?;
            }
            Ok::<_, FabricError>((received, endpoint.counters()))
        });
        for (own, (ran, expected)) in (0..members).zip(ran.into_iter().zip(expected)) {
            let (received, counters) = ran.expect("all called alike");
            let first: usize = counts.sends(Member(own)).sum();
            assert_eq!(received, expected[first..first + received.len()]);
            assert_eq!(counters.collective_bytes, 8 * list.sent_elements(Member(own)) as u64);
            assert_eq!(counters.collectives, 2);
        }
    }
}

#[test]
fn a_member_that_expects_another_count_is_named_to_all_and_the_group_goes_on() {
    let ran = on_ranks(3, PATIENT, |endpoint| {
        let mut world = endpoint.group(&[0, 1, 2])?;
        let own = endpoint.rank() as usize;
        let send = [0.0; 3];
        let mut receives = [1; 3];
        // Rank 1 expects two elements from rank 2.
        receives[2] += usize::from(own == 1);
        let mut received = vec![f32::NAN; receives.iter().sum()];
        let failed = world.all_to_all_v(&send, &[1; 3], &mut received, &receives);
        assert!(received.iter().all(|it| it.is_nan()), "it is untouched");
        world.barrier()?;
        Ok::<_, FabricError>(failed.expect_err("counts differ"))
    });
    for error in ran {
        let text = error.expect("the group goes on").to_string();
        assert!(text.contains("rank 2 sends 1 elements to rank 1, which expects 2"), "{text}");
    }
}

#[test]
fn a_member_that_calls_something_else_is_named() {
    let ran = on_ranks(2, PATIENT, |endpoint| {
        let mut world = endpoint.group(&[0, 1])?;
        match endpoint.rank() {
            0 => world.all_to_all_v(&[0.0; 2], &[1; 2], &mut [0.0; 2], &[1; 2]),
            _ => {
                let buffer = &mut [0.0; 2];
                world.collective(Kind::AllToAll, Algorithm::Direct, Reduction::Sum, buffer)
            }
        }
    });
    for error in ran {
        let text = error.expect_err("calls differ").to_string();
        assert!(
            text.contains("rank 0 called all-to-all-v, rank 1 called all-to-all of 2"),
            "{text}"
        );
    }
}
