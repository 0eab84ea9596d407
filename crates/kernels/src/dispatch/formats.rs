//! Which tensors of bfloat16 a pass takes and writes as they are.

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;

use super::sizes::{expert_shape, linear};
use crate::{Format, gemm};

/// Which of the tensors that a pass reads, of these formats, it multiplies in bfloat16 as they are. All others it takes
/// in fp32.
pub(crate) fn multiplied_in_bf16(
    kind: &OpKind,
    pass: Pass,
    format: impl Fn(usize) -> Format,
) -> &'static [usize] {
    let factors: &[usize] = match (kind, pass) {
        (OpKind::Contract { .. }, _) => &[0, 1],
        (OpKind::ExpertContract, Pass::Forward | Pass::Weight) => &[0, 2],
        (OpKind::ExpertContract, Pass::Input) => &[1, 2],
        (OpKind::AttentionProbs { .. }, Pass::Forward) => &[0, 1],
        // What is kept under dropout is scaled, in fp32.
        (OpKind::AttentionContext { probability: 0.0, .. }, Pass::Forward) => &[0, 1],
        (OpKind::AttentionContext { probability: 0.0, .. }, Pass::Input) => &[0, 1, 2],
        _ => return &[],
    };
    let are_in_bf16 = factors.iter().all(|&factor| format(factor) == Format::Bf16);
    if are_in_bf16 && gemm::multiplies_bf16() { factors } else { &[] }
}

/// Whether a pass writes its result, of this shape, in bfloat16 as it computes it, where the result is in that format. It
/// reads tensors of these shapes and formats.
pub(crate) fn written_in_bf16<'a>(
    kind: &OpKind,
    pass: Pass,
    read: impl Fn(usize) -> &'a [usize],
    written: &[usize],
    format: impl Fn(usize) -> Format,
) -> bool {
    if multiplied_in_bf16(kind, pass, format).is_empty() {
        return false;
    }
    let steps = match (kind, pass) {
        (OpKind::Contract { .. }, Pass::Forward) => linear(read(0), read(1), written, false).inputs,
        (OpKind::Contract { .. }, Pass::Input) => linear(written, read(0), read(1), false).outputs,
        (OpKind::ExpertContract, Pass::Forward) => expert_shape(read(2)).inputs,
        (OpKind::ExpertContract, Pass::Input) => expert_shape(read(1)).outputs,
        _ => return false,
    };
    gemm::writes_bf16(steps)
}
