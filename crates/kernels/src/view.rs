//! Parts of buffers, as the operations of a device take them.
//!
//! A view says which elements of which region of a device's memory, and in which format. Only the device
//! that made the region can look at them.

use std::fmt;
use std::ops::Range;

use crate::Format;
use crate::device::Region;

/// Elements of a [`Buffer`](crate::Buffer) that are read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    place: Place<'a>,
}

/// Elements of a [`Buffer`](crate::Buffer) that are written, and nobody else's meanwhile.
pub struct ViewMut<'a> {
    place: Place<'a>,
}

#[derive(Clone, Copy)]
struct Place<'a> {
    region: &'a dyn Region,
    start_bytes: usize,
    len: usize,
    format: Format,
}

impl Place<'_> {
    /// # Panics
    /// If the elements are not there.
    fn slice(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "elements {range:?} of {}",
            self.len
        );
        let start_bytes = self.start_bytes + range.start * self.format.bytes();
        Place { start_bytes, len: range.len(), ..self }
    }
}

impl<'a> View<'a> {
    /// The elements from a byte of a region on. They belong to a buffer that is borrowed for `'a`.
    pub(crate) fn new(
        region: &'a dyn Region,
        start_bytes: usize,
        len: usize,
        format: Format,
    ) -> View<'a> {
        View { place: Place { region, start_bytes, len, format } }
    }

    /// The memory that the elements are in.
    pub fn region(&self) -> &'a dyn Region {
        self.place.region
    }

    /// Where in it they begin; a multiple of an element's size.
    pub fn start_bytes(&self) -> usize {
        self.place.start_bytes
    }

    /// How each is stored.
    pub fn format(&self) -> Format {
        self.place.format
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.place.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.place.len == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// If they are not among them.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> View<'a> {
        View { place: self.place.slice(range) }
    }
}

impl<'a> ViewMut<'a> {
    /// The elements from a byte of a region on. They belong to a buffer, or a part of one, that is borrowed
    /// exclusively for `'a`.
    pub(crate) fn new(
        region: &'a dyn Region,
        start_bytes: usize,
        len: usize,
        format: Format,
    ) -> ViewMut<'a> {
        ViewMut { place: Place { region, start_bytes, len, format } }
    }

    /// The memory that the elements are in.
    pub fn region(&self) -> &dyn Region {
        self.place.region
    }

    /// Where in it they begin; a multiple of an element's size.
    pub fn start_bytes(&self) -> usize {
        self.place.start_bytes
    }

    /// How each is stored.
    pub fn format(&self) -> Format {
        self.place.format
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.place.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.place.len == 0
    }

    /// The same elements, to be read.
    pub fn as_view(&self) -> View<'_> {
        View { place: self.place }
    }

    /// The same elements, to be written for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { place: self.place }
    }

    /// Some of them.
    ///
    /// # Panics
    /// If they are not among them.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> ViewMut<'a> {
        ViewMut { place: self.place.slice(range) }
    }

    /// The first `count` elements, and the rest.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn split_at(self, count: usize) -> (ViewMut<'a>, ViewMut<'a>) {
        let rest = self.place.slice(count..self.place.len);
        (ViewMut { place: self.place.slice(0..count) }, ViewMut { place: rest })
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} elements of {}", self.len(), self.format())
    }
}

impl fmt::Debug for ViewMut<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_view().fmt(out)
    }
}
