//! What a rank does to tensors besides the operators of a model: sums, copies, norms and updates.

use std::sync::Arc;

use shardloom_kernels::device::{Gradients, Update};
use shardloom_kernels::optimizer::{Optimizer, Piece, Step};
use shardloom_kernels::{Buffer, Combine, Format, Memory, ViewMut};

use crate::Result;
use crate::bench::{Bench, Clock};
use crate::operand::{Operand, Warmth};

/// One pass over tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Streaming {
    /// A gradient added onto another.
    Add,
    /// A tensor copied.
    Copy,
    /// The squared norm of a gradient.
    Norm,
    /// The weights updated.
    Update(Optimizer),
    /// What an optimizer adds up before an update, the mean of its rounds.
    Statistics(Optimizer),
}

/// Columns of an updated parameter: optimizers that factor work by rows.
const COLUMNS: usize = 256;

impl Streaming {
    /// Seconds of the pass over `elements`.
    ///
    /// # Errors
    /// If communication with the other ranks fails.
    pub fn seconds(self, elements: usize, bench: &mut Bench) -> Result<f64> {
        let memory = bench.memory.clone();
        let (device, cold) = (memory.device(), bench.cold());
        let tensor = |warmth| Operand::new(&memory, Format::F32, vec![elements], warmth, 0);
        match self {
            Streaming::Add => {
                let (mut to, from) = (tensor(cold), tensor(Warmth::Warm));
                bench.seconds(Clock::Processor, |_, call| {
                    device.combine(to.view_mut(call), from.view(call), Combine::Sum);
                    Ok(())
                })
            }
            Streaming::Copy => {
                let (mut to, from) = (tensor(cold), tensor(Warmth::Warm));
                bench.seconds(Clock::Processor, |_, call| {
                    device.copy(from.view(call), to.view_mut(call));
                    Ok(())
                })
            }
            Streaming::Norm => {
                let gradient = tensor(cold);
                let mut total = 0.0;
                bench.seconds(Clock::Processor, |_, call| {
                    total += device.squared_norm(std::hint::black_box(gradient.view(call)));
                    std::hint::black_box(total);
                    Ok(())
                })
            }
            Streaming::Update(optimizer) => {
                let mut parameter = Parameter::new(optimizer, elements, cold, &memory);
                bench.seconds(Clock::Processor, |_, call| {
                    parameter.update(call);
                    Ok(())
                })
            }
            Streaming::Statistics(optimizer) => {
                let mut parameter = Parameter::new(optimizer, elements, cold, &memory);
                let rounds = optimizer.rounds();
                bench.seconds(Clock::Processor, |_, call| {
                    parameter.statistics(call / rounds, call % rounds);
                    Ok(())
                })
            }
        }
    }
}

/// A parameter with its gradient and optimizer state.
struct Parameter {
    optimizer: Optimizer,
    piece: Piece,
    weights: Operand,
    gradient: Operand,
    state: Vec<Operand>,
    /// Sums of each round's statistics.
    sums: Vec<Buffer>,
    /// fp32 gradients need none of it.
    scratch: Buffer,
}

impl Parameter {
    fn new(optimizer: Optimizer, elements: usize, cold: Warmth, memory: &Memory) -> Parameter {
        let columns = COLUMNS.min(elements);
        let piece = Piece::whole(elements / columns, columns);
        let tensor = |len| Operand::new(memory, Format::F32, vec![len], cold, 0);
        let lens =
            (0..optimizer.rounds()).map(|round| optimizer.statistics_len(&piece.block, round));
        let sums = lens.map(|len| {
            let mut sums = memory.alloc(Format::F32, len);
            memory.device().fill(sums.view_mut(), 1.0);
            sums
        });
        let (sums, scratch) = (sums.collect(), memory.alloc(Format::F32, 0));
        let state = optimizer.state_lens(&piece).into_iter().map(tensor).collect();
        let (weights, gradient) = (tensor(piece.elements()), tensor(piece.elements()));
        Parameter { optimizer, piece, weights, gradient, state, sums, scratch }
    }

    fn update(&mut self, call: usize) {
        let Parameter { optimizer, piece, weights, gradient, state, sums, scratch } = self;
        let device = Arc::clone(scratch.device());
        let mut state: Vec<ViewMut<'_>> =
            state.iter_mut().map(|operand| operand.view_mut(call)).collect();
        let update = Update { optimizer: *optimizer, step: STEP, piece };
        let (weights, gradient) = (weights.view_mut(call), Gradients::All(gradient.view(call)));
        let sums = sums.last().map(Buffer::view);
        device.update(update, weights, gradient, &mut state, sums, scratch.view_mut());
    }

    fn statistics(&mut self, call: usize, round: usize) {
        let Parameter { optimizer, piece, weights, gradient, state, sums, scratch } = self;
        let device = Arc::clone(scratch.device());
        let mut state: Vec<ViewMut<'_>> =
            state.iter_mut().map(|operand| operand.view_mut(call)).collect();
        let (previous, out) = sums.split_at_mut(round);
        let update = Update { optimizer: *optimizer, step: STEP, piece };
        let (weights, gradient) = (weights.view(call), Gradients::All(gradient.view(call)));
        let (previous, out) = (previous.last().map(Buffer::view), out[0].view_mut());
        let (state, scratch) = (&mut state, scratch.view_mut());
        device.statistics(update, round, weights, gradient, state, previous, out, scratch);
    }
}

/// An update as any other.
const STEP: Step = Step { number: 10, learning_rate: 1e-3, gradient_scale: 0.5 };
