use std::fmt;

/// How one element of a buffer is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Format {
    /// Single precision.
    F32,
    /// Double precision, such as sums of squares over all parameters.
    F64,
    /// bfloat16: the upper half of a single-precision number.
    Bf16,
    /// IEEE 754 half precision.
    F16,
    /// 32-bit unsigned integers: indices, class labels and counts.
    U32,
    /// Bytes, such as masks.
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::F32 => "f32",
            Format::F64 => "f64",
            Format::Bf16 => "bf16",
            Format::F16 => "f16",
            Format::U32 => "u32",
            Format::U8 => "u8",
        })
    }
}

/// Elements to read. Numbers of 16 bits are words: whoever brings the arithmetic knows what they mean.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "formats are described at `Format`")]
pub enum View<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    Bf16(&'a [u16]),
    F16(&'a [u16]),
    U32(&'a [u32]),
    U8(&'a [u8]),
}

/// Elements to write.
#[derive(Debug, PartialEq)]
#[expect(missing_docs, reason = "formats are described at `Format`")]
pub enum ViewMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    Bf16(&'a mut [u16]),
    F16(&'a mut [u16]),
    U32(&'a mut [u32]),
    U8(&'a mut [u8]),
}

impl View<'_> {
    /// How its elements are stored.
    pub fn format(&self) -> Format {
        match self {
            View::F32(_) => Format::F32,
            View::F64(_) => Format::F64,
            View::Bf16(_) => Format::Bf16,
            View::F16(_) => Format::F16,
            View::U32(_) => Format::U32,
            View::U8(_) => Format::U8,
        }
    }

    /// How many there are.
    pub fn elements(&self) -> usize {
        match self {
            View::F32(it) => it.len(),
            View::F64(it) => it.len(),
            View::Bf16(it) | View::F16(it) => it.len(),
            View::U32(it) => it.len(),
            View::U8(it) => it.len(),
        }
    }
}

impl ViewMut<'_> {
    /// How many elements there are.
    pub fn elements(&self) -> usize {
        match self {
            ViewMut::F32(it) => it.len(),
            ViewMut::F64(it) => it.len(),
            ViewMut::Bf16(it) | ViewMut::F16(it) => it.len(),
            ViewMut::U32(it) => it.len(),
            ViewMut::U8(it) => it.len(),
        }
    }

    /// How its elements are stored.
    pub fn format(&self) -> Format {
        match self {
            ViewMut::F32(_) => Format::F32,
            ViewMut::F64(_) => Format::F64,
            ViewMut::Bf16(_) => Format::Bf16,
            ViewMut::F16(_) => Format::F16,
            ViewMut::U32(_) => Format::U32,
            ViewMut::U8(_) => Format::U8,
        }
    }
}

impl ViewMut<'_> {
    /// Becomes a copy of `from`.
    ///
    /// # Errors
    /// What the two are, if they are of different formats or sizes.
    pub(crate) fn set(&mut self, from: View<'_>) -> Result<(), String> {
        let (of, own) = ((from.format(), from.elements()), (self.format(), self.elements()));
        match (self, from) {
            _ if of != own => {
                return Err(format!("{} {} for room for {} {}", of.1, of.0, own.1, own.0));
            }
            (ViewMut::F32(to), View::F32(from)) => to.copy_from_slice(from),
            (ViewMut::F64(to), View::F64(from)) => to.copy_from_slice(from),
            (ViewMut::Bf16(to), View::Bf16(from)) | (ViewMut::F16(to), View::F16(from)) => {
                to.copy_from_slice(from);
            }
            (ViewMut::U32(to), View::U32(from)) => to.copy_from_slice(from),
            (ViewMut::U8(to), View::U8(from)) => to.copy_from_slice(from),
            _ => unreachable!("they are of the same format"),
        }
        Ok(())
    }

    /// The same elements, to be read.
    pub(crate) fn as_view(&self) -> View<'_> {
        match self {
            ViewMut::F32(it) => View::F32(it),
            ViewMut::F64(it) => View::F64(it),
            ViewMut::Bf16(it) => View::Bf16(it),
            ViewMut::F16(it) => View::F16(it),
            ViewMut::U32(it) => View::U32(it),
            ViewMut::U8(it) => View::U8(it),
        }
    }
}

/// A Rust type that elements are stored as.
pub(crate) trait Element: Copy + Default + Send + 'static {
    /// Elements of one of the formats that are stored as this type.
    fn view(format: Format, elements: &[Self]) -> View<'_>;

    /// Likewise, to be written.
    fn view_mut(format: Format, elements: &mut [Self]) -> ViewMut<'_>;

    /// The elements of a view, which are stored as this type.
    fn elements(view: ViewMut<'_>) -> &mut [Self];
}

macro_rules! element {
    ($type:ty: $($format:ident)|+) => {
        impl Element for $type {
            fn view(format: Format, elements: &[Self]) -> View<'_> {
                match format {
                    $(Format::$format => View::$format(elements),)+
                    _ => unreachable!("{format} is not stored as {}", stringify!($type)),
                }
            }

            fn view_mut(format: Format, elements: &mut [Self]) -> ViewMut<'_> {
                match format {
                    $(Format::$format => ViewMut::$format(elements),)+
                    _ => unreachable!("{format} is not stored as {}", stringify!($type)),
                }
            }

            fn elements(view: ViewMut<'_>) -> &mut [Self] {
                match view {
                    $(ViewMut::$format(elements))|+ => elements,
                    other => {
                        unreachable!("{} is not stored as {}", other.format(), stringify!($type))
                    }
                }
            }
        }
    };
}

element!(f32: F32);
element!(f64: F64);
element!(u16: Bf16 | F16);
element!(u32: U32);
element!(u8: U8);
