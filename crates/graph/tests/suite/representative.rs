//! What a representative model has of the whole graph.

use proptest::prelude::*;
use shardloom_graph::{Graph, GraphBuilder, Init, ModelSpec, OpKind, Representative, ValueId};

fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

fn block_names(graph: &Graph) -> Vec<&str> {
    graph.blocks().iter().map(|block| block.name.as_str()).collect()
}

/// Every operator of every block has the kind, the operand shapes and as many readers as that of its
/// stand-in.
fn assert_stands_in(graph: &Graph, representative: &Representative) {
    for (index, block) in graph.blocks().iter().enumerate() {
        let other = &representative.graph().blocks()[representative.stand_in(index)];
        assert_eq!(block.ops.len(), other.ops.len());
        for (&op, &stand_in) in block.ops.iter().zip(&other.ops) {
            let (op, stand_in) = (graph.op(op), representative.graph().op(stand_in));
            assert_eq!((op.kind, &op.signature), (stand_in.kind, &stand_in.signature));
            let axes = |graph: &Graph, values: &[ValueId]| -> Vec<_> {
                values.iter().map(|&it| graph.value(it).axes.clone()).collect()
            };
            assert_eq!(axes(graph, &op.inputs), axes(representative.graph(), &stand_in.inputs));
            assert_eq!(axes(graph, &op.outputs), axes(representative.graph(), &stand_in.outputs));
            let readers = |graph: &Graph, values: &[ValueId]| -> Vec<usize> {
                values.iter().map(|&it| graph.value(it).consumers.len()).collect()
            };
            assert_eq!(
                readers(graph, &op.outputs),
                readers(representative.graph(), &stand_in.outputs)
            );
        }
    }
}

/// It could have been built: operators come after what they read, who produces and reads what is known
/// on both sides, and nothing but the loss and statistics goes unread.
fn assert_well_formed(graph: &Graph) {
    for (id, op) in graph.ops() {
        assert!(graph.blocks()[op.block.index()].ops.contains(&id));
        for &input in &op.inputs {
            let value = graph.value(input);
            assert!(value.consumers.contains(&id));
            assert!(value.producer.is_none_or(|producer| producer < id));
        }
        assert!(op.outputs.iter().all(|&output| graph.value(output).producer == Some(id)));
    }
    for (id, value) in graph.values() {
        let auxiliary = !value.differentiable();
        assert!(id == graph.loss() || auxiliary || !value.consumers.is_empty(), "{}", value.name);
        assert!(value.consumers.iter().all(|&reader| graph.op(reader).inputs.contains(&id)));
    }
    let loss = graph.value(graph.loss()).producer.map(|op| graph.op(op).kind);
    assert_eq!(loss, Some(OpKind::CrossEntropy { classes: None }));
}

#[test]
fn a_transformer_is_its_ends_and_one_layer_for_all_in_between() {
    let graph = model("llama:layers=40,hidden=8,heads=2,ffn=12,seq=4,vocab=16");
    let representative = Representative::of(&graph);
    let names = ["embedding", "block.0", "block.1", "block.39", "head"];
    assert_eq!(block_names(representative.graph()), names);
    let expected: Vec<usize> = [vec![0, 1], vec![2; 38], vec![3, 4]].concat();
    assert_eq!(representative.stand_ins(), expected);
}

/// Layers of a perceptron are alike in turn, as one splits its outputs where the next splits its inputs.
#[test]
fn a_perceptron_is_its_ends_and_two_layers_for_all_in_between() {
    let graph = model("mlp:inputs=3,hidden=8,layers=40,classes=5");
    let representative = Representative::of(&graph);
    let names = ["block.0", "block.1", "block.2", "block.39", "head"];
    assert_eq!(block_names(representative.graph()), names);
    let between = (1..39).map(|layer| if layer % 2 == 1 { 1 } else { 2 });
    let expected: Vec<usize> = [0].into_iter().chain(between).chain([3, 4]).collect();
    assert_eq!(representative.stand_ins(), expected);
}

#[test]
fn what_a_value_was_has_its_name() {
    let graph = model("gpt:layers=5,hidden=8,heads=2,seq=4,vocab=16,tied=true");
    let representative = Representative::of(&graph);
    for (id, value) in representative.graph().values() {
        assert_eq!(graph.value(representative.original(id)).name, value.name);
    }
}

#[test]
fn models_with_nothing_alike_stay_whole() {
    for text in
        ["gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16", "mlp:inputs=3,hidden=5,layers=1,classes=2"]
    {
        let graph = model(text);
        assert_eq!(block_names(Representative::of(&graph).graph()), block_names(&graph));
    }
}

/// Blocks that add to a stream of `width` features, each a product chosen by a letter, some of which
/// also read what the block `skip` before them made.
fn stream(letters: &[u8], skip: usize) -> Graph {
    let mut net = GraphBuilder::new("stream");
    let width = net.dim("width", 4).expect("a dimension");
    let inner = [net.dim("a", 3), net.dim("b", 5)].map(|dim| dim.expect("a dimension"));
    let classes = net.dim("classes", 2).expect("a dimension");
    net.block("first");
    let mut x = net.features("x", &[width]).expect("features");
    let targets = net.targets("y", &[]).expect("targets");
    let mut made = vec![];
    let weight = |net: &mut GraphBuilder, name: String, axes: [_; 2]| {
        net.parameter(&name, &axes, 1, Init::Normal { std: 0.1 }).expect("a parameter")
    };
    for (index, &letter) in letters.iter().enumerate() {
        net.block(&format!("block.{index}"));
        let dim = inner[usize::from(letter % 2)];
        let down = weight(&mut net, format!("down.{index}"), [width, dim]);
        let up = weight(&mut net, format!("up.{index}"), [dim, width]);
        let hidden = net.contract(&format!("hidden.{index}"), x, down, None).expect("a product");
        let y = net.contract(&format!("out.{index}"), hidden, up, None).expect("a product");
        let long = made.len().checked_sub(skip).filter(|_| letter >= 2).map(|from| made[from]);
        let before = long.unwrap_or(x);
        x = net.add(&format!("sum.{index}"), before, y).expect("a sum");
        made.push(x);
    }
    net.block("head");
    let table = weight(&mut net, "head".into(), [width, classes]);
    let logits = net.contract("logits", x, table, None).expect("logits");
    let loss = net.cross_entropy("loss", logits, targets).expect("a loss");
    net.finish(loss).expect("a graph")
}

proptest! {
    #[test]
    fn any_mixture_of_blocks_has_a_well_formed_representative(
        letters in prop::collection::vec(0u8..3, 1..12),
        skip in 1usize..4,
    ) {
        let graph = stream(&letters, skip);
        let representative = Representative::of(&graph);
        assert_well_formed(representative.graph());
        assert_stands_in(&graph, &representative);
        prop_assert!(representative.graph().blocks().len() <= graph.blocks().len());
        // What stands for a block stands for itself in a representative model of that model.
        let again = Representative::of(representative.graph());
        assert_stands_in(representative.graph(), &again);
    }
}

#[test]
fn alternating_blocks_are_one_of_each_kind_and_the_ends() {
    let graph = stream(&[0, 1, 0, 1, 0, 1, 0, 1, 0], 1);
    let names = block_names(Representative::of(&graph).graph()).join(" ");
    assert_eq!(names, "first block.0 block.1 block.2 block.7 block.8 head");
}

/// Layers that add to a stream a product with the first layer's weight or with their own.
#[test]
fn layers_that_share_a_weight_are_of_another_kind_than_those_with_their_own() {
    let mut net = GraphBuilder::new("shared");
    let width = net.dim("width", 4).expect("a dimension");
    let inner = net.dim("inner", 3).expect("a dimension");
    net.block("first");
    let mut x = net.features("x", &[width]).expect("features");
    let targets = net.targets("y", &[]).expect("targets");
    let parameter = |net: &mut GraphBuilder, name: String, axes: [_; 2]| {
        net.parameter(&name, &axes, 1, Init::Normal { std: 0.1 }).expect("a parameter")
    };
    let shared = parameter(&mut net, "shared".into(), [width, inner]);
    for layer in 0..8 {
        net.block(&format!("layer.{layer}"));
        let down = match layer {
            2 | 3 => shared,
            _ => parameter(&mut net, format!("down.{layer}"), [width, inner]),
        };
        let up = parameter(&mut net, format!("up.{layer}"), [inner, width]);
        let hidden = net.contract(&format!("hidden.{layer}"), x, down, None).expect("a product");
        let y = net.contract(&format!("out.{layer}"), hidden, up, None).expect("a product");
        x = net.add(&format!("sum.{layer}"), x, y).expect("a sum");
    }
    net.block("head");
    let table = parameter(&mut net, "head".into(), [width, inner]);
    let logits = net.contract("logits", x, table, None).expect("logits");
    let loss = net.cross_entropy("loss", logits, targets).expect("a loss");
    let graph = net.finish(loss).expect("a graph");
    let representative = Representative::of(&graph);
    let stand_in = |layer: usize| representative.stand_in(layer + 1);
    assert_eq!(stand_in(2), stand_in(3));
    assert_eq!(stand_in(4), stand_in(5));
    assert_ne!(stand_in(3), stand_in(4));
}

/// Also of an operator that reads a value twice.
#[test]
fn values_of_a_representative_model_know_each_of_their_readers_once() {
    let text = r#"
        [model]
        name = "twice"
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
        name = "layer.{i}"
        repeat = 5
        input = "features"
        [[block.op]]
        name = "a"
        kind = "relu"
        inputs = ["input"]
        [[block.op]]
        name = "sum"
        kind = "add"
        inputs = ["a", "a"]
        [[block]]
        name = "end"
        [[block.op]]
        name = "logits"
        kind = "contract"
        inputs = ["input"]
        weight = { axes = ["model", "vocab"], init = { normal = 0.1 } }
        [[block.op]]
        name = "loss"
        kind = "cross-entropy"
        inputs = ["logits", "targets"]
    "#;
    let graph = ModelSpec::from_toml(text, "twice.toml").and_then(|spec| spec.graph());
    let representative = Representative::of(&graph.expect("a model"));
    let smaller = representative.graph();
    assert!(smaller.blocks().len() < 6);
    for (id, value) in smaller.values() {
        let readers: Vec<_> =
            smaller.ops().filter(|(_, op)| op.inputs.contains(&id)).map(|it| it.0).collect();
        assert_eq!(value.consumers, readers, "{}", value.name);
    }
}
