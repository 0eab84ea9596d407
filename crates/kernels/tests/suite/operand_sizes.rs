//! Kernels check the lengths of their operands before they touch one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardloom_kernels::activation::{
    geglu, geglu_input_grad, gelu, gelu_input_grad, relu, relu_input_grad, swiglu,
    swiglu_input_grad,
};
use shardloom_kernels::attention::{
    Attention, Dropout, Scores, Visibility, context, context_input_grad, probs, probs_input_grad,
};
use shardloom_kernels::cross_entropy::{Entries, logit_max, logit_sum, logits_grad, loss};
use shardloom_kernels::dropout::{
    bias_dropout_add, bias_dropout_add_bias_grad, dropout, dropout_input_grad,
};
use shardloom_kernels::elementwise::{add, add_broadcast, broadcast_grad, scale, scale_input_grad};
use shardloom_kernels::embedding::{gather, gather_weight_grad};
use shardloom_kernels::layer_norm::{layer_norm, layer_norm_input_grad, layer_norm_weight_grad};
use shardloom_kernels::lstm::{Lstm, lstm, lstm_input_grad, lstm_weight_grad, projection_grad};
use shardloom_kernels::matmul::{
    Linear, WeightLayout, linear, linear_input_grad, linear_weight_grad,
};
use shardloom_kernels::random::Key;
use shardloom_kernels::reduce::{max_into, sum_into};
use shardloom_kernels::rms_norm::{rms_norm, rms_norm_input_grad, rms_norm_weight_grad};
use shardloom_kernels::rotary::{Heads, RotaryTable, rotate, rotate_input_grad};
use shardloom_kernels::sampled_cross_entropy::{Rows, SampledSoftmax};
use shardloom_kernels::sigmoid_cross_entropy;
use shardloom_kernels::soft_cap::{soft_cap, soft_cap_input_grad};

/// A kernel that is given `N` operands.
fn check<const N: usize>(name: &str, lengths: [usize; N], kernel: impl Fn([&mut Vec<f32>; N])) {
    let takes = |lengths: [usize; N]| {
        let mut operands = lengths.map(|length| vec![1.0; length]);
        catch_unwind(AssertUnwindSafe(|| kernel(operands.each_mut()))).is_ok()
    };
    assert!(takes(lengths), "{name} takes {lengths:?}");
    for operand in 0..N {
        for length in [lengths[operand] - 1, lengths[operand] + 1] {
            let mut wrong = lengths;
            wrong[operand] = length;
            assert!(!takes(wrong), "{name} takes {wrong:?} as well as {lengths:?}");
        }
    }
}

fn mask(of: &[f32]) -> Vec<u8> {
    of.iter().map(|_| 1).collect()
}

/// All of the first class.
fn indices(of: &[f32]) -> Vec<u32> {
    of.iter().map(|_| 0).collect()
}

#[test]
fn element_by_element_every_operand_has_as_many_elements() {
    check("dropout", [15; 3], |[x, m, y]| dropout(x, &mask(m), 1.5, y));
    check("gradient of dropout", [15; 3], |[dy, m, dx]| {
        dropout_input_grad(dy, &mask(m), 1.5, dx, true);
    });
    check("gelu", [15; 2], |[x, y]| gelu(x, y));
    check("gradient of gelu", [15; 3], |[x, dy, dx]| gelu_input_grad(x, dy, dx, true));
    check("relu", [15; 2], |[x, y]| relu(x, y));
    check("gradient of relu", [15; 3], |[x, dy, dx]| relu_input_grad(x, dy, dx, true));
    check("swiglu", [15; 3], |[gate, up, y]| swiglu(gate, up, y));
    check("gradient of swiglu", [15; 5], |[gate, up, dy, dgate, dup]| {
        swiglu_input_grad(gate, up, dy, dgate, dup, true, false);
    });
    check("geglu", [15; 3], |[gate, up, y]| geglu(gate, up, y));
    check("gradient of geglu", [15; 5], |[gate, up, dy, dgate, dup]| {
        geglu_input_grad(gate, up, dy, dgate, dup, true, false);
    });
    check("add", [15; 3], |[a, b, y]| add(a, b, y));
    check("scale", [15; 2], |[x, y]| scale(x, 2.0, y));
    check("gradient of scale", [15; 2], |[dy, dx]| scale_input_grad(dy, 2.0, dx, true));
    check("soft cap", [15; 2], |[x, y]| soft_cap(x, 2.0, y));
    check("gradient of soft cap", [15; 3], |[y, dy, dx]| {
        soft_cap_input_grad(y, dy, 2.0, dx, true);
    });
    check("sum", [15; 2], |[to, from]| sum_into(to, from));
    check("maximum", [15; 2], |[to, from]| max_into(to, from));
    let heads = Heads { count: 2, width: 6 };
    let table = RotaryTable::new(4, 10_000.0, None, 0, 3);
    check("rotation", [36; 2], |[x, y]| rotate(x, heads, &table, y));
    check("gradient of rotation", [36; 2], |[dy, dx]| {
        rotate_input_grad(dy, heads, &table, dx, true);
    });
}

/// Three rows of five.
#[test]
fn every_operand_has_as_many_rows_and_columns() {
    check("bias, dropout and residual", [15, 5, 15, 15, 15], |[x, bias, m, residual, y]| {
        bias_dropout_add(x, bias, Some(&mask(m)), 1.5, residual, y);
    });
    check("bias and residual", [15, 5, 15, 15], |[x, bias, residual, y]| {
        bias_dropout_add(x, bias, None, 1.0, residual, y);
    });
    check("gradient of a bias", [15, 15, 5], |[dy, m, dbias]| {
        bias_dropout_add_bias_grad(dy, &mask(m), 1.5, dbias, true);
    });
    check("addition to rows", [15, 5, 15], |[a, b, y]| add_broadcast(a, b, y));
    check("gradient of what is added to rows", [15, 5], |[dy, db]| broadcast_grad(dy, db, true));
    check("layer norm", [15, 5, 5, 15, 6], |[x, gain, bias, y, stats]| {
        layer_norm(x, gain, bias, 1e-5, y, stats);
    });
    check("gradient of layer norm", [15, 5, 6, 15, 15], |[x, gain, stats, dy, dx]| {
        layer_norm_input_grad(x, gain, stats, dy, dx, true);
    });
    check("gradients of its gain and bias", [15, 6, 15, 5, 5], |[x, stats, dy, dgain, dbias]| {
        layer_norm_weight_grad(x, stats, dy, dgain, dbias, [true, false]);
    });
    check("RMS norm", [15, 5, 15, 3], |[x, gain, y, stats]| {
        rms_norm(x, gain, 0.0, 1e-5, y, stats);
    });
    check("gradient of RMS norm", [15, 5, 3, 15, 15], |[x, gain, stats, dy, dx]| {
        rms_norm_input_grad(x, gain, 0.0, stats, dy, dx, true);
    });
    check("gradient of its gain", [15, 3, 15, 5], |[x, stats, dy, dgain]| {
        rms_norm_weight_grad(x, stats, dy, dgain, true);
    });
    let layer = Linear { rows: 3, inputs: 5, outputs: 4, layout: WeightLayout::InputsByOutputs };
    check("linear layer", [15, 20, 4, 12], |[x, w, bias, y]| {
        linear(layer, &x[..], &w[..], Some(bias), &mut y[..]);
    });
    check("gradient of a linear layer", [12, 20, 15], |[dy, w, dx]| {
        linear_input_grad(layer, &dy[..], &w[..], &mut dx[..], true);
    });
    check("gradient of its weights", [15, 12, 20], |[x, dy, dw]| {
        linear_weight_grad(layer, &x[..], &dy[..], &mut dw[..], true);
    });
    check("lookup", [3, 15], |[tokens, y]| gather(&indices(tokens), &[1.0; 20], 5, 0, y));
    check("gradient of a table", [3, 15], |[tokens, dy]| {
        gather_weight_grad(&indices(tokens), dy, 5, 0, &mut [0.0; 20], true);
    });
    check("largest logits", [15, 3], |[logits, m]| logit_max(logits, Entries::ALL, m));
    check("sums of logits", [15, 3, 3, 3, 3], |[logits, m, targets, z, t]| {
        logit_sum(logits, m, &indices(targets), Entries::ALL, z, t);
    });
    check("gradient of logits", [15, 3, 3, 3, 15], |[logits, m, z, targets, dlogits]| {
        logits_grad(logits, m, z, &indices(targets), Entries::ALL, 1.0, dlogits, true);
    });
    check("loss", [3, 3], |[z, t]| _ = loss(z, t));
    check("loss of two classes", [3, 3], |[logits, targets]| {
        _ = sigmoid_cross_entropy::loss(logits, &indices(targets));
    });
    check("gradient of two classes", [3, 3, 3], |[logits, targets, dlogits]| {
        sigmoid_cross_entropy::logits_grad(logits, &indices(targets), 1.0, dlogits, true);
    });
}

/// Two samples of three positions, of four cells and results of five.
#[test]
fn operands_of_a_recurrence_are_of_its_sizes() {
    let shape = Lstm { batch: 2, seq: 3, hidden: 4, units: 5, forget_bias: 1.0 };
    let (gates, cells, results, w, projected) = (2 * 3 * 16, 2 * 3 * 4, 2 * 3 * 5, 5 * 16, 4 * 5);
    let of_forward = [gates, w, projected, results, gates, cells, cells];
    check("recurrence", of_forward, |[gates, w, projection, y, activated, cell, output]| {
        lstm(&shape, gates, w, Some(projection), y, activated, cell, Some(output));
    });
    let of_backward = [w, gates, cells, results, projected, gates];
    check("its gradient", of_backward, |[w, activated, cell, dy, projection, dgates]| {
        let mut scratch = vec![0.0; shape.input_grad_scratch()];
        let projection = Some(&projection[..]);
        lstm_input_grad(&shape, w, activated, cell, dy, projection, dgates, &mut scratch);
    });
    check("gradient of its weights", [results, gates, w], |[y, dgates, dw]| {
        lstm_weight_grad(&shape, y, dgates, dw, true);
    });
    let of_projection = [gates, w, cells, results, projected];
    check("gradient of its projection", of_projection, |[dgates, w, output, dy, dprojection]| {
        let mut scratch = vec![0.0; shape.projection_grad_scratch()];
        projection_grad(&shape, dgates, w, output, dy, dprojection, &mut scratch, true);
    });
    // Without a projection results are as wide as cells are many.
    let plain = Lstm { units: 4, ..shape };
    let of_forward = [gates, 4 * 16, cells, gates, cells];
    check("plain recurrence", of_forward, |[gates, w, y, activated, cell]| {
        lstm(&plain, gates, w, None, y, activated, cell, None);
    });
    check(
        "its gradient",
        [4 * 16, gates, cells, cells, gates],
        |[w, activated, cell, dy, dgates]| {
            let mut scratch = vec![0.0; plain.input_grad_scratch()];
            lstm_input_grad(&plain, w, activated, cell, dy, None, dgates, &mut scratch);
        },
    );
}

#[test]
fn operands_of_attention_are_of_its_sizes() {
    let visibility = Visibility::Causal { first_query: 1 };
    let shape =
        Attention { batch: 2, queries: 3, keys: 4, kv_heads: 2, group: 2, head_dim: 5, visibility };
    let (queries, keys, pairs) = (2 * 3 * 4 * 5, 2 * 4 * 2 * 5, 2 * 4 * 3 * 4);
    let scores = Scores { scale: 0.5, cap: None };
    check("probabilities", [queries, keys, pairs], |[q, k, p]| {
        probs(&shape, &q[..], &k[..], None, scores, p);
    });
    let of_gradient = [pairs, pairs, queries, keys, queries, keys];
    check("gradient of probabilities", of_gradient, |[p, dp, q, k, dq, dk]| {
        let mut scratch = vec![0.0; shape.probs_input_grad_scratch(false)];
        let (q, k) = (&q[..], &k[..]);
        probs_input_grad(&shape, p, dp, q, k, scores, dq, dk, &mut scratch, true, false);
    });
    let mask = vec![1; pairs];
    for dropout in [None, Some(Dropout { mask: &mask, keep_scale: 1.5 })] {
        check("context", [pairs, keys, queries], |[p, v, o]| {
            context(&shape, p, dropout, v, o, &mut vec![0.0; shape.scratch_elements()]);
        });
        let of_gradient = [pairs, keys, queries, pairs, keys];
        check("gradient of a context", of_gradient, |[p, v, d_o, dp, dv]| {
            let mut scratch = vec![0.0; shape.scratch_elements()];
            context_input_grad(&shape, p, dropout, v, d_o, dp, dv, &mut scratch, true, false);
        });
    }
}

/// Of three rows, ten classes and four that are drawn.
#[test]
fn a_loss_over_drawn_classes_has_a_target_for_each_row_and_probabilities_for_both() {
    let shape = SampledSoftmax { rows: 3, model: 2, classes: 10, samples: 4 };
    let key = Key { seed: 1, stream: 2, step: 3 };
    let (x, w, bias) = (vec![0.5; 6], vec![0.5; 20], vec![0.5; 10]);
    let scratch = || vec![0.0; shape.scratch_elements()];
    check("loss", [3, 3, 12], |[targets, target, sampled]| {
        let of = (&x[..], &indices(targets)[..]);
        _ = shape.loss(key, of, (&w, &bias), target, sampled, &mut scratch());
    });
    check("gradient", [3, 3, 12], |[targets, target, sampled]| {
        let (of, probabilities) = ((&indices(targets)[..], &w[..]), (&target[..], &sampled[..]));
        shape.input_grad(key, of, probabilities, 1.0, &mut [0.0; 6], true, &mut scratch());
    });
    check("gradient of the weights", [3, 3, 12], |[targets, target, sampled]| {
        let of = (&x[..], &indices(targets)[..]);
        let (mut dw, mut dbias) = ([0.0; 20], [0.0; 10]);
        let written = (Rows::All(&mut dw), Rows::All(&mut dbias));
        shape.weight_grad(key, of, (target, sampled), 1.0, written, &mut scratch());
    });
}
