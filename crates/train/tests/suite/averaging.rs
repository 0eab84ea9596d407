//! Replicas with weights of their own, against as many serial runs that are averaged by plain loops: gradients
//! are those of one rank that trains with each replica's weights on its samples, optimizers' formulas and means
//! are written out element by element. Weights are equal bit for bit.

use std::collections::BTreeMap;

use crate::support::formulas;
use crate::support::trained::Trained;
use crate::support::{Samples, losses, mesh, serial, settings, small_gpt, trainer_with};
use shardloom_checkpoint::{Checkpoint, Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{
    Averaging, AveragingTime, Axis, AxisSet, Communication, LossScale, Optimizer, Partners, Plan,
    Precision, Sync, Uniform,
};
use shardloom_program::{Content, Format, Rank};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{RunClock, Settings, Trainer};

pub const BATCH: usize = 24;
pub const STEPS: usize = 7;
pub const CURVE: Curve =
    Curve::Cosine { peak: 0.1, warmup_steps: 2, total_steps: STEPS as u64, floor: 0.01 };

fn uniform(optimizer: Optimizer) -> Uniform {
    Uniform { global_batch: BATCH, clip_norm: None, optimizer, ..serial() }
}

pub fn averaged(averaging: Averaging, optimizer: Optimizer) -> Uniform {
    let averaging = Some(averaging);
    let algorithm = "direct".parse().expect("an algorithm");
    let sync = Sync { averaging, algorithm, bucket_bytes: 4000, ..Sync::default() };
    Uniform { sync, ..uniform(optimizer) }
}

pub fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    trainer_with(graph, plan, Samples::patterned(64, 8, 32), settings(CURVE))
}

/// Numbers by the name of the parameter that they are of.
pub type Tensors = BTreeMap<String, Vec<f32>>;

/// The gradients of runs on one rank, one after the other on the samples as they come.
pub struct Gradients(pub Trainer);

impl Gradients {
    pub fn new(graph: &Graph, samples: usize) -> Gradients {
        // The velocity after a first step is the gradient.
        let alone = Uniform { global_batch: samples, ..uniform(Optimizer::sgd(0.5)) };
        let mut plan = alone.plan(graph, "model", "local");
        // A replica computes gradients of its part of the mean over the batch, and multiplies them by the number of
        // replicas before it updates with them. The same numbers come of a loss that is scaled by a power of two of
        // as many replicas, divided by their number.
        let replicas = BATCH / samples;
        if !replicas.is_power_of_two() {
            let scale = replicas.next_power_of_two() as f64 / replicas as f64;
            plan.loss_scale = Some(LossScale::Constant { scale });
        }
        Gradients(trainer(graph, &plan))
    }

    /// The loss with these weights on the samples that come next, and the gradient of its mean over them.
    pub fn next(&mut self, weights: &Tensors) -> (f64, Tensors) {
        let Gradients(run) = self;
        run.set_weights(weights.clone()).expect("weights");
        let loss = losses(run, 1)[0];
        let folder = tempfile::tempdir().expect("a folder");
        run.save(folder.path(), Meta::default(), None).expect("saved");
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let checkpoint = latest.expect("the checkpoint").0;
        let gradient = |name: &String| {
            let velocity = checkpoint.read_whole(&format!("optimizer.0/{name}"));
            (name.clone(), velocity.expect("a velocity"))
        };
        (loss, weights.keys().map(gradient).collect())
    }
}

/// A replica with weights and optimizer state of its own.
#[derive(Clone)]
pub struct Replica {
    pub weights: Tensors,
    pub moments: [Tensors; 2],
}

impl Replica {
    /// Updates it for the n-th time, counted from 0.
    pub fn update(&mut self, graph: &Graph, optimizer: Optimizer, gradient: &Tensors, step: usize) {
        let rate = LearningRate::new(CURVE).expect("a positive rate").at(step as u64) as f32;
        for (_, value) in graph.parameters() {
            let decays = value.parameter().is_some_and(|it| it.decays);
            let of = |tensors: &mut Tensors| {
                std::mem::take(tensors.get_mut(&value.name).expect("a parameter"))
            };
            let mut weights = of(&mut self.weights);
            let [mut m, mut v] = self.moments.each_mut().map(of);
            for (at, &g) in gradient[&value.name].iter().enumerate() {
                let moved = [&mut weights[at], &mut m[at], &mut v[at]];
                formulas::update(optimizer, (rate, decays, step as f64 + 1.0), moved, g);
            }
            self.weights.insert(value.name.clone(), weights);
            for (moments, values) in self.moments.iter_mut().zip([m, v]) {
                moments.insert(value.name.clone(), values);
            }
        }
    }
}

/// Averages replicas: sums in their order.
fn average(replicas: &mut [Replica], rate: f64) {
    let kept = (1.0 - rate) as f32;
    let taken = ((1.0 - f64::from(kept)) / replicas.len() as f64) as f32;
    let names: Vec<String> = replicas[0].weights.keys().cloned().collect();
    for name in names {
        for at in 0..replicas[0].weights[&name].len() {
            let values = replicas.iter().map(|replica| replica.weights[&name][at]);
            let sum = values.reduce(|sum, value| sum + value).expect("replicas");
            for replica in replicas.iter_mut() {
                let weight = &mut replica.weights.get_mut(&name).expect("a parameter")[at];
                *weight = match rate {
                    1.0 => taken * sum,
                    _ => kept * *weight + taken * sum,
                };
            }
        }
    }
}

/// What so many serial replicas come to in some steps: the loss of each, and the weights of each replica, or of all if
/// averages have ended.
pub fn replayed(
    graph: &Graph,
    count: usize,
    steps: usize,
    averaging: Averaging,
    optimizer: Optimizer,
) -> (Vec<f64>, Vec<Tensors>) {
    let mut gradients = Gradients::new(graph, BATCH / count);
    let weights = gradients.0.weights().expect("weights");
    let zero: Tensors =
        weights.iter().map(|(name, it)| (name.clone(), vec![0.0; it.len()])).collect();
    let mut replicas = vec![Replica { weights, moments: [zero.clone(), zero] }; count];
    let mut mean_losses = vec![];
    for step in 0..steps {
        let until = averaging.until.map(|until| until as usize);
        if until == Some(step) {
            let first = replicas[0].clone();
            replicas.fill(first);
        }
        let found: Vec<_> = replicas.iter().map(|it| gradients.next(&it.weights)).collect();
        mean_losses.push(found.iter().map(|(loss, _)| loss).sum::<f64>() / count as f64);
        if until.is_some_and(|until| step >= until) {
            // All have the same weights.
            let gradient = mean(found.iter().map(|(_, gradient)| gradient));
            for replica in &mut replicas {
                replica.update(graph, optimizer, &gradient, step);
            }
            continue;
        }
        let is_due = (step + 1).is_multiple_of(averaging.every as usize);
        let averages = |when| is_due && count > 1 && averaging.when == when;
        if averages(AveragingTime::BeforeUpdate) {
            average(&mut replicas, averaging.rate);
        }
        for (replica, (_, gradient)) in replicas.iter_mut().zip(&found) {
            replica.update(graph, optimizer, gradient, step);
        }
        if averages(AveragingTime::AfterUpdate) {
            average(&mut replicas, averaging.rate);
        }
    }
    if averaging.until.is_some_and(|until| steps > until as usize) {
        replicas.truncate(1);
    }
    (mean_losses, replicas.into_iter().map(|replica| replica.weights).collect())
}

/// The mean, added up in order.
fn mean<'a>(of: impl ExactSizeIterator<Item = &'a Tensors>) -> Tensors {
    let count = of.len() as f32;
    let mut sums = Tensors::new();
    for tensors in of {
        for (name, values) in tensors {
            match sums.get_mut(name) {
                None => drop(sums.insert(name.clone(), values.clone())),
                Some(sum) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            }
        }
    }
    sums.values_mut().flatten().for_each(|value| *value /= count);
    sums
}

pub fn assert_near(found: &[Tensors], expected: &[Tensors], most: f32, of: &str) {
    assert_eq!(found.len(), expected.len(), "{of}");
    for (replica, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (name, expected) in expected {
            for (&found, &expected) in found[name].iter().zip(expected) {
                let same = found.to_bits() == expected.to_bits();
                let near = same || (found - expected).abs() <= most;
                assert!(near, "{name} of replica {replica}: {found} for {expected}, {of}");
            }
        }
    }
}

/// With an epsilon so large that rounding of a gradient that is zero does not become an update.
pub const ADAMW: Optimizer =
    Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-2, weight_decay: 0.1 };

const EACH_STEP: Averaging = Averaging {
    every: 1,
    rate: 1.0,
    when: AveragingTime::AfterUpdate,
    partners: Partners::All,
    over: None,
    until: None,
};

const LOCAL: [Averaging; 2] = [EACH_STEP, Averaging { every: 3, ..EACH_STEP }];

#[test]
fn replicas_come_to_what_serial_runs_that_are_averaged_come_to() {
    let graph = small_gpt();
    let now_and_then = Averaging { every: 2, rate: 0.25, ..Averaging::SYNCHRONOUS };
    let [each, third] = LOCAL;
    for optimizer in [Optimizer::sgd(0.0), Optimizer::sgd(0.5), ADAMW] {
        for averaging in [each, third, Averaging::SYNCHRONOUS, now_and_then] {
            for replicas in [1, 2, 3, 4, 8] {
                let of = format!("{replicas} of {averaging:?} with {optimizer:?}");
                let mesh = mesh(replicas, 1, 1);
                let plan = Uniform { mesh, ..averaged(averaging, optimizer) };
                let mut run = trainer(&graph, &plan.plan(&graph, "model", "local"));
                let losses = losses(&mut run, STEPS);
                let found = run.weights_of_replicas().expect("weights");
                let count = replicas as usize;
                let (expected_losses, expected) =
                    replayed(&graph, count, STEPS, averaging, optimizer);
                assert_near(&found, &expected, 0.0, &of);
                for (loss, expected) in losses.iter().zip(expected_losses) {
                    assert!((loss - expected).abs() < 1e-5 * expected, "{loss}, {expected}: {of}");
                }
            }
        }
    }
}

pub fn digest(run: &mut Trainer) -> String {
    run.weights_digest().expect("a digest")
}

pub fn saved(run: &mut Trainer) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().expect("a folder");
    run.save(folder.path(), Meta::default(), None).expect("saved");
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    (folder, latest.expect("the checkpoint").0)
}

pub fn plan(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", "local")
}

#[test]
fn averaged_after_every_step_plain_descent_is_data_parallelism() {
    let graph = small_gpt();
    let sgd = Optimizer::sgd(0.0);
    for mesh in [mesh(2, 1, 1), mesh(3, 1, 1), mesh(2, 1, 2)] {
        let [replicas, parallel] =
            [averaged(LOCAL[0], sgd), uniform(sgd)].map(|uniform| Uniform { mesh, ..uniform });
        let [replicas, parallel] = [replicas, parallel].map(|uniform| {
            let mut run = trainer(&graph, &plan(&graph, &uniform));
            Trained::in_rows(&mut run, &[STEPS as u32])
        });
        replicas.assert_losses(&parallel, 1e-5, "averaged replicas");
        replicas.assert_moved(&parallel, 1e-5, "averaged replicas");
        assert!(replicas.distance() > 0.1, "something is learnt");
    }
}

#[test]
fn what_splits_a_replica_does_not_change_what_replicas_come_to() {
    let graph = small_gpt();
    let optimizer = Optimizer::sgd(0.9);
    let averaging = Averaging::local_sgd(2);
    let replicas = |uniform: Uniform| {
        let mut run = trainer(&graph, &plan(&graph, &uniform));
        let losses = losses(&mut run, STEPS);
        (losses, run.weights_of_replicas().expect("weights"))
    };
    let plain = Uniform { mesh: mesh(2, 1, 1), ..averaged(averaging, optimizer) };
    let (expected_losses, expected) = replicas(plain.clone());
    // Two of four data-parallel ranks are one replica, whose gradients are reduced.
    let within = mesh(4, 1, 1).sharing_within(2).expect("two by two");
    let over = AxisSet::of(&[Axis::REPLICA]);
    let within = Uniform { mesh: within, ..averaged(Averaging { over, ..averaging }, optimizer) };
    let split = [
        Uniform { mesh: mesh(2, 1, 2), sequence_parallel: true, ..plain.clone() },
        Uniform { mesh: mesh(2, 2, 1), ..plain.clone() },
        Uniform { pp: 2, microbatches: 4, ..plain.clone() },
        Uniform { pp: 2, microbatches: 2, mesh: mesh(2, 1, 2), ..plain.clone() },
        within,
    ];
    for uniform in split {
        let of = format!("{uniform:?}");
        // Which samples a replica has goes by micro-batches.
        let (expected_losses, expected) = match uniform.microbatches {
            1 => (expected_losses.clone(), expected.clone()),
            microbatches => replicas(Uniform { microbatches, ..plain.clone() }),
        };
        let (losses, found) = replicas(uniform);
        for (loss, expected) in losses.iter().zip(expected_losses) {
            assert!((loss - expected).abs() < 1e-5 * expected, "{loss}, {expected}: {of}");
        }
        assert_near(&found, &expected, 2e-5, &of);
        // The last step was the one after an average.
        assert_ne!(found[0], found[1], "{of}");
    }
}

#[test]
fn a_run_that_is_interrupted_ends_as_one_that_is_not() {
    let graph = small_gpt();
    for optimizer in [Optimizer::sgd(0.9), ADAMW] {
        for averaging in [LOCAL[1], Averaging::SYNCHRONOUS] {
            let uniform = Uniform { mesh: mesh(2, 1, 2), ..averaged(averaging, optimizer) };
            let plan = plan(&graph, &uniform);
            let mut whole = trainer(&graph, &plan);
            losses(&mut whole, 4);
            let (_folder, checkpoint) = saved(&mut whole);
            let rest = losses(&mut whole, 3);
            let mut resumed = trainer(&graph, &plan);
            resumed.resume(checkpoint).expect("resumed");
            assert_eq!(losses(&mut resumed, 3), rest);
            assert_eq!(digest(&mut resumed), digest(&mut whole));
            // What one rank of a replica holds another plan's ranks of it share out.
            let mut again = trainer(&graph, &plan);
            losses(&mut again, 4);
            again.replan(&plan, plan.device_count()).expect("the same plan");
            assert_eq!(losses(&mut again, 3), rest);
            assert_eq!(digest(&mut again), digest(&mut whole));
        }
    }
}

#[test]
fn another_number_of_replicas_is_refused_and_one_state_for_all_is_taken_by_each() {
    let graph = small_gpt();
    let with = |replicas, averaging: Option<Averaging>| {
        let common = averaged(LOCAL[1], Optimizer::sgd(0.9));
        let sync = Sync { averaging, ..common.sync };
        plan(&graph, &Uniform { mesh: mesh(replicas, 1, 1), sync, ..common })
    };
    let mut two = trainer(&graph, &with(2, Some(LOCAL[1])));
    losses(&mut two, 4);
    let (_folder, checkpoint) = saved(&mut two);
    // What neither replica has of its own is their mean.
    let own = two.weights_of_replicas().expect("weights");
    let mean = two.weights().expect("weights");
    for (name, mean) in &mean {
        let pairs = own[0][name].iter().zip(&own[1][name]);
        let expected =
            pairs.map(|(one, other)| ((f64::from(*one) + f64::from(*other)) / 2.0) as f32);
        assert_eq!(*mean, expected.collect::<Vec<_>>(), "{name}");
        assert_eq!(checkpoint.read_whole(name).expect("a mean"), *mean, "{name}");
    }
    for (replicas, averaging, count) in [(4, Some(LOCAL[1]), 4), (2, None, 1), (1, None, 1)] {
        let mut other = trainer(&graph, &with(replicas, averaging));
        let same = Checkpoint::open(checkpoint.path()).expect("a checkpoint");
        let refused = other.resume(same).expect_err("another number").to_string();
        let expected =
            format!("optimizer state of 2 replicas of their own, and the plan has {count}");
        assert!(refused.contains(&expected), "{refused}");
    }
    let mut plain = trainer(&graph, &with(2, None));
    losses(&mut plain, 2);
    let (_folder, checkpoint) = saved(&mut plain);
    let mut each = trainer(&graph, &with(4, Some(LOCAL[1])));
    each.resume(checkpoint).expect("one state for all");
    let weights = plain.weights().expect("weights");
    assert_eq!(each.weights_of_replicas().expect("weights"), vec![weights; 4]);
}

#[test]
fn a_run_sends_a_ring_of_all_weights_once_in_so_many_steps_and_holds_what_was_counted() {
    let graph = small_gpt();
    let cluster = Cluster::parse("h100-80g:4").expect("a preset");
    let sgd = Optimizer::sgd(0.0);
    for replicas in [2_u64, 4] {
        for every in [1_u64, 3] {
            for clock in [RunClock::Wall, RunClock::Virtual(cluster.clone())] {
                let averaging = Averaging::local_sgd(every as u32);
                let common = averaged(averaging, sgd);
                let algorithm = "ring".parse().expect("an algorithm");
                let sync = Sync { algorithm, ..common.sync };
                let mesh = mesh(replicas as u32, 1, 1);
                let plan = plan(&graph, &Uniform { sync, mesh, ..common });
                let settings = Settings { clock, ..settings(CURVE) };
                let mut run = trainer_with(&graph, &plan, Samples::patterned(64, 8, 32), settings);
                run.train_steps(6).expect("steps");
                let averages = 6 / every;
                // Every bucket divides by the number of replicas.
                let weights = 4 * graph.parameter_count();
                let bytes = averages * 2 * (replicas - 1) * weights / replicas;
                assert_eq!(run.sent_bytes_per_rank(), vec![bytes; replicas as usize]);
                let program = run.program();
                for (rank, peak) in run.peak_bytes_per_rank().iter().enumerate() {
                    let (id, position) = program.locate(Rank(rank as u32));
                    let class = program.class(id);
                    assert_eq!(*peak, class.memory_use(program, position).peak_bytes);
                    assert_eq!(program.sent_bytes(id, position), bytes / averages);
                }
                assert_eq!(run.system_allocations(), 0);
            }
        }
    }
}

#[test]
fn master_weights_are_averaged_and_rounded_again() {
    let graph = small_gpt();
    for averaging in [LOCAL[1], Averaging { every: 2, ..Averaging::SYNCHRONOUS }] {
        let common = averaged(averaging, ADAMW);
        let precision = Precision::MIXED;
        let plan = plan(&graph, &Uniform { mesh: mesh(2, 1, 1), precision, ..common });
        let mut run = trainer(&graph, &plan);
        let class = &run.program().classes[0];
        let sums = class.tensors.iter().filter(|it| it.content == Content::SummedWeight);
        assert!(sums.map(|it| it.format).all(|it| it == Format::F32));
        let losses = losses(&mut run, 3);
        let own = run.weights_of_replicas().expect("weights");
        match averaging.when {
            AveragingTime::AfterUpdate => assert_eq!(own[0], own[1], "just averaged"),
            AveragingTime::BeforeUpdate => assert_ne!(own[0], own[1], "updated since"),
        }
        // Half the formats, and the same but for rounding.
        let exact = plan_in_fp32(&plan);
        let expected = crate::support::losses(&mut trainer(&graph, &exact), 3);
        for (loss, expected) in losses.iter().zip(expected) {
            assert!((loss - expected).abs() < 0.01 * expected, "{loss}, {expected}");
        }
    }
}

fn plan_in_fp32(plan: &Plan) -> Plan {
    Plan { precision: Precision::FP32, ..plan.clone() }
}

#[test]
fn replicas_begin_alike_and_validate_each_on_its_own_samples() {
    let graph = small_gpt();
    let uniform = Uniform { mesh: mesh(2, 1, 1), ..averaged(LOCAL[1], Optimizer::sgd(0.0)) };
    let mut run = trainer(&graph, &plan(&graph, &uniform));
    let own = run.weights_of_replicas().expect("weights");
    assert_eq!(own[0], own[1]);
    losses(&mut run, 2);
    let own = run.weights_of_replicas().expect("weights");
    assert_ne!(own[0], own[1]);
    // The first half of a micro-batch is the first replica's.
    let found = run.validate(1).expect("a loss").expect("samples");
    let alone = Uniform { global_batch: BATCH / 2, ..self::uniform(Optimizer::sgd(0.0)) };
    let mut alone = trainer(&graph, &plan(&graph, &alone));
    let mut of = |weights: &Tensors, micro_batches: u64| {
        alone.set_weights(weights.clone()).expect("weights");
        alone.validate(micro_batches).expect("a loss").expect("samples")
    };
    let first = of(&own[0], 1);
    let second = 2.0 * of(&own[1], 2) - of(&own[1], 1);
    assert!((found - (first + second) / 2.0).abs() < 1e-5, "{found}: {first}, {second}");
}

#[test]
fn a_thread_for_collectives_changes_nothing_but_when_sums_are_there() {
    let graph = small_gpt();
    for averaging in [LOCAL[0], LOCAL[1], Averaging::SYNCHRONOUS] {
        let uniform = Uniform { mesh: mesh(2, 1, 2), ..averaged(averaging, ADAMW) };
        let in_line = plan(&graph, &Uniform { pp: 2, microbatches: 2, ..uniform });
        let thread = Plan { communication: Communication::Thread, ..in_line.clone() };
        let [in_line, thread] = [in_line, thread].map(|plan| {
            let mut run = trainer(&graph, &plan);
            let steps = run.train_steps(STEPS as u32).expect("steps");
            let program = run.program().clone();
            for (rank, peak) in run.peak_bytes_per_rank().iter().enumerate() {
                let (id, position) = program.locate(Rank(rank as u32));
                assert_eq!(*peak, program.class(id).memory_use(&program, position).peak_bytes);
            }
            (steps.iter().map(|step| step.loss).collect::<Vec<_>>(), digest(&mut run))
        });
        assert_eq!(in_line, thread, "{averaging:?}");
    }
}
