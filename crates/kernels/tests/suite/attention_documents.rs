//! Sequences that are packed of several documents: what is computed of each is what it is by itself.

use shardloom_kernels::attention::*;
use shardloom_kernels::random::Key;
use shardloom_kernels::window::Window;

use crate::oracle::{assert_close, numbers, widen};

const POSITIONS: usize = 150;

/// Two sequences, with a document of one position and one that ends within a tile among them.
const STARTS: [&[usize]; 2] = [&[0, 40, 41, 110], &[0, 64, 149]];

fn shape(visibility: Visibility) -> Attention {
    Attention {
        batch: 2,
        queries: POSITIONS,
        keys: POSITIONS,
        kv_heads: 2,
        group: 2,
        head_dim: 9,
        visibility,
    }
}

/// The first key of each position's document.
fn documents() -> Vec<u32> {
    let of_sequence = |starts: &[usize]| -> Vec<u32> {
        let start = |position| starts.iter().copied().rfind(|&start| start <= position);
        (0..POSITIONS).map(|position| start(position).expect("one begins at 0") as u32).collect()
    };
    STARTS.iter().flat_map(|starts| of_sequence(starts)).collect()
}

/// Of each document its sequence and positions.
fn each() -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    (0..).zip(STARTS).flat_map(|(sequence, starts)| {
        let ends = starts[1..].iter().copied().chain([POSITIONS]);
        starts.iter().zip(ends).map(move |(&start, end)| (sequence, start..end))
    })
}

/// The rows of a document of a tensor of positions.
fn rows(of: &[f32], sequence: usize, positions: &std::ops::Range<usize>) -> Vec<f32> {
    let row = of.len() / (2 * POSITIONS);
    let first = sequence * POSITIONS;
    of[(first + positions.start) * row..(first + positions.end) * row].to_vec()
}

const SEEN: [fn(usize) -> Visibility; 2] = [
    |first_query| Visibility::Causal { first_query },
    |first_query| Visibility::Window { first_query, positions: 30 },
];
const SCORES: [Scores; 2] =
    [Scores { scale: 0.7, cap: None }, Scores { scale: 0.7, cap: Some(0.8) }];

#[test]
fn probabilities_of_each_document_are_those_of_it_alone_and_zero_elsewhere() {
    for (visibility, scores) in SEEN.iter().flat_map(|it| SCORES.map(|scores| (it(0), scores))) {
        let shape = shape(visibility);
        let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
        let mut p = vec![f32::NAN; shape.probs_elements()];
        probs(&shape, &q, &k, Some(&documents()), scores, &mut p);
        for (sequence, positions) in each() {
            let count = positions.len();
            let alone = Attention { batch: 1, queries: count, keys: count, ..shape };
            let mut expected = vec![f32::NAN; alone.probs_elements()];
            let (q, k) = (rows(&q, sequence, &positions), rows(&k, sequence, &positions));
            probs(&alone, &q, &k, None, scores, &mut expected);
            let mut found = vec![];
            for head in 0..4 {
                for query in positions.clone() {
                    let row = ((sequence * 4 + head) * POSITIONS + query) * POSITIONS;
                    let row = &p[row..row + POSITIONS];
                    found.extend_from_slice(&row[positions.clone()]);
                    let outside = row[..positions.start].iter().chain(&row[positions.end..]);
                    assert!(outside.copied().all(|p| p == 0.0));
                }
            }
            assert_close(&found, &widen(&expected), 1e-6);
        }
    }
}

#[test]
fn gradients_of_unfused_attention_are_those_of_each_document_alone() {
    for scores in SCORES {
        let shape = shape(SEEN[0](0));
        let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
        let (v, d_o) = (numbers(3, k.len()), numbers(4, q.len()));
        let mut p = vec![f32::NAN; shape.probs_elements()];
        probs(&shape, &q, &k, Some(&documents()), scores, &mut p);
        let mut scratch = vec![f32::NAN; shape.probs_input_grad_scratch(true)];
        let mut dp = vec![f32::NAN; p.len()];
        let (mut dq, mut dk, mut dv) =
            (vec![f32::NAN; q.len()], vec![f32::NAN; k.len()], vec![f32::NAN; k.len()]);
        context_input_grad(
            &shape,
            &p,
            None,
            &v,
            &d_o,
            &mut dp,
            &mut dv,
            &mut scratch,
            false,
            false,
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
            false,
            false,
        );
        check_gradients(&shape, [&q, &k, &v, &d_o], [&dq, &dk, &dv], scores, None);
    }
}

#[test]
fn fused_attention_of_each_document_is_that_of_it_alone_with_and_without_dropout() {
    for (visibility, scores) in SEEN.iter().flat_map(|it| SCORES.map(|scores| (it(0), scores))) {
        let shape = shape(visibility);
        let (q, k) = (numbers(1, shape.query_elements()), numbers(2, shape.key_elements()));
        let (v, d_o) = (numbers(3, k.len()), numbers(4, q.len()));
        let whole = Window::whole(&[2, 2, 2, POSITIONS, POSITIONS]);
        let key = Key { seed: 1, stream: 2, step: 3 };
        let drawn = fused::Drawn { key, window: &whole, probability: 0.2 };
        for drawn in [None, Some(drawn)] {
            let packed = Some(documents());
            let operands = [&q[..], &k, &v, &d_o];
            let found = fused_gradients(&shape, operands, packed.as_deref(), scores, drawn);
            let [dq, dk, dv] = &found;
            check_gradients(&shape, operands, [dq, dk, dv], scores, drawn);

            let mut o = vec![f32::NAN; q.len()];
            let mut scratch = vec![f32::NAN; fused::scratch_elements(&shape, drawn.is_some())];
            let documents = packed.as_deref();
            fused::attention(&shape, &q, &k, &v, documents, scores, drawn, &mut o, &mut scratch);
            for (sequence, positions) in each() {
                let alone = alone(&shape, &positions);
                let of = |it: &[f32]| rows(it, sequence, &positions);
                let mut expected = vec![f32::NAN; alone.query_elements()];
                let window = drawn.map(|_| window(sequence, &positions));
                let drawn =
                    drawn.zip(window.as_ref()).map(|(it, window)| fused::Drawn { window, ..it });
                let (q, k, v) = (of(&q), of(&k), of(&v));
                fused::attention(
                    &alone,
                    &q,
                    &k,
                    &v,
                    None,
                    scores,
                    drawn,
                    &mut expected,
                    &mut scratch,
                );
                assert_close(&of(&o), &widen(&expected), 1e-6);
            }
        }
    }
}

fn alone(shape: &Attention, positions: &std::ops::Range<usize>) -> Attention {
    Attention { batch: 1, queries: positions.len(), keys: positions.len(), ..*shape }
}

/// The probabilities of a document among those of all.
fn window(sequence: usize, positions: &std::ops::Range<usize>) -> Window {
    let (start, count) = (positions.start, positions.len());
    Window {
        extent: [1, 2, 2, count, count].into_iter().collect(),
        start: [sequence, 0, 0, start, start].into_iter().collect(),
        global: [2, 2, 2, POSITIONS, POSITIONS].into_iter().collect(),
    }
}

/// Gradients of queries, keys and values.
fn fused_gradients(
    shape: &Attention,
    [q, k, v, d_o]: [&[f32]; 4],
    documents: Option<&[u32]>,
    scores: Scores,
    drawn: Option<fused::Drawn<'_>>,
) -> [Vec<f32>; 3] {
    let mut gradients = [q, k, v].map(|it| vec![f32::NAN; it.len()]);
    let [dq, dk, dv] = &mut gradients;
    let needed = fused::input_grad_scratch_elements(shape, drawn.is_some(), scores.cap.is_some());
    let mut scratch = vec![f32::NAN; needed];
    let accumulate = [false; 3];
    fused::attention_input_grad(
        shape,
        q,
        k,
        v,
        documents,
        scores,
        drawn,
        d_o,
        dq,
        dk,
        dv,
        &mut scratch,
        accumulate,
    );
    gradients
}

/// Gradients of packed sequences are those of each document alone.
fn check_gradients(
    shape: &Attention,
    operands: [&[f32]; 4],
    found: [&[f32]; 3],
    scores: Scores,
    drawn: Option<fused::Drawn<'_>>,
) {
    for (sequence, positions) in each() {
        let of = operands.map(|it| rows(it, sequence, &positions));
        let window = window(sequence, &positions);
        let drawn = drawn.map(|it| fused::Drawn { window: &window, ..it });
        let of = of.each_ref().map(|it| &it[..]);
        let expected = fused_gradients(&alone(shape, &positions), of, None, scores, drawn);
        for (found, expected) in found.into_iter().zip(&expected) {
            assert_close(&rows(found, sequence, &positions), &widen(expected), 2e-6);
        }
    }
}
