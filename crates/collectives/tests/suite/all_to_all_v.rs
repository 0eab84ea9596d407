//! An all-to-all of unequal parts leaves what its counts promise.

use proptest::{prelude::*, test_runner::RngSeed};
use shardloom_collectives::{Counts, Member, Reduction, all_to_all_v};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(2021),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_member_has_what_all_sent_it_in_the_order_of_senders(
        members in 1..6u32,
        table in prop::collection::vec(0..5usize, 25),
    ) {
        let counts = Counts::new(members, |from, to| table[(from.0 * 5 + to.0) as usize]);
        let list = all_to_all_v(&counts);
        // What each sends to each: numbers that occur nowhere else.
        let part = |from: u32, to: u32| -> Vec<f64> {
            let first = f64::from((from * 5 + to) * 10);
            (0..table[(from * 5 + to) as usize]).map(|at| first + at as f64).collect()
        };
        let mut buffers: Vec<Vec<f64>> = (0..members)
            .map(|from| {
                let mut sent: Vec<f64> = (0..members).flat_map(|to| part(from, to)).collect();
                sent.resize(list.elements, f64::NAN);
                sent
            })
            .collect();
        list.apply(&mut buffers, Reduction::Sum)?;
        for (to, buffer) in (0..members).zip(&buffers) {
            let sent: usize = counts.sends(Member(to)).sum();
            let received: Vec<f64> = (0..members).flat_map(|from| part(from, to)).collect();
            prop_assert_eq!(&buffer[sent..sent + received.len()], &received[..]);
            let own = table[(to * 5 + to) as usize];
            prop_assert_eq!(list.sent_elements(Member(to)), sent - own);
            prop_assert_eq!(list.received_elements(Member(to)), received.len() - own);
        }
    }
}
