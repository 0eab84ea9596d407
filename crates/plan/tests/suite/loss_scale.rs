//! What plans may say of the scale of the loss, and how it changes.

use crate::scenario::{DEVICES, graph, plan};
use shardloom_plan::{
    Averaging, Compression, LossScale, Number, ParameterGroup, Plan, Precision, ScheduleKind,
    Servers, Staleness, Updates, Weights,
};

fn of(loss_scale: LossScale) -> Plan {
    Plan { loss_scale: Some(loss_scale), ..plan() }
}

fn complaint(plan: &Plan) -> String {
    let refused = plan.validate(&graph(), DEVICES);
    refused.expect_err("it should be refused").to_string()
}

fn dynamic(initial: f64, growth_interval: u64) -> LossScale {
    LossScale::Dynamic { initial, growth_interval }
}

#[test]
fn what_is_left_out_is_as_in_pytorch() {
    let text = of(dynamic(8.0, 5)).to_toml();
    let section = text.find("[loss_scale]").expect("it is written");
    let end = text[section..].find("\n\n").map_or(text.len(), |it| section + it);
    let with = |words: &str| {
        let text = format!("{}[loss_scale]\n{words}{}", &text[..section], &text[end..]);
        Plan::from_toml(&text, "plan.toml")
    };
    let read = with("rule = \"dynamic\"").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.loss_scale, Some(dynamic(65_536.0, 2_000)));
    let read = with("rule = \"constant\"\nscale = 128.0").expect("it is a plan");
    assert_eq!(read.loss_scale, Some(LossScale::Constant { scale: 128.0 }));
    let message = with("rule = \"constant\"").expect_err("by how much?").to_string();
    assert!(message.contains("scale"), "{message}");
}

#[test]
fn scales_are_numbers_that_gradients_can_be_divided_by() {
    for wrong in [0.5, -8.0, f64::INFINITY, f64::NAN, 1e31] {
        let message = complaint(&of(LossScale::Constant { scale: wrong }));
        assert!(message.starts_with("loss_scale.scale = "), "{message}");
        let message = complaint(&of(dynamic(wrong, 5)));
        assert!(message.starts_with("loss_scale.initial = "), "{message}");
    }
    let message = complaint(&of(dynamic(8.0, 0)));
    assert!(message.starts_with("loss_scale.growth_interval = 0: "), "{message}");
    assert_eq!(of(dynamic(1.0, 1)).validate(&graph(), DEVICES), Ok(()));
}

#[test]
fn a_scale_that_changes_needs_gradients_of_one_step_at_a_time() {
    let late = |scale| {
        let weights = Weights::Stash;
        Plan { schedule: ScheduleKind::PipeDream, weights, ..of(scale) }
    };
    assert!(complaint(&late(LossScale::dynamic())).contains("without a flush"));
    assert_eq!(late(LossScale::Constant { scale: 8.0 }).validate(&graph(), DEVICES), Ok(()));

    let validated = |scale| Plan { post_validation: true, ..of(scale) };
    assert!(complaint(&validated(LossScale::dynamic())).contains("with post_validation"));
    assert_eq!(validated(LossScale::Constant { scale: 8.0 }).validate(&graph(), DEVICES), Ok(()));
}

/// Residuals are kept from step to step and from run to run, which may have another scale.
#[test]
fn what_compression_leaves_out_has_no_scale() {
    for scale in [LossScale::dynamic(), LossScale::Constant { scale: 8.0 }] {
        let compressed = |feedback| {
            let mut plan = of(scale);
            plan.sync.compression = Compression::Rounded { to: Number::Bf16, feedback };
            plan
        };
        assert_eq!(compressed(false).validate(&graph(), DEVICES), Ok(()));
        assert!(complaint(&compressed(true)).contains("no compression with a residual"));
        // Also where only a group of parameters has it.
        let of_group = |feedback| {
            let compression = Some(Compression::Rounded { to: Number::Bf16, feedback });
            let group = ParameterGroup { compression, ..ParameterGroup::named("*") };
            Plan { parameters: vec![group], ..of(scale) }
        };
        assert_eq!(of_group(false).validate(&graph(), DEVICES), Ok(()));
        assert!(complaint(&of_group(true)).contains("no compression with a residual"));
    }
}

#[test]
fn in_fp16_the_usual_one_is_dynamic_else_constant_where_that_goes_with_the_rest() {
    let computed_in = |compute| Plan { precision: Precision::usual(compute), ..plan() };
    assert_eq!(LossScale::usual(&computed_in(Number::Fp32)), None);
    assert_eq!(LossScale::usual(&computed_in(Number::Bf16)), None);
    let half = computed_in(Number::Fp16);
    assert_eq!(LossScale::usual(&half), Some(LossScale::dynamic()));
    let constant = Some(LossScale::Constant { scale: 1024.0 });
    let mut overlapping = vec![Plan { post_validation: true, ..half.clone() }];
    for weights in [Weights::Stash, Weights::VerticalSync, Weights::DoubleBuffer] {
        overlapping.push(Plan { schedule: ScheduleKind::PipeDream, weights, ..half.clone() });
    }
    for plan in overlapping {
        assert_eq!(LossScale::usual(&plan), constant);
        let scaled = Plan { loss_scale: constant, ..plan };
        assert_eq!(scaled.validate(&graph(), DEVICES), Ok(()));
        let in_rounds = Plan { updates: Updates::Round, loss_scale: None, ..scaled };
        assert_eq!(LossScale::usual(&in_rounds), None);
    }
    let mut compressed = half.clone();
    compressed.sync.compression = Compression::Rounded { to: Number::Bf16, feedback: true };
    assert_eq!(LossScale::usual(&compressed), None);
    let mut served = half.clone();
    served.sync.servers = Some(Servers::of(1, Staleness::SYNCHRONOUS));
    assert_eq!(LossScale::usual(&served), None);
    let mut averaged = half;
    averaged.sync.averaging = Some(Averaging::local_sgd(2));
    assert_eq!(LossScale::usual(&averaged), None);
}

#[test]
fn it_is_halved_by_overflows_and_doubled_after_enough_steps_without() {
    let rule = dynamic(4.0, 3);
    let (mut scale, mut finite) = (rule.initial(), 0);
    let scales = [true, true, false, false, false, true, true, true, true].map(|is_finite| {
        (scale, finite) = rule.after(scale, finite, is_finite);
        scale
    });
    assert_eq!(scales, [4.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
    let constant = LossScale::Constant { scale: 8.0 };
    assert_eq!(constant.after(8.0, 0, false), (8.0, 0));
    // It does not grow beyond what gradients in fp32 can be divided by.
    let most = 2f64.powi(100);
    assert_eq!(dynamic(most, 1).after(most, 0, true), (most, 0));
}
