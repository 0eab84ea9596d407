//! Ranks with a thread for collectives train bitwise like ranks without, in the memory and the time that the
//! program says, and compute while a collective is under way.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support::watched::{Watched, Watcher};
use crate::support::{Samples, graph, mesh, serial, settings, trainer_with_clock};
use shardloom_cluster::Cluster;
use shardloom_data::Table;
use shardloom_fabric::{
    Collective, Completed, Endpoint, Engine, FabricError, Group, Handle, InProcess, Lent,
    Overlapped, Settings,
};
use shardloom_graph::Graph;
use shardloom_plan::{Communication, Mesh, Optimizer, Plan, ScheduleKind, Sync, Uniform, Weights};
use shardloom_program::{Action, BodyKind, Class, Rank};
use shardloom_sim::{Options, Recorded, run};
use shardloom_train::learning_rate::Curve;
use shardloom_train::{Blueprint, RunClock, Trainer};

const STEPS: u32 = 3;

fn gpt() -> Graph {
    graph("gpt:layers=6,hidden=32,heads=4,seq=16,vocab=64,dropout=0.1,tied=true")
}

fn samples() -> Samples {
    Samples::patterned(64, 16, 64)
}

fn uniform(schedule: ScheduleKind, pp: usize, mesh: Mesh, zero: u8) -> Uniform {
    Uniform {
        pp,
        mesh,
        sequence_parallel: mesh.tp() > 1,
        global_batch: 16,
        microbatches: 4,
        schedule,
        sync: Sync { zero, bucket_bytes: 30_000, ..Sync::default() },
        clip_norm: schedule.flushes().then_some(1.0),
        ..serial()
    }
}

/// Plans of every way of keeping replicas equal, of every kind of group, and of steps that run into each
/// other.
fn plans(graph: &Graph) -> Vec<Plan> {
    use ScheduleKind::{Chimera, DualPipe, OneForwardOneBackward as Flush, PipeDream};
    let plan = |schedule, pp, mesh, zero| {
        uniform(schedule, pp, mesh, zero).plan(graph, "model", "a100-40g:8")
    };
    let replicas = mesh(2, 1, 1);
    let mut plans: Vec<Plan> = (0..4).map(|zero| plan(Flush, 1, replicas, zero)).collect();
    plans.push(plan(Flush, 1, mesh(2, 1, 2), 1));
    plans.push(plan(Flush, 2, replicas, 0));
    plans.push(plan(Flush, 2, replicas, 2));
    plans.push(plan(Chimera, 2, replicas, 0));
    plans.push(plan(DualPipe, 2, mesh(1, 1, 2), 0));
    let doubled = Plan { weights: Weights::DoubleBuffer, ..plan(PipeDream, 2, replicas, 1) };
    plans.push(Plan { optimizer: Optimizer::sgd(0.9), ..doubled });
    plans.push(Plan { post_validation: true, ..plan(Flush, 2, replicas, 1) });
    plans
}

fn with_thread(plan: &Plan) -> Plan {
    Plan { communication: Communication::Thread, ..plan.clone() }
}

fn start(graph: &Graph, plan: &Plan, clock: RunClock) -> Trainer {
    trainer_with_clock(graph, plan, samples(), 3e-3, clock)
}

/// Losses, weights, an evaluation, and what was sent.
fn outcome(mut trainer: Trainer) -> (Vec<f64>, String, Option<f64>, Vec<u64>) {
    let steps = trainer.train_steps(STEPS).unwrap_or_else(|error| panic!("{error}"));
    let sent = trainer.sent_bytes_per_rank().to_vec();
    let digest = trainer.weights_digest().expect("weights");
    let validated = trainer.validate(2).expect("an evaluation");
    assert_eq!(trainer.system_allocations(), 0, "every buffer has its place");
    (steps.iter().map(|step| step.loss).collect(), digest, validated, sent)
}

/// Devices on which computation and communication share the cores, and others.
fn clusters() -> [Cluster; 2] {
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    let mut cores = cluster.groups().to_vec();
    cores.iter_mut().for_each(|group| group.profile.device.lanes_overlap = false);
    [Cluster::new(cores).expect("a cluster"), cluster]
}

#[test]
fn weights_are_bitwise_those_without_a_thread_under_both_clocks() {
    let graph = gpt();
    let [cores, _] = clusters();
    for plan in plans(&graph) {
        let in_line = outcome(start(&graph, &plan, RunClock::Wall));
        let plan = with_thread(&plan);
        let text = plan.to_toml();
        assert_eq!(outcome(start(&graph, &plan, RunClock::Wall)), in_line, "{text}");
        let clock = RunClock::Virtual(cores.clone());
        assert_eq!(outcome(start(&graph, &plan, clock)), in_line, "{text}");
    }
}

#[test]
fn updates_that_are_taken_back_are_taken_back_alike() {
    let graph = gpt();
    let uniform = uniform(ScheduleKind::OneForwardOneBackward, 2, mesh(2, 1, 1), 1);
    let uniform = Uniform { clip_norm: Some(0.05), ..uniform };
    let plan = Plan { post_validation: true, ..uniform.plan(&graph, "model", "local") };
    let in_line = outcome(start(&graph, &plan, RunClock::Wall));
    assert_eq!(outcome(start(&graph, &with_thread(&plan), RunClock::Wall)), in_line);
}

#[test]
fn the_executed_timeline_equals_the_simulators() {
    let graph = gpt();
    for cluster in clusters() {
        for plan in plans(&graph) {
            let plan = with_thread(&plan);
            let mut trainer = start(&graph, &plan, RunClock::Virtual(cluster.clone()));
            let (_, executed) = trainer.train_steps_recorded(2).expect("steps");
            let recording = trainer.recording().expect("the virtual clock records");
            let options = Options { steps: 2, folded: false };
            let simulated =
                run(trainer.program(), &cluster, options, &mut Recorded::new(recording));
            let simulated = simulated.expect("the recording is of this program");
            assert_eq!(simulated.timeline, executed, "{}", plan.to_toml());
        }
    }
}

/// The most bytes of each rank: counted, and as the program says.
fn peaks(trainer: &Trainer) -> (Vec<u64>, Vec<u64>) {
    let program = trainer.program();
    let planned = (0..program.ranks() as u32).map(|rank| {
        let (class, position) = program.locate(Rank(rank));
        program.class(class).memory_use(program, position).peak_bytes
    });
    (trainer.peak_bytes_per_rank().to_vec(), planned.collect())
}

#[test]
fn the_peak_is_the_programs_to_the_byte() {
    const WIDTH: usize = 64;
    const ROWS: usize = 64;
    let graph = graph(&format!("mlp:inputs={WIDTH},hidden={WIDTH},layers=12,classes=8"));
    let [cores, _] = clusters();
    let mut differs = 0;
    for (schedule, pp, mesh, zero) in [
        (ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1, 1), 0),
        (ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1, 1), 2),
        (ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1, 1), 3),
        (ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1, 2), 2),
        (ScheduleKind::OneForwardOneBackward, 2, mesh(2, 1, 1), 3),
        (ScheduleKind::DualPipe, 2, mesh(1, 1, 2), 0),
        (ScheduleKind::DualPipeV, 2, mesh(2, 1, 2), 3),
        (ScheduleKind::PipeDream, 2, mesh(2, 1, 1), 2),
    ] {
        let uniform = Uniform {
            global_batch: ROWS,
            microbatches: 8,
            sync: Sync { zero, bucket_bytes: 20_000, ..Sync::default() },
            ..uniform(schedule, pp, mesh, zero)
        };
        let plan = with_thread(&uniform.plan(&graph, "model", "local"));
        for clock in [RunClock::Wall, RunClock::Virtual(cores.clone())] {
            let table = Table::from_rows(
                (0..ROWS * WIDTH).map(|at| (at % 7) as f32).collect(),
                (0..ROWS as u32).map(|row| row % 8).collect(),
                0.0,
                1,
            );
            let table = table.expect("rows");
            let mut trainer = trainer_with_clock(&graph, &plan, table, 1e-3, clock);
            trainer.train_steps(4).expect("steps");
            let (counted, planned) = peaks(&trainer);
            assert_eq!(counted, planned, "{}", plan.to_toml());
            let in_line = uniform.plan(&graph, "model", "local");
            let in_line = shardloom_program::lower(&graph, &in_line, in_line.device_count());
            let in_line = in_line.expect("a plan");
            let first = in_line.classes[0].memory_use(&in_line, 0).peak_bytes;
            differs += usize::from(planned[0] > first);
        }
    }
    assert!(differs > 0, "what is not waited for lives longer");
}

/// Where ranks are with their collectives, in the order of their start.
#[derive(Default)]
struct Progress {
    started: u64,
    /// Up to which the rank has come to wait.
    awaited: u64,
    run: u64,
    /// How many the rank had started and not come to wait for when it started another.
    left: u64,
    /// Whether one was held up for too long.
    stuck: bool,
}

#[derive(Default)]
struct Watch {
    ranks: Mutex<HashMap<u32, Progress>>,
    changed: Condvar,
}

impl Watch {
    fn note(&self, rank: u32, note: impl FnOnce(&mut Progress)) {
        note(self.ranks.lock().expect("progress").entry(rank).or_default());
        self.changed.notify_all();
    }

    /// Holds the next collective of a rank up until the rank has started another or waits for it.
    fn hold_up(&self, rank: u32) {
        let mut ranks = self.ranks.lock().expect("progress");
        let number = ranks.entry(rank).or_default().run;
        let is_held = |ranks: &mut HashMap<u32, Progress>| {
            let progress = &ranks[&rank];
            progress.started <= number + 1 && progress.awaited <= number
        };
        let limit = Duration::from_secs(60);
        let waited = self.changed.wait_timeout_while(ranks, limit, is_held);
        let (guard, timeout) = waited.expect("progress");
        ranks = guard;
        let progress = ranks.entry(rank).or_default();
        progress.stuck |= timeout.timed_out();
        progress.run += 1;
    }
}

/// Watches what ranks start and wait for, around an engine; and around the one within that, which carries
/// collectives out, holds these up.
struct Watching<E> {
    inner: E,
    watch: Arc<Watch>,
    holds_up: bool,
}

impl<B: Lent, E: Engine<B>> Engine<B> for Watching<E> {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        let own = |inner: Box<dyn Endpoint<B>>| -> Box<dyn Endpoint<B>> {
            let (rank, watch) = (inner.rank(), Arc::clone(&self.watch));
            let watcher = Groups { rank, watch, holds_up: self.holds_up };
            Box::new(Watched { inner, watcher })
        };
        Ok(self.inner.connect(ranks, settings)?.into_iter().map(own).collect())
    }
}

/// Watches the groups of a rank.
struct Groups {
    rank: u32,
    watch: Arc<Watch>,
    holds_up: bool,
}

impl<B: Lent> Watcher<B> for Groups {
    fn group(&mut self, inner: Box<dyn Group<B>>) -> Box<dyn Group<B>> {
        let watch = Arc::clone(&self.watch);
        let (rank, holds_up, numbers) = (self.rank, self.holds_up, HashMap::new());
        Box::new(WatchingGroup { inner, rank, watch, holds_up, numbers })
    }
}

struct WatchingGroup<B> {
    inner: Box<dyn Group<B>>,
    rank: u32,
    watch: Arc<Watch>,
    holds_up: bool,
    /// The place of each handle among all that the rank has started.
    numbers: HashMap<u64, u64>,
}

impl<B: Lent> Group<B> for WatchingGroup<B> {
    fn members(&self) -> &[u32] {
        self.inner.members()
    }

    fn position(&self) -> u32 {
        self.inner.position()
    }

    fn start(&mut self, collective: Collective<'_>, lent: B) -> Handle {
        let handle = self.inner.start(collective, lent);
        if !self.holds_up {
            self.watch.note(self.rank, |progress| {
                self.numbers.insert(handle.number(), progress.started);
                progress.left += u64::from(progress.awaited < progress.started);
                progress.started += 1;
            });
        }
        handle
    }

    fn test(&mut self, handle: &Handle) -> bool {
        self.inner.test(handle)
    }

    fn wait(&mut self, handle: Handle) -> Completed<B> {
        if let Some(number) = self.numbers.remove(&handle.number()) {
            self.watch.note(self.rank, |progress| {
                progress.awaited = progress.awaited.max(number + 1);
            });
        }
        self.inner.wait(handle)
    }

    fn barrier(&mut self) -> Result<(), FabricError> {
        self.inner.barrier()
    }

    fn run(&mut self, collective: Collective<'_>, lent: B) -> Completed<B> {
        if self.holds_up {
            self.watch.hold_up(self.rank);
            return self.inner.run(collective, lent);
        }
        let started = self.start(collective, lent);
        self.wait(started)
    }
}

/// How many reductions of the last backward pass of a step are followed by operators of it before the next is
/// started.
fn reductions_beside_operators(class: &Class) -> usize {
    let bodies = class.bodies.iter().filter(|body| body.kind == BodyKind::Backward);
    let count = bodies.map(|body| {
        let is_collective = |action: &Action| matches!(action, Action::Collective { .. });
        let actions: Vec<&Action> = body.instructions.iter().map(|it| &it.action).collect();
        let at = (0..actions.len()).filter(|&at| is_collective(actions[at]));
        let at: Vec<usize> = at.collect();
        let computes = |pair: &&[usize]| {
            let between = &actions[pair[0]..pair[1]];
            between.iter().any(|action| matches!(action, Action::Kernel { .. }))
        };
        at.windows(2).filter(computes).count()
    });
    count.max().unwrap_or(0)
}

/// For each rank how many collectives it had gone on from when it started another, none of which was carried
/// out before it did; and how many of those of a step operators stand behind.
fn gone_on_from(graph: &Graph, plan: &Plan) -> (Vec<u64>, usize) {
    let watch = Arc::new(Watch::default());
    let watching = |holds_up| (Arc::clone(&watch), holds_up);
    let (own, holds_up) = watching(true);
    let inner = Watching { inner: InProcess, watch: own, holds_up };
    let (own, holds_up) = watching(false);
    let engine = Watching { inner: Overlapped(inner), watch: own, holds_up };
    let curve = Curve::Constant { peak: 1e-2 };
    let blueprint = Blueprint::new(graph.clone(), plan, plan.device_count(), settings(curve));
    let blueprint = blueprint.expect("a plan").with_engine(Arc::new(engine));
    let mut trainer = Trainer::start(blueprint, Box::new(samples())).expect("ranks start");
    trainer.train_steps(STEPS).unwrap_or_else(|error| panic!("{error}"));
    let expected = reductions_beside_operators(&trainer.program().classes[0]);
    let ranks = watch.ranks.lock().expect("progress");
    assert!(ranks.values().all(|progress| !progress.stuck), "a collective was held up");
    ((0..2).map(|rank| ranks[&rank].left).collect(), expected)
}

#[test]
fn ranks_compute_while_their_collectives_are_under_way() {
    let graph = gpt();
    let uniform = uniform(ScheduleKind::OneForwardOneBackward, 1, mesh(2, 1, 1), 0);
    let plan = uniform.plan(&graph, "model", "local");
    let (left, _) = gone_on_from(&graph, &plan);
    assert_eq!(left, [0, 0], "in line a rank waits for each");
    let (left, expected) = gone_on_from(&graph, &with_thread(&plan));
    assert!(expected >= 2, "{expected} reductions");
    let least = u64::from(STEPS) * expected as u64;
    assert!(left.iter().all(|&it| it >= least), "{left:?} of {least} at least");
}
