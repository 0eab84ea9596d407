//! The gradients of each operator's weights, by its kernel.

use shardloom_graph::OpKind;

use super::arguments::{expert_shape, keep_scale, linear, lstm_shape, sampled_softmax};
use super::operand::{Data, DataMut, Input, Output, accumulates, of_product};
use crate::device::Setting;
use crate::expert_contract::expert_contract_weight_grad;
use crate::sampled_cross_entropy::Rows;
use crate::{dropout, elementwise, embedding, layer_norm, lstm, matmul, rms_norm, rows};

pub(super) fn weight_gradient(
    kind: &OpKind,
    reads: &[Input<'_>],
    writes: &mut [Output<'_>],
    setting: &Setting,
    scratch: &mut [f32],
) {
    let keep_scale = keep_scale(kind);
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
