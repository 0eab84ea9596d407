//! Training with parameter servers against a serial replay of what servers did in which order: replicas of the
//! model, one for each worker, that compute their gradients one after the other, and the optimizers' formulas
//! element by element. Weights are equal bit for bit.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::support::formulas;
use crate::support::replica::{Replica, Tensors};
use crate::support::{Samples, mesh, serial, settings, small_gpt, trainer_with};
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Plan, Push, Servers, Staleness, Sync, Uniform};
use shardloom_program::{ClassId, Program};
use shardloom_train::Trainer;
use shardloom_train::learning_rate::{Curve, LearningRate};

const WORKERS: usize = 4;
const STEPS: usize = 6;
const CURVE: Curve =
    Curve::Cosine { peak: 0.1, warmup_steps: 2, total_steps: STEPS as u64, floor: 0.01 };

fn uniform(optimizer: Optimizer) -> Uniform {
    Uniform { clip_norm: None, optimizer, ..serial() }
}

fn served(graph: &Graph, servers: Servers, optimizer: Optimizer) -> Plan {
    let sync = Sync { servers: Some(servers), bucket_bytes: 4000, ..Sync::default() };
    let mesh = mesh(WORKERS as u32, 1, 1);
    Uniform { sync, mesh, microbatches: 1, ..uniform(optimizer) }.plan(graph, "model", "local")
}

fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    trainer_with(graph, plan, Samples::patterned(64, 8, 32), settings(CURVE))
}

/// A worker, on one micro-batch a step.
fn worker(graph: &Graph) -> Replica {
    let alone = uniform(Optimizer::sgd(0.5));
    let alone = Uniform { global_batch: 8 / WORKERS, ..alone }.plan(graph, "m", "c");
    Replica::new(trainer(graph, &alone), WORKERS)
}

/// What all servers hold, or a worker that updates by itself, and the optimizer's formula.
struct Held {
    optimizer: Optimizer,
    rates: LearningRate,
    weights: Tensors,
    sums: Tensors,
    moments: [Tensors; 2],
    decays: BTreeMap<String, bool>,
}

impl Held {
    /// Updates a range of a parameter in a step, the `number`-th time.
    fn update(
        &mut self,
        name: &str,
        range: Range<usize>,
        gradient: &[f32],
        step: usize,
        number: i32,
    ) {
        let rate = self.rates.at(step as u64) as f32;
        for at in range {
            let [m, v] = self.moments.each_mut();
            let moved = [&mut self.weights, m, v];
            let moved = moved.map(|it| &mut it.get_mut(name).expect("a parameter")[at]);
            let applied = (rate, self.decays[name], f64::from(number));
            formulas::update(self.optimizer, applied, moved, gradient[at]);
        }
    }
}

/// The ranges of parameters that a server holds.
fn ranges(graph: &Graph, program: &Program, server: usize) -> Vec<(String, Range<usize>)> {
    let class = program.class(ClassId((WORKERS + server) as u32));
    let range = |param: &shardloom_program::WeightParam| {
        (graph.value(param.value).name.clone(), param.part.clone())
    };
    class.params.iter().map(range).collect()
}

/// Replays answers, one list for each server: the loss of each step, and the weights in the end.
fn replay(
    graph: &Graph,
    program: &Program,
    plan: &Plan,
    answers: &[Vec<u32>],
) -> (Vec<f64>, Tensors) {
    let servers = plan.sync.servers.expect("they are served");
    let adds_up = servers.push == Push::Gradients && servers.staleness == Staleness::SYNCHRONOUS;
    let mut replicas: Vec<Replica> = (0..WORKERS).map(|_| worker(graph)).collect();
    let weights = replicas[0].weights.clone();
    let zero: Tensors =
        weights.iter().map(|(name, it)| (name.clone(), vec![0.0; it.len()])).collect();
    let decays = graph.parameters().map(|(_, value)| {
        (value.name.clone(), value.parameter().is_some_and(|parameter| parameter.decays))
    });
    let decays: BTreeMap<String, bool> = decays.collect();
    let holder = || Held {
        optimizer: plan.optimizer,
        rates: LearningRate::new(CURVE).expect("a positive rate"),
        weights: weights.clone(),
        sums: zero.clone(),
        moments: [zero.clone(), zero.clone()],
        decays: decays.clone(),
    };
    let mut held = holder();
    // What workers are once they have updated by themselves.
    let mut apart: Vec<Held> = (0..WORKERS).map(|_| holder()).collect();
    let pushes_deltas = servers.push == Push::Deltas;
    let servers: Vec<_> = (0..answers.len()).map(|it| ranges(graph, program, it)).collect();
    // By server and worker.
    let mut taken = vec![[0; WORKERS]; answers.len()];
    let mut sent = taken.clone();
    let mut updates = vec![0; answers.len()];
    let mut at = vec![0; answers.len()];
    loop {
        for (worker, replica) in replicas.iter_mut().enumerate() {
            let step = replica.gradients.len();
            if step < STEPS && sent.iter().all(|sent| sent[worker] == step) {
                replica.compute(worker);
            }
        }
        let before = at.clone();
        for server in 0..answers.len() {
            while let Some(&client) = answers[server].get(at[server]) {
                let client = client as usize;
                let step = taken[server][client];
                if step > sent[server][client] {
                    for (name, range) in &servers[server] {
                        let held = &held.weights[name][range.clone()];
                        let given = replicas[client].weights.get_mut(name).expect("a parameter");
                        given[range.clone()].copy_from_slice(held);
                    }
                    sent[server][client] += 1;
                } else {
                    let Some(gradients) = replicas[client].gradients.get(step) else { break };
                    taken[server][client] += 1;
                    let is_last = !adds_up || client + 1 == WORKERS;
                    updates[server] += i32::from(is_last);
                    for (name, range) in servers[server].iter().filter(|_| pushes_deltas) {
                        let own = &mut apart[client];
                        let before = replicas[client].weights[name][range.clone()].to_vec();
                        let changed = own.weights.get_mut(name).expect("a parameter");
                        changed[range.clone()].copy_from_slice(&before);
                        // The mean of its own, and not its part of the mean over all.
                        let mean = gradients[name].iter().map(|it| it * WORKERS as f32);
                        let mean: Vec<f32> = mean.collect();
                        own.update(name, range.clone(), &mean, step, step as i32 + 1);
                        let after = &own.weights[name][range.clone()];
                        let sum = held.weights.get_mut(name).expect("a parameter");
                        for (at, (after, before)) in range.clone().zip(after.iter().zip(&before)) {
                            sum[at] += after - before;
                        }
                    }
                    for (name, range) in servers[server].iter().filter(|_| !pushes_deltas) {
                        let sum = held.sums.get_mut(name).expect("a parameter");
                        for at in range.clone() {
                            let begins = !adds_up || client == 0;
                            let before = if begins { 0.0 } else { sum[at] };
                            sum[at] = before + gradients[name][at];
                        }
                        if is_last {
                            let sum = sum.clone();
                            held.update(name, range.clone(), &sum, step, updates[server]);
                        }
                    }
                }
                at[server] += 1;
            }
        }
        if at == before {
            break;
        }
    }
    assert!(at.iter().zip(answers).all(|(at, answers)| *at == answers.len()), "{at:?}");
    let loss =
        |step: usize| replicas.iter().map(|it| it.losses[step]).sum::<f64>() / WORKERS as f64;
    ((0..STEPS).map(loss).collect(), held.weights)
}

/// Trains with these answers, or with those that come, and replays the run.
fn check(servers: Servers, optimizer: Optimizer, answers: Option<Vec<Vec<u32>>>) -> Tensors {
    let graph = small_gpt();
    let plan = served(&graph, servers, optimizer);
    let mut trainer = trainer(&graph, &plan);
    if let Some(of_servers) = answers {
        let by_rank = [vec![vec![]; WORKERS], of_servers].concat();
        trainer.repeat_answers(by_rank).expect("threads");
    }
    let steps = trainer.train_steps(STEPS as u32).unwrap_or_else(|error| panic!("{error}"));
    let answers = trainer.answers()[WORKERS..].to_vec();
    let found = trainer.weights().expect("weights");
    let (losses, expected) = replay(&graph, trainer.program(), &plan, &answers);
    for (step, expected) in steps.iter().zip(losses) {
        assert!((step.loss - expected).abs() < 1e-12 * expected, "{} for {expected}", step.loss);
    }
    for (name, expected) in &expected {
        let same =
            found[name].iter().zip(expected).all(|(one, other)| one.to_bits() == other.to_bits());
        assert!(same, "{name} under {servers:?} and {optimizer:?}: {answers:?}");
    }
    found
}

/// The order in which each worker gets as far ahead of the last as is allowed.
fn as_stale_as_allowed(staleness: Staleness) -> Vec<u32> {
    let (mut taken, mut sent) = ([0; WORKERS], [0; WORKERS]);
    let mut answers = vec![];
    loop {
        let last = *taken.iter().min().expect("workers");
        let may = |client: &usize| {
            let (taken, sent) = (taken[*client], sent[*client]);
            let bound = if taken == STEPS { Some(0) } else { staleness.bound() };
            let waits = bound.is_some_and(|bound| taken - last > bound as usize);
            sent < STEPS && (taken == sent || !waits)
        };
        let Some(client) = (0..WORKERS).find(may) else { break answers };
        let count = if taken[client] == sent[client] { &mut taken } else { &mut sent };
        count[client] += 1;
        answers.push(client as u32);
    }
}

const ALL: [Staleness; 4] =
    [Staleness::Within(0), Staleness::Within(1), Staleness::Within(3), Staleness::Unbounded];

#[test]
fn runs_as_stale_as_is_allowed_are_their_serial_replay_bit_for_bit() {
    for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
        let [gradients, deltas] = [Push::Gradients, Push::Deltas].map(|push| {
            let found = ALL.map(|staleness| {
                let answers = as_stale_as_allowed(staleness);
                let servers = Servers { push, ..Servers::of(1, staleness) };
                check(servers, optimizer, Some(vec![answers]))
            });
            let all_differ = found.windows(2).all(|pair| pair[0] != pair[1]);
            assert!(all_differ, "staleness shows");
            found
        });
        let differ = gradients.iter().zip(&deltas).all(|(one, other)| one != other);
        assert!(differ, "who updates shows");
    }
}

#[test]
fn runs_as_they_come_on_threads_are_their_serial_replay_bit_for_bit() {
    for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
        for staleness in ALL {
            for (count, colocated) in [(1, false), (3, false), (1, true)] {
                for push in [Push::Gradients, Push::Deltas] {
                    let servers = Servers::of(count, staleness);
                    check(Servers { push, colocated, ..servers }, optimizer, None);
                }
            }
        }
    }
}
