//! Times of single operators beside what the model of a device says of them.

use serde::Serialize;
use shardloom_cluster::{DeviceKind, Precision, Profile, Stack};
use shardloom_graph::work::{Pass, attention_products};

use crate::hardware::plan;
use crate::statistics::{Errors, Pair};
use crate::{Refusal, ValidateError};

/// What an operator computes, and in which sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OperatorShape {
    /// `batch` products `[m, k] x [k, n]`.
    Product {
        /// How many.
        batch: u64,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// Depth.
        k: u64,
    },
    /// Causal attention by a fused kernel: `heads` of all samples, of `head_size` numbers, over `positions`.
    CausalAttention {
        /// Heads of all samples.
        heads: u64,
        /// Queries, and keys.
        positions: u64,
        /// Numbers of a head.
        head_size: u64,
        /// Whether it is the backward pass.
        backward: bool,
    },
    /// Anything that memory decides.
    Memory {
        /// Numbers that it goes over.
        elements: f64,
        /// Bytes of all that it reads and writes, each counted once.
        bytes: f64,
    },
}

/// An operator that was timed on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorRow {
    /// Its line in the file.
    pub line: u64,
    /// The device, as the file calls it.
    pub hardware: String,
    /// What it is: its name, pass, format and the library that computed it.
    pub kind: OperatorKind,
    /// Its sizes.
    pub shape: OperatorShape,
    /// The format of its numbers; none if it is not one of a device's.
    pub format: Option<Precision>,
    /// How long it took.
    pub seconds: f64,
}

/// Operators that are taken together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OperatorKind {
    /// Its name.
    pub operator: String,
    /// Its pass.
    pub pass: String,
    /// The format of its numbers, as the file calls it.
    pub format: String,
    /// What computed it.
    pub library: String,
}

/// How far off the model of a device is for operators of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorFigures {
    /// The device, as the file calls it.
    pub hardware: String,
    /// The operators.
    #[serde(flatten)]
    pub kind: OperatorKind,
    /// The errors of predicted times.
    pub errors: Errors,
}

impl OperatorRow {
    /// Predicted and measured time, on the preset of its device under `stack`, or under none, which is each operand
    /// once through memory and the device's own kernels.
    ///
    /// # Errors
    /// If there is no such preset, or it does not compute so.
    pub fn compare(&self, stack: Option<&Stack>) -> Result<Pair, Refusal> {
        let preset = crate::preset_of(&self.hardware)?;
        let device = Profile::preset(&preset).map_err(|error| plan(&error))?.device;
        let predicted = self.seconds_on(&device, stack)?;
        Ok(Pair { predicted, measured: self.seconds })
    }

    fn seconds_on(&self, device: &DeviceKind, stack: Option<&Stack>) -> Result<f64, Refusal> {
        let ideal = Stack::default();
        let stack = stack.unwrap_or(&ideal);
        let format = self.format.ok_or_else(|| Refusal::Precision(self.kind.format.clone()));
        match self.shape {
            OperatorShape::Product { batch, m, n, k } => {
                // Rows of activations are of one token each, so the gradient of weights is a product over columns.
                let rows = if self.kind.pass == "weight" { [m, n] } else { [n, k] };
                let shape = [batch, m, n, k];
                let seconds = device.matmul_seconds_in_rows(format?, shape, &rows);
                Ok(stack.product_time * seconds.map_err(|error| plan(&error))?)
            }
            OperatorShape::CausalAttention { heads, positions, head_size, backward } => {
                let Some(kernels) = stack.fused_attention(device) else {
                    let text = format!("{} has no fused attention", device.name);
                    return Err(Refusal::Plan(text));
                };
                let peak = device.peak_flops(format?).map_err(|error| plan(&error))?;
                let (times, pass) = match backward {
                    false => (kernels.forward, Pass::Forward),
                    true => (kernels.backward, Pass::Input),
                };
                // Under a causal mask a query sees half of the keys on average.
                let keys = positions as f64 / 2.0;
                let scores = (heads * positions) as f64 * keys;
                let of_score = (2 * attention_products(pass)) as f64 * head_size as f64;
                let seconds = times.seconds(peak, scores, of_score, keys);
                Ok(device.launch_seconds + seconds)
            }
            OperatorShape::Memory { elements, bytes } => {
                let rate = format!("{}.{}", self.kind.operator, self.kind.pass);
                let traffic = stack.memory_time * stack.kernels(&rate).traffic;
                Ok(device.memory_bound_seconds(&rate, elements, traffic * bytes))
            }
        }
    }
}

impl OperatorFigures {
    /// Of all `rows`, by device and kind, in their order; rows without a prediction are in none.
    pub fn of(rows: &[OperatorRow], stack: Option<&Stack>) -> Vec<OperatorFigures> {
        let mut groups: Vec<((&str, &OperatorKind), Vec<Pair>)> = vec![];
        for row in rows {
            let Ok(pair) = row.compare(stack) else { continue };
            let key = (row.hardware.as_str(), &row.kind);
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, pairs)) => pairs.push(pair),
                None => groups.push((key, vec![pair])),
            }
        }
        let figures = |((hardware, kind), pairs): ((&str, &OperatorKind), Vec<Pair>)| {
            Some(OperatorFigures {
                hardware: hardware.to_owned(),
                kind: kind.clone(),
                errors: Errors::of(&pairs)?,
            })
        };
        groups.into_iter().filter_map(figures).collect()
    }
}

/// The format that a file calls `name`; none where it names two.
pub(crate) fn format(name: &str) -> Option<Precision> {
    Some(match name {
        "fp32" => Precision::Fp32,
        "tf32" => Precision::Tf32,
        "bf16" => Precision::Bf16,
        "fp16" => Precision::Fp16,
        "fp8" => Precision::Fp8,
        _ => return None,
    })
}

/// What cells of sizes say of an operator.
pub(crate) fn shape(
    operator: &str,
    pass: &str,
    [batch, m, n, k]: [u64; 4],
    bytes: Option<f64>,
    refuse: impl Fn(&str, String) -> ValidateError,
) -> Result<OperatorShape, ValidateError> {
    match (operator, bytes) {
        ("contract", _) => Ok(OperatorShape::Product { batch, m, n, k }),
        ("fused-attention+causal", _) if m != n => {
            Err(refuse("n", format!("{m} queries have {m} keys, not {n}")))
        }
        ("fused-attention+causal", _) => Ok(OperatorShape::CausalAttention {
            heads: batch,
            positions: m,
            head_size: k,
            backward: pass != "forward",
        }),
        (_, Some(bytes)) => Ok(OperatorShape::Memory { elements: (batch * m * n) as f64, bytes }),
        (_, None) => Err(refuse("bytes", "the cell is empty".to_owned())),
    }
}
