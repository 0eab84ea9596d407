//! The kernels of a small GPT step: model size 256, 4 heads, feed-forward size 1024, batch 8 of 128
//! tokens, vocabulary 8192.
//!
//! Run with `cargo bench -p shardloom-kernels`; throughput of products is in floating-point
//! operations, of the rest in elements.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use shardloom_kernels::attention::{self, Attention, Dropout, Scores, Visibility};
use shardloom_kernels::cross_entropy::Entries;
use shardloom_kernels::matmul::{
    Linear, WeightLayout, linear, linear_input_grad, linear_weight_grad,
};
use shardloom_kernels::optimizer::{AdamW, Optimizer, Piece, Step};
use shardloom_kernels::random::{Key, dropout_mask, normal_fill};
use shardloom_kernels::window::Window;
use shardloom_kernels::{activation, cross_entropy, dropout, elementwise, layer_norm, matmul};

const ROWS: usize = 1024;
const MODEL: usize = 256;
const FFN: usize = 1024;
const VOCABULARY: usize = 8192;
const KEY: Key = Key { seed: 1, stream: 2, step: 3 };

fn main() {
    divan::main();
}

fn normal(elements: usize) -> Vec<f32> {
    let mut x = vec![0.0; elements];
    normal_fill(KEY, &Window::whole(&[elements]), 0.0, 1.0, &mut x);
    x
}

fn mask(elements: usize) -> Vec<u8> {
    let mut mask = vec![0; elements];
    dropout_mask(KEY, &Window::whole(&[elements]), 0.1, &mut mask);
    mask
}

/// (inputs, outputs, layout): the two projections of attention, the two of the feed-forward layer,
/// and the tied output layer.
const LINEAR: [(usize, usize, WeightLayout); 5] = [
    (MODEL, 3 * MODEL, WeightLayout::InputsByOutputs),
    (MODEL, MODEL, WeightLayout::InputsByOutputs),
    (MODEL, FFN, WeightLayout::InputsByOutputs),
    (FFN, MODEL, WeightLayout::InputsByOutputs),
    (MODEL, VOCABULARY, WeightLayout::OutputsByInputs),
];

struct Layer {
    shape: Linear,
    x: Vec<f32>,
    w: Vec<f32>,
    y: Vec<f32>,
}

impl Layer {
    fn new((inputs, outputs, layout): (usize, usize, WeightLayout)) -> Layer {
        let shape = Linear { rows: ROWS, inputs, outputs, layout };
        let [x, w, y] = [ROWS * inputs, inputs * outputs, ROWS * outputs].map(normal);
        Layer { shape, x, w, y }
    }

    fn flops(&self) -> ItemsCount {
        ItemsCount::new(2 * self.shape.rows * self.shape.inputs * self.shape.outputs)
    }
}

#[divan::bench(args = LINEAR)]
fn linear_forward(bencher: Bencher, size: (usize, usize, WeightLayout)) {
    let Layer { shape, x, w, mut y } = Layer::new(size);
    let flops = ItemsCount::new(2 * ROWS * shape.inputs * shape.outputs);
    bencher.counter(flops).bench_local(|| linear(shape, black_box(&x), &w, None, &mut y));
}

#[divan::bench(args = LINEAR)]
fn linear_input(bencher: Bencher, size: (usize, usize, WeightLayout)) {
    let mut layer = Layer::new(size);
    bencher.counter(layer.flops()).bench_local(|| {
        linear_input_grad(layer.shape, black_box(&layer.y), &layer.w, &mut layer.x, false);
    });
}

#[divan::bench(args = LINEAR)]
fn linear_weight(bencher: Bencher, size: (usize, usize, WeightLayout)) {
    let mut layer = Layer::new(size);
    bencher.counter(layer.flops()).bench_local(|| {
        linear_weight_grad(layer.shape, black_box(&layer.x), &layer.y, &mut layer.w, true);
    });
}

#[divan::bench]
fn bias_grad(bencher: Bencher) {
    let dy = normal(ROWS * FFN);
    let mut db = normal(FFN);
    bencher
        .counter(ItemsCount::new(dy.len()))
        .bench_local(|| matmul::bias_grad(black_box(&dy), &mut db, true));
}

const SCORES: Scores = Scores { scale: 0.125, cap: None };

mod attend {
    use super::*;

    const SHAPE: Attention = Attention {
        batch: 8,
        queries: 128,
        keys: 128,
        kv_heads: 4,
        group: 1,
        head_dim: 64,
        visibility: Visibility::Causal { first_query: 0 },
    };

    /// Multiplications and additions of one product, had nothing been skipped.
    fn flops() -> ItemsCount {
        ItemsCount::new(2 * SHAPE.probs_elements() * SHAPE.head_dim)
    }

    #[divan::bench]
    fn probs(bencher: Bencher) {
        let (q, k) = (normal(SHAPE.query_elements()), normal(SHAPE.key_elements()));
        let mut p = normal(SHAPE.probs_elements());
        bencher
            .counter(flops())
            .bench_local(|| attention::probs(&SHAPE, black_box(&q), &k, None, SCORES, &mut p));
    }

    #[divan::bench]
    fn probs_input_grad(bencher: Bencher) {
        let (q, k) = (normal(SHAPE.query_elements()), normal(SHAPE.key_elements()));
        let (p, dp) = (normal(SHAPE.probs_elements()), normal(SHAPE.probs_elements()));
        let (mut dq, mut dk) = (q.clone(), k.clone());
        let mut scratch = vec![0.0; SHAPE.scratch_elements()];
        bencher.counter(flops()).bench_local(|| {
            attention::probs_input_grad(
                &SHAPE,
                black_box(&p),
                &dp,
                &q,
                &k,
                SCORES,
                &mut dq,
                &mut dk,
                &mut scratch,
                false,
                false,
            );
        });
    }

    #[divan::bench(args = [false, true])]
    fn context(bencher: Bencher, dropped: bool) {
        let (p, v) = (normal(SHAPE.probs_elements()), normal(SHAPE.key_elements()));
        let mask = mask(p.len());
        let dropout = dropped.then_some(Dropout { mask: &mask, keep_scale: 1.1 });
        let mut o = normal(SHAPE.query_elements());
        let mut scratch = vec![0.0; SHAPE.scratch_elements()];
        bencher.counter(flops()).bench_local(|| {
            attention::context(&SHAPE, black_box(&p), dropout, &v, &mut o, &mut scratch);
        });
    }

    #[divan::bench(args = [false, true])]
    fn context_input_grad(bencher: Bencher, dropped: bool) {
        let (p, v) = (normal(SHAPE.probs_elements()), normal(SHAPE.key_elements()));
        let d_o = normal(SHAPE.query_elements());
        let mask = mask(p.len());
        let dropout = dropped.then_some(Dropout { mask: &mask, keep_scale: 1.1 });
        let (mut dp, mut dv) = (p.clone(), v.clone());
        let mut scratch = vec![0.0; SHAPE.scratch_elements()];
        bencher.counter(flops()).bench_local(|| {
            attention::context_input_grad(
                &SHAPE,
                black_box(&p),
                dropout,
                &v,
                &d_o,
                &mut dp,
                &mut dv,
                &mut scratch,
                false,
                false,
            );
        });
    }
}

mod per_element {
    use super::*;

    #[divan::bench]
    fn gelu(bencher: Bencher) {
        let (x, mut y) = (normal(ROWS * FFN), normal(ROWS * FFN));
        bencher
            .counter(ItemsCount::new(x.len()))
            .bench_local(|| activation::gelu(black_box(&x), &mut y));
    }

    #[divan::bench]
    fn gelu_input_grad(bencher: Bencher) {
        let (x, mut dx) = (normal(ROWS * FFN), normal(ROWS * FFN));
        let dy = normal(ROWS * FFN);
        bencher
            .counter(ItemsCount::new(x.len()))
            .bench_local(|| activation::gelu_input_grad(black_box(&x), &dy, &mut dx, false));
    }

    #[divan::bench]
    fn add(bencher: Bencher) {
        let (x, mut y) = (normal(ROWS * MODEL), normal(ROWS * MODEL));
        let b = normal(ROWS * MODEL);
        bencher
            .counter(ItemsCount::new(x.len()))
            .bench_local(|| elementwise::add(black_box(&x), &b, &mut y));
    }

    #[divan::bench]
    fn layer_norm(bencher: Bencher) {
        let (x, mut y) = (normal(ROWS * MODEL), normal(ROWS * MODEL));
        let (gain, bias, mut stats) = (normal(MODEL), normal(MODEL), normal(2 * ROWS));
        bencher.counter(ItemsCount::new(x.len())).bench_local(|| {
            layer_norm::layer_norm(black_box(&x), &gain, &bias, 1e-5, &mut y, &mut stats);
        });
    }

    #[divan::bench]
    fn layer_norm_input_grad(bencher: Bencher) {
        let (x, mut dx) = (normal(ROWS * MODEL), normal(ROWS * MODEL));
        let (gain, stats, dy) = (normal(MODEL), normal(2 * ROWS), normal(ROWS * MODEL));
        bencher.counter(ItemsCount::new(x.len())).bench_local(|| {
            layer_norm::layer_norm_input_grad(black_box(&x), &gain, &stats, &dy, &mut dx, true);
        });
    }

    #[divan::bench]
    fn layer_norm_weight_grad(bencher: Bencher) {
        let (x, dy, stats) = (normal(ROWS * MODEL), normal(ROWS * MODEL), normal(2 * ROWS));
        let (mut dgain, mut dbias) = (normal(MODEL), normal(MODEL));
        bencher.counter(ItemsCount::new(x.len())).bench_local(|| {
            layer_norm::layer_norm_weight_grad(
                black_box(&x),
                &stats,
                &dy,
                &mut dgain,
                &mut dbias,
                [true; 2],
            );
        });
    }

    #[divan::bench]
    fn bias_dropout_add(bencher: Bencher) {
        let (x, residual, mut y) =
            (normal(ROWS * MODEL), normal(ROWS * MODEL), normal(ROWS * MODEL));
        let (bias, mask) = (normal(MODEL), mask(ROWS * MODEL));
        bencher.counter(ItemsCount::new(x.len())).bench_local(|| {
            dropout::bias_dropout_add(black_box(&x), &bias, Some(&mask), 1.1, &residual, &mut y);
        });
    }

    #[divan::bench]
    fn mask_fill(bencher: Bencher) {
        let mut mask = mask(ROWS * MODEL);
        let window = Window::whole(&[ROWS, MODEL]);
        bencher
            .counter(ItemsCount::new(mask.len()))
            .bench_local(|| dropout_mask(KEY, black_box(&window), 0.1, &mut mask));
    }

    #[divan::bench]
    fn normal_numbers(bencher: Bencher) {
        let mut x = normal(ROWS * MODEL);
        let window = Window::whole(&[ROWS, MODEL]);
        bencher
            .counter(ItemsCount::new(x.len()))
            .bench_local(|| normal_fill(KEY, black_box(&window), 0.0, 1.0, &mut x));
    }

    #[divan::bench]
    fn cross_entropy_forward(bencher: Bencher) {
        let logits = normal(ROWS * VOCABULARY);
        let targets: Vec<u32> = (0..ROWS as u32).collect();
        let [mut m, mut z, mut t] = [(); 3].map(|()| normal(ROWS));
        bencher.counter(ItemsCount::new(logits.len())).bench_local(|| {
            cross_entropy::logit_max(black_box(&logits), Entries::ALL, &mut m);
            cross_entropy::logit_sum(&logits, &m, &targets, Entries::ALL, &mut z, &mut t);
        });
    }

    #[divan::bench]
    fn logits_grad(bencher: Bencher) {
        let logits = normal(ROWS * VOCABULARY);
        let mut gradient = vec![0.0; logits.len()];
        let targets: Vec<u32> = (0..ROWS as u32).collect();
        let (m, z) = (vec![0.0; ROWS], vec![1.0; ROWS]);
        bencher.counter(ItemsCount::new(logits.len())).bench_local(|| {
            let (logits, gradient) = (black_box(&logits), &mut gradient);
            cross_entropy::logits_grad(
                logits,
                &m,
                &z,
                &targets,
                Entries::ALL,
                1e-3,
                gradient,
                false,
            );
        });
    }

    #[divan::bench]
    fn adamw(bencher: Bencher) {
        let (rows, cols) = (MODEL, FFN);
        let piece = Piece::whole(rows, cols);
        let optimizer =
            Optimizer::AdamW(AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 });
        let step = Step { number: 1, learning_rate: 1e-6, gradient_scale: 1.0 };
        let [mut w, g, mut m] = [(); 3].map(|()| normal(rows * cols));
        let mut v = vec![1.0; rows * cols];
        bencher.counter(ItemsCount::new(g.len())).bench_local(|| {
            optimizer.apply(step, &piece, &mut w, black_box(&g), &mut [&mut m, &mut v], &[]);
        });
    }
}

/// Both passes of causal attention over 8,192 positions in sequences of so many, with dropout or not: as two
/// operators that keep probabilities, and as one.
mod whole_attention {
    use shardloom_kernels::attention::fused::{self, Drawn};

    use super::*;

    const CASES: [(usize, bool); 7] = [
        (128, false),
        (128, true),
        (256, false),
        (512, false),
        (512, true),
        (2048, false),
        (8192, false),
    ];
    const DROPPED: f32 = 0.1;

    fn shape(positions: usize) -> Attention {
        Attention {
            batch: 8192 / positions,
            queries: positions,
            keys: positions,
            kv_heads: 4,
            group: 1,
            head_dim: 64,
            visibility: Visibility::Causal { first_query: 0 },
        }
    }

    #[divan::bench(args = CASES, sample_count = 10)]
    fn unfused(bencher: Bencher, (positions, drops): (usize, bool)) {
        let shape = shape(positions);
        let [q, k, v, d_o] = [(); 4].map(|()| normal(shape.query_elements()));
        let [mut o, mut dq, mut dk, mut dv] = [(); 4].map(|()| vec![0.0; q.len()]);
        let [mut p, mut dp] = [(); 2].map(|()| vec![0.0; shape.probs_elements()]);
        let mut mask = vec![0; if drops { p.len() } else { 0 }];
        let window = Window::whole(&[shape.batch, shape.kv_heads, positions, positions]);
        let mut scratch = vec![0.0; shape.scratch_elements()];
        bencher.bench_local(|| {
            if drops {
                dropout_mask(KEY, &window, DROPPED, &mut mask);
            }
            let keep_scale = 1.0 / (1.0 - DROPPED);
            let dropout = drops.then_some(Dropout { mask: &mask, keep_scale });
            attention::probs(&shape, black_box(&q), &k, None, SCORES, &mut p);
            attention::context(&shape, &p, dropout, &v, &mut o, &mut scratch);
            attention::context_input_grad(
                &shape,
                &p,
                dropout,
                &v,
                &d_o,
                &mut dp,
                &mut dv,
                &mut scratch,
                false,
                false,
            );
            attention::probs_input_grad(
                &shape,
                &p,
                &dp,
                &q,
                &k,
                SCORES,
                &mut dq,
                &mut dk,
                &mut scratch,
                false,
                false,
            );
        });
    }

    #[divan::bench(args = CASES, sample_count = 10)]
    fn fused_into_one(bencher: Bencher, (positions, drops): (usize, bool)) {
        let shape = shape(positions);
        let [q, k, v, d_o] = [(); 4].map(|()| normal(shape.query_elements()));
        let [mut o, mut dq, mut dk, mut dv] = [(); 4].map(|()| vec![0.0; q.len()]);
        let window = Window::whole(&[shape.batch, shape.kv_heads, positions, positions]);
        let dropout = drops.then_some(Drawn { key: KEY, window: &window, probability: DROPPED });
        let mut scratch = vec![0.0; fused::input_grad_scratch_elements(&shape, drops, false)];
        bencher.bench_local(|| {
            fused::attention(
                &shape,
                black_box(&q),
                &k,
                &v,
                None,
                SCORES,
                dropout,
                &mut o,
                &mut scratch,
            );
            fused::attention_input_grad(
                &shape,
                &q,
                &k,
                &v,
                None,
                SCORES,
                dropout,
                &d_o,
                &mut dq,
                &mut dk,
                &mut dv,
                &mut scratch,
                [false; 3],
            );
        });
    }
}
