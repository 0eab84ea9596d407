//! Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, section 3.2.2), in the
//! convention of Hugging Face's Llama: element j of a head is paired with element j + head_dim / 2.

use std::sync::{Arc, Mutex, PoisonError};

use crate::simd::simd;

/// Llama 3.1's stretching of the low frequencies to longer contexts ("The Llama 3 Herd of Models",
/// arXiv 2407.21783; `rope_scaling` of type `llama3` in its `config.json`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// What the low frequencies are divided by.
    pub factor: f64,
    /// Frequencies with fewer turns than this over the original context are low.
    pub low_freq_factor: f64,
    /// Frequencies with more turns than this over the original context are kept.
    pub high_freq_factor: f64,
    /// The original context in positions.
    pub original_max_position: usize,
}

impl Llama3Scaling {
    fn scale(&self, frequency: f64) -> f64 {
        let turns = self.original_max_position as f64 * frequency / std::f64::consts::TAU;
        let kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let kept = kept.clamp(0.0, 1.0);
        (1.0 - kept) * frequency / self.factor + kept * frequency
    }
}

/// Cosines and sines of a range of positions, to be made once and used in every layer.
#[derive(Debug)]
pub struct RotaryTable {
    half: usize,
    /// `[positions, head_dim / 2]`
    cos: Vec<f32>,
    /// `[positions, head_dim / 2]`
    sin: Vec<f32>,
}

impl RotaryTable {
    /// The table of `positions` positions from `first_position`, for heads of `head_dim` (even)
    /// elements of which pair j turns by `theta`^(-2 j / head_dim) radians per position.
    pub fn new(
        head_dim: usize,
        theta: f64,
        scaling: Option<Llama3Scaling>,
        first_position: usize,
        positions: usize,
    ) -> RotaryTable {
        assert_eq!(head_dim % 2, 0, "rotary heads have an even size, not {head_dim}");
        let half = head_dim / 2;
        let frequencies: Vec<f64> = (0..half)
            .map(|j| {
                let frequency = theta.powf(-2.0 * j as f64 / head_dim as f64);
                scaling.map_or(frequency, |scaling| scaling.scale(frequency))
            })
            .collect();
        let angles = (first_position..first_position + positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f64 * f));
        let (cos, sin) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        RotaryTable { half, cos, sin }
    }
}

/// What a table depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arguments {
    head_dim: usize,
    theta: f64,
    scaling: Option<Llama3Scaling>,
    first_position: usize,
    positions: usize,
}

/// The tables of this process: a model needs one or two, for each of its layers again and again.
static TABLES: Mutex<Vec<(Arguments, Arc<RotaryTable>)>> = Mutex::new(Vec::new());

/// Tables kept; a process that needs more makes them anew.
const KEPT: usize = 64;

impl RotaryTable {
    /// As [`RotaryTable::new`], made once for all callers.
    pub fn shared(
        head_dim: usize,
        theta: f64,
        scaling: Option<Llama3Scaling>,
        first_position: usize,
        positions: usize,
    ) -> Arc<RotaryTable> {
        let arguments = Arguments { head_dim, theta, scaling, first_position, positions };
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = tables.iter().find(|(known, _)| *known == arguments) {
            return Arc::clone(table);
        }
        let table = Arc::new(RotaryTable::new(head_dim, theta, scaling, first_position, positions));
        if tables.len() == KEPT {
            tables.clear();
        }
        tables.push((arguments, Arc::clone(&table)));
        table
    }
}

/// y = x turned by its positions, for `x` and `y` of shape `[batch, positions, heads, head_dim]`
/// with the positions and head size of `table`; the batch follows from the length.
pub fn rotate(x: &[f32], heads: usize, table: &RotaryTable, y: &mut [f32]) {
    turn(x, heads, table, 1.0, y, false);
}

/// Input gradient of [`rotate`]: dy turned back.
pub fn rotate_input_grad(
    dy: &[f32],
    heads: usize,
    table: &RotaryTable,
    dx: &mut [f32],
    accumulate: bool,
) {
    turn(dy, heads, table, -1.0, dx, accumulate);
}

simd! {
    fn turn(
        x: &[f32],
        heads: usize,
        table: &RotaryTable,
        direction: f32,
        y: &mut [f32],
        accumulate: bool,
    ) {
        let half = table.half;
        let sequence = table.cos.len() * 2 * heads;
        assert_eq!(x.len(), y.len(), "rotation keeps the shape");
        if x.is_empty() {
            return;
        }
        assert!(
            sequence > 0 && x.len().is_multiple_of(sequence),
            "{} elements are not whole sequences of {sequence}",
            x.len()
        );
        for (x, y) in x.chunks_exact(sequence).zip(y.chunks_exact_mut(sequence)) {
            let tokens = x.chunks_exact(heads * 2 * half).zip(y.chunks_exact_mut(heads * 2 * half));
            let angles = table.cos.chunks_exact(half).zip(table.sin.chunks_exact(half));
            for ((x, y), (cos, sin)) in tokens.zip(angles) {
                for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(2 * half)) {
                    let (x0, x1) = x.split_at(half);
                    let (y0, y1) = y.split_at_mut(half);
                    for (((y0, y1), (&x0, &x1)), (&cos, &sin)) in
                        y0.iter_mut().zip(y1).zip(x0.iter().zip(x1)).zip(cos.iter().zip(sin))
                    {
                        let sin = direction * sin;
                        let r0 = x0 * cos - x1 * sin;
                        let r1 = x1 * cos + x0 * sin;
                        *y0 = if accumulate { *y0 + r0 } else { r0 };
                        *y1 = if accumulate { *y1 + r1 } else { r1 };
                    }
                }
            }
        }
    }
}
