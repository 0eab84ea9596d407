//! From a graph operator's pass to its kernel.
//!
//! The one place that knows both the graph's operators and the kernels' signatures. A caller brings the
//! tensors in the order the graph's tables list them and says where the device's part of each loop
//! begins.

mod division;
mod formats;
mod sizes;

use half::bf16;
use shardloom_graph::OpKind;
use shardloom_graph::op::{Activation, Gate, Overflow};
use shardloom_graph::work::Pass;
use smallvec::SmallVec;

use crate::attention::fused;
use crate::attention::{Dropout, Scores, Visibility};
use crate::device::Setting;
use crate::expert_contract::{
    expert_contract, expert_contract_input_grad, expert_contract_weight_grad,
};
use crate::routing::{self, Decision};
use crate::sampled_cross_entropy::Rows;
use crate::{
    activation, attention, concat, cross_entropy, dropout, elementwise, embedding, interaction,
    layer_norm, lstm, matmul, rms_norm, rotary, rows, sigmoid_cross_entropy, soft_cap,
};
pub(crate) use division::{Division, Parts, division};
pub(crate) use formats::{InBf16, in_bf16};
use sizes::{
    attention_shape, context_scratch, drawn, expert_shape, filled, fused_shape, linear, lstm_shape,
    rotary_table, routed, routing_sizes, sampled_softmax, visible,
};

/// A tensor that a pass reads, with real numbers in fp32 but for what is taken as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: Data<'a>,
}

/// Elements that are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    /// Real numbers.
    F32(&'a [f32]),
    /// Real numbers that [are taken as they are](in_bf16).
    Bf16(&'a [bf16]),
    /// Masks.
    U8(&'a [u8]),
    /// Indices.
    U32(&'a [u32]),
    /// What a pass [does not look at](unread).
    Unread,
}

/// `$body` of the elements of two inputs, which are both in bfloat16 or both in fp32, and of those of a result.
macro_rules! of_product {
    ($one:ident, $other:ident, $result:ident, $body:expr) => {
        match ($one.data, $other.data, &mut $result.data) {
            (Data::Bf16($one), Data::Bf16($other), DataMut::Bf16($result)) => $body,
            (Data::Bf16($one), Data::Bf16($other), _) => {
                let $result = $result.f32();
                $body
            }
            _ => {
                let ($one, $other, $result) = ($one.f32(), $other.f32(), $result.f32());
                $body
            }
        }
    };
}

/// A tensor that a pass writes, with real numbers in fp32.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    /// Local shape.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: DataMut<'a>,
    /// Whether the result is added onto what is there.
    pub accumulate: bool,
}

/// Elements that are written.
#[derive(Debug)]
pub(crate) enum DataMut<'a> {
    /// Real numbers.
    F32(&'a mut [f32]),
    /// Those that a pass [writes so](in_bf16).
    Bf16(&'a mut [bf16]),
    /// Masks.
    U8(&'a mut [u8]),
    /// Indices.
    U32(&'a mut [u32]),
}

impl<'a> Input<'a> {
    fn f32(&self) -> &'a [f32] {
        match self.data {
            Data::F32(data) => data,
            other => panic!("a kernel was given {other:?} instead of real numbers"),
        }
    }

    fn u8(&self) -> &'a [u8] {
        match self.data {
            Data::U8(data) => data,
            other => panic!("a kernel was given {other:?} instead of a mask"),
        }
    }

    fn u32(&self) -> &'a [u32] {
        match self.data {
            Data::U32(data) => data,
            other => panic!("a kernel was given {other:?} instead of indices"),
        }
    }

    /// Length of the last axis.
    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

impl Output<'_> {
    fn f32(&mut self) -> &mut [f32] {
        match &mut self.data {
            DataMut::F32(data) => data,
            _ => panic!("a kernel was to write real numbers to something else"),
        }
    }

    fn u8(&mut self) -> &mut [u8] {
        match &mut self.data {
            DataMut::U8(data) => data,
            _ => panic!("a kernel was to write a mask to something else"),
        }
    }

    fn u32(&mut self) -> &mut [u32] {
        match &mut self.data {
            DataMut::U32(data) => data,
            _ => panic!("a kernel was to write indices to something else"),
        }
    }
}

/// Runs `pass` of an operator of kind `kind`, with as much `scratch` as [`scratch_elements`] says. Reads and
/// writes stand in the order of the operator's inputs and outputs (forward), or of its gradient rule's reads
/// and produced gradients. The mask of what a forward pass drops has been drawn.
///
/// # Panics
/// If the tensors are not those of the pass: a mistake of the caller, never of a user.
pub(crate) fn run(
    kind: &OpKind,
    pass: Pass,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    match pass {
        Pass::Forward => forward(kind, reads, writes, setting, scratch),
        Pass::Input => input_gradient(kind, reads, writes, setting, scratch),
        Pass::Weight => weight_gradient(kind, reads, writes, setting, scratch),
    }
}

/// Which of the tensors that a pass is given it does not look at. The mean of losses follows from the sums that were
/// made of logits; its inputs name the logits for its gradient.
pub(crate) fn unread(kind: &OpKind, pass: Pass) -> &'static [usize] {
    match (kind, pass) {
        (OpKind::CrossEntropy, Pass::Forward) => &[0, 1, 4],
        _ => &[],
    }
}

/// How many elements of scratch [`run`] needs for tensors of these shapes.
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
        (OpKind::FusedAttention { .. }, Pass::Forward, [queries, keys, _]) => {
            let shape = fused_shape(queries, keys, Visibility::All);
            fused::scratch_elements(&shape, kind.dropout().is_some())
        }
        (OpKind::FusedAttention { soft_cap, .. }, Pass::Input, [queries, keys, _, _]) => {
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

fn forward(
    kind: &OpKind,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    let keep_scale = kind.dropout().map_or(1.0, |probability| 1.0 / (1.0 - probability));
    match (kind, reads, writes) {
        (OpKind::Embed, [tokens, table], [y]) => {
            let (tokens, columns, first) = (tokens.u32(), table.columns(), setting.first_index);
            match (table.data, &mut y.data) {
                (Data::Bf16(table), DataMut::Bf16(y)) => {
                    embedding::gather(tokens, table, columns, first, y);
                }
                _ => embedding::gather(tokens, table.f32(), columns, first, y.f32()),
            }
        }
        (OpKind::Contract { transposed }, [x, w, bias @ ..], [y]) => {
            let shape = linear(x.shape, w.shape, y.shape, *transposed);
            let bias = bias.first().map(Input::f32);
            of_product!(x, w, y, matmul::linear(shape, x, w, bias, y));
        }
        (OpKind::Add, [a, b], [y]) if a.shape == b.shape => {
            elementwise::add(a.f32(), b.f32(), y.f32());
        }
        (OpKind::Add, [a, b], [y]) => elementwise::add_broadcast(a.f32(), b.f32(), y.f32()),
        (OpKind::Concat { axis }, parts, [y]) => {
            let rows = y.shape[..*axis].iter().product();
            let parts: SmallVec<[&[f32]; 4]> = parts.iter().map(Input::f32).collect();
            concat::concat(&parts, rows, y.f32());
        }
        (OpKind::Dropout { .. }, [x], [y]) => y.f32().copy_from_slice(x.f32()),
        (OpKind::Dropout { .. }, [x], [y, mask]) => {
            dropout::dropout(x.f32(), mask.u8(), keep_scale, y.f32());
        }
        (OpKind::BiasDropoutAdd { .. }, [x, bias, residual], [y, rest @ ..]) => {
            let mask = rest.first_mut().map(|mask| &*mask.u8());
            let (x, bias, residual) = (x.f32(), bias.f32(), residual.f32());
            dropout::bias_dropout_add(x, bias, mask, keep_scale, residual, y.f32());
        }
        (OpKind::LayerNorm { epsilon }, [x, gain, bias], [y, stats]) => {
            let (x, gain, bias) = (x.f32(), gain.f32(), bias.f32());
            layer_norm::layer_norm(x, gain, bias, *epsilon, y.f32(), stats.f32());
        }
        (OpKind::RmsNorm { epsilon, offset }, [x, gain], [y, stats]) => {
            let (x, gain) = (x.f32(), gain.f32());
            rms_norm::rms_norm(x, gain, *offset, *epsilon, y.f32(), stats.f32());
        }
        (OpKind::Pointwise(Activation::Gelu), [x], [y]) => activation::gelu(x.f32(), y.f32()),
        (OpKind::Pointwise(Activation::Relu), [x], [y]) => activation::relu(x.f32(), y.f32()),
        (OpKind::Pointwise(activation), [x, counts], [y]) => {
            let filled = filled(counts, x);
            let (x, y) = (&x.f32()[..filled], &mut y.f32()[..filled]);
            match activation {
                Activation::Gelu => activation::gelu(x, y),
                Activation::Relu => activation::relu(x, y),
            }
        }
        (OpKind::Route { slots, overflow }, [logits], [probability, choice, slot, counts]) => {
            // What is too much is counted too where it stops the run: whoever runs this looks.
            let most = match overflow {
                Overflow::Drop => Some(*slots),
                Overflow::Stop => None,
            };
            let sizes = routing_sizes(counts.shape);
            let decision = Decision {
                probability: probability.f32(),
                choice: choice.u32(),
                slot: slot.u32(),
                counts: counts.f32(),
            };
            routing::route(sizes, logits.f32(), most, decision);
        }
        (OpKind::Dispatch, [x, choice, slot, counts], [packed]) => {
            let (sizes, routed) = routed(choice, slot, counts);
            routing::dispatch(sizes, routed, x.columns(), x.f32(), packed.f32());
        }
        (OpKind::ExpertContract, [x, counts, w], [y]) => {
            let shape = expert_shape(w.shape);
            let counts = counts.f32();
            of_product!(x, w, y, expert_contract(shape, counts, x, w, y));
        }
        (OpKind::Combine, [packed, counts, choice, slot, probability], [y]) => {
            let (sizes, routed) = routed(choice, slot, counts);
            let width = packed.columns();
            routing::combine(sizes, routed, width, packed.f32(), probability.f32(), y.f32());
        }
        (OpKind::Glu(f), [gate, up], [y]) => {
            let (gate, up, y) = (gate.f32(), up.f32(), y.f32());
            match f {
                Gate::Silu => activation::swiglu(gate, up, y),
                Gate::Gelu => activation::geglu(gate, up, y),
            }
        }
        (OpKind::Scale { factor }, [x], [y]) => elementwise::scale(x.f32(), *factor, y.f32()),
        (OpKind::SoftCap { cap }, [x], [y]) => soft_cap::soft_cap(x.f32(), *cap, y.f32()),
        (OpKind::Rotary { .. }, [x], [y]) => {
            let (table, heads) = rotary_table(kind, x.shape, setting);
            rotary::rotate(x.f32(), heads, &table, y.f32());
        }
        (OpKind::AttentionProbs { visibility, scale, soft_cap }, [q, k], [p]) => {
            let shape = attention_shape(p.shape, k.shape, visible(*visibility, setting));
            let scores = Scores { scale: *scale, cap: *soft_cap };
            match (q.data, k.data) {
                (Data::Bf16(q), Data::Bf16(k)) => attention::probs(&shape, q, k, scores, p.f32()),
                _ => attention::probs(&shape, q.f32(), k.f32(), scores, p.f32()),
            }
        }
        (OpKind::AttentionContext { visibility, .. }, [p, v], [o, rest @ ..]) => {
            let shape = attention_shape(p.shape, v.shape, visible(*visibility, setting));
            let mask = rest.first_mut().map(|mask| Dropout { mask: mask.u8(), keep_scale });
            let scratch = &mut scratch[..context_scratch(&shape, mask.is_some())];
            match (p.data, v.data) {
                (Data::Bf16(p), Data::Bf16(v)) => {
                    attention::whole_context(&shape, p, v, o.f32());
                }
                _ => attention::context(&shape, p.f32(), mask, v.f32(), o.f32(), scratch),
            }
        }
        (OpKind::FusedAttention { visibility, scale, soft_cap, .. }, [q, k, v], [o]) => {
            let shape = fused_shape(q.shape, k.shape, visible(*visibility, setting));
            let dropout = drawn(kind, setting);
            let scores = Scores { scale: *scale, cap: *soft_cap };
            let (q, k, v) = (q.f32(), k.f32(), v.f32());
            fused::attention(&shape, q, k, v, scores, dropout, o.f32(), scratch);
        }
        (OpKind::Lstm { .. }, [gates, w, projection @ ..], [y, activated, cell, output @ ..]) => {
            let shape = lstm_shape(kind, gates.shape, y.shape);
            lstm::lstm(
                &shape,
                gates.f32(),
                w.f32(),
                projection.first().map(Input::f32),
                y.f32(),
                activated.f32(),
                cell.f32(),
                output.first_mut().map(Output::f32),
            );
        }
        (OpKind::DotInteraction { diagonal }, parts, [y]) => {
            let width = parts[0].columns();
            let parts: SmallVec<[&[f32]; 4]> = parts.iter().map(Input::f32).collect();
            interaction::dot_interaction(&parts, width, *diagonal, y.f32());
        }
        (OpKind::LogitMax, [logits], [max]) => {
            cross_entropy::logit_max(logits.f32(), max.f32());
        }
        (OpKind::LogitSum, [logits, max, targets], [sum, target]) => {
            let (logits, max, targets) = (logits.f32(), max.f32(), targets.u32());
            let first = setting.first_index;
            cross_entropy::logit_sum(logits, max, targets, first, sum.f32(), target.f32());
        }
        (OpKind::CrossEntropy, [_, _, sum, target, _], [loss]) => {
            loss.f32()[0] = cross_entropy::loss(sum.f32(), target.f32()) as f32;
        }
        (
            OpKind::SampledCrossEntropy { samples, .. },
            [x, targets, w, bias],
            [loss, target, sampled],
        ) => {
            let shape = sampled_softmax(kind, x.shape);
            let (x, of) = ((x.f32(), targets.u32()), (w.f32(), bias.f32()));
            let (target, key) = (target.f32(), setting.key);
            let total = match samples {
                0 => shape.loss_over_all(x, of, target, scratch),
                _ => shape.loss(key, x, of, target, sampled.f32(), scratch),
            };
            loss.f32()[0] = total as f32;
        }
        (OpKind::SigmoidCrossEntropy, [logits, targets], [loss]) => {
            loss.f32()[0] = sigmoid_cross_entropy::loss(logits.f32(), targets.u32()) as f32;
        }
        (kind, reads, _) => unreachable!("{} does not read {} tensors", kind.name(), reads.len()),
    }
}

fn input_gradient(
    kind: &OpKind,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    let keep_scale = kind.dropout().map_or(1.0, |probability| 1.0 / (1.0 - probability));
    let accumulate = accumulates(writes);
    match (kind, reads, writes) {
        (OpKind::Contract { transposed }, [w, dy], [dx]) => {
            let shape = linear(dx.shape, w.shape, dy.shape, *transposed);
            let accumulate = accumulate[0];
            of_product!(dy, w, dx, matmul::linear_input_grad(shape, dy, w, dx, accumulate));
        }
        (OpKind::Concat { axis }, [dy], parts) => {
            let rows = dy.shape[..*axis].iter().product();
            let mut first = 0;
            for dx in parts {
                let width = dx.shape[*axis..].iter().product::<usize>();
                let accumulate = dx.accumulate;
                concat::concat_input_grad(dy.f32(), rows, first, dx.f32(), accumulate);
                first += width;
            }
        }
        (OpKind::Dropout { .. } | OpKind::BiasDropoutAdd { .. }, [mask, dy], [dx]) => {
            let (dy, mask) = (dy.f32(), mask.u8());
            dropout::dropout_input_grad(dy, mask, keep_scale, dx.f32(), accumulate[0]);
        }
        (OpKind::LayerNorm { .. }, [x, gain, stats, dy], [dx]) => {
            let (x, gain, stats, dy) = (x.f32(), gain.f32(), stats.f32(), dy.f32());
            layer_norm::layer_norm_input_grad(x, gain, stats, dy, dx.f32(), accumulate[0]);
        }
        (OpKind::RmsNorm { offset, .. }, [x, gain, stats, dy], [dx]) => {
            let (x, gain, stats, dy) = (x.f32(), gain.f32(), stats.f32(), dy.f32());
            rms_norm::rms_norm_input_grad(x, gain, *offset, stats, dy, dx.f32(), accumulate[0]);
        }
        (OpKind::Pointwise(Activation::Gelu), [x, dy], [dx]) => {
            activation::gelu_input_grad(x.f32(), dy.f32(), dx.f32(), accumulate[0]);
        }
        (OpKind::Pointwise(Activation::Relu), [x, dy], [dx]) => {
            activation::relu_input_grad(x.f32(), dy.f32(), dx.f32(), accumulate[0]);
        }
        (OpKind::Pointwise(activation), [x, counts, dy], [dx]) => {
            let filled = filled(counts, x);
            let (x, dy, dx) = (&x.f32()[..filled], &dy.f32()[..filled], &mut dx.f32()[..filled]);
            match activation {
                Activation::Gelu => activation::gelu_input_grad(x, dy, dx, accumulate[0]),
                Activation::Relu => activation::relu_input_grad(x, dy, dx, accumulate[0]),
            }
        }
        (OpKind::Route { .. }, [logits, probability, choice, dp], [dlogits]) => {
            let (logits, probability, choice) = (logits.f32(), probability.f32(), choice.u32());
            let dlogits = dlogits.f32();
            routing::route_input_grad(
                logits,
                probability,
                choice,
                dp.f32(),
                dlogits,
                accumulate[0],
            );
        }
        (OpKind::Dispatch, [choice, slot, counts, dpacked], [dx]) => {
            let (sizes, routed) = routed(choice, slot, counts);
            let (width, dpacked) = (dpacked.columns(), dpacked.f32());
            routing::dispatch_input_grad(sizes, routed, width, dpacked, dx.f32(), accumulate[0]);
        }
        (OpKind::ExpertContract, [counts, w, dy], [dx]) => {
            let shape = expert_shape(w.shape);
            let (counts, add) = (counts.f32(), accumulate[0]);
            of_product!(dy, w, dx, expert_contract_input_grad(shape, counts, dy, w, dx, add));
        }
        (
            OpKind::Combine,
            [packed, counts, choice, slot, probability, dy],
            [dpacked, dprobability],
        ) => {
            let (sizes, routed) = routed(choice, slot, counts);
            routing::combine_input_grad(
                sizes,
                routed,
                packed.columns(),
                packed.f32(),
                probability.f32(),
                dy.f32(),
                dpacked.f32(),
                dprobability.f32(),
                [accumulate[0], accumulate[1]],
            );
        }
        (OpKind::Glu(f), [gate, up, dy], [dgate, dup]) => {
            let (gate, up, dy) = (gate.f32(), up.f32(), dy.f32());
            let (dgate, dup) = (dgate.f32(), dup.f32());
            let gradient = match f {
                Gate::Silu => activation::swiglu_input_grad,
                Gate::Gelu => activation::geglu_input_grad,
            };
            gradient(gate, up, dy, dgate, dup, accumulate[0], accumulate[1]);
        }
        (OpKind::Scale { factor }, [dy], [dx]) => {
            elementwise::scale_input_grad(dy.f32(), *factor, dx.f32(), accumulate[0]);
        }
        (OpKind::SoftCap { cap }, [y, dy], [dx]) => {
            soft_cap::soft_cap_input_grad(y.f32(), dy.f32(), *cap, dx.f32(), accumulate[0]);
        }
        (OpKind::Rotary { .. }, [dy], [dx]) => {
            let (table, heads) = rotary_table(kind, dy.shape, setting);
            rotary::rotate_input_grad(dy.f32(), heads, &table, dx.f32(), accumulate[0]);
        }
        (OpKind::AttentionProbs { visibility, scale, soft_cap }, [q, k, p, dp], [dq, dk]) => {
            let shape = attention_shape(p.shape, k.shape, visible(*visibility, setting));
            let scores = Scores { scale: *scale, cap: *soft_cap };
            let scratch = &mut scratch[..shape.probs_input_grad_scratch(soft_cap.is_some())];
            attention::probs_input_grad(
                &shape,
                p.f32(),
                dp.f32(),
                q.f32(),
                k.f32(),
                scores,
                dq.f32(),
                dk.f32(),
                scratch,
                accumulate[0],
                accumulate[1],
            );
        }
        (OpKind::AttentionContext { visibility, .. }, [masks @ .., p, v, d_o], [dp, dv]) => {
            let shape = attention_shape(p.shape, v.shape, visible(*visibility, setting));
            let mask = masks.first().map(|mask| Dropout { mask: mask.u8(), keep_scale });
            let scratch = &mut scratch[..context_scratch(&shape, mask.is_some())];
            if let (Data::Bf16(p), Data::Bf16(v), Data::Bf16(d_o)) = (p.data, v.data, d_o.data) {
                let (dp, dv, [add_p, add_v]) = (dp.f32(), dv.f32(), [accumulate[0], accumulate[1]]);
                attention::whole_context_input_grad(&shape, p, v, d_o, dp, dv, add_p, add_v);
                return;
            }
            attention::context_input_grad(
                &shape,
                p.f32(),
                mask,
                v.f32(),
                d_o.f32(),
                dp.f32(),
                dv.f32(),
                scratch,
                accumulate[0],
                accumulate[1],
            );
        }
        (
            OpKind::FusedAttention { visibility, scale, soft_cap, .. },
            [q, k, v, d_o],
            [dq, dk, dv],
        ) => {
            let shape = fused_shape(q.shape, k.shape, visible(*visibility, setting));
            fused::attention_input_grad(
                &shape,
                q.f32(),
                k.f32(),
                v.f32(),
                Scores { scale: *scale, cap: *soft_cap },
                drawn(kind, setting),
                d_o.f32(),
                dq.f32(),
                dk.f32(),
                dv.f32(),
                scratch,
                accumulate,
            );
        }
        (OpKind::Lstm { .. }, [w, activated, cell, dy, projection @ ..], [dgates]) => {
            assert!(!accumulate[0], "nothing else reads the gates of a recurrence");
            let shape = lstm_shape(kind, activated.shape, dy.shape);
            lstm::lstm_input_grad(
                &shape,
                w.f32(),
                activated.f32(),
                cell.f32(),
                dy.f32(),
                projection.first().map(Input::f32),
                dgates.f32(),
                scratch,
            );
        }
        (OpKind::DotInteraction { diagonal }, [parts @ .., dy], gradients) => {
            let width = parts[0].columns();
            let parts: SmallVec<[&[f32]; 4]> = parts.iter().map(Input::f32).collect();
            for (of, dx) in gradients.iter_mut().enumerate() {
                let (dy, accumulate) = (dy.f32(), dx.accumulate);
                let dx = dx.f32();
                interaction::dot_interaction_input_grad(
                    &parts, width, *diagonal, dy, of, dx, accumulate,
                );
            }
        }
        (OpKind::SampledCrossEntropy { .. }, [targets, w, target, sampled], [dx]) => {
            let shape = sampled_softmax(kind, dx.shape);
            let probabilities = (target.f32(), sampled.f32());
            let (of, dx) = ((targets.u32(), w.f32()), dx.f32());
            let (key, scale) = (setting.key, setting.loss_scale);
            shape.input_grad(key, of, probabilities, scale, dx, accumulate[0], scratch);
        }
        (OpKind::SigmoidCrossEntropy, [logits, targets], [dlogits]) => {
            sigmoid_cross_entropy::logits_grad(
                logits.f32(),
                targets.u32(),
                setting.loss_scale,
                dlogits.f32(),
                accumulate[0],
            );
        }
        (OpKind::CrossEntropy, [logits, max, sum, targets], [dlogits]) => {
            cross_entropy::logits_grad(
                logits.f32(),
                max.f32(),
                sum.f32(),
                targets.u32(),
                setting.first_index,
                setting.loss_scale,
                dlogits.f32(),
                accumulate[0],
            );
        }
        (kind, reads, _) => {
            unreachable!("{} has no input gradient of {} tensors", kind.name(), reads.len())
        }
    }
}

fn weight_gradient(
    kind: &OpKind,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    let keep_scale = kind.dropout().map_or(1.0, |probability| 1.0 / (1.0 - probability));
    let accumulate = accumulates(writes);
    match (kind, reads, writes) {
        (OpKind::Lstm { .. }, [y, dgates, rest @ ..], [dw, projections @ ..]) => {
            let shape = lstm_shape(kind, dgates.shape, y.shape);
            let (y, dgates) = (y.f32(), dgates.f32());
            lstm::lstm_weight_grad(&shape, y, dgates, dw.f32(), accumulate[0]);
            if let ([w, output, dy], [dprojection]) = (rest, projections) {
                lstm::projection_grad(
                    &shape,
                    dgates,
                    w.f32(),
                    output.f32(),
                    dy.f32(),
                    dprojection.f32(),
                    scratch,
                    accumulate[1],
                );
            }
        }
        (OpKind::Embed, [tokens, dy], [dtable]) => {
            let (columns, first) = (dy.columns(), setting.first_index);
            let (tokens, dy) = (tokens.u32(), dy.f32());
            embedding::gather_weight_grad(tokens, dy, columns, first, dtable.f32(), accumulate[0]);
        }
        (OpKind::Embed, [tokens, dy], [of, values]) => {
            let first = setting.first_index;
            rows::of_tokens(tokens.u32(), dy.f32(), first, of.u32(), values.f32());
        }
        (OpKind::SampledCrossEntropy { .. }, [x, targets, target, sampled], written) => {
            let shape = sampled_softmax(kind, x.shape);
            let (of, probabilities) = ((x.f32(), targets.u32()), (target.f32(), sampled.f32()));
            let (key, scale) = (setting.key, setting.loss_scale);
            shape.weight_grad(key, of, probabilities, scale, rows_written(written), scratch);
        }
        (OpKind::Contract { transposed }, [x, dy], [dw, dbias @ ..]) => {
            let shape = linear(x.shape, dw.shape, dy.shape, *transposed);
            of_product!(x, dy, dw, matmul::linear_weight_grad(shape, x, dy, dw, accumulate[0]));
            if let Some(dbias) = dbias.first_mut() {
                let (dbias, accumulate) = (dbias.f32(), accumulate[1]);
                match dy.data {
                    Data::Bf16(dy) => matmul::bias_grad_of_bf16(dy, dbias, accumulate),
                    _ => matmul::bias_grad(dy.f32(), dbias, accumulate),
                }
            }
        }
        (OpKind::ExpertContract, [x, counts, dy], [dw]) => {
            let shape = expert_shape(dw.shape);
            let (counts, add) = (counts.f32(), accumulate[0]);
            of_product!(x, dy, dw, expert_contract_weight_grad(shape, counts, x, dy, dw, add));
        }
        (OpKind::Add, [dy], [db]) => {
            elementwise::broadcast_grad(dy.f32(), db.f32(), accumulate[0]);
        }
        (OpKind::BiasDropoutAdd { .. }, [mask, dy], [dbias]) => {
            let (dy, mask) = (dy.f32(), mask.u8());
            dropout::bias_dropout_add_bias_grad(dy, mask, keep_scale, dbias.f32(), accumulate[0]);
        }
        (OpKind::BiasDropoutAdd { .. }, [dy], [dbias]) => {
            matmul::bias_grad(dy.f32(), dbias.f32(), accumulate[0]);
        }
        (OpKind::LayerNorm { .. }, [x, stats, dy], [dgain, dbias]) => {
            let (x, stats, dy) = (x.f32(), stats.f32(), dy.f32());
            let (dgain, dbias) = (dgain.f32(), dbias.f32());
            let accumulate = [accumulate[0], accumulate[1]];
            layer_norm::layer_norm_weight_grad(x, stats, dy, dgain, dbias, accumulate);
        }
        (OpKind::RmsNorm { .. }, [x, stats, dy], [dgain]) => {
            let (x, stats, dy) = (x.f32(), stats.f32(), dy.f32());
            rms_norm::rms_norm_weight_grad(x, stats, dy, dgain.f32(), accumulate[0]);
        }
        (kind, reads, _) => {
            unreachable!("{} has no weight gradient of {} tensors", kind.name(), reads.len())
        }
    }
}

/// Where the gradients of two tables go, each as one tensor or as rows and values.
fn rows_written<'a>(written: &'a mut [Output<'_>]) -> (Rows<'a>, Rows<'a>) {
    let mut rest = written.iter_mut();
    let mut next = || match rest.next() {
        Some(Output { data: DataMut::U32(rows), .. }) => match rest.next() {
            Some(values) => Rows::Read { rows, values: values.f32() },
            None => unreachable!("rows have values"),
        },
        Some(all) => {
            if !all.accumulate {
                all.f32().fill(0.0);
            }
            Rows::All(all.f32())
        }
        None => unreachable!("two tables have two gradients"),
    };
    (next(), next())
}

/// Whether the first three gradients are added onto what is there; no more than three are told so together.
fn accumulates(writes: &[Output<'_>]) -> [bool; 3] {
    [0, 1, 2].map(|index| writes.get(index).is_some_and(|write| write.accumulate))
}
