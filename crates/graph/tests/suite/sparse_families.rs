//! The language model of long short-term memories and the recommendation model, and their operators.

use shardloom_graph::op::Activation;
use shardloom_graph::work::{MatmulShape, Pass, work};
use shardloom_graph::{
    DimId, Extents, Graph, GraphBuilder, GraphError, Init, ModelSpec, OpId, OpKind, Representative,
    ValueId,
};

fn graph(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).unwrap()
}

#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    let message = ModelSpec::parse(text).expect_err(text).to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

fn op_of(graph: &Graph, kind: fn(&OpKind) -> bool) -> OpId {
    graph.ops().find(|(_, op)| kind(&op.kind)).unwrap().0
}

fn is_lstm(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Lstm { .. })
}

#[test]
fn recurrent_layers_of_equal_width_are_alike() {
    let deep = graph("lstm:layers=20,hidden=6,embed=6,seq=5,vocab=7,dropout=0.1");
    assert_eq!(deep.blocks().len(), 22);
    // Embedding, one for all layers but the last, the last, head: what a layer reads is after dropout in the first
    // as in the others.
    assert_eq!(Representative::of(&deep).graph().blocks().len(), 4);
}

#[test]
fn an_embedding_is_as_wide_as_is_said_whatever_else_has_this_width() {
    // As wide as the cells, as what they give, and as neither.
    for embed in [8, 4, 5] {
        let graph =
            graph(&format!("lstm:layers=1,hidden=8,embed={embed},seq=5,vocab=7,projection=4"));
        let extents = Extents::global(&graph, 2);
        let token = graph.values().find(|(_, it)| it.name == "embedding.token");
        let (_, token) = token.expect("it has an embedding");
        assert_eq!(extents.shape(&token.axes), [7, embed]);
    }
}

#[test]
fn a_recurrence_takes_a_product_for_each_position_that_has_one_before_it() {
    let (batch, seq, hidden, units) = (3, 5, 6, 2);
    let graph = graph("lstm:layers=1,hidden=6,embed=4,seq=5,vocab=7,projection=2");
    let lstm = op_of(&graph, is_lstm);
    let extents = Extents::global(&graph, batch);
    let of = |pass| work(&graph, lstm, pass, &extents, 4).unwrap();
    let recurrent = (2 * batch * (seq - 1) * units * 4 * hidden) as f64;
    let projection = (2 * batch * seq * hidden * units) as f64;
    let shape = |m, n, k| Some((MatmulShape { batch: 1, m, n, k }, 1));

    let forward = of(Pass::Forward);
    assert_eq!(forward.flops, recurrent + projection);
    assert_eq!((forward.matmul, forward.turns), (shape(batch, 4 * hidden, units), seq - 1));
    let input = of(Pass::Input);
    assert_eq!(input.flops, recurrent + projection);
    assert_eq!((input.matmul, input.turns), (shape(batch, units, 4 * hidden), seq - 1));
    // The gradient of what the projection gave is computed again.
    let weight = of(Pass::Weight);
    assert_eq!(weight.flops, 2.0 * recurrent + projection);
    assert_eq!((weight.matmul, weight.turns), (shape(units, 4 * hidden, seq - 1), batch));

    // Gates twice, cells and outputs, the result; weights at 4 positions and the projection at 5.
    let positions = batch * seq;
    let activations = positions * (2 * 4 * hidden + 2 * hidden + units);
    let weights = 4 * units * 4 * hidden + 5 * hidden * units;
    assert_eq!(forward.bytes, (4 * (activations + weights)) as f64);
}

#[test]
fn one_position_alone_needs_no_product_with_recurrent_weights() {
    let graph = graph("lstm:layers=1,hidden=6,embed=4,seq=1,vocab=7");
    let lstm = op_of(&graph, is_lstm);
    for pass in [Pass::Forward, Pass::Input, Pass::Weight] {
        let work = work(&graph, lstm, pass, &Extents::global(&graph, 3), 4).unwrap();
        assert_eq!((work.flops, work.matmul, work.turns), (0.0, None, 1));
    }
}

#[test]
fn an_interaction_multiplies_each_pair_once() {
    let graph = graph("dlrm:dense=3,rows=4x9,embed=8,bottom=,top=");
    let dots = op_of(&graph, |kind| matches!(kind, OpKind::DotInteraction { .. }));
    let of = |pass| work(&graph, dots, pass, &Extents::global(&graph, 3), 4).unwrap();
    // 5 features have 10 pairs.
    assert_eq!((of(Pass::Forward).flops, of(Pass::Forward).elements), (2.0 * 240.0, 240));
    assert_eq!(of(Pass::Input).flops, 4.0 * 240.0);
    assert_eq!(of(Pass::Forward).bytes, (4 * 3 * (5 * 8 + 10)) as f64);
}

/// A network of a recurrence over gates that come from features, with what `more` adds.
fn recurrence(
    sizes: [usize; 3],
    forget_bias: f32,
    more: impl FnOnce(&mut GraphBuilder, ValueId, ValueId, [DimId; 3]) -> Result<ValueId, GraphError>,
) -> Result<Graph, GraphError> {
    let [gates, hidden, units] = sizes;
    let mut net = GraphBuilder::new("recurrence");
    let (seq, width) = (net.dim("seq", 3)?, net.dim("in", 2)?);
    let (gate, hidden) = (net.dim("gate", gates)?, net.dim("hidden", hidden)?);
    let units = net.dim("units", units)?;
    let x = net.features("x", &[seq, width])?;
    let targets = net.targets("targets", &[seq])?;
    let normal = Init::Normal { std: 0.1 };
    let w = net.parameter("input", &[width, gate, hidden], 1, normal)?;
    let r = net.parameter("recurrent", &[units, gate, hidden], 1, normal)?;
    let product = net.contract("gates", x, w, None)?;
    let y = net.lstm("lstm", product, r, None, forget_bias)?;
    let y = more(&mut net, product, y, [units, gate, hidden])?;
    let loss = net.cross_entropy("loss", y, targets)?;
    net.finish(loss)
}

#[test]
fn recurrences_that_do_not_fit_are_refused_with_what_would() {
    let plain = |_: &mut GraphBuilder, _, y, _| Ok(y);
    assert!(recurrence([4, 5, 5], 0.0, plain).is_ok());
    for (sizes, forget_bias, part) in [
        ([3, 5, 5], 0.0, "there are 4 of them"),
        ([4, 5, 6], 0.0, "as many units as hidden"),
        ([4, 5, 5], f32::NAN, "a finite number"),
    ] {
        let message = recurrence(sizes, forget_bias, plain).unwrap_err().to_string();
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

#[test]
fn nothing_else_may_read_the_gates_of_a_recurrence() {
    let twice = |net: &mut GraphBuilder, gates, y, weights: [DimId; 3]| {
        let other = net.pointwise("other", gates, Activation::Relu)?;
        let r = net.parameter("second", &weights, 1, Init::Constant(0.1))?;
        let second = net.lstm("second lstm", other, r, None, 0.0)?;
        net.add("both", y, second)
    };
    let message = recurrence([4, 5, 5], 0.0, twice).unwrap_err().to_string();
    assert!(message.contains("nothing else may read it"), "{message}");
}

#[test]
fn families_refuse_sizes_that_cannot_be() {
    let lstm = "lstm:layers=1,hidden=6,embed=5,seq=5,vocab=7";
    refused(&format!("{lstm},tied=true"), &["tied", "width of 5", "results of 6"]);
    refused(&format!("{lstm},dropout=1"), &["dropout"]);
    refused(&format!("{lstm},projection=0"), &["projection", "1 to"]);
    refused("lstm:layers=1,hidden=6,seq=5,vocab=7", &["missing key", "embed"]);
    let dlrm = "dlrm:dense=3,embed=4,bottom=8,top=8";
    refused(dlrm, &["missing key", "rows"]);
    refused(&format!("{dlrm},rows="), &["rows", "1 to 10000 tables"]);
    for wrong in ["5-x", "0x5", "x5", "5-", "-5", "200000x3", "5 6"] {
        refused(&format!("{dlrm},rows={wrong}"), &["rows", "26x1000"]);
    }
    refused(&format!("{dlrm},rows=5-0"), &["rows", "1 to"]);
}

#[test]
fn lists_of_sizes_keep_their_order_and_repeat_equal_ones() {
    let text = "dlrm:dense=13,rows=3x1000-20-2x7,embed=16,bottom=512-256-64,top=";
    let spec = ModelSpec::parse(text).unwrap();
    assert_eq!(spec.to_string(), text);
    assert_eq!(
        ModelSpec::parse(
            "dlrm:dense=13,rows=1000-1000-1000-20-7-7,embed=16,bottom=512-256-64,top="
        )
        .unwrap(),
        spec
    );
    assert_eq!(ModelSpec::from_toml(&spec.to_toml(), "model.toml").unwrap(), spec);
    let rows = spec.graph().unwrap();
    let sizes: Vec<usize> =
        (0..6).map(|at| rows.dim(rows.dim_named(&format!("rows.{at}")).unwrap()).size).collect();
    assert_eq!(sizes, [1000, 1000, 1000, 20, 7, 7]);
}

/// Behind the categories of each table are rows up to a multiple, which change nothing of what weights begin with.
#[test]
fn tables_of_categories_may_have_rows_of_padding() {
    let text = "dlrm:dense=13,rows=1000-24-7,row_multiple=8,embed=16,bottom=16,top=8";
    let padded = ModelSpec::parse(text).unwrap();
    assert_eq!(padded.to_string(), text);
    let plain = ModelSpec::parse(&text.replace(",row_multiple=8", "")).unwrap();
    assert_eq!(padded, plain.with_padding(Some(8)).unwrap());
    assert_eq!(plain, padded.with_padding(None).unwrap());
    let (padded_graph, plain_graph) = (padded.graph().unwrap(), plain.graph().unwrap());
    for (table, categories, rows) in [(0, 1000, 1000), (1, 24, 24), (2, 7, 8)] {
        assert_eq!(padded.categories(table), Some(categories));
        let name = format!("table.{table}");
        let of = |graph: &Graph| {
            let (_, value) = graph.parameters().find(|(_, it)| it.name == name).unwrap();
            (graph.dim(value.axes[0]).size, value.parameter().unwrap().init)
        };
        let ((has, init), (had, before)) = (of(&padded_graph), of(&plain_graph));
        assert_eq!((has, had, init), (rows, categories, before));
    }
    assert_eq!(padded.categories(3), None);
    for multiple in [0, 1 << 41] {
        let refused = plain.with_padding(Some(multiple)).unwrap_err().to_string();
        assert!(refused.contains(&format!("row_multiple = {multiple}")), "{refused}");
    }
}

/// The sizes of MLPerf's model: 27 features of 128 have 351 pairs, which come beside the 128 of the dense ones.
#[test]
fn the_top_perceptron_reads_the_dense_features_and_all_pairs() {
    let graph = ModelSpec::preset("dlrm-criteo-terabyte").and_then(|spec| spec.graph()).unwrap();
    let size = |name: &str| graph.dim(graph.dim_named(name).unwrap()).size;
    assert_eq!((size("pairs"), size("interactions")), (351, 479));
    assert_eq!(graph.inputs().count(), 1 + 26 + 1);
    assert_eq!(graph.targets_per_sample(), 1);
}

/// A row is multiplied with the weights of drawn classes and of its target, which are read of a table like rows of an
/// embedding.
#[test]
fn a_loss_over_drawn_classes_costs_as_much_as_it_draws() {
    let text = |vocab: usize| {
        format!("lstm:layers=1,hidden=6,embed=6,seq=5,vocab={vocab},sampled_softmax=9")
    };
    let of = |vocab: usize, pass| {
        let graph = ModelSpec::parse(&text(vocab)).unwrap().graph().unwrap();
        let op = op_of(&graph, |kind| matches!(kind, OpKind::SampledCrossEntropy { .. }));
        work(&graph, op, pass, &Extents::global(&graph, 4), 4).unwrap()
    };
    for pass in [Pass::Forward, Pass::Input, Pass::Weight] {
        let found = of(100, pass);
        assert_eq!(found.flops, 2.0 * 20.0 * 10.0 * 6.0, "{pass:?}");
        assert_eq!(found, of(1_000_000, pass), "{pass:?}");
    }
    // Rows, their targets, what is read of weights and biases, the loss and the probabilities.
    let read = 20 + 9;
    let bytes = 4 * (20 * 6 + 20 + read * 6 + read + 1 + 20 + 20 * 9);
    assert_eq!(of(100, Pass::Forward).bytes, bytes as f64);
    let refused = ModelSpec::parse(&text(17)).unwrap_err().to_string();
    assert!(refused.contains("at most half of the 17 classes"), "{refused}");
}

#[test]
fn a_table_of_a_loss_over_drawn_classes_is_of_the_head() {
    let text = "lstm:layers=1,hidden=6,embed=6,seq=5,vocab=40,sampled_softmax=9";
    let graph = ModelSpec::parse(text).unwrap().graph().unwrap();
    let names = |values: Vec<ValueId>| -> Vec<String> {
        values.into_iter().map(|it| graph.value(it).name.clone()).collect()
    };
    assert_eq!(names(graph.tables().collect()), ["embedding.token", "head.weight"]);
    let trunk = names(graph.trunk_parameters());
    assert!(trunk.contains(&"embedding.token".to_owned()), "{trunk:?}");
    assert!(!trunk.iter().any(|name| name.starts_with("head")), "{trunk:?}");
}

#[test]
fn networks_written_as_data_have_the_operators_too() {
    let text = r#"
        [model]
        name = "own"
        [dims]
        seq = 3
        gate = 4
        hidden = 6
        units = 2
        vocab = 9
        [[input]]
        name = "tokens"
        kind = "index"
        axes = ["seq"]
        [[input]]
        name = "targets"
        kind = "index"
        axes = ["seq"]
        [[block]]
        name = "all"
        [[block.op]]
        name = "embedding"
        kind = "embed"
        inputs = ["tokens"]
        table = { axes = ["vocab", "units"], init = { normal = 0.1 } }
        [[block.op]]
        name = "gates"
        kind = "contract"
        inputs = ["embedding"]
        weight = { axes = ["units", "gate", "hidden"], init = { normal = 0.1 } }
        [[block.op]]
        name = "recurrence"
        kind = "lstm"
        inputs = ["gates"]
        weight = { axes = ["units", "gate", "hidden"], init = { normal = 0.1 } }
        projection = { axes = ["hidden", "units"], init = { normal = 0.1 } }
        forget-bias = 1.5
        [[block.op]]
        name = "logits"
        kind = "contract"
        inputs = ["recurrence"]
        weight = { same = "all.embedding.table" }
        [[block.op]]
        name = "loss"
        kind = "cross-entropy"
        inputs = ["logits", "targets"]
    "#;
    let own = ModelSpec::from_toml(text, "own.toml").unwrap();
    assert_eq!(ModelSpec::parse(&own.to_string()).unwrap(), own);
    let own = own.graph().unwrap();
    assert_eq!(own.op(op_of(&own, is_lstm)).kind, OpKind::Lstm { forget_bias: 1.5 });

    let (trunk, _) = text.split_once("name = \"logits\"").unwrap();
    let head = r#"
        name = "loss"
        kind = "sampled-cross-entropy"
        inputs = ["recurrence", "targets"]
        weight = { same = "all.embedding.table" }
        bias = { axes = ["vocab"], init = { constant = 0.0 } }
        samples = "drawn"
    "#;
    let drawing = format!("{trunk}{head}").replace("vocab =", "drawn = 2\n        vocab =");
    let own = ModelSpec::from_toml(&drawing, "own.toml").unwrap();
    assert_eq!(ModelSpec::parse(&own.to_string()).unwrap(), own);
    let own = own.graph().unwrap();
    let classes = own.dim(own.dim_named("vocab").unwrap()).size;
    let is_drawing = |kind: &OpKind| matches!(kind, OpKind::SampledCrossEntropy { .. });
    let drawn = OpKind::SampledCrossEntropy { classes, samples: 2 };
    assert_eq!(own.op(op_of(&own, is_drawing)).kind, drawn);

    let text = r#"
        [model]
        name = "own"
        [dims]
        dense = 3
        model = 4
        rows = 9
        pairs = 3
        click = 1
        [[input]]
        name = "features"
        kind = "real"
        axes = ["dense"]
        [[input]]
        name = "category.0"
        kind = "index"
        axes = []
        [[input]]
        name = "targets"
        kind = "index"
        axes = ["click"]
        [[block]]
        name = "all"
        [[block.op]]
        name = "bottom"
        kind = "contract"
        inputs = ["features"]
        weight = { axes = ["dense", "model"], init = { normal = 0.1 } }
        [[block.op]]
        name = "embedding"
        kind = "embed"
        inputs = ["category.0"]
        table = { axes = ["rows", "model"], init = { normal = 0.1 } }
        [[block.op]]
        name = "dots"
        kind = "dot-interaction"
        inputs = ["bottom", "embedding"]
        pairs = "pairs"
        diagonal = true
        [[block.op]]
        name = "logit"
        kind = "contract"
        inputs = ["dots"]
        weight = { axes = ["pairs", "click"], init = { normal = 0.1 } }
        [[block.op]]
        name = "loss"
        kind = "sigmoid-cross-entropy"
        inputs = ["logit", "targets"]
    "#;
    let own = ModelSpec::from_toml(text, "own.toml").unwrap();
    assert_eq!(ModelSpec::parse(&own.to_string()).unwrap(), own);
    let wrong = text.replace("pairs = 3", "pairs = 4");
    let message = ModelSpec::from_toml(&wrong, "own.toml").unwrap_err().to_string();
    assert!(message.contains("2 parts have 3 pairs"), "{message}");
    let wrong = text.replace("        pairs = \"pairs\"\n", "");
    let message = ModelSpec::from_toml(&wrong, "own.toml").unwrap_err().to_string();
    assert!(message.contains("the kind dot-interaction needs it"), "{message}");
}

/// How parameters of a name begin.
fn init(graph: &Graph, name: &str) -> Init {
    let mut named = graph.parameters().filter(|(_, value)| value.name == name);
    named.next().and_then(|(_, value)| value.parameter()).unwrap().init
}

#[test]
fn a_dlrm_begins_with_the_weights_of_its_authors_code() {
    let graph = graph("dlrm:dense=13,rows=1000-27,embed=8,bottom=32,top=20");
    let deviation = |name: &str| match init(&graph, name) {
        Init::Normal { std } => f64::from(std),
        other => panic!("{name} begins with {other:?}"),
    };
    // Numbers evenly between -a and a have the deviation a / sqrt(3); tables have a = sqrt(1 / rows)
    // (`create_emb` of `dlrm_s_pytorch.py`). Of layers weights have the variance 2 / (inputs + outputs) and biases
    // 1 / outputs (`create_mlp`).
    let evenly = |a: f64| a / 3f64.sqrt();
    let features = 3.0;
    let joined = 8.0 + features * (features - 1.0) / 2.0;
    for (name, expected) in [
        ("table.0", evenly((1.0f64 / 1000.0).sqrt())),
        ("table.1", evenly((1.0f64 / 27.0).sqrt())),
        ("bottom.0.weight", (2.0f64 / (13.0 + 32.0)).sqrt()),
        ("bottom.0.bias", (1.0f64 / 32.0).sqrt()),
        ("bottom.1.weight", (2.0f64 / (32.0 + 8.0)).sqrt()),
        ("bottom.1.bias", (1.0f64 / 8.0).sqrt()),
        ("top.0.weight", (2.0f64 / (joined + 20.0)).sqrt()),
        ("top.0.bias", (1.0f64 / 20.0).sqrt()),
        ("head.weight", (2.0f64 / (20.0 + 1.0)).sqrt()),
        ("head.bias", 1.0),
    ] {
        let found = deviation(name);
        assert!((found / expected - 1.0).abs() < 1e-6, "{name}: {found}, not {expected}");
    }
}

#[test]
fn an_lstm_begins_with_one_deviation_of_all_weights_and_biases_of_zero() {
    for (text, expected) in [("", 0.06), (",init_std=0.25", 0.25)] {
        let graph =
            graph(&format!("lstm:layers=2,hidden=6,embed=4,seq=5,vocab=7,projection=3{text}"));
        for (_, value) in graph.parameters() {
            let expected = match value.name.ends_with("bias") {
                true => Init::Constant(0.0),
                false => Init::Normal { std: expected },
            };
            assert_eq!(init(&graph, &value.name), expected, "{}", value.name);
        }
    }
}

#[test]
fn a_loss_over_any_number_of_drawn_classes_has_one_over_all() {
    for samples in 1..=8 {
        let line =
            format!("lstm:layers=1,hidden=4,embed=4,vocab=16,seq=4,sampled_softmax={samples}");
        let drawing = graph(&line);
        let full = drawing.with_full_softmax().unwrap();
        let has = |name: &str| full.ops().any(|(_, op)| op.kind.name() == name);
        assert!(has("cross-entropy") && !has("sampled-cross-entropy"), "{samples}");
        let names = |graph: &Graph| -> Vec<String> {
            graph.parameters().map(|(_, value)| value.name.clone()).collect()
        };
        assert_eq!(names(&full), names(&drawing));
    }
}
