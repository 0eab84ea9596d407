//! One allocation that many buffers lie in, at places that were assigned ahead.
//!
//! Nothing here depends on the assignment being right: an arena knows which of its bytes are in use, and
//! does not give any of them twice.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::Line;

/// Room for buffers that are there at the same time before the list of those in use has to grow.
const EXPECTED_BUFFERS: usize = 1024;

/// Bytes, in whole lines, of which parts are in use.
pub(crate) struct Arena {
    lines: Box<[UnsafeCell<Line>]>,
    /// What is in use, in ascending order; nothing overlaps.
    in_use: Mutex<Vec<InUse>>,
}

/// Lines in use.
struct InUse {
    lines: Range<usize>,
    allocation: u64,
}

// SAFETY: a shared reference to an arena gives access to its lines only through `Taken::start`, and
// lines that are taken belong to one `Taken` at a time.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of at least so many bytes, all zero.
    pub fn new(bytes: usize) -> Arena {
        let count = bytes.div_ceil(size_of::<Line>());
        let lines = vec![Line([0; 64]); count].into_boxed_slice();
        let lines = Box::into_raw(lines) as *mut [UnsafeCell<Line>];
        // SAFETY: `UnsafeCell<Line>` has the layout of `Line`, and the box was just taken apart.
        let lines = unsafe { Box::from_raw(lines) };
        Arena { lines, in_use: Mutex::new(Vec::with_capacity(EXPECTED_BUFFERS)) }
    }

    /// Takes `bytes` bytes from `offset` on; the allocation that is there, if some of them are in use.
    ///
    /// # Panics
    /// If they do not lie in the arena, or do not begin with a line.
    pub fn take(
        self: &Arc<Arena>,
        offset: usize,
        bytes: usize,
        allocation: u64,
    ) -> Result<Taken, u64> {
        assert!(offset.is_multiple_of(size_of::<Line>()), "a place begins with a line");
        let start = offset / size_of::<Line>();
        let lines = start..start + bytes.div_ceil(size_of::<Line>());
        assert!(lines.end <= self.lines.len(), "a place lies in its arena");
        if !lines.is_empty() {
            let mut in_use = self.in_use();
            let next = in_use.partition_point(|it| it.lines.end <= lines.start);
            if let Some(there) = in_use.get(next).filter(|it| it.lines.start < lines.end) {
                return Err(there.allocation);
            }
            in_use.insert(next, InUse { lines: lines.clone(), allocation });
        }
        Ok(Taken { arena: Arc::clone(self), lines })
    }

    fn in_use(&self) -> MutexGuard<'_, Vec<InUse>> {
        // Every change of the list is complete before anything can panic.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lines of an arena that are nobody else's until this is dropped.
pub(crate) struct Taken {
    arena: Arc<Arena>,
    lines: Range<usize>,
}

impl Taken {
    /// Where the lines begin. They may be read through it while `self` is borrowed, and written while it
    /// is borrowed exclusively.
    pub fn start(&self) -> NonNull<u8> {
        let lines = &self.arena.lines[self.lines.clone()];
        // From all of the lines, so that the pointer may be used for all of them.
        NonNull::from(lines).cast()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let mut in_use = self.arena.in_use();
        let at = in_use.partition_point(|it| it.lines.end <= self.lines.start);
        in_use.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Memory, Occupied};

    #[test]
    fn a_place_in_use_is_not_given_again_and_its_allocation_is_named() {
        let memory = Memory::new();
        memory.reserve(4 * 64);
        let first = memory.take(64, 7, DType::F32, 20).expect("nobody is there");
        for (offset, elements) in [(0, 17), (64, 1), (128, 16), (0, 64)] {
            let there = memory.take(offset, 8, DType::F32, elements).err();
            assert_eq!(there, Some(Occupied { by: 7 }), "{offset} {elements}");
        }
        let before = memory.take(0, 9, DType::F32, 16).expect("the first line is free");
        let after = memory.take(192, 10, DType::U8, 64).expect("the last line is free");
        assert_eq!(memory.live_bytes(), 80 + 64 + 64);
        drop(first);
        assert!(memory.take(64, 11, DType::F32, 32).is_ok());
        assert_eq!(memory.system_allocations(), 1);
        drop((before, after));
        assert_eq!(memory.live_bytes(), 0);
        assert_eq!(memory.peak_bytes(), 64 + 64 + 128);
    }

    #[test]
    fn buffers_side_by_side_keep_what_is_written_to_them() {
        let memory = Memory::new();
        memory.reserve(3 * 64);
        let mut buffers: Vec<_> = (0..3)
            .map(|index| memory.take(64 * index, index as u64, DType::F32, 10).expect("is free"))
            .collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.as_f32_mut().fill(index as f32);
        }
        let last = buffers.pop().expect("three");
        let read = std::thread::spawn(move || last.as_f32().to_vec()).join().expect("no panic");
        assert_eq!(read, [2.0; 10]);
        assert_eq!(buffers[0].as_f32(), [0.0; 10]);
        assert_eq!(buffers[1].as_f32(), [1.0; 10]);
    }

    #[test]
    #[should_panic(expected = "a place lies in its arena")]
    fn a_place_beyond_the_arena_is_refused() {
        let memory = Memory::new();
        memory.reserve(64);
        let _ = memory.take(64, 0, DType::U8, 1);
    }
}
