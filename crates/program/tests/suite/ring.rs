//! How ranges of parameters are dealt to servers.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_program::Ring;

/// What each of so many servers has.
fn loads(owners: &[u32], sizes: &[usize], servers: u32) -> Vec<usize> {
    let mut loads = vec![0; servers as usize];
    owners.iter().zip(sizes).for_each(|(&owner, size)| loads[owner as usize] += size);
    loads
}

/// The share of all elements that another server has than before.
fn moved(before: &[u32], after: &[u32], sizes: &[usize]) -> f64 {
    let pairs = before.iter().zip(after).zip(sizes);
    let moved: usize = pairs.filter(|((one, other), _)| one != other).map(|(_, size)| size).sum();
    moved as f64 / sizes.iter().sum::<usize>() as f64
}

/// By definition: from the range on along the ring, whoever is the first to stand behind the owner and the others.
#[test]
fn successors_are_all_other_servers_and_where_the_owner_goes_the_first_stands_in() {
    for servers in [2, 3, 7] {
        // Equal ranges, few for each server, so that none is dealt to another than the nearest for its load alone.
        let sizes = vec![1; 4];
        let ring = Ring::of(0..servers);
        for (range, owner) in ring.owners(&sizes).into_iter().enumerate() {
            let successors = ring.successors(range, owner);
            let mut all = successors.clone();
            all.push(owner);
            all.sort_unstable();
            assert_eq!(all, (0..servers).collect::<Vec<_>>());
            // On the ring without the owner the order of the others is the same.
            let without = Ring::of((0..servers).filter(|&it| it != owner));
            let rest = without.successors(range, successors[0]);
            assert_eq!(rest, successors[1..], "{range} of {servers}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(14),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_server_has_more_than_nine_eighths_of_its_share_and_one_range_and_each_has_one(
        servers in 1..40u32,
        sizes in prop::collection::vec(1..1000usize, 1..400),
    ) {
        let owners = Ring::of(0..servers).owners(&sizes);
        prop_assert_eq!(owners.len(), sizes.len());
        let loads = loads(&owners, &sizes, servers);
        let (total, largest) = (sizes.iter().sum::<usize>(), *sizes.iter().max().unwrap_or(&0));
        let most = 9.0 / 8.0 * total as f64 / f64::from(servers) + largest as f64;
        prop_assert!(loads.iter().all(|&load| load as f64 <= most), "{:?} of {}", loads, most);
        if sizes.len() >= servers as usize {
            prop_assert!(loads.iter().all(|&load| load > 0), "{:?}", loads);
        }
    }

    /// As pieces of buckets may be. They are no load, and where all are empty, there is none at all.
    #[test]
    fn ranges_without_elements_are_dealt_and_change_nothing_for_the_others(
        servers in 1..9u32,
        sizes in prop::collection::vec(prop_oneof![2 => Just(0usize), 1 => 1..50usize], 1..40),
    ) {
        let ring = Ring::of(0..servers);
        let owners = ring.owners(&sizes);
        prop_assert_eq!(owners.len(), sizes.len());
        prop_assert!(owners.iter().all(|owner| (0..servers).contains(owner)));
        let each = |server: &u32| owners.contains(server);
        prop_assert_eq!((0..servers).all(|it| each(&it)), sizes.len() >= servers as usize);
        let nothing = ring.owners(&vec![0; sizes.len()]);
        prop_assert_eq!(nothing.len(), sizes.len());
    }

    /// A server has at most 9/8 of its share, and so much moves at least when it goes; what the bound sends
    /// elsewhere comes on top.
    #[test]
    fn a_server_that_comes_or_goes_moves_little_more_than_its_share(
        servers in 1..24u32,
        goes in any::<prop::sample::Index>(),
        sizes in prop::collection::vec(500..1000usize, 1500..2500),
    ) {
        let before = Ring::of(0..servers).owners(&sizes);
        let more = Ring::of(0..=servers).owners(&sizes);
        let share = 1.0 / f64::from(servers + 1);
        let comes = moved(&before, &more, &sizes);
        prop_assert!(0.75 * share < comes && comes < 1.6 * share, "{} of {}", comes, share);
        let gone = goes.index(servers as usize + 1) as u32;
        let less = Ring::of((0..=servers).filter(|&it| it != gone)).owners(&sizes);
        prop_assert!(!less.contains(&gone));
        let leaves = moved(&more, &less, &sizes);
        prop_assert!(0.75 * share < leaves && leaves < 1.6 * share, "{} of {}", leaves, share);
    }
}

#[test]
fn the_same_servers_have_the_same_ranges_in_whatever_order_they_are_named() {
    let sizes = vec![7; 500];
    let owners = Ring::of([3, 1, 2]).owners(&sizes);
    assert_eq!(Ring::of([1, 2, 3]).owners(&sizes), owners);
    assert_ne!(Ring::of([1, 2, 4]).owners(&sizes), owners);
}

/// As hashes must not, since what is on a server would be sought on another.
#[test]
fn what_a_server_has_that_the_hashes_leave_nothing_never_changes() {
    // As many ranges as servers: those without any take what follows their first point.
    let owners = Ring::of(0..24).owners(&[4; 24]);
    assert_eq!(
        owners,
        [5, 1, 16, 15, 6, 8, 9, 0, 17, 19, 7, 14, 3, 20, 11, 22, 4, 12, 23, 21, 10, 2, 18, 13]
    );
    let owners = Ring::of([5, 2, 9, 1, 7, 3]).owners(&[4, 1, 1, 4, 1, 1, 4, 1, 1, 4]);
    assert_eq!(owners, [5, 1, 7, 7, 5, 9, 3, 2, 3, 1]);
}
