//! What a rank holds of a tensor.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::overlap::{Run, for_each_run};
use crate::{CheckpointError, Result};

/// Part of a global tensor: the elements `range` of the row-major box that
/// begins at `start` and extends `extent` elements along each axis.
///
/// Nothing is checked here; [`Writer::shard`](crate::Writer::shard) does.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece<'a> {
    /// Name of the global tensor, the same under every sharding.
    pub name: String,
    /// Shape of the global tensor; empty for a scalar.
    pub global_shape: Vec<usize>,
    /// Where the box begins, one coordinate per axis.
    pub start: Vec<usize>,
    /// Elements of the box along each axis.
    pub extent: Vec<usize>,
    /// The elements held, counted in row-major order within the box.
    pub range: Range<usize>,
    /// Their values, as many as `range` has elements.
    pub data: &'a [f32],
}

impl<'a> Piece<'a> {
    /// A whole tensor.
    #[must_use]
    pub fn whole(name: impl Into<String>, shape: &[usize], data: &'a [f32]) -> Self {
        Self::block(name, shape, &vec![0; shape.len()], shape, data)
    }

    /// A whole box of a tensor, as tensor parallelism cuts it.
    #[must_use]
    pub fn block(
        name: impl Into<String>,
        global_shape: &[usize],
        start: &[usize],
        extent: &[usize],
        data: &'a [f32],
    ) -> Self {
        Self::flat(name, global_shape, start, extent, 0, data)
    }

    /// The elements of a box from number `first` on, as ZeRO cuts it.
    #[must_use]
    pub fn flat(
        name: impl Into<String>,
        global_shape: &[usize],
        start: &[usize],
        extent: &[usize],
        first: usize,
        data: &'a [f32],
    ) -> Self {
        Self {
            name: name.into(),
            global_shape: global_shape.to_vec(),
            start: start.to_vec(),
            extent: extent.to_vec(),
            range: first..first.saturating_add(data.len()),
            data,
        }
    }

    /// Copies the piece to its place in `whole`, the row-major global tensor.
    ///
    /// # Errors
    /// If the piece's numbers do not fit together, or `whole` has another number of elements.
    pub fn place(&self, whole: &mut [f32]) -> Result<()> {
        let (name, shape) = (&self.name, &self.global_shape);
        let source = Region::new(name, shape, &self.start, &self.extent, self.range.clone())?;
        if volume(shape) != whole.len() || source.len() != self.data.len() {
            let reason = format!(
                "{} values of shape {shape:?} do not go into {} elements",
                self.data.len(),
                whole.len()
            );
            return Err(CheckpointError::Piece { name: name.clone(), reason });
        }
        for_each_run(&source, &Region::whole(shape), |Run { source, target, elements }| {
            whole[target..target + elements].copy_from_slice(&self.data[source..source + elements]);
        });
        Ok(())
    }
}

/// Where the elements of a piece are in their tensor. Its numbers fit together:
/// the box is inside the shape, the range inside the box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) start: Vec<usize>,
    pub(crate) extent: Vec<usize>,
    pub(crate) range: Range<usize>,
}

impl Region {
    /// Checks a region of tensor `name`.
    pub(crate) fn new(
        name: &str,
        shape: &[usize],
        start: &[usize],
        extent: &[usize],
        range: Range<usize>,
    ) -> Result<Self> {
        let wrong = |reason| CheckpointError::Piece { name: name.to_owned(), reason };
        if start.len() != shape.len() || extent.len() != shape.len() {
            return Err(wrong(format!(
                "start {start:?} and extent {extent:?} must have the {} axes of shape {shape:?}",
                shape.len()
            )));
        }
        let inside = |((&shape, &start), &extent): ((&usize, &usize), &usize)| {
            start.checked_add(extent).is_some_and(|end| end <= shape)
        };
        if !shape.iter().zip(start).zip(extent).all(inside) {
            return Err(wrong(format!(
                "the box at {start:?} of extent {extent:?} is not inside shape {shape:?}"
            )));
        }
        // Offsets are computed in the whole tensor too, so its size must be a number.
        let too_large = || wrong(format!("shape {shape:?} has too many elements to count"));
        checked_volume(shape).ok_or_else(too_large)?;
        let elements = volume(extent);
        if range.start > range.end || range.end > elements {
            return Err(wrong(format!(
                "the range {range:?} is not inside the {elements} elements of extent {extent:?}"
            )));
        }
        Ok(Self { start: start.to_vec(), extent: extent.to_vec(), range })
    }

    /// All of a tensor.
    pub(crate) fn whole(shape: &[usize]) -> Self {
        Self { start: vec![0; shape.len()], extent: shape.to_vec(), range: 0..volume(shape) }
    }

    /// Elements of the region.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// The global coordinates of element `at` of the region.
    pub(crate) fn coordinates(&self, at: usize) -> Vec<usize> {
        let mut rest = self.range.start + at;
        let mut coordinates = self.start.clone();
        for (coordinate, &extent) in coordinates.iter_mut().zip(&self.extent).rev() {
            *coordinate += rest % extent;
            rest /= extent;
        }
        coordinates
    }
}

/// The number of elements of a shape that is known to be countable.
pub(crate) fn volume(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The number of elements of a shape. A zero anywhere does not hide that the
/// other axes overflow, because strides are products of some axes only.
fn checked_volume(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |volume, &axis| volume.checked_mul(axis.max(1)))?;
    Some(volume(shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_goes_into_a_tensor_of_its_own_size_and_no_other() {
        let data = [1.0, 2.0, 3.0, 4.0];
        let piece = Piece::whole("w", &[2, 2], &data);
        for elements in [3, 5] {
            let mut whole = vec![0.0; elements];
            let error = piece.place(&mut whole).expect_err("another size").to_string();
            let part = format!("4 values of shape [2, 2] do not go into {elements} elements");
            assert!(error.contains(&part), "{error}");
            assert!(whole.iter().all(|&it| it == 0.0));
        }
        let mut whole = vec![0.0; 4];
        piece.place(&mut whole).expect("its own size");
        assert_eq!(whole, data);
    }

    /// By counting: a piece has as many values as its range has elements.
    #[test]
    fn pieces_whose_numbers_do_not_fit_together_leave_a_tensor_as_it_is() {
        let data = [1.0; 8];
        let numbers = (0..5).flat_map(|a| (0..5).map(move |b| (a, b)));
        for ((start, extent), (first, end)) in (0..4)
            .flat_map(|a| (0..4).map(move |b| (a, b)))
            .flat_map(|it| numbers.clone().map(move |range| (it, range)))
        {
            for values in 0..4 {
                // Of three rows of two elements so many.
                let (shape, start, extent) = (vec![3, 2], vec![start, 0], vec![extent, 2]);
                let elements = 2 * extent[0];
                let fits = start[0] + extent[0] <= 3
                    && first <= end
                    && end <= elements
                    && end - first == values;
                let piece = Piece {
                    name: "w".into(),
                    global_shape: shape,
                    start: start.clone(),
                    extent,
                    range: first..end,
                    data: &data[..values],
                };
                let mut whole = vec![0.0; 6];
                assert_eq!(piece.place(&mut whole).is_ok(), fits, "{piece:?}");
                let placed = 2 * start[0] + first..2 * start[0] + end;
                let expected = (0..6).map(|at| f32::from(u8::from(fits && placed.contains(&at))));
                assert_eq!(whole, expected.collect::<Vec<_>>(), "{piece:?}");
            }
        }
    }

    fn refusal(shape: &[usize], start: &[usize], extent: &[usize], range: Range<usize>) -> String {
        Region::new("w", shape, start, extent, range).expect_err("contradiction").to_string()
    }

    #[test]
    fn contradictions_are_refused_with_their_numbers() {
        assert_eq!(
            refusal(&[4, 4], &[0], &[4, 4], 0..1),
            "piece of tensor `w`: start [0] and extent [4, 4] must have the 2 axes of shape [4, 4]"
        );
        assert_eq!(
            refusal(&[4, 4], &[0, 2], &[4, 3], 0..1),
            "piece of tensor `w`: the box at [0, 2] of extent [4, 3] is not inside shape [4, 4]"
        );
        assert_eq!(
            refusal(&[4, 4], &[0, 2], &[4, 2], 3..9),
            "piece of tensor `w`: the range 3..9 is not inside the 8 elements of extent [4, 2]"
        );
        assert!(refusal(&[4], &[usize::MAX], &[2], 0..1).contains("not inside shape"));
        assert!(refusal(&[usize::MAX, 2, 0], &[0; 3], &[1, 1, 0], 0..0).contains("too many"));
    }

    #[test]
    fn coordinates_count_rows_within_the_box() {
        let region = Region::new("w", &[4, 6], &[1, 2], &[3, 4], 2..11).expect("valid");
        assert_eq!(region.coordinates(0), [1, 4]);
        assert_eq!(region.coordinates(2), [2, 2]);
        assert_eq!(Region::whole(&[]).coordinates(0), [0_usize; 0]);
        assert_eq!(Region::whole(&[]).len(), 1);
    }
}
