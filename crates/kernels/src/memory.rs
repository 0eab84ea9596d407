//! The storage of tensors: one [`Memory`] per rank hands out [`Buffer`]s and counts their bytes.
//!
//! A buffer lies at a place of the memory's arena, if whoever wants it has assigned one ahead, or in a
//! block of its own that is kept for reuse.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::{Arena, Taken};

/// A cache line, the unit blocks are aligned to and rounded up to.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

type Block = Vec<Line>;

/// The element type of a [`Buffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// Bytes: dropout masks.
    U8,
    /// 32-bit unsigned integers: tokens and class labels.
    U32,
}

impl DType {
    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::U8 => 1,
        }
    }
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

/// A rank's memory: a cloneable handle to its accounts and its free blocks.
///
/// Bytes are counted as requested (elements times element size), not as rounded.
#[derive(Clone, Default)]
pub struct Memory {
    pool: Arc<Mutex<Pool>>,
}

impl Memory {
    /// A memory with nothing in it.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// A buffer of `elements` elements whose contents are unspecified (but initialised).
    ///
    /// # Panics
    /// If their bytes cannot be counted.
    pub fn alloc(&self, dtype: DType, elements: usize) -> Buffer {
        self.reuse(dtype, elements).unwrap_or_else(|| {
            let (bytes, lines) = size(dtype, elements);
            let mut pool = self.pool();
            pool.count_in(bytes);
            pool.system_allocations += 1;
            drop(pool);
            self.buffer(vec![Line([0; 64]); lines], dtype, elements)
        })
    }

    /// As [`Memory::alloc`], but only from freed blocks of just this size; none if there is none.
    pub fn reuse(&self, dtype: DType, elements: usize) -> Option<Buffer> {
        let (bytes, lines) = size(dtype, elements);
        let mut pool = self.pool();
        let block = match lines {
            0 => vec![],
            _ => pool.free.get_mut(&lines)?.pop()?,
        };
        pool.count_in(bytes);
        drop(pool);
        Some(self.buffer(block, dtype, elements))
    }

    /// A buffer in a block of its own, which is long enough.
    fn buffer(&self, block: Block, dtype: DType, elements: usize) -> Buffer {
        let storage = Storage::Block { block, memory: self.clone() };
        Buffer { storage, dtype, len: elements, account: self.clone() }
    }

    /// Asks the system for `count` blocks that buffers of `elements` elements can be served from.
    pub fn stock(&self, dtype: DType, elements: usize, count: usize) {
        let (_, lines) = size(dtype, elements);
        let blocks = (0..if lines > 0 { count } else { 0 }).map(|_| vec![Line([0; 64]); lines]);
        let blocks: Vec<Block> = blocks.collect();
        let mut pool = self.pool();
        pool.system_allocations += blocks.len();
        pool.free.entry(lines).or_default().extend(blocks);
    }

    /// Asks the system once for all that will be taken from places: an arena of so many bytes, instead of
    /// the one there is.
    pub fn reserve(&self, bytes: usize) {
        let arena = Arena::new(bytes);
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
        dtype: DType,
        elements: usize,
    ) -> Result<Buffer, Occupied> {
        let (bytes, _) = size(dtype, elements);
        let arena = self.pool().arena.clone();
        let arena = arena.expect("places are taken in an arena that was reserved");
        let taken = arena.take(offset, bytes, allocation).map_err(|by| Occupied { by })?;
        self.pool().count_in(bytes);
        Ok(Buffer { storage: Storage::Place(taken), dtype, len: elements, account: self.clone() })
    }

    /// A buffer of `elements` zeros.
    pub fn alloc_zeroed(&self, dtype: DType, elements: usize) -> Buffer {
        let mut buffer = self.alloc(dtype, elements);
        if let Storage::Block { block, .. } = &mut buffer.storage {
            block.fill(Line([0; 64]));
        }
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

    /// Returns all free blocks to the system: for when sizes change, as after re-planning.
    pub fn release_free(&self) {
        let free = std::mem::take(&mut self.pool().free);
        drop(free);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // Every update of the pool is complete before anything in it can panic.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Bytes and whole lines of some elements. The views of a buffer rely on its storage being as long.
fn size(dtype: DType, elements: usize) -> (usize, usize) {
    let bytes = elements.checked_mul(dtype.bytes());
    let bytes = bytes.unwrap_or_else(|| panic!("{elements} elements are more than memory has"));
    (bytes, bytes.div_ceil(size_of::<Line>()))
}

/// A tensor's storage: `len` elements of one type, aligned to 64 bytes.
///
/// Dropping it gives back its place, or its block to the memory it was allocated from, on whichever
/// thread that happens.
pub struct Buffer {
    storage: Storage,
    dtype: DType,
    len: usize,
    /// Who counts the bytes.
    account: Memory,
}

/// Where the elements lie: at least as many bytes as they have, initialised and aligned to 64.
enum Storage {
    /// In a block of its own.
    Block {
        block: Block,
        /// Whose free list the block returns to. It stays the allocating memory when a buffer is adopted:
        /// a rank that only sends would otherwise allocate anew every step.
        memory: Memory,
    },
    /// At a place of an arena.
    Place(Taken),
}

impl Buffer {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
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
        self.len * self.dtype.bytes()
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

    /// The elements.
    ///
    /// # Panics
    /// If the element type is not [`DType::F32`].
    pub fn as_f32(&self) -> &[f32] {
        self.check(DType::F32);
        // SAFETY: `check` proved the type, of which every bit pattern is a value; see `elements`.
        unsafe { self.elements() }
    }

    /// The elements, writable.
    ///
    /// # Panics
    /// If the element type is not [`DType::F32`].
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        self.check(DType::F32);
        // SAFETY: as in `as_f32`.
        unsafe { self.elements_mut() }
    }

    /// The elements.
    ///
    /// # Panics
    /// If the element type is not [`DType::U8`].
    pub fn as_u8(&self) -> &[u8] {
        self.check(DType::U8);
        // SAFETY: as in `as_f32`.
        unsafe { self.elements() }
    }

    /// The elements, writable.
    ///
    /// # Panics
    /// If the element type is not [`DType::U8`].
    pub fn as_u8_mut(&mut self) -> &mut [u8] {
        self.check(DType::U8);
        // SAFETY: as in `as_f32`.
        unsafe { self.elements_mut() }
    }

    /// The elements.
    ///
    /// # Panics
    /// If the element type is not [`DType::U32`].
    pub fn as_u32(&self) -> &[u32] {
        self.check(DType::U32);
        // SAFETY: as in `as_f32`.
        unsafe { self.elements() }
    }

    /// The elements, writable.
    ///
    /// # Panics
    /// If the element type is not [`DType::U32`].
    pub fn as_u32_mut(&mut self) -> &mut [u32] {
        self.check(DType::U32);
        // SAFETY: as in `as_f32`.
        unsafe { self.elements_mut() }
    }

    fn check(&self, asked: DType) {
        assert_eq!(self.dtype, asked, "a buffer is read as the type it was allocated with");
    }

    /// # Safety
    /// `T` must be the Rust type of `self.dtype`.
    unsafe fn elements<T>(&self) -> &[T] {
        let start: NonNull<u8> = match &self.storage {
            Storage::Block { block, .. } => NonNull::from(block.as_slice()).cast(),
            Storage::Place(taken) => taken.start(),
        };
        // SAFETY: the storage holds at least `len` elements of `dtype`'s size, all initialised,
        // aligned to 64 bytes, borrowed as long as `self` is; what is taken of an arena is this
        // buffer's alone.
        unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), self.len) }
    }

    /// # Safety
    /// `T` must be the Rust type of `self.dtype`.
    unsafe fn elements_mut<T>(&mut self) -> &mut [T] {
        let start: NonNull<u8> = match &mut self.storage {
            Storage::Block { block, .. } => NonNull::from(block.as_mut_slice()).cast(),
            Storage::Place(taken) => taken.start(),
        };
        // SAFETY: as in `elements`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(start.cast().as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = self.bytes();
        self.account.pool().live_bytes -= bytes;
        if let Storage::Block { block, memory } = &mut self.storage {
            let block = std::mem::take(block);
            if !block.is_empty() {
                memory.pool().free.entry(block.len()).or_default().push(block);
            }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("dtype", &self.dtype)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
