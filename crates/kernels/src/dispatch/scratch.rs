//! How much scratch kernels take.

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;

use super::arguments::{
    attention_shape, context_scratch, fused_shape, lstm_shape, sampled_softmax,
};
use crate::attention::{Visibility, fused};

/// How many elements of scratch [`run`](super::run) needs for tensors of these shapes.
pub(crate) fn scratch_elements(
    kind: &OpKind,
    pass: Pass,
    reads: &[&[usize]],
    writes: usize,
) -> usize {
    match (kind, pass, reads) {
        (OpKind::AttentionContext { .. }, Pass::Forward, [probs, values]) => {
            context_scratch(&attention_shape(probs, values, Visibility::All), writes > 1)
        }
        (OpKind::AttentionContext { .. }, Pass::Input, [masks @ .., probs, values, _]) => {
            context_scratch(&attention_shape(probs, values, Visibility::All), !masks.is_empty())
        }
        (OpKind::AttentionProbs { soft_cap, .. }, Pass::Input, [_, keys, probs, _]) => {
            let shape = attention_shape(probs, keys, Visibility::All);
            shape.probs_input_grad_scratch(soft_cap.is_some())
        }
        (OpKind::FusedAttention { .. }, Pass::Forward, [queries, keys, ..]) => {
            let shape = fused_shape(queries, keys, Visibility::All);
            fused::scratch_elements(&shape, kind.dropout().is_some())
        }
        (OpKind::FusedAttention { soft_cap, .. }, Pass::Input, [queries, keys, ..]) => {
            let shape = fused_shape(queries, keys, Visibility::All);
            let drops = kind.dropout().is_some();
            fused::input_grad_scratch_elements(&shape, drops, soft_cap.is_some())
        }
        (OpKind::Lstm { .. }, Pass::Input, [_, activated, _, dy, ..]) => {
            lstm_shape(kind, activated, dy).input_grad_scratch()
        }
        (OpKind::SampledCrossEntropy { .. }, Pass::Forward, [x, ..]) => {
            // An evaluation is over all classes.
            let shape = sampled_softmax(kind, x);
            shape.scratch_elements().max(shape.scratch_elements_over_all())
        }
        (OpKind::SampledCrossEntropy { .. }, Pass::Input, [_, w, _, _]) => {
            sampled_softmax(kind, &[1, w[1]]).scratch_elements()
        }
        (OpKind::SampledCrossEntropy { .. }, Pass::Weight, [x, ..]) => {
            sampled_softmax(kind, x).scratch_elements()
        }
        (OpKind::Lstm { .. }, Pass::Weight, [y, dgates, _, _, _]) => {
            lstm_shape(kind, dgates, y).projection_grad_scratch()
        }
        _ => 0,
    }
}
