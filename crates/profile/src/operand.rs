//! Tensors for kernels to work on, several copies of each, so that calls do not find their operands
//! where the call before left them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use shardloom_kernels::device::{HostSliceMut, Input, OperandSize, Output};
use shardloom_kernels::{Buffer, Device, Format, Memory, View, ViewMut};

/// What copies of a cold tensor fill on this machine: with those of an operator's other cold tensors and of other ranks
/// more than the last-level cache, within what can be filled in a moment.
pub(crate) fn cold_bytes() -> usize {
    /// Cold tensors that are measured at a time, at least: two of each of two ranks.
    const AT_ONCE: usize = 4;
    (last_level_cache_bytes().unwrap_or(0) / AT_ONCE).clamp(16 << 20, 96 << 20)
}

/// The size of the last-level cache, where Linux says it: `491520K`.
fn last_level_cache_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok()?;
    kibibytes(&text)
}

fn kibibytes(text: &str) -> Option<usize> {
    let count: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    count.checked_mul(1 << 10)
}

/// How near to the core a kernel finds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// The operator before has just made it, or freed its block.
    Warm,
    /// It has not been touched for long: a weight, or a tensor kept since the forward pass. Its copies fill so many
    /// bytes.
    Cold { room: usize },
}

/// What kernels do with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// They read it.
    Read,
    /// They write it, whatever was there.
    Written,
    /// They add to it.
    AddedTo,
}

/// Where operands are made, and memory of cold ones that are no longer needed, for later ones: to fill it takes longer
/// than most measurements do.
pub(crate) struct Rooms {
    memory: Memory,
    /// Those last left last.
    left: VecDeque<Room>,
}

/// What a cold operand was in.
struct Room {
    buffer: Buffer,
    of: Use,
    /// The element behind the copy that was used last. What lies before it may still be in a cache.
    end: usize,
}

impl Rooms {
    /// As many as the operands of most operators: each fills a large share of the last-level cache.
    const MOST: usize = 6;

    pub fn new(memory: Memory) -> Rooms {
        Rooms { memory, left: VecDeque::new() }
    }

    /// Where operands are made.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Copies of a tensor as [`Operand::new`] makes them, where an operand of the same use was, if one has been left:
    /// what was read is as it was filled, and what is written may be anything.
    pub fn operand(
        &mut self,
        format: Format,
        shape: Vec<usize>,
        warmth: Warmth,
        indices: usize,
        of: Use,
    ) -> Operand {
        let layout = Layout::of(format, &shape, warmth);
        let fits = |room: &Room| {
            room.of == of && room.buffer.format() == format && room.buffer.len() >= layout.held
        };
        let found = match warmth {
            Warmth::Cold { .. } => self.left.iter().rposition(fits),
            Warmth::Warm => None,
        };
        match found.and_then(|found| self.left.remove(found)) {
            Some(Room { buffer, end, .. }) => {
                let first = end.div_ceil(layout.stride);
                Operand { shape, layout, first, buffer, is_as_filled: true }
            }
            None => {
                if layout.is_cold {
                    // Instead of one that nothing has needed for longest.
                    self.left.pop_front();
                }
                Operand::new(&self.memory, format, shape, warmth, indices)
            }
        }
    }

    /// Keeps the room of an operand, of which so many calls used a copy each, for others, if it is worth it: indices have
    /// limits of their own, and what was added to is no longer small.
    pub fn leave(&mut self, operand: Operand, of: Use, calls: usize) {
        let end = operand.place(calls).start;
        let Operand { layout, buffer, is_as_filled, .. } = operand;
        let is_as_others = is_as_filled && of != Use::AddedTo && buffer.format() != Format::U32;
        if layout.is_cold && is_as_others {
            self.left.push_back(Room { buffer, of, end });
            if self.left.len() > Rooms::MOST {
                self.left.pop_front();
            }
        }
    }
}

/// How copies of a tensor lie side by side.
#[derive(Clone, Copy)]
struct Layout {
    elements: usize,
    stride: usize,
    copies: usize,
    /// Elements that they are held in.
    held: usize,
    is_cold: bool,
}

impl Layout {
    fn of(format: Format, shape: &[usize], warmth: Warmth) -> Layout {
        let elements: usize = shape.iter().product();
        // Each copy begins a cache line, as tensors do.
        let stride = elements.max(1).next_multiple_of(64 / format.bytes());
        match warmth {
            Warmth::Warm => {
                Layout { elements, stride, copies: 2, held: 2 * stride, is_cold: false }
            }
            Warmth::Cold { room } => {
                let room = room / format.bytes();
                let copies = (room / stride).max(1);
                Layout { elements, stride, copies, held: room.max(stride), is_cold: true }
            }
        }
    }
}

/// Copies of one tensor, side by side.
pub(crate) struct Operand {
    shape: Vec<usize>,
    layout: Layout,
    /// The copy that the first call uses.
    first: usize,
    buffer: Buffer,
    is_as_filled: bool,
}

impl Operand {
    /// Copies of a tensor of real numbers or masks, or of indices below `indices`.
    pub fn new(
        memory: &Memory,
        format: Format,
        shape: Vec<usize>,
        warmth: Warmth,
        indices: usize,
    ) -> Operand {
        let layout = Layout::of(format, &shape, warmth);
        let real = |i: usize| (i * 37 % 61) as f32 / 64.0 - 0.4;
        let mut buffer = memory.alloc(format, layout.held);
        memory.device().lend(buffer.view_mut(), &mut |elements| match elements {
            HostSliceMut::F32(all) => repeat(all, real),
            HostSliceMut::Bf16(all) => repeat(all, |i| bf16::from_f32(real(i)).to_bits()),
            HostSliceMut::F16(all) => repeat(all, |i| f16::from_f32(real(i)).to_bits()),
            HostSliceMut::U8(all) => repeat(all, |i| u8::from(i * 37 % 61 > 6)),
            HostSliceMut::U32(all) => repeat(all, |i| (i * 7919 % indices.max(1)) as u32),
            other => unreachable!("nothing measured is {other:?}"),
        });
        Operand { shape, layout, first: 0, buffer, is_as_filled: true }
    }

    /// The same with other contents: element by element of each copy.
    pub fn holding(mut self, value: impl Fn(usize) -> u32) -> Operand {
        let Layout { stride, elements, copies, .. } = self.layout;
        self.is_as_filled = false;
        let device = Arc::clone(self.device());
        for copy in 0..copies {
            let place = copy * stride..copy * stride + elements;
            let elements = self.buffer.view_mut().slice(place);
            device.lend(elements, &mut |elements| match elements {
                HostSliceMut::F32(all) => fill(all, |it| value(it) as f32),
                HostSliceMut::Bf16(all) => {
                    fill(all, |it| bf16::from_f32(value(it) as f32).to_bits());
                }
                HostSliceMut::F16(all) => {
                    fill(all, |it| f16::from_f32(value(it) as f32).to_bits());
                }
                HostSliceMut::U8(all) => fill(all, |it| value(it) as u8),
                HostSliceMut::U32(all) => fill(all, &value),
                other => unreachable!("nothing measured is {other:?}"),
            });
        }
        self
    }

    /// Where the copy for the n-th call lies.
    fn place(&self, call: usize) -> Range<usize> {
        let Layout { elements, stride, copies, .. } = self.layout;
        let start = (self.first + call) % copies * stride;
        start..start + elements
    }

    /// Where it lies.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.buffer.device()
    }

    /// The size of a copy.
    pub fn size(&self) -> OperandSize<'_> {
        OperandSize { shape: &self.shape, format: self.buffer.format() }
    }

    /// The copy for the n-th call, as an operator reads it.
    pub fn input(&self, call: usize) -> Input<'_> {
        Input { shape: &self.shape, data: self.view(call) }
    }

    /// The copy for the n-th call, as an operator writes it.
    pub fn output(&mut self, call: usize, accumulate: bool) -> Output<'_> {
        let place = self.place(call);
        Output { shape: &self.shape, data: self.buffer.view_mut().slice(place), accumulate }
    }

    /// The copy for the n-th call, to be read.
    pub fn view(&self, call: usize) -> View<'_> {
        self.buffer.view().slice(self.place(call))
    }

    /// The copy for the n-th call, to be written.
    pub fn view_mut(&mut self, call: usize) -> ViewMut<'_> {
        let place = self.place(call);
        self.buffer.view_mut().slice(place)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shardloom_kernels::processor;

    use super::*;

    const ROOM: usize = 1 << 20;

    #[test]
    fn the_cache_is_read_as_the_system_writes_it() {
        assert_eq!(kibibytes("491520K\n"), Some(480 << 20));
        for text in ["", "K", "12", "12M", "-1K", "99999999999999999999K", "18446744073709551615K"]
        {
            assert_eq!(kibibytes(text), None, "{text:?}");
        }
    }

    /// An operand of 20 elements.
    fn operand(format: Format, warmth: Warmth) -> Operand {
        Operand::new(&Memory::new(processor()), format, vec![4, 5], warmth, 7)
    }

    #[test]
    fn calls_take_turns_at_copies_that_each_begin_a_cache_line() {
        for (format, bytes) in [(Format::F32, 4_usize), (Format::U32, 4), (Format::U8, 1)] {
            // Two, for warm tensors; for cold ones as many as fill the room.
            let stride = (20 * bytes).next_multiple_of(64);
            let cold = ROOM / stride;
            for (warmth, copies) in [(Warmth::Warm, 2), (Warmth::Cold { room: ROOM }, cold)] {
                let operand = operand(format, warmth);
                for call in [0, 1, 2, copies - 1, copies, copies + 1, 5 * copies + 1] {
                    let start = call % copies * stride / bytes;
                    assert_eq!(operand.place(call), start..start + 20, "{format}, {warmth:?}");
                }
                assert!(operand.buffer.len() >= copies * stride / bytes);
            }
        }
    }

    #[test]
    fn numbers_are_of_both_signs_masks_keep_most_and_indices_are_below_their_limit() {
        let device = processor();
        let reals = operand(Format::F32, Warmth::Warm);
        let mut reals = device.reals(reals.view(1));
        assert!(reals.iter().all(|it| (-0.4..0.6).contains(it)), "{reals:?}");
        assert!(reals.iter().any(|&it| it < 0.0) && reals.iter().any(|&it| it > 0.0));
        reals.sort_by(f32::total_cmp);
        reals.dedup();
        assert_eq!(reals.len(), 20, "no two of 61 in a row are the same");
        let mut indices = BTreeSet::new();
        let mut kept = 0;
        let lent = |operand: &mut Operand, call, work: &mut dyn FnMut(HostSliceMut<'_>)| {
            device.lend(operand.view_mut(call), work);
        };
        lent(&mut operand(Format::U32, Warmth::Warm), 1, &mut |all| match all {
            HostSliceMut::U32(all) => indices.extend(all.iter().copied()),
            other => panic!("{other:?}"),
        });
        assert!(indices.iter().all(|&it| it < 7) && indices.len() > 1, "{indices:?}");
        lent(&mut operand(Format::U8, Warmth::Warm), 0, &mut |all| match all {
            HostSliceMut::U8(all) => kept = all.iter().map(|&it| usize::from(it)).sum(),
            other => panic!("{other:?}"),
        });
        assert!((10..20).contains(&kept), "{kept} of 20 are kept");
    }

    #[test]
    fn memory_is_used_again_for_what_is_only_read_or_only_written_and_is_filled_anew_for_all_else()
    {
        let device = processor();
        let mut rooms = Rooms::new(Memory::new(processor()));
        let cold = Warmth::Cold { room: ROOM };
        let marked = 7.0;
        // Marks the room of an operand, and says whether one of other uses and formats is there afterwards.
        let mut is_used_again = |first: (Format, Warmth, Use), then: (Format, Warmth, Use)| {
            let (format, warmth, of) = first;
            let mut operand = rooms.operand(format, vec![20], warmth, 7, of);
            device.fill(operand.view_mut(3), marked);
            // After as many calls as there are copies.
            rooms.leave(operand, of, ROOM / format.bytes() / 32);
            let (format, warmth, of) = then;
            let operand = rooms.operand(format, vec![20], warmth, 7, of);
            let is_there = device.reals(operand.view(3)).iter().all(|&it| it == marked);
            rooms.left.clear();
            is_there
        };
        let of = |of| (Format::F32, cold, of);
        for use_ in [Use::Read, Use::Written] {
            assert!(is_used_again(of(use_), of(use_)), "{use_:?}");
        }
        for (first, then) in [
            (of(Use::Read), of(Use::Written)),
            (of(Use::Written), of(Use::Read)),
            (of(Use::AddedTo), of(Use::AddedTo)),
            (of(Use::Read), (Format::Bf16, cold, Use::Read)),
            (of(Use::Read), (Format::F32, Warmth::Warm, Use::Read)),
            (of(Use::Read), (Format::F32, Warmth::Cold { room: 2 * ROOM }, Use::Read)),
        ] {
            assert!(!is_used_again(first, then), "{first:?}, {then:?}");
        }
    }

    #[test]
    fn calls_go_on_behind_what_calls_on_another_operand_have_just_used() {
        let mut rooms = Rooms::new(Memory::new(processor()));
        let cold = Warmth::Cold { room: ROOM };
        // 32 elements a copy, and 96, of which the fourth begins with the 288th.
        for (calls, first) in [(0, 0), (1, 96), (9, 288), (10, 384)] {
            let operand = rooms.operand(Format::F32, vec![20], cold, 7, Use::Read);
            assert_eq!(operand.place(0).start, 0);
            rooms.leave(operand, Use::Read, calls);
            let operand = rooms.operand(Format::F32, vec![90], cold, 7, Use::Read);
            assert_eq!(operand.place(0), first..first + 90, "after {calls} calls");
            assert_eq!(operand.place(1).start, first + 96);
            rooms.left.clear();
        }
    }

    #[test]
    fn what_is_held_instead_is_the_same_in_every_copy() {
        let device = processor();
        let operand = operand(Format::F32, Warmth::Warm).holding(|at| at as u32 + 3);
        let expected: Vec<f32> = (3..23).map(|it| it as f32).collect();
        for call in 0..3 {
            assert_eq!(device.reals(operand.view(call)), expected);
        }
    }

    /// Of more than are kept the one that was left first goes.
    #[test]
    fn the_rooms_that_were_left_last_are_kept() {
        let device = processor();
        let mut rooms = Rooms::new(Memory::new(processor()));
        let cold = Warmth::Cold { room: 1 << 12 };
        let mut all: Vec<Operand> = (0..=Rooms::MOST)
            .map(|_| rooms.operand(Format::F32, vec![20], cold, 7, Use::Read))
            .collect();
        for (number, operand) in all.iter_mut().enumerate() {
            device.fill(operand.view_mut(0), number as f32);
        }
        let mut numbers = vec![];
        for operand in all {
            rooms.leave(operand, Use::Read, 0);
        }
        assert_eq!(rooms.left.len(), Rooms::MOST);
        while !rooms.left.is_empty() {
            let operand = rooms.operand(Format::F32, vec![20], cold, 7, Use::Read);
            numbers.push(device.reals(operand.view(0))[0] as usize);
        }
        // The last first.
        assert_eq!(numbers, (1..=Rooms::MOST).rev().collect::<Vec<usize>>());
    }
}
