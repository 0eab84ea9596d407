//! The storage of tensors: one [`Memory`] per rank hands out [`Buffer`]s and counts their bytes.
//!
//! A buffer lies at a place of the memory's arena, if whoever wants it has assigned one ahead, or in a
//! block of its own that is kept for reuse.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::{Arena, Taken};
use crate::device::{Device, Region};
use crate::{Format, View, ViewMut};

/// A cache line, the unit that blocks and places are rounded up to and begin with.
pub(crate) const LINE_BYTES: usize = 64;

/// A region that one buffer has for itself.
struct Block {
    region: Box<dyn Region>,
    lines: usize,
}

#[derive(Default)]
struct Pool {
    /// Blocks nobody uses, by their length in lines.
    free: HashMap<usize, Vec<Block>>,
    arena: Option<Arc<Arena>>,
    live_bytes: usize,
    peak_bytes: usize,
    system_allocations: usize,
}

/// A rank's memory on a device: a cloneable handle to its accounts and its free blocks.
///
/// Bytes are counted as requested (elements times element size), not as rounded.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    device: Arc<dyn Device>,
    pool: Mutex<Pool>,
}

impl Memory {
    /// A memory on `device` with nothing in it.
    pub fn new(device: Arc<dyn Device>) -> Memory {
        Memory { inner: Arc::new(Inner { device, pool: Mutex::default() }) }
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// A buffer of `elements` elements whose contents are unspecified (but initialised).
    ///
    /// # Panics
    /// If their bytes cannot be counted.
    pub fn alloc(&self, format: Format, elements: usize) -> Buffer {
        let (bytes, lines) = size(format, elements);
        let mut pool = self.pool();
        pool.count_in(bytes);
        let freed = pool.free.get_mut(&lines).and_then(Vec::pop);
        pool.system_allocations += usize::from(freed.is_none() && lines > 0);
        drop(pool);
        self.buffer(freed.unwrap_or_else(|| self.block(lines)), format, elements)
    }

    /// A buffer in a block of its own, which is long enough.
    fn buffer(&self, block: Block, format: Format, elements: usize) -> Buffer {
        let storage = Storage::Block { block: Some(block), memory: self.clone() };
        Buffer { storage, format, len: elements, account: self.clone() }
    }

    fn block(&self, lines: usize) -> Block {
        Block { region: self.device().region(lines * LINE_BYTES), lines }
    }

    /// Asks the system once for all that will be taken from places: an arena of so many bytes, instead of
    /// the one there is.
    pub fn reserve(&self, bytes: usize) {
        let lines = bytes.div_ceil(LINE_BYTES);
        let arena = Arena::new(self.device().region(lines * LINE_BYTES), lines);
        let mut pool = self.pool();
        pool.system_allocations += usize::from(bytes > 0);
        pool.arena = Some(Arc::new(arena));
    }

    /// A buffer of `elements` elements, contents unspecified, that begins `offset` bytes into the arena.
    /// `allocation` is whatever identifies it to the caller.
    ///
    /// # Errors
    /// The allocation that is there already, even if only in part.
    ///
    /// # Panics
    /// If the place does not lie in the arena, or does not begin at a multiple of 64 bytes.
    pub fn take(
        &self,
        offset: usize,
        allocation: u64,
        format: Format,
        elements: usize,
    ) -> Result<Buffer, Occupied> {
        let (bytes, _) = size(format, elements);
        let arena = self.pool().arena.clone();
        let arena = arena.expect("places are taken in an arena that was reserved");
        let taken = arena.take(offset, bytes, allocation).map_err(|by| Occupied { by })?;
        self.pool().count_in(bytes);
        Ok(Buffer { storage: Storage::Place(taken), format, len: elements, account: self.clone() })
    }

    /// A buffer of `elements` zeros.
    pub fn alloc_zeroed(&self, format: Format, elements: usize) -> Buffer {
        let mut buffer = self.alloc(format, elements);
        self.device().fill(buffer.as_bytes(), 0.0);
        buffer
    }

    /// Bytes of the buffers that live now and are counted here.
    pub fn live_bytes(&self) -> usize {
        self.pool().live_bytes
    }

    /// The most [`Memory::live_bytes`] has been since the start or the last
    /// [`Memory::reset_peak`].
    pub fn peak_bytes(&self) -> usize {
        self.pool().peak_bytes
    }

    /// Starts a new measurement of the peak from what lives now.
    pub fn reset_peak(&self) {
        let mut pool = self.pool();
        pool.peak_bytes = pool.live_bytes;
    }

    /// How often the system was asked: for an arena, and for what could not be served from a freed block.
    pub fn system_allocations(&self) -> usize {
        self.pool().system_allocations
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // Every update of the pool is complete before anything in it can panic.
        self.inner.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pool = self.pool();
        f.debug_struct("Memory")
            .field("live_bytes", &pool.live_bytes)
            .field("peak_bytes", &pool.peak_bytes)
            .field("system_allocations", &pool.system_allocations)
            .finish_non_exhaustive()
    }
}

impl Pool {
    fn count_in(&mut self, bytes: usize) {
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }
}

/// Who is at a place that was to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// What the one there was called when it took the place.
    pub by: u64,
}

/// Bytes and whole lines of some elements.
fn size(format: Format, elements: usize) -> (usize, usize) {
    let bytes = elements.checked_mul(format.bytes());
    let bytes = bytes.unwrap_or_else(|| panic!("{elements} elements are more than memory has"));
    (bytes, bytes.div_ceil(LINE_BYTES))
}

/// A tensor's storage: `len` elements of one format in a device's memory, aligned to 64 bytes. What they are
/// only the device knows: see [`Device`].
///
/// Dropping it gives back its place, or its block to the memory it was allocated from, on whichever
/// thread that happens.
pub struct Buffer {
    storage: Storage,
    format: Format,
    len: usize,
    /// Who counts the bytes.
    account: Memory,
}

/// Where the elements lie: at least as many bytes as they have, initialised and aligned to 64.
enum Storage {
    /// In a block of its own.
    Block {
        /// None once it is given back.
        block: Option<Block>,
        /// Whose free list the block returns to. It stays the allocating memory when a buffer is adopted:
        /// a rank that only sends would otherwise allocate anew every step.
        memory: Memory,
    },
    /// At a place of an arena.
    Place(Taken),
}

impl Storage {
    /// The region, and where in it the first element is.
    fn start(&self) -> (&dyn Region, usize) {
        match self {
            Storage::Block { block, .. } => {
                (&*block.as_ref().expect("a buffer has its block until it is dropped").region, 0)
            }
            Storage::Place(taken) => (taken.region(), taken.start_bytes()),
        }
    }
}

impl Buffer {
    /// How elements are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The device whose memory they are in.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.account.device()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes as counted.
    pub fn bytes(&self) -> usize {
        self.len * self.format.bytes()
    }

    /// The same buffer counted by `memory` from now on: that of messages under way, whose rings' blocks these
    /// are.
    pub fn adopt(mut self, memory: &Memory) -> Buffer {
        let bytes = self.bytes();
        self.account.pool().live_bytes -= bytes;
        memory.pool().count_in(bytes);
        self.account = memory.clone();
        self
    }

    /// All elements, to be read.
    pub fn view(&self) -> View<'_> {
        let (region, start_bytes) = self.storage.start();
        View::new(region, start_bytes, self.len, self.format)
    }

    /// All elements, to be written.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let (region, start_bytes) = self.storage.start();
        ViewMut::new(region, start_bytes, self.len, self.format)
    }

    /// Their bytes.
    fn as_bytes(&mut self) -> ViewMut<'_> {
        let bytes = self.bytes();
        let (region, start_bytes) = self.storage.start();
        ViewMut::new(region, start_bytes, bytes, Format::U8)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = self.bytes();
        self.account.pool().live_bytes -= bytes;
        if let Storage::Block { block, memory } = &mut self.storage
            && let Some(block) = block.take()
        {
            memory.pool().free.entry(block.lines).or_default().push(block);
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("format", &self.format)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
