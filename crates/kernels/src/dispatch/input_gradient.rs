//! The gradients of each operator's inputs, by its kernel.

use shardloom_graph::OpKind;
use shardloom_graph::op::{Activation, Gate};
use smallvec::SmallVec;

use super::arguments::{
    attention_shape, context_scratch, drawn, expert_shape, filled, fused_shape, keep_scale, linear,
    lstm_shape, rotary_table, routed, sampled_softmax, visible,
};
use super::operand::{Data, DataMut, Input, Output, accumulates, of_factors, of_product};
use crate::attention::{Dropout, Scores, fused};
use crate::cross_entropy::Entries;
use crate::device::Setting;
use crate::expert_contract::expert_contract_input_grad;
use crate::{
    activation, attention, concat, cross_entropy, dropout, elementwise, interaction, layer_norm,
    lstm, matmul, rms_norm, rotary, routing, sigmoid_cross_entropy, soft_cap,
};

pub(super) fn input_gradient(
    kind: &OpKind,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    let keep_scale = keep_scale(kind);
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
            let (p, dp, dq, dk) = (p.f32(), dp.f32(), dq.f32(), dk.f32());
            let [add_q, add_k] = [accumulate[0], accumulate[1]];
            of_factors!(
                (q, k),
                attention::probs_input_grad(
                    &shape, p, dp, q, k, scores, dq, dk, scratch, add_q, add_k
                )
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
            [q, k, v, documents @ .., d_o],
            [dq, dk, dv],
        ) => {
            let shape = fused_shape(q.shape, k.shape, visible(*visibility, setting));
            let documents = documents.first().map(Input::u32);
            let scores = Scores { scale: *scale, cap: *soft_cap };
            let drawn = drawn(kind, setting);
            let (dq, dk, dv) = (dq.f32(), dk.f32(), dv.f32());
            of_factors!(
                (q, k, v, d_o),
                fused::attention_input_grad(
                    &shape, q, k, v, documents, scores, drawn, d_o, dq, dk, dv, scratch, accumulate
                )
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
        (&OpKind::CrossEntropy { classes }, [logits, max, sum, targets], [dlogits]) => {
            cross_entropy::logits_grad(
                logits.f32(),
                max.f32(),
                sum.f32(),
                targets.u32(),
                Entries { first: setting.first_index, classes },
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
