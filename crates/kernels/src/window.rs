//! Boxes of tensors: walking a box of a larger row-major tensor in contiguous runs, and copying
//! one, which is what slicing and concatenating along any axis come down to.

use smallvec::{SmallVec, smallvec};

/// One number for each axis of a tensor; on the heap only beyond eight axes, which no operator has.
pub type PerAxis = SmallVec<[usize; 8]>;

/// A box of a global row-major tensor: what one rank holds of it.
///
/// The three lists have one entry per axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The shape of the box.
    pub extent: PerAxis,
    /// Where the box starts in the global tensor.
    pub start: PerAxis,
    /// The shape of the global tensor.
    pub global: PerAxis,
}

impl Window {
    /// The whole of a tensor.
    pub fn whole(shape: &[usize]) -> Window {
        Window { extent: shape.into(), start: smallvec![0; shape.len()], global: shape.into() }
    }

    /// Number of elements in the box.
    pub fn elements(&self) -> usize {
        self.extent.iter().product()
    }

    /// Calls `visit(global index, length)` for each run of elements that lie side by side in the
    /// global tensor, in the row-major order of the box.
    pub(crate) fn for_each_run(&self, mut visit: impl FnMut(usize, usize)) {
        check_box(&self.extent, &self.start, &self.global);
        for_each_run(&self.extent, [(&self.global, &self.start)], |[at], len| visit(at, len));
    }
}

/// Copies the box of shape `extent` that starts at `start` in `whole`, of shape `shape`, into `part`, which
/// holds nothing else.
pub fn cut_box<T: Copy>(
    whole: &[T],
    shape: &[usize],
    start: &[usize],
    part: &mut [T],
    extent: &[usize],
) {
    let origin: PerAxis = smallvec![0; extent.len()];
    copy_box(whole, shape, start, part, extent, &origin, extent);
}

/// Copies `part`, a box of shape `extent`, to where it starts at `start` in `whole`, of shape `shape`: the
/// way back from [`cut_box`].
pub fn place_box<T: Copy>(
    part: &[T],
    extent: &[usize],
    whole: &mut [T],
    shape: &[usize],
    start: &[usize],
) {
    let origin: PerAxis = smallvec![0; extent.len()];
    copy_box(part, extent, &origin, whole, shape, start, extent);
}

/// Copies the box of shape `extent` that starts at `source_start` in the tensor `source` of shape
/// `source_shape` to `destination_start` in `destination` of shape `destination_shape`.
///
/// All tensors are row-major; the five lists have one entry per axis.
pub fn copy_box<T: Copy>(
    source: &[T],
    source_shape: &[usize],
    source_start: &[usize],
    destination: &mut [T],
    destination_shape: &[usize],
    destination_start: &[usize],
    extent: &[usize],
) {
    check_box(extent, source_start, source_shape);
    check_box(extent, destination_start, destination_shape);
    for_each_run(
        extent,
        [(source_shape, source_start), (destination_shape, destination_start)],
        |[from, to], len| destination[to..to + len].copy_from_slice(&source[from..from + len]),
    );
}

fn check_box(extent: &[usize], start: &[usize], shape: &[usize]) {
    assert!(
        extent.len() == shape.len()
            && start.len() == shape.len()
            && (0..shape.len()).all(|axis| start[axis] + extent[axis] <= shape[axis]),
        "a box of shape {extent:?} at {start:?} does not lie in a tensor of shape {shape:?}"
    );
}

/// Visits the runs of a box that are contiguous in every one of the tensors, given as
/// (shape, start of the box), with their offset in each.
fn for_each_run<const N: usize>(
    extent: &[usize],
    tensors: [(&[usize], &[usize]); N],
    mut visit: impl FnMut([usize; N], usize),
) {
    if extent.contains(&0) {
        return;
    }
    // The trailing axes that the box covers fully in every tensor, and the one before them, make
    // one run.
    let covered = |axis: usize| tensors.iter().all(|(shape, _)| shape[axis] == extent[axis]);
    let mut outer = extent.len().saturating_sub(1);
    while outer > 0 && covered(outer) {
        outer -= 1;
    }
    let run: usize = extent[outer..].iter().product();

    let strides = tensors.map(|(shape, _)| strides(shape));
    let mut offsets: [usize; N] = std::array::from_fn(|n| {
        tensors[n].1.iter().zip(&strides[n]).map(|(start, stride)| start * stride).sum()
    });
    let mut index: PerAxis = smallvec![0; outer];
    loop {
        visit(offsets, run);
        let mut axis = outer;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            for (offset, strides) in offsets.iter_mut().zip(&strides) {
                *offset += strides[axis];
            }
            if index[axis] < extent[axis] {
                break;
            }
            index[axis] = 0;
            for (offset, strides) in offsets.iter_mut().zip(&strides) {
                *offset -= extent[axis] * strides[axis];
            }
        }
    }
}

fn strides(shape: &[usize]) -> PerAxis {
    let mut strides: PerAxis = smallvec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}
