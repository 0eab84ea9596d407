//! Rows that choose an expert while running: how the operators may be split, what they cost, and what is
//! refused.

use shardloom_graph::gradient::{self, Operand};
use shardloom_graph::op::{Overflow, Visibility};
use shardloom_graph::work::{Pass, work, work_on_rows};
use shardloom_graph::{
    Extents, Graph, GraphBuilder, GraphError, Init, ModelSpec, OpId, OpKind, Representative, Split,
    ValueId,
};

const EXAMPLE: &str = include_str!("../../../../examples/models/routed-experts.toml");

fn example() -> Graph {
    let spec = ModelSpec::from_toml(EXAMPLE, "routed-experts.toml").expect("the example");
    spec.graph().expect("the example")
}

fn op(graph: &Graph, name: &str) -> OpId {
    graph.ops().find(|(_, op)| op.name == name).map(|(id, _)| id).expect("an operator")
}

#[test]
fn only_samples_may_be_split_and_where_experts_compute_experts_too() {
    let graph = example();
    for (kind, splits) in [
        ("route", &["batch"][..]),
        ("dispatch", &["batch"]),
        ("up", &["expert", "batch"]),
        ("relu", &["expert", "batch"]),
        ("down", &["expert", "batch"]),
        ("combine", &["batch"]),
    ] {
        let loops = &graph.op(op(&graph, &format!("layer.0.{kind}"))).signature.loops;
        let split = loops.iter().filter(|it| it.split != Split::Opaque);
        assert!(split.clone().all(|it| it.split == Split::Parallel), "{kind}");
        let dims: Vec<&str> = split.map(|it| graph.dim(it.dim).name.as_str()).collect();
        assert_eq!(dims, splits, "{kind}");
    }
}

#[test]
fn rows_say_which_value_counts_them() {
    let graph = example();
    let counted: Vec<(&str, &str)> = graph
        .values()
        .filter_map(|(_, value)| {
            Some((value.name.as_str(), graph.value(value.counts?).name.as_str()))
        })
        .filter(|(name, _)| name.starts_with("layer.1."))
        .collect();
    let counts = "layer.1.route.counts";
    let names = ["layer.1.dispatch", "layer.1.up", "layer.1.relu", "layer.1.down"];
    assert_eq!(counted, names.map(|name| (name, counts)));
    // The representative model has the same.
    let reduced = Representative::of(&graph);
    for (id, value) in reduced.graph().values() {
        let counts = |graph: &Graph, id: ValueId| {
            graph.value(id).counts.map(|it| graph.value(it).name.clone())
        };
        let original = reduced.original(id);
        assert_eq!(counts(reduced.graph(), id), counts(&graph, original), "{}", value.name);
    }
}

#[test]
fn work_is_that_of_the_rows_there_are_and_at_most_that_of_all_slots() {
    let graph = example();
    let extents = Extents::global(&graph, 2);
    let up = op(&graph, "layer.0.up");
    for pass in [Pass::Forward, Pass::Input, Pass::Weight] {
        // 4 experts with 8 slots for each of 2 samples.
        let most = work(&graph, up, pass, &extents, 4).expect("a product");
        assert_eq!(most.flops, 2.0 * 64.0 * 32.0 * 48.0);
        let real = work_on_rows(&graph, up, pass, &extents, 4, Some(21.0)).expect("a product");
        assert_eq!(real.flops, 2.0 * 21.0 * 32.0 * 48.0);
        let (shape, _) = real.matmul.expect("a product");
        assert_eq!([shape.m, shape.n, shape.k].iter().filter(|&&it| it == 6).count(), 1);
        let weights = 4.0 * 4.0 * 32.0 * 48.0;
        let counts = 4.0 * 4.0 * 2.0;
        assert_eq!(real.bytes, 4.0 * 21.0 * (32.0 + 48.0) + weights + counts, "{pass:?}");
    }
    // Backwards too an activation must know which slots are filled: it reads what it read, the counts and
    // the gradient, and writes a gradient.
    let relu = op(&graph, "layer.0.relu");
    let reads = gradient::rule(&graph, relu).input.expect("a gradient of its rows").reads;
    assert_eq!(reads, [Operand::Input(0), Operand::Input(1), Operand::OutputGradient]);
    let real = work_on_rows(&graph, relu, Pass::Input, &extents, 4, Some(21.0)).expect("a pass");
    assert_eq!(real.bytes, 4.0 * 21.0 * 48.0 * 3.0 + 4.0 * 4.0 * 2.0);
    let dispatch = op(&graph, "layer.0.dispatch");
    let bytes = |rows| {
        let work = work_on_rows(&graph, dispatch, Pass::Forward, &extents, 4, rows);
        work.expect("every operator has a forward pass").bytes
    };
    assert_eq!(bytes(None) - bytes(Some(21.0)), 4.0 * 32.0 * (64.0 - 21.0));
}

/// Two experts for rows of four features, and `build` on the routed rows.
fn built(
    choices: usize,
    build: impl FnOnce(&mut GraphBuilder, ValueId, ValueId) -> Result<ValueId, GraphError>,
) -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("routed");
    let [seq, model] = [net.dim("seq", 3)?, net.dim("model", 4)?];
    let [choices, expert] = [net.dim("choices", choices)?, net.dim("expert", 2)?];
    let [slot, vocab] = [net.dim("slot", 3)?, net.dim("vocab", 5)?];
    let normal = Init::Normal { std: 0.1 };
    let x = net.features("x", &[seq, model])?;
    let targets = net.targets("targets", &[seq])?;
    let w = net.parameter("gate.weight", &[model, choices], 1, normal)?;
    let logits = net.contract("gate", x, w, None)?;
    let routed = net.route("route", logits, expert, slot, Overflow::Stop)?;
    let packed = net.dispatch("dispatch", x, routed)?;
    let y = build(&mut net, packed, routed)?;
    let w = net.parameter("head.weight", &[vocab, model], 1, normal)?;
    let logits = net.contract("head", y, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// Rows that one routing dispatches and another, of the same logits, is to bring back.
fn routed_twice() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("routed");
    let [seq, model, expert] = [net.dim("seq", 3)?, net.dim("model", 4)?, net.dim("expert", 2)?];
    let slot = net.dim("slot", 3)?;
    let x = net.features("x", &[seq, model])?;
    let targets = net.targets("targets", &[seq])?;
    let normal = Init::Normal { std: 0.1 };
    let choices = net.dim("choices", 2)?;
    let w = net.parameter("gate.weight", &[model, choices], 1, normal)?;
    let logits = net.contract("gate", x, w, None)?;
    let [first, second] = [
        net.route("first", logits, expert, slot, Overflow::Stop)?,
        net.route("second", logits, expert, slot, Overflow::Stop)?,
    ];
    let rows = net.dispatch("dispatch", x, first)?;
    let y = net.combine("combine", rows, second)?;
    let vocab = net.dim("vocab", 5)?;
    let w = net.parameter("head.weight", &[vocab, model], 1, normal)?;
    let logits = net.contract("head", y, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let refused = |found: Result<Graph, GraphError>, text: &str| match found {
        Ok(_) => panic!("{text:?} was taken"),
        Err(error) => assert!(error.to_string().contains(text), "{error}"),
    };
    assert!(built(2, |net, rows, routed| net.combine("y", rows, routed)).is_ok());
    refused(
        built(3, |net, rows, routed| net.combine("y", rows, routed)),
        "route experts = 2 is not possible: the logits are of 3",
    );
    refused(
        built(2, |net, rows, routed| {
            let y = net.combine("y", rows, routed)?;
            net.dispatch("again", y, y)
        }),
        "the result of a routing is needed",
    );
    refused(
        built(2, |net, rows, routed| {
            let sum = net.add("sum", rows, rows)?;
            net.combine("y", sum, routed)
        }),
        "how many rows it has is known only while running",
    );
    refused(
        built(2, |net, rows, routed| {
            net.block("later");
            net.combine("y", rows, routed)
        }),
        "is read in the block that makes it",
    );
    refused(routed_twice(), "its rows were dispatched by another routing");
    let text = EXAMPLE.replace("overflow = \"drop\"\n", "");
    let own = ModelSpec::from_toml(&text, "routed-experts.toml").and_then(|spec| spec.graph());
    refused(own, "the kind route needs it");
    let graph = example();
    let route = graph.op(op(&graph, "layer.0.route"));
    assert_eq!(route.kind, OpKind::Route { slots: 8, overflow: Overflow::Drop });
}

#[test]
fn gradients_read_all_that_says_where_rows_went() {
    let graph = example();
    let rule = |name: &str| gradient::rule(&graph, op(&graph, name));
    let combine = rule("layer.0.combine").input.expect("rows have gradients");
    let mut reads: Vec<Operand> = (0..5).map(Operand::Input).collect();
    reads.push(Operand::OutputGradient);
    assert_eq!((combine.reads, combine.produces), (reads, vec![0, 4]));
    let dispatch = rule("layer.0.dispatch").input.expect("rows have gradients");
    let reads = [1, 2, 3].map(Operand::Input).into_iter().chain([Operand::OutputGradient]);
    assert_eq!((dispatch.reads, dispatch.produces), (reads.collect(), vec![0]));
    let up = rule("layer.0.up");
    assert_eq!(up.weight.expect("experts have weights").produces, [2]);
    // One product for each expert.
    let extents = Extents::global(&graph, 2);
    let work = work(&graph, op(&graph, "layer.0.up"), Pass::Forward, &extents, 4);
    assert_eq!(work.and_then(|it| it.matmul).map(|(_, count)| count), Some(1));
}

#[test]
fn an_evaluation_drops_nothing() {
    let (probability, visibility) = (0.5, Visibility::Window { positions: 3 });
    let (scale, soft_cap) = (0.25, Some(2.0));
    let fused = |probability| OpKind::FusedAttention { visibility, scale, soft_cap, probability };
    for (kind, without) in [
        (fused(probability), fused(0.0)),
        (OpKind::Dropout { probability }, OpKind::Dropout { probability: 0.0 }),
        (OpKind::BiasDropoutAdd { probability }, OpKind::BiasDropoutAdd { probability: 0.0 }),
        (
            OpKind::AttentionContext { visibility, probability },
            OpKind::AttentionContext { visibility, probability: 0.0 },
        ),
        (OpKind::Add, OpKind::Add),
    ] {
        assert_eq!(kind.in_evaluation(), without);
    }
}
