//! What kernels are told besides tensors, from the shapes of these and where a device's part begins.

use std::sync::Arc;

use shardloom_graph::op::RotaryScaling;
use shardloom_graph::{OpKind, op};

use super::Input;
use crate::attention::fused::Drawn;
use crate::attention::{Attention, Visibility};
use crate::device::Setting;
use crate::expert_contract::ExpertContract;
use crate::lstm::Lstm;
use crate::matmul::{Linear, WeightLayout};
use crate::rotary::{Heads, RotaryTable, Scaling};
use crate::routing::{Routed, Routing};
use crate::sampled_cross_entropy::SampledSoftmax;

/// By what dropout multiplies what it keeps; 1 where an operator drops nothing.
pub(super) fn keep_scale(kind: &OpKind) -> f32 {
    kind.dropout().map_or(1.0, |probability| 1.0 / (1.0 - probability))
}

/// How many elements of `rows` are filled.
pub(super) fn filled(counts: &Input<'_>, rows: &Input<'_>) -> usize {
    counts.f32().iter().map(|&count| count as usize).sum::<usize>() * rows.columns()
}

/// The sizes of a routing with counts of this shape.
pub(super) fn routing_sizes(counts: &[usize]) -> Routing {
    let [experts, samples] = *counts else {
        unreachable!("counts are of experts and samples, not {counts:?}")
    };
    Routing { experts, samples }
}

pub(super) fn routed<'a>(
    choice: &Input<'a>,
    slot: &Input<'a>,
    counts: &Input<'a>,
) -> (Routing, Routed<'a>) {
    let routed = Routed { choice: choice.u32(), slot: slot.u32(), counts: counts.f32() };
    (routing_sizes(counts.shape), routed)
}

/// The product of experts with matrices `[experts, inputs, outputs]`.
pub(super) fn expert_shape(weights: &[usize]) -> ExpertContract {
    let [_, inputs, outputs] = *weights else {
        unreachable!("experts' matrices have three axes, not {weights:?}")
    };
    ExpertContract { inputs, outputs }
}

/// The recurrence of gates `[batch, seq, gate, hidden]` that gives `[batch, seq, units]`.
pub(super) fn lstm_shape(kind: &OpKind, gates: &[usize], result: &[usize]) -> Lstm {
    let (OpKind::Lstm { forget_bias }, [batch, seq, _, hidden], [_, _, units]) =
        (*kind, gates, result)
    else {
        unreachable!("{} of {gates:?} and {result:?}", kind.name())
    };
    Lstm { batch: *batch, seq: *seq, hidden: *hidden, units: *units, forget_bias }
}

/// The loss over drawn classes of `x` of this shape.
pub(super) fn sampled_softmax(kind: &OpKind, x: &[usize]) -> SampledSoftmax {
    let (&OpKind::SampledCrossEntropy { classes, samples }, Some((&model, rows))) =
        (kind, x.split_last())
    else {
        unreachable!("{} of {x:?}", kind.name())
    };
    SampledSoftmax { rows: rows.iter().product(), model, classes, samples }
}

/// The product of `x` by `w` giving `y`, whose sizes are rows x inputs, inputs x outputs and rows x
/// outputs: three products that determine the three.
pub(super) fn linear(x: &[usize], w: &[usize], y: &[usize], transposed: bool) -> Linear {
    let [x, w, y] = [x, w, y].map(|shape| shape.iter().product::<usize>());
    let rows = (x as u128 * y as u128 / w as u128).isqrt() as usize;
    let layout =
        if transposed { WeightLayout::OutputsByInputs } else { WeightLayout::InputsByOutputs };
    Linear { rows, inputs: x / rows, outputs: y / rows, layout }
}

/// The attention of probabilities `[batch, heads, (group), queries, keys]` over keys or values
/// `[batch, keys, heads, head_dim]`.
pub(super) fn attention_shape(
    probs: &[usize],
    keys: &[usize],
    visibility: Visibility,
) -> Attention {
    let [batch, heads, group @ .., queries, key_count] = probs else {
        unreachable!("probabilities have at least four axes, not {probs:?}")
    };
    let group = group.iter().product();
    let head_dim = keys.last().copied().unwrap_or(1);
    Attention {
        batch: *batch,
        queries: *queries,
        keys: *key_count,
        kv_heads: *heads,
        group,
        head_dim,
        visibility,
    }
}

/// The attention of queries `[batch, queries, heads, (group), head_dim]` over keys `[batch, keys, heads,
/// head_dim]`.
pub(super) fn fused_shape(queries: &[usize], keys: &[usize], visibility: Visibility) -> Attention {
    let ([batch, count, heads, group @ .., head_dim], [_, key_count, ..]) = (queries, keys) else {
        unreachable!("attention of queries {queries:?} over keys {keys:?}")
    };
    Attention {
        batch: *batch,
        queries: *count,
        keys: *key_count,
        kv_heads: *heads,
        group: group.iter().product(),
        head_dim: *head_dim,
        visibility,
    }
}

/// What a fused attention drops, if it does.
pub(super) fn drawn<'a>(kind: &OpKind, setting: &'a Setting) -> Option<Drawn<'a>> {
    let probability = kind.dropout()?;
    let window = setting.mask.as_ref().expect("an operator with dropout has a mask");
    Some(Drawn { key: setting.key, window, probability })
}

/// What the queries that a device has see.
pub(super) fn visible(visibility: op::Visibility, setting: &Setting) -> Visibility {
    let first_query = setting.first_position;
    match visibility {
        op::Visibility::All => Visibility::All,
        op::Visibility::Causal => Visibility::Causal { first_query },
        op::Visibility::Window { positions } => Visibility::Window { first_query, positions },
    }
}

pub(super) fn context_scratch(shape: &Attention, masked: bool) -> usize {
    if masked { shape.scratch_elements() } else { 0 }
}

pub(super) fn rotary_table(
    kind: &OpKind,
    shape: &[usize],
    setting: &Setting,
) -> (Arc<RotaryTable>, Heads) {
    let (OpKind::Rotary { width, theta, scaling }, [_, positions, heads @ .., head_dim]) =
        (kind, shape)
    else {
        unreachable!("rotation of {shape:?}")
    };
    let scaling = scaling.map(|scaling| match scaling {
        RotaryScaling::Linear { factor } => Scaling::Linear { factor: f64::from(factor) },
        RotaryScaling::ByWavelength {
            factor,
            low_frequency_factor,
            high_frequency_factor,
            original_positions,
        } => Scaling::ByWavelength {
            factor: f64::from(factor),
            low_freq_factor: f64::from(low_frequency_factor),
            high_freq_factor: f64::from(high_frequency_factor),
            original_max_position: original_positions as usize,
        },
    });
    let theta = f64::from(*theta);
    let table = RotaryTable::shared(*width, theta, scaling, setting.first_position, *positions);
    (table, Heads { count: heads.iter().product(), width: *head_dim })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that share a sequence have some of its queries and all of its keys.
    #[test]
    fn queries_are_counted_apart_from_keys() {
        let visibility = Visibility::Causal { first_query: 4 };
        let found = fused_shape(&[2, 3, 4, 5, 6], &[2, 7, 4, 6], visibility);
        let expected = Attention {
            batch: 2,
            queries: 3,
            keys: 7,
            kv_heads: 4,
            group: 5,
            head_dim: 6,
            visibility,
        };
        assert_eq!(found, expected);
    }
}
