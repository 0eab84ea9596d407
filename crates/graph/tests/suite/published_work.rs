//! Arithmetic and activation memory of a GPT against the formulas of the papers.

use std::collections::BTreeSet;

use shardloom_graph::gradient::{self, Operand};
use shardloom_graph::work::{Pass, Work, work};
use shardloom_graph::{DType, Extents, Graph, ModelSpec, OpKind, ValueId};

/// Layers, width, heads, sequence length, vocabulary.
const SIZES: (usize, usize, usize, usize, usize) = (3, 64, 4, 48, 101);

fn gpt(dropout: f32) -> Graph {
    let (l, h, a, s, v) = SIZES;
    let text = format!("gpt:layers={l},hidden={h},heads={a},seq={s},vocab={v},dropout={dropout}");
    ModelSpec::parse(&text).and_then(|spec| spec.graph()).unwrap()
}

/// Narayanan et al. 2021, arXiv 2104.04473, appendix, without its term for recomputation:
/// 72 B l s h^2 (1 + s / 6h + V / 12hl).
#[test]
fn a_gpt_step_without_recomputation_takes_the_flops_of_narayanan_2021() {
    let (l, h, _, s, v) = SIZES;
    let graph = gpt(0.1);
    for batch in [1, 5] {
        let extents = Extents::global(&graph, batch);
        let total: f64 = graph
            .ops()
            .flat_map(|(op, _)| [Pass::Forward, Pass::Input, Pass::Weight].map(|pass| (op, pass)))
            .filter_map(|(op, pass)| work(&graph, op, pass, &extents, 2))
            .map(|work| work.flops)
            .sum();
        let layers = 72 * batch * l * s * h * h + 12 * batch * l * s * s * h;
        let head = 6 * batch * s * h * v;
        assert_eq!(total, (layers + head) as f64);
    }
}

/// What the gradient operators of a block read and cannot get from the parameters.
fn kept(graph: &Graph, block: &str) -> BTreeSet<ValueId> {
    let block = graph.blocks().iter().find(|each| each.name == block).unwrap();
    let mut kept = BTreeSet::new();
    for &op in &block.ops {
        let rule = gradient::rule(graph, op);
        for read in [rule.input, rule.weight].into_iter().flatten().flat_map(|each| each.reads) {
            let value = match read {
                Operand::Input(index) => graph.op(op).inputs[index],
                Operand::Output(index) => graph.op(op).outputs[index],
                Operand::OutputGradient | Operand::InputGradient(_) => continue,
            };
            if graph.value(value).parameter().is_none() {
                kept.insert(value);
            }
        }
    }
    kept
}

/// Bytes of the kept values of a middle layer, in 16-bit precision, for a batch of `b`; without the
/// values that the attention core produces if `selective`.
fn kept_bytes(graph: &Graph, b: usize, selective: bool) -> usize {
    let extents = Extents::global(graph, b);
    kept(graph, "block.1")
        .into_iter()
        .map(|id| graph.value(id))
        .filter(|value| {
            let core = |op| graph.op(op).kind.in_attention_core();
            // The context is the output projection's input, which stays.
            let inside =
                value.producer.is_some_and(core) && value.consumers.iter().all(|&op| core(op));
            !(selective && inside)
        })
        .map(|value| extents.elements(&value.axes) * value.dtype.bytes(2))
        .sum()
}

/// Korthikanti et al. 2022, arXiv 2205.05198, equation 1: s b h (34 + 5 a s / h) bytes per layer. We
/// keep the same 34 s b h. Of the attention matrix they keep the probabilities, the mask and the
/// dropped-out probabilities, (2 + 1 + 2) a s^2 b; here the last are the product of the first two and
/// are formed again, which leaves 3 a s^2 b. The paper leaves out the statistics of the two norms: 2
/// numbers of 4 bytes for each of s b rows, 16 s b together.
#[test]
fn a_layer_keeps_the_bytes_of_korthikanti_2022_less_the_dropped_out_probabilities() {
    let (_, h, a, s, _) = SIZES;
    let b = 5;
    let statistics = 16 * s * b;
    let paper = s * b * (34 * h + 5 * a * s);
    let ours = kept_bytes(&gpt(0.1), b, false);
    assert_eq!(ours, 34 * s * b * h + 3 * a * s * s * b + statistics);
    assert_eq!(ours, paper - 2 * a * s * s * b + statistics);
}

/// Selective recomputation, section 5 of the same paper: 34 s b h, and the norms' statistics.
#[test]
fn a_layer_without_its_attention_core_keeps_the_bytes_of_selective_recomputation() {
    let (_, h, _, s, _) = SIZES;
    let b = 5;
    assert_eq!(kept_bytes(&gpt(0.1), b, true), 34 * s * b * h + 16 * s * b);
}

/// Without dropout the two masks of s b h bytes and the attention's of a s^2 b bytes are gone.
#[test]
fn a_layer_without_dropout_keeps_no_masks() {
    let (_, h, a, s, _) = SIZES;
    let b = 5;
    let statistics = 16 * s * b;
    assert_eq!(kept_bytes(&gpt(0.0), b, false), 32 * s * b * h + 2 * a * s * s * b + statistics);
    assert_eq!(kept_bytes(&gpt(0.0), b, true), 32 * s * b * h + statistics);
    let masks = |dropout| {
        let graph = gpt(dropout);
        graph.values().filter(|(_, value)| value.dtype == DType::Mask).count()
    };
    // One of the embedding, and of each layer one of the attention and one of each residual.
    assert_eq!([masks(0.0), masks(0.1)], [0, 1 + 3 * SIZES.0]);
}

#[test]
fn without_samples_there_is_no_work() {
    let graph = gpt(0.0);
    let extents = Extents::global(&graph, 0);
    for (id, op) in graph.ops().filter(|(_, op)| matches!(op.kind, OpKind::Pointwise(_))) {
        let expected = Work { flops: 0.0, bytes: 0.0, elements: 0, matmul: None, turns: 1 };
        assert_eq!(work(&graph, id, Pass::Forward, &extents, 2), Some(expected), "{}", op.name);
    }
}
