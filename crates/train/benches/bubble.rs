//! Simulated against measured bubble of every schedule on two ranks of this machine.
//!
//! `cargo bench -p shardloom-train --bench bubble [-- REPEATS]` profiles the machine, then trains a model
//! under every schedule in turn, `REPEATS` times over, with a thread for each rank, and compares the
//! median bubble of each with the simulator's answer. Both are shares of the time of some steps in a row,
//! from the first rank's begin to the last's end, in which a rank computes nothing. The profile is made
//! from operators and links alone.

mod two_ranks;

use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_fabric::InProcess;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Plan, ScheduleKind, Sync, Uniform};
use shardloom_program::lower;
use shardloom_program::timeline::Timeline;
use shardloom_sim::{Modelled, Options, run};

/// Eight blocks, so that stages of equally many blocks exist for two and for four stages.
const MODEL: &str = "gpt:layers=6,hidden=256,heads=4,seq=128,vocab=1024";
const SAMPLES: usize = 16;
const MICROBATCHES: usize = 8;

/// Steps in a row, which a schedule without flush runs through; simulated likewise.
const STEPS: u32 = 4;
/// Such rows in one visit, after one step that is not counted.
const ROWS: usize = 2;

/// How far a measured bubble may be from the simulated one, in points of a hundred.
const BAR_POINTS: f64 = 3.0;

struct Case {
    schedule: ScheduleKind,
    plan: Plan,
    simulated: Measurement,
    measured: Vec<Measurement>,
}

#[derive(Clone, Copy)]
struct Measurement {
    bubble_percent: f64,
    step_milliseconds: f64,
}

impl Measurement {
    fn of(timeline: &Timeline) -> Measurement {
        Measurement {
            bubble_percent: 100.0 * timeline.bubble_fraction(),
            step_milliseconds: 1e3 * timeline.makespan().seconds() / f64::from(STEPS),
        }
    }
}

/// Every schedule that is built and not written down exists on two devices.
fn cases(graph: &Graph, cluster: &Cluster) -> Vec<Case> {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    let case = |schedule| {
        let uniform = Uniform {
            pp: 2,
            global_batch: SAMPLES,
            microbatches: MICROBATCHES,
            schedule,
            sync: Sync { algorithm: Algorithm::Direct, ..Sync::default() },
            ..Uniform::default()
        };
        let plan = uniform.plan(graph, MODEL, "local:2");
        let program = lower(graph, &plan, 2).expect("a schedule on two devices");
        let options = Options { steps: STEPS, folded: false };
        // Just these steps: what fills and drains a pipeline without flush is among them, as it is in
        // a row of the trainer.
        let mut driver =
            Modelled::new(graph, cluster, &program).expect("the profile covers the model");
        let simulation = run(&program, cluster, options, &mut driver).expect("it ends");
        let simulated = Measurement::of(&simulation.timeline);
        Case { schedule, plan, simulated, measured: vec![] }
    };
    kinds.map(case).collect()
}

fn measure(graph: &Graph, plan: &Plan) -> Vec<Measurement> {
    let mut trainer = two_ranks::trainer(graph, plan);
    trainer.step().expect("a step");
    let row = |_| {
        let (_, timeline) = trainer.train_steps_recorded(STEPS).expect("steps");
        Measurement::of(&timeline)
    };
    (0..ROWS).map(row).collect()
}

/// The median, and half of what the middle half of the values spans.
fn median(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
    (at(2), (at(3) - at(1)) / 2.0)
}

fn main() {
    let repeats = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(5);
    let options = shardloom_profile::Options::default();
    let profile = shardloom_profile::measure(&InProcess, options, &mut |_, _| {})
        .expect("a profile of this machine");
    let cluster = Cluster::parse_with("local:2", Some(&profile)).expect("two local devices");
    let spec = ModelSpec::parse(MODEL).expect("a valid model");
    let graph = spec.graph().expect("a valid model");
    let mut cases = cases(&graph, &cluster);
    for _ in 0..repeats {
        for Case { plan, measured, .. } in &mut cases {
            measured.extend(measure(&graph, plan));
        }
    }
    println!(
        "{MODEL}, {SAMPLES} samples in {MICROBATCHES} micro-batches, {STEPS} steps in a row\n"
    );
    println!(
        "| schedule | simulated bubble | measured bubble | difference in points | simulated ms | \
         measured ms |\n|---|---|---|---|---|---|"
    );
    let mut worst: (f64, &str) = (0.0, "");
    for Case { schedule, simulated, measured, .. } in cases {
        let name = schedule.name();
        let (bubble, spread) = median(measured.iter().map(|it| it.bubble_percent));
        let (step, _) = median(measured.iter().map(|it| it.step_milliseconds));
        let points = simulated.bubble_percent - bubble;
        if points.abs() >= worst.0 {
            worst = (points.abs(), name);
        }
        println!(
            "| {name} | {:.1}% | {bubble:.1}% ± {spread:.1} | {points:+.1} | {:.1} | {step:.1} |",
            simulated.bubble_percent, simulated.step_milliseconds
        );
    }
    println!("\nlargest difference {:.1} points ({}); bar {BAR_POINTS} points", worst.0, worst.1);
}
