//! Gradients of rows, on the processor.

use std::ops::Range;

use half::{bf16, f16};

use super::{CHUNK, cast};
use crate::device::Rows;
use crate::rows::{self, Real};
use crate::{Format, ViewMut, optimizer};

/// Calls `user` with rows as optimizers take them.
pub(super) fn with(of: Rows<'_>, user: &mut dyn FnMut(&optimizer::Rows<'_>)) {
    let all = of.rows.elements::<u32>();
    let columns = of.values.len() / all.len().max(1);
    let copy = |range: Range<usize>, out: &mut [f32]| {
        let values = of.values.slice(range);
        match values.format() {
            Format::F32 => out.copy_from_slice(values.elements()),
            Format::Bf16 => cast::widen_bf16(values.elements(), out),
            Format::F16 => cast::widen_f16(values.elements(), out),
            other => panic!("{other} is no format of real numbers"),
        }
    };
    user(&optimizer::Rows { rows: &all[..rows::count(all)], columns, copy: &copy });
}

/// [`Device::squared_norm_of_rows`](crate::Device::squared_norm_of_rows).
pub(super) fn squared_norm(of: Rows<'_>, elements: &Range<usize>) -> f64 {
    let all = of.rows.elements::<u32>();
    match of.values.format() {
        Format::F32 => rows::squared_norm::<f32>(all, of.values.elements(), elements, usize::MAX),
        Format::Bf16 => rows::squared_norm::<bf16>(all, of.values.elements(), elements, CHUNK),
        Format::F16 => rows::squared_norm::<f16>(all, of.values.elements(), elements, CHUNK),
        other => panic!("{other} is no format of real numbers"),
    }
}

/// [`Device::sum_rows`](crate::Device::sum_rows).
pub(super) fn sum_equal(
    counts: (usize, usize),
    rows: ViewMut<'_>,
    values: ViewMut<'_>,
    order: ViewMut<'_>,
) {
    fn sum<T: Real + super::region::Element>(
        counts: (usize, usize),
        (of, values, order): (&mut [u32], ViewMut<'_>, &mut [u32]),
    ) {
        rows::sum_equal::<T>(counts, of, values.elements_mut(), order);
    }
    let format = values.format();
    let parts = (rows.elements_mut(), values, order.elements_mut());
    match format {
        Format::F32 => sum::<f32>(counts, parts),
        Format::Bf16 => sum::<bf16>(counts, parts),
        Format::F16 => sum::<f16>(counts, parts),
        other => panic!("{other} is no format of real numbers"),
    }
}
