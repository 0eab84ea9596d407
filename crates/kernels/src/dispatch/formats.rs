//! In which form a pass takes and writes tensors: which of those in bfloat16 as they are, and which not at all.

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;

use super::arguments::{expert_shape, linear};
use crate::device::OperandSize;
use crate::{Format, gemm};

/// What is in bfloat16 for a kernel too. All other real numbers it takes and writes in fp32.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InBf16 {
    /// Tensors read.
    pub reads: &'static [usize],
    /// Whether its results are written so, of those that are in that format.
    pub results: bool,
}

/// What a pass takes and writes in bfloat16 as it is.
pub(crate) fn in_bf16(
    kind: &OpKind,
    pass: Pass,
    reads: &[OperandSize<'_>],
    writes: &[OperandSize<'_>],
) -> InBf16 {
    let are_in_bf16 =
        |numbers: &[usize]| numbers.iter().all(|&read| reads[read].format == Format::Bf16);
    if let (OpKind::Embed, Pass::Forward) = (kind, pass) {
        let is_copied = are_in_bf16(&[1]) && writes[0].format == Format::Bf16;
        return if is_copied { InBf16 { reads: &[1], results: true } } else { InBf16::default() };
    }
    let factors = factors(kind, pass, reads.len());
    if factors.is_empty() || !are_in_bf16(factors) || !gemm::multiplies_bf16() {
        return InBf16::default();
    }
    let (read, written) = (|number: usize| reads[number].shape, writes[0].shape);
    let steps = match (kind, pass) {
        (OpKind::Contract { .. }, Pass::Forward) => linear(read(0), read(1), written, false).inputs,
        (OpKind::Contract { .. }, Pass::Input) => linear(written, read(0), read(1), false).outputs,
        (OpKind::ExpertContract, Pass::Forward) => expert_shape(read(2)).inputs,
        (OpKind::ExpertContract, Pass::Input) => expert_shape(read(1)).outputs,
        _ => return InBf16 { reads: factors, results: false },
    };
    InBf16 { reads: factors, results: gemm::writes_bf16(steps) }
}

/// Which of the tensors that a pass is given it does not look at. The mean of losses follows from the sums that were
/// made of logits; its inputs name the logits for its gradient.
pub(crate) fn unread(kind: &OpKind, pass: Pass) -> &'static [usize] {
    match (kind, pass) {
        (OpKind::CrossEntropy { .. }, Pass::Forward) => &[0, 1, 4],
        _ => &[],
    }
}

/// Which of the so many tensors that a pass reads it may multiply in bfloat16.
fn factors(kind: &OpKind, pass: Pass, reads: usize) -> &'static [usize] {
    match (kind, pass) {
        (OpKind::Contract { .. }, _) => &[0, 1],
        (OpKind::ExpertContract, Pass::Forward | Pass::Weight) => &[0, 2],
        (OpKind::ExpertContract, Pass::Input) => &[1, 2],
        (OpKind::AttentionProbs { .. }, Pass::Forward | Pass::Input) => &[0, 1],
        (OpKind::FusedAttention { .. }, Pass::Forward) => &[0, 1, 2],
        // The gradient of the result comes last, behind documents if there are any.
        (OpKind::FusedAttention { .. }, Pass::Input) if reads == 4 => &[0, 1, 2, 3],
        (OpKind::FusedAttention { .. }, Pass::Input) => &[0, 1, 2, 4],
        // What is kept under dropout is scaled, in fp32.
        (OpKind::AttentionContext { probability: 0.0, .. }, Pass::Forward) => &[0, 1],
        (OpKind::AttentionContext { probability: 0.0, .. }, Pass::Input) => &[0, 1, 2],
        _ => &[],
    }
}
