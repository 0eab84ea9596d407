//! Workers of parameter servers that update by themselves and push what that has changed: what each keeps, bytes and
//! memory. What runs come to is held against a replay in [`crate::server_replay`], and resumed in [`crate::servers`].

use std::collections::BTreeMap;

use crate::support::two_nodes::{
    CLUSTER, assert_close, assert_runs_as_predicted, clocks, gpt, started, train, weights,
};
use crate::support::{Samples, graph, mesh, serial, trainer_with_clock};
use shardloom_checkpoint::{Checkpoint, Meta, Store, replica_name};
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Plan, Push, Servers, Staleness, Sync, Uniform};
use shardloom_train::{RunClock, Trainer};

/// So many workers of a micro-batch each, and servers.
fn plan(graph: &Graph, workers: u32, (count, staleness): (u32, u32), optimizer: Optimizer) -> Plan {
    let servers =
        Servers { push: Push::Deltas, ..Servers::of(count, Staleness::Within(staleness)) };
    let sync = Sync { servers: Some(servers), bucket_bytes: 4000, ..Sync::default() };
    let uniform = Uniform { clip_norm: None, optimizer, microbatches: 1, ..serial() };
    Uniform { sync, mesh: mesh(workers, 1, 1), ..uniform }.plan(graph, "model", CLUSTER)
}

fn saved(trainer: &mut Trainer) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    trainer.save(folder.path(), Meta::default(), None).expect("saved");
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    (folder, latest.expect("the checkpoint").0)
}

/// Without the biases of keys, whose gradients are zero but for rounding, which AdamW makes steps as large as
/// others of.
#[test]
fn one_worker_trains_as_one_rank_but_for_the_rounding_of_what_it_pushes() {
    let graph = graph("llama:layers=2,hidden=16,heads=2,ffn=32,seq=8,vocab=32");
    for optimizer in [Optimizer::sgd(0.9), Optimizer::default()] {
        let alone = Uniform { clip_norm: None, optimizer, ..serial() }.plan(&graph, "m", "c");
        let mut alone = started(&graph, &alone, RunClock::Wall);
        let losses = train(&mut alone, 6);
        for (count, clock) in [1, 3].into_iter().flat_map(|count| clocks().map(|it| (count, it))) {
            let plan = plan(&graph, 1, (count, 1), optimizer);
            let mut trainer = started(&graph, &plan, clock);
            for (found, expected) in train(&mut trainer, 6).iter().zip(&losses) {
                assert!((found - expected).abs() < 1e-6 * expected, "{found} for {expected}");
            }
            assert_close(&weights(&mut trainer), &weights(&mut alone), 1e-5);
        }
    }
}

#[test]
fn timelines_bytes_and_memory_are_as_predicted() {
    let graph = gpt();
    for (workers, servers) in [(1, (1, 0)), (2, (1, 0)), (4, (2, 1))] {
        let mut plan = plan(&graph, workers, servers, Optimizer::default());
        assert_runs_as_predicted(&graph, &plan, 6);
        // With further servers on the workers' devices.
        plan.sync.bucket_bytes = 1000;
        plan.sync.servers = plan.sync.servers.map(|it| Servers { colocated: true, ..it });
        if servers.0 < workers {
            assert_runs_as_predicted(&graph, &plan, 6);
        }
    }
}

/// With two workers of unlike shares of the same sample both have its gradient, whatever its part of the step is.
#[test]
fn a_worker_updates_with_the_mean_of_its_own_gradients_and_keeps_a_state_of_its_own() {
    let graph = gpt();
    let Samples { inputs, targets } = Samples::patterned(1, 8, 32);
    let data =
        || Samples { inputs: vec![inputs[0].clone(); 64], targets: vec![targets[0].clone(); 64] };
    let velocities = |microbatches: usize, shares: Option<[usize; 2]>| -> Vec<BTreeMap<_, _>> {
        let workers = if shares.is_some() { 2 } else { 1 };
        let mut plan = plan(&graph, workers, (1, 0), Optimizer::sgd(0.9));
        plan.microbatches = microbatches;
        for (pipeline, share) in plan.pipeline.iter_mut().zip(shares.into_iter().flatten()) {
            pipeline.microbatches = Some(share);
        }
        let mut trainer = trainer_with_clock(&graph, &plan, data(), 0.05, RunClock::Wall);
        train(&mut trainer, 1);
        let (_folder, checkpoint) = saved(&mut trainer);
        let of_worker = |worker: usize| {
            let velocity = |name: &str| {
                let plain = format!("optimizer.0/{name}");
                let name = if workers == 1 { plain } else { replica_name(worker, &plain) };
                checkpoint.read_whole(&name).expect("a velocity")
            };
            let names = graph.parameters().map(|(_, value)| value.name.clone());
            names.map(|name| (name.clone(), velocity(&name))).collect()
        };
        (0..workers as usize).map(of_worker).collect()
    };
    let alone = velocities(4, None);
    for shares in [[2, 2], [3, 1]] {
        for of_worker in velocities(4, Some(shares)) {
            for (name, expected) in &alone[0] {
                assert_close(&of_worker[name], expected, 1e-6);
            }
        }
    }
}

#[test]
fn what_workers_keep_of_their_own_goes_on_with_as_many_and_one_state_goes_on_as_that_of_each() {
    let graph = gpt();
    let adamw = Optimizer::default();
    let mut two = started(&graph, &plan(&graph, 2, (1, 0), adamw), RunClock::Wall);
    train(&mut two, 2);
    let (_folder, checkpoint) = saved(&mut two);
    let plain = Uniform { clip_norm: None, ..serial() }.plan(&graph, "m", "c");
    for (other, count) in [(plan(&graph, 4, (1, 0), adamw), 4), (plain.clone(), 1)] {
        let mut other = started(&graph, &other, RunClock::Wall);
        let same = Checkpoint::open(checkpoint.path()).expect("a checkpoint");
        let refused = other.resume(same).expect_err("another number").to_string();
        let expected = format!("state of 2 replicas of their own, and the plan has {count}");
        assert!(refused.contains(&expected), "{refused}");
    }
    // The weights are one for all, and so is the state of a run without servers.
    for name in graph.parameters().map(|(_, value)| &value.name) {
        assert!(checkpoint.read_whole(name).is_ok(), "{name}");
    }
    let mut alone = started(&graph, &plain, RunClock::Wall);
    train(&mut alone, 2);
    let (_folder, checkpoint) = saved(&mut alone);
    let mut trainer = started(&graph, &plan(&graph, 2, (1, 0), adamw), RunClock::Wall);
    trainer.resume(checkpoint).expect("one state for all");
    assert_eq!(weights(&mut trainer), weights(&mut alone));
    train(&mut trainer, 1);
    let (_folder, checkpoint) = saved(&mut trainer);
    assert_eq!(checkpoint.meta().extra.get("updates").map(String::as_str), Some("3"));
}
