//! The axes that meshes have, and what layouts split over them.

use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, DeviceList, Mesh, Plan, Uniform};

use crate::scenario::{DEVICES, complaint, graph, plan, rules};

#[test]
fn axes_are_named_once_and_have_the_order_of_the_plan() {
    let axis = |name| Axis::named(name).expect("a name");
    assert_eq!(
        complaint(|it| it.axes = vec![Axis::TP, Axis::DP, Axis::TP]),
        "axes = tp: each axis is named once"
    );
    assert_eq!(
        complaint(|it| it.layout = rules("batch:dp, heads:tp, ffn:rows")),
        "layout = ffn:rows: the plan's mesh axes are replica, dp, ep, cp, tp; others are named in `axes`"
    );
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[1].mesh = Mesh::of(2, 1, 1).with(axis("rows"), 2)),
        "pipeline[0].stage[1].mesh.rows = 2: the plan's mesh axes are replica, dp, ep, cp, tp; others are named \
         in `axes`"
    );
    assert_eq!(
        complaint(|it| it.axes = vec![Axis::TP, Axis::DP, Axis::CP]),
        "pipeline[0].stage[0].mesh = dp 2 x tp 2: its axes are in the order of the plan's `axes`"
    );
    let mut plan = plan();
    plan.axes = vec![Axis::TP, axis("rows")];
    plan.layout = rules("batch:rows, heads:tp, ffn:tp, vocab:tp");
    for stage in &mut plan.pipeline[0].stage {
        stage.mesh = Mesh::SINGLE.with(Axis::TP, 2).with(axis("rows"), 2);
    }
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    // In the text meshes have their axes in any order.
    assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml"), Ok(plan));
}

#[test]
fn meshes_split_what_divides() {
    assert_eq!(
        complaint(|it| it.pipeline[0].stage[0].mesh = Mesh::of(2, 0, 2)),
        "pipeline[0].stage[0].mesh.cp = 0: at least 1"
    );
    let three = |it: &mut Plan| {
        it.pipeline[0].stage[0].mesh = Mesh::of(1, 1, 3);
        it.pipeline[0].stage[0].devices = DeviceList(vec![0, 1, 2]);
    };
    assert_eq!(complaint(three), "pipeline[0].stage[0].mesh.tp = 3: it must divide heads = 4");
    let both = |it: &mut Plan| {
        it.layout = rules("batch:dp, seq:cp, seq:tp, heads:tp");
        it.pipeline[0].stage[0].mesh = Mesh::of(1, 64, 1);
        it.pipeline[0].stage[0].devices = DeviceList((0..64).collect());
    };
    let mut plan = plan();
    both(&mut plan);
    let error = plan.validate(&graph(), 100).map_err(|error| error.to_string());
    let expected = "pipeline[0].stage[0].mesh.cp = 64: it must divide seq = 32";
    assert_eq!(error, Err(expected.to_owned()));
}

#[test]
fn axes_that_split_one_dimension_together_must_divide_it_together() {
    let graph = graph();
    let mut plan = plan();
    plan.pipeline[0].stage.truncate(1);
    plan.pipeline[0].stage[0].blocks = (0, 4);
    plan.pipeline[0].stage[0].mesh = Mesh::of(1, 16, 4);
    plan.pipeline[0].stage[0].devices = DeviceList((0..64).collect());
    plan.layout = rules("heads:tp, seq:cp, seq:tp");
    let error = plan.validate(&graph, 64).expect_err("16 x 4 does not divide 32").to_string();
    assert_eq!(
        error,
        "pipeline[0].stage[0].mesh.cp = 16: with the axes that split seq too, 64 parts, it must \
         divide seq = 32"
    );
    plan.pipeline[0].stage[0].mesh = Mesh::of(1, 8, 4);
    plan.pipeline[0].stage[0].devices = DeviceList((0..32).collect());
    assert_eq!(plan.validate(&graph, 64), Ok(()));
}

#[test]
fn layouts_name_dimensions_of_the_model_and_use_every_axis() {
    let message = complaint(|it| it.layout = rules("batch:dp, head:tp"));
    assert!(message.starts_with("layout = head: the model's dimensions are batch, "), "{message}");
    assert_eq!(
        complaint(|it| it.layout = rules("batch:dp")),
        "pipeline[0].stage[0].mesh.tp = 2: the layout \"batch:dp\" splits nothing over tp"
    );
}

#[test]
fn stages_split_what_their_own_layouts_say() {
    let own = |text: &str| {
        let layout = Some(rules(text));
        complaint(|it| it.pipeline[0].stage[1].layout = layout)
    };
    assert_eq!(
        own("batch:dp"),
        "pipeline[0].stage[1].mesh.tp = 2: the layout \"batch:dp\" splits nothing over tp"
    );
    assert!(
        own("batch:dp, head:tp")
            .starts_with("pipeline[0].stage[1].layout = head: the model's dimensions are ")
    );
    assert!(
        own("batch:dp, heads:rows")
            .starts_with("pipeline[0].stage[1].layout = heads:rows: the plan's mesh axes are ")
    );
    let mut plan = plan();
    plan.pipeline[0].stage[1].layout = Some(rules("batch:dp, heads:tp"));
    assert_eq!(plan.validate(&graph(), DEVICES), Ok(()));
    assert_eq!(Plan::from_toml(&plan.to_toml(), "plan.toml"), Ok(plan));
}

#[test]
fn classes_are_split_where_they_divide_and_a_vocabulary_always() {
    let split = |text: &str, tp: u32| {
        let graph = ModelSpec::parse(text).and_then(|it| it.graph()).expect("a model");
        let uniform = Uniform { mesh: Mesh::of(1, 1, tp), ..Uniform::default() };
        let plan = uniform.plan(&graph, text, "local");
        plan.layout.0.iter().any(|it| it.dim == "vocab" && it.axis == Axis::TP)
    };
    let classifier = "mlp:inputs=4,hidden=64,layers=3,classes=6";
    assert_eq!([2, 3, 4].map(|tp| split(classifier, tp)), [true, true, false]);
    // A vocabulary can be padded, which is then asked for.
    let gpt = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=97";
    assert!(split(gpt, 2));
}
