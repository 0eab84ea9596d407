//! Which elements two regions of a tensor share, as contiguous runs.

use crate::piece::{Region, volume};

/// Elements that lie next to each other in two regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index of the first of them in the source region.
    pub(crate) source: usize,
    /// Index of the same element in the target region.
    pub(crate) target: usize,
    /// How many there are, at least one.
    pub(crate) elements: usize,
}

/// Visits what two regions of the same tensor share, in ascending order, in
/// runs as long as rows allow.
pub(crate) fn for_each_run(source: &Region, target: &Region, mut visit: impl FnMut(Run)) {
    if source.range.is_empty() || target.range.is_empty() {
        return;
    }
    let Some(shared) = SharedBox::of(source, target) else { return };
    let (source_strides, target_strides) = (strides(&source.extent), strides(&target.extent));

    // Trailing axes that both boxes have whole are contiguous in both, together
    // with the axis before them.
    let whole = |axis: usize| {
        shared.extent[axis] == source.extent[axis] && shared.extent[axis] == target.extent[axis]
    };
    let axes = shared.extent.len();
    let first_whole = (0..axes).rev().take_while(|&axis| whole(axis)).last().unwrap_or(axes);
    let run_axis = first_whole.saturating_sub(1);
    let run_elements = volume(&shared.extent[run_axis..]);

    let mut at = vec![0; run_axis];
    loop {
        let offset = |region: &Region, strides: &[usize]| -> usize {
            let coordinate = |axis: usize| shared.start[axis] + at.get(axis).unwrap_or(&0);
            (0..axes).map(|axis| (coordinate(axis) - region.start[axis]) * strides[axis]).sum()
        };
        let row = Run {
            source: offset(source, &source_strides),
            target: offset(target, &target_strides),
            elements: run_elements,
        };
        if let Some(run) = clip(row, source, target) {
            visit(run);
        }
        // Count up to the next row.
        let Some(axis) = (0..run_axis).rev().find(|&axis| at[axis] + 1 < shared.extent[axis])
        else {
            return;
        };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
}

/// The part of a run of two boxes that is in both ranges, counted from their
/// beginnings.
fn clip(run: Run, source: &Region, target: &Region) -> Option<Run> {
    let skip_source = source.range.start.saturating_sub(run.source);
    let skip_target = target.range.start.saturating_sub(run.target);
    let first = skip_source.max(skip_target);
    let last = run
        .elements
        .min(source.range.end.saturating_sub(run.source))
        .min(target.range.end.saturating_sub(run.target));
    (first < last).then(|| Run {
        source: run.source + first - source.range.start,
        target: run.target + first - target.range.start,
        elements: last - first,
    })
}

/// The box that two boxes share, in global coordinates.
struct SharedBox {
    start: Vec<usize>,
    extent: Vec<usize>,
}

impl SharedBox {
    fn of(source: &Region, target: &Region) -> Option<Self> {
        let (mut start, mut extent) = (Vec::new(), Vec::new());
        for axis in 0..source.start.len() {
            let ((source_start, source_end), (target_start, target_end)) =
                (bounds(source, axis), bounds(target, axis));
            let first = source_start.max(target_start);
            let end = source_end.min(target_end);
            if first >= end {
                return None;
            }
            start.push(first);
            extent.push(end - first);
        }
        Some(Self { start, extent })
    }
}

/// Where a region begins and ends along an axis. Along the first axis these are
/// the rows its range touches, so that a small range of a large box does not
/// visit every row of it.
fn bounds(region: &Region, axis: usize) -> (usize, usize) {
    let start = region.start[axis];
    if axis > 0 {
        return (start, start + region.extent[axis]);
    }
    let row = volume(&region.extent[1..]);
    (start + region.range.start / row, start + region.range.end.div_ceil(row))
}

fn strides(extent: &[usize]) -> Vec<usize> {
    (0..extent.len()).map(|axis| volume(&extent[axis + 1..])).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn region(
        shape: &[usize],
        start: &[usize],
        extent: &[usize],
        first: usize,
        end: usize,
    ) -> Region {
        Region::new("w", shape, start, extent, first..end).expect("valid")
    }

    fn runs(source: &Region, target: &Region) -> Vec<Run> {
        let mut runs = Vec::new();
        for_each_run(source, target, |run| runs.push(run));
        runs
    }

    /// A region of a shape with up to four axes.
    fn regions() -> impl Strategy<Value = (Region, Region)> {
        let axis = (1_usize..6).prop_flat_map(|size| {
            let cut = (0..size).prop_flat_map(move |start| (Just(start), 0..=size - start));
            (Just(size), cut.clone(), cut)
        });
        (prop::collection::vec(axis, 0..4), [0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0]).prop_map(
            |(axes, cuts)| {
                let shape: Vec<usize> = axes.iter().map(|axis| axis.0).collect();
                let make = |boxed: Vec<(usize, usize)>, cut: [f64; 2]| {
                    let (start, extent): (Vec<_>, Vec<_>) = boxed.into_iter().unzip();
                    let mut range = cut.map(|cut| (cut * (volume(&extent) + 1) as f64) as usize);
                    range.sort_unstable();
                    region(&shape, &start, &extent, range[0], range[1])
                };
                let source = make(axes.iter().map(|axis| axis.1).collect(), [cuts[0], cuts[1]]);
                let target = make(axes.iter().map(|axis| axis.2).collect(), [cuts[2], cuts[3]]);
                (source, target)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, rng_seed: RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn runs_are_exactly_the_shared_elements((source, target) in regions()) {
            let mut found = Vec::new();
            for run in runs(&source, &target) {
                prop_assert!(run.elements > 0);
                found.extend((0..run.elements).map(|at| (run.source + at, run.target + at)));
            }
            let mut wanted = Vec::new();
            for from in 0..source.len() {
                let coordinates = source.coordinates(from);
                wanted.extend(
                    (0..target.len())
                        .filter(|&to| target.coordinates(to) == coordinates)
                        .map(|to| (from, to)),
                );
            }
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn rows_that_both_have_whole_are_one_run() {
        let shape = [8, 3, 4];
        let source = region(&shape, &[2, 0, 0], &[4, 3, 4], 0, 48);
        assert_eq!(
            runs(&source, &Region::whole(&shape)),
            [Run { source: 0, target: 24, elements: 48 }]
        );
        let columns = region(&shape, &[0, 1, 0], &[8, 2, 4], 0, 64);
        assert_eq!(
            runs(&source, &columns),
            [0, 1, 2, 3].map(|row| Run { source: 12 * row + 4, target: 16 + 8 * row, elements: 8 })
        );
    }
}
