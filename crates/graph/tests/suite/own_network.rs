//! A network written as data is the network that the builder makes.

use std::collections::BTreeSet;

use shardloom_graph::builder::Attention;
use shardloom_graph::op::{Activation, Gate, Visibility};
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init, ModelSpec, OpKind};

const OWN: &str = include_str!("../../../../examples/models/own-network.toml");

/// The example, built in Rust.
fn built() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("own-network");
    let seq = net.dim("seq", 128)?;
    let keys = net.dim("keys", 128)?;
    let model = net.dim("model", 64)?;
    let heads = net.dim("heads", 2)?;
    let group = net.dim("group", 2)?;
    let head_dim = net.dim("head_dim", 16)?;
    let ffn = net.dim("ffn", 160)?;
    let vocab = net.dim("vocab", 256)?;
    let normal = Init::Normal { std: 0.02 };
    let small = Init::Normal { std: 0.01 };
    let (ones, zeros) = (Init::Constant(1.0), Init::Constant(0.0));

    let tokens = net.targets("tokens", &[seq])?;
    let targets = net.targets("targets", &[seq])?;
    net.block("embedding");
    let table = net.parameter("embedding.tokens.table", &[vocab, model], 1, normal)?;
    let x = net.embed("embedding.tokens", tokens, table)?;
    let positions = net.parameter("embedding.positions.bias", &[seq, model], 1, normal)?;
    let x = net.add("embedding.positions", x, positions)?;
    let mut x = net.dropout("embedding.dropout", x, 0.1)?;
    for layer in 0..3 {
        let block = format!("layer.{layer}");
        net.block(&block);
        let at = |name: &str| format!("{block}.{name}");
        let gain = net.parameter(&at("attention_norm.gain"), &[model], 0, ones)?;
        let bias = net.parameter(&at("attention_norm.bias"), &[model], 0, zeros)?;
        let normed = net.layer_norm(&at("attention_norm"), x, gain, bias, 1e-5)?;
        let axes = [model, heads, group, head_dim];
        let w = net.parameter(&at("query.weight"), &axes, 1, normal)?;
        let b = net.parameter(&at("query.bias"), &axes[1..], 0, zeros)?;
        let q = net.contract(&at("query"), normed, w, Some(b))?;
        let w = net.parameter(&at("key.weight"), &[model, heads, head_dim], 1, normal)?;
        let k = net.contract(&at("key"), normed, w, None)?;
        let w = net.parameter(&at("value.weight"), &[model, heads, head_dim], 1, normal)?;
        let v = net.contract(&at("value"), normed, w, None)?;
        let q = net.rotary(&at("query_rotary"), q, 10_000.0, None, None)?;
        let k = net.rotary(&at("key_rotary"), k, 10_000.0, None, None)?;
        let attention = Attention { dropout: 0.1, ..Attention::CAUSAL };
        let context = net.attention(&at("attention"), q, k, v, keys, attention)?;
        let axes = [heads, group, head_dim, model];
        let w = net.parameter(&at("output.weight"), &axes, 3, small)?;
        let out = net.contract(&at("output"), context, w, None)?;
        let b = net.parameter(&at("attention_residual.bias"), &[model], 0, zeros)?;
        let middle = net.bias_dropout_add(&at("attention_residual"), out, b, x, 0.1)?;
        let gain = net.parameter(&at("ffn_norm.gain"), &[model], 0, ones)?;
        let normed = net.rms_norm(&at("ffn_norm"), middle, gain, 0.0, 1e-6)?;
        let w = net.parameter(&at("gate.weight"), &[model, ffn], 1, normal)?;
        let gate = net.contract(&at("gate"), normed, w, None)?;
        let w = net.parameter(&at("up.weight"), &[model, ffn], 1, normal)?;
        let up = net.contract(&at("up"), normed, w, None)?;
        let activated = net.glu(&at("swiglu"), Gate::Silu, gate, up)?;
        let w = net.parameter(&at("down.weight"), &[ffn, model], 1, small)?;
        let down = net.contract(&at("down"), activated, w, None)?;
        x = net.add(&at("ffn_residual"), middle, down)?;
    }
    net.block("head");
    let gain = net.parameter("head.norm.gain", &[model], 0, ones)?;
    let normed = net.rms_norm("head.norm", x, gain, 0.0, 1e-5)?;
    let logits = net.contract("head", normed, table, None)?;
    let loss = net.cross_entropy("head.loss", logits, targets)?;
    net.finish(loss)
}

/// Everything in a graph as text, with names for ids, so that the order of dimensions and values does
/// not matter.
fn described(graph: &Graph) -> BTreeSet<String> {
    let names = |ids: &[_]| ids.iter().map(|&id| graph.value(id).name.clone()).collect::<Vec<_>>();
    let dims = graph.dims().iter().map(|dim| format!("{dim:?}"));
    let values = graph.values().map(|(_, value)| {
        let axes = graph.axes_text(&value.axes);
        format!("{} [{axes}] {:?} {:?}", value.name, value.dtype, value.role)
    });
    let ops = graph.ops().map(|(id, op)| {
        let block = &graph.blocks()[op.block.index()].name;
        let loops: Vec<_> =
            op.signature.loops.iter().map(|each| (&graph.dim(each.dim).name, each.split)).collect();
        let (inputs, outputs) = (names(&op.inputs), names(&op.outputs));
        format!("{id:?} {block} {} {:?} {inputs:?} {outputs:?} {loops:?}", op.name, op.kind)
    });
    let loss = format!("loss {}", graph.value(graph.loss()).name);
    dims.chain(values).chain(ops).chain([loss]).collect()
}

#[test]
fn the_example_file_is_the_network_that_the_builder_makes() {
    let spec = ModelSpec::from_toml(OWN, "own-network.toml").unwrap();
    assert_eq!(described(&spec.graph().unwrap()), described(&built().unwrap()));
    assert_eq!((spec.name(), spec.seq()), ("own-network", 128));
}

#[test]
fn the_example_survives_both_texts() {
    let spec = ModelSpec::from_toml(OWN, "own-network.toml").unwrap();
    assert_eq!(ModelSpec::from_toml(&spec.to_toml(), "again").unwrap(), spec);
    let line = spec.to_string();
    assert_eq!(line.lines().count(), 1);
    assert_eq!(ModelSpec::parse(&line).unwrap(), spec);
}

#[test]
fn another_sequence_length_changes_the_keys_of_attention_too() {
    let spec = ModelSpec::from_toml(OWN, "own-network.toml").unwrap().with_seq(32).unwrap();
    let graph = spec.graph().unwrap();
    for dim in ["seq", "keys"] {
        assert_eq!(graph.dim(graph.dim_named(dim).unwrap()).size, 32);
    }
}

/// Kinds that the example does not use.
#[test]
fn a_classifier_with_pointwise_operators_loads() {
    let text = r#"
        [model]
        name = "classifier"
        [dims]
        "width.0" = 6
        "width.1" = 6
        "width.2" = 6
        classes = 3
        [[input]]
        name = "features"
        kind = "real"
        axes = ["width.0"]
        [[input]]
        name = "targets"
        kind = "index"
        axes = []
        [[block]]
        name = "first"
        output = "relu"
        [[block.op]]
        name = "product"
        kind = "contract"
        inputs = ["features"]
        weight = { axes = ["width.0", "width.1"], init = { normal = 0.5 } }
        [[block.op]]
        name = "relu"
        kind = "relu"
        inputs = ["product"]
        [[block.op]]
        name = "gelu"
        kind = "gelu"
        inputs = ["product"]
        [[block]]
        name = "second"
        input = "first.gelu"
        [[block.op]]
        name = "sum"
        kind = "add"
        inputs = ["input", "first.relu"]
        [[block.op]]
        name = "product"
        kind = "contract"
        inputs = ["sum"]
        weight = { axes = ["width.1", "classes"], init = { normal = 0.5 } }
        [[block.op]]
        name = "loss"
        kind = "cross-entropy"
        inputs = ["second.product", "targets"]
    "#;
    let graph = ModelSpec::from_toml(text, "classifier.toml").unwrap().graph().unwrap();
    let kinds: Vec<&str> = graph.ops().map(|(_, op)| op.kind.name()).collect();
    let gelu = shardloom_graph::OpKind::Pointwise(Activation::Gelu).name();
    assert_eq!(kinds[..5], ["contract", "relu", gelu, "add", "contract"]);
    assert_eq!(graph.op(graph.ops().nth(3).unwrap().0).inputs.len(), 2);
    assert_eq!(graph.parameter_count(), 36 + 18);
}

/// A classifier of two rows of features, which are joined along the rows and then along the columns.
const JOINED: &str = r#"
    [model]
    name = "joined"
    [dims]
    rows = 2
    columns = 3
    more = 4
    width = 6
    classes = 5
    [[input]]
    name = "features"
    kind = "real"
    axes = ["rows", "columns"]
    [[input]]
    name = "targets"
    kind = "index"
    axes = []
    [[block]]
    name = "branches"
    [[block.op]]
    name = "relu"
    kind = "relu"
    inputs = ["features"]
    [[block.op]]
    name = "gelu"
    kind = "gelu"
    inputs = ["features"]
    [[block.op]]
    name = "longer"
    kind = "concat"
    inputs = ["relu", "gelu"]
    axis = "rows"
    joined = "more"
    [[block.op]]
    name = "cube"
    kind = "relu"
    inputs = ["longer"]
    [[block.op]]
    name = "wider"
    kind = "concat"
    inputs = ["longer", "cube"]
    joined = "width"
    [[block]]
    name = "head"
    [[block.op]]
    kind = "contract"
    inputs = ["input"]
    weight = { axes = ["more", "width", "classes"], rows = 2, init = { normal = 0.1 } }
    [[block.op]]
    name = "loss"
    kind = "cross-entropy"
    inputs = ["head", "targets"]
"#;

#[test]
fn tensors_are_joined_along_the_axis_of_the_name_and_along_the_last_without_one() {
    let spec = ModelSpec::from_toml(JOINED, "joined.toml").unwrap();
    assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec);
    let graph = spec.graph().unwrap();
    let axes = |name: &str| {
        let (_, value) = graph.values().find(|(_, value)| value.name == name).unwrap();
        graph.axes_text(&value.axes)
    };
    assert_eq!(axes("branches.longer"), "batch, more, columns");
    assert_eq!(axes("branches.wider"), "batch, more, width");
    let refuse = |from: &str, to: &str, needle: &str| {
        assert!(JOINED.contains(from), "{from}");
        let changed = JOINED.replacen(from, to, 1);
        let message = ModelSpec::from_toml(&changed, "net").unwrap_err().to_string();
        assert!(message.contains(needle), "{needle:?} is not in {message:?}");
    };
    refuse("joined = \"more\"", "", "op \"longer\", joined: the kind concat needs it");
    refuse("joined = \"more\"", "joined = \"classes\"", "the parts are 4 together");
    refuse("axis = \"rows\"", "axis = \"classes\"", "it is no dimension of the first input");
    refuse("inputs = [\"relu\", \"gelu\"]", "inputs = [\"relu\"]", "reads 2 or more (a, b), not 1");
}

/// A block whose operator has the name of an input, and one that has none of that name.
const ECHOED: &str = r#"
    [model]
    name = "echoed"
    [dims]
    width = 3
    [[input]]
    name = "features"
    kind = "real"
    axes = ["width"]
    [[input]]
    name = "targets"
    kind = "index"
    axes = []
    [[block]]
    name = "first"
    [[block.op]]
    name = "features"
    kind = "relu"
    inputs = ["features"]
    [[block.op]]
    name = "again"
    kind = "gelu"
    inputs = ["features"]
    [[block]]
    name = "second"
    [[block.op]]
    name = "sum"
    kind = "add"
    inputs = ["input", "features"]
    [[block.op]]
    name = "loss"
    kind = "cross-entropy"
    inputs = ["sum", "targets"]
"#;

#[test]
fn a_name_is_looked_up_in_the_own_block_first() {
    let graph = ModelSpec::from_toml(ECHOED, "echoed.toml").unwrap().graph().unwrap();
    let read = |op: usize| -> Vec<&str> {
        let (_, op) = graph.ops().nth(op).unwrap();
        op.inputs.iter().map(|&input| graph.value(input).name.as_str()).collect()
    };
    // Before the block has the name it is the input's, and in another block it still is.
    assert_eq!(read(0), ["features"]);
    assert_eq!(read(1), ["first.features"]);
    assert_eq!(read(2), ["first.again", "features"]);
}

/// The example with `from` replaced by `to` fails with a message that holds all of `needles`.
#[track_caller]
fn fails(from: &str, to: &str, needles: &[&str]) {
    assert!(OWN.contains(from), "{from}");
    let message =
        ModelSpec::from_toml(&OWN.replacen(from, to, 1), "net.toml").unwrap_err().to_string();
    for needle in needles.iter().chain(&["net.toml"]) {
        assert!(message.contains(needle), "{needle:?} is not in {message:?}");
    }
}

#[test]
fn errors_name_the_block_the_operator_and_the_key() {
    fails(
        "kind = \"rms-norm\"\ninputs = [\"attention_residual\"]",
        "kind = \"rms-nrm\"\ninputs = [\"attention_residual\"]",
        &["layer.0", "ffn_norm", "kind", "did you mean \"rms-norm\"?"],
    );
    fails(
        "inputs = [\"gate\", \"up\"]",
        "inputs = [\"gate\", \"upp\"]",
        &["layer.0", "swiglu", "inputs", "did you mean \"up\"?"],
    );
    fails("inputs = [\"gate\", \"up\"]", "inputs = [\"gate\"]", &["swiglu", "reads 2 (gate, up)"]);
    fails(
        "axes = [\"ffn\", \"model\"]",
        "axes = [\"ffm\", \"model\"]",
        &["layer.0", "down", "weight", "did you mean \"ffn\"?"],
    );
    fails("theta = 10000.0", "epsilon = 1.0", &["layer.0", "key_rotary", "epsilon", "theta"]);
    fails("causal = true\n", "", &["layer.0", "attention", "causal"]);
    fails("name = \"layer.{i}\"", "name = \"layer\"", &["\"layer\"", "name", "{i}"]);
    fails("repeat = 3", "repeat = 0", &["layer.{i}", "repeat", "1 to 10000"]);
    fails("same = \"embedding.tokens.table\"", "same = \"none\"", &["head", "weight", "\"none\""]);
    fails("inputs = [\"head\", \"targets\"]", "inputs = [\"head\", \"head\"]", &["head.loss"]);
}

/// Nothing is built of it first.
#[test]
fn more_operators_than_a_model_has_are_refused_with_their_number() {
    let block = OWN.find("name = \"layer.{i}\"").expect("a repeated block");
    let first = OWN[..block].rfind("[[block]]").expect("its beginning");
    let end = block + OWN[block..].find("[[block]]").expect("its end");
    let many = OWN[first..end].replace("repeat = 3", "repeat = 10000");
    let named = |copy: usize| many.replace("layer.{i}", &format!("layer.{copy}.{{i}}"));
    let copies: String = (0..10).map(named).collect();
    let text = format!("{}{copies}{}", &OWN[..first], &OWN[end..]);
    let error = ModelSpec::from_toml(&text, "net.toml").and_then(|spec| spec.graph());
    let message = error.expect_err("too many").to_string();
    assert!(message.contains("262144 at most"), "{message}");
}

/// Each of little, and few of them repeated often.
#[test]
fn more_blocks_than_a_model_has_are_refused_with_their_number() {
    let own = "[model]\nname = \"own\"\n[dims]\nfeatures = 4\n[[input]]\nname = \"x\"\nkind = \"real\"\naxes = \
               [\"features\"]\n";
    let graph = |blocks: &[usize]| {
        let block = |(index, repeat): (usize, &usize)| {
            format!(
                "[[block]]\nname = \"b{index}.{{i}}\"\nrepeat = {repeat}\n[[block.op]]\nkind = \"relu\"\n\
                 inputs = [\"x\"]\n"
            )
        };
        let text: String = blocks.iter().enumerate().map(block).collect();
        let spec = ModelSpec::from_toml(&format!("{own}{text}"), "net.toml");
        spec.and_then(|spec| spec.graph()).expect_err("no loss").to_string()
    };
    let more = graph(&[1000; 17]);
    assert!(more.contains("17000 blocks with those before"), "{more}");
    let most = graph(&[10_000, 6384]);
    assert!(most.contains("no loss"), "{most}");
    assert!(graph(&[10_000, 6385]).contains("16384 at most"));
}

/// Of the table of a block or an operator, that of its header.
#[test]
fn errors_of_a_block_name_the_line_of_the_key_or_of_the_operator() {
    let line = |text: &str, of: &str| text[..text.find(of).expect("a line")].lines().count() + 1;
    let refused = |from: &str, to: &str, at: &str| {
        let text = OWN.replacen(from, to, 1);
        let message = ModelSpec::from_toml(&text, "net.toml").expect_err("refused").to_string();
        let begin = format!("net.toml:{}: ", line(&text, at));
        assert!(message.starts_with(&begin), "{message} does not begin with {begin}");
    };
    refused("inputs = [\"gate\", \"up\"]", "inputs = [\"upp\", \"up\"]", "inputs = [\"upp\"");
    refused(
        "axes = [\"ffn\", \"model\"]",
        "axes = [\"ffm\", \"model\"]",
        "weight = { axes = [\"ffm\"",
    );
    refused("axes = [\"seq\"]", "axes = [\"sec\"]", "axes = [\"sec\"]");
    refused("repeat = 3", "repeat = 0", "repeat = 0");
    let loss = "inputs = [\"head\", \"targets\"]";
    let operator = OWN[..OWN.find(loss).expect("there")].rfind("[[block.op]]").expect("its begin");
    let text = OWN.replacen(loss, "inputs = [\"head\", \"head\"]", 1);
    let message = ModelSpec::from_toml(&text, "net.toml").expect_err("refused").to_string();
    let begin = format!("net.toml:{}: ", OWN[..operator].lines().count() + 1);
    assert!(message.starts_with(&begin), "{message} does not begin with {begin}");
}

#[test]
fn errors_of_the_text_name_the_line() {
    fails("repeat = 3", "repeet = 3", &[":54: ", "repeet"]);
    fails(
        "model = 64",
        "model = \"wide\"",
        &[":10: ", "a whole number is needed, not the text \"wide\""],
    );
    fails("model = 64", "model = 0", &[":10: ", "model = 0"]);
}

#[test]
fn what_does_not_lead_to_the_loss_is_refused() {
    fails(
        "inputs = [\"gate\", \"up\"]",
        "inputs = [\"up\", \"up\"]",
        &["layer.0.gate", "no operator reads it"],
    );
    let unused = "[[input]]\nname = \"extra\"\nkind = \"real\"\naxes = [\"seq\"]\n\n[[block]]";
    fails("[[block]]", unused, &["extra", "no operator reads it"]);
}

#[test]
fn blocks_that_are_repeated_are_so_in_one_line_too() {
    for repeat in ["repeat = 1", "repeat = 2", "repeat = 3"] {
        let text = OWN.replace("repeat = 3", repeat);
        let spec = ModelSpec::from_toml(&text, "own.toml").expect("a network");
        let again = ModelSpec::parse(&spec.to_string()).expect("one line");
        assert_eq!(again.network(), spec.network(), "{repeat}");
    }
}

/// Three repetitions of a block that ends with an operator whose result nobody outside it reads.
fn repeated(output: &str) -> Graph {
    let text = format!(
        r#"
        [model]
        name = "repeated"
        [dims]
        model = 3
        vocab = 5
        [[input]]
        name = "features"
        kind = "real"
        axes = ["model"]
        [[input]]
        name = "targets"
        kind = "index"
        axes = []
        [[block]]
        name = "begin"
        [[block.op]]
        name = "first"
        kind = "relu"
        inputs = ["features"]
        [[block]]
        name = "layer.{{i}}"
        repeat = 3
        {output}
        [[block.op]]
        name = "a"
        kind = "gelu"
        inputs = ["input"]
        [[block.op]]
        name = "b"
        kind = "relu"
        inputs = ["a"]
        [[block]]
        name = "end"
        [[block.op]]
        name = "others"
        kind = "add"
        inputs = ["layer.0.b", "layer.1.b"]
        [[block.op]]
        name = "all"
        kind = "add"
        inputs = ["others", "layer.2.b"]
        [[block.op]]
        name = "sum"
        kind = "add"
        inputs = ["all", "input"]
        [[block.op]]
        name = "logits"
        kind = "contract"
        inputs = ["sum"]
        weight = {{ axes = ["model", "vocab"], init = {{ normal = 0.1 }} }}
        [[block.op]]
        name = "loss"
        kind = "cross-entropy"
        inputs = ["logits", "targets"]
    "#
    );
    ModelSpec::from_toml(&text, "repeated.toml").unwrap().graph().unwrap()
}

#[test]
fn each_repetition_reads_what_the_one_before_gives_which_is_its_last_result_or_the_one_named() {
    for (output, given) in [("", "b"), ("output = \"b\"", "b"), ("output = \"a\"", "a")] {
        let graph = repeated(output);
        let reads = |name: &str| -> Vec<String> {
            let (_, op) = graph.ops().find(|(_, op)| op.name == name).unwrap();
            op.inputs.iter().map(|&input| graph.value(input).name.clone()).collect()
        };
        assert_eq!(reads("layer.0.a"), ["begin.first"], "{output}");
        assert_eq!(reads("layer.1.a"), [format!("layer.0.{given}")], "{output}");
        assert_eq!(reads("layer.2.a"), [format!("layer.1.{given}")], "{output}");
        assert_eq!(
            reads("end.sum"),
            ["end.all".to_owned(), format!("layer.2.{given}")],
            "{output}"
        );
        // Within a repetition names are of its own operators.
        for layer in 0..3 {
            assert_eq!(reads(&format!("layer.{layer}.b")), [format!("layer.{layer}.a")]);
        }
    }
}

#[test]
fn attention_sees_what_causal_and_window_say() {
    let visibility = |words: &str| {
        let text = OWN.replace("causal = true", words);
        let spec = ModelSpec::from_toml(&text, "own-network.toml").map_err(|it| it.to_string())?;
        let graph = spec.graph().map_err(|error| error.to_string())?;
        let mut all = graph.ops().filter_map(|(_, op)| match op.kind {
            OpKind::AttentionContext { visibility, .. } => Some(visibility),
            _ => None,
        });
        all.next().ok_or("no attention".to_owned())
    };
    assert!(OWN.contains("causal = true"));
    assert_eq!(visibility("causal = true"), Ok(Visibility::Causal));
    assert_eq!(visibility("causal = false"), Ok(Visibility::All));
    for positions in [1, 5, 127] {
        let words = format!("causal = true\nwindow = {positions}");
        assert_eq!(visibility(&words), Ok(Visibility::Window { positions }));
    }
    // It hides nothing of 128.
    assert_eq!(visibility("causal = true\nwindow = 128"), Ok(Visibility::Causal));
    let message = visibility("causal = false\nwindow = 5").unwrap_err();
    assert!(message.contains("window: it is of earlier keys, so causal = true"), "{message}");
    assert!(visibility("causal = true\nwindow = 0").unwrap_err().contains("window = 0"));
    assert!(visibility("").unwrap_err().contains("causal: the kind attention needs it"));
}
