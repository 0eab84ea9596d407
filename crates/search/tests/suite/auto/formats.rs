//! Number formats of the answer, and what follows from them.

use shardloom_cluster::{
    Cluster, FormatRates, MatmulPoint, MatmulRates, MeasuredMatmul, Precision as Format,
};
use shardloom_plan::{AttentionKind, Number, Precision, ScheduleKind};
use shardloom_search::{Only, Outcome, Request, explain, usual_precision};

use super::{LARGER, PLENTY, search, without_baselines};
use crate::scenario::{GPT, h100, model};

#[test]
fn machines_without_others_compute_in_their_own_format_where_none_was_asked_for() {
    let graph = model(LARGER);
    let mixed = Cluster::parse("gtx-1080-ti:1x4+h100-80g:1x4").expect("presets");
    let asked = Request { precision: Precision::FP32, ..Request::new(LARGER, "c", 32) };
    let by_machines = Request { formats_by_machines: true, ..asked.clone() };
    let [fp32, bf16] = [asked, by_machines].map(|it| search(&graph, &mixed, &it).expect("a plan"));
    assert_eq!(fp32.plan.precision, Precision::FP32);
    assert_eq!(bf16.plan.precision, Precision::MIXED);
    assert!(bf16.judgement.step_seconds < fp32.judgement.step_seconds / 2.0);
    let note = "the devices of the plan compute in bf16, all together only in fp32";
    assert!(bf16.notes.iter().any(|it| it == note), "{:?}", bf16.notes);
    let alone = Cluster::parse("h100-80g:1x4").expect("a preset");
    let alone = search(&graph, &alone, &Request::new(LARGER, "c", 32)).expect("a plan");
    // Nor do the others have kernels of fused attention.
    assert_eq!(bf16.plan.attention, AttentionKind::Fused);
    assert_eq!(bf16.judgement.step_seconds, alone.judgement.step_seconds);
}

/// Processors as they are measured: tables of products in both formats, and bf16 ten times as fast.
fn processors(devices: u32) -> Cluster {
    let mut group = h100(1, devices, 8 << 30).groups()[0].clone();
    let device = &mut group.profile.device;
    (device.lanes_overlap, device.fused_attention) = (false, None);
    let table = |format, seconds| {
        let point = MatmulPoint { m: 256, n: 256, k: 256, seconds };
        MeasuredMatmul::new(format, vec![point]).expect("a table")
    };
    device.matmul = MatmulRates::Measured(table(Format::Fp32, 1e-3));
    let in_bf16 = FormatRates { matmul: Some(table(Format::Bf16, 1e-4)), ..FormatRates::default() };
    device.in_format = [(Format::Bf16, in_bf16)].into();
    Cluster::new(vec![group]).expect("a cluster")
}

#[test]
fn plans_for_processors_are_in_fp32_unless_bf16_is_asked_for_where_it_was_measured() {
    let (graph, cluster) = (model(GPT), processors(2));
    assert_eq!(usual_precision(&cluster), Precision::FP32);
    assert_eq!(usual_precision(&h100(1, 2, 80 << 30)), Precision::MIXED);
    let found = |precision| {
        let request = Request { precision, ..Request::new("gpt", "c", 8) };
        search(&graph, &cluster, &request)
    };
    let [full, half] = [Precision::FP32, Precision::MIXED].map(|it| found(it).expect("a plan"));
    assert_eq!(half.plan.precision, Precision::MIXED);
    let [full, half] = [full, half].map(|it| it.judgement.step_seconds);
    assert!(half < 0.5 * full, "{half} {full}");
    let error = found(Precision::usual(Number::Fp16)).expect_err("it was not measured").to_string();
    assert!(error.contains("no fp16 rate; it has fp32, bf16"), "{error}");
}

/// In fp16 the scale of the loss follows from the norm, which every update waits for.
#[test]
fn updates_are_validated_afterwards_where_no_scale_of_the_loss_waits_for_the_norm() {
    let graph = model(GPT);
    let cluster = h100(1, 4, PLENTY);
    let only = Only { pp: Some(4), ..Only::default() };
    for (compute, validates) in [(Number::Bf16, true), (Number::Fp16, false)] {
        let request = Request {
            precision: Precision::usual(compute),
            schedules: vec![ScheduleKind::ZeroBubbleH1],
            only: only.clone(),
            ..Request::new(GPT, "c", 32)
        };
        assert!(request.clip_norm.is_some());
        let found = search(&graph, &cluster, &request).expect("an answer").finalists;
        let some = found.iter().any(|it| it.plan.post_validation);
        assert_eq!(some, validates, "{compute:?}");
    }
}

/// Plans for devices with more memory are in the formats of the plan that is explained. There is memory enough, and the
/// plan is the fastest that was found, so that none is much faster; in other formats one would be.
#[test]
fn with_more_memory_plans_are_searched_for_in_the_formats_of_the_plan() {
    let (graph, cluster) = (model(LARGER), h100(1, 4, PLENTY));
    let found = |precision| {
        let request = Request { precision, ..Request::new(LARGER, "c", 64) };
        without_baselines(&graph, &cluster, &request)
    };
    let [exact, mixed] = [Precision::FP32, Precision::MIXED].map(found);
    let step = |found: &Outcome| found.judgement.step_seconds;
    assert!(step(&mixed) < 0.8 * step(&exact), "{} and {}", step(&mixed), step(&exact));
    for outcome in [exact, mixed] {
        let facts = explain(&graph, &cluster, &outcome.plan, &[]).expect("it simulates").facts;
        let begins = ["if devices had 25.0% more memory, ", "with the memory that there is, "];
        let more =
            facts.iter().find(|it| begins.iter().any(|begin| it.sentence.starts_with(begin)));
        let more = more.expect("a fact about more memory");
        assert!(more.number.abs() < 0.1, "{more:?}");
    }
}
