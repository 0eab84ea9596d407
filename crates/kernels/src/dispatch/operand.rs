//! The tensors that kernels read and write.

use half::bf16;

/// A tensor that a pass reads, with real numbers in fp32 but for what is taken as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: Data<'a>,
}

/// Elements that are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    /// Real numbers.
    F32(&'a [f32]),
    /// Real numbers that [are taken as they are](super::in_bf16).
    Bf16(&'a [bf16]),
    /// Masks.
    U8(&'a [u8]),
    /// Indices.
    U32(&'a [u32]),
    /// What a pass [does not look at](super::unread).
    Unread,
}

/// A tensor that a pass writes, with real numbers in fp32.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: DataMut<'a>,
    /// Whether the result is added onto what is there.
    pub accumulate: bool,
}

/// Elements that are written.
#[derive(Debug)]
pub(crate) enum DataMut<'a> {
    /// Real numbers.
    F32(&'a mut [f32]),
    /// Those that a pass [writes so](super::in_bf16).
    Bf16(&'a mut [bf16]),
    /// Masks.
    U8(&'a mut [u8]),
    /// Indices.
    U32(&'a mut [u32]),
}

impl<'a> Input<'a> {
    pub(super) fn f32(&self) -> &'a [f32] {
        match self.data {
            Data::F32(data) => data,
            other => panic!("a kernel was given {other:?} instead of real numbers"),
        }
    }

    pub(super) fn u8(&self) -> &'a [u8] {
        match self.data {
            Data::U8(data) => data,
            other => panic!("a kernel was given {other:?} instead of a mask"),
        }
    }

    pub(super) fn u32(&self) -> &'a [u32] {
        match self.data {
            Data::U32(data) => data,
            other => panic!("a kernel was given {other:?} instead of indices"),
        }
    }

    /// Length of the last axis.
    pub(super) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

impl Output<'_> {
    pub(super) fn f32(&mut self) -> &mut [f32] {
        match &mut self.data {
            DataMut::F32(data) => data,
            _ => panic!("a kernel was to write real numbers to something else"),
        }
    }

    pub(super) fn u8(&mut self) -> &mut [u8] {
        match &mut self.data {
            DataMut::U8(data) => data,
            _ => panic!("a kernel was to write a mask to something else"),
        }
    }

    pub(super) fn u32(&mut self) -> &mut [u32] {
        match &mut self.data {
            DataMut::U32(data) => data,
            _ => panic!("a kernel was to write indices to something else"),
        }
    }
}

/// `$body` of the elements of two inputs, which are both in bfloat16 or both in fp32, and of those of a result.
macro_rules! of_product {
    ($one:ident, $other:ident, $result:ident, $body:expr) => {
        match ($one.data, $other.data, &mut $result.data) {
            (Data::Bf16($one), Data::Bf16($other), DataMut::Bf16($result)) => $body,
            (Data::Bf16($one), Data::Bf16($other), _) => {
                let $result = $result.f32();
                $body
            }
            _ => {
                let ($one, $other, $result) = ($one.f32(), $other.f32(), $result.f32());
                $body
            }
        }
    };
}
pub(super) use of_product;

/// `$body` of the elements of inputs, which are all in bfloat16 or all in fp32.
macro_rules! of_factors {
    (($($factor:ident),+), $body:expr) => {
        match ($($factor.data),+) {
            ($(Data::Bf16($factor)),+) => $body,
            _ => {
                let ($($factor),+) = ($($factor.f32()),+);
                $body
            }
        }
    };
}
pub(super) use of_factors;

/// Whether the first three gradients are added onto what is there; no more than three are told so together.
pub(super) fn accumulates(writes: &[Output<'_>]) -> [bool; 3] {
    [0, 1, 2].map(|index| writes.get(index).is_some_and(|write| write.accumulate))
}
