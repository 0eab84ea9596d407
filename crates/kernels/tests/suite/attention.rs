use half::bf16;
use shardloom_kernels::attention::*;
use shardloom_kernels::random::{Key, dropout_mask};
use shardloom_kernels::window::Window;

use crate::oracle::{assert_close, check_destination, mask, numbers, numeric_grad, widen};

fn shapes() -> Vec<Attention> {
    let causal = |first_query| Visibility::Causal { first_query };
    let window = |first_query, positions| Visibility::Window { first_query, positions };
    let shape = |batch, queries, keys, kv_heads, group, head_dim, visibility| Attention {
        batch,
        queries,
        keys,
        kv_heads,
        group,
        head_dim,
        visibility,
    };
    vec![
        shape(1, 1, 1, 1, 1, 1, Visibility::All),
        shape(2, 3, 5, 2, 1, 3, Visibility::All),
        shape(1, 4, 4, 1, 3, 2, causal(0)),
        shape(2, 3, 7, 2, 2, 5, causal(4)),
        shape(1, 5, 3, 1, 1, 2, causal(1)),
        shape(1, 4, 4, 1, 3, 2, window(0, 1)),
        shape(2, 3, 7, 2, 2, 5, window(4, 3)),
        shape(1, 6, 6, 1, 1, 2, window(0, 4)),
        shape(1, 3, 3, 2, 1, 2, window(0, 9)),
    ]
}

/// What becomes of scores: bounded tightly, so that the bound shows, or not.
const SCORES: [Scores; 2] =
    [Scores { scale: 0.7, cap: None }, Scores { scale: 0.7, cap: Some(0.8) }];

/// More than one tile of queries, too large for numerical gradients.
fn tiled() -> Attention {
    Attention {
        batch: 2,
        queries: 150,
        keys: 170,
        kv_heads: 2,
        group: 2,
        head_dim: 9,
        visibility: Visibility::Causal { first_query: 20 },
    }
}

fn sees(shape: &Attention, query: usize, key: usize) -> bool {
    match shape.visibility {
        Visibility::All => true,
        Visibility::Causal { first_query } => key <= first_query + query,
        Visibility::Window { first_query, positions } => {
            key <= first_query + query && key + positions > first_query + query
        }
    }
}

/// Of [`tiled`], those with windows narrower and wider than a tile.
fn windowed() -> [Attention; 2] {
    [7, 100].map(|positions| {
        let visibility = Visibility::Window { first_query: 20, positions };
        Attention { visibility, ..tiled() }
    })
}

/// Visits (probability index, index of the first element of the query head, of the key head).
fn for_each_pair(shape: &Attention, mut visit: impl FnMut(usize, usize, usize, bool)) {
    let Attention { batch, queries, keys, kv_heads, group, head_dim, .. } = *shape;
    for b in 0..batch {
        for h in 0..kv_heads {
            for g in 0..group {
                for s in 0..queries {
                    for t in 0..keys {
                        let p = (((b * kv_heads + h) * group + g) * queries + s) * keys + t;
                        let q = (((b * queries + s) * kv_heads + h) * group + g) * head_dim;
                        let k = ((b * keys + t) * kv_heads + h) * head_dim;
                        visit(p, q, k, sees(shape, s, t));
                    }
                }
            }
        }
    }
}

/// A score of this product, and its slope in it.
fn score(scores: Scores, dot: f64) -> (f64, f64) {
    let scaled = f64::from(scores.scale) * dot;
    scores.cap.map(f64::from).map_or((scaled, f64::from(scores.scale)), |cap| {
        let t = (scaled / cap).tanh();
        (cap * t, f64::from(scores.scale) * (1.0 - t * t))
    })
}

fn dot(shape: &Attention, q: &[f64], k: &[f64], qi: usize, ki: usize) -> f64 {
    (0..shape.head_dim).map(|e| q[qi + e] * k[ki + e]).sum()
}

fn probs_exact(shape: &Attention, q: &[f64], k: &[f64], scores: Scores) -> Vec<f64> {
    let mut p = vec![0.0; shape.probs_elements()];
    for_each_pair(shape, |pi, qi, ki, seen| {
        let (score, _) = score(scores, dot(shape, q, k, qi, ki));
        p[pi] = if seen { score.exp() } else { 0.0 };
    });
    for row in p.chunks_mut(shape.keys) {
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= sum);
    }
    p
}

fn context_exact(shape: &Attention, p: &[f64], factors: &[f64], v: &[f64]) -> Vec<f64> {
    let mut o = vec![0.0; shape.query_elements()];
    for_each_pair(shape, |pi, oi, vi, seen| {
        for e in 0..shape.head_dim {
            if seen {
                o[oi + e] += p[pi] * factors[pi] * v[vi + e];
            }
        }
    });
    o
}

#[test]
fn probabilities_match_and_unseen_keys_have_exactly_none() {
    for shape in shapes().into_iter().chain([tiled()]).chain(windowed()) {
        let q: Vec<f32> = numbers(1, shape.query_elements()).iter().map(|x| 3.0 * x).collect();
        let k = numbers(2, shape.key_elements());
        for scores in SCORES {
            let mut p = vec![f32::NAN; shape.probs_elements()];
            probs(&shape, &q, &k, None, scores, &mut p);
            assert_close(&p, &probs_exact(&shape, &widen(&q), &widen(&k), scores), 1e-6);
            for_each_pair(&shape, |pi, _, _, seen| assert!(seen || p[pi] == 0.0));
        }
    }
}

#[test]
fn gradients_of_the_probabilities_match_numerical_ones() {
    for (shape, scores) in shapes().into_iter().flat_map(|it| SCORES.map(|scores| (it, scores))) {
        let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
        let dp = numbers(3, shape.probs_elements());
        let (q64, k64) = (widen(&q), widen(&k));
        let mut p = vec![f32::NAN; dp.len()];
        probs(&shape, &q, &k, None, scores, &mut p);
        let want_q = numeric_grad(|q| probs_exact(&shape, q, &k64, scores), &q, &dp);
        let want_k = numeric_grad(|k| probs_exact(&shape, &q64, k, scores), &k, &dp);
        let mut scratch = vec![f32::NAN; shape.probs_input_grad_scratch(scores.cap.is_some())];
        check_destination(&want_q, 2e-6, |dq, accumulate| {
            let mut dk = numbers(4, k.len());
            probs_input_grad(
                &shape,
                &p,
                &dp,
                &q,
                &k,
                scores,
                dq,
                &mut dk,
                &mut scratch,
                accumulate,
                !accumulate,
            );
        });
        check_destination(&want_k, 2e-6, |dk, accumulate| {
            let mut dq = numbers(4, q.len());
            probs_input_grad(
                &shape,
                &p,
                &dp,
                &q,
                &k,
                scores,
                &mut dq,
                dk,
                &mut scratch,
                !accumulate,
                accumulate,
            );
        });
    }
}

#[test]
fn the_context_and_its_gradients_match_with_and_without_dropout() {
    for shape in shapes() {
        let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
        let (v, d_o) = (numbers(3, k.len()), numbers(4, q.len()));
        let mut p = vec![f32::NAN; shape.probs_elements()];
        probs(&shape, &q, &k, None, SCORES[0], &mut p);
        let mask = mask(5, p.len());
        for dropout in [None, Some(Dropout { mask: &mask, keep_scale: 1.25 })] {
            let factors: Vec<f64> = match dropout {
                None => vec![1.0; p.len()],
                Some(_) => mask.iter().map(|&m| f64::from(m) * 1.25).collect(),
            };
            let (p64, v64) = (widen(&p), widen(&v));
            let mut scratch = vec![f32::NAN; shape.scratch_elements()];
            let mut o = vec![f32::NAN; q.len()];
            context(&shape, &p, dropout, &v, &mut o, &mut scratch);
            assert_close(&o, &context_exact(&shape, &p64, &factors, &v64), 1e-6);

            let want_v = numeric_grad(|v| context_exact(&shape, &p64, &factors, v), &v, &d_o);
            check_destination(&want_v, 1e-6, |dv, accumulate| {
                let mut dp = numbers(6, p.len());
                context_input_grad(
                    &shape,
                    &p,
                    dropout,
                    &v,
                    &d_o,
                    &mut dp,
                    dv,
                    &mut scratch,
                    !accumulate,
                    accumulate,
                );
            });

            let want_p = numeric_grad(|p| context_exact(&shape, p, &factors, &v64), &p, &d_o);
            for accumulate in [false, true] {
                let before = numbers(6, p.len());
                let (mut dp, mut dv) = (before.clone(), vec![0.0; v.len()]);
                context_input_grad(
                    &shape,
                    &p,
                    dropout,
                    &v,
                    &d_o,
                    &mut dp,
                    &mut dv,
                    &mut scratch,
                    accumulate,
                    false,
                );
                for_each_pair(&shape, |pi, _, _, seen| {
                    let before = if accumulate { f64::from(before[pi]) } else { 0.0 };
                    let want = if seen { want_p[pi] + before } else { 0.0 };
                    assert!((f64::from(dp[pi]) - want).abs() < 1e-5, "{} for {want}", dp[pi]);
                });
            }
        }
    }
}

#[test]
fn tiles_of_queries_and_shared_key_heads_add_up() {
    for shape in [tiled()].into_iter().chain(windowed()) {
        SCORES.iter().for_each(|&scores| check_tiles(shape, scores));
    }
}

fn check_tiles(shape: Attention, scores: Scores) {
    let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
    let (v, d_o) = (numbers(3, k.len()), numbers(4, q.len()));
    let mut p = vec![f32::NAN; shape.probs_elements()];
    probs(&shape, &q, &k, None, scores, &mut p);
    let mask = mask(5, p.len());
    let dropout = Some(Dropout { mask: &mask, keep_scale: 1.25 });
    let factors: Vec<f64> = mask.iter().map(|&m| f64::from(m) * 1.25).collect();
    let (p64, v64, d_o64) = (widen(&p), widen(&v), widen(&d_o));
    let mut scratch = vec![f32::NAN; shape.probs_input_grad_scratch(true)];

    let mut o = vec![f32::NAN; q.len()];
    context(&shape, &p, dropout, &v, &mut o, &mut scratch);
    assert_close(&o, &context_exact(&shape, &p64, &factors, &v64), 1e-6);

    let e = shape.head_dim;
    let (mut want_dp, mut want_dv) = (vec![0.0; p.len()], vec![0.0; v.len()]);
    for_each_pair(&shape, |pi, qi, ki, seen| {
        for e in 0..e {
            if seen {
                want_dp[pi] += d_o64[qi + e] * v64[ki + e] * factors[pi];
                want_dv[ki + e] += d_o64[qi + e] * p64[pi] * factors[pi];
            }
        }
    });
    let (mut dp, mut dv) = (vec![f32::NAN; p.len()], vec![f32::NAN; v.len()]);
    context_input_grad(&shape, &p, dropout, &v, &d_o, &mut dp, &mut dv, &mut scratch, false, false);
    assert_close(&dp, &want_dp, 1e-5);
    assert_close(&dv, &want_dv, 1e-5);

    let row_means: Vec<f64> = p64
        .chunks(shape.keys)
        .zip(widen(&dp).chunks(shape.keys))
        .map(|(p, dp)| p.iter().zip(dp).map(|(p, dp)| p * dp).sum())
        .collect();
    let (q64, k64, dp64) = (widen(&q), widen(&k), widen(&dp));
    let (mut want_dq, mut want_dk) = (vec![0.0; q.len()], vec![0.0; k.len()]);
    for_each_pair(&shape, |pi, qi, ki, _| {
        let (_, slope) = score(scores, dot(&shape, &q64, &k64, qi, ki));
        let ds = slope * p64[pi] * (dp64[pi] - row_means[pi / shape.keys]);
        for e in 0..e {
            want_dq[qi + e] += ds * k64[ki + e];
            want_dk[ki + e] += ds * q64[qi + e];
        }
    });
    let (mut dq, mut dk) = (vec![f32::NAN; q.len()], vec![f32::NAN; k.len()]);
    probs_input_grad(&shape, &p, &dp, &q, &k, scores, &mut dq, &mut dk, &mut scratch, false, false);
    assert_close(&dq, &want_dq, 1e-6);
    assert_close(&dk, &want_dk, 1e-6);
}

#[test]
fn scratch_holds_a_row_of_keys_for_each_of_up_to_64_queries_or_32_over_few_keys() {
    let elements = |queries, keys| Attention { queries, keys, ..tiled() }.scratch_elements();
    assert_eq!([3, 64, 65].map(|it| elements(it, 170)), [3 * 170, 64 * 170, 64 * 170]);
    assert_eq!([3, 64].map(|it| elements(it, 128)), [3 * 128, 32 * 128]);
    assert_eq!(elements(64, 129), 64 * 129);
}

/// Nothing depends on the probabilities then.
#[test]
fn of_values_without_elements_the_probabilities_have_no_gradient() {
    let shape = Attention { head_dim: 0, queries: 2, keys: 3, ..shapes()[0] };
    for (accumulate, expected) in [(false, [0.0; 6]), (true, [7.0; 6])] {
        let mut dp = [7.0; 6];
        let p = [0.5; 6];
        context_input_grad(
            &shape,
            &p,
            None,
            &[],
            &[],
            &mut dp,
            &mut [],
            &mut [],
            accumulate,
            false,
        );
        assert_eq!(dp, expected);
    }
}

/// The part of a larger tensor of probabilities that a device has: `group` is an axis only where it has more
/// than one query head.
fn part(shape: &Attention) -> Window {
    let Attention { batch, queries, keys, kv_heads, group, .. } = *shape;
    let groups = (group > 1).then_some((group, 1, group + 2));
    let axes = [(batch, 2, batch + 3), (kv_heads, 0, kv_heads)].into_iter().chain(groups);
    let axes: Vec<_> = axes.chain([(queries, 3, queries + 5), (keys, 0, keys)]).collect();
    Window {
        extent: axes.iter().map(|it| it.0).collect(),
        start: axes.iter().map(|it| it.1).collect(),
        global: axes.iter().map(|it| it.2).collect(),
    }
}

#[test]
fn fused_attention_is_the_two_operators_to_the_bit() {
    let short = Attention { queries: 70, keys: 90, ..tiled() };
    let shapes = shapes().into_iter().chain([tiled(), short]).chain(windowed());
    for (shape, scores) in shapes.flat_map(|shape| SCORES.map(|scores| (shape, scores))) {
        let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
        let (v, d_o) = (numbers(3, k.len()), numbers(4, q.len()));
        let mut p = vec![f32::NAN; shape.probs_elements()];
        probs(&shape, &q, &k, None, scores, &mut p);
        let (window, key) = (part(&shape), Key { seed: 1, stream: 2, step: 3 });
        let mut mask = vec![0; p.len()];
        dropout_mask(key, &window, 0.2, &mut mask);
        let drawn = fused::Drawn { key, window: &window, probability: 0.2 };
        let masked = Dropout { mask: &mask, keep_scale: 1.0 / (1.0 - 0.2) };
        for (dropout, drawn) in [(None, None), (Some(masked), Some(drawn))] {
            let mut scratch = vec![f32::NAN; shape.probs_input_grad_scratch(true)];
            let needed =
                fused::input_grad_scratch_elements(&shape, drawn.is_some(), scores.cap.is_some());
            let mut of_fused = vec![f32::NAN; needed];
            let (mut o, mut found) = (vec![f32::NAN; q.len()], vec![f32::NAN; q.len()]);
            context(&shape, &p, dropout, &v, &mut o, &mut scratch);
            let forward = fused::scratch_elements(&shape, drawn.is_some());
            fused::attention(
                &shape,
                &q,
                &k,
                &v,
                None,
                scores,
                drawn,
                &mut found,
                &mut of_fused[..forward],
            );
            assert_eq!(found, o);

            for accumulate in [[false; 3], [true; 3], [true, false, false], [false, true, false]] {
                let before = [numbers(7, q.len()), numbers(8, k.len()), numbers(9, k.len())];
                let [mut dq, mut dk, mut dv] = before.clone();
                let mut dp = vec![f32::NAN; p.len()];
                let [of_q, of_k, of_v] = accumulate;
                context_input_grad(
                    &shape,
                    &p,
                    dropout,
                    &v,
                    &d_o,
                    &mut dp,
                    &mut dv,
                    &mut scratch,
                    false,
                    of_v,
                );
                probs_input_grad(
                    &shape,
                    &p,
                    &dp,
                    &q,
                    &k,
                    scores,
                    &mut dq,
                    &mut dk,
                    &mut scratch,
                    of_q,
                    of_k,
                );
                let [mut found_q, mut found_k, mut found_v] = before;
                fused::attention_input_grad(
                    &shape,
                    &q,
                    &k,
                    &v,
                    None,
                    scores,
                    drawn,
                    &d_o,
                    &mut found_q,
                    &mut found_k,
                    &mut found_v,
                    &mut of_fused,
                    accumulate,
                );
                assert_eq!((found_q, found_k, found_v), (dq, dk, dv), "{shape:?} {accumulate:?}");
            }
        }
    }
}

#[test]
fn what_fused_attention_needs_grows_with_the_number_of_keys() {
    let shape = |positions| Attention { queries: positions, keys: positions, ..tiled() };
    let needed = |positions| fused::input_grad_scratch_elements(&shape(positions), false, false);
    assert_eq!([256, 512, 1024].map(needed), [3 * 64 * 256, 3 * 64 * 512, 3 * 64 * 1024]);
    let drops = |positions| fused::input_grad_scratch_elements(&shape(positions), true, false);
    assert_eq!(drops(256), 4 * 64 * 256);
    assert_eq!(fused::input_grad_scratch_elements(&shape(256), true, true), 5 * 64 * 256);
    let forward = |drops| fused::scratch_elements(&shape(256), drops);
    assert_eq!([false, true].map(forward), [2 * 64 * 256, 3 * 64 * 256]);
}

/// What is multiplied with operands in bfloat16 is rounded to it, and nothing else is.
#[test]
fn of_bfloat16_probabilities_and_gradients_of_scores_are_rounded_before_they_are_multiplied() {
    let round = |values: &[f32]| -> Vec<f32> {
        values.iter().map(|&it| bf16::from_f32(it).to_f32()).collect()
    };
    let narrow =
        |values: &[f32]| -> Vec<bf16> { values.iter().map(|&it| bf16::from_f32(it)).collect() };
    let shapes = [tiled()].into_iter().chain(windowed());
    for (shape, scores) in shapes.flat_map(|shape| SCORES.map(|scores| (shape, scores))) {
        let [q, d_o] = [1, 4].map(|seed| round(&numbers(seed, shape.query_elements())));
        let [k, v] = [2, 3].map(|seed| round(&numbers(seed, shape.key_elements())));
        let [nq, nk, nv, nd_o] = [&q, &k, &v, &d_o].map(|it| narrow(it));
        let mut p = vec![f32::NAN; shape.probs_elements()];
        probs(&shape, &q, &k, None, scores, &mut p);

        let mut o = vec![f32::NAN; q.len()];
        let mut scratch = vec![f32::NAN; fused::input_grad_scratch_elements(&shape, false, true)];
        fused::attention(&shape, &nq, &nk, &nv, None, scores, None, &mut o, &mut scratch);
        let ones = vec![1.0; p.len()];
        let rounded = widen(&round(&p));
        let e = shape.head_dim;
        // A probability beside the middle of two bfloat16 numbers may be rounded to either.
        assert_close(&o, &context_exact(&shape, &rounded, &ones, &widen(&v)), 1e-3);
        let unrounded = context_exact(&shape, &widen(&p), &ones, &widen(&v));
        let far =
            o.iter().zip(&unrounded).filter(|&(&o, exact)| (f64::from(o) - exact).abs() > 1e-5);
        assert!(far.count() > o.len() / 20, "probabilities are not rounded");

        let mut dp = vec![0.0_f32; p.len()];
        let mut dv = vec![0.0; v.len()];
        for_each_pair(&shape, |pi, qi, ki, seen| {
            for e in 0..e {
                if seen {
                    dp[pi] += d_o[qi + e] * v[ki + e];
                    dv[ki + e] += rounded[pi] * f64::from(d_o[qi + e]);
                }
            }
        });
        let means: Vec<f32> = p
            .chunks(shape.keys)
            .zip(dp.chunks(shape.keys))
            .map(|(p, dp)| p.iter().zip(dp).map(|(p, dp)| p * dp).sum())
            .collect();
        let (q64, k64) = (widen(&q), widen(&k));
        let (mut dq, mut dk) = (vec![0.0; q.len()], vec![0.0; k.len()]);
        for_each_pair(&shape, |pi, qi, ki, _| {
            let (_, slope) = score(scores, dot(&shape, &q64, &k64, qi, ki));
            let ds = slope as f32 * p[pi] * (dp[pi] - means[pi / shape.keys]);
            let ds = bf16::from_f32(ds).to_f64();
            for e in 0..e {
                dq[qi + e] += ds * k64[ki + e];
                dk[ki + e] += ds * q64[qi + e];
            }
        });
        let before = [numbers(7, q.len()), numbers(8, k.len()), numbers(9, v.len())];
        let [mut found_q, mut found_k, mut found_v] = before.clone();
        let accumulate = [true, false, true];
        fused::attention_input_grad(
            &shape,
            &nq,
            &nk,
            &nv,
            None,
            scores,
            None,
            &nd_o,
            &mut found_q,
            &mut found_k,
            &mut found_v,
            &mut scratch,
            accumulate,
        );
        let [of_q, _, of_v] = &before;
        let added = |to: &[f32], gradient: &[f64]| -> Vec<f64> {
            to.iter().zip(gradient).map(|(&to, gradient)| f64::from(to) + gradient).collect()
        };
        assert_close(&found_q, &added(of_q, &dq), 1e-3);
        assert_close(&found_k, &dk, 1e-3);
        assert_close(&found_v, &added(of_v, &dv), 1e-3);

        let [mut found_q, mut found_k, _] = before.clone();
        let mut scratch = vec![f32::NAN; shape.probs_input_grad_scratch(true)];
        probs_input_grad(
            &shape,
            &p,
            &dp,
            &nq,
            &nk,
            scores,
            &mut found_q,
            &mut found_k,
            &mut scratch,
            true,
            false,
        );
        assert_close(&found_q, &added(of_q, &dq), 1e-3);
        assert_close(&found_k, &dk, 1e-3);
    }
}
