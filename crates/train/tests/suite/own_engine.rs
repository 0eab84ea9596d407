//! An engine that no crate knows: it receives in buffers of its own, carries collectives out only when
//! somebody waits for them, and counts by itself. It is one implementation of the traits, and training
//! over it is bitwise training over the engine of one process, whether or not that carries collectives out
//! on communication threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::support::{Samples, gpt, mesh, serial, settings};
use shardloom_collectives::{Algorithm, Kind, Member, Reduction};
use shardloom_fabric::{
    Collective, Completed, Contents, Counters, Endpoint, Engine, FabricError, Group, Handle,
    InProcess, Lent, Message, Overlapped, Pool, PoolId, Returns, Settings, View, ViewMut, Window,
};
use shardloom_graph::Graph;
use shardloom_plan::{Plan, ScheduleKind, Sync, Uniform};
use shardloom_program::{Program, Rank};
use shardloom_train::{Blueprint, Contribution, Trainer};

/// What all ranks have done, by rank.
type Log = Arc<Mutex<Vec<Counted>>>;

#[derive(Clone, Copy, Default)]
struct Counted {
    bytes: u64,
    messages: u64,
    /// Collectives that were carried out while their rank waited.
    delayed: u64,
}

/// Wraps another engine.
struct Delaying<E> {
    inner: E,
    log: Log,
}

impl<B: Lent, E: Engine<B>> Engine<B> for Delaying<E> {
    fn connect(
        &self,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Vec<Box<dyn Endpoint<B>>>, FabricError> {
        *self.log.lock().expect("the log") = vec![Counted::default(); ranks as usize];
        let own = |inner| -> Box<dyn Endpoint<B>> {
            Box::new(OwnEndpoint { inner, log: Arc::clone(&self.log), own: Arc::default() })
        };
        Ok(self.inner.connect(ranks, settings)?.into_iter().map(own).collect())
    }
}

/// Buffers of messages that were received.
#[derive(Default)]
struct Received(Mutex<Vec<Contents>>);

impl Returns for Received {
    fn take_back(&self, contents: Contents) {
        self.0.lock().expect("the buffers").push(contents);
    }
}

struct OwnEndpoint<B> {
    inner: Box<dyn Endpoint<B>>,
    log: Log,
    own: Arc<Received>,
}

impl<B: Lent> OwnEndpoint<B> {
    fn note(&self, note: impl FnOnce(&mut Counted)) {
        note(&mut self.log.lock().expect("the log")[self.inner.rank() as usize]);
    }

    /// A message in a buffer of this rank's own; the sender's is free at once.
    fn copied(&self, message: &Message) -> Message {
        let (format, elements) = (message.view().format(), message.view().elements());
        let mut free = self.own.0.lock().expect("the buffers");
        let fits = free
            .iter()
            .position(|it| (it.view().format(), it.view().elements()) == (format, elements));
        let mut contents = match fits {
            Some(index) => free.swap_remove(index),
            None => Contents::zeroed(format, elements),
        };
        drop(free);
        match (contents.view_mut(), message.view()) {
            (ViewMut::F32(to), View::F32(from)) => to.copy_from_slice(from),
            (ViewMut::F64(to), View::F64(from)) => to.copy_from_slice(from),
            (to, from) => panic!("training sends no {from:?} to {to:?}"),
        }
        let origin = Arc::<Received>::clone(&self.own);
        Message::new(message.from(), message.to(), message.tag(), contents, origin)
    }
}

impl<B: Lent> Endpoint<B> for OwnEndpoint<B> {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn counters(&self) -> Counters {
        let counted = self.log.lock().expect("the log")[self.inner.rank() as usize];
        // What the wrapped engine counts says nothing here.
        Counters { message_bytes: counted.bytes, collective_bytes: 0, ..self.inner.counters() }
    }

    fn pool(&mut self, pool: Pool) -> Result<PoolId, FabricError> {
        self.inner.pool(pool)
    }

    fn message(&mut self, pool: PoolId, tag: u64) -> Result<Message, FabricError> {
        self.inner.message(pool, tag)
    }

    fn try_message(&mut self, pool: PoolId, tag: u64) -> Option<Message> {
        self.inner.try_message(pool, tag)
    }

    fn send(&mut self, message: Message) -> Result<(), FabricError> {
        let bytes = message.bytes();
        self.inner.send(message)?;
        self.note(|counted| {
            counted.bytes += bytes;
            counted.messages += 1;
        });
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: u64) -> Result<Message, FabricError> {
        let message = self.inner.receive(from, tag)?;
        Ok(self.copied(&message))
    }

    fn try_receive(&mut self, from: u32, tag: u64) -> Result<Option<Message>, FabricError> {
        let message = self.inner.try_receive(from, tag)?;
        Ok(message.map(|message| self.copied(&message)))
    }

    fn receive_any(&mut self, from: &[(u32, u64)]) -> Result<Message, FabricError> {
        let message = self.inner.receive_any(from)?;
        Ok(self.copied(&message))
    }

    fn group(&mut self, members: &[u32]) -> Result<Box<dyn Group<B>>, FabricError> {
        let inner = self.inner.group(members)?;
        let (rank, log) = (self.inner.rank(), Arc::clone(&self.log));
        let (waiting, done) = (VecDeque::new(), vec![]);
        Ok(Box::new(OwnGroup { inner, rank, log, started: 0, waiting, done }))
    }

    fn window(&mut self, lent: Vec<B>) -> Box<dyn Window<B>> {
        self.inner.window(lent)
    }

    fn fail(&self, reason: &str) {
        self.inner.fail(reason);
    }
}

struct OwnGroup<B> {
    inner: Box<dyn Group<B>>,
    rank: u32,
    log: Log,
    started: u64,
    /// What was started and is not carried out.
    waiting: VecDeque<(u64, (Kind, Algorithm, Reduction), B)>,
    done: Vec<(u64, Completed<B>)>,
}

impl<B: Lent> OwnGroup<B> {
    /// Carries out what was started first.
    fn carry_out_next(&mut self) {
        let (number, (kind, algorithm, reduction), mut lent) =
            self.waiting.pop_front().expect("a handle is waited for once");
        let (mut elements, mut element_bytes) = (0, 0);
        lent.lend(&mut |view| {
            (elements, element_bytes) = match view {
                ViewMut::F32(values) => (values.len(), 4),
                ViewMut::F64(values) => (values.len(), 8),
                other => panic!("training exchanges no {other:?}"),
            };
        });
        let members = self.inner.members().len() as u32;
        let list = shardloom_collectives::plan(kind, algorithm, members, elements);
        let sent = list.expect("it exists").sent_elements(Member(self.inner.position()));
        // Not at once, which an engine with communication threads would do without them.
        let started = self.inner.start(Collective::Equal { kind, algorithm, reduction }, lent);
        let completed = self.inner.wait(started);
        let counted = &mut self.log.lock().expect("the log")[self.rank as usize];
        counted.bytes += (sent * element_bytes) as u64;
        counted.delayed += 1;
        self.done.push((number, completed));
    }
}

impl<B: Lent> Group<B> for OwnGroup<B> {
    fn members(&self) -> &[u32] {
        self.inner.members()
    }

    fn position(&self) -> u32 {
        self.inner.position()
    }

    fn start(&mut self, collective: Collective<'_>, lent: B) -> Handle {
        let Collective::Equal { kind, algorithm, reduction } = collective else {
            panic!("training exchanges nothing with counts")
        };
        self.waiting.push_back((self.started, (kind, algorithm, reduction), lent));
        self.started += 1;
        Handle::new(self.started - 1)
    }

    fn test(&mut self, handle: &Handle) -> bool {
        self.done.iter().any(|&(number, _)| number == handle.number())
    }

    fn wait(&mut self, handle: Handle) -> Completed<B> {
        while !self.test(&handle) {
            self.carry_out_next();
        }
        let found = self.done.iter().position(|&(number, _)| number == handle.number());
        self.done.swap_remove(found.expect("it is done")).1
    }

    fn barrier(&mut self) -> Result<(), FabricError> {
        self.inner.barrier()
    }
}

const STEPS: u32 = 3;

/// Bytes that each rank sends in one step, by the program.
fn planned(program: &Program) -> Vec<u64> {
    let sent = |rank| {
        let (class, position) = program.locate(Rank(rank));
        program.sent_bytes(class, position)
    };
    (0..program.ranks() as u32).map(sent).collect()
}

/// Some steps and an evaluation.
fn train(graph: &Graph, plan: &Plan, engine: Arc<dyn Engine<Contribution>>) -> Outcome {
    let curve = shardloom_train::learning_rate::Curve::Constant { peak: 1e-2 };
    let blueprint = Blueprint::new(graph.clone(), plan, plan.device_count(), settings(curve));
    let blueprint = blueprint.unwrap_or_else(|error| panic!("{error}")).with_engine(engine);
    let samples = Box::new(Samples::patterned(32, 16, 64));
    let mut trainer = Trainer::start(blueprint, samples).expect("ranks start");
    let steps = trainer.train_steps(STEPS).unwrap_or_else(|error| panic!("{error}"));
    let sent = trainer.sent_bytes_per_rank().to_vec();
    Outcome {
        losses: steps.iter().map(|step| step.loss).collect(),
        digest: trainer.weights_digest().expect("weights"),
        validated: trainer.validate(2).expect("an evaluation").expect("there are samples"),
        sent,
        planned: planned(trainer.program()).iter().map(|it| it * u64::from(STEPS)).collect(),
    }
}

#[derive(Debug)]
struct Outcome {
    losses: Vec<f64>,
    digest: String,
    validated: f64,
    sent: Vec<u64>,
    planned: Vec<u64>,
}

fn assert_trains_alike(uniform: &Uniform) {
    let graph = gpt();
    let plan = uniform.plan(&graph, "model", "local");
    let usual = train(&graph, &plan, Arc::new(InProcess));
    let log = Log::default();
    let own = train(&graph, &plan, Arc::new(Delaying { inner: InProcess, log: Arc::clone(&log) }));
    assert_alike(uniform, &usual, &own, &log);
    let inner = Overlapped(InProcess);
    let threads = train(&graph, &plan, Arc::new(Delaying { inner, log: Arc::clone(&log) }));
    assert_alike(uniform, &usual, &threads, &log);
}

fn assert_alike(uniform: &Uniform, usual: &Outcome, own: &Outcome, log: &Log) {
    assert_eq!(own.digest, usual.digest, "{uniform:?}");
    assert_eq!((&own.losses, own.validated), (&usual.losses, usual.validated), "{uniform:?}");
    assert_eq!((&usual.sent, &own.sent), (&own.planned, &own.planned), "{uniform:?}");
    for counted in log.lock().expect("the log").iter() {
        assert!(uniform.mesh.size() == 1 || counted.delayed > 0, "collectives");
        assert!(uniform.pp == 1 || counted.messages > 0, "messages");
    }
}

fn uniform() -> Uniform {
    Uniform {
        pp: 2,
        mesh: mesh(2, 1, 1),
        microbatches: 2,
        schedule: ScheduleKind::OneForwardOneBackward,
        ..serial()
    }
}

#[test]
fn replicas_and_stages_train_alike_over_another_engine() {
    for zero in [1, 3] {
        let sync = Sync { zero, bucket_bytes: 10_000, ..Sync::default() };
        assert_trains_alike(&Uniform { sync, ..uniform() });
    }
}

#[test]
fn tensor_parallel_ranks_train_alike_over_another_engine() {
    let mesh = mesh(1, 1, 2);
    for (pp, sequence_parallel) in [(1, true), (2, false)] {
        assert_trains_alike(&Uniform { pp, mesh, sequence_parallel, ..uniform() });
    }
}

#[test]
fn a_run_goes_on_over_the_same_engine_when_it_is_planned_anew() {
    let graph = gpt();
    let plan = uniform().plan(&graph, "model", "local");
    let log = Log::default();
    let curve = shardloom_train::learning_rate::Curve::Constant { peak: 1e-2 };
    let blueprint = Blueprint::new(graph, &plan, plan.device_count(), settings(curve));
    let engine = Delaying { inner: InProcess, log: Arc::clone(&log) };
    let blueprint = blueprint.expect("a plan").with_engine(Arc::new(engine));
    let samples = Box::new(Samples::patterned(32, 16, 64));
    let mut trainer = Trainer::start(blueprint, samples).expect("ranks start");
    trainer.step().expect("a step");
    let wider = Uniform { pp: 1, ..uniform() }.plan(trainer.graph(), "model", "local");
    trainer.replan(&wider, wider.device_count()).expect("another plan");
    trainer.step().expect("a step");
    let sent: Vec<u64> = log.lock().expect("the log").iter().map(|it| it.bytes).collect();
    assert_eq!(sent, planned(trainer.program()));
}
