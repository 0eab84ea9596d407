//! What training without flush costs in loss, and what it costs that replicas compress their gradients or have
//! weights of their own: every method at equal samples and equal settings.
//!
//! `cargo bench -p shardloom-train --bench convergence -- [text] [DIGITS.csv] [replicas] [--seeds N]` trains a
//! GPT on this repository's sources, or a perceptron on the digits that `benches/digits.py` writes, with four
//! stages, or with `replicas` the GPT with four replicas, under the virtual clock, and prints a Markdown table
//! for each. Without a task it is the text. Losses do not depend on the machine's load, but for pair averaging's:
//! what a replica fetches follows from the times that kernels took.

mod methods;
mod tasks;

use std::path::Path;
use std::thread;
use std::time::Duration;

use methods::Method;
use shardloom_cluster::Cluster;
use shardloom_plan::{Mesh, Optimizer, Plan, Uniform};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{Error, OnNonFinite, RunClock, Settings, Trainer};
use tasks::Task;

/// Stages, or replicas.
const RANKS: usize = 4;
const MOMENTUM: f64 = 0.9;
/// The most samples that a validation loss is taken over.
const VALIDATION_SAMPLES: u64 = 512;
const CLUSTER: &str = "a100-40g:4";

/// What a run came to.
struct Outcome {
    /// Mean over the last tenth of the steps.
    training_loss: f64,
    validation_loss: f64,
    accuracy: Option<f64>,
}

fn plan(task: &Task, method: &Method) -> Plan {
    let reference_batch = method.batch.map(|_| task.batch);
    let uniform = Uniform {
        pp: if method.sync.is_some() { 1 } else { RANKS },
        mesh: Mesh::of(if method.sync.is_some() { RANKS as u32 } else { 1 }, 1, 1),
        sync: method.sync.unwrap_or_default(),
        global_batch: method.batch.unwrap_or(task.batch),
        microbatches: method.microbatches,
        schedule: method.schedule,
        optimizer: Optimizer::Sgd { momentum: MOMENTUM, weight_decay: 0.0, reference_batch },
        ..Uniform::default()
    };
    let mut plan = uniform.plan(&task.graph, task.model, CLUSTER);
    plan.weights = method.weights;
    plan
}

/// Trains once. A loss that stops being finite is an outcome: the step at which it did.
fn train(task: &Task, method: &Method, rate: f64, seed: u64) -> Result<Outcome, u64> {
    let batch = method.batch.unwrap_or(task.batch);
    // At equal samples.
    let steps = |of_task: u64| of_task * (task.batch / batch) as u64;
    let curve = Curve::Warmup { peak: rate, warmup_steps: steps(task.warmup_steps) };
    let settings = Settings {
        seed,
        learning_rate: LearningRate::new(curve).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Virtual(Cluster::parse(CLUSTER).expect("a preset")),
    };
    let plan = plan(task, method);
    let source = task.source(seed);
    let mut trainer =
        Trainer::new(task.graph.clone(), &plan, RANKS, source, settings).expect("a valid plan");
    // In one row, so that the pipeline never drains.
    let steps = match trainer.train_steps(steps(task.steps) as u32) {
        Err(Error::NonFiniteLoss { step, .. }) => return Err(step),
        steps => steps.expect("ranks that do not fail"),
    };
    let last = &steps[steps.len() - steps.len() / 10..];
    let training_loss = last.iter().map(|step| step.loss).sum::<f64>() / last.len() as f64;
    let microbatch = (batch / method.microbatches) as u64;
    let validation_loss = trainer.validate(VALIDATION_SAMPLES / microbatch);
    let validation_loss = validation_loss.expect("an evaluation").expect("validation samples");
    Ok(Outcome { training_loss, validation_loss, accuracy: task.accuracy(&mut trainer) })
}

/// The mean, and how far the farthest value is from it.
fn text(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let values: Vec<f64> = values.collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let farthest = values.iter().map(|value| (value - mean).abs()).fold(0.0, f64::max);
    format!("{mean:.digits$} ± {farthest:.digits$}")
}

/// The cells of one method at one rate, over all seeds.
fn cells(task: &Task, method: &Method, rate: f64, seeds: u64) -> Vec<String> {
    let runs: Vec<_> = thread::scope(|scope| {
        let run = |seed| scope.spawn(move || train(task, method, rate, seed));
        let runs: Vec<_> = (1..=seeds).map(run).collect();
        runs.into_iter().map(|run| run.join().expect("a run does not panic")).collect()
    });
    let ended = runs.iter().filter_map(|run| run.as_ref().err());
    if let Some(step) = ended.min() {
        let diverged = runs.iter().filter(|run| run.is_err()).count();
        let cell = format!("not finite from step {step} ({diverged} of {seeds} runs)");
        let others = if task.has_classes() { 2 } else { 1 };
        return [vec![cell], vec!["-".into(); others]].concat();
    }
    let runs: Vec<Outcome> = runs.into_iter().filter_map(Result::ok).collect();
    let mut cells = vec![
        text(runs.iter().map(|run| run.training_loss), 3),
        text(runs.iter().map(|run| run.validation_loss), 3),
    ];
    if task.has_classes() {
        cells.push(text(runs.iter().filter_map(|run| run.accuracy).map(|it| 100.0 * it), 1));
    }
    cells
}

fn compare(task: &Task, seeds: u64, methods: Vec<Method>, ranks: &str) {
    let Task { name, model, batch, steps, warmup_steps, rates, .. } = task;
    println!("## {name}\n");
    println!(
        "`{model}`, {RANKS} {ranks}, {batch} samples a step, {steps} steps, SGD with momentum \
         {MOMENTUM}, {warmup_steps} steps of warm-up to a constant rate, {seeds} seeds.\n"
    );
    let mut heads = ["method", "samples an update", "micro-batches"].map(str::to_owned).to_vec();
    for rate in rates {
        heads.push(format!("training loss at {rate}"));
        heads.push(format!("validation loss at {rate}"));
        if task.has_classes() {
            heads.push(format!("accuracy at {rate}, %"));
        }
    }
    println!("| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for method in methods {
        let cells: Vec<String> =
            rates.iter().flat_map(|&rate| cells(task, &method, rate, seeds)).collect();
        let Method { name, microbatches, .. } = method;
        let batch = method.batch.unwrap_or(*batch);
        println!("| {name} | {batch} | {microbatches} | {} |", cells.join(" | "));
    }
    println!();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut tasks, mut replicas, mut seeds) = (vec![], false, 3);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // What Carried tells every bench.
            "--bench" => {}
            "--seeds" => {
                let number = arguments.next().and_then(|number| number.parse().ok());
                seeds = number.filter(|&number| number > 0).expect("--seeds wants a number");
            }
            "replicas" => replicas = true,
            "text" => tasks.push(tasks::text()),
            table => tasks.push(tasks::digits(Path::new(table)).expect("a table of digits")),
        }
    }
    if tasks.is_empty() && !replicas {
        tasks.push(tasks::text());
    }
    for task in &tasks {
        compare(task, seeds, methods::all(task.steps), "stages");
    }
    if replicas {
        compare(&tasks::text(), seeds, methods::of_replicas(), "replicas");
    }
}
