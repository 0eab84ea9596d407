//! Loop signatures: what an operator iterates over, and what splitting each loop means.

use crate::DimId;

/// How partial results combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reduction {
    /// By addition.
    Sum,
    /// By the larger.
    Max,
}

/// What splitting a loop over devices does to the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Outputs that the loop indexes are split; the loop indexes every output.
    Parallel,
    /// Outputs that lack the loop become partial.
    Reduce(Reduction),
    /// Like `Reduce(Sum)`, where a device contributes zeros for what lies outside its range
    /// (vocabulary-split embedding).
    Masked,
    /// Outputs lack the loop and are complete all the same, because earlier phases already combined
    /// over it; gradients are split along it (last phase of the cross-entropy).
    Resolved,
    /// May not be split.
    Opaque,
}

/// One loop of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The dimension it runs over.
    pub dim: DimId,
    /// What splitting it means.
    pub split: Split,
}

/// The loops of an operator, einsum fashion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The loops.
    pub loops: Vec<Loop>,
    /// For each input, for each of its axes: the index of the loop that runs along it.
    pub inputs: Vec<Vec<usize>>,
    /// For each output, for each of its axes: the index of the loop that runs along it.
    pub outputs: Vec<Vec<usize>>,
}

impl Signature {
    /// Builds a signature whose operands are indexed by dimension: each axis runs with the loop over
    /// its own dimension, or over the dimension it is renamed to by `operand_dims`.
    ///
    /// `loops` lists the split rule of every dimension that occurs; a dimension without a rule is
    /// opaque.
    pub(crate) fn by_dim(
        loops: &[(DimId, Split)],
        input_dims: &[Vec<DimId>],
        output_dims: &[Vec<DimId>],
    ) -> Signature {
        let mut table: Vec<Loop> = loops.iter().map(|&(dim, split)| Loop { dim, split }).collect();
        let mut map = |operands: &[Vec<DimId>]| -> Vec<Vec<usize>> {
            operands
                .iter()
                .map(|dims| {
                    dims.iter()
                        .map(|&dim| {
                            table.iter().position(|each| each.dim == dim).unwrap_or_else(|| {
                                table.push(Loop { dim, split: Split::Opaque });
                                table.len() - 1
                            })
                        })
                        .collect()
                })
                .collect()
        };
        let inputs = map(input_dims);
        let outputs = map(output_dims);
        Signature { loops: table, inputs, outputs }
    }
}
