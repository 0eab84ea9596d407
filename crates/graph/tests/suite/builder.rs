//! What the builder refuses, and the gradients of what it accepts.

use shardloom_graph::builder::Attention;
use shardloom_graph::op::{Activation, Gate, Visibility};
use shardloom_graph::work::{Pass, work};
use shardloom_graph::{
    DimId, Extents, GraphBuilder, GraphError, Init, Reduction, Split, ValueId, gradient,
};

const ZEROS: Init = Init::Constant(0.0);

/// A builder with two dimensions, features `x [batch, wide]` and classes `y [batch]`.
struct Start {
    net: GraphBuilder,
    wide: DimId,
    narrow: DimId,
    x: ValueId,
    y: ValueId,
}

fn start() -> Start {
    let mut net = GraphBuilder::new("net");
    let (wide, narrow) = (net.dim("wide", 6).unwrap(), net.dim("narrow", 3).unwrap());
    let x = net.features("x", &[wide]).unwrap();
    let y = net.targets("y", &[]).unwrap();
    Start { net, wide, narrow, x, y }
}

#[track_caller]
fn refused<T>(result: Result<T, GraphError>, needle: &str) {
    let Err(error) = result else { panic!("accepted, though {needle}") };
    let message = error.to_string();
    assert!(message.contains(needle), "{needle:?} is not in {message:?}");
}

#[test]
fn names_are_unique_among_values_operators_and_dimensions() {
    let Start { mut net, wide, x, .. } = start();
    refused(net.dim("wide", 2), "dimension \"wide\": the name is taken");
    refused(net.dim("batch", 2), "taken");
    refused(net.dim("moments", 7), "taken");
    refused(net.features("x", &[wide]), "value \"x\": the name is taken");
    refused(net.features("", &[wide]), "at least one letter");
    net.pointwise("relu", x, Activation::Relu).unwrap();
    refused(net.pointwise("relu", x, Activation::Relu), "operator \"relu\": the name is taken");
    refused(net.parameter("relu", &[wide], 0, ZEROS), "value \"relu\": the name is taken");
}

#[test]
fn sizes_are_bounded() {
    let Start { mut net, .. } = start();
    refused(net.dim("none", 0), "none = 0");
    refused(net.dim("endless", usize::MAX), "endless = ");
    let big = net.dim("big", 1 << 40).unwrap();
    let other = net.dim("other", 1 << 40).unwrap();
    refused(net.parameter("square", &[big, other], 1, ZEROS), "more than 281474976710656");
    for index in 0..256 {
        net.parameter(&format!("row.{index}"), &[big], 0, ZEROS).unwrap();
    }
    refused(net.parameter("row.256", &[big], 0, ZEROS), "a model has at most");
}

#[test]
fn a_parameter_has_no_batch_no_dimension_twice_and_finite_elements() {
    let Start { mut net, wide, narrow, .. } = start();
    let batch = net.batch();
    refused(net.parameter("w", &[batch, wide], 1, ZEROS), "all samples share a parameter");
    refused(net.parameter("w", &[wide, wide], 1, ZEROS), "wide occurs twice");
    refused(net.parameter("w", &[wide, narrow], 3, ZEROS), "there are 2 axes");
    for init in [Init::Normal { std: -1.0 }, Init::Normal { std: f32::NAN }] {
        refused(net.parameter("v", &[wide], 0, init), "v initialisation");
    }
    refused(net.parameter("u", &[wide], 0, Init::Constant(f32::INFINITY)), "u initialisation");
}

#[test]
fn an_operand_is_the_kind_of_tensor_that_the_operator_takes() {
    let Start { mut net, wide, narrow, x, y } = start();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let gain = net.parameter("gain", &[wide], 0, ZEROS).unwrap();
    refused(net.embed("embed", x, w), "x has axes [batch, wide], but an input of indices");
    refused(net.pointwise("relu", y, Activation::Relu), "real numbers that are no parameter");
    refused(net.rms_norm("norm", x, gain, 0.0, 0.0), "norm epsilon = 0");
    refused(net.rms_norm("norm", x, gain, f32::NAN, 1e-5), "norm offset = NaN");
    refused(net.scale("scale", x, f32::INFINITY), "scale factor = inf");
    refused(net.pointwise("gelu", gain, Activation::Gelu), "real numbers that are no parameter");
    let other = net.features("other", &[wide]).unwrap();
    let product = net.contract("product", x, w, None).unwrap();
    refused(net.add("narrower", x, product), "[batch, wide] are needed");
    refused(net.cross_entropy("loss", product, other), "[batch] are needed");
    let turned = net.parameter("turned", &[narrow, wide], 1, ZEROS).unwrap();
    let square = net.pointwise("square", product, Activation::Relu).unwrap();
    refused(net.contract("both", square, product, None), "it must start or end with");
    net.contract("back", square, turned, None).unwrap();
}

#[test]
fn a_network_ends_in_one_loss_that_depends_on_all_of_it() {
    let Start { mut net, wide, narrow, x, y } = start();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let logits = net.contract("logits", x, w, None).unwrap();
    let loss = net.cross_entropy("loss", logits, y).unwrap();
    net.pointwise("aside", logits, Activation::Relu).unwrap();
    refused(net.finish(loss), "\"aside\": no operator reads it");

    let Start { mut net, wide, narrow, x, .. } = start();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let logits = net.contract("logits", x, w, None).unwrap();
    refused(net.finish(logits), "the loss must come from a cross-entropy");
}

#[test]
fn features_get_no_gradient() {
    let Start { mut net, wide, narrow, x, y } = start();
    let gain = net.parameter("gain", &[wide], 0, ZEROS).unwrap();
    let normed = net.rms_norm("norm", x, gain, 0.0, 1e-5).unwrap();
    let sum = net.add("sum", normed, x).unwrap();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let logits = net.contract("logits", sum, w, None).unwrap();
    let loss = net.cross_entropy("loss", logits, y).unwrap();
    let graph = net.finish(loss).unwrap();
    let rule = |name: &str| {
        let (id, _) = graph.ops().find(|(_, op)| op.name == name).unwrap();
        gradient::rule(&graph, id)
    };
    assert_eq!(rule("norm").input, None);
    assert_eq!(rule("norm").weight.unwrap().produces, [1]);
    assert_eq!(rule("sum").passes, [0]);
}

#[test]
fn an_operator_that_reads_a_value_twice_is_one_of_its_readers_once() {
    let Start { mut net, wide, narrow, x, y } = start();
    let twice = net.glu("twice", Gate::Silu, x, x).unwrap();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let logits = net.contract("logits", twice, w, None).unwrap();
    let loss = net.cross_entropy("loss", logits, y).unwrap();
    let graph = net.finish(loss).unwrap();
    assert_eq!(graph.value(x).consumers.len(), 1);
}

/// Each part of a split sum would add the bias once more.
#[test]
fn the_inner_loop_of_a_product_is_split_into_partial_sums_unless_it_adds_a_bias() {
    let Start { mut net, wide, narrow, x, y } = start();
    let classes = net.dim("classes", 2).unwrap();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let bias = net.parameter("bias", &[narrow], 0, ZEROS).unwrap();
    let v = net.parameter("v", &[narrow, classes], 1, ZEROS).unwrap();
    let biased = net.contract("biased", x, w, Some(bias)).unwrap();
    let logits = net.contract("plain", biased, v, None).unwrap();
    let loss = net.cross_entropy("loss", logits, y).unwrap();
    let graph = net.finish(loss).unwrap();
    let split = |name: &str, dim: DimId| {
        let (_, op) = graph.ops().find(|(_, op)| op.name == name).unwrap();
        op.signature.loops.iter().find(|each| each.dim == dim).unwrap().split
    };
    assert_eq!(split("biased", wide), Split::Opaque);
    assert_eq!(split("plain", narrow), Split::Reduce(Reduction::Sum));
    assert_eq!([split("biased", narrow), split("plain", classes)], [Split::Parallel; 2]);
}

#[test]
fn only_heads_of_an_even_width_are_rotated() {
    let Start { mut net, wide, narrow, .. } = start();
    let [seq, heads] = [("seq", 4), ("heads", 2)].map(|(name, size)| net.dim(name, size).unwrap());
    let even = net.features("even", &[seq, heads, wide]).unwrap();
    let odd = net.features("odd", &[seq, heads, narrow]).unwrap();
    let flat = net.features("flat", &[seq, wide]).unwrap();
    let needle = "rotation needs [batch, seq, heads..., head_dim] with an even head_dim";
    refused(net.rotary("rotated", odd, 1e4, None, None), needle);
    refused(net.rotary("rotated", flat, 1e4, None, None), needle);
    net.rotary("rotated", even, 1e4, None, None).unwrap();
}

/// A network whose three joined tensors, of widths 6, 3 and 3, need a result of 12.
#[test]
fn tensors_are_joined_along_one_axis_and_get_their_gradients_back() {
    let Start { mut net, wide, narrow, x, y } = start();
    let all = net.dim("all", 12).unwrap();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let b = net.contract("b", a, w, None).unwrap();
    let c = net.pointwise("c", b, Activation::Gelu).unwrap();
    let joined = net.concat("joined", &[a, b, c], 1, all).unwrap();
    let out = net.parameter("out", &[all, narrow], 1, ZEROS).unwrap();
    let logits = net.contract("logits", joined, out, None).unwrap();
    let loss = net.cross_entropy("loss", logits, y).unwrap();
    let graph = net.finish(loss).unwrap();
    let (id, op) = graph.ops().find(|(_, op)| op.name == "joined").unwrap();
    assert_eq!(graph.axes_text(&graph.value(op.outputs[0]).axes), "batch, all");
    let splits: Vec<(&str, Split)> = op
        .signature
        .loops
        .iter()
        .map(|each| (graph.dim(each.dim).name.as_str(), each.split))
        .collect();
    let whole = Split::Opaque;
    let expected = [("batch", Split::Parallel), ("wide", whole), ("narrow", whole), ("all", whole)];
    assert_eq!(splits, expected);
    let rule = gradient::rule(&graph, id);
    let input = rule.input.unwrap();
    assert_eq!(input.produces, [0, 1, 2]);
    assert_eq!(input.reads, [gradient::Operand::OutputGradient]);
    assert_eq!((rule.weight, rule.passes), (None, vec![]));
    // Each element is read once and written once, in both directions.
    let extents = Extents::global(&graph, 5);
    for pass in [Pass::Forward, Pass::Input] {
        let work = work(&graph, id, pass, &extents, 2).unwrap();
        assert_eq!((work.flops, work.bytes, work.elements), (0.0, 2.0 * 2.0 * 5.0 * 12.0, 60));
    }
}

#[test]
fn only_what_fits_side_by_side_is_joined() {
    let Start { mut net, wide, narrow, x, .. } = start();
    let [pair, other] = [net.dim("pair", 12).unwrap(), net.dim("other", 6).unwrap()];
    let z = net.features("z", &[other, wide]).unwrap();
    let batch = net.batch();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    let b = net.pointwise("b", x, Activation::Gelu).unwrap();
    let c = net.pointwise("c", z, Activation::Gelu).unwrap();
    let gain = net.parameter("gain", &[wide], 0, ZEROS).unwrap();
    refused(net.concat("one", &[a], 1, pair), "one parts = 1");
    refused(net.concat("none", &[], 1, pair), "none parts = 0");
    refused(
        net.concat("shorter", &[a, b], 1, narrow),
        "narrow = 3 is not possible: the parts are 12",
    );
    refused(net.concat("longer", &[c, a], 2, pair), "it needs an axis 2");
    refused(net.concat("deeper", &[a, c], 1, pair), "[batch, wide] are needed, but for axis 1");
    refused(net.concat("samples", &[a, b], 0, pair), "no axis 0 after the batch");
    refused(net.concat("outside", &[a, b], 2, pair), "no axis 2 after the batch");
    refused(net.concat("batched", &[a, b], 1, batch), "batch = 1 is not possible");
    refused(
        net.concat("data", &[a, x], 1, pair),
        "x has axes [batch, wide], but an operator's real",
    );
    refused(net.concat("weights", &[gain, a], 1, pair), "there is no axis 1 after the batch");
    net.concat("both", &[a, b], 1, pair).unwrap();
}

/// Two writes to one tensor within a pass would lose one of them.
#[test]
fn an_operator_with_a_gradient_of_each_operand_does_not_read_one_twice() {
    let finish = |mut net: GraphBuilder, twice: ValueId, width: DimId, y: ValueId| {
        let classes = net.dim("classes", 2).unwrap();
        let w = net.parameter("w", &[width, classes], 1, ZEROS).unwrap();
        let logits = net.contract("logits", twice, w, None).unwrap();
        let loss = net.cross_entropy("loss", logits, y).unwrap();
        net.finish(loss)
    };
    let needle = "a has axes [batch, wide], but one gradient pass would write two gradients of it";

    let Start { mut net, wide, x, y, .. } = start();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    let twice = net.glu("twice", Gate::Silu, a, a).unwrap();
    refused(finish(net, twice, wide, y), needle);

    let Start { mut net, x, y, .. } = start();
    let pair = net.dim("pair", 12).unwrap();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    let twice = net.concat("twice", &[a, a], 1, pair).unwrap();
    refused(finish(net, twice, pair, y), needle);

    let Start { mut net, wide, x, y, .. } = start();
    let both = net.parameter("both", &[wide], 0, ZEROS).unwrap();
    let twice = net.layer_norm("twice", x, both, both, 1e-5).unwrap();
    let needle = "both has axes [wide], but one gradient pass would write two gradients of it";
    refused(finish(net, twice, wide, y), needle);

    // A sum passes its gradient on, which is then added up.
    let Start { mut net, wide, x, y, .. } = start();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    let twice = net.add("twice", a, a).unwrap();
    finish(net, twice, wide, y).unwrap();
}

#[test]
fn a_table_s_lookup_touches_as_many_rows_as_there_are_tokens() {
    for entries in [16, 1600] {
        let mut net = GraphBuilder::new("net");
        let [seq, model, vocab] = [("seq", 4), ("model", 8), ("vocab", entries)]
            .map(|(name, size)| net.dim(name, size).unwrap());
        let tokens = net.targets("tokens", &[seq]).unwrap();
        let targets = net.targets("targets", &[seq]).unwrap();
        net.block("all");
        let table = net.parameter("table", &[vocab, model], 1, ZEROS).unwrap();
        let x = net.embed("embed", tokens, table).unwrap();
        let logits = net.contract("head", x, table, None).unwrap();
        let loss = net.cross_entropy("loss", logits, targets).unwrap();
        let graph = net.finish(loss).unwrap();
        let (id, _) = graph.ops().find(|(_, op)| op.name == "embed").unwrap();
        // Twenty tokens of four bytes, and a row of eight in two bytes each, in and out; backwards the
        // rows' gradients in place of the rows.
        let expected = (20.0 * (4.0 + 2.0 * 8.0 * 2.0), 160);
        for pass in [Pass::Forward, Pass::Weight] {
            let work = work(&graph, id, pass, &Extents::global(&graph, 5), 2).unwrap();
            assert_eq!((work.bytes, work.elements), expected, "{pass:?}");
        }
        // Tokens have no gradient.
        assert_eq!(work(&graph, id, Pass::Input, &Extents::global(&graph, 5), 2), None);
    }
}

#[test]
fn what_is_added_to_a_residual_has_its_axes_and_a_bias_the_last_of_them() {
    let Start { mut net, wide, narrow, x, .. } = start();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let small = net.contract("small", a, w, None).unwrap();
    let bias = net.parameter("bias", &[wide], 0, ZEROS).unwrap();
    let short = net.parameter("short", &[narrow], 0, ZEROS).unwrap();
    let needle = "small has axes [batch, narrow], but [batch, wide] are needed";
    refused(net.bias_dropout_add("sum", a, bias, small, 0.5), needle);
    refused(net.bias_dropout_add("sum", a, short, a, 0.5), "short has axes [narrow]");
    refused(net.bias_dropout_add("sum", a, bias, a, 1.0), "sum");
    net.bias_dropout_add("sum", a, bias, x, 0.5).unwrap();
}

#[test]
fn queries_have_the_axes_of_the_keys_and_at_most_one_more() {
    let Start { mut net, wide, narrow, .. } = start();
    let [seq, keys, more, heads, group] =
        [("seq", 4), ("keys", 4), ("more", 5), ("heads", 2), ("group", 7)]
            .map(|(name, size)| net.dim(name, size).unwrap());
    let k = net.features("k", &[seq, heads, wide]).unwrap();
    let v = net.features("v", &[seq, heads, wide]).unwrap();
    let mut queries = |name: &str, axes: &[DimId]| net.features(name, axes).unwrap();
    let plain = queries("plain", &[seq, heads, wide]);
    let grouped = queries("grouped", &[seq, heads, group, wide]);
    let wrong = [
        queries("turned", &[heads, seq, wide]),
        queries("narrower", &[seq, heads, narrow]),
        queries("narrower groups", &[seq, heads, group, narrow]),
        queries("deeper", &[seq, heads, group, narrow, wide]),
        queries("flat", &[seq, wide]),
    ];
    let flat = wrong[4];
    for q in wrong {
        let needle = "queries are [batch, seq, heads, (group), head_dim] like the keys";
        refused(net.attention("no", q, k, v, keys, Attention::CAUSAL), needle);
    }
    refused(
        net.attention("no", plain, flat, v, keys, Attention::CAUSAL),
        "keys are [batch, seq, heads",
    );
    refused(net.attention("no", plain, k, grouped, keys, Attention::CAUSAL), "are needed");
    refused(
        net.attention("no", plain, k, v, more, Attention::CAUSAL),
        "keys must be as long as seq",
    );
    for dropout in [-0.1, 1.0, f32::NAN] {
        let attention = Attention { dropout, ..Attention::CAUSAL };
        refused(net.attention("no", plain, k, v, keys, attention), "no dropout = ");
    }
    for value in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        let attention = Attention { scale: Some(value), ..Attention::CAUSAL };
        refused(net.attention("no", plain, k, v, keys, attention), "no scale = ");
        let attention = Attention { soft_cap: Some(value), ..Attention::CAUSAL };
        refused(net.attention("no", plain, k, v, keys, attention), "no soft cap = ");
    }
    let visibility = Visibility::Window { positions: 0 };
    let none = Attention { visibility, ..Attention::CAUSAL };
    refused(net.attention("no", plain, k, v, keys, none), "no window = 0");
    let attention = Attention { visibility: Visibility::All, dropout: 0.5, ..Attention::CAUSAL };
    for (name, q) in [("a", plain), ("b", grouped)] {
        let out = net.attention(name, q, k, v, keys, attention).unwrap();
        // Both have the same axes.
        net.glu(&format!("gated {name}"), Gate::Silu, out, q).unwrap();
    }
}

#[test]
fn a_product_shares_some_axes_of_its_weight_and_adds_a_bias_of_the_others() {
    let Start { mut net, wide, narrow, x, .. } = start();
    let other = net.dim("other", 5).unwrap();
    let whole = net.parameter("whole", &[wide], 0, ZEROS).unwrap();
    let strange = net.parameter("strange", &[narrow, other], 1, ZEROS).unwrap();
    let middle = net.parameter("middle", &[narrow, wide, other], 1, ZEROS).unwrap();
    for w in [whole, strange, middle] {
        refused(net.contract("no", x, w, None), "it must start or end with the last axes of x");
    }
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let bias = net.parameter("bias", &[narrow], 0, ZEROS).unwrap();
    refused(net.contract("no", x, w, Some(whole)), "the product's columns are [narrow]");
    net.contract("product", x, w, Some(bias)).unwrap();
    let a = net.pointwise("a", x, Activation::Relu).unwrap();
    // A parameter may lack the first axes of what it is added to, not the last.
    refused(net.add("no", a, bias), "they must be the last of [batch, wide]");
    net.add("sum", a, whole).unwrap();
}

#[test]
fn parameters_decay_that_have_rows_and_columns() {
    let Start { mut net, wide, narrow, x, y } = start();
    assert_eq!([net.block("one").index(), net.block("two").index()], [0, 1]);
    let w = net.parameter("w", &[wide, narrow], 1, ZEROS).unwrap();
    let bias = net.parameter("bias", &[wide], 0, ZEROS).unwrap();
    // All of whose axes are of rows, as of a gain for each of them.
    let rows = net.parameter("rows", &[wide], 1, ZEROS).unwrap();
    let a = net.add("a", x, bias).unwrap();
    let b = net.add("b", a, rows).unwrap();
    let logits = net.contract("logits", b, w, None).unwrap();
    let loss = net.cross_entropy("loss", logits, y).unwrap();
    let graph = net.finish(loss).unwrap();
    let decays = graph.parameters().map(|(_, value)| {
        (value.name.as_str(), value.parameter().map(|parameter| parameter.decays))
    });
    let right = [("w", Some(true)), ("bias", Some(false)), ("rows", Some(false))];
    assert_eq!(decays.collect::<Vec<_>>(), right);
    assert_eq!(graph.value(graph.targets()).name, "y");
    assert_eq!(graph.targets_per_sample(), 1);
}
