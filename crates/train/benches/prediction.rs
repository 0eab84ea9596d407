//! Simulated against measured step time of two-rank plans on this machine.
//!
//! `cargo bench -p shardloom-train --bench prediction [-- REPEATS]` profiles the machine, then trains
//! every model under every plan in turn, `REPEATS` times over, and compares the median of each with the
//! simulator's answer. The profile is made from operators and links alone.

mod two_ranks;

use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_fabric::InProcess;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Mesh, Plan, Sync, Uniform};
use shardloom_program::lower;
use shardloom_sim::{Options, simulate};

const MODELS: [(&str, usize); 4] = [
    ("gpt:layers=4,hidden=256,heads=4,seq=128,vocab=8192", 8),
    ("gpt:layers=2,hidden=128,heads=4,seq=128,vocab=256,dropout=0.1", 16),
    ("gpt:layers=6,hidden=384,heads=6,seq=128,vocab=1024", 8),
    ("llama:layers=4,hidden=256,heads=4,kv_heads=2,ffn=704,seq=128,vocab=4096", 8),
];

/// Steps of one visit; the first is not counted.
const STEPS: usize = 6;

fn plans(graph: &Graph, model: &str, batch: usize) -> Vec<(&'static str, Plan)> {
    let uniform = |pp, dp, tp, zero, microbatches| Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        global_batch: batch,
        microbatches,
        sync: Sync { zero, algorithm: Algorithm::Direct, ..Sync::default() },
        ..Uniform::default()
    };
    [
        ("dp 2", uniform(1, 2, 1, 0, 1)),
        ("dp 2, ZeRO-3", uniform(1, 2, 1, 3, 1)),
        ("tp 2", uniform(1, 1, 2, 0, 1)),
        ("pp 2, 1F1B, 4 micro-batches", uniform(2, 1, 1, 0, 4)),
    ]
    .map(|(name, uniform)| (name, uniform.plan(graph, model, "local:2")))
    .into()
}

fn main() {
    let repeats = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(5);
    let options = shardloom_profile::Options::default();
    let profile = shardloom_profile::measure(&InProcess, options, &mut |_, _| {})
        .expect("a profile of this machine");
    let cluster = Cluster::parse_with("local:2", Some(&profile)).expect("two local devices");

    let mut rows = vec![];
    for (model, batch) in MODELS {
        let spec = ModelSpec::parse(model).expect("a valid model");
        let graph = spec.graph().expect("a valid model");
        for (name, plan) in plans(&graph, model, batch) {
            let program = lower(&graph, &plan, 2).expect("a valid plan");
            let simulation = simulate(&graph, &cluster, &program, Options::default())
                .expect("the profile covers the model");
            let predicted = simulation.step_time().seconds();
            rows.push((model, name, graph.clone(), plan, predicted, vec![]));
        }
    }
    for _ in 0..repeats {
        for (_, _, graph, plan, _, times) in &mut rows {
            times.extend(measure(graph, plan));
        }
    }
    println!("| model | plan | predicted ms | measured ms | error |\n|---|---|---|---|---|");
    let mut worst: f64 = 0.0;
    for (model, name, _, _, predicted, mut times) in rows {
        times.sort_by(f64::total_cmp);
        let measured = times[times.len() / 2];
        let error = predicted / measured - 1.0;
        worst = worst.max(error.abs());
        let (predicted, measured) = (predicted * 1e3, measured * 1e3);
        println!("| {model} | {name} | {predicted:.1} | {measured:.1} | {:+.1}% |", error * 100.0);
    }
    println!("\nlargest error {:.1}%", worst * 100.0);
}

fn measure(graph: &Graph, plan: &Plan) -> Vec<f64> {
    let mut trainer = two_ranks::trainer(graph, plan);
    let steps = (0..STEPS).map(|_| trainer.step().expect("a step").seconds);
    steps.skip(1).collect()
}
