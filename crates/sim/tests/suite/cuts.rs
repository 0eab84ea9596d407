//! Cuts for devices that hold several stages, where one knows the best.

use shardloom_sim::estimate::balanced_stages;

/// The sum of all blocks before each one, and of all.
fn before(weights: &[u32]) -> Vec<f64> {
    let mut sums = vec![0.0];
    weights.iter().for_each(|&weight| sums.push(sums[sums.len() - 1] + f64::from(weight)));
    sums
}

/// Two devices with every other of four stages.
fn alternating() -> [Vec<usize>; 1] {
    [vec![0, 1, 0, 1]]
}

/// What the two devices work on.
fn of_devices(weights: &[u32], cut: &[usize]) -> [u32; 2] {
    let stage = |stage: usize| weights[cut[stage]..cut[stage + 1]].iter().sum::<u32>();
    [stage(0) + stage(2), stage(1) + stage(3)]
}

/// An even cut gives them a third and two thirds, or two fifths and three.
#[test]
fn devices_get_halves_where_moving_a_block_or_two_makes_halves() {
    // The first stage gives its second block away.
    let weights = [4, 4, 1, 2, 4, 4, 2, 3];
    assert_eq!(of_devices(&weights, &[0, 2, 4, 6, 8]), [16, 8]);
    let cut = balanced_stages(&before(&weights), &alternating());
    assert_eq!(of_devices(&weights, &cut), [12, 12], "{cut:?}");
    // The device that has less at first has more after a move, and gives in its turn.
    let weights = [2, 2, 4, 2, 3, 1, 3, 3];
    assert_eq!(of_devices(&weights, &[0, 2, 4, 6, 8]), [8, 12]);
    let cut = balanced_stages(&before(&weights), &alternating());
    assert_eq!(of_devices(&weights, &cut), [10, 10], "{cut:?}");
}

/// Each device has four blocks whoever of its stages has them.
#[test]
fn blocks_alike_make_stages_alike_also_where_other_stages_leave_devices_equal_work() {
    let cut = balanced_stages(&before(&[2; 8]), &alternating());
    assert_eq!(cut, [0, 2, 4, 6, 8]);
}
