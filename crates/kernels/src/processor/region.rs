//! The processor's memory: lines of the heap, which views give access to.

use std::any::Any;
use std::cell::UnsafeCell;

use half::{bf16, f16};

use crate::device::Region;
use crate::{Format, View, ViewMut};

/// A cache line, which buffers begin with.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Lines of the heap.
pub(super) struct Lines(Box<[UnsafeCell<Line>]>);

// SAFETY: lines are reached only through `start` below, by views. A `View` borrows the buffer that its
// elements belong to and a `ViewMut` borrows them exclusively, and a memory gives no byte of a region to two
// buffers at a time.
unsafe impl Sync for Lines {}

impl Region for Lines {}

impl Lines {
    /// At least so many bytes, all zero.
    pub fn new(bytes: usize) -> Lines {
        let lines = vec![Line([0; 64]); bytes.div_ceil(size_of::<Line>())].into_boxed_slice();
        let lines = Box::into_raw(lines) as *mut [UnsafeCell<Line>];
        // SAFETY: `UnsafeCell<Line>` has the layout of `Line`, and the box was just taken apart.
        Lines(unsafe { Box::from_raw(lines) })
    }
}

/// A Rust type that elements of a format are. Every bit pattern is a value of each.
pub(crate) trait Element: Copy + 'static {
    /// The format.
    const FORMAT: Format;
}

impl Element for f32 {
    const FORMAT: Format = Format::F32;
}

impl Element for bf16 {
    const FORMAT: Format = Format::Bf16;
}

impl Element for f16 {
    const FORMAT: Format = Format::F16;
}

impl Element for f64 {
    const FORMAT: Format = Format::F64;
}

impl Element for u32 {
    const FORMAT: Format = Format::U32;
}

impl Element for u8 {
    const FORMAT: Format = Format::U8;
}

/// Where the elements of a view begin, after a check that they are of type `T` and inside the region.
///
/// # Panics
/// If they are not, or the region is not the processor's.
fn start<T: Element>(region: &dyn Region, view: View<'_>) -> *mut T {
    assert_eq!(view.format(), T::FORMAT, "a buffer is read as the format it was allocated with");
    let region: &dyn Any = region;
    let Some(Lines(lines)) = region.downcast_ref() else {
        panic!("the processor was given elements in another device's memory")
    };
    let (first, bytes) = (view.start_bytes(), view.len() * size_of::<T>());
    let inside = first.checked_add(bytes).is_some_and(|end| end <= size_of_val(&**lines));
    assert!(inside && first.is_multiple_of(align_of::<T>()), "a view lies in its region");
    // From all of the lines, so that the pointer may be used for all of them.
    // SAFETY: `first` bytes lie in the lines.
    unsafe { UnsafeCell::raw_get(lines.as_ptr()).cast::<u8>().add(first).cast() }
}

impl<'a> View<'a> {
    /// The elements, which are in the processor's memory.
    pub(crate) fn elements<T: Element>(self) -> &'a [T] {
        let start = start::<T>(self.region(), self);
        // SAFETY: `start` checked type, alignment and bounds, all bytes are initialised, and the buffer
        // that they belong to is borrowed for `'a`.
        unsafe { std::slice::from_raw_parts(start, self.len()) }
    }
}

impl<'a> ViewMut<'a> {
    /// The elements, which are in the processor's memory.
    pub(crate) fn elements_mut<T: Element>(self) -> &'a mut [T] {
        let (start, len) = (start::<T>(self.region(), self.as_view()), self.len());
        // SAFETY: as in `elements`; this view borrows them exclusively for `'a`, and ends here.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
