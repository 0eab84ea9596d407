//! Optimizers on pieces of parameters, one file each.
//!
//! A rank may own any flat range of any block of a parameter (ZeRO cuts the block that tensor
//! parallelism left), so an update is done piece by piece. What an optimizer needs of the *whole*
//! parameter (LAMB's norms, Adafactor's row and column sums) it gets in rounds: in each round every
//! owner computes partial [`Optimizer::statistics`], the caller sums them over all pieces, and the
//! next round, or at last [`Optimizer::apply`], receives the sums. SGD and AdamW have no rounds.
//! How a parameter is cut changes nothing but the order of these sums.

mod adafactor;
mod adamw;
mod lamb;
mod rows;
mod sgd;

use std::ops::Range;

pub use adafactor::Adafactor;
pub use adamw::AdamW;
pub use lamb::Lamb;
pub use rows::Rows;
pub use sgd::Sgd;
use smallvec::{SmallVec, smallvec};

/// A block of a parameter seen as a matrix: what one rank holds under tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Rows of the whole parameter.
    pub global_rows: usize,
    /// Columns of the whole parameter.
    pub global_cols: usize,
    /// First row of the block.
    pub row_start: usize,
    /// First column of the block.
    pub col_start: usize,
    /// Rows of the block.
    pub rows: usize,
    /// Columns of the block.
    pub cols: usize,
}

impl Block {
    /// The whole of a parameter.
    pub fn whole(rows: usize, cols: usize) -> Block {
        Block { global_rows: rows, global_cols: cols, row_start: 0, col_start: 0, rows, cols }
    }

    /// A parameter with one row or one column: Adafactor does not factor its second moment.
    fn is_vector(&self) -> bool {
        self.global_rows == 1 || self.global_cols == 1
    }
}

/// The part of a parameter that one rank updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The block the rank holds.
    pub block: Block,
    /// The elements of the block, in row-major order, that it owns.
    pub range: Range<usize>,
}

/// Consecutive elements of a piece that lie in one row.
pub(crate) struct Segment {
    /// The row, of the whole parameter.
    pub row: usize,
    /// The first column, of the whole parameter.
    pub col: usize,
    /// The elements, counted from the start of the piece.
    pub elements: Range<usize>,
}

impl Piece {
    /// A piece that is all of a parameter.
    pub fn whole(rows: usize, cols: usize) -> Piece {
        Piece { block: Block::whole(rows, cols), range: 0..rows * cols }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.range.len()
    }

    /// Its elements, row by row.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> {
        let Piece { block, range } = self.clone();
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (row, col) = (at / block.cols, at % block.cols);
            let len = (block.cols - col).min(range.end - at);
            let first = at - range.start;
            at += len;
            Some(Segment {
                row: block.row_start + row,
                col: block.col_start + col,
                elements: first..first + len,
            })
        })
    }
}

/// What an update depends on besides the tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Which update of the parameter this is, counted from 1.
    pub number: u64,
    /// The learning rate of this update.
    pub learning_rate: f32,
    /// What the gradient is multiplied by before use: averaging and clipping without a pass.
    pub gradient_scale: f32,
}

impl Step {
    /// 1 - decay^number: how much of an exponential average started at zero is filled.
    fn filled(&self, decay: f32) -> f32 {
        (1.0 - f64::from(decay).powf(self.number as f64)) as f32
    }
}

/// An optimizer with its hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Layer-wise adaptive moments.
    Lamb(Lamb),
    /// Factored second moments.
    Adafactor(Adafactor),
}

impl Optimizer {
    /// The lengths of the state slices of a piece, all to start as zeros.
    ///
    /// A slice as long as the piece belongs to its elements. Adafactor's slice for a matrix, of
    /// `global_rows + global_cols` elements, belongs to the whole parameter, and each owner of a
    /// piece holds an equal copy.
    pub fn state_lens(&self, piece: &Piece) -> SmallVec<[usize; 2]> {
        match self {
            Optimizer::Sgd(sgd) => sgd.state_lens(piece),
            Optimizer::AdamW(_) | Optimizer::Lamb(_) => smallvec![piece.elements(); 2],
            Optimizer::Adafactor(_) => smallvec![Adafactor::state_len(piece)],
        }
    }

    /// The same optimizer for parameters that are not to decay: biases and gains.
    pub fn without_weight_decay(mut self) -> Optimizer {
        match &mut self {
            Optimizer::Sgd(sgd) => sgd.weight_decay = 0.0,
            Optimizer::AdamW(adamw) => adamw.weight_decay = 0.0,
            Optimizer::Lamb(lamb) => lamb.weight_decay = 0.0,
            Optimizer::Adafactor(adafactor) => adafactor.weight_decay = 0.0,
        }
        self
    }

    /// How many rounds of statistics an update takes.
    pub fn rounds(&self) -> usize {
        match self {
            Optimizer::Sgd(_) | Optimizer::AdamW(_) => 0,
            Optimizer::Lamb(_) => 1,
            Optimizer::Adafactor(_) => 2,
        }
    }

    /// Elements of the statistics of a round, the same for every piece of a parameter; may be 0.
    pub fn statistics_len(&self, block: &Block, round: usize) -> usize {
        match self {
            Optimizer::Sgd(_) | Optimizer::AdamW(_) => 0,
            Optimizer::Lamb(_) => lamb::STATISTICS,
            Optimizer::Adafactor(_) => Adafactor::statistics_len(block, round),
        }
    }

    /// Overwrites `out` with the piece's share of the statistics of `round`.
    ///
    /// `previous` is the sum over all pieces of the round before, and empty in round 0. To be
    /// called exactly once per round and step, as it also advances the state.
    pub fn statistics(
        &self,
        step: Step,
        round: usize,
        piece: &Piece,
        weights: &[f32],
        gradient: &[f32],
        state: &mut [&mut [f32]],
        previous: &[f32],
        out: &mut [f32],
    ) {
        self.check(piece, weights, gradient, state);
        assert!(round < self.rounds(), "round {round} of {} rounds", self.rounds());
        assert_eq!(out.len(), self.statistics_len(&piece.block, round), "statistics of a round");
        match (self, state) {
            (Optimizer::Lamb(lamb), [m, v]) => lamb.statistics(step, weights, gradient, m, v, out),
            (Optimizer::Adafactor(adafactor), [moments]) => {
                self.check_sums(piece, round, previous);
                let gradient = &mut &*gradient;
                let (scale, number) = (step.gradient_scale, step.number);
                match round {
                    0 => Adafactor::square_sums(piece, gradient, scale, out),
                    _ => adafactor.update_sums(
                        number, piece, weights, gradient, scale, moments, previous, out,
                    ),
                }
            }
            _ => unreachable!(
                "check() matched the state to the optimizer, the others have no rounds"
            ),
        }
    }

    /// Updates the weights of a piece, given the sum over all pieces of the last round's
    /// statistics (empty without rounds).
    pub fn apply(
        &self,
        step: Step,
        piece: &Piece,
        weights: &mut [f32],
        gradient: &[f32],
        state: &mut [&mut [f32]],
        sums: &[f32],
    ) {
        self.check(piece, weights, gradient, state);
        self.check_sums(piece, self.rounds(), sums);
        match (self, state) {
            (Optimizer::Sgd(sgd), state) => {
                sgd.apply(step, weights, gradient, state.first_mut().map(|v| &mut **v));
            }
            (Optimizer::AdamW(adamw), [m, v]) => adamw.apply(step, weights, gradient, m, v),
            (Optimizer::Lamb(lamb), [m, v]) => lamb.apply(step, weights, m, v, sums),
            (Optimizer::Adafactor(adafactor), [moments]) => {
                adafactor.apply(step, piece, weights, &mut &*gradient, moments, sums);
            }
            _ => unreachable!("check() matched the state to the optimizer"),
        }
    }

    fn check(&self, piece: &Piece, weights: &[f32], gradient: &[f32], state: &[&mut [f32]]) {
        let Piece { block, range } = piece;
        assert!(
            block.row_start + block.rows <= block.global_rows
                && block.col_start + block.cols <= block.global_cols
                && range.start <= range.end
                && range.end <= block.rows * block.cols,
            "{piece:?} does not lie in its parameter"
        );
        let len = piece.elements();
        assert!(
            weights.len() == len && gradient.len() == len,
            "a piece of {len} elements got {} weights and {} gradients",
            weights.len(),
            gradient.len()
        );
        let lens = self.state_lens(piece);
        assert!(
            state.iter().map(|s| s.len()).eq(lens.iter().copied()),
            "{self:?} keeps state of {lens:?} elements for {piece:?}"
        );
    }

    /// `sums` are those of the round before `round`.
    fn check_sums(&self, piece: &Piece, round: usize, sums: &[f32]) {
        let len = round.checked_sub(1).map_or(0, |last| self.statistics_len(&piece.block, last));
        assert_eq!(sums.len(), len, "the sums of the round before");
    }
}
