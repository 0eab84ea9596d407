//! Methods where their plans end: too few devices, blocks, samples or bytes.

use std::collections::BTreeSet;

use shardloom_cluster::{Cluster, NodeGroup, Profile};
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_methods::{Choice, Family, MethodError, all, named};
use shardloom_plan::{
    Number, Optimizer, Plan, Precision, Prediction, Recompute, ScheduleKind, Updates,
};
use shardloom_search::{Request, Trials, judge};

fn graph(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

fn ask(
    method: &str,
    model: &str,
    cluster: &Cluster,
    global_batch: usize,
) -> Result<Choice, MethodError> {
    // Of methods that try strategies one after another a few will do.
    let count = (method == "autosync").then_some(12);
    let trials = Trials { count, ..Trials::default() };
    let request = Request { trials, ..Request::new(model, "cluster", global_batch) };
    named(method).expect("registered").choose(&graph(model), cluster, &request)
}

fn h100(devices: u32, memory_bytes: u64) -> Cluster {
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.device.memory_bytes = memory_bytes;
    Cluster::new(vec![NodeGroup { profile, nodes: 1, devices_per_node: devices }])
        .expect("a cluster")
}

const PLENTY: u64 = 80_000_000_000;
const GPT: &str = "gpt:layers=6,hidden=128,heads=4,seq=64,vocab=512";

#[track_caller]
fn refuses(found: Result<Choice, MethodError>, words: &[&str]) {
    let error = found.expect_err("no plan").to_string();
    for word in words {
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }
}

#[test]
fn one_device_has_no_pipeline() {
    for method in all().iter().filter(|it| it.family.name().contains("pipeline")) {
        let cluster = h100(1, PLENTY);
        let request = Request::new(GPT, "cluster", 8);
        let found = method.choose(&graph(GPT), &cluster, &request);
        match method.name {
            // PipeDream's partition is then data parallelism of width one, a plan like any other.
            "pipedream" => {
                let Choice { plan, notes, .. } = found.expect("a plan");
                assert_eq!((plan.stages().count(), plan.device_count()), (1, 1));
                // And clips like any other.
                assert_eq!((plan.clip_norm, notes), (request.clip_norm, vec![]));
            }
            name => refuses(found, &[name, "devices = 1", "at least 2"]),
        }
    }
}

#[test]
fn pipelines_in_both_directions_want_an_even_number_of_devices() {
    for method in ["chimera", "dualpipe"] {
        refuses(ask(method, GPT, &h100(3, PLENTY), 24), &["devices = 3", "even"]);
    }
}

#[test]
fn stages_need_blocks() {
    let mlp = "mlp:inputs=8,hidden=16,layers=1,classes=2";
    let blocks = graph(mlp).blocks().len();
    let cluster = h100(7, PLENTY);
    refuses(ask("zb-v", mlp, &cluster, 56), &[&format!("blocks = {blocks}"), "14 stages"]);
}

#[test]
fn a_step_needs_micro_batches() {
    let cluster = h100(4, PLENTY);
    refuses(ask("dualpipe", GPT, &cluster, 2), &["global_batch = 2", "at least 4"]);
    refuses(ask("interleaved", GPT, &cluster, 1), &["global_batch = 1", "at least 2"]);
    refuses(ask("chimera", GPT, &cluster, 1), &["global_batch = 1", "even"]);
    refuses(ask("pipedream-2bw", GPT, &cluster, 1), &["global_batch = 1", "at least 2"]);
    refuses(ask("gpipe", GPT, &cluster, 0), &["global_batch = 0"]);
}

#[test]
fn a_flush_takes_every_batch() {
    for (devices, batch) in [2, 3, 8].into_iter().flat_map(|it| (1..=7).map(move |b| (it, b))) {
        let plan = ask("pipedream-flush", GPT, &h100(devices, PLENTY), batch).expect("a plan").plan;
        plan.validate(&graph(GPT), devices as usize).expect("a valid plan");
        assert!(plan.stages().count() > 1 && plan.schedule.flushes());
    }
}

#[test]
fn chimera_takes_every_even_batch() {
    for devices in [2, 4, 6, 8] {
        for batch in (2..=24).step_by(2) {
            let plan = ask("chimera", GPT, &h100(devices, PLENTY), batch).expect("a plan").plan;
            plan.validate(&graph(GPT), devices as usize).expect("a valid plan");
            assert!(plan.microbatches.is_multiple_of(2), "{batch} samples on {devices} devices");
        }
        for batch in [1, 3, 7] {
            let found = ask("chimera", GPT, &h100(devices, PLENTY), batch);
            refuses(found, &[&format!("global_batch = {batch}"), "an even number of samples"]);
        }
    }
    // Four blocks are not enough for the other even depth, and two samples not for another replica.
    let short = "gpt:layers=2,hidden=128,heads=4,seq=64,vocab=512";
    assert_eq!(graph(short).blocks().len(), 4);
    let plan = ask("chimera", short, &h100(6, PLENTY), 2).expect("a plan").plan;
    assert_eq!((plan.device_count(), plan.microbatches), (2, 2));
}

#[test]
fn samples_that_replicas_cannot_share_are_refused_with_a_batch_that_would_do() {
    let profile = Profile::preset("h100-80g").expect("a preset");
    let group = NodeGroup { profile, nodes: 5, devices_per_node: 2 };
    let cluster = Cluster::new(vec![group]).expect("a cluster");
    // Two stages leave room for five replicas; four divide twelve, but get an odd number of samples.
    let words = ["global_batch = 12", "of 5 replicas at most 4 divide", "a multiple of 10"];
    refuses(ask("interleaved", GPT, &cluster, 12), &words);
    let words = ["global_batch = 5", "in each of 5 replicas;", "a multiple of 10"];
    refuses(ask("interleaved", GPT, &cluster, 5), &words);
    for global_batch in [10, 20, 30] {
        assert!(ask("interleaved", GPT, &cluster, global_batch).is_ok(), "{global_batch}");
    }
}

#[test]
fn planners_that_find_no_room_say_so() {
    let cluster = h100(4, 2_000_000);
    for method in ["pipedream-flush", "pipedream-2bw", "chimera"] {
        refuses(ask(method, GPT, &cluster, 8), &["devices = 4", "room in 1."]);
    }
}

#[test]
fn without_flush_nothing_is_validated_afterwards() {
    for method in all() {
        let count = (method.name == "autosync").then_some(12);
        let trials = Trials { count, ..Trials::default() };
        let request = Request::new(GPT, "cluster", 16);
        let request = Request { post_validation: true, trials, ..request };
        let found = method.choose(&graph(GPT), &h100(4, PLENTY), &request);
        match method.family {
            Family::AsynchronousPipeline => {
                refuses(found, &[method.name, "post_validation = true", "flush"]);
            }
            _ if [
                "parameter-server",
                "local-sgd",
                "synchronous-averaging",
                "pair-averaging",
                "adaptive-sgd",
            ]
            .contains(&method.name) =>
            {
                refuses(found, &[method.name, "post_validation = true", "norm"]);
            }
            _ => assert!(found.expect("a plan").plan.post_validation, "{}", method.name),
        }
    }
}

#[test]
fn methods_that_try_no_strategies_one_after_another_refuse_to_measure_any() {
    let (model, cluster) = (graph(GPT), h100(4, PLENTY));
    let request = Request::new(GPT, "cluster", 16);
    for name in ["gpipe", "zero", "pipedream"] {
        let method = named(name).expect("registered");
        let mut measure = |_: &Plan| Ok(1.0);
        let found = method.choose_by_measuring(&model, &cluster, &request, &mut measure);
        refuses(found, &[name, "trials = measured", "it tries no strategies one after another"]);
    }
}

#[test]
fn averages_that_end_are_of_several_replicas() {
    for (devices, batch) in [(1, 8), (4, 1), (2, 3)] {
        let found = ask("adaptive-sgd", GPT, &h100(devices, PLENTY), batch);
        refuses(found, &["adaptive-sgd", &format!("global_batch = {batch}"), "one replica"]);
    }
    let found = ask("adaptive-sgd", GPT, &h100(4, PLENTY), 8).expect("a plan");
    assert_eq!(found.plan.averaging_ends(), Some(1000));
    assert_eq!(found.plan.pipeline[0].stage[0].mesh.dp(), 4);
    // Both parts are simulated, and the other one's time is said.
    let after = found.plan.in_step(1000).into_owned();
    let after = judge(&graph(GPT), &h100(4, PLENTY), &after).expect("a plan").step_seconds;
    let said = format!("a step takes {:.3} ms", 1e3 * after);
    assert!(found.notes.iter().any(|note| note.contains(&said)), "{:?}", found.notes);
}

#[test]
fn effort_is_counted_once_whatever_is_recomputed() {
    // 2, 4 and 8 stages with 30, 60 and 120 micro-batches, each through all blocks, are just about as much as
    // is simulated; with little memory many of them are simulated with several policies of recomputation.
    let model = "mlp:inputs=64,hidden=64,layers=230,classes=4";
    assert!((47_000..50_000).contains(&(210 * graph(model).blocks().len())));
    let roomy = ask("pipemare", model, &h100(8, PLENTY), 512).expect("a plan");
    let peak = roomy.judgement.fullest().expect("a stage").peak_bytes;
    let tight = ask("pipemare", model, &h100(8, peak * 9 / 10), 512).expect("a plan");
    assert_eq!(tight.plan.recompute, Recompute::Full);
    assert_eq!((tight.space, tight.impossible, tight.simulated), (12, 0, 12));
}

#[test]
fn what_does_not_fit_is_refused_with_what_comes_closest() {
    let cluster = h100(4, 2_000_000);
    for method in ["gpipe", "zb-h1", "zero", "pipemare"] {
        refuses(ask(method, GPT, &cluster, 8), &["closest comes", "MiB of the 1.", method]);
    }
}

#[test]
fn what_does_not_fit_is_compared_with_the_memory_that_a_plan_may_take() {
    let large = "gpt:layers=8,hidden=4096,heads=32,seq=64,vocab=512";
    // 95 of 100 parts may be taken.
    for method in ["gpipe", "zb-h1"] {
        refuses(ask(method, large, &h100(2, 2_000_000_000), 8), &["of the 1.77 GiB that"]);
    }
}

#[test]
fn zero_wants_an_algorithm_that_scatters() {
    let request = Request { algorithm: Algorithm::BinaryTree, ..Request::new(GPT, "cluster", 8) };
    let method = named("zero").expect("registered");
    refuses(method.choose(&graph(GPT), &h100(4, PLENTY), &request), &["algorithm", "scatters"]);
}

/// Two blocks make two stages, and four devices two replicas of each.
#[test]
fn pipelines_whose_replicas_cannot_scatter_shard_nothing() {
    const TWO: &str = "mlp:inputs=8,hidden=16,layers=1,classes=2";
    for (algorithm, zero) in [(Algorithm::BinaryTree, 0), (Algorithm::Ring, 1)] {
        let request = Request { algorithm, ..Request::new(TWO, "cluster", 16) };
        let method = named("zb-h1").expect("registered");
        let found = method.choose(&graph(TWO), &h100(4, PLENTY), &request).expect("a plan");
        assert_eq!((found.plan.stages().count(), found.plan.device_count()), (2, 4));
        assert_eq!(found.plan.sync.zero, zero, "{algorithm}");
        assert_eq!(found.plan.validate(&graph(TWO), 4), Ok(()));
    }
}

/// Whichever comes first: stages are equal, so that the least device has to hold one, in 95% of its memory.
#[test]
fn equal_stages_are_planned_for_the_least_device() {
    let group = |memory_bytes: u64| {
        let mut group = h100(2, memory_bytes).groups()[0].clone();
        group.profile.device.name = format!("with-{memory_bytes}");
        group
    };
    for memory in [[PLENTY, 1 << 20], [1 << 20, PLENTY]] {
        let cluster = Cluster::new(memory.map(group).into()).expect("a cluster");
        for method in ["chimera", "pipedream-2bw"] {
            refuses(ask(method, GPT, &cluster, 8), &["has room in 973 KiB"]);
        }
    }
}

#[test]
fn memory_decides_how_much_is_recomputed() {
    // Two samples for two stages leave nothing else to choose but Hanayo's waves, of which one number takes
    // less memory than the other.
    let model = "gpt:layers=6,hidden=128,heads=4,seq=1024,vocab=512";
    for (method, tenths) in [("hanayo", 8), ("zb-h1", 9), ("pipemare", 9)] {
        let on = |memory_bytes| ask(method, model, &h100(2, memory_bytes), 2).expect("a plan");
        let roomy = on(PLENTY);
        assert_eq!(roomy.plan.recompute, Recompute::None);
        let peak = roomy.judgement.fullest().expect("a stage").peak_bytes;
        let tight = on(peak * tenths / 10);
        assert_ne!(tight.plan.recompute, Recompute::None, "{method}");
        assert!(tight.judgement.step_seconds > roomy.judgement.step_seconds, "{method}");
    }
}

#[test]
fn more_memory_never_takes_away_a_plan_of_equal_stages_or_slows_it_down() {
    // These planners go by formulas of memory that differ from what the simulation finds either way.
    let model = "gpt:layers=6,hidden=512,heads=8,seq=1024,vocab=8192,tied=false";
    let methods = ["pipedream-flush", "pipedream-2bw", "chimera"];
    for (method, devices, batch) in methods.iter().flat_map(|it| [(it, 2, 4), (it, 4, 8)]) {
        let mut best: Option<f64> = None;
        let mut policies = BTreeSet::new();
        for megabytes in (80..1400).step_by(20) {
            let mut profile = Profile::preset("a100-40g").expect("a preset");
            profile.device.memory_bytes = megabytes * 1_000_000;
            let group = NodeGroup { profile, nodes: 1, devices_per_node: devices };
            let cluster = Cluster::new(vec![group]).expect("a cluster");
            let found = ask(method, model, &cluster, batch);
            let at = format!("{method} on {devices} devices of {megabytes} MB");
            if let Some(seconds) = best {
                let choice = found.as_ref().unwrap_or_else(|error| panic!("{at}: {error}"));
                assert!(choice.judgement.step_seconds <= seconds, "{at}");
            }
            if let Ok(choice) = found {
                // Everything that its formulas have room for is simulated.
                assert_eq!(choice.simulated, choice.space, "{at}");
                best = Some(choice.judgement.step_seconds);
                policies.insert(choice.plan.recompute.name());
            } else {
                policies.insert("refused");
            }
        }
        // The sweep goes through all that memory decides.
        let expected = ["full", "none", "refused"];
        assert!(policies.iter().eq(&expected), "{method} on {devices}: {policies:?}");
    }
}

#[test]
fn gpipe_computes_stages_again_and_torchgpipe_spares_the_last_micro_batch_whatever_the_memory() {
    for (method, recompute_last) in [("gpipe", true), ("torchgpipe", false)] {
        let plan = ask(method, GPT, &h100(2, PLENTY), 4).expect("a plan").plan;
        assert_eq!((plan.recompute, plan.recompute_last), (Recompute::Stage, recompute_last));
    }
}

#[test]
fn asynchronous_methods_say_that_they_do_not_clip() {
    for method in ["pipedream", "pipedream-2bw", "pipemare", "pipelined-backpropagation"] {
        let found = ask(method, GPT, &h100(4, PLENTY), 16).expect("a plan");
        let told = found.notes.iter().any(|note| note.contains("not clipped"));
        // PipeDream's partition is a single stage here, which waits for nobody.
        let piped = found.plan.stages().count() > 1;
        assert_eq!(piped, method != "pipedream");
        assert_eq!((found.plan.clip_norm.is_none(), told), (piped, piped), "{:?}", found.notes);
        assert!(!found.plan.schedule.flushes());
    }
}

#[test]
fn pipelined_backpropagation_has_a_worker_for_each_of_as_many_stages_as_there_can_be() {
    let short = "gpt:layers=2,hidden=128,heads=4,seq=64,vocab=512";
    for (model, devices, batch, stages, dp) in
        // Four stages on seven devices leave three.
        [
            (GPT, 4, 1, 4, 1),
            (GPT, 4, 8, 4, 1),
            (GPT, 8, 8, 8, 1),
            (short, 8, 8, 4, 2),
            (short, 8, 1, 4, 1),
            (short, 7, 8, 4, 1),
        ]
    {
        let found = ask("pipelined-backpropagation", model, &h100(devices, PLENTY), batch);
        let plan = found.expect("a plan").plan;
        assert_eq!(plan.stages().count(), stages, "{devices} devices");
        assert!(plan.stages().all(|(_, stage)| stage.mesh.dp() == dp), "{devices} devices");
        assert_eq!((plan.microbatches, plan.global_batch), (1, batch));
    }
}

#[test]
fn asynchronous_methods_say_where_shared_parameters_make_stages_wait() {
    for tied in [true, false] {
        let model = format!("{GPT},tied={tied}");
        for method in ["pipelined-backpropagation", "pipemare"] {
            let found = ask(method, &model, &h100(4, PLENTY), 8).expect("a plan");
            assert!(found.plan.stages().count() > 1);
            let told = found.notes.iter().any(|note| note.contains("stages 0 and"));
            assert_eq!(told, tied, "{method}: {:?}", found.notes);
        }
    }
}

#[test]
fn pipedream_replicates_stages_unequally_where_that_is_a_plan() {
    // Embedding and head have weights to exchange over slow links and, of five layers between, less work.
    let model = "gpt:layers=5,hidden=256,heads=4,seq=128,vocab=32000,tied=false";
    let mut profile = Profile::preset("h100-80g").expect("a preset");
    profile.node.intra.bytes_per_second = 1e9;
    let group = NodeGroup { profile, nodes: 1, devices_per_node: 6 };
    let cluster = Cluster::new(vec![group]).expect("a cluster");
    let found = ask("pipedream", model, &cluster, 60).expect("a plan");
    let devices = |stage: usize| -> BTreeSet<u32> {
        let stages = found.plan.pipeline.iter().map(|pipeline| &pipeline.stage[stage]);
        stages.flat_map(|stage| stage.devices.0.clone()).collect()
    };
    let replicas = [0, 1, 2].map(|stage| devices(stage).len());
    assert_eq!(replicas, [1, 4, 1]);
    assert_eq!(found.plan.clip_norm, None);
    assert!(found.notes.iter().any(|note| note.contains("not clipped")), "{:?}", found.notes);
    assert_eq!((found.plan.pipeline.len(), found.plan.microbatches), (4, 4));
    assert_eq!(found.plan.updates, Updates::Round);
}

#[test]
fn pipedream_says_why_its_partition_is_no_plan() {
    // Five samples cannot be dealt to replicas of six devices.
    let found = ask("pipedream", GPT, &h100(6, PLENTY), 5).expect("a plan");
    assert!(found.notes.iter().any(|note| note.contains("partition")), "{:?}", found.notes);
    assert_eq!(found.plan.schedule, ScheduleKind::PipeDream);
}

#[test]
fn pipelined_backpropagation_corrects_what_the_optimizer_defines() {
    let method = named("pipelined-backpropagation").expect("registered");
    let corrections = |optimizer| {
        let request = Request { optimizer, ..Request::new(GPT, "cluster", 16) };
        let found = method.choose(&graph(GPT), &h100(4, PLENTY), &request).expect("a plan");
        let told = found.notes.iter().any(|note| note.contains("spike"));
        (found.plan.weights.corrections(), told)
    };
    let (with_momentum, told) = corrections(Optimizer::sgd(0.9));
    assert_eq!((with_momentum.spike, told), (Some(1.0), false));
    assert_eq!(with_momentum.prediction, Some(Prediction::Velocity));
    let (without, told) = corrections(Optimizer::default());
    assert_eq!((without.spike, told), (None, true));
    assert_eq!(without.prediction, Some(Prediction::Weights));
}

#[test]
fn pipelined_backpropagation_says_what_batch_momentum_is_taken_for() {
    let told = |optimizer| {
        let request = Request { optimizer, ..Request::new(GPT, "cluster", 16) };
        let method = named("pipelined-backpropagation").expect("registered");
        let found = method.choose(&graph(GPT), &h100(4, PLENTY), &request).expect("a plan");
        assert_eq!(found.plan.optimizer, optimizer);
        found
            .notes
            .iter()
            .any(|note| note.contains("16 samples") && note.contains("reference_batch"))
    };
    let scaled = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, reference_batch: Some(128) };
    let optimizers = [Optimizer::sgd(0.9), scaled, Optimizer::sgd(0.0), Optimizer::default()];
    assert_eq!(optimizers.map(told), [true, false, false, false]);
}

#[test]
fn small_numbers_are_planned_or_refused() {
    for layers in [1, 5] {
        let model = format!("gpt:layers={layers},hidden=16,heads=2,seq=4,vocab=16");
        for method in all() {
            for devices in [1, 2, 3, 4, 6, 8] {
                for batch in [1, 3, 12] {
                    match ask(method.name, &model, &h100(devices, PLENTY), batch) {
                        Ok(choice) => {
                            let checked = choice.plan.validate(&graph(&model), devices as usize);
                            assert!(checked.is_ok(), "{}: {checked:?}", method.name);
                        }
                        Err(error) => {
                            assert!(error.to_string().contains(method.name), "{error}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn pipedream_counts_with_what_a_whole_node_sends() {
    let mut profile = Profile::preset("v100-16g").expect("a preset");
    // All of a node's devices share one card.
    profile.node.uplink_bytes_per_second = 5e9;
    profile.node.inter.bytes_per_second = 5e9;
    let group = NodeGroup { profile, nodes: 2, devices_per_node: 4 };
    let cluster = Cluster::new(vec![group]).expect("a cluster");
    let model = "gpt:layers=6,hidden=512,heads=8,seq=512,vocab=512,tied=false";
    let precision = Precision { compute: Number::Fp16, ..Precision::MIXED };
    let request = Request { precision, ..Request::new(model, "cluster", 64) };
    let method = named("pipedream").expect("registered");
    let found = method.choose(&graph(model), &cluster, &request).expect("a plan");
    // A stage on each node, both with as much to compute: what crosses is little beside that.
    let stages = found.plan.pipeline[0].stage.iter().map(|stage| stage.blocks);
    assert_eq!(stages.collect::<Vec<_>>(), [(0, 4), (4, 8)]);
    let of =
        |stage: usize| found.plan.pipeline.iter().map(move |it| it.stage[stage].devices.clone());
    assert!(of(0).all(|list| list.0[0] < 4) && of(1).all(|list| list.0[0] >= 4));
}

#[test]
fn pipedream_works_with_as_many_devices_of_each_node_as_the_smallest_has() {
    let profile = Profile::preset("h100-80g").expect("a preset");
    let nodes = [8, 4].map(|devices_per_node| NodeGroup {
        profile: profile.clone(),
        nodes: 1,
        devices_per_node,
    });
    let cluster = Cluster::new(nodes.to_vec()).expect("a cluster");
    let found = ask("pipedream", GPT, &cluster, 64).expect("a plan");
    // Those of the second node come after all eight of the first.
    let expected = [0, 1, 2, 3, 8, 9, 10, 11];
    assert_eq!(found.plan.devices().into_iter().collect::<Vec<_>>(), expected);
}

/// LAMB looks at whole parameters, of which this model has three.
#[test]
fn there_are_no_more_servers_than_ranges_of_parameters() {
    let model = "mlp:inputs=2,hidden=2,layers=1,classes=2";
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.0 };
    let request = Request { optimizer: lamb, ..Request::new(model, "cluster", 16) };
    let method = named("parameter-server").expect("registered");
    let found = method.choose(&graph(model), &h100(8, PLENTY), &request).expect("a plan");
    assert!(found.plan.sync.servers.is_some_and(|servers| servers.count <= 3));
    assert_eq!(found.simulated, 2, "with 1 server and with 2");
}

#[test]
fn two_devices_are_a_worker_and_a_server_or_two_workers_with_a_server_each() {
    for (method, expected) in
        [("parameter-server", (1, 1)), ("byteps", (2, 0)), ("herring", (1, 1))]
    {
        let found = ask(method, GPT, &h100(1, PLENTY), 8);
        refuses(found, &[method, "devices = 1", "at least 2, a worker and a server"]);
        let plan = ask(method, GPT, &h100(2, PLENTY), 8).expect("a plan").plan;
        let found = (plan.pipeline.len(), plan.sync.own_server_count());
        assert_eq!(found, expected, "{method}");
        assert_eq!(plan.sync.has_colocated_servers(), method == "byteps");
        plan.validate(&graph(GPT), 2).expect("a valid plan");
    }
}

/// Each plan is asked for with less memory than the one before takes.
#[test]
fn workers_take_smaller_micro_batches_and_then_compute_twice_where_memory_is_short() {
    // Activations of a sample outweigh the weights.
    let model = "gpt:layers=6,hidden=64,heads=4,seq=512,vocab=128";
    for method in ["parameter-server", "byteps", "herring"] {
        let (mut memory, mut found) = (PLENTY, vec![]);
        while let Ok(Choice { plan, judgement, .. }) = ask(method, model, &h100(2, memory), 32) {
            let peak = judgement.fullest().expect("a device").peak_bytes;
            assert!(peak < memory, "{method}: {peak} of {memory}");
            assert_eq!(plan.schedule, ScheduleKind::OneForwardOneBackward, "{method}");
            found.push((plan.recompute, plan.microbatches / plan.pipeline.len()));
            memory = peak;
        }
        assert_eq!(found.first(), Some(&(Recompute::None, 1)), "{method}");
        let most = |recompute| found.iter().filter(|it| it.0 == recompute).map(|it| it.1).max();
        assert!(most(Recompute::None).is_some_and(|most| most >= 8), "{method}: {found:?}");
        let (last, _) = found.last().expect("the first");
        assert!(*last != Recompute::None, "{method}: {found:?}");
    }
}

/// Each plan is asked for with less memory than the one before takes.
#[test]
fn replicas_take_smaller_micro_batches_and_compute_twice_only_where_they_share_states() {
    let model = "gpt:layers=4,hidden=64,heads=4,seq=256,vocab=64";
    for (method, twice) in [("data-parallel", false), ("horovod", false), ("zero", true)] {
        let (mut memory, mut found, mut shared) = (PLENTY, vec![], 0);
        while let Ok(Choice { plan, judgement, .. }) = ask(method, model, &h100(2, memory), 16) {
            let peak = judgement.fullest().expect("a device").peak_bytes;
            assert!(peak < memory, "{method}: {peak} of {memory}");
            found.push((plan.recompute == Recompute::None, plan.microbatches));
            (memory, shared) = (peak, plan.sync.zero);
        }
        // What takes least shares parameters, too.
        assert_eq!(shared, if twice { 3 } else { 0 }, "{method}");
        assert_eq!(found.first(), Some(&(true, 1)), "{method}");
        // All of the eight samples of each, one by one.
        assert!(found.contains(&(true, 8)), "{method}: {found:?}");
        assert_eq!(found.iter().any(|it| !it.0), twice, "{method}: {found:?}");
        assert!(found.is_sorted_by_key(|&(once, count)| (!once, count)), "{method}: {found:?}");
    }
}

#[test]
fn a_batch_that_a_refusal_names_would_do() {
    let model = "gpt:layers=6,hidden=16,heads=2,seq=4,vocab=16";
    let mut named = BTreeSet::new();
    for method in all().iter().filter(|it| it.family.name().contains("pipeline")) {
        for (devices, batch) in [(2, 1), (4, 3), (6, 5)] {
            let cluster = h100(devices, PLENTY);
            let Err(error) = ask(method.name, model, &cluster, batch) else { continue };
            let text = error.to_string();
            let Some((before, _)) = text.split_once(" samples would do") else { continue };
            let Some((_, number)) = before.rsplit_once("a multiple of ") else { continue };
            let number: usize = number.parse().expect("a number");
            let found = ask(method.name, model, &cluster, number);
            assert!(found.is_ok(), "{} on {devices}: {number} after {text}", method.name);
            named.insert(method.name);
        }
    }
    assert!(named.len() > 5, "{named:?}");
}

/// Replicas hold 6 bytes of each parameter and a share of 12, or 2 and a share of 16, or a share of 18; what is there
/// besides is little.
#[test]
fn zero_shares_out_no_more_than_the_memory_wants() {
    let model = "mlp:inputs=64,hidden=1024,layers=40,classes=16";
    let parameters = graph(model).parameter_count() as f64;
    for devices in [3, 4, 8] {
        let part = 1.0 / f64::from(devices);
        let needs = [6.0 + 12.0 * part, 2.0 + 16.0 * part, 18.0 * part];
        let between = |more: f64, less: f64| (more + less) / 2.0;
        for (bytes, stage) in [
            (between(20.0, needs[0]), 1),
            (between(needs[0], needs[1]), 2),
            (between(needs[1], needs[2]), 3),
        ] {
            // Of which 95 of 100 may be taken.
            let cluster = h100(devices, (bytes * parameters / 0.95) as u64);
            let plan = ask("zero", model, &cluster, 4 * devices as usize).expect("a plan").plan;
            assert_eq!(plan.sync.zero, stage, "{bytes} bytes each on {devices} devices");
        }
        let cluster = h100(devices, (0.9 * needs[2] * parameters / 0.95) as u64);
        refuses(ask("zero", model, &cluster, 4 * devices as usize), &["zero"]);
    }
}

#[test]
fn replicas_are_averaged_as_often_as_is_said() {
    let Choice { plan, notes, .. } = ask("local-sgd", GPT, &h100(4, PLENTY), 8).expect("a plan");
    assert_eq!(plan.sync.averaging.map(|it| it.every), Some(8));
    assert!(notes.iter().any(|note| note.contains("averaged every 8 steps")), "{notes:?}");
}

/// Fewer leave devices idle that these schedules are for filling.
#[test]
fn pipelines_whose_gaps_are_filled_have_a_micro_batch_for_each_of_their_devices() {
    let (mut planned, mut refused) = (0, 0);
    for method in ["hanayo", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min"] {
        for (devices, batch) in [(2, 1), (2, 2), (3, 2), (3, 6), (4, 2), (4, 3), (4, 4)] {
            match ask(method, GPT, &h100(devices, PLENTY), batch) {
                Ok(Choice { plan, .. }) => {
                    let stages = plan.pipeline[0].stage.iter();
                    let depth = stages.map(|it| &it.devices.0).collect::<BTreeSet<_>>().len();
                    assert!(depth > 1 && plan.microbatches >= depth, "{method}: {batch} samples");
                    planned += 1;
                }
                found => {
                    refuses(found, &[method, &format!("global_batch = {batch}"), "at least"]);
                    refused += 1;
                }
            }
        }
    }
    assert!(planned > 20 && refused > 10, "{planned} plans, {refused} refusals");
}

/// Weights in 16 bits and gradients in 32 are six bytes for each parameter, and all workers have both.
#[test]
fn models_whose_weights_and_gradients_no_device_has_room_for_have_no_workers() {
    // But for the tables of 512 words and 64 positions of 128 numbers, which may lie on servers.
    let bytes = 6 * (graph(GPT).parameter_count() - (512 + 64) * 128);
    let words = ["workers have no room for the model", "zero or megatron-lm"];
    for method in ["parameter-server", "byteps", "herring", "parallax", "autosync"] {
        // Searches leave a twentieth of memory.
        refuses(ask(method, GPT, &h100(4, bytes), 8), &words);
        let roomy = h100(4, 20 * bytes);
        ask(method, GPT, &roomy, 8).unwrap_or_else(|error| panic!("{method}: {error}"));
    }
}

/// Of sixteen samples there are five sizes of micro-batches, with and without recomputation: where the least of them do
/// not fit after the largest, no other is tried.
#[test]
fn what_takes_least_memory_is_tried_before_all_that_takes_more() {
    let bytes = graph(GPT).parameter_count();
    // A worker has weights and gradients in 32 bits, which are eight bytes.
    refuses(ask("parameter-server", GPT, &h100(2, 7 * bytes), 16), &["(2 simulated)"]);
    let choice = ask("parameter-server", GPT, &h100(2, 20 * bytes), 16).expect("small ones fit");
    assert!(choice.plan.microbatches > 1, "{}", choice.plan.microbatches);
}

/// Tables lie on Parallax's servers: no device has room for all of them, and each for its part.
#[test]
fn tables_that_no_worker_has_room_for_lie_on_servers() {
    let model = "dlrm:dense=4,rows=400000-400000-400000-400000,embed=16,bottom=16,top=16";
    let of_all = 8 * graph(model).parameter_count();
    let choice = ask("parallax", model, &h100(8, of_all / 2), 16).expect("they are shared out");
    let tables: Vec<_> =
        choice.plan.parameters.iter().filter(|it| it.sparse == Some(true)).collect();
    assert_eq!(tables.len(), 4);
}
