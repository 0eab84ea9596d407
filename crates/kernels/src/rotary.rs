//! Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, section 3.2.2), in the
//! convention of Hugging Face's Llama: element j of a head is paired with element j + width / 2, where the first
//! `width` elements are rotated.

use std::sync::{Arc, Mutex, PoisonError};

use crate::simd::simd;

/// Scaling of frequencies for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// All are divided (Chen et al. 2023, arXiv 2306.15595, equation 3).
    Linear {
        /// By what.
        factor: f64,
    },
    /// Llama 3.1's stretching of the low frequencies ("The Llama 3 Herd of Models", arXiv 2407.21783;
    /// `rope_scaling` of type `llama3` in its `config.json`).
    ByWavelength {
        /// What the low frequencies are divided by.
        factor: f64,
        /// Frequencies with fewer turns than this over the original context are low.
        low_freq_factor: f64,
        /// Frequencies with more turns than this over the original context are kept.
        high_freq_factor: f64,
        /// The original context in positions.
        original_max_position: usize,
    },
}

impl Scaling {
    fn scale(&self, frequency: f64) -> f64 {
        match *self {
            Scaling::Linear { factor } => frequency / factor,
            Scaling::ByWavelength {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => {
                let turns = original_max_position as f64 * frequency / std::f64::consts::TAU;
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let kept = kept.clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

/// The heads of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// How many there are.
    pub count: usize,
    /// Elements of one, of which those beyond the width of the table stay as they are.
    pub width: usize,
}

/// Cosines and sines of a range of positions, to be made once and used in every layer.
#[derive(Debug)]
pub struct RotaryTable {
    half: usize,
    /// `[positions, width / 2]`
    cos: Vec<f32>,
    /// `[positions, width / 2]`
    sin: Vec<f32>,
}

impl RotaryTable {
    /// The table of `positions` positions from `first_position`, for heads of which `width` (even) elements
    /// are rotated, pair j by `theta`^(-2 j / width) radians per position.
    pub fn new(
        width: usize,
        theta: f64,
        scaling: Option<Scaling>,
        first_position: usize,
        positions: usize,
    ) -> RotaryTable {
        assert_eq!(width % 2, 0, "an even number of elements is rotated, not {width}");
        let half = width / 2;
        let frequencies: Vec<f64> = (0..half)
            .map(|j| {
                let frequency = theta.powf(-2.0 * j as f64 / width as f64);
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
    width: usize,
    theta: f64,
    scaling: Option<Scaling>,
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
        width: usize,
        theta: f64,
        scaling: Option<Scaling>,
        first_position: usize,
        positions: usize,
    ) -> Arc<RotaryTable> {
        let arguments = Arguments { width, theta, scaling, first_position, positions };
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = tables.iter().find(|(known, _)| *known == arguments) {
            return Arc::clone(table);
        }
        let table = Arc::new(RotaryTable::new(width, theta, scaling, first_position, positions));
        if tables.len() == KEPT {
            tables.clear();
        }
        tables.push((arguments, Arc::clone(&table)));
        table
    }
}

/// y = x turned by its positions, for `x` and `y` of shape `[batch, positions, heads, head_dim]`
/// with the positions of `table`; the batch follows from the length.
pub fn rotate(x: &[f32], heads: Heads, table: &RotaryTable, y: &mut [f32]) {
    turn(x, heads, table, 1.0, y, false);
}

/// Input gradient of [`rotate`]: dy turned back.
pub fn rotate_input_grad(
    dy: &[f32],
    heads: Heads,
    table: &RotaryTable,
    dx: &mut [f32],
    accumulate: bool,
) {
    turn(dy, heads, table, -1.0, dx, accumulate);
}

simd! {
    fn turn(
        x: &[f32],
        heads: Heads,
        table: &RotaryTable,
        direction: f32,
        y: &mut [f32],
        accumulate: bool,
    ) {
        let half = table.half;
        assert_eq!(x.len(), y.len(), "rotation keeps the shape");
        if x.is_empty() {
            return;
        }
        assert!(half > 0 && 2 * half <= heads.width, "{half} pairs of {heads:?}");
        let token = heads.count * heads.width;
        let sequence = table.cos.len() / half * token;
        assert!(
            sequence > 0 && x.len().is_multiple_of(sequence),
            "{} elements are not whole sequences of {sequence}",
            x.len()
        );
        for (x, y) in x.chunks_exact(sequence).zip(y.chunks_exact_mut(sequence)) {
            let tokens = x.chunks_exact(token).zip(y.chunks_exact_mut(token));
            let angles = table.cos.chunks_exact(half).zip(table.sin.chunks_exact(half));
            for ((x, y), (cos, sin)) in tokens.zip(angles) {
                for (x, y) in x.chunks_exact(heads.width).zip(y.chunks_exact_mut(heads.width)) {
                    let ((x, x_rest), (y, y_rest)) =
                        (x.split_at(2 * half), y.split_at_mut(2 * half));
                    for (y, &x) in y_rest.iter_mut().zip(x_rest) {
                        *y = if accumulate { *y + x } else { x };
                    }
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
