//! What every operator reads, gives and iterates over, and what its gradients read, as its definition says.

use shardloom_graph::gradient::{self, GradientOp, Operand};
use shardloom_graph::op::{Activation, Overflow};
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init, ModelSpec, OpId, Reduction, Split};

fn graph(line: &str) -> Graph {
    ModelSpec::parse(line).and_then(|spec| spec.graph()).expect("a model")
}

/// `kind (operands) -> results | loops | gradients`. Loops that may not be split are dots, others are split as
/// outputs are (=), into partial sums (+) or maxima (^), over rows of a table (?), or as earlier phases were (!).
fn line(graph: &Graph, id: OpId) -> String {
    let op = graph.op(id);
    // What is of the operator itself, or of its block, goes by the rest of its name.
    let short = |name: &str| {
        let rest = name.strip_prefix(&op.name).unwrap_or(name);
        rest.strip_prefix("block.0.").unwrap_or(rest).to_owned()
    };
    let names =
        |ids: &[_]| -> Vec<String> { ids.iter().map(|&it| short(&graph.value(it).name)).collect() };
    let loops = op.signature.loops.iter().map(|each| {
        let mark = match each.split {
            Split::Parallel => "=",
            Split::Reduce(Reduction::Sum) => "+",
            Split::Reduce(Reduction::Max) => "^",
            Split::Masked => "?",
            Split::Resolved => "!",
            Split::Opaque => ".",
        };
        format!("{}{mark}", graph.dim(each.dim).name)
    });
    let gradient = |of: &GradientOp| {
        let reads = of.reads.iter().map(|read| match *read {
            Operand::Input(index) => format!("i{index}"),
            Operand::Output(index) => format!("o{index}"),
            Operand::OutputGradient => "do".into(),
            Operand::InputGradient(index) => format!("di{index}"),
        });
        format!("{} > {:?}", reads.collect::<Vec<_>>().join(" "), of.produces)
    };
    let rule = gradient::rule(graph, id);
    let mut gradients: Vec<String> =
        [&rule.input, &rule.weight].into_iter().flatten().map(gradient).collect();
    if !rule.passes.is_empty() {
        gradients.push(format!("passes {:?}", rule.passes));
    }
    format!(
        "{} ({}) -> ({}) | {} | {}",
        op.kind.name(),
        names(&op.inputs).join(", "),
        names(&op.outputs).join(", "),
        loops.collect::<Vec<_>>().join(" "),
        gradients.join("; ")
    )
}

/// Rows that go to experts and come back.
fn experts() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("experts");
    let [seq, model, hidden, choices, experts, slots, vocab] = [
        ("seq", 4),
        ("model", 8),
        ("hidden", 12),
        ("choices", 3),
        ("experts", 3),
        ("slots", 2),
        ("vocab", 5),
    ]
    .map(|(name, size)| net.dim(name, size).expect("a dimension"));
    net.block("all");
    let normal = Init::Normal { std: 0.1 };
    let tokens = net.targets("tokens", &[seq])?;
    let targets = net.targets("targets", &[seq])?;
    let table = net.parameter("table", &[vocab, model], 1, normal)?;
    let x = net.embed("embed", tokens, table)?;
    let w = net.parameter("gate.weight", &[model, choices], 1, normal)?;
    let logits = net.contract("gate", x, w, None)?;
    let routed = net.route("route", logits, experts, slots, Overflow::Drop)?;
    let rows = net.dispatch("dispatch", x, routed)?;
    let w = net.parameter("up.weight", &[experts, model, hidden], 2, normal)?;
    let up = net.expert_contract("up", rows, w)?;
    let between = net.pointwise("relu", up, Activation::Relu)?;
    let w = net.parameter("down.weight", &[experts, hidden, model], 2, normal)?;
    let down = net.expert_contract("down", between, w)?;
    let y = net.combine("combine", down, routed)?;
    let logits = net.contract("head", y, table, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// Compares the lines of operators of a model, by name; those of the first block are without its name.
#[track_caller]
fn check(graph: &Graph, expected: &[(&str, &str)]) {
    for &(name, right) in expected {
        let is_it = |found: &str| found.strip_prefix("block.0.").unwrap_or(found) == name;
        let found = graph.ops().find(|(_, op)| is_it(&op.name));
        let (id, _) = found.unwrap_or_else(|| panic!("{} has no {name}", graph.name()));
        assert_eq!(line(graph, id), right, "{name} of {}", graph.name());
    }
}

#[test]
fn operators_of_a_gpt_are_as_they_are_defined() {
    let gpt = graph("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16,dropout=0.5");
    check(
        &gpt,
        &[
            (
                "embedding.tokens",
                "embed (tokens, embedding.token) -> () | batch= seq= vocab? model= | i0 do > [1]",
            ),
            (
                "embedding.sum",
                "add (embedding.tokens, embedding.position) -> () | batch= seq= model= | do > [1]; passes [0]",
            ),
            (
                "embedding.dropout",
                "dropout (embedding.sum) -> (, .mask) | batch= seq= model= | o1 do > [0]",
            ),
            (
                "attention_norm",
                "layer-norm (embedding.dropout, .gain, .bias) -> (, .stats) | batch= seq= model. moments. | \
                 i0 i1 o1 do > [0]; i0 o1 do > [1, 2]",
            ),
            (
                "attention.query",
                "contract (attention_norm, .weight, .bias) -> () | batch= seq= heads= head_dim= model. | \
                 i1 do > [0]; i0 do > [1, 2]",
            ),
            (
                "attention.probs",
                "attention-probs (attention.query, attention.key) -> () | batch= heads= seq= head_dim. keys. | \
                 i0 i1 o0 do > [0, 1]",
            ),
            (
                "attention.context",
                "attention-context (attention.probs, attention.value) -> (, .mask) | batch= heads= seq= head_dim. \
                 keys. | o1 i0 i1 do > [0, 1]",
            ),
            (
                "attention.output",
                "contract (attention.context, .weight) -> () | batch= seq= model= heads+ head_dim+ | \
                 i1 do > [0]; i0 do > [1]",
            ),
            (
                "attention.residual",
                "bias-dropout-add (attention.output, attention.output.bias, embedding.dropout) -> (, .mask) | \
                 batch= seq= model= | o1 do > [0]; o1 do > [1]; passes [2]",
            ),
            ("ffn.gelu", "gelu (ffn.up) -> () | batch= seq= ffn= | i0 do > [0]"),
            (
                "head",
                "contract (final_norm, .weight) -> () | batch= seq= vocab= model+ | i1 do > [0]; i0 do > [1]",
            ),
            ("loss.max", "logit-max (head) -> (.value) | batch= seq= vocab^ | "),
            (
                "loss.sum",
                "logit-sum (head, loss.max.value, targets) -> (.value, .target) | batch= seq= vocab+ | ",
            ),
            (
                "loss",
                "cross-entropy (head, .max.value, .sum.value, .sum.target, targets) -> () | batch+ seq+ vocab! | \
                 i0 i1 i2 i4 > [0]",
            ),
        ],
    );
    check(
        &gpt.with_fused_attention(),
        &[(
            "attention.context",
            "fused-attention (attention.query, attention.key, attention.value) -> () | batch= heads= seq= head_dim. \
             keys. | i0 i1 i2 do > [0, 1, 2]",
        )],
    );
    // Nothing is dropped, so there are no masks.
    let dry = graph("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16");
    check(
        &dry,
        &[
            (
                "attention.context",
                "attention-context (attention.probs, attention.value) -> () | batch= heads= seq= head_dim. keys. | \
                 i0 i1 do > [0, 1]",
            ),
            (
                "attention.residual",
                "bias-dropout-add (attention.output, attention.output.bias, embedding.sum) -> () | \
                 batch= seq= model= | do > [1]; passes [0, 2]",
            ),
        ],
    );
}

#[test]
fn operators_of_a_llama_are_as_they_are_defined() {
    let line = "llama:layers=1,hidden=8,heads=4,kv_heads=2,ffn=12,seq=4,vocab=16,qk_norm=true,scaled_embedding=true,\
                logit_cap=3";
    check(
        &graph(line),
        &[
            ("embedding.scaled", "scale (embedding.tokens) -> () | batch= seq= model= | do > [0]"),
            (
                "attention.query_norm",
                "rms-norm (attention.query, .gain) -> (, .stats) | batch= seq= heads= group= head_dim. | \
                 i0 i1 o1 do > [0]; i0 o1 do > [1]",
            ),
            (
                "attention.query.rotary",
                "rotary (attention.query_norm) -> () | batch= seq= heads= group= head_dim. | do > [0]",
            ),
            (
                "attention.probs",
                "attention-probs (attention.query.rotary, attention.key.rotary) -> () | batch= heads= group= seq= \
                 head_dim. keys. | i0 i1 o0 do > [0, 1]",
            ),
            (
                "attention.context",
                "attention-context (attention.probs, attention.value) -> () | batch= heads= group= seq= head_dim. \
                 keys. | i0 i1 do > [0, 1]",
            ),
            (
                "attention.residual",
                "add (embedding.scaled, attention.output) -> () | batch= seq= model= | passes [0, 1]",
            ),
            (
                "ffn.swiglu",
                "swiglu (ffn.gate, ffn.up) -> () | batch= seq= ffn= | i0 i1 do > [0, 1]",
            ),
            ("head.cap", "soft-cap (head) -> () | batch= seq= vocab= | o0 do > [0]"),
        ],
    );
    check(
        &graph(&format!("{line},geglu=true")),
        &[("ffn.geglu", "geglu (ffn.gate, ffn.up) -> () | batch= seq= ffn= | i0 i1 do > [0, 1]")],
    );
    check(
        &graph("u-transformer:layers=3,hidden=8,heads=2,seq=4,vocab=16"),
        &[(
            "block.2.skip.joined",
            "concat (block.1.ffn.residual, ffn.residual) -> () | batch= seq= model. model.2. | do > [0, 1]",
        )],
    );
}

/// Samples and experts may be split, rows of a sample not.
#[test]
fn operators_on_rows_of_experts_are_as_they_are_defined() {
    check(
        &experts().expect("a model"),
        &[
            (
                "route",
                "route (gate) -> (, .choice, .slot, .counts) | batch= seq. choices. experts. | i0 o0 o1 do > [0]",
            ),
            (
                "dispatch",
                "dispatch (embed, route.choice, route.slot, route.counts) -> () | batch= seq. model. experts. \
                 slots. | i1 i2 i3 do > [0]",
            ),
            (
                "up",
                "expert-contract (dispatch, route.counts, .weight) -> () | experts= batch= slots. model. hidden. | \
                 i1 i2 do > [0]; i0 i1 do > [2]",
            ),
            (
                "relu",
                "relu (up, route.counts) -> () | experts= batch= slots. hidden. | i0 i1 do > [0]",
            ),
            (
                "combine",
                "combine (down, route.counts, route.choice, route.slot, route) -> () | batch= experts. slots. \
                 model. seq. | i0 i1 i2 i3 i4 do > [0, 4]",
            ),
        ],
    );
}

#[test]
fn recurrences_and_losses_over_drawn_classes_are_as_they_are_defined() {
    check(
        &graph("lstm:layers=1,hidden=6,embed=5,seq=5,vocab=7,projection=3"),
        &[(
            "layer.0.recurrence",
            "lstm (layer.0.input, layer.0.recurrent.weight, layer.0.projection.weight) -> (, .activated, .cell, \
             .output) | batch= seq. gate. hidden. model. | i1 o1 o2 do i2 > [0]; o0 di0 i1 o3 do > [1, 2]",
        )],
    );
    check(
        &graph("lstm:layers=1,hidden=6,embed=6,seq=5,vocab=7,tied=true,sampled_softmax=3"),
        &[
            (
                "layer.0.recurrence",
                "lstm (layer.0.input, layer.0.recurrent.weight) -> (, .activated, .cell) | batch= seq. gate. hidden. \
                 model. | i1 o1 o2 do > [0]; o0 di0 > [1]",
            ),
            (
                "loss",
                "sampled-cross-entropy (layer.0.recurrence, targets, embedding.token, head.bias) -> (, .target, \
                 .sampled) | batch+ seq+ model. vocab. samples. | i1 i2 o1 o2 > [0]; i0 i1 o1 o2 > [2, 3]",
            ),
        ],
    );
    check(
        &graph("dlrm:dense=3,rows=7,embed=4,bottom=,top="),
        &[
            (
                "interaction.pairs",
                "dot-interaction (bottom.0.relu, embedding.0) -> () | batch= embed+ pairs. | i0 i1 do > [0, 1]",
            ),
            (
                "interaction",
                "concat (bottom.0.relu, .pairs) -> () | batch= embed. pairs. interactions. | do > [0, 1]",
            ),
            (
                "loss",
                "sigmoid-cross-entropy (head.sum, targets) -> () | batch+ click+ | i0 i1 > [0]",
            ),
        ],
    );
}
