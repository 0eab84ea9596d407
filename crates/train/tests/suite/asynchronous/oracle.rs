//! The reference itself: against the serial trainer, slot by slot, and by hand.

use std::collections::BTreeMap;
use std::ops::Range;

use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_kernels::optimizer::{Optimizer, Sgd};
use shardloom_plan::{Plan, Uniform};

use super::formulas::{Corrections, Prediction, Rule, Stage, Versions, annealed};
use super::reference::{Reference, Run};
use crate::support::{Samples, gpt, llama, losses, serial, trainer};

type Named = BTreeMap<String, Vec<f32>>;

const EVERYTHING: Corrections = Corrections {
    anneal_steps: Some(6),
    discrepancy: Some(0.135),
    synchronous_steps: 0,
    spike: Some(1.0),
    prediction: Some(Prediction::Velocity),
};

fn samples() -> Samples {
    Samples::patterned(64, 16, 64)
}

/// A run of `rule` on eight samples in a step.
fn reference(
    graph: &Graph,
    stages: Vec<Range<usize>>,
    rule: Rule,
    microbatches: usize,
    sgd: Sgd,
    initial: &Named,
    steps: u64,
) -> (Vec<f64>, Named) {
    let samples = samples();
    let sample = |input: &str, position: u64| {
        let rows = if input == "tokens" { &samples.inputs } else { &samples.targets };
        rows[position as usize % rows.len()].clone()
    };
    let run = Run {
        graph,
        replicas: vec![1; stages.len()],
        in_rounds: false,
        stages,
        sample: &sample,
        seed: 7,
        global_batch: 8,
        microbatches,
        recompute: false,
        learning_rate: 0.05,
        optimizer: Optimizer::Sgd(sgd),
        reference_batch: None,
        rule,
    };
    let mut reference = Reference::new(run, initial);
    (reference.train(steps), reference.weights())
}

fn serial_plan(graph: &Graph, microbatches: usize, momentum: f64) -> Plan {
    let optimizer = shardloom_plan::Optimizer::sgd(momentum);
    let uniform = Uniform { microbatches, optimizer, clip_norm: None, ..serial() };
    uniform.plan(graph, "model", "local")
}

fn assert_near(losses: &[f64], expected: &[f64], what: &str) {
    assert_eq!(losses.len(), expected.len());
    for (step, (loss, expected)) in losses.iter().zip(expected).enumerate() {
        let difference = (loss - expected).abs() / expected;
        assert!(difference < 1e-5, "{what}, step {step}: {loss} instead of {expected}");
    }
}

#[test]
fn with_a_flush_it_is_the_serial_trainer() {
    for graph in [gpt(), llama()] {
        for microbatches in [1, 4] {
            let plan = serial_plan(&graph, microbatches, 0.9);
            let mut trainer = trainer(&graph, &plan, samples(), 0.05);
            let initial = trainer.weights().unwrap_or_else(|error| panic!("{error}"));
            let expected = losses(&mut trainer, 12);
            let stages = vec![0..2, 2..graph.blocks().len()];
            let momentum = Sgd::new(0.9, 0.0);
            let (losses, _) =
                reference(&graph, stages, Rule::Flush, microbatches, momentum, &initial, 12);
            assert_near(&losses, &expected, graph.name());
        }
    }
}

/// Plain descent on the gradients of weights of `late` steps ago, done with the serial trainer: set the
/// old weights, train a step, and add the change to the newest ones.
fn delayed(graph: &Graph, microbatches: usize, late: usize, steps: usize) -> (Vec<f64>, Named) {
    let plan = serial_plan(graph, microbatches, 0.0);
    let mut trainer = trainer(graph, &plan, samples(), 0.05);
    let initial = trainer.weights().unwrap_or_else(|error| panic!("{error}"));
    let mut versions = vec![initial.clone()];
    let mut losses = vec![];
    for step in 0..steps {
        let old = versions[step.saturating_sub(late)].clone();
        trainer.set_weights(old.clone()).unwrap_or_else(|error| panic!("{error}"));
        losses.push(trainer.step().unwrap_or_else(|error| panic!("{error}")).loss);
        let trained = trainer.weights().unwrap_or_else(|error| panic!("{error}"));
        let mut newest = versions[step].clone();
        for (name, weights) in &mut newest {
            for ((w, after), before) in weights.iter_mut().zip(&trained[name]).zip(&old[name]) {
                *w += after - before;
            }
        }
        versions.push(newest);
    }
    (losses, initial)
}

#[test]
fn vertical_sync_and_double_buffering_are_descent_with_late_gradients() {
    let plain = Sgd::new(0.0, 0.0);
    for graph in [gpt(), llama()] {
        let stages = || vec![0..1, 1..2, 2..graph.blocks().len()];
        let (expected, initial) = delayed(&graph, 1, 2, 12);
        let (losses, _) = reference(&graph, stages(), Rule::VerticalSync, 1, plain, &initial, 12);
        assert_near(&losses, &expected, "vertical sync");
        let (expected, initial) = delayed(&graph, 4, 1, 12);
        let (losses, _) = reference(&graph, stages(), Rule::DoubleBuffer, 4, plain, &initial, 12);
        assert_near(&losses, &expected, "double buffering");
    }
}

#[test]
fn a_pipeline_of_one_stage_has_no_delay_to_correct() {
    let graph = llama();
    let plan = serial_plan(&graph, 4, 0.9);
    let initial = trainer(&graph, &plan, samples(), 0.05).weights();
    let initial = initial.unwrap_or_else(|error| panic!("{error}"));
    let run = |rule| {
        let stage = 0..graph.blocks().len();
        reference(&graph, vec![stage], rule, 4, Sgd::new(0.9, 0.0), &initial, 5)
    };
    let flushed = run(Rule::Flush);
    for rule in [Rule::Stash, Rule::VerticalSync, Rule::Newest(EVERYTHING)] {
        assert_eq!(run(rule), flushed, "{rule:?}");
    }
}

/// The versions of a stage that runs a forward and a backward pass in each slot, the forward `ahead`
/// micro-batches further, and updates its weights after every `microbatches`-th backward pass.
fn in_slots(ahead: u64, microbatches: u64, slots: u64) -> Vec<Versions> {
    let (mut updates, mut backwards) = (0, 0);
    let mut forwards = vec![0; ahead as usize];
    let mut versions = vec![];
    for slot in 0..slots {
        forwards.push(updates);
        versions.push(Versions { forward: forwards[slot as usize], backward: updates });
        backwards += 1;
        updates += u64::from(backwards % microbatches == 0);
    }
    versions
}

#[test]
fn versions_are_those_of_stages_that_work_slot_by_slot() {
    for (of, microbatches) in [(1, 1), (3, 1), (4, 3), (8, 1), (8, 3), (8, 8), (5, 16)] {
        for index in 0..of {
            let (replicas, between) = (vec![1; of], vec![microbatches; of]);
            let stage = Stage { index, replicas: &replicas, microbatches: &between };
            let after = (of - 1 - index) as u64;
            let versions = |rule: Rule| -> Vec<Versions> {
                (0..60).map(|microbatch| rule.versions(stage, microbatch, 0)).collect()
            };
            let newest = in_slots(2 * after, microbatches, 60);
            assert_eq!(versions(Rule::Newest(EVERYTHING)), newest, "{stage:?}");
            let stashed = in_slots(after, microbatches, 60)
                .into_iter()
                .map(|it| Versions { backward: it.forward, ..it });
            assert_eq!(versions(Rule::Stash), stashed.collect::<Vec<_>>(), "{stage:?}");
            // Once the pipeline is full, the mean over a step is the delay.
            let full = &newest[newest.len() - 2 * microbatches as usize..];
            let delays = full.iter().map(|it| (it.backward - it.forward) as f64);
            let mean = delays.sum::<f64>() / full.len() as f64;
            assert!((mean - stage.delay()).abs() < 1e-12, "{stage:?}: {mean}");
        }
    }
}

#[test]
fn rates_come_up_from_the_rate_divided_by_the_delay() {
    for delay in [1.0, 2.5, 14.0] {
        assert!((annealed(0.3, delay, 0, 100) - 0.3 / delay).abs() < 1e-15);
        assert!((annealed(0.3, delay, 50, 100) - 0.3 / delay.sqrt()).abs() < 1e-15);
        assert_eq!(annealed(0.3, delay, 100, 100), 0.3);
        assert_eq!(annealed(0.3, delay, 1000, 100), 0.3);
    }
    assert_eq!(annealed(0.3, 0.25, 0, 100), 0.3, "less than an update late");
}

const CLASSES: usize = 64;
const WIDTHS: [usize; 2] = [3, 4];

/// A table of rows, a matrix, and a matrix that gives the logits; each a stage of its own.
fn linear() -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("linear");
    let seq = net.dim("seq", 16)?;
    let vocab = net.dim("vocab", CLASSES)?;
    let [narrow, wide] = [net.dim("narrow", WIDTHS[0])?, net.dim("wide", WIDTHS[1])?];
    let init = Init::Normal { std: 0.7 };
    net.block("table");
    let (tokens, targets) = (net.targets("tokens", &[seq])?, net.targets("targets", &[seq])?);
    let table = net.parameter("0", &[vocab, narrow], 1, init)?;
    let x = net.embed("rows", tokens, table)?;
    net.block("middle");
    let w = net.parameter("1", &[narrow, wide], 1, init)?;
    let x = net.contract("middle", x, w, None)?;
    net.block("head");
    let w = net.parameter("2", &[vocab, wide], 1, init)?;
    let logits = net.contract("head", x, w, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// The mean loss of one step on `linear`, forward with some weights and backward with others, and the
/// gradients.
fn linear_step(
    samples: &Samples,
    step: usize,
    forward: &[Vec<f64>; 3],
    backward: &[Vec<f64>; 3],
) -> (f64, [Vec<f64>; 3]) {
    let [narrow, wide] = WIDTHS;
    let mut gradients = [0, 1, 2].map(|it| vec![0.0; forward[it].len()]);
    let mut loss = 0.0;
    let terms = 8.0 * 16.0;
    for position in (0..8).map(|it| (8 * step + it) % 64) {
        for (&token, &target) in samples.inputs[position].iter().zip(&samples.targets[position]) {
            let (token, target) = (token as usize, target as usize);
            let x = &forward[0][token * narrow..(token + 1) * narrow];
            let y: Vec<f64> = (0..wide)
                .map(|j| (0..narrow).map(|i| x[i] * forward[1][i * wide + j]).sum())
                .collect();
            let logits = (0..CLASSES)
                .map(|c| (0..wide).map(|j| y[j] * forward[2][c * wide + j]).sum::<f64>());
            let exponentials: Vec<f64> = logits.map(f64::exp).collect();
            let sum: f64 = exponentials.iter().sum();
            loss -= (exponentials[target] / sum).ln() / terms;
            let mut dy = vec![0.0; wide];
            for c in 0..CLASSES {
                let hit = if c == target { 1.0 } else { 0.0 };
                let dz = (exponentials[c] / sum - hit) / terms;
                for j in 0..wide {
                    gradients[2][c * wide + j] += dz * y[j];
                    dy[j] += dz * backward[2][c * wide + j];
                }
            }
            for i in 0..narrow {
                for j in 0..wide {
                    gradients[1][i * wide + j] += x[i] * dy[j];
                    gradients[0][token * narrow + i] += dy[j] * backward[1][i * wide + j];
                }
            }
        }
    }
    (loss, gradients)
}

/// Training `linear` in three stages with the newest weights, in double precision, with a momentum of 0.9
/// and a learning rate of 0.05; corrected as `EVERYTHING` says or not at all.
fn by_hand(initial: &Named, corrected: bool, steps: usize) -> Vec<f64> {
    let samples = samples();
    let first = ["0", "1", "2"].map(|name| initial[name].iter().map(|&w| f64::from(w)).collect());
    let zeros = |like: &[Vec<f64>; 3]| [0, 1, 2].map(|it| vec![0.0; like[it].len()]);
    let delays = [4usize, 2, 0];
    let rate = |stage: usize, step: usize| match (corrected, delays[stage]) {
        (false, _) | (_, 0) => 0.05,
        (true, delay) => 0.05 / (delay as f64).powf(1.0 - (step as f64 / 6.0).min(1.0)),
    };
    let (mut weights, mut velocities) = (vec![first], vec![]);
    velocities.push(zeros(&weights[0]));
    let mut means = zeros(&weights[0]);
    let mut losses = vec![];
    for step in 0..steps {
        let (mut forward, mut backward) = (weights[step].clone(), weights[step].clone());
        for stage in 0..2 {
            let version = step.saturating_sub(delays[stage]);
            forward[stage] = weights[version][stage].clone();
            if corrected {
                let delay = delays[stage] as f64;
                for (index, w) in forward[stage].iter_mut().enumerate() {
                    *w -= rate(stage, version) * delay * velocities[version][stage][index];
                }
                for (w, mean) in backward[stage].iter_mut().zip(&means[stage]) {
                    *w -= delay * mean;
                }
            }
        }
        let (loss, gradients) = linear_step(&samples, step, &forward, &backward);
        losses.push(loss);
        let (mut newest, mut velocity) = (weights[step].clone(), velocities[step].clone());
        for stage in 0..3 {
            let delay = delays[stage] as f64;
            for index in 0..newest[stage].len() {
                let (v, g) = (&mut velocity[stage][index], gradients[stage][index]);
                *v = 0.9 * *v + g;
                let kept = 0.9f64.powf(delay);
                let along = match corrected {
                    true => kept * *v + (1.0 - kept) / 0.1 * g,
                    false => *v,
                };
                let moved = -rate(stage, step) * along;
                newest[stage][index] += moved;
                if delay > 0.0 {
                    let decay = 0.135f64.powf(1.0 / delay);
                    let mean = &mut means[stage][index];
                    *mean = decay * *mean + (1.0 - decay) * moved;
                }
            }
        }
        weights.push(newest);
        velocities.push(velocity);
    }
    losses
}

#[test]
fn with_the_newest_weights_it_is_what_three_matrices_do_by_hand() {
    let graph = linear().expect("a valid model");
    let plan = serial_plan(&graph, 1, 0.9);
    let initial = trainer(&graph, &plan, samples(), 0.05).weights();
    let initial = initial.unwrap_or_else(|error| panic!("{error}"));
    let momentum = Sgd::new(0.9, 0.0);
    let run = |rule| {
        let stages = vec![0..1, 1..2, 2..3];
        reference(&graph, stages, rule, 1, momentum, &initial, 30).0
    };
    let plain = by_hand(&initial, false, 30);
    assert_near(&run(Rule::Newest(Corrections::default())), &plain, "without corrections");
    let corrected = by_hand(&initial, true, 30);
    assert_near(&run(Rule::Newest(EVERYTHING)), &corrected, "with all corrections");
    let apart = (plain[29] - corrected[29]).abs() / plain[29];
    assert!(apart > 1e-3, "corrections matter here: {apart:e}");
}
