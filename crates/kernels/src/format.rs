//! How the elements of a buffer are stored.

use std::fmt;

/// How one element of a [`Buffer`](crate::Buffer) is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floating point.
    F32,
    /// bfloat16: the upper half of 32-bit floating point.
    Bf16,
    /// 16-bit floating point.
    F16,
    /// 64-bit floating point: sums of squares over all parameters.
    F64,
    /// 32-bit unsigned integers: tokens and class labels.
    U32,
    /// Bytes: dropout masks.
    U8,
}

impl Format {
    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Format::F64 => 8,
            Format::F32 | Format::U32 => 4,
            Format::Bf16 | Format::F16 => 2,
            Format::U8 => 1,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::F64 => "f64",
            Format::U32 => "u32",
            Format::U8 => "u8",
        })
    }
}
