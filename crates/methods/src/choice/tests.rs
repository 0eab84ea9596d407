//! Configurations in the order in which they are tried, and what is said of plans.

use shardloom_cluster::{Cluster, NodeGroup, PlanDefaults, Profile};
use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, DeviceList, Mesh, Optimizer, ParameterGroup, Precision, Weights};

use super::*;
use crate::cut::Cut;

const GPT: &str = "gpt:layers=6,hidden=128,heads=4,seq=64,vocab=512,tied=true";

fn graph() -> Graph {
    ModelSpec::parse(GPT).and_then(|spec| spec.graph()).expect("a model")
}

fn h100(devices: u32, memory_bytes: u64) -> Cluster {
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.device.memory_bytes = memory_bytes;
    Cluster::new(vec![NodeGroup { profile, nodes: 1, devices_per_node: devices }])
        .expect("a cluster")
}

/// All of 64 samples in a pipeline of two stages, in so many micro-batches.
fn configuration(microbatches: usize) -> Configuration {
    Configuration {
        pp: 2,
        mesh: Mesh::SINGLE,
        sequence_parallel: false,
        microbatches,
        samples: 64 / microbatches,
        chunks: 1,
        schedule: ScheduleKind::Afab,
        weights: Weights::Flush,
        zero: 0,
        cut: Cut::Even,
        recompute: vec![Recompute::None],
        recompute_last: true,
        timed: false,
        post_validation: false,
    }
}

/// The most that a device holds with these micro-batches and recomputation.
fn held(microbatches: usize, recompute: Recompute) -> u64 {
    let (graph, cluster, request) = (graph(), h100(2, 1 << 40), Request::new(GPT, "cluster", 64));
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let plan = task.plan(&configuration(microbatches), recompute).expect("a plan");
    let judgement = judge(&graph, &cluster, &plan).expect("it can be simulated");
    judgement.memory.iter().map(|it| it.peak_bytes).max().expect("two devices")
}

/// Some are not simulated where there are many, and also where there are few that take long.
#[test]
fn configurations_are_put_in_order_where_they_are_many_or_take_long() {
    let (graph, cluster, request) = (graph(), h100(2, 1 << 40), Request::new(GPT, "cluster", 64));
    let task = Task::new("a method", &graph, &cluster, &request);
    let is_too_much =
        |count, microbatches| task.is_too_much(&vec![configuration(microbatches); count]);
    let many = EFFORT / graph.blocks().len() / 2;
    assert!(!is_too_much(MOST_SIMULATED, 2) && is_too_much(MOST_SIMULATED + 1, 2));
    let long = Configuration { microbatches: many, ..configuration(64) };
    let long = |count| task.is_too_much(&vec![long.clone(); count]);
    assert!(!long(2) && long(3));
}

/// However many are tried before.
#[test]
fn configurations_are_simulated_until_one_fits() {
    let (large, small) = (held(2, Recompute::None), held(16, Recompute::Full));
    assert!(2 * small < large, "{small} and {large}");
    let (graph, cluster) = (graph(), h100(2, (small + large) / 2));
    let request = Request { memory_share: 1.0, ..Request::new(GPT, "cluster", 64) };
    let fits = Configuration { recompute: vec![Recompute::Full], ..configuration(16) };
    let most = MOST_SIMULATED;
    for before in [0, 1, most - 1, most, most + 1, 2 * most] {
        let mut configurations = vec![configuration(2); before];
        // One that fits is enough beyond the most that are simulated.
        configurations.extend(vec![fits.clone(); 3]);
        let mut task = Task::new("a method", &graph, &cluster, &request);
        let choice = task.fastest(&configurations).expect("one of them fits");
        assert_eq!(choice.plan.microbatches, 16);
        assert_eq!(choice.simulated, (before + 1).max(most.min(before + 3)), "{before} before it");
        assert_eq!(choice.space, before + 3);
    }
}

#[test]
fn what_stands_in_the_way_of_a_plan_is_said_with_the_method_and_what_would_be_right() {
    let (graph, cluster, request) = (graph(), h100(2, 1 << 30), Request::new(GPT, "cluster", 64));
    let task = Task::new("a method", &graph, &cluster, &request);
    let error = task.impossible("devices", 7, "an even number");
    let text = "a method has no plan here: devices = 7: an even number";
    assert_eq!(error.to_string(), text);
    let MethodError::Impossible { method, key, value, rule } = error else { panic!("{error}") };
    assert_eq!((method, key), ("a method", "devices"));
    assert_eq!((value.as_str(), rule.as_str()), ("7", "an even number"));
}

#[test]
fn without_a_configuration_the_blocks_are_named() {
    let (graph, cluster, request) = (graph(), h100(2, 1 << 30), Request::new(GPT, "cluster", 64));
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let error = task.fastest(&[]).expect_err("there is nothing to choose from");
    assert!(matches!(error, MethodError::Impossible { key: "blocks", .. }), "{error}");
}

#[test]
fn rules_that_lead_to_no_plan_are_counted_as_impossible() {
    let (graph, cluster, request) = (graph(), h100(2, 1 << 40), Request::new(GPT, "cluster", 64));
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let plan = task.plan(&configuration(4), Recompute::None).expect("a plan");
    let judgement = judge(&graph, &cluster, &plan).expect("it can be simulated");
    let found = Baseline { name: "one", fits: true, plan: Some(plan), judgement: Some(judgement) };
    let none = || Baseline { name: "none", fits: false, plan: None, judgement: None };
    let choice = task.by_rules(vec![none(), found, none()]).expect("one of them has a plan");
    assert_eq!((choice.space, choice.simulated, choice.impossible), (3, 1, 2));
    let error = task.by_rules(vec![none()]).expect_err("none has a plan");
    assert!(matches!(error, MethodError::Impossible { key: "global_batch", .. }), "{error}");
}

/// Both ends of the model read the tied embedding.
#[test]
fn stages_on_the_same_devices_do_not_wait_for_each_other_for_what_they_share() {
    let (graph, cluster, request) = (graph(), h100(2, 1 << 40), Request::new(GPT, "cluster", 64));
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let mut plan = task.plan(&configuration(4), Recompute::None).expect("a plan");
    let note = task.shared_note(&plan).expect("two devices share it");
    assert!(note.starts_with("stages 0 and 1 share embedding"), "{note}");
    for stage in &mut plan.pipeline[0].stage {
        stage.devices = DeviceList(vec![0]);
    }
    assert_eq!(task.shared_note(&plan), None);
}

/// Fewer micro-batches, and as much time and memory as is said.
fn judged(step_seconds: f64, peak_bytes: u64) -> (Plan, Judgement) {
    let (graph, cluster) = (graph(), h100(2, 1000));
    let request = Request::new(GPT, "cluster", 64);
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let plan = task.plan(&configuration(2), Recompute::None).expect("a plan");
    let mut judgement = judge(&graph, &cluster, &plan).expect("it can be simulated");
    judgement.step_seconds = step_seconds;
    for fit in &mut judgement.memory {
        (fit.peak_bytes, fit.memory_bytes) = (peak_bytes, 1000);
    }
    (plan, judgement)
}

#[test]
fn of_equally_fast_plans_the_first_is_kept_and_of_those_that_do_not_fit_the_smallest() {
    let (graph, cluster) = (graph(), h100(2, 1000));
    let request = Request { memory_share: 0.5, ..Request::new(GPT, "cluster", 64) };
    let task = Task::new("a method", &graph, &cluster, &request);
    let mut selection = Selection::new(0.5);
    let mut fits = vec![];
    // Seconds, bytes and micro-batches.
    for (seconds, bytes, microbatches) in
        [(1.0, 501, 1), (3.0, 500, 2), (2.0, 400, 4), (2.0, 300, 8), (2.5, 100, 16)]
    {
        let (plan, judgement) = judged(seconds, bytes);
        fits.push(selection.offer(Plan { microbatches, ..plan }, judgement));
    }
    assert_eq!(fits, [false, true, true, true, true]);
    let Ok(found) = selection.finish(&task) else { panic!("four fit") };
    assert_eq!(found.plan.microbatches, 4);
    let mut selection = Selection::new(0.5);
    for (seconds, bytes) in [(1.0, 900), (3.0, 700), (2.0, 700)] {
        let (plan, judgement) = judged(seconds, bytes);
        assert!(!selection.offer(plan, judgement) && !selection.fits());
    }
    let Err(Some(error)) = selection.finish(&task) else { panic!("none fits") };
    let MethodError::NothingFits { simulated, needed_bytes, available_bytes, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((simulated, needed_bytes, available_bytes), (3, 700, 500));
}

/// Blocks that are frozen go forward only, so that what is computed again is a larger part of them.
#[test]
fn stages_whose_forward_passes_run_again_are_cut_for_two_of_these() {
    let text = "gpt:layers=8,hidden=128,heads=4,seq=64,vocab=64";
    let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
    let frozen = ["embedding.*", "block.{0,1,2,3,4,5}.*"];
    let frozen =
        frozen.map(|names| ParameterGroup { frozen: true, ..ParameterGroup::named(names) });
    let request = Request { frozen: frozen.into(), ..Request::new(text, "cluster", 64) };
    let cluster = h100(2, 1 << 40);
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let layers = task.layers(16).expect("profiles").to_vec();
    // The block that the second stage begins with where the slower stage takes the least.
    let best = |forwards: f64| {
        let seconds = |of: &[LayerProfile]| -> f64 {
            of.iter().map(|it| forwards * it.forward_seconds + it.backward_seconds).sum()
        };
        let slowest = |&cut: &usize| seconds(&layers[..cut]).max(seconds(&layers[cut..]));
        (1..layers.len()).min_by(|a, b| slowest(a).total_cmp(&slowest(b))).expect("some cut")
    };
    assert!(best(2.0) < best(1.0), "{} and {}", best(2.0), best(1.0));
    let configuration = Configuration { cut: Cut::LeastSlowest, ..configuration(4) };
    for (recompute, forwards) in
        [(Recompute::None, 1.0), (Recompute::Selective, 1.0), (Recompute::Full, 2.0)]
    {
        let plan = task.plan(&configuration, recompute).expect("a plan");
        assert_eq!(plan.pipeline[0].stage[1].blocks.0, best(forwards), "{recompute:?}");
    }
}

/// Of a device with less memory a plan may take more than of one with more.
#[test]
fn of_plans_that_do_not_fit_the_one_that_fills_its_fullest_device_least_comes_closest() {
    let (graph, cluster) = (graph(), h100(2, 1000));
    let request = Request { memory_share: 0.5, ..Request::new(GPT, "cluster", 64) };
    let task = Task::new("a method", &graph, &cluster, &request);
    // Bytes of memory and those that are held, of two devices each.
    let offered: [[(u64, u64); 2]; 4] = [
        [(1000, 900), (4000, 100)],
        [(4000, 3200), (1000, 100)],
        [(2000, 1500), (1000, 740)],
        [(1000, 100), (1000, 800)],
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut selection = Selection::new(0.5);
        for devices in order.map(|it| offered[it]) {
            let (plan, mut judgement) = judged(1.0, 0);
            for (fit, (memory, held)) in judgement.memory.iter_mut().zip(devices) {
                (fit.memory_bytes, fit.peak_bytes) = (memory, held);
            }
            assert!(!selection.offer(plan, judgement));
        }
        let Err(Some(error)) = selection.finish(&task) else { panic!("none fits") };
        let MethodError::NothingFits { needed_bytes, available_bytes, .. } = error else {
            panic!("{error}");
        };
        // Three quarters, of which half may be filled.
        assert_eq!((needed_bytes, available_bytes), (1500, 1000));
    }
}

#[test]
fn plans_have_the_words_of_the_request_and_of_the_configuration() {
    let (graph, cluster) = (graph(), h100(2, 1 << 40));
    for bits in 0..32 {
        let [keeps_gathered, recompute_last, flushes, of_method, of_request] =
            [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1 == 1);
        let plan_defaults = PlanDefaults { keeps_gathered, ..PlanDefaults::NONE };
        let request = Request {
            optimizer: Optimizer::sgd(0.5),
            clip_norm: Some(0.75),
            bucket_bytes: 12_345,
            post_validation: of_request,
            plan_defaults,
            frozen: vec![ParameterGroup { frozen: true, ..ParameterGroup::named("block.0.*") }],
            ..Request::new(GPT, "cluster", 64)
        };
        let schedule = if flushes { ScheduleKind::Afab } else { ScheduleKind::PipeDream };
        let configuration = Configuration {
            schedule,
            weights: schedule.usual_weights(),
            recompute_last,
            post_validation: of_method,
            ..configuration(4)
        };
        let mut task = Task::new("a method", &graph, &cluster, &request);
        let plan = task.plan(&configuration, Recompute::Block).expect("a plan");
        assert_eq!((&plan.model[..], &plan.cluster[..]), (GPT, "cluster"));
        assert_eq!((plan.global_batch, plan.microbatches), (64, 4));
        assert_eq!((plan.schedule, plan.weights), (schedule, schedule.usual_weights()));
        assert_eq!((plan.recompute, plan.recompute_last), (Recompute::Block, recompute_last));
        assert_eq!(plan.keeps_gathered, keeps_gathered);
        // There is no norm of all gradients without a flush.
        assert_eq!(plan.clip_norm, flushes.then_some(0.75));
        assert_eq!(plan.post_validation, of_method || of_request);
        assert_eq!((plan.optimizer, plan.precision), (request.optimizer, request.precision));
        assert_eq!((plan.sync.bucket_bytes, plan.sync.algorithm), (12_345, request.algorithm));
        assert_eq!(plan.parameters, request.frozen);
        assert_eq!(plan.pass_times, PassTimes::default());
    }
}

/// Heads are divided, and the vocabulary where it can be.
#[test]
fn tensor_parallel_plans_are_valid_whatever_the_vocabulary() {
    for (width, vocab) in [1, 2, 4].into_iter().flat_map(|it| (509..=512).map(move |v| (it, v))) {
        let text = format!("gpt:layers=2,hidden=64,heads=4,seq=32,vocab={vocab}");
        let graph = ModelSpec::parse(&text).and_then(|spec| spec.graph()).expect("a model");
        let (cluster, request) = (h100(4, 1 << 40), Request::new(&text, "cluster", 64));
        let mut task = Task::new("a method", &graph, &cluster, &request);
        let configuration =
            Configuration { pp: 1, mesh: Mesh::of(1, 1, width), ..configuration(4) };
        let plan = task.plan(&configuration, Recompute::None).expect("a plan");
        assert_eq!(plan.validate(&graph, 4), Ok(()), "width {width}, vocabulary {vocab}");
        if width > 1 {
            let splits = |dim| plan.layout.splits(dim, Axis::TP);
            assert!(splits("heads") && splits("ffn"), "{:?}", plan.layout);
            assert_eq!(splits("vocab"), vocab % width == 0, "width {width}, vocabulary {vocab}");
        }
    }
}

/// Whatever others there are.
#[test]
fn blocks_are_timed_on_the_first_device_with_the_samples_that_are_asked_for() {
    let graph = graph();
    for (cluster, first) in
        [("h100-80g:1+v100-16g:1", "h100-80g:1"), ("v100-16g:1+h100-80g:1", "v100-16g:1")]
    {
        let request = Request { precision: Precision::FP32, ..Request::new(GPT, cluster, 64) };
        let [cluster, first] = [cluster, first].map(|it| Cluster::parse(it).expect("presets"));
        let mut task = Task::new("a method", &graph, &cluster, &request);
        for samples in [4, 16, 4] {
            let formats = (Precision::FP32, &[][..]);
            let alone = profile(&graph, &first, DeviceId(0), formats, samples).expect("a profile");
            assert_eq!(task.layers(samples).expect("profiles"), alone, "{samples} samples");
        }
    }
}

/// Which are fewer where there are more micro-batches, or more replicas that share one. The head's work grows with
/// them, while short kernels take what launching them does.
#[test]
fn stages_are_cut_for_what_blocks_take_with_the_samples_of_one_replica() {
    let text = "gpt:layers=8,hidden=64,heads=4,seq=64,vocab=32768";
    let graph = ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model");
    let cluster = Cluster::parse("h100-80g:4x8").expect("a preset");
    let request = Request::new(text, "cluster", 64);
    let mut task = Task::new("a method", &graph, &cluster, &request);
    let mut cuts = BTreeSet::new();
    for (dp, microbatches) in [(1, 1), (1, 16), (1, 64), (2, 2), (4, 1), (8, 8), (16, 1), (16, 4)] {
        let samples = 64 / microbatches / dp as usize;
        let layers = task.layers(samples).expect("profiles").to_vec();
        let seconds = |of: &[LayerProfile]| -> f64 { of.iter().map(LayerProfile::seconds).sum() };
        let slowest = |cut: usize| seconds(&layers[..cut]).max(seconds(&layers[cut..]));
        let least = (1..layers.len()).map(slowest).fold(f64::INFINITY, f64::min);
        let mesh = Mesh::of(dp, 1, 1);
        let cut = Cut::LeastSlowest;
        let configuration = Configuration { mesh, samples, cut, ..configuration(microbatches) };
        let plan = task.plan(&configuration, Recompute::None).expect("a plan");
        let found = plan.pipeline[0].stage[1].blocks.0;
        assert!(slowest(found) <= least * (1.0 + 1e-9), "{dp} replicas of {microbatches}: {found}");
        cuts.insert(found);
    }
    assert!(cuts.len() > 1, "{cuts:?}");
}
