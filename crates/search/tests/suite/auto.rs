//! Answers of the search against simulations of everything there is.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::scenario::{GPT, h100, model};
use shardloom_cluster::{
    Cluster, FormatRates, MatmulPoint, MatmulRates, MeasuredMatmul, Precision as Format,
};
use shardloom_graph::Graph;
use shardloom_methods::baselines;
use shardloom_plan::{
    AttentionKind, Axis, Number, Plan, Precision, Recompute, ScheduleKind, Uniform,
};
use shardloom_search::{
    Baseline, Only, Outcome, Request, Runner, SearchError, Space, auto, judge,
    single_device_seconds, usual_precision,
};
use shardloom_sim::estimate::{Cut, Estimator};

const PLENTY: u64 = 80_000_000_000;

/// The fastest evenly cut plan that fits, by simulating all.
fn exhaustive(graph: &Graph, cluster: &Cluster, request: &Request) -> Option<f64> {
    let space = Space::new(graph, cluster, request).expect("a space");
    let mut estimator = Estimator::new(graph, cluster, request.settings()).expect("an estimator");
    let even = space.candidates().filter(|it| it.cut == Cut::Even);
    let mut best: Option<f64> = None;
    for candidate in even {
        // There are schedules that do not exist for few micro-batches.
        let exists = estimator.estimate(&candidate).expect("costs").is_some();
        let plan = request.planned(graph, &mut estimator, &candidate).expect("costs");
        let Some(plan) = plan.filter(|_| exists) else { continue };
        let judgement = judge(graph, cluster, &plan).expect("a plan of the space can be lowered");
        if judgement.fits(request.memory_share) {
            best = Some(best.map_or(judgement.step_seconds, |it| it.min(judgement.step_seconds)));
        }
    }
    best
}

/// The answer, held against what people use without a search.
fn search(graph: &Graph, cluster: &Cluster, request: &Request) -> Result<Outcome, SearchError> {
    auto(graph, cluster, request, |cluster, request| baselines(graph, cluster, request))
}

fn check(graph: &Graph, cluster: &Cluster, request: &Request) -> Outcome {
    let outcome = search(graph, cluster, request).expect("an answer");
    let devices = cluster.device_count();
    outcome.plan.validate(graph, devices as usize).expect("a valid plan");
    let judgement = judge(graph, cluster, &outcome.plan).expect("a plan that can be lowered");
    assert_eq!(judgement, outcome.judgement);
    assert!(judgement.fits(request.memory_share));
    assert_eq!(outcome.devices_left_out, devices - outcome.plan.device_count() as u32);
    let search = &outcome.search;
    assert_eq!(search.space, search.evaluated + search.bounded_away);
    for baseline in outcome.baselines.iter().filter(|it| it.fits) {
        let seconds = baseline.step_seconds().expect("what fits was simulated");
        assert!(judgement.step_seconds <= seconds, "{} is faster", baseline.name);
    }
    outcome
}

#[test]
fn the_answer_is_within_a_fiftieth_of_the_best_of_all_simulated_plans() {
    let text = "gpt:layers=2,hidden=512,heads=4,seq=256,vocab=4096";
    let graph = model(text);
    let request = Request::new(text, "c", 16);
    for memory_bytes in [PLENTY, 400_000_000, 250_000_000] {
        let cluster = h100(1, 4, memory_bytes);
        let best = exhaustive(&graph, &cluster, &request).expect("some plan fits");
        let outcome = check(&graph, &cluster, &request);
        let found = outcome.judgement.step_seconds;
        assert!(found <= 1.02 * best, "{memory_bytes} bytes: found {found}, best {best}");
    }
}

/// A single long sequence: no two devices have different ones, and layers are too few for a deep pipeline.
#[test]
fn a_long_sequence_is_split_where_that_is_faster() {
    let text = "llama:layers=2,hidden=512,heads=4,kv_heads=2,seq=16384,vocab=4096,ffn=1024";
    let graph = model(text);
    let request = Request::new(text, "c", 1);
    let cluster = h100(1, 4, PLENTY);
    let best = exhaustive(&graph, &cluster, &request).expect("some plan fits");
    let outcome = check(&graph, &cluster, &request);
    let (found, (_, stage)) =
        (outcome.judgement.step_seconds, outcome.plan.stages().next().expect("a stage"));
    assert!(found <= 1.02 * best, "found {found}, best {best}");
    assert!(stage.mesh.width(Axis::CP) > 1, "{}", stage.mesh);
}

#[test]
fn the_counts_are_those_of_the_space() {
    // Enough work for all devices, so that no fewer are tried.
    let text = "gpt:layers=4,hidden=2048,heads=4,seq=1024,vocab=1024";
    let graph = model(text);
    let cluster = h100(2, 4, PLENTY);
    let request = Request::new(text, "c", 32);
    let outcome = check(&graph, &cluster, &request);
    let space = Space::new(&graph, &cluster, &request).expect("a space");
    assert_eq!(outcome.search.space, space.count());
    assert!(outcome.search.evaluated > 0 && outcome.search.bounded_away > 0);
    let across = "tensor parallelism across nodes".to_owned();
    assert!(outcome.not_searched.contains(&across), "{:?}", outcome.not_searched);
}

#[test]
fn the_same_request_has_the_same_answer() {
    let graph = model(GPT);
    let cluster = h100(2, 4, 2_000_000_000);
    let request = Request::new(GPT, "c", 32);
    let (first, second) = (check(&graph, &cluster, &request), check(&graph, &cluster, &request));
    assert_eq!(first.plan, second.plan);
    assert_eq!(first.judgement, second.judgement);
    assert_eq!(first.finalists.len(), second.finalists.len());
}

#[test]
fn less_memory_never_makes_the_answer_faster() {
    let graph = model(GPT);
    let request = Request::new(GPT, "c", 32);
    let mut before = 0.0;
    for memory_bytes in [PLENTY, 300_000_000, 100_000_000, 60_000_000] {
        let outcome = check(&graph, &h100(1, 8, memory_bytes), &request);
        // Within what the estimate misses.
        assert!(outcome.judgement.step_seconds >= 0.98 * before, "{memory_bytes} bytes");
        before = outcome.judgement.step_seconds;
    }
}

#[test]
fn devices_that_a_batch_cannot_use_are_left_out_and_said_to_be() {
    let graph = model(GPT);
    let outcome = check(&graph, &h100(1, 7, PLENTY), &Request::new(GPT, "c", 2));
    assert!(outcome.devices_left_out > 0);
    let note = format!("{} of 7 devices are left out", outcome.devices_left_out);
    assert!(outcome.notes.iter().any(|it| it.starts_with(&note)), "{:?}", outcome.notes);
}

/// A model with work for a few devices.
const LARGER: &str = "gpt:layers=8,hidden=1024,heads=8,seq=512,vocab=4096";

#[test]
fn a_mixed_cluster_is_planned_for_its_slowest_devices_and_least_memory() {
    let graph = model(LARGER);
    let smaller = h100(1, 2, 3_000_000_000);
    let larger = Cluster::parse("h200:1x2").expect("a preset");
    let cluster = Cluster::new([smaller.groups(), larger.groups()].concat()).expect("a cluster");
    let outcome = check(&graph, &cluster, &Request::new(LARGER, "c", 32));
    assert_eq!(outcome.devices_left_out, 0);
    assert!(outcome.notes.iter().any(|it| it.contains("several kinds of device")));
    assert!(outcome.judgement.memory.iter().all(|it| it.peak_bytes < 3_000_000_000));
}

#[test]
fn slower_devices_are_left_out_where_that_is_faster() {
    let graph = model(LARGER);
    let mixed = Cluster::parse("a100-80g:1x4+h100-80g:1x4").expect("presets");
    let request = Request::new(LARGER, "c", 32);
    let outcome = check(&graph, &mixed, &request);
    assert!(outcome.plan.devices().into_iter().all(|device| device >= 4));
    let alone = check(&graph, &Cluster::parse("h100-80g:1x4").expect("a preset"), &request);
    assert_eq!(outcome.judgement.step_seconds, alone.judgement.step_seconds);
    let slower = outcome.finalists.iter().map(|it| it.step_seconds()).fold(f64::INFINITY, f64::min);
    assert!(slower > alone.judgement.step_seconds, "what was found for all devices");
    let [note] = &outcome.notes[..] else { panic!("{:?}", outcome.notes) };
    assert!(
        note.starts_with(
            "4 of 8 devices, all a100-80g, are left out: the fastest plan found for all takes"
        ),
        "{note}"
    );
}

#[test]
fn a_single_device_is_the_fastest_that_there_is_however_little_memory_it_has() {
    let graph = model(GPT);
    let request = Request::new(GPT, "c", 8);
    let seconds = |text: &str| {
        let cluster = Cluster::parse(text).expect("presets");
        single_device_seconds(&graph, &cluster, &request).expect("an estimate")
    };
    let [slow, fast] = ["a100-80g:1", "h100-80g:1"].map(seconds);
    assert!(fast < slow);
    for mixed in ["a100-80g:2x4+h100-80g:1x8", "h100-80g:1x8+a100-80g:2x4"] {
        assert_eq!(seconds(mixed), fast, "{mixed}");
    }
    let small = single_device_seconds(&graph, &h100(1, 1, 1000), &request).expect("an estimate");
    let large = single_device_seconds(&graph, &h100(1, 1, PLENTY), &request).expect("an estimate");
    assert!(small.is_some() && small == large);
}

#[test]
fn another_batch_that_uses_more_devices_is_named() {
    let graph = model(LARGER);
    let cluster = h100(1, 7, PLENTY);
    let outcome = check(&graph, &cluster, &Request::new(LARGER, "c", 64));
    let note =
        outcome.notes.iter().find(|it| it.starts_with("with 63 samples a step instead of 64"));
    let note = note.unwrap_or_else(|| panic!("{:?}", outcome.notes));
    let other = check(&graph, &cluster, &Request::new(LARGER, "c", 63));
    let rate = |outcome: &Outcome, batch: f64| batch / outcome.judgement.step_seconds;
    let more = rate(&other, 63.0) / rate(&outcome, 64.0) - 1.0;
    assert!(
        more > 0.1 && note.ends_with(&format!("{:.0}% more samples a second", 100.0 * more)),
        "{note}"
    );
}

#[test]
fn many_devices_are_no_slower_than_fewer() {
    let graph = model(GPT);
    let request = Request::new(GPT, "c", 64);
    let seconds = |nodes, devices| {
        check(&graph, &h100(nodes, devices, PLENTY), &request).judgement.step_seconds
    };
    let all = seconds(8, 8);
    for (nodes, devices) in [(4, 8), (2, 8), (1, 8), (1, 4), (1, 2), (1, 1)] {
        let fewer = seconds(nodes, devices);
        assert!(all <= fewer, "{all} on 8 x 8, {fewer} on {nodes} x {devices}");
    }
}

/// Nodes of one device, and one sample: of three blocks the middle one is nearly everything, and only
/// tensor parallelism deals it to two devices.
#[test]
fn where_nothing_fits_tensor_parallel_groups_reach_across_nodes() {
    let text = "gpt:layers=1,hidden=1024,heads=16,seq=64,vocab=64";
    let graph = model(text);
    let request = Request::new(text, "c", 1);
    // 12 hidden^2 parameters of 18 bytes are 226 MB.
    let outcome = check(&graph, &h100(2, 1, 160_000_000), &request);
    let (_, stage) = outcome.plan.stages().next().expect("a stage");
    assert_eq!((outcome.plan.stages().count(), stage.mesh.tp()), (1, 2));
    // Both spaces were looked through: widths of one and two, the latter also with the sequence split.
    let cluster = h100(2, 1, 160_000_000);
    let within = Space::new(&graph, &cluster, &request).expect("a space").count();
    let across = 2 * Recompute::BY_BLOCK.len();
    // One device is tried, too.
    let single = Space::new(&graph, &h100(1, 1, PLENTY), &request).expect("a space").count();
    assert_eq!(outcome.search.space, within + across + single);
    assert!(!outcome.not_searched.iter().any(|it| it.contains("across nodes")));
    let roomy = check(&graph, &h100(2, 1, PLENTY), &request);
    let counted = roomy.search.space;
    assert_eq!(counted, within + single, "what fits within nodes needs no wider groups");
}

#[test]
fn nodes_of_one_kind_are_not_called_several_whoever_lists_them_one_by_one() {
    let graph = model(GPT);
    let node = h100(1, 2, PLENTY);
    let cluster = Cluster::new([node.groups(), node.groups()].concat()).expect("a cluster");
    let outcome = check(&graph, &cluster, &Request::new(GPT, "c", 32));
    assert_eq!(outcome.notes, [""; 0]);
}

/// The least memory that a plan with one sample a micro-batch is estimated to need.
fn least_bytes(graph: &Graph, cluster: &Cluster, request: &Request) -> f64 {
    let space = Space::new(graph, cluster, request).expect("a space");
    let mut estimator = Estimator::new(graph, cluster, request.settings()).expect("an estimator");
    let ones = space.candidates().filter(|it| it.microbatch == 1);
    let peaks = ones.map(|it| estimator.estimate(&it).expect("costs").map(|it| it.peak_bytes));
    peaks.flatten().fold(f64::INFINITY, f64::min)
}

/// Without attention, computing only attention again saves nothing.
#[test]
fn of_plans_that_need_equally_little_the_plainest_is_named() {
    let text = "mlp:inputs=1024,hidden=1024,layers=1,classes=64";
    let request = Request::new(text, "c", 1);
    let error = search(&model(text), &h100(1, 1, 10_000_000), &request).expect_err("too small");
    let SearchError::NothingFits { closest, .. } = error else { panic!("{error}") };
    assert!(closest.ends_with("recomputation none"), "{closest}");
}

/// As many blocks as nodes there can be at most, 256 times as many.
#[test]
fn the_remedy_names_the_first_doubling_of_nodes_that_is_enough() {
    let text = "gpt:layers=254,hidden=64,heads=4,seq=16,vocab=64";
    let graph = model(text);
    // One sample, which no replicas can share.
    let request = Request::new(text, "c", 1);
    let needed = |nodes: u32| least_bytes(&graph, &h100(nodes, 1, PLENTY), &request);
    let (enough, half) = (needed(256), needed(128));
    assert!(enough < 0.95 * half, "256 nodes need {enough} each, half as many {half}");
    let memory_bytes = (1.02 * enough / request.memory_share) as u64;
    let error = search(&graph, &h100(1, 1, memory_bytes), &request).expect_err("too small");
    let SearchError::NothingFits { closest, needed_bytes, remedy, .. } = error else {
        panic!("{error}");
    };
    let end = "so would 256 times as many nodes (256 devices)";
    assert!(remedy.ends_with(end), "{remedy}");
    assert!(closest.contains("one sample a micro-batch"), "{closest}");
    assert_eq!(needed_bytes, needed(1) as u64);
}

#[test]
fn no_more_nodes_are_asked_for_than_are_needed() {
    let text = "gpt:layers=6,hidden=64,heads=4,seq=16,vocab=64";
    let graph = model(text);
    let request = Request::new(text, "c", 1);
    for nodes in [2, 4] {
        let needed = least_bytes(&graph, &h100(nodes, 1, PLENTY), &request);
        let cluster = h100(1, 1, (1.02 * needed / request.memory_share) as u64);
        let error = search(&graph, &cluster, &request).expect_err("too small");
        let SearchError::NothingFits { remedy, .. } = error else { panic!("{error}") };
        let end = format!("so would {nodes} times as many nodes ({nodes} devices)");
        assert!(remedy.ends_with(&end), "{remedy}");
    }
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

#[test]
fn where_nothing_fits_the_closest_plan_and_a_remedy_are_named() {
    let graph = model(GPT);
    let cluster = h100(1, 2, 12_000_000);
    let error = search(&graph, &cluster, &Request::new(GPT, "tiny", 32)).expect_err("too small");
    let message = error.to_string();
    assert!(message.starts_with("gpt fits on tiny in none"), "{message}");
    let SearchError::NothingFits { needed_bytes, available_bytes, remedy, space, .. } = &error
    else {
        panic!("{error}");
    };
    assert!(needed_bytes > available_bytes);
    assert!(remedy.contains("times as many nodes"), "{remedy}");
    let request = Request::new(GPT, "tiny", 32);
    assert_eq!(*space, Space::new(&graph, &cluster, &request).expect("a space").count());
    // The remedy is true.
    let times: u32 = remedy
        .split("so would ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .expect("the remedy has a number of nodes");
    check(&graph, &h100(times, 2, 12_000_000), &request);
}

#[test]
fn the_closest_plan_has_the_micro_batches_that_were_asked_for() {
    let only = Only { microbatch: Some(4), ..Only::default() };
    let request = Request { only, ..Request::new(GPT, "tiny", 32) };
    let error = search(&model(GPT), &h100(1, 2, 12_000_000), &request).expect_err("too small");
    let SearchError::NothingFits { closest, .. } = error else { panic!("{error}") };
    assert!(closest.contains(", 4 samples a micro-batch and"), "{closest}");
}

#[test]
fn devices_with_as_much_memory_as_the_remedy_says_would_do() {
    let text = "gpt:layers=24,hidden=2048,heads=16,seq=1024,vocab=50304";
    let graph = model(text);
    for memory_share in [0.5, 0.9] {
        let request = Request { memory_share, ..Request::new(text, "small", 8) };
        let found = search(&graph, &h100(1, 2, 4_000_000_000), &request);
        let Err(SearchError::NothingFits { needed_bytes, remedy, .. }) = found else {
            panic!("{found:?}");
        };
        let gibibytes: u64 = remedy
            .strip_prefix("devices of ")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|number| number.parse().ok())
            .expect("the remedy has a size of devices");
        // Of which a plan may take its share, and the size is rounded up.
        let least = needed_bytes as f64 / memory_share / f64::from(1 << 30);
        assert!((0.0..=1.0).contains(&(gibibytes as f64 - least)), "{remedy}: {least}");
        check(&graph, &h100(1, 2, gibibytes << 30), &request);
    }
}

#[test]
fn llama_3_405b_on_16384_h100s_is_planned_as_its_makers_did() {
    let text = "llama-3-405b:seq=8192";
    let graph = model(text);
    let cluster = Cluster::parse("h100-80g:2048x8").expect("a preset");
    let every = Request { finalists: 1, ..Request::new(text, "h100-80g:2048x8", 2048) };
    let request = Request { schedules: ScheduleKind::PLAIN.to_vec(), ..every.clone() };
    let outcome = check(&graph, &cluster, &request);
    // One stage on each device leaves them idle for a third of the time.
    let faster = check(&graph, &cluster, &every).judgement;
    assert!(faster.step_seconds < 0.8 * outcome.judgement.step_seconds, "{faster:?}");
    let plan = outcome.plan;
    let (_, stage) = plan.stages().next().expect("a stage");
    assert_eq!(stage.mesh.tp(), 8);
    assert!(plan.layout.splits("seq", shardloom_plan::Axis::TP), "sequence parallelism");
    assert!((8..=32).contains(&plan.stages().count()), "{} stages", plan.stages().count());
    assert_ne!(plan.recompute, shardloom_plan::Recompute::Full);
    assert_eq!(plan.device_count(), 16_384);
}

#[test]
fn a_search_with_updates_that_are_validated_afterwards_is_refused_by_name() {
    let text = "gpt:layers=4,hidden=64,heads=4,seq=32,vocab=128";
    let cluster = Cluster::parse("h100-80g:8").expect("a preset");
    let request = Request { post_validation: true, ..Request::new(text, "h100-80g:8", 16) };
    let error = search(&model(text), &cluster, &request).expect_err("it has no estimate");
    let refused = matches!(&error, SearchError::Request { key: "post_validation", .. });
    assert!(refused, "{error}");
}

/// However long the first plan takes to simulate, it is.
#[test]
fn a_batch_of_very_many_micro_batches_has_an_answer_without_other_plans() {
    let text = "gpt:layers=4,hidden=1024,heads=16,seq=4096,vocab=1024";
    let graph = model(text);
    let cluster = h100(1, 1, 6_000_000_000);
    let request = Request::new(text, "c", 4096);
    let outcome = auto(&graph, &cluster, &request, |_, _| Ok(vec![])).expect("an answer");
    let steps = outcome.plan.microbatches * graph.blocks().len();
    assert!(steps > 10_000, "{steps} passes of blocks are not very many");
    assert_eq!(outcome.finalists.len(), 1);
}

/// What simulations take is counted in micro-batches times blocks: 10,000 of them at most.
#[test]
fn plans_are_simulated_as_long_as_their_micro_batches_are_not_too_many() {
    // Eight blocks.
    let text = "gpt:layers=6,hidden=1024,heads=4,seq=256,vocab=1024";
    let graph = model(text);
    // There is room for what one sample leaves behind, not for five, however much is computed twice.
    let cluster = h100(1, 1, 1_550_000_000);
    let simulated = |global_batch: usize| {
        let request = Request::new(text, "c", global_batch);
        let outcome = auto(&graph, &cluster, &request, |_, _| Ok(vec![])).expect("an answer");
        let mut plans = outcome.finalists.iter().map(|it| &it.plan);
        assert!(plans.all(|it| it.microbatches == global_batch), "one sample a micro-batch");
        outcome.finalists.len()
    };
    // 625 is 5^4, and 631 a prime. Two plans are fast enough, which differ in what they compute twice:
    // that is 2 x 8 x 625 = 10,000, and 96 more.
    assert_eq!((simulated(625), simulated(631)), (2, 1));
}

/// What is estimated to take a twentieth longer than the best plan known is not simulated.
#[test]
fn plans_that_are_too_slow_by_estimate_are_not_simulated() {
    let graph = model(GPT);
    let mut slower = 0;
    for memory_bytes in [PLENTY, 60_000_000, 40_000_000] {
        let cluster = h100(1, 8, memory_bytes);
        let request = Request { finalists: 64, ..Request::new(GPT, "c", 32) };
        let outcome = auto(&graph, &cluster, &request, |_, _| Ok(vec![])).expect("an answer");
        let mut best = f64::INFINITY;
        let mut before = 0.0;
        // Updates that are validated afterwards are tried after these, and not estimated as such.
        for finalist in outcome.finalists.iter().filter(|it| !it.plan.post_validation) {
            let estimated = finalist.estimated_seconds.expect("it is no baseline");
            assert!(before <= estimated, "finalists are in the order of their estimates");
            assert!(estimated <= 1.05 * best, "{estimated} beside {best} in {memory_bytes} bytes");
            before = estimated;
            if finalist.judgement.fits(request.memory_share) {
                slower += usize::from(finalist.judgement.step_seconds > best);
                best = best.min(finalist.judgement.step_seconds);
            }
        }
        assert!(outcome.finalists.len() < 64);
    }
    assert!(slower > 0, "every plan was faster than those before");
}

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

#[test]
fn what_a_plan_must_have_it_has_and_nothing_faster_is_left() {
    let graph = model(LARGER);
    let cluster = h100(2, 4, PLENTY);
    let free = Request::new(LARGER, "c", 32);
    for only in [
        Only { tp: Some(4), pp: Some(2), ..Only::default() },
        Only { zero: Some(3), microbatch: Some(2), ..Only::default() },
        Only { dp: Some(2), recompute: Some(Recompute::Block), ..Only::default() },
        Only { cp: Some(2), ..Only::default() },
        // Wider than a node.
        Only { tp: Some(8), ..Only::default() },
    ] {
        let request = Request { only: only.clone(), ..free.clone() };
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        assert_eq!(space.candidates().count(), space.count(), "{only:?}");
        let found = search(&graph, &cluster, &request).expect("a plan");
        let (_, stage) = found.plan.stages().next().expect("a stage");
        let [tp, cp] = [Axis::TP, Axis::CP].map(|axis| stage.mesh.width(axis) as u32);
        // Also those that do not share what ZeRO shards.
        let dp = stage.mesh.size() as u32 / tp / cp;
        let widths = [tp, dp, cp];
        for (asked, width) in [only.tp, only.dp, only.cp].into_iter().zip(widths) {
            assert!(asked.is_none_or(|asked| asked == width), "{only:?}: {widths:?}");
        }
        let meshes: std::collections::BTreeSet<_> =
            found.plan.stages().map(|(_, it)| it.devices.0.clone()).collect();
        assert!(only.pp.is_none_or(|pp| pp as usize == meshes.len()), "{only:?}");
        assert!(only.zero.is_none_or(|zero| zero == found.plan.sync.zero), "{only:?}");
        assert!(only.recompute.is_none_or(|it| it == found.plan.recompute), "{only:?}");
        let samples = 32 / found.plan.microbatches / dp as usize;
        assert!(only.microbatch.is_none_or(|it| it as usize == samples), "{only:?}");
        assert!(found.not_searched[0].contains("asked for"), "{:?}", found.not_searched);
        let faster = search(&graph, &cluster, &free).expect("a plan").judgement.step_seconds;
        assert!(found.judgement.step_seconds >= faster, "{only:?}");
    }
    let request = Request { only: Only { tp: Some(3), ..Only::default() }, ..free.clone() };
    let error = search(&graph, &cluster, &request).expect_err("heads are not divided by 3");
    assert!(error.to_string().contains("no plan of gpt on c has tp 3: widths divide"), "{error}");
    let only = Only { recompute: Some(Recompute::Stage), ..Only::default() };
    let error = search(&graph, &cluster, &Request { only, ..free }).expect_err("no estimate");
    assert!(error.to_string().contains("by stage"), "{error}");
}

/// Somebody who runs pipelines that are cut so, without ZeRO, and on so many devices at most.
#[derive(Debug)]
struct Pipelines {
    cuts: BTreeMap<usize, Vec<usize>>,
    most_devices: u32,
}

impl Runner for Pipelines {
    fn name(&self) -> &str {
        "somebody"
    }

    fn runs_on(&self, _: &Cluster, devices: u32) -> bool {
        devices <= self.most_devices
    }

    fn runs_numbers(&self, numbers: &Uniform, chunks: usize) -> bool {
        self.cuts.contains_key(&numbers.pp) && chunks == 1 && numbers.sync.zero == 0
    }

    fn runs(&self, _: &Cluster, plan: &Plan) -> bool {
        let stages = &plan.pipeline[0].stage;
        let firsts = stages.iter().map(|stage| stage.blocks.0);
        let cut: Vec<usize> = firsts.chain(stages.last().map(|stage| stage.blocks.1)).collect();
        self.cuts.get(&stages.len()) == Some(&cut)
            && plan.sync.zero == 0
            && plan.pipeline.len() == 1
    }

    fn own_cuts(&self) -> Option<&BTreeMap<usize, Vec<usize>>> {
        Some(&self.cuts)
    }
}

#[test]
fn the_fastest_plan_is_found_of_those_that_somebody_runs() {
    let graph = model(LARGER);
    let cluster = h100(1, 4, PLENTY);
    let free = Request::new(LARGER, "c", 32);
    let blocks = graph.blocks().len();
    let of = |cuts: &[&[usize]], most_devices| {
        let cuts = cuts.iter().map(|cut| (cut.len() - 1, cut.to_vec())).collect();
        let runner = Arc::new(Pipelines { cuts, most_devices });
        Request { runner: Some(runner), ..free.clone() }
    };
    let fastest = search(&graph, &cluster, &free).expect("a plan").judgement.step_seconds;
    for (cuts, most_devices) in [
        (&[&[0, 1, blocks][..]][..], 4),
        (&[&[0, 2, 3, 4, blocks], &[0, 4, blocks]], 4),
        (&[&[0, 2, blocks]], 2),
    ] {
        let request = of(cuts, most_devices);
        let runner = request.runner.clone().expect("a runner");
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        assert_eq!(space.candidates().count(), space.count());
        assert!(space.candidates().all(|it| it.cut == Cut::Own && it.zero == 0));
        let found = search(&graph, &cluster, &request).expect("a plan");
        assert!(runner.runs(&cluster, &found.plan), "{}", found.plan.to_toml());
        assert!(found.plan.device_count() <= most_devices as usize && !found.plan.post_validation);
        // No other of them is faster, by simulating all.
        let mut estimator =
            Estimator::new(&graph, &cluster, request.settings()).expect("an estimator");
        for candidate in space.candidates().filter(|it| !it.halves()) {
            let exists = estimator.estimate(&candidate).expect("costs").is_some();
            let plan = request.planned(&graph, &mut estimator, &candidate).expect("costs");
            let Some(plan) = plan.filter(|plan| exists && runner.runs(&cluster, plan)) else {
                continue;
            };
            let judged = judge(&graph, &cluster, &plan).expect("it can be lowered");
            let is_slower = judged.step_seconds >= 0.98 * found.judgement.step_seconds;
            assert!(!judged.fits(request.memory_share) || is_slower, "{}", plan.to_toml());
        }
        assert!(found.judgement.step_seconds >= fastest);
        assert_eq!(found.not_searched[0], "plans that somebody does not run");
    }
    let error = search(&graph, &cluster, &of(&[], 4)).expect_err("none").to_string();
    assert!(error.starts_with("somebody runs no plan of gpt on c: widths"), "{error}");
    let only = Only { tp: Some(4), ..Only::default() };
    let request = Request { only, ..of(&[&[0, 1, blocks]], 4) };
    let error = search(&graph, &cluster, &request).expect_err("none").to_string();
    assert!(error.starts_with("somebody runs no plan of gpt on c with tp 4: widths"), "{error}");
}

#[test]
fn what_was_not_looked_at_is_told_as_far_as_it_was_not() {
    let graph = model(GPT);
    let told = |request: Request| {
        let found = auto(&graph, &h100(1, 1, PLENTY), &request, |_, _| Ok(vec![]));
        found.expect("an answer").not_searched
    };
    let free = Request { finalists: 1, ..Request::new(GPT, "c", 2) };
    let always = told(free.clone());
    let [unflushed, tables, unlike] = &always[..] else { panic!("{always:?}") };
    assert!(unflushed.starts_with("pipedream, "), "{unflushed}");
    assert!(unflushed.ends_with(", which change what is learnt"), "{unflushed}");
    assert_eq!(tables, "chimera-doubling and orders in tables");
    assert_eq!(unlike, "stages that differ in width, layout or recomputation");
    let kinds = ScheduleKind::SEARCHED.into_iter();
    let schedules = kinds.filter(|&it| it != ScheduleKind::ZeroBubbleH1).collect();
    let fewer = told(Request { schedules, ..free.clone() });
    assert_eq!(fewer[0], "zb-h1, which were not asked for");
    assert_eq!(fewer[1..], always);
    let only = Only { tp: Some(1), ..Only::default() };
    let constrained = told(Request { only, ..free });
    assert_eq!(constrained[0], "other widths and policies than those asked for");
    assert_eq!(constrained[1..], always);
}

/// On one device, of which there are few plans.
#[test]
fn a_model_of_thousands_of_blocks_is_simulated_once() {
    let text = "gpt:layers=3000,hidden=8,heads=1,seq=2,vocab=8";
    let graph = model(text);
    let request = Request { fastest_algorithm: true, ..Request::new(text, "c", 1) };
    let no_baseline = |_: &Cluster, _: &Request| -> Result<Vec<Baseline>, SearchError> {
        panic!("a baseline would be simulated")
    };
    let outcome = auto(&graph, &h100(1, 1, PLENTY), &request, no_baseline).expect("a plan");
    assert_eq!((outcome.search.simulated, outcome.baselines.len()), (1, 0));
    assert!(outcome.notes.iter().any(|note| note.contains("3002 blocks")), "{:?}", outcome.notes);
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
        auto(&graph, &cluster, &request, |cluster, request| baselines(&graph, cluster, request))
    };
    let [full, half] = [Precision::FP32, Precision::MIXED].map(|it| found(it).expect("a plan"));
    assert_eq!(half.plan.precision, Precision::MIXED);
    let [full, half] = [full, half].map(|it| it.judgement.step_seconds);
    assert!(half < 0.5 * full, "{half} {full}");
    let error = found(Precision::usual(Number::Fp16)).expect_err("it was not measured").to_string();
    assert!(error.contains("no fp16 rate; it has fp32, bf16"), "{error}");
}
