//! A bound on staleness that follows how far apart workers are: in every row servers keep to the bound of that row,
//! which is read from what they answered; who answers again in that order comes to the same, bit for bit.

use crate::support::processes::led;
use crate::support::{Samples, mesh, serial, settings, small_gpt, trainer_with};
use shardloom_checkpoint::{Meta, Store};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Optimizer, Plan, Servers, Staleness, Sync, Uniform};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, BoundChange, DelayBound, RunClock, Settings, Step, Trainer};

const WORKERS: usize = 3;
const ROW: u32 = 12;
const CURVE: Curve = Curve::Constant { peak: 0.01 };

/// Workers with so many micro-batches of a step each, and two servers.
fn plan(graph: &Graph, shares: [usize; WORKERS], staleness: u32) -> Plan {
    let servers = Servers::of(2, Staleness::Within(staleness));
    let sync = Sync { servers: Some(servers), bucket_bytes: 4000, ..Sync::default() };
    let microbatches = shares.iter().sum();
    let uniform = Uniform {
        sync,
        mesh: mesh(WORKERS as u32, 1, 1),
        clip_norm: None,
        optimizer: Optimizer::sgd(0.0),
        global_batch: 4 * WORKERS,
        ..serial()
    };
    let mut plan = uniform.plan(graph, "model", "h100-80g:5");
    (plan.microbatches, plan.global_batch) = (microbatches, 4 * microbatches);
    for (pipeline, share) in plan.pipeline.iter_mut().zip(shares) {
        pipeline.microbatches = Some(share);
    }
    plan
}

fn started(graph: &Graph, plan: &Plan, (least, most): (u32, u32), clock: RunClock) -> Trainer {
    let settings = Settings { clock, ..settings(CURVE) };
    let mut run = trainer_with(graph, plan, Samples::patterned(64, 8, 32), settings);
    let bound = DelayBound::new(least, most, plan).expect("within");
    run.follow_distances(bound);
    run
}

fn virtual_clock() -> RunClock {
    RunClock::Virtual(Cluster::parse("h100-80g:5").expect("a preset"))
}

/// A row of steps, its answers, and the bound that it had, which is that of the last change before.
fn train(run: &mut Trainer, began: u32) -> (Vec<Step>, Vec<Vec<u32>>, u32) {
    let bound = run.bound_changes().last().map_or(began, |change| change.to);
    let steps = run.train_steps(ROW).unwrap_or_else(|error| panic!("{error}"));
    let answers = run.answers().to_vec();
    for of_server in &answers[WORKERS..] {
        let lacks = staleness(of_server);
        assert!(lacks <= bound, "{lacks} steps of {bound}: {of_server:?}");
    }
    (steps, answers, bound)
}

/// The most steps of some worker that weights lack which a worker got.
fn staleness(answers: &[u32]) -> u32 {
    let (mut applied, mut sent) = ([0; WORKERS], [0; WORKERS]);
    let mut most = 0;
    for worker in answers.iter().map(|&worker| worker as usize) {
        if applied[worker] == sent[worker] {
            applied[worker] += 1;
            continue;
        }
        sent[worker] += 1;
        most = most.max(sent[worker] - applied.iter().min().expect("workers"));
    }
    assert_eq!((applied, sent), ([ROW; WORKERS], [ROW; WORKERS]), "{answers:?}");
    most
}

fn digest(run: &mut Trainer) -> String {
    run.weights_digest().expect("a digest")
}

#[test]
fn under_the_virtual_clock_a_slow_worker_loosens_the_bound_to_the_most_that_is_allowed() {
    let graph = small_gpt();
    let mut run = started(&graph, &plan(&graph, [1, 1, 4], 1), (1, 3), virtual_clock());
    let bounds: Vec<u32> = (0..4).map(|_| train(&mut run, 1).2).collect();
    assert_eq!(bounds, [1, 2, 3, 3]);
    let changes = run.bound_changes();
    assert_eq!(changes.len(), 2, "{changes:?}");
    for (change, expected) in changes.iter().zip(1..) {
        let &BoundChange { step, from, to, distances } = change;
        assert_eq!((step, from, to), (u64::from(expected * ROW), expected, expected + 1));
        // Of each server each worker fetches after all of its steps but the last.
        assert_eq!(distances.fetches, 2 * WORKERS as u64 * u64::from(ROW - 1));
        assert!(distances.held_share() > 0.1 && distances.farthest == from + 1, "{distances:?}");
    }
}

#[test]
fn under_the_virtual_clock_workers_that_are_alike_tighten_it_to_how_far_they_are_apart() {
    let graph = small_gpt();
    let mut run = started(&graph, &plan(&graph, [1, 1, 1], 8), (1, 8), virtual_clock());
    // First steps take one rank longer than another.
    let bounds: Vec<u32> = (0..6).map(|_| train(&mut run, 8).2).collect();
    assert!(bounds[5] < 8, "{bounds:?}");
    let tightened = run.bound_changes().iter().filter(|change| change.to < change.from);
    for change in tightened {
        let distances = change.distances;
        assert_eq!((distances.held, change.to), (0, distances.farthest.max(1)), "{change:?}");
    }
}

/// Answers of a row in which each worker gets as far ahead of those behind it as is allowed.
fn as_stale_as_allowed(bound: u32) -> Vec<Vec<u32>> {
    let (mut ended, mut sent) = ([0; WORKERS], [0; WORKERS]);
    let mut answers = vec![];
    loop {
        let last = *ended.iter().min().expect("workers");
        let may = |worker: &usize| {
            let (ended, sent) = (ended[*worker], sent[*worker]);
            let bound = if ended == ROW { 0 } else { bound };
            sent < ROW && (ended == sent || ended - last <= bound)
        };
        let Some(worker) = (0..WORKERS).find(may) else { break };
        let count = if ended[worker] == sent[worker] { &mut ended } else { &mut sent };
        count[worker] += 1;
        answers.push(worker as u32);
    }
    [vec![vec![]; WORKERS], vec![answers; 2]].concat()
}

#[test]
fn a_run_whose_answers_are_repeated_changes_its_bound_likewise_and_comes_to_the_same_bits() {
    let graph = small_gpt();
    let plan = plan(&graph, [1, 1, 2], 1);
    let start = || started(&graph, &plan, (1, 4), RunClock::Wall);
    // As workers come, but for the first row, so that there is a change.
    let mut wrote = start();
    wrote.repeat_answers(as_stale_as_allowed(1)).expect("threads");
    let folder = tempfile::tempdir().expect("a folder");
    let mut rows = vec![];
    for row in 0..4 {
        if row == 2 {
            wrote.save(folder.path(), Meta::default(), None).expect("saved");
        }
        rows.push(train(&mut wrote, 1));
    }
    let changes = wrote.bound_changes().to_vec();
    assert_eq!((changes[0].step, changes[0].to), (u64::from(ROW), 2), "{changes:?}");
    let losses = |steps: &[Step]| steps.iter().map(|step| step.loss).collect::<Vec<_>>();
    let repeat = |run: &mut Trainer, from: usize| {
        for (steps, answers, _) in &rows[from..] {
            run.repeat_answers(answers.clone()).expect("threads");
            let again = run.train_steps(ROW).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(losses(&again), losses(steps));
        }
    };
    let mut repeats = start();
    repeat(&mut repeats, 0);
    assert_eq!(repeats.bound_changes(), changes);
    assert_eq!(digest(&mut repeats), digest(&mut wrote));
    // Interrupted, with the bound and the loss of the row before in the checkpoint.
    let mut resumed = start();
    let (checkpoint, _) = Store::open(folder.path()).and_then(|it| it.load_latest()).expect("one");
    resumed.resume(checkpoint).expect("resumed");
    repeat(&mut resumed, 2);
    let since = changes.iter().filter(|change| change.step > u64::from(2 * ROW));
    assert_eq!(resumed.bound_changes(), since.copied().collect::<Vec<_>>());
    assert_eq!(digest(&mut resumed), digest(&mut wrote));
    // With the bound that it began with the second row could not have been answered so.
    let mut kept = trainer_with(&graph, &plan, Samples::patterned(64, 8, 32), settings(CURVE));
    kept.repeat_answers(as_stale_as_allowed(2)).expect("threads");
    assert!(kept.train_steps(ROW).is_err());
}

/// With the answers of threads, of which a row has another bound than the one before.
#[test]
fn in_several_processes_the_bound_changes_likewise_and_the_run_comes_to_the_same_bits() {
    let graph = small_gpt();
    let plan = plan(&graph, [1, 1, 2], 1);
    let mut threads = started(&graph, &plan, (1, 4), RunClock::Wall);
    threads.repeat_answers(as_stale_as_allowed(1)).expect("threads");
    let rows: Vec<_> = (0..3).map(|_| train(&mut threads, 1)).collect();
    let changes = threads.bound_changes().to_vec();
    assert_eq!((changes[0].step, changes[0].to), (u64::from(ROW), 2), "{changes:?}");
    let last = digest(&mut threads);
    let blueprint = || Blueprint::new(graph.clone(), &plan, 5, settings(CURVE)).expect("a plan");
    let data = || Samples::patterned(64, 8, 32);
    led(&blueprint, &data, |blueprint| {
        let mut run = Trainer::start(blueprint, Box::new(data())).expect("it starts");
        run.follow_distances(DelayBound::new(1, 4, &plan).expect("within"));
        for (steps, answers, _) in &rows {
            run.repeat_answers(answers.clone()).expect("processes");
            let again = run.train_steps(ROW).unwrap_or_else(|error| panic!("{error}"));
            assert!(again.iter().zip(steps).all(|(again, step)| again.loss == step.loss));
        }
        assert_eq!(run.bound_changes(), changes);
        assert_eq!(digest(&mut run), last);
        // As workers come, each row keeps to the bound that it has.
        let (_, _, bound) = train(&mut run, 1);
        assert!((1..=4).contains(&bound), "{bound}");
    });
}
