//! Tensors for kernels to work on, several copies of each, so that calls do not find their operands
//! where the call before left them.

use std::ops::Range;

use shardloom_kernels::dispatch::{Data, DataMut, Input, Output};
use shardloom_kernels::{Buffer, DType, Memory};

/// Copies of a cold tensor fill this much: with all the cold tensors of all ranks more than a core's
/// share of the last-level cache.
const COLD_BYTES: usize = 16 << 20;

/// How near to the core a kernel finds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Warmth {
    /// The operator before has just made it, or freed its block.
    Warm,
    /// It has not been touched for long: a weight, or a tensor kept since the forward pass.
    Cold,
}

/// Copies of one tensor, side by side.
pub(super) struct Operand {
    shape: Vec<usize>,
    elements: usize,
    stride: usize,
    copies: usize,
    buffer: Buffer,
}

impl Operand {
    /// Copies of a tensor of real numbers or masks, or of indices below `indices`.
    pub fn new(
        memory: &Memory,
        dtype: DType,
        shape: Vec<usize>,
        warmth: Warmth,
        indices: usize,
    ) -> Operand {
        let elements: usize = shape.iter().product();
        // Each copy begins a cache line, as tensors do.
        let stride = elements.max(1).next_multiple_of(64 / dtype.bytes());
        let (copies, held) = match warmth {
            Warmth::Warm => (2, 2 * stride),
            Warmth::Cold => {
                let room = COLD_BYTES / dtype.bytes();
                let copies = (room / stride).max(1);
                (copies, room.max(stride))
            }
        };
        let mut buffer = memory.alloc(dtype, held);
        match dtype {
            DType::F32 => repeat(buffer.as_f32_mut(), |i| (i * 37 % 61) as f32 / 64.0 - 0.4),
            DType::U8 => repeat(buffer.as_u8_mut(), |i| u8::from(i * 37 % 61 > 6)),
            DType::U32 => repeat(buffer.as_u32_mut(), |i| (i * 7919 % indices.max(1)) as u32),
        }
        Operand { shape, elements, stride, copies, buffer }
    }

    /// The same with other contents: element by element of each copy.
    pub fn holding(mut self, value: impl Fn(usize) -> u32) -> Operand {
        let Operand { stride, elements, copies, .. } = self;
        for copy in 0..copies {
            let place = copy * stride..copy * stride + elements;
            match self.buffer.dtype() {
                DType::F32 => fill(&mut self.buffer.as_f32_mut()[place], |it| value(it) as f32),
                DType::U8 => fill(&mut self.buffer.as_u8_mut()[place], |it| value(it) as u8),
                DType::U32 => fill(&mut self.buffer.as_u32_mut()[place], &value),
            }
        }
        self
    }

    /// Where the copy for the n-th call lies.
    fn place(&self, call: usize) -> Range<usize> {
        let start = call % self.copies * self.stride;
        start..start + self.elements
    }

    /// The copy for the n-th call, to be read.
    pub fn input(&self, call: usize) -> Input<'_> {
        let place = self.place(call);
        let data = match self.buffer.dtype() {
            DType::F32 => Data::F32(&self.buffer.as_f32()[place]),
            DType::U8 => Data::U8(&self.buffer.as_u8()[place]),
            DType::U32 => Data::U32(&self.buffer.as_u32()[place]),
        };
        Input { shape: &self.shape, data }
    }

    /// The copy for the n-th call, to be written.
    pub fn output(&mut self, call: usize, accumulate: bool) -> Output<'_> {
        let place = self.place(call);
        let data = match self.buffer.dtype() {
            DType::F32 => DataMut::F32(&mut self.buffer.as_f32_mut()[place]),
            DType::U8 => DataMut::U8(&mut self.buffer.as_u8_mut()[place]),
            DType::U32 => DataMut::U32(&mut self.buffer.as_u32_mut()[place]),
        };
        Output { shape: &self.shape, data, accumulate }
    }

    /// The real numbers of the copy for the n-th call.
    pub fn reals(&self, call: usize) -> &[f32] {
        &self.buffer.as_f32()[self.place(call)]
    }

    /// As [`Operand::reals`], writable.
    pub fn reals_mut(&mut self, call: usize) -> &mut [f32] {
        let place = self.place(call);
        &mut self.buffer.as_f32_mut()[place]
    }
}

fn fill<T>(all: &mut [T], value: impl Fn(usize) -> T) {
    all.iter_mut().enumerate().for_each(|(at, each)| *each = value(at));
}

/// Fills `all` with repeats of a first part.
fn repeat<T: Copy>(all: &mut [T], value: impl Fn(usize) -> T) {
    const PERIOD: usize = 4096;
    let (first, rest) = all.split_at_mut(all.len().min(PERIOD));
    first.iter_mut().enumerate().for_each(|(i, each)| *each = value(i));
    for chunk in rest.chunks_mut(PERIOD) {
        chunk.copy_from_slice(&first[..chunk.len()]);
    }
}
