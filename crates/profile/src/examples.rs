//! Networks in which every kind of operator occurs, and the sizes to measure them at.

use std::collections::BTreeMap;

use shardloom_graph::builder::Attention;
use shardloom_graph::families::{
    DlrmConfig, GptConfig, LlamaConfig, LstmConfig, MlpConfig, UTransformerConfig,
};
use shardloom_graph::op::{Activation, Overflow, Visibility};
use shardloom_graph::work::Pass;
use shardloom_graph::{DimId, Extents, Graph, GraphBuilder, GraphError, Init, OpId, gradient};
use shardloom_sim::rate_name;

const PASSES: [Pass; 3] = [Pass::Forward, Pass::Input, Pass::Weight];

/// Width of what is not a matrix product: the cost of a row is small beside that of its elements.
const HIDDEN: usize = 256;
/// Classes of the cross-entropy.
const VOCAB: usize = 1024;
/// Heads of an attention.
const HEADS: usize = 4;
/// Positions of a long enough sequence.
const SEQ: usize = 128;
/// Experts to choose from.
const EXPERTS: usize = 2;

/// Categorical features.
const TABLES: usize = 8;

/// Where one rate class occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occurrence {
    /// Index of the example.
    pub example: usize,
    pub op: OpId,
    pub pass: Pass,
}

/// One layer each of the model families, or as few as they can have, with and without dropout or a projection,
/// an encoder of attention that is not causal, attention fused and not, and experts that rows choose from.
pub(crate) fn examples() -> Vec<Graph> {
    let fused = |graph: Graph| graph.with_fused_attention();
    let build = || -> Result<Vec<Graph>, GraphError> {
        Ok(vec![
            gpt(0.0).graph("gpt")?,
            gpt(0.1).graph("gpt")?,
            llama().graph("llama")?,
            LlamaConfig { geglu: true, scaled_embedding: true, logit_cap: Some(30.0), ..llama() }
                .graph("gemma")?,
            mlp().graph("mlp")?,
            UTransformerConfig(GptConfig { layers: 3, ..gpt(0.0) }).graph("u-transformer")?,
            encoder(0.0)?,
            encoder(0.1)?,
            fused(gpt(0.0).graph("fused gpt")?),
            fused(gpt(0.1).graph("fused gpt")?),
            fused(encoder(0.0)?),
            fused(encoder(0.1)?),
            experts()?,
            lstm(None).graph("lstm")?,
            lstm(Some(HIDDEN / 2)).graph("projected lstm")?,
            sampled_lstm(VOCAB / 16)?,
            sampled_lstm(VOCAB / 4)?,
            sampled_lstm(VOCAB / 2)?,
            dlrm().graph("dlrm")?,
        ])
    };
    build().expect("the examples' sizes are possible")
}

fn gpt(dropout: f32) -> GptConfig {
    GptConfig {
        layers: 1,
        hidden: HIDDEN,
        heads: HEADS,
        seq: SEQ,
        vocab: VOCAB,
        padded_vocab: None,
        ffn: None,
        dropout,
        attention_dropout: None,
        embedding_dropout: None,
        rotary: None,
        rope_theta: None,
        parallel: false,
        head_bias: false,
        tied: false,
        separate_loss: false,
        norm_epsilon: 1e-5,
        init_std: 0.02,
    }
}

fn llama() -> LlamaConfig {
    LlamaConfig {
        layers: 1,
        hidden: HIDDEN,
        heads: HEADS,
        kv_heads: None,
        head_dim: None,
        ffn: HIDDEN,
        seq: SEQ,
        vocab: VOCAB,
        padded_vocab: None,
        rope_theta: 10_000.0,
        rope_scaling: None,
        windows: vec![],
        window_rope_theta: None,
        attention_scalar: None,
        attention_cap: None,
        logit_cap: None,
        norm_epsilon: 1e-5,
        tied: false,
        separate_loss: false,
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
        geglu: false,
        scaled_embedding: false,
        zero_centered_gain: false,
        init_std: 0.02,
    }
}

fn mlp() -> MlpConfig {
    MlpConfig { inputs: HIDDEN, hidden: HIDDEN, layers: 2, classes: VOCAB }
}

fn lstm(projection: Option<usize>) -> LstmConfig {
    LstmConfig {
        layers: 1,
        hidden: HIDDEN,
        embed: HIDDEN,
        vocab: VOCAB,
        seq: SEQ,
        projection,
        dropout: 0.0,
        tied: false,
        sampled_softmax: None,
        forget_bias: 1.0,
        init_std: 0.02,
    }
}

/// A language model whose loss draws so many words.
fn sampled_lstm(samples: usize) -> Result<Graph, GraphError> {
    LstmConfig { sampled_softmax: Some(samples), ..lstm(None) }.graph("sampled lstm")
}

fn dlrm() -> DlrmConfig {
    DlrmConfig {
        dense: HIDDEN,
        rows: vec![VOCAB; TABLES],
        row_multiple: None,
        embed: HIDDEN / 4,
        bottom: vec![],
        top: vec![],
        diagonal: false,
    }
}

/// What no family has: attention that sees all, dropout on its own, and a head with a bias.
fn encoder(dropout: f32) -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("encoder");
    let [seq, keys] = [net.dim("seq", SEQ)?, net.dim("keys", SEQ)?];
    let model = net.dim("model", HIDDEN)?;
    let [heads, head_dim] = [net.dim("heads", HEADS)?, net.dim("head_dim", HIDDEN / HEADS)?];
    let vocab = net.dim("vocab", VOCAB)?;
    let normal = Init::Normal { std: 0.02 };
    let features = net.features("features", &[seq, model])?;
    let targets = net.targets("targets", &[seq])?;
    let mut project = |name: &str| {
        let w = net.parameter(&format!("{name}.weight"), &[model, heads, head_dim], 1, normal)?;
        net.contract(name, features, w, None)
    };
    let (q, k, v) = (project("query")?, project("key")?, project("value")?);
    let attention = Attention { visibility: Visibility::All, dropout, ..Attention::CAUSAL };
    let context = net.attention("attention", q, k, v, keys, attention)?;
    let w = net.parameter("head.weight", &[vocab, heads, head_dim], 1, normal)?;
    let b = net.parameter("head.bias", &[vocab], 0, Init::Constant(0.0))?;
    let logits = net.contract("head", context, w, Some(b))?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// Rows that choose an expert, with as many slots as there are rows.
fn experts() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("experts");
    let [seq, model] = [net.dim("seq", SEQ)?, net.dim("model", HIDDEN)?];
    let [choices, expert] = [net.dim("choices", EXPERTS)?, net.dim("expert", EXPERTS)?];
    let [slot, hidden] = [net.dim("slot", SEQ / EXPERTS)?, net.dim("hidden", HIDDEN)?];
    let vocab = net.dim("vocab", VOCAB)?;
    let normal = Init::Normal { std: 0.02 };
    let features = net.features("features", &[seq, model])?;
    let targets = net.targets("targets", &[seq])?;
    let w = net.parameter("gate.weight", &[model, choices], 1, normal)?;
    let logits = net.contract("gate", features, w, None)?;
    let routed = net.route("route", logits, expert, slot, Overflow::Drop)?;
    let rows = net.dispatch("dispatch", features, routed)?;
    let mut between = rows;
    for activation in [Activation::Relu, Activation::Gelu] {
        let name = format!("{activation:?}").to_lowercase();
        let (from, to) = match activation {
            Activation::Relu => (model, hidden),
            Activation::Gelu => (hidden, model),
        };
        let w = net.parameter(&format!("{name}.weight"), &[expert, from, to], 2, normal)?;
        let product = net.expert_contract(&format!("{name}.product"), between, w)?;
        between = net.pointwise(&name, product, activation)?;
    }
    let y = net.combine("combine", between, routed)?;
    let w = net.parameter("head.weight", &[vocab, model], 1, normal)?;
    let logits = net.contract("head", y, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// One occurrence of each rate class of `examples`, by name.
pub(crate) fn classes(examples: &[Graph]) -> BTreeMap<String, Occurrence> {
    let mut classes = BTreeMap::new();
    for (example, graph) in examples.iter().enumerate() {
        for (op, pass) in passes(graph) {
            let name = rate_name(graph, op, pass);
            classes.entry(name).or_insert(Occurrence { example, op, pass });
        }
    }
    classes
}

/// All passes of all operators.
pub(crate) fn passes(graph: &Graph) -> impl Iterator<Item = (OpId, Pass)> + '_ {
    graph.ops().flat_map(move |(op, _)| {
        let rule = gradient::rule(graph, op);
        PASSES
            .into_iter()
            .filter(move |pass| match pass {
                Pass::Forward => true,
                Pass::Input => rule.input.is_some(),
                Pass::Weight => rule.weight.is_some(),
            })
            .map(move |pass| (op, pass))
    })
}

/// Extents with so many rows: positions of all samples together.
pub(crate) fn rows(graph: &Graph, rows: usize) -> Extents {
    let mut extents = Extents::global(graph, rows);
    if let (Some(seq), Some(keys)) = (graph.dim_named("seq"), graph.dim_named("keys")) {
        let positions = rows.min(SEQ);
        extents.set(seq, positions);
        extents.set(keys, positions);
        extents.set(graph.batch(), rows / positions);
    }
    if let (Some(seq), Some(slot)) = (graph.dim_named("seq"), graph.dim_named("slot")) {
        let positions = rows.min(SEQ);
        extents.set(seq, positions);
        extents.set(slot, positions.div_ceil(EXPERTS));
        extents.set(graph.batch(), rows / positions);
    }
    extents
}

/// Extents in which each expert's product is of `rows` rows by `inputs` by `outputs`.
pub(super) fn experts_contraction(graph: &Graph, op: OpId, sizes: [usize; 3]) -> Extents {
    let axes = |index: usize| &graph.value(graph.op(op).inputs[index]).axes;
    let (rows, weights) = (axes(0), axes(2));
    let mut extents = Extents::global(graph, 1);
    for (dim, size) in [rows[2], weights[1], weights[2]].into_iter().zip(sizes) {
        extents.set(dim, size);
    }
    extents
}

/// Extents in which a loss over drawn classes has so many rows of so many inputs.
pub(crate) fn drawn(graph: &Graph, op: OpId, [rows, inputs, _]: [usize; 3]) -> Extents {
    let mut extents = Extents::global(graph, rows);
    if let &[_, seq, model] = &graph.value(graph.op(op).inputs[0]).axes[..] {
        extents.set(seq, 1);
        extents.set(model, inputs);
    }
    extents
}

/// Extents of a recurrence over so many samples, positions and cells, which it projects to half as many if it
/// has a projection.
pub(crate) fn recurrence(graph: &Graph, op: OpId, sizes: [usize; 3]) -> Extents {
    let [samples, positions, cells] = sizes;
    let node = graph.op(op);
    let (gates, result) = (&graph.value(node.inputs[0]).axes, &graph.value(node.outputs[0]).axes);
    let units = if node.inputs.len() > 2 { cells.div_ceil(2) } else { cells };
    let mut extents = Extents::global(graph, samples);
    for (dim, size) in [(gates[1], positions), (gates[3], cells), (result[2], units)] {
        extents.set(dim, size);
    }
    extents
}

/// Extents in which a contraction is of `rows` rows by `inputs` by `outputs`.
pub(crate) fn contraction(graph: &Graph, op: OpId, sizes: [usize; 3]) -> Extents {
    let [rows, inputs, outputs] = sizes;
    let axes = |index: usize| &graph.value(graph.op(op).inputs[index]).axes;
    let (x, w) = (axes(0), axes(1));
    let mut extents = Extents::global(graph, 1);
    let mut spread = |dims: Vec<DimId>, size: usize| {
        for (index, dim) in dims.into_iter().enumerate() {
            extents.set(dim, if index == 0 { size } else { 1 });
        }
    };
    spread(x.iter().copied().filter(|dim| !w.contains(dim)).collect(), rows);
    spread(x.iter().copied().filter(|dim| w.contains(dim)).collect(), inputs);
    spread(w.iter().copied().filter(|dim| !x.contains(dim)).collect(), outputs);
    extents
}

/// Extents in which attention is over so many positions and has heads of such a width, in as many samples as make so
/// many probabilities, and in one at least.
pub(crate) fn attention(
    graph: &Graph,
    [positions, head_dim]: [usize; 2],
    probabilities: usize,
) -> Extents {
    let batch = (probabilities / (positions * positions * HEADS)).max(1);
    let mut extents = Extents::global(graph, batch);
    for (name, size) in [("seq", positions), ("keys", positions), ("head_dim", head_dim)] {
        let dim = graph.dim_named(name).expect("a network with attention has positions and heads");
        extents.set(dim, size);
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four heads of 64 positions have 2^14 probabilities a sample.
    #[test]
    fn attention_has_as_many_samples_as_make_the_probabilities() {
        let graph = gpt(0.0).graph("gpt").expect("a model");
        for (positions, samples) in [(64, 64), (128, 16), (512, 1), (1024, 1)] {
            let extents = attention(&graph, [positions, 32], 1 << 20);
            assert_eq!(extents.get(graph.batch()), samples, "{positions} positions");
        }
    }
}
