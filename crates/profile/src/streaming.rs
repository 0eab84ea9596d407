//! What a rank does to tensors besides the operators of a model: sums, copies, norms and updates.

use shardloom_kernels::optimizer::{Optimizer, Piece, Step};
use shardloom_kernels::{DType, Memory, reduce};

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
        let tensor = |warmth| Operand::new(&memory, DType::F32, vec![elements], warmth, 0);
        match self {
            Streaming::Add => {
                let (mut to, from) = (tensor(Warmth::Cold), tensor(Warmth::Warm));
                bench.seconds(Clock::Processor, |_, call| {
                    reduce::sum_into(to.reals_mut(call), from.reals(call));
                    Ok(())
                })
            }
            Streaming::Copy => {
                let (mut to, from) = (tensor(Warmth::Cold), tensor(Warmth::Warm));
                bench.seconds(Clock::Processor, |_, call| {
                    to.reals_mut(call).copy_from_slice(from.reals(call));
                    Ok(())
                })
            }
            Streaming::Norm => {
                let gradient = tensor(Warmth::Cold);
                let mut total = 0.0;
                bench.seconds(Clock::Processor, |_, call| {
                    total += reduce::squared_norm(std::hint::black_box(gradient.reals(call)));
                    std::hint::black_box(total);
                    Ok(())
                })
            }
            Streaming::Update(optimizer) => {
                let mut parameter = Parameter::new(optimizer, elements, &memory);
                bench.seconds(Clock::Processor, |_, call| {
                    parameter.update(call);
                    Ok(())
                })
            }
            Streaming::Statistics(optimizer) => {
                let mut parameter = Parameter::new(optimizer, elements, &memory);
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
    /// Sums of each round's statistics, that of no round before.
    sums: Vec<Vec<f32>>,
}

impl Parameter {
    fn new(optimizer: Optimizer, elements: usize, memory: &Memory) -> Parameter {
        let columns = COLUMNS.min(elements);
        let piece = Piece::whole(elements / columns, columns);
        let tensor = |len| Operand::new(memory, DType::F32, vec![len], Warmth::Cold, 0);
        let lens =
            (0..optimizer.rounds()).map(|round| optimizer.statistics_len(&piece.block, round));
        let sums = std::iter::once(0).chain(lens).map(|len| vec![1.0; len]).collect();
        let state = optimizer.state_lens(&piece).into_iter().map(tensor).collect();
        let (weights, gradient) = (tensor(piece.elements()), tensor(piece.elements()));
        Parameter { optimizer, piece, weights, gradient, state, sums }
    }

    fn update(&mut self, call: usize) {
        let Parameter { optimizer, piece, weights, gradient, state, sums } = self;
        let mut state: Vec<&mut [f32]> =
            state.iter_mut().map(|operand| operand.reals_mut(call)).collect();
        let sums = &sums[optimizer.rounds()];
        let (weights, gradient) = (weights.reals_mut(call), gradient.reals(call));
        optimizer.apply(STEP, piece, weights, gradient, &mut state, sums);
    }

    fn statistics(&mut self, call: usize, round: usize) {
        let Parameter { optimizer, piece, weights, gradient, state, sums } = self;
        let mut state: Vec<&mut [f32]> =
            state.iter_mut().map(|operand| operand.reals_mut(call)).collect();
        let (previous, out) = sums.split_at_mut(round + 1);
        let (weights, gradient) = (weights.reals(call), gradient.reals(call));
        let (previous, out) = (&previous[round], &mut out[0]);
        optimizer.statistics(STEP, round, piece, weights, gradient, &mut state, previous, out);
    }
}

/// An update as any other.
const STEP: Step = Step { number: 10, learning_rate: 1e-3, gradient_scale: 0.5 };
