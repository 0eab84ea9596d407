//! Stages of different meshes, and layouts that are refused.

use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_plan::{DeviceList, LayoutRules, Mesh, Optimizer, Pipeline, Plan, Stage, Uniform};
use shardloom_program::{Carried, ClassId, lower};

use super::invariants::check_invariants;
use super::model::{gpt, mesh, single};

/// `uniform` on stages of these numbers of blocks on these meshes.
fn staged(graph: &Graph, uniform: &Uniform, stages: &[(usize, Mesh)]) -> Plan {
    let mut plan = uniform.plan(graph, "model", "local");
    let (mut block, mut device) = (0, 0);
    let stage = stages.iter().map(|&(blocks, mesh)| {
        let size = mesh.size() as u32;
        let devices = DeviceList((device..device + size).collect());
        let stage = Stage::new((block, block + blocks), mesh, devices);
        (block, device) = (block + blocks, device + size);
        stage
    });
    plan.pipeline = vec![Pipeline::of(stage.collect())];
    plan
}

#[test]
fn stages_of_different_meshes_send_each_receiver_its_part_once() {
    let graph = gpt(false);
    let meshes = [mesh(1, 1, 1), mesh(2, 1, 1), mesh(1, 1, 4), mesh(1, 2, 2), mesh(2, 2, 1)];
    for first in meshes {
        for second in meshes {
            for sequence_parallel in [false, true] {
                let uniform = Uniform { sequence_parallel, ..single() };
                let plan = staged(&graph, &uniform, &[(2, first), (3, second)]);
                let program = lower(&graph, &plan, plan.device_count())
                    .unwrap_or_else(|error| panic!("{first} then {second}: {error}"));
                check_invariants(&program);
                let [forward, backward] = &program.routes[..] else {
                    panic!("one value crosses, and its gradient goes back")
                };
                assert!(matches!(forward.carried, Carried::Value(_)));
                assert!(matches!(backward.carried, Carried::Gradient(_)));
                assert_eq!((forward.from, forward.to), (ClassId(0), ClassId(1)));
                assert_eq!((backward.from, backward.to), (ClassId(1), ClassId(0)));
            }
        }
    }
}

#[test]
fn tied_weights_on_stages_of_different_meshes_are_refused_with_both_meshes() {
    let graph = gpt(true);
    let plan = staged(&graph, &single(), &[(2, mesh(1, 1, 2)), (3, mesh(2, 1, 1))]);
    let error = lower(&graph, &plan, 4).expect_err("tied weights need equal meshes").to_string();
    assert_eq!(
        error,
        "parameter embedding.token lives in stages 0 and 1, whose meshes differ (tp 2 against dp 2); \
         give both the same mesh or untie the weights"
    );
}

#[test]
fn a_tied_weight_that_its_two_stages_split_otherwise_is_refused_with_both_layouts() {
    let graph = gpt(true);
    let wide = mesh(1, 1, 2);
    let rules = |text: &str| LayoutRules::try_from(text.to_owned()).expect("valid rules");
    let mut plan = staged(&graph, &single(), &[(2, wide), (3, wide)]);
    plan.layout = rules("heads:tp, ffn:tp, vocab:tp");
    assert!(lower(&graph, &plan, 4).is_ok());
    for (stage, layouts) in [(0, "[R, R] and [S(tp), R]"), (1, "[S(tp), R] and [R, R]")] {
        let mut unlike = plan.clone();
        unlike.pipeline[0].stage[stage].layout = Some(rules("heads:tp, ffn:tp"));
        let error = lower(&graph, &unlike, 4).expect_err("its halves are apart").to_string();
        assert_eq!(
            error,
            format!(
                "parameter embedding.token is used in two layouts, {layouts}; choose layout rules \
                 that split its uses alike"
            )
        );
        // What only one of the stages has may be split otherwise.
        unlike.pipeline[0].stage[stage].layout = Some(rules("heads:tp, vocab:tp"));
        assert!(lower(&graph, &unlike, 4).is_ok());
    }
}

/// A weight that is used once for every position and once for their sum.
fn shared_by_positions_and_their_sum() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("shared");
    let (seq, model) = (net.dim("seq", 4)?, net.dim("model", 8)?);
    let (inner, vocab) = (net.dim("inner", 8)?, net.dim("vocab", 16)?);
    let normal = Init::Normal { std: 0.1 };
    net.block("first");
    let x = net.features("features", &[seq, model])?;
    let targets = net.targets("targets", &[])?;
    let shared = net.parameter("shared", &[model, inner], 1, normal)?;
    let x = net.contract("each", x, shared, None)?;
    let w = net.parameter("merge", &[seq, inner, model], 2, normal)?;
    let x = net.contract("merged", x, w, None)?;
    net.block("second");
    let x = net.contract("again", x, shared, None)?;
    let w = net.parameter("head", &[vocab, inner], 1, normal)?;
    let logits = net.contract("logits", x, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

#[test]
fn a_weight_whose_gradient_is_partial_in_one_use_and_whole_in_another_is_refused() {
    // Added up and then reduced, the whole one would count once per member.
    let graph = shared_by_positions_and_their_sum().expect("a valid model");
    let wide = mesh(1, 2, 1);
    let one = single().plan(&graph, "model", "local");
    assert!(lower(&graph, &one, 1).is_ok());
    for stages in [&[(2, wide)][..], &[(1, wide), (1, wide)]] {
        let plan = staged(&graph, &single(), stages);
        let error = lower(&graph, &plan, 4).expect_err("no single reduction is right");
        assert_eq!(
            error.to_string(),
            "parameter shared has a gradient that is partial over cp in one use and over no axis in \
             another; choose layout rules that split its uses alike"
        );
    }
}

#[test]
fn a_weight_that_is_read_in_two_layouts_is_refused_with_both() {
    let graph = shared_by_positions_and_their_sum().expect("a valid model");
    let uniform = Uniform { mesh: mesh(1, 1, 2), ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    plan.layout = LayoutRules::try_from("seq:tp, inner:tp".to_owned()).expect("valid rules");
    let error = lower(&graph, &plan, 2).expect_err("the weight is whole and split").to_string();
    assert_eq!(
        error,
        "parameter shared is used in two layouts, [R, R] and [R, S(tp)]; choose layout rules that \
         split its uses alike"
    );
}

#[test]
fn adafactor_refuses_weights_that_are_split_inside_their_rows_or_columns() {
    let graph = gpt(false);
    let optimizer = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let uniform = Uniform { mesh: mesh(1, 1, 2), optimizer, ..single() };
    let mut plan = uniform.plan(&graph, "model", "local");
    assert!(lower(&graph, &plan, 2).is_ok(), "heads come first among the columns");
    plan.layout = LayoutRules::try_from("head_dim:tp, ffn:tp".to_owned()).expect("valid rules");
    let error = lower(&graph, &plan, 2).expect_err("head_dim comes second").to_string();
    assert_eq!(
        error,
        "adafactor keeps sums over the rows and columns of block.0.attention.query.weight, and the \
         layout splits it along head_dim, which is not the first axis of either; split it along \
         another dimension or choose another optimizer"
    );
    plan.optimizer = Optimizer::default();
    assert!(lower(&graph, &plan, 2).is_ok());
}
