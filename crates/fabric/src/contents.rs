#![expect(unsafe_code, reason = "one storage serves elements of every format")]

use std::{ptr, slice};

use crate::{Format, View, ViewMut, view::Element};

/// Elements of a format, in storage of their own.
#[derive(Debug)]
pub struct Contents {
    storage: Storage,
    format: Format,
}

impl Contents {
    /// So many elements, all zero.
    pub fn zeroed(format: Format, elements: usize) -> Self {
        let bytes = elements * format.bytes();
        Self { storage: Storage { words: vec![0; words(bytes)], bytes }, format }
    }

    /// The elements, to be read.
    pub fn view(&self) -> View<'_> {
        match self.format {
            Format::F32 => View::F32(self.storage.elements()),
            Format::F64 => View::F64(self.storage.elements()),
            Format::Bf16 => View::Bf16(self.storage.elements()),
            Format::F16 => View::F16(self.storage.elements()),
            Format::U32 => View::U32(self.storage.elements()),
            Format::U8 => View::U8(self.storage.elements()),
        }
    }

    /// The elements, to be written.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        match self.format {
            Format::F32 => ViewMut::F32(self.storage.elements_mut()),
            Format::F64 => ViewMut::F64(self.storage.elements_mut()),
            Format::Bf16 => ViewMut::Bf16(self.storage.elements_mut()),
            Format::F16 => ViewMut::F16(self.storage.elements_mut()),
            Format::U32 => ViewMut::U32(self.storage.elements_mut()),
            Format::U8 => ViewMut::U8(self.storage.elements_mut()),
        }
    }

    /// The bytes that they are stored in, as this machine orders them.
    pub fn as_bytes(&self) -> &[u8] {
        self.storage.elements()
    }

    /// Likewise, to be written.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.storage.elements_mut()
    }

    /// The same bytes as elements of another format: as many as there are whole ones.
    pub fn relabelled(self, format: Format) -> Contents {
        Contents { format, ..self }
    }

    /// Has the first so many elements, of those that there is room for.
    pub(crate) fn set_elements(&mut self, elements: usize) {
        let bytes = elements * self.format.bytes();
        let room = self.storage.words.len() * size_of::<u64>();
        assert!(bytes <= room, "{elements} {} in room for {room} bytes", self.format);
        self.storage.bytes = bytes;
    }

    /// What they are stored in.
    pub(crate) fn into_storage(self) -> Storage {
        self.storage
    }

    /// Their size.
    pub fn bytes(&self) -> u64 {
        self.storage.bytes as u64
    }
}

impl From<Storage> for Contents {
    /// The bytes.
    fn from(storage: Storage) -> Self {
        Self { storage, format: Format::U8 }
    }
}

impl Default for Contents {
    /// No elements.
    fn default() -> Self {
        Self::zeroed(Format::U8, 0)
    }
}

/// Room for elements of any format, aligned for all of them.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// As many as `bytes` take, all initialised.
    words: Vec<u64>,
    bytes: usize,
}

fn words(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<u64>())
}

impl Storage {
    /// Makes room for so many bytes.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.words.clear();
        self.bytes = 0;
        self.words.reserve_exact(words(bytes));
    }

    /// Becomes a copy of `values`.
    pub(crate) fn set<T: Element>(&mut self, values: &[T]) {
        let bytes = size_of_val(values);
        let count = words(bytes);
        self.words.clear();
        self.words.reserve(count);
        if let Some(last) = self.words.spare_capacity_mut()[..count].last_mut() {
            // The values may end within it.
            last.write(0);
        }
        // SAFETY: there is room for `count` words, which `bytes` bytes fill but for a part of the last
        // one, and that one was written; the values lie elsewhere, as they are borrowed. Every bit
        // pattern is a word.
        unsafe {
            let target = self.words.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), target, bytes);
            self.words.set_len(count);
        }
        self.bytes = bytes;
    }

    /// As elements of a type: as many as there are whole ones.
    pub(crate) fn elements<T: Element>(&self) -> &[T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: the words hold at least `bytes` bytes, initialised and aligned to 8, which is enough
        // for every `Element`, of which every bit pattern is a value. The borrow is that of `self`.
        unsafe { slice::from_raw_parts(self.words.as_ptr().cast(), count) }
    }

    /// Likewise, to be written.
    pub(crate) fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: as in `elements`, and the borrow is exclusive.
        unsafe { slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_values_of_any_length_is_just_these_values() {
        let mut storage = Storage::default();
        for length in [5, 0, 8, 3, 17] {
            let values: Vec<u8> = (1..=length).collect();
            storage.set(&values);
            assert_eq!(storage.elements::<u8>(), values);
            let halves: Vec<u16> = (0..u16::from(length)).map(|it| it * 259).collect();
            storage.set(&halves);
            assert_eq!(storage.elements::<u16>(), halves);
        }
    }

    #[test]
    fn contents_of_every_format_begin_as_zeros_and_keep_what_is_written() {
        let mut contents = Contents::zeroed(Format::F64, 3);
        assert_eq!(contents.view(), View::F64(&[0.0; 3]));
        let ViewMut::F64(values) = contents.view_mut() else { unreachable!("it is f64") };
        values[2] = 2.5;
        assert_eq!(contents.view(), View::F64(&[0.0, 0.0, 2.5]));
        for format in [Format::F32, Format::Bf16, Format::F16, Format::U32, Format::U8] {
            let contents = Contents::zeroed(format, 5);
            assert_eq!((contents.view().format(), contents.view().elements()), (format, 5));
            assert_eq!(contents.bytes(), 5 * format.bytes() as u64);
        }
    }
}
