//! Replicas of stages that take micro-batches in turn (1F1B-RR, Narayanan et al. 2019): who does what in
//! a real run, under both clocks; what is held; and what checkpoints keep.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Samples, graph, serial, trainer, trainer_with_clock};
use shardloom_checkpoint::{Checkpoint, Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{
    Arrangement, DeviceList, Optimizer, Pipeline, Plan, ScheduleKind, Uniform, Updates, Weights,
};
use shardloom_program::timeline::{Activity, Lane};
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::{RunClock, Trainer};

/// Big weights, small activations, so that versions show.
fn wide() -> Graph {
    graph("gpt:layers=6,hidden=64,heads=2,seq=4,vocab=32")
}

fn samples() -> Samples {
    Samples::patterned(32, 4, 32)
}

/// A step is one turn of all stages.
fn plan(graph: &Graph, replicas: &[usize], weights: Weights, updates: Updates) -> Plan {
    let places = Arrangement::taking_turns(replicas).expect("few turns");
    let uniform = Uniform {
        pp: replicas.len(),
        global_batch: places.len(),
        microbatches: places.len(),
        schedule: ScheduleKind::PipeDream,
        optimizer: Optimizer::sgd(0.0),
        clip_norm: None,
        ..serial()
    };
    let mut plan = uniform.plan(graph, "model", "local");
    let chain = plan.pipeline.remove(0).stage;
    let pipeline = |devices: &Vec<usize>| {
        let mut stage = chain.clone();
        for (stage, &device) in stage.iter_mut().zip(devices) {
            stage.devices = DeviceList(vec![device as u32]);
        }
        Pipeline::of(stage)
    };
    plan.pipeline = places.iter().map(pipeline).collect();
    (plan.weights, plan.updates) = (weights, updates);
    plan
}

/// Three and four ranks.
const CONFIGURATIONS: [&[usize]; 4] = [&[2, 1], &[1, 2], &[1, 2, 1], &[2, 2]];

#[test]
fn the_executed_timeline_equals_the_simulators_on_the_recorded_durations() {
    let graph = wide();
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    for replicas in CONFIGURATIONS {
        for updates in [Updates::Step, Updates::Round] {
            let plan = plan(&graph, replicas, Weights::Stash, updates);
            let clock = RunClock::Virtual(cluster.clone());
            let mut trainer = trainer_with_clock(&graph, &plan, samples(), 1e-2, clock);
            let steps = 5;
            let (_, executed) = trainer.train_steps_recorded(steps).expect("steps");
            let recording = trainer.recording().expect("the virtual clock records");
            let options = Options { steps, folded: false };
            let simulated =
                run(trainer.program(), &cluster, options, &mut Recorded::new(recording))
                    .expect("the recording is of this program");
            assert!(executed.makespan() > Default::default());
            assert_eq!(simulated.timeline, executed, "{replicas:?}");
        }
    }
}

#[test]
fn both_clocks_train_bitwise_alike() {
    let graph = wide();
    for replicas in CONFIGURATIONS {
        let plan = plan(&graph, replicas, Weights::VerticalSync, Updates::Round);
        let clock = RunClock::Virtual(Cluster::parse("a100-40g:8").expect("a preset"));
        let mut in_virtual_time = trainer_with_clock(&graph, &plan, samples(), 1e-2, clock);
        let mut in_real_time = trainer(&graph, &plan, samples(), 1e-2);
        let outcome = |trainer: &mut Trainer| {
            let steps = trainer.train_steps(6).expect("steps");
            let losses: Vec<f64> = steps.iter().map(|step| step.loss).collect();
            let validation = trainer.validate(2).expect("an evaluation");
            (losses, validation, trainer.weights_digest().expect("weights"))
        };
        assert_eq!(outcome(&mut in_virtual_time), outcome(&mut in_real_time), "{replicas:?}");
        assert_eq!(in_virtual_time.sent_bytes_per_rank(), in_real_time.sent_bytes_per_rank());
    }
}

#[test]
fn in_a_real_run_micro_batch_k_goes_to_replica_k_mod_r_forward_and_backward() {
    let graph = wide();
    let steps = 4;
    for replicas in CONFIGURATIONS {
        let plan = plan(&graph, replicas, Weights::Stash, Updates::Round);
        let mut trainer = trainer(&graph, &plan, samples(), 1e-2);
        let (_, timeline) = trainer.train_steps_recorded(steps).expect("steps");
        let all = steps * plan.microbatches as u32;
        let mut tracks = timeline.tracks.iter();
        for (stage, &count) in replicas.iter().enumerate() {
            for replica in 0..count as u32 {
                let track = tracks.next().expect("a rank for each replica");
                let place = match count {
                    1 => format!("stage {stage}"),
                    _ => format!("stage {stage}, replica {replica}"),
                };
                assert_eq!(track.place, place);
                let own: BTreeSet<u32> =
                    (0..all).filter(|number| number % count as u32 == replica).collect();
                for activity in [Activity::Forward, Activity::Backward] {
                    let passes = track.intervals.iter();
                    let passes =
                        passes.filter(|it| it.lane == Lane::Compute && it.activity == activity);
                    let found: BTreeSet<u32> = passes.filter_map(|it| it.microbatch).collect();
                    assert_eq!(found, own, "{replicas:?}, {place}, {activity:?}");
                }
            }
        }
    }
}

/// For each stage how many micro-batches its replicas together are ahead when they begin to go backward.
fn ahead(replicas: &[usize]) -> Vec<usize> {
    let mut ahead = vec![0; replicas.len()];
    for stage in (0..replicas.len() - 1).rev() {
        ahead[stage] = (ahead[stage + 1] + replicas[stage + 1]).next_multiple_of(replicas[stage]);
    }
    ahead
}

/// The versions that each replica holds by the formula: from the oldest with which a micro-batch may run
/// to the newest there is when it goes backward.
fn versions(replicas: &[usize], weights: Weights, updates: Updates) -> Vec<usize> {
    let turns = Arrangement::taking_turns(replicas).expect("few turns").len();
    let between = |stage: usize| match updates {
        Updates::Step => turns,
        Updates::Round => replicas[stage],
    };
    let ahead = ahead(replicas);
    let versions = |stage: usize| {
        let held = |microbatch: usize| {
            let used = match weights {
                Weights::Stash => (microbatch - ahead[stage]) / between(stage),
                _ => (microbatch - ahead[0]) / between(0) * between(0) / between(stage),
            };
            microbatch / between(stage) - used + 1
        };
        // Micro-batches in the middle of a long run.
        (100 * turns..101 * turns).map(held).max().expect("a micro-batch")
    };
    let stages = replicas.iter().enumerate();
    stages.flat_map(|(stage, &count)| vec![versions(stage); count]).collect()
}

#[test]
fn replicas_hold_as_many_versions_as_the_formula_says_counted_in_the_allocator() {
    let graph = wide();
    for replicas in CONFIGURATIONS {
        for weights in [Weights::Stash, Weights::VerticalSync] {
            for updates in [Updates::Step, Updates::Round] {
                let plan = plan(&graph, replicas, weights, updates);
                let mut trainer = trainer(&graph, &plan, samples(), 1e-2);
                trainer.train_steps(12).expect("steps");
                let program = trainer.program();
                let counted = program.classes().zip(trainer.peak_bytes_per_rank());
                let found = counted.map(|((_, class), &counted)| {
                    let memory = class.memory_use(program, 0);
                    let near = memory.peak_bytes..memory.peak_bytes + memory.peak_bytes / 50;
                    assert!(near.contains(&counted), "{replicas:?}: {counted} of {memory:?}");
                    let one: usize = class.buckets.iter().map(|it| 4 * it.elements).sum();
                    assert_eq!(memory.persistent.weights % one as u64, 0);
                    memory.persistent.weights as usize / one
                });
                let found: Vec<usize> = found.collect();
                let expected = versions(replicas, weights, updates);
                assert_eq!(found, expected, "{replicas:?} {weights:?} {updates:?}");
            }
        }
    }
}

#[test]
fn stashing_after_every_round_holds_a_version_for_each_micro_batch_in_flight() {
    let stashed = |replicas: &[usize]| versions(replicas, Weights::Stash, Updates::Round);
    assert_eq!(stashed(&[2, 1]), [2, 2, 1]);
    assert_eq!(stashed(&[1, 2]), [3, 1, 1]);
    assert_eq!(stashed(&[1, 2, 1]), [5, 2, 2, 1]);
}

fn saved(trainer: &mut Trainer) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    trainer.save(folder.path(), Meta::default(), None).expect("a checkpoint");
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    (folder, latest.expect("the checkpoint").0)
}

/// What a checkpoint says of updates.
fn noted(checkpoint: &Checkpoint) -> BTreeMap<String, u64> {
    let extra = checkpoint.meta().extra.iter().filter(|(key, _)| key.starts_with("updates"));
    extra.map(|(key, text)| (key.clone(), text.parse().expect("a number"))).collect()
}

fn train(trainer: &mut Trainer, steps: u32) -> Vec<f64> {
    trainer.train_steps(steps).expect("steps").iter().map(|step| step.loss).collect()
}

#[test]
fn a_checkpoint_keeps_how_often_each_stage_was_updated() {
    let graph = wide();
    let adamw = Optimizer::default();
    let mut turns = plan(&graph, &[1, 2], Weights::Stash, Updates::Round);
    turns.optimizer = adamw;
    let mut whole = trainer(&graph, &turns, samples(), 1e-2);
    train(&mut whole, 4);
    let (_folder, checkpoint) = saved(&mut whole);
    let counts = noted(&checkpoint);
    // The first stage has a round in every micro-batch, the second in every other.
    assert_eq!(counts["updates"], 8);
    assert_eq!(counts["updates/head.weight"], 4);
    assert!(!counts.contains_key("updates/embedding.token"), "{counts:?}");
    let mut resumed = trainer(&graph, &turns, samples(), 1e-2);
    resumed.resume(checkpoint).expect("the same model");
    assert_eq!(train(&mut resumed, 5), train(&mut whole, 5));
    let digests = [&mut resumed, &mut whole].map(|it| it.weights_digest().expect("weights"));
    assert_eq!(digests[0], digests[1]);

    // Another plan goes on from there.
    let uniform = Uniform { global_batch: 2, optimizer: adamw, clip_norm: None, ..serial() };
    let mut alone = trainer(&graph, &uniform.plan(&graph, "model", "local"), samples(), 1e-2);
    let (_folder, checkpoint) = saved(&mut resumed);
    alone.resume(checkpoint).expect("the same model");
    train(&mut alone, 1);
    let (_folder, checkpoint) = saved(&mut alone);
    let counts = noted(&checkpoint);
    assert_eq!((counts["updates"], counts["updates/head.weight"]), (19, 10));
}
