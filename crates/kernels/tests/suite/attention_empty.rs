//! Attention where some size is 0, as of a rank that has no sample or no position of its own.

use shardloom_kernels::attention::*;
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;

use crate::oracle::numbers;

const SCORES: Scores = Scores { scale: 0.7, cap: Some(0.8) };

/// Of two of everything, with each size in turn 0.
fn shapes() -> [Attention; 6] {
    let all = Attention {
        batch: 2,
        queries: 2,
        keys: 2,
        kv_heads: 2,
        group: 2,
        head_dim: 2,
        visibility: Visibility::Causal { first_query: 0 },
    };
    [
        Attention { batch: 0, ..all },
        Attention { queries: 0, ..all },
        Attention { keys: 0, ..all },
        Attention { kv_heads: 0, ..all },
        Attention { group: 0, ..all },
        Attention { head_dim: 0, ..all },
    ]
}

/// What a pass has written to `before`: sums of nothing, which are 0, or nothing.
#[track_caller]
fn assert_sums_of_nothing(found: &[f32], before: &[f32], accumulate: bool) {
    for (found, before) in found.iter().zip(before) {
        assert_eq!(*found, if accumulate { *before } else { 0.0 });
    }
}

#[test]
fn sums_over_nothing_are_0_or_what_was_there() {
    for shape in shapes() {
        let (queries, keys) = (shape.query_elements(), shape.key_elements());
        let pairs = shape.probs_elements();
        let (q, k) = (numbers(1, queries), numbers(2, keys));
        let (v, d_o, dp) = (numbers(3, keys), numbers(4, queries), numbers(5, pairs));
        let mut p = vec![f32::NAN; pairs];
        probs(&shape, &q, &k, None, SCORES, &mut p);
        let mask = vec![1; pairs];
        let dropped = Dropout { mask: &mask, keep_scale: 1.25 };
        let extent = [shape.batch, shape.kv_heads, shape.group, shape.queries, shape.keys];
        let window = Window::whole(&extent);
        let key = Key { seed: 1, stream: 2, step: 3 };
        let drawn = fused::Drawn { key, window: &window, probability: 0.2 };
        for (dropout, drawn) in [(None, None), (Some(dropped), Some(drawn))] {
            let mut scratch = vec![f32::NAN; shape.probs_input_grad_scratch(true)];
            let mut o = vec![f32::NAN; queries];
            context(&shape, &p, dropout, &v, &mut o, &mut scratch);
            assert_sums_of_nothing(&o, &o.clone(), false);
            let mut o = vec![f32::NAN; queries];
            let needed = fused::scratch_elements(&shape, drawn.is_some());
            let of_fused = &mut vec![f32::NAN; needed];
            fused::attention(&shape, &q, &k, &v, None, SCORES, drawn, &mut o, of_fused);
            assert_sums_of_nothing(&o, &o.clone(), false);

            for accumulate in [false, true] {
                let before = [numbers(6, queries), numbers(7, keys), numbers(8, keys)];
                let of_pairs = numbers(9, pairs);
                let [mut dq, mut dk, mut dv] = before.clone();
                let mut found = of_pairs.clone();
                let (to, and) = (&mut found, &mut dv);
                let (one, other) = (accumulate, accumulate);
                context_input_grad(
                    &shape,
                    &p,
                    dropout,
                    &v,
                    &d_o,
                    to,
                    and,
                    &mut scratch,
                    one,
                    other,
                );
                assert_sums_of_nothing(&found, &of_pairs, accumulate);
                assert_sums_of_nothing(&dv, &before[2], accumulate);
                let (to, and) = (&mut dq, &mut dk);
                probs_input_grad(
                    &shape,
                    &p,
                    &dp,
                    &q,
                    &k,
                    SCORES,
                    to,
                    and,
                    &mut scratch,
                    one,
                    other,
                );
                assert_sums_of_nothing(&dq, &before[0], accumulate);
                assert_sums_of_nothing(&dk, &before[1], accumulate);

                let [mut dq, mut dk, mut dv] = before.clone();
                let needed = fused::input_grad_scratch_elements(&shape, drawn.is_some(), true);
                fused::attention_input_grad(
                    &shape,
                    &q,
                    &k,
                    &v,
                    None,
                    SCORES,
                    drawn,
                    &d_o,
                    &mut dq,
                    &mut dk,
                    &mut dv,
                    &mut vec![f32::NAN; needed],
                    [accumulate; 3],
                );
                for (found, before) in [dq, dk, dv].iter().zip(&before) {
                    assert_sums_of_nothing(found, before, accumulate);
                }
            }
        }
    }
}
