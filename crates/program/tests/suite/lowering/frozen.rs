//! Frozen parameters: what ranks hold of them, and what no gradient needs.

use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, Value};
use shardloom_plan::{
    Number, ParameterGroup, Plan, Precision, Recompute, ScheduleKind, Sync, Uniform,
};
use shardloom_program::verify::verify;
use shardloom_program::{
    Action, BodyKind, Bucket, Carried, Class, Collective, Content, Copies, Extent, Format, Keep,
    Program, Shape, TensorId, lower,
};
use std::collections::BTreeSet;

use super::model::{body, gpt, llama, mesh, single};

fn parameters(graph: &Graph) -> Vec<&Value> {
    graph.values().map(|(_, node)| node).filter(|node| node.parameter().is_some()).collect()
}

fn freezing(graph: &Graph, uniform: &Uniform, frozen: &[&str]) -> Plan {
    let group = ParameterGroup { frozen: true, ..ParameterGroup::of_all(frozen) };
    Plan { parameters: vec![group], ..uniform.plan(graph, "model", "local") }
}

fn lowered(graph: &Graph, plan: &Plan) -> Program {
    let program = lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&program), Ok(()), "{}", plan.to_toml());
    program
}

/// All parameters but the head's.
fn trunk(graph: &Graph) -> Vec<&str> {
    let names = parameters(graph).into_iter().map(|node| node.name.as_str());
    names.filter(|name| !name.starts_with("head.")).collect()
}

fn kernels<'a>(class: &'a Class, kind: BodyKind) -> impl Iterator<Item = (u32, Pass)> + 'a {
    body(class, kind).iter().filter_map(|it| match it.action {
        Action::Kernel { op, pass, .. } => Some((op.index() as u32, pass)),
        _ => None,
    })
}

fn contents(class: &Class, bucket: &Bucket) -> Vec<Content> {
    let id = class.buckets().find(|(_, it)| *it == bucket).expect("one of its own").0;
    let of_bucket = class.tensors.iter().filter(|tensor| tensor.bucket == Some(id));
    of_bucket.map(|tensor| tensor.content).collect()
}

#[test]
fn a_frozen_trunk_goes_forward_only_and_the_head_has_a_weight_gradient_only() {
    let graph = gpt(false);
    let uniform = Uniform { pp: 2, microbatches: 2, ..single() };
    for recompute in Recompute::ALL {
        let uniform = Uniform { recompute, ..uniform };
        let program = lowered(&graph, &freezing(&graph, &uniform, &trunk(&graph)));
        let [first, last] = &program.classes[..] else { panic!("two stages") };
        assert!(body(first, BodyKind::Backward).is_empty(), "{recompute:?}");
        // Nothing is kept for a backward pass.
        let forward = body(first, BodyKind::Forward);
        let freed: BTreeSet<TensorId> = forward.iter().flat_map(|it| it.frees.clone()).collect();
        let written = forward.iter().flat_map(|it| &it.writes).map(|write| write.to.tensor);
        assert_eq!(written.collect::<BTreeSet<TensorId>>(), freed, "{recompute:?}");
        let backward: Vec<Pass> = kernels(last, BodyKind::Backward)
            .filter(|(_, pass)| *pass != Pass::Forward)
            .map(|(_, pass)| pass)
            .collect();
        assert_eq!(backward, [Pass::Input, Pass::Weight], "the loss's, and the head's");
        let carried = |it: &&Carried| matches!(it, Carried::Gradient(_));
        assert_eq!(program.routes.iter().map(|it| &it.carried).filter(carried).count(), 0);
    }
}

#[test]
fn of_a_frozen_bucket_ranks_hold_the_weights_alone_in_the_format_of_computation() {
    let graph = gpt(false);
    let trunk = trunk(&graph);
    let stages = || [None, Some(0), Some(1), Some(2), Some(3)].into_iter();
    for (zero, own) in (0..=3).flat_map(|zero| stages().map(move |own| (zero, own))) {
        // What the group says counts, where it says something.
        let sharing = own.unwrap_or(zero) == 3;
        let sync = Sync { zero, ..single().sync };
        let uniform = Uniform { mesh: mesh(2, 1, 1), sync, ..single() };
        let mut plan = freezing(&graph, &uniform, &trunk);
        plan.parameters[0].zero = own;
        let program = lowered(&graph, &plan);
        let class = &program.classes[0];
        let (frozen, trained): (Vec<&Bucket>, Vec<&Bucket>) =
            class.buckets.iter().partition(|it| it.is_frozen);
        let elements = |buckets: &[&Bucket]| buckets.iter().map(|it| it.elements).sum::<usize>();
        assert_eq!(elements(&trained), 64 * 32, "the head's");
        assert!(elements(&frozen) > 30_000);
        for bucket in frozen {
            let gathered = if sharing { 1 } else { 0 };
            let expected = vec![Content::Weight; 1 + gathered];
            assert_eq!(contents(class, bucket), expected, "ZeRO-{zero}, the group's {own:?}");
            let weights = class.tensor(bucket.held.replicated.weights);
            assert_eq!(weights.format, Format::Bf16);
            assert!(matches!(weights.keep, Keep::State(_)), "they are saved");
            let whole = Shape::Flat(Extent::Exactly(bucket.elements));
            let expected = if sharing { Shape::Flat(Extent::Share) } else { whole };
            assert_eq!(weights.shape, expected);
        }
        for bucket in trained {
            let held = contents(class, bucket);
            for content in [Content::MasterWeight, Content::Gradient, Content::OptimizerState(1)] {
                assert!(held.contains(&content), "{content:?} of the head");
            }
        }
    }
}

#[test]
fn shares_of_a_frozen_trunk_are_gathered_for_forward_passes_and_not_where_no_gradient_passes() {
    let graph = gpt(false);
    let sync = Sync { zero: 3, ..single().sync };
    let uniform = Uniform { mesh: mesh(2, 1, 1), sync, ..single() };
    let gathers = |program: &Program, kind| {
        let class = &program.classes[0];
        let is_it = |action: &Action| {
            matches!(action, Action::Collective { kind: Collective::AllGather { .. }, .. })
        };
        body(class, kind).iter().filter(|it| is_it(&it.action)).count()
    };
    let whole = lowered(&graph, &uniform.plan(&graph, "model", "local"));
    let frozen = lowered(&graph, &freezing(&graph, &uniform, &trunk(&graph)));
    let buckets = whole.classes[0].buckets.len();
    assert_eq!(gathers(&whole, BodyKind::Forward), buckets);
    assert_eq!(gathers(&frozen, BodyKind::Forward), frozen.classes[0].buckets.len());
    assert!(gathers(&whole, BodyKind::Backward) >= buckets - 1);
    assert_eq!(gathers(&frozen, BodyKind::Backward), 0, "the head's gradient reads no weights");
}

/// Where the lowest that is trained lies in the middle, gradients go on down to it and no further.
#[test]
fn gradients_pass_frozen_blocks_above_what_is_trained_and_none_below() {
    let graph = gpt(false);
    let names = parameters(&graph);
    let trained = |node: &&&Value| !node.name.starts_with("block.1.");
    let frozen: Vec<&str> = names.iter().filter(trained).map(|it| it.name.as_str()).collect();
    let program = lowered(&graph, &freezing(&graph, &single(), &frozen));
    let class = &program.classes[0];
    let of_block = |op: u32| {
        let (_, node) = graph.ops().nth(op as usize).expect("one of its operators");
        graph.blocks()[node.block.index()].name.clone()
    };
    let mut passes: Vec<(String, Pass)> =
        kernels(class, BodyKind::Backward).map(|(op, pass)| (of_block(op), pass)).collect();
    passes.dedup();
    let has = |block: &str, pass| passes.contains(&(block.to_owned(), pass));
    assert!(has("block.2", Pass::Input) && !has("block.2", Pass::Weight), "{passes:?}");
    assert!(has("block.1", Pass::Input) && has("block.1", Pass::Weight), "{passes:?}");
    assert!(passes.iter().all(|(block, _)| block != "block.0" && block != "embed"), "{passes:?}");
}

/// One operator's weight may be trained and its bias not.
#[test]
fn every_second_parameter_may_be_frozen_under_any_schedule_and_stage_of_zero() {
    for graph in [gpt(false), gpt(true), llama()] {
        let names = parameters(&graph);
        for odd in [0, 1] {
            let frozen: Vec<&str> =
                names.iter().skip(odd).step_by(2).map(|it| it.name.as_str()).collect();
            for schedule in ScheduleKind::ALL.into_iter().filter(|it| *it != ScheduleKind::Table) {
                for zero in 0..4 {
                    let sync = Sync { zero, ..single().sync };
                    let uniform = Uniform {
                        pp: 2,
                        mesh: mesh(2, 1, 1),
                        microbatches: 4,
                        global_batch: 8,
                        schedule,
                        sync,
                        precision: Precision::FP32,
                        ..single()
                    };
                    let mut plan = freezing(&graph, &uniform, &frozen);
                    if plan.validate(&graph, plan.device_count()).is_err() {
                        continue;
                    }
                    plan.clip_norm = plan.flushes().then_some(1.0);
                    let program = lowered(&graph, &plan);
                    let held = program.classes.iter().flat_map(|class| &class.buckets);
                    assert!(held.clone().any(|bucket| bucket.is_frozen));
                    assert!(held.clone().any(|bucket| !bucket.is_frozen));
                }
            }
        }
    }
}

#[test]
fn a_model_of_which_all_is_frozen_is_refused() {
    let graph = gpt(true);
    let plan = freezing(&graph, &single(), &["no such name"]);
    let plan = Plan {
        parameters: vec![ParameterGroup { names: "*".into(), ..plan.parameters[0].clone() }],
        ..plan
    };
    let error = lower(&graph, &plan, 1).expect_err("refused").to_string();
    assert!(error.contains("there is nothing to train"), "{error}");
    assert!(error.contains("frozen = true"), "{error}");
}

#[test]
fn frozen_weights_have_one_version_where_others_have_several() {
    let graph = gpt(false);
    let uniform = Uniform {
        pp: 3,
        microbatches: 4,
        global_batch: 4,
        schedule: ScheduleKind::PipeDream,
        precision: Precision { compute: Number::Fp32, ..Precision::FP32 },
        ..single()
    };
    let mut plan = freezing(&graph, &uniform, &["embedding.position"]);
    plan.weights = shardloom_plan::Weights::Stash;
    let program = lowered(&graph, &plan);
    let copies = |frozen: bool| {
        let class = &program.classes[0];
        let of = class.buckets.iter().filter(move |it| it.is_frozen == frozen);
        of.map(|it| class.tensor(it.held.replicated.weights).copies).collect::<Vec<_>>()
    };
    assert_eq!(copies(true), [Copies::One]);
    assert!(copies(false).iter().all(|it| matches!(it, Copies::Versions(2..))));
}
