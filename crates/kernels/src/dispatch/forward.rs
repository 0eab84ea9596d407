//! The forward pass of each operator, by its kernel.

use shardloom_graph::OpKind;
use shardloom_graph::op::{Activation, Gate, Overflow};
use smallvec::SmallVec;

use super::arguments::{
    attention_shape, context_scratch, drawn, expert_shape, filled, fused_shape, keep_scale, linear,
    lstm_shape, rotary_table, routed, routing_sizes, sampled_softmax, visible,
};
use super::operand::{Data, DataMut, Input, Output, of_factors, of_product};
use crate::attention::{Dropout, Scores, fused};
use crate::cross_entropy::Entries;
use crate::device::Setting;
use crate::expert_contract::expert_contract;
use crate::routing::{self, Decision};
use crate::{
    activation, attention, concat, cross_entropy, dropout, elementwise, embedding, interaction,
    layer_norm, lstm, matmul, rms_norm, rotary, sigmoid_cross_entropy, soft_cap,
};

pub(super) fn forward(
    kind: &OpKind,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    let keep_scale = keep_scale(kind);
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
        (OpKind::AttentionProbs { visibility, scale, soft_cap }, [q, k, documents @ ..], [p]) => {
            let shape = attention_shape(p.shape, k.shape, visible(*visibility, setting));
            let documents = documents.first().map(Input::u32);
            let scores = Scores { scale: *scale, cap: *soft_cap };
            let p = p.f32();
            of_factors!((q, k), attention::probs(&shape, q, k, documents, scores, p));
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
        (
            OpKind::FusedAttention { visibility, scale, soft_cap, .. },
            [q, k, v, documents @ ..],
            [o],
        ) => {
            let shape = fused_shape(q.shape, k.shape, visible(*visibility, setting));
            let documents = documents.first().map(Input::u32);
            let dropout = drawn(kind, setting);
            let scores = Scores { scale: *scale, cap: *soft_cap };
            let o = o.f32();
            of_factors!(
                (q, k, v),
                fused::attention(&shape, q, k, v, documents, scores, dropout, o, scratch)
            );
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
        (&OpKind::LogitMax { classes }, [logits], [max]) => {
            let entries = Entries { first: setting.first_index, classes };
            cross_entropy::logit_max(logits.f32(), entries, max.f32());
        }
        (&OpKind::LogitSum { classes }, [logits, max, targets], [sum, target]) => {
            let (logits, max, targets) = (logits.f32(), max.f32(), targets.u32());
            let entries = Entries { first: setting.first_index, classes };
            cross_entropy::logit_sum(logits, max, targets, entries, sum.f32(), target.f32());
        }
        (OpKind::CrossEntropy { .. }, [_, _, sum, target, _], [loss]) => {
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
