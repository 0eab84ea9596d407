//! Replicas that take in half of what one other has published, against as many serial runs that do so by plain
//! loops, in an order in which each finds what the run's own replica found. Weights are equal bit for bit.

use crate::support::formulas;
use crate::support::processes::led;
use crate::support::replica::{Replica, Tensors};
use crate::support::{Samples, mesh, serial, settings, small_gpt, trainer_with};
use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Averaging, Communication, Optimizer, Plan, Precision, Sync, Uniform};
use shardloom_program::{Action, ClassId, Content, Group, Program, Rank};
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{Blueprint, RunClock, Settings, Trainer};

const BATCH: usize = 8;
const STEPS: usize = 7;
const CURVE: Curve =
    Curve::Cosine { peak: 0.1, warmup_steps: 2, total_steps: STEPS as u64, floor: 0.01 };

fn uniform(optimizer: Optimizer) -> Uniform {
    Uniform { global_batch: BATCH, clip_norm: None, optimizer, ..serial() }
}

fn plan(graph: &Graph, replicas: u32, optimizer: Optimizer) -> Plan {
    let averaging = Some(Averaging::PAIRS);
    let sync = Sync { averaging, bucket_bytes: 4000, ..Sync::default() };
    let mesh = mesh(replicas, 1, 1);
    Uniform { sync, mesh, ..uniform(optimizer) }.plan(graph, "model", "local")
}

fn samples() -> Samples {
    Samples::patterned(64, 8, 32)
}

fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    trainer_with(graph, plan, samples(), settings(CURVE))
}

/// The losses of a row of steps.
fn train(run: &mut Trainer, steps: usize) -> Vec<f64> {
    let steps = run.train_steps(steps as u32).unwrap_or_else(|error| panic!("{error}"));
    steps.iter().map(|step| step.loss).collect()
}

/// With an epsilon so large that rounding of a gradient that is zero does not become an update.
const ADAMW: Optimizer =
    Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-2, weight_decay: 0.1 };

/// A replica as a run of its own, and what it has published by step.
struct Serial {
    replica: Replica,
    published: Vec<Tensors>,
    moments: [Tensors; 2],
}

impl Serial {
    fn new(graph: &Graph, replicas: usize) -> Serial {
        // The velocity after a first step is the gradient.
        let alone = Uniform { global_batch: BATCH / replicas, ..uniform(Optimizer::sgd(0.5)) };
        let alone = trainer(graph, &alone.plan(graph, "model", "local"));
        let replica = Replica::new(alone, replicas);
        let zero = |(name, it): (&String, &Vec<f32>)| (name.clone(), vec![0.0; it.len()]);
        let zero: Tensors = replica.weights.iter().map(zero).collect();
        Serial { replica, published: vec![], moments: [zero.clone(), zero] }
    }

    /// Its next step, in which it takes in half of `other`.
    fn step(
        &mut self,
        graph: &Graph,
        (number, of): (usize, usize),
        other: &Tensors,
        optimizer: Optimizer,
    ) {
        let step = self.replica.gradients.len();
        self.replica.compute(number);
        let parts = self.replica.gradients.last().expect("it has just been computed");
        let rate = LearningRate::new(CURVE).expect("a positive rate").at(step as u64) as f32;
        for (_, value) in graph.parameters() {
            let decays = value.parameter().is_some_and(|it| it.decays);
            let name = &value.name;
            let weights = self.replica.weights.get_mut(name).expect("a parameter");
            let [m, v] = self.moments.each_mut().map(|it| it.get_mut(name).expect("a parameter"));
            for at in 0..weights.len() {
                // It is its own mean, not a part of one of all.
                let g = parts[name][at] * of as f32;
                weights[at] = 0.5 * weights[at] + 0.5 * other[name][at];
                let moved = [&mut weights[at], &mut m[at], &mut v[at]];
                formulas::update(optimizer, (rate, decays, step as f64 + 1.0), moved, g);
            }
        }
    }
}

/// The replicas of which each fetches from another.
fn group(program: &Program) -> &Group {
    let fetched = program.classes[0].instructions().find_map(|(_, _, it)| match &it.action {
        Action::Fetch { group } => Some(group),
        _ => None,
    });
    fetched.expect("it fetches")
}

/// What serial replicas come to that find in each step what was found: the loss of each step, and the weights of each
/// replica. `fetched` says by replica and step in which step the other had published that.
fn replayed(
    graph: &Graph,
    run: &Trainer,
    fetched: &[Vec<u32>],
    optimizer: Optimizer,
) -> (Vec<f64>, Vec<Tensors>) {
    let mut all: Vec<Serial> = fetched.iter().map(|_| Serial::new(graph, fetched.len())).collect();
    let program = run.program();
    loop {
        let mut moved = false;
        let count = all.len();
        for own in 0..count {
            let step = all[own].replica.gradients.len();
            if step == STEPS {
                continue;
            }
            if all[own].published.len() == step {
                let weights = all[own].replica.weights.clone();
                all[own].published.push(weights);
                moved = true;
            }
            let (class, position) = program.locate(Rank(own as u32));
            let partner = program.partner(class, position, group(program), step as u64).0 as usize;
            assert_ne!(partner, own);
            let found = all[partner].published.get(fetched[own][step] as usize).cloned();
            if let Some(other) = found {
                all[own].step(graph, (own, count), &other, optimizer);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let mean =
        |step: usize| all.iter().map(|it| it.replica.losses[step]).sum::<f64>() / all.len() as f64;
    ((0..STEPS).map(mean).collect(), all.into_iter().map(|it| it.replica.weights).collect())
}

fn assert_replayed(graph: &Graph, run: &mut Trainer, losses: &[f64], optimizer: Optimizer) {
    let fetched = run.answers().to_vec();
    assert!(fetched.iter().all(|it| it.len() == STEPS), "{fetched:?}");
    let found = run.weights_of_replicas().expect("weights");
    let (expected_losses, expected) = replayed(graph, run, &fetched, optimizer);
    for (replica, (found, expected)) in found.iter().zip(&expected).enumerate() {
        for (name, expected) in expected {
            let same = found[name]
                .iter()
                .zip(expected)
                .all(|(one, other)| one.to_bits() == other.to_bits());
            assert!(same, "{name} of replica {replica} with {optimizer:?}: {fetched:?}");
        }
    }
    for (loss, expected) in losses.iter().zip(expected_losses) {
        assert!((loss - expected).abs() < 1e-6 * expected, "{loss} for {expected}: {fetched:?}");
    }
}

#[test]
fn replicas_come_to_what_serial_ones_do_that_take_in_what_was_fetched() {
    let graph = small_gpt();
    let cluster = Cluster::parse("h100-80g:4").expect("a preset");
    for optimizer in [Optimizer::sgd(0.5), ADAMW] {
        for replicas in [2, 4] {
            for clock in [RunClock::Wall, RunClock::Virtual(cluster.clone())] {
                let plan = plan(&graph, replicas, optimizer);
                let settings = Settings { clock, ..settings(CURVE) };
                let mut run = trainer_with(&graph, &plan, samples(), settings);
                let losses = train(&mut run, STEPS);
                assert_replayed(&graph, &mut run, &losses, optimizer);
                let own = run.weights_of_replicas().expect("weights");
                assert_ne!(own[0], own[1]);
            }
        }
    }
}

/// A row in which replica 0 was slow: the others have done all of their steps before it has published a second time.
fn slow(replicas: usize, program: &Program) -> Vec<Vec<u32>> {
    let group = group(program);
    let class = ClassId(0);
    let last = STEPS as u32 - 1;
    let found =
        |own: usize, step: usize| match (own, program.partner(class, own, group, step as u64)) {
            (0, _) => last,
            (_, Rank(0)) => 0,
            // The others go in step.
            (_, Rank(other)) if other as usize > own => (step as u32).saturating_sub(1),
            _ => step as u32,
        };
    let mut rows: Vec<Vec<u32>> =
        (0..replicas).map(|own| (0..STEPS).map(|step| found(own, step)).collect()).collect();
    // It has fetched once before the others went on.
    let Rank(first) = program.partner(class, 0, group, 0);
    rows[0][0] = if first == 0 { 0 } else { last };
    rows
}

#[test]
fn a_row_is_repeated_bit_for_bit_and_so_is_one_that_time_would_hardly_bring() {
    let graph = small_gpt();
    for replicas in [2, 4] {
        let plan = plan(&graph, replicas, ADAMW);
        let mut first = trainer(&graph, &plan);
        let found = train(&mut first, STEPS);
        let mut again = trainer(&graph, &plan);
        again.repeat_answers(first.answers().to_vec()).expect("threads");
        assert_eq!(train(&mut again, STEPS), found);
        assert_eq!(again.weights_of_replicas().unwrap(), first.weights_of_replicas().unwrap());
        assert_eq!(again.answers(), first.answers());
        let rare = slow(replicas as usize, first.program());
        let mut rarely = trainer(&graph, &plan);
        rarely.repeat_answers(rare.clone()).expect("threads");
        let losses = train(&mut rarely, STEPS);
        assert_eq!(rarely.answers(), rare);
        assert_replayed(&graph, &mut rarely, &losses, ADAMW);
    }
}

#[test]
fn answers_that_no_row_can_have_are_refused() {
    let graph = small_gpt();
    let plan = plan(&graph, 2, Optimizer::sgd(0.5));
    let steps = STEPS as u32;
    let in_step: Vec<u32> = (0..steps).collect();
    // What will be published in a step to come, more than there are, or too few; each before the other.
    let wrong = [
        vec![vec![0; STEPS], vec![0; STEPS - 1]],
        vec![vec![0; STEPS], vec![steps; STEPS]],
        vec![vec![steps - 1; STEPS]; 2],
        // It has been overwritten by then.
        vec![in_step, [vec![steps - 1; STEPS - 1], vec![0]].concat()],
    ];
    for answers in wrong {
        let mut run = trainer(&graph, &plan);
        run.repeat_answers(answers.clone()).expect("threads");
        let error = run.train_steps(steps).expect_err("no such row").to_string();
        assert!(
            error.contains("another program, bound or number of steps"),
            "{error}: {answers:?}"
        );
    }
}

#[test]
fn a_run_fetches_all_weights_once_a_step_and_holds_what_was_counted() {
    let graph = small_gpt();
    let cluster = Cluster::parse("h100-80g:4").expect("a preset");
    for precision in [Precision::FP32, Precision::MIXED] {
        for communication in [Communication::InLine, Communication::Thread] {
            for clock in [RunClock::Wall, RunClock::Virtual(cluster.clone())] {
                let plan = plan(&graph, 4, ADAMW);
                let plan = Plan { precision, communication, ..plan };
                let settings = Settings { clock, ..settings(CURVE) };
                let mut run = trainer_with(&graph, &plan, samples(), settings);
                run.train_steps(4).expect("steps");
                run.train_steps(2).expect("steps");
                // In fp32 either way: with 16 bits the masters are averaged.
                let sent = 6 * 4 * graph.parameter_count();
                assert_eq!(run.sent_bytes_per_rank(), [sent; 4]);
                let program = run.program();
                for (rank, peak) in run.peak_bytes_per_rank().iter().enumerate() {
                    let (id, position) = program.locate(Rank(rank as u32));
                    let class = program.class(id);
                    assert_eq!(*peak, class.memory_use(program, position).peak_bytes);
                    assert_eq!(program.sent_bytes(id, position), sent / 6);
                    // What is published and what is fetched are a second and a third copy.
                    let of = |wanted: Content| {
                        let all = class.tensors().filter(|(_, it)| it.content == wanted);
                        all.map(|(id, _)| class.tensor_bytes(id, position)).sum::<u64>()
                    };
                    assert_eq!(of(Content::PublishedWeight), sent / 6);
                    assert_eq!(of(Content::SummedWeight), sent / 6);
                }
                assert_eq!(run.system_allocations(), 0);
            }
        }
    }
}

#[test]
fn a_run_that_is_interrupted_goes_on_with_each_replica_s_own_state() {
    let graph = small_gpt();
    let plan = plan(&graph, 2, ADAMW);
    let mut whole = trainer(&graph, &plan);
    train(&mut whole, 3);
    let folder = tempfile::tempdir().expect("a folder");
    whole.save(folder.path(), Meta::default(), None).expect("saved");
    let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
    let mut resumed = trainer(&graph, &plan);
    resumed.resume(latest.expect("the checkpoint").0).expect("resumed");
    let rest = train(&mut whole, 4);
    resumed.repeat_answers(whole.answers().to_vec()).expect("threads");
    assert_eq!(train(&mut resumed, 4), rest);
    assert_eq!(resumed.weights_of_replicas().unwrap(), whole.weights_of_replicas().unwrap());
}

#[test]
fn ranks_in_processes_fetch_too_and_repeat_what_threads_did() {
    let graph = small_gpt();
    let plan = plan(&graph, 4, ADAMW);
    let mut threads = trainer(&graph, &plan);
    let found = train(&mut threads, STEPS);
    let weights = threads.weights_of_replicas().expect("weights");
    let blueprint = || {
        let devices = plan.device_count();
        Blueprint::new(graph.clone(), &plan, devices, settings(CURVE)).expect("a plan")
    };
    for repeated in [None, Some(threads.answers().to_vec())] {
        led(&blueprint, &samples, |blueprint| {
            let started = Trainer::start(blueprint, Box::new(samples()));
            let mut run = started.unwrap_or_else(|error| panic!("{error}"));
            let repeats = repeated.is_some();
            repeated.into_iter().for_each(|it| run.repeat_answers(it).expect("threads"));
            let losses = train(&mut run, STEPS);
            let bytes = 4 * graph.parameter_count() * STEPS as u64;
            assert_eq!(run.sent_bytes_per_rank(), [bytes; 4]);
            match repeats {
                true => {
                    assert_eq!(losses, found);
                    assert_eq!(run.weights_of_replicas().expect("weights"), weights);
                }
                false => assert_replayed(&graph, &mut run, &losses, ADAMW),
            }
        });
    }
}
