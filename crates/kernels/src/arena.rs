//! One allocation that many buffers lie in, at places that were assigned ahead.
//!
//! Nothing here depends on the assignment being right: an arena knows which of its bytes are in use, and
//! does not give any of them twice.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Region;
use crate::memory::LINE_BYTES;

/// Room for buffers that are there at the same time before the list of those in use has to grow.
const EXPECTED_BUFFERS: usize = 1024;

/// A region, in whole lines, of which parts are in use.
pub(crate) struct Arena {
    region: Box<dyn Region>,
    lines: usize,
    /// What is in use, in ascending order; nothing overlaps.
    in_use: Mutex<Vec<InUse>>,
}

/// Lines in use.
struct InUse {
    lines: Range<usize>,
    allocation: u64,
}

impl Arena {
    /// An arena of so many lines of a region.
    pub fn new(region: Box<dyn Region>, lines: usize) -> Arena {
        Arena { region, lines, in_use: Mutex::new(Vec::with_capacity(EXPECTED_BUFFERS)) }
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
        assert!(offset.is_multiple_of(LINE_BYTES), "a place begins with a line");
        let start = offset / LINE_BYTES;
        let lines = start..start + bytes.div_ceil(LINE_BYTES);
        assert!(lines.end <= self.lines, "a place lies in its arena");
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
    /// The region that the lines are of.
    pub fn region(&self) -> &dyn Region {
        &*self.arena.region
    }

    /// Where in it they begin, in bytes.
    pub fn start_bytes(&self) -> usize {
        self.lines.start * LINE_BYTES
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
    use crate::{Format, Memory, Occupied, processor};

    #[test]
    fn a_place_in_use_is_not_given_again_and_its_allocation_is_named() {
        let memory = Memory::new(processor());
        memory.reserve(4 * 64);
        let first = memory.take(64, 7, Format::F32, 20).expect("nobody is there");
        // What has no bytes takes no line, and gives none back.
        drop(memory.take(64, 12, Format::F32, 0).expect("it takes nothing"));
        for (offset, elements) in [(0, 17), (64, 1), (128, 16), (0, 64)] {
            let there = memory.take(offset, 8, Format::F32, elements).err();
            assert_eq!(there, Some(Occupied { by: 7 }), "{offset} {elements}");
        }
        let before = memory.take(0, 9, Format::F32, 16).expect("the first line is free");
        let after = memory.take(192, 10, Format::U8, 64).expect("the last line is free");
        assert_eq!(memory.live_bytes(), 80 + 64 + 64);
        drop(first);
        assert!(memory.take(64, 11, Format::F32, 32).is_ok());
        assert_eq!(memory.system_allocations(), 1);
        drop((before, after));
        assert_eq!(memory.live_bytes(), 0);
        assert_eq!(memory.peak_bytes(), 64 + 64 + 128);
    }

    #[test]
    fn buffers_side_by_side_keep_what_is_written_to_them() {
        let memory = Memory::new(processor());
        memory.reserve(3 * 64);
        let mut buffers: Vec<_> = (0..3)
            .map(|index| memory.take(64 * index, index as u64, Format::F32, 10).expect("is free"))
            .collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            processor().fill(buffer.view_mut(), index as f32);
        }
        let last = buffers.pop().expect("three");
        let read =
            std::thread::spawn(move || processor().reals(last.view())).join().expect("no panic");
        assert_eq!(read, [2.0; 10]);
        assert_eq!(processor().reals(buffers[0].view()), [0.0; 10]);
        assert_eq!(processor().reals(buffers[1].view()), [1.0; 10]);
    }

    #[test]
    #[should_panic(expected = "a place lies in its arena")]
    fn a_place_beyond_the_arena_is_refused() {
        let memory = Memory::new(processor());
        memory.reserve(64);
        let _ = memory.take(64, 0, Format::U8, 1);
    }
}
