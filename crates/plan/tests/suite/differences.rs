//! Differences between plans: each changed field once, with both values.

use shardloom_plan::{
    AttentionKind, Communication, DeviceList, LossScale, Mesh, Optimizer, Plan, Recompute,
    ScheduleKind, Uniform, Updates, diff,
};

use crate::scenario::graph;

fn plan(pp: usize) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(2, 1, 1),
        global_batch: 8,
        microbatches: 4,
        schedule: ScheduleKind::Afab,
        ..Uniform::default()
    };
    uniform.plan(&graph(), "model", "local")
}

/// Changes one field.
type Change = fn(&mut Plan);

fn differences(before: &Plan, after: &Plan) -> Vec<String> {
    diff(before, after).iter().map(ToString::to_string).collect()
}

#[test]
fn equal_plans_do_not_differ() {
    assert_eq!(differences(&plan(2), &plan(2)), Vec::<String>::new());
}

#[test]
fn every_changed_field_is_listed_once_with_both_values() {
    let before = plan(2);
    let changes: [(Change, &str); 21] = [
        (|it| it.model = "other".into(), "model: \"model\" -> \"other\""),
        (|it| it.cluster = "far".into(), "cluster: \"local\" -> \"far\""),
        (|it| it.global_batch = 16, "global_batch: 8 -> 16"),
        (|it| it.microbatches = 2, "microbatches: 4 -> 2"),
        (|it| it.schedule = ScheduleKind::OneForwardOneBackward, "schedule: \"afab\" -> \"1f1b\""),
        (|it| it.recompute = Recompute::Full, "recompute: \"none\" -> \"full\""),
        (|it| it.recompute_last = false, "recompute_last: absent -> false"),
        (|it| it.attention = AttentionKind::Fused, "attention: absent -> \"fused\""),
        (|it| it.mask_documents = true, "mask_documents: absent -> true"),
        (|it| it.clip_norm = Some(0.5), "clip_norm: absent -> 0.5"),
        (|it| it.skip_non_finite = true, "skip_non_finite: absent -> true"),
        (
            |it| it.loss_scale = Some(LossScale::Constant { scale: 8.0 }),
            "loss_scale: absent -> { rule = \"constant\", scale = 8.0 }",
        ),
        (|it| it.updates = Updates::Round, "updates: absent -> \"round\""),
        (|it| it.post_validation = true, "post_validation: absent -> true"),
        (|it| it.communication = Communication::Thread, "communication: absent -> \"thread\""),
        (|it| it.sync.zero = 2, "sync.zero: 0 -> 2"),
        (|it| it.precision.master = true, "precision.master: false -> true"),
        (
            |it| it.pipeline[0].stage[1].mesh = Mesh::of(2, 1, 4),
            "pipeline.0.stage.1.mesh.tp: absent -> 4",
        ),
        (|it| it.pipeline[0].stage[0].blocks.1 = 3, "pipeline.0.stage.0.blocks.1: 2 -> 3"),
        (
            |it| it.pipeline[0].stage[0].devices = DeviceList(vec![7]),
            "pipeline.0.stage.0.devices: \"0..2\" -> \"7\"",
        ),
        (
            |it| it.layout.0.truncate(1),
            "layout: \"batch:dp, seq:cp, heads:tp, ffn:tp, vocab:tp\" -> \"batch:dp\"",
        ),
    ];
    let mut all = before.clone();
    for (change, expected) in changes {
        let mut after = before.clone();
        change(&mut after);
        assert_eq!(differences(&before, &after), [expected]);
        change(&mut all);
    }
    let mut listed = differences(&before, &all);
    let mut expected: Vec<&str> = changes.iter().map(|&(_, text)| text).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

#[test]
fn what_only_one_plan_has_is_absent_in_the_other() {
    let (one, two) = (plan(1), plan(2));
    let forth = diff(&one, &two);
    let keys: Vec<&str> = forth.iter().map(|each| each.key.as_str()).collect();
    assert_eq!(keys, ["pipeline.0.stage.0.blocks.1", "pipeline.0.stage.1"]);
    assert_eq!(forth[1].before, None);
    for (there, back) in forth.iter().zip(diff(&two, &one)) {
        assert_eq!((&there.before, &there.after), (&back.after, &back.before));
    }
}

#[test]
fn another_kind_of_optimizer_lists_the_settings_that_come_and_go() {
    let before = plan(1);
    let mut after = before.clone();
    after.optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.1, reference_batch: None };
    assert_eq!(
        differences(&before, &after),
        [
            "optimizer.beta1: 0.9 -> absent",
            "optimizer.beta2: 0.95 -> absent",
            "optimizer.epsilon: 0.00000001 -> absent",
            "optimizer.kind: \"adamw\" -> \"sgd\"",
            "optimizer.momentum: absent -> 0.9",
        ]
    );
}

#[test]
fn a_long_value_is_shown_in_part_and_kept_whole() {
    let before = plan(1);
    let mut after = before.clone();
    after.model = "ü".repeat(100);
    let [difference] = &diff(&before, &after)[..] else { panic!("one") };
    assert_eq!(difference.after, Some(format!("{:?}", after.model)));
    let shown = difference.to_string();
    assert!(shown.ends_with(&format!("-> \"{}.. (102 characters)", "ü".repeat(99))), "{shown}");
    after.model = "ü".repeat(98);
    let shown = &differences(&before, &after)[0];
    assert!(shown.ends_with(&format!("-> \"{}\"", after.model)), "{shown}");
}
