//! Servers and workers in virtual time: steps by hand, the bound with a slow worker, and the same every time.

use std::collections::BTreeMap;

use crate::scenario::{cores, gpt, h100, uniform};
use shardloom_cluster::Cluster;
use shardloom_graph::ModelSpec;
use shardloom_plan::{Mesh, Precision, Servers, Staleness, Sync, Uniform};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, BodyKind, ClassId, Program, lower};
use shardloom_sim::{Call, Driver, Options, Recorded, Recorder, SimError, run, simulate};

/// So many workers of one micro-batch each, and one server.
fn program(workers: u32, staleness: u32) -> Program {
    let graph = gpt(2, false);
    let uniform = Uniform {
        sync: Sync {
            servers: Some(Servers::of(1, Staleness::Within(staleness))),
            bucket_bytes: 1 << 30,
            ..Sync::default()
        },
        precision: Precision::FP32,
        clip_norm: None,
        mesh: Mesh::of(workers, 1, 1),
        global_batch: workers as usize,
        ..uniform(1, 1, 1, 1)
    };
    let plan = uniform.plan(&graph, "gpt", "cluster");
    lower(&graph, &plan, plan.device_count()).unwrap_or_else(|error| panic!("{error}"))
}

/// Passes take what their worker says, a message and an update the same for all; and what a server did for
/// whom.
struct Timed<'p> {
    program: &'p Program,
    /// By worker.
    step: Vec<u64>,
    message: u64,
    update: u64,
    served: Vec<Answer>,
}

/// Whom a server answered, in which of the client's steps, and whether with the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answer {
    client: ClassId,
    step: i64,
    sends: bool,
}

impl<'p> Timed<'p> {
    fn new(program: &'p Program, step: &[u64], message: u64, update: u64) -> Timed<'p> {
        Timed { program, step: step.to_vec(), message, update, served: vec![] }
    }

    fn note(&mut self, call: &Call<'_>) {
        let class = self.program.class(call.actor.class);
        let (client, sends) = match call.instruction.action {
            Action::Send { route } => (self.program.route(route).to, true),
            Action::Receive { route } => (self.program.route(route).from, false),
            _ => return,
        };
        if class.serves().is_some() && call.index == 0 {
            self.served.push(Answer { client, step: call.run.step, sends });
        }
    }
}

impl Driver for Timed<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let body = self.program.class(call.actor.class).body_of(&call.run.entry);
        let computes = |action: &Action| matches!(action, Action::Kernel { .. });
        let first = body.instructions.iter().position(|it| computes(&it.action));
        Ok(Picos(match (body.kind, &call.instruction.action) {
            (_, Action::Optimizer) => self.update,
            (BodyKind::Forward, _) if first == Some(call.index) => {
                self.step[call.actor.class.0 as usize]
            }
            _ => 0,
        }))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        self.note(call);
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let messages = self.program.route(route).sent_by(call.actor.position);
        durations.extend(messages.map(|_| Picos(self.message)));
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.note(call);
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, _: &[Call<'_>]) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }
}

/// How many steps of some worker the weights lack that a worker gets for a step, over all: counted from the
/// answers alone.
fn staleness(answers: &[Answer], workers: u32, steps: i64) -> i64 {
    let mut applied: BTreeMap<ClassId, i64> = (0..workers).map(|it| (ClassId(it), 0)).collect();
    let mut most = 0;
    for answer in answers {
        match answer.sends {
            false => *applied.get_mut(&answer.client).expect("a worker") += 1,
            // What is sent after the client's n-th step is for the one after it.
            true => {
                let least = *applied.values().min().expect("workers");
                let lacks = answer.step + 1 - least;
                assert!(answer.step + 1 < steps || lacks == 0, "a row ends with all: {answers:?}");
                most = most.max(lacks);
            }
        }
    }
    assert!(applied.values().all(|&count| count == steps));
    most
}

fn answers(program: &Program, times: &[u64], steps: u32) -> (Vec<Answer>, Picos) {
    let workers = times.len();
    let mut driver = Timed::new(program, times, 3, 2);
    let options = Options { steps, folded: false };
    let found = run(program, &h100(workers + 1), options, &mut driver).expect("it runs");
    let end = found.step_ends.iter().flatten().copied().max().expect("steps");
    assert!(found.step_ends.iter().all(|ends| ends.len() == steps as usize));
    (driver.served, end)
}

#[test]
fn a_step_of_one_worker_takes_its_pass_both_messages_and_the_update() {
    let program = program(1, 0);
    let (_, end) = answers(&program, &[10], 3);
    // The weights after the last step are left to get when it is over.
    assert_eq!(end, Picos(3 * (10 + 3 + 2 + 3) - 3));
}

#[test]
fn the_bound_is_never_exceeded_and_a_slow_worker_lets_others_reach_it() {
    for staleness_bound in [0, 1, 2, 5] {
        let program = program(3, staleness_bound);
        for (times, is_uneven) in [([10, 10, 10], false), ([10, 400, 11], true)] {
            let (answers, _) = answers(&program, &times, 8);
            let found = staleness(&answers, 3, 8);
            let bound = i64::from(staleness_bound);
            assert!(found <= bound, "{found} of {bound}: {answers:?}");
            assert!(found == bound || !is_uneven, "{found} of {bound}: {answers:?}");
        }
    }
}

#[test]
fn a_looser_bound_lets_a_fast_worker_end_its_steps_earlier() {
    let fifth = |staleness| {
        let program = program(2, staleness);
        let mut driver = Timed::new(&program, &[10, 25], 3, 2);
        let options = Options { steps: 6, folded: false };
        let found = run(&program, &h100(3), options, &mut driver).expect("it runs");
        found.step_ends[0][4]
    };
    // It waits for four steps of the other, for three, and for one.
    let ends = [0, 1, 3].map(fifth);
    assert!(ends.windows(2).all(|pair| pair[1] < pair[0]), "{ends:?}");
}

#[test]
fn equal_times_are_answered_in_the_order_of_ranks_and_every_run_is_the_same() {
    let program = program(3, 1);
    let (first, end) = answers(&program, &[10, 10, 10], 4);
    assert_eq!((first.clone(), end), answers(&program, &[10, 10, 10], 4));
    let pushes: Vec<u32> = first.iter().filter(|it| !it.sends).map(|it| it.client.0).collect();
    assert_eq!(pushes[..3], [0, 1, 2]);
}

#[test]
fn a_recording_repeats_the_same_choices() {
    let program = program(3, 1);
    for cluster in [h100(4), cores(4)] {
        let driver = Timed::new(&program, &[10, 37, 22], 3, 2);
        let mut recorder = Recorder::new(driver);
        let options = Options { steps: 5, folded: false };
        let found = run(&program, &cluster, options, &mut recorder).expect("it runs");
        let (_, recording) = recorder.finish();
        let repeated = run(&program, &cluster, options, &mut Recorded::new(&recording));
        assert_eq!(repeated.expect("it runs"), found);
    }
}

#[test]
fn memory_and_bytes_of_a_simulation_are_the_programs() {
    let (graph, program) = (gpt(2, false), program(2, 1));
    let options = Options { steps: 3, folded: true };
    let found = simulate(&graph, &h100(3), &program, options).expect("it runs");
    for ((id, class), track) in program.classes().zip(&found.timeline.tracks) {
        assert_eq!(track.sent_bytes, 3 * program.sent_bytes(id, 0));
        assert_eq!(track.peak_bytes, class.memory_use(&program, 0).peak_bytes);
    }
}

/// What came while the server was busy is there at the same time for it.
#[test]
fn of_messages_that_waited_for_a_busy_server_the_first_by_rank_is_answered_first() {
    let program = program(3, 1);
    let mut driver = Timed::new(&program, &[10, 30, 20], 3, 100);
    let options = Options { steps: 1, folded: false };
    for cluster in [h100(4), cores(4)] {
        driver.served.clear();
        run(&program, &cluster, options, &mut driver).expect("it runs");
        let pushes = driver.served.iter().filter(|it| !it.sends).map(|it| it.client.0);
        assert_eq!(pushes.collect::<Vec<_>>(), [0, 1, 2]);
    }
    // An idle one answers who comes.
    let mut driver = Timed::new(&program, &[10, 30, 20], 3, 2);
    run(&program, &h100(4), options, &mut driver).expect("it runs");
    let pushes = driver.served.iter().filter(|it| !it.sends).map(|it| it.client.0);
    assert_eq!(pushes.collect::<Vec<_>>(), [0, 2, 1]);
}

/// Otherwise sums of gradients would depend on who comes first.
#[test]
fn without_staleness_gradients_are_taken_in_in_the_order_of_workers_and_there_is_one_update() {
    let program = program(3, 0);
    let mut driver = Timed::new(&program, &[30, 10, 20], 3, 100);
    let options = Options { steps: 2, folded: false };
    let found = run(&program, &h100(4), options, &mut driver).expect("it runs");
    let pushes = driver.served.iter().filter(|it| !it.sends).map(|it| it.client.0);
    assert_eq!(pushes.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    // The slowest pass and its message, the update, and the weights for all three, one after the other; after
    // the last step no more than the update.
    let first = 30 + 3 + 100;
    let end = found.step_ends.iter().flatten().copied().max().expect("steps");
    assert_eq!(end, Picos(first + 3 + first));
}

/// The published arithmetic for a ResNet-50 of 23 million parameters: 2 x 8 x 23e6 x 4 bytes.
#[test]
fn eight_workers_of_23_million_parameters_move_1_47_gigabytes_in_a_step() {
    let model = "mlp:inputs=21999,hidden=1000,layers=1,classes=1000";
    let graph = ModelSpec::parse(model).and_then(|spec| spec.graph()).expect("a model");
    assert_eq!(graph.parameter_count(), 23_000_000);
    let (workers, whole) = (8, 4 * graph.parameter_count());
    for count in [1, 2, 4] {
        let servers = Servers::of(count, Staleness::SYNCHRONOUS);
        let bucket_bytes = servers.bucket_bytes(&graph, workers);
        let uniform = Uniform {
            sync: Sync { servers: Some(servers), bucket_bytes, ..Sync::default() },
            precision: Precision::FP32,
            clip_norm: None,
            mesh: Mesh::of(workers as u32, 1, 1),
            global_batch: workers,
            ..uniform(1, 1, 1, 1)
        };
        let plan = uniform.plan(&graph, model, "h100-80g:2x8");
        let program = lower(&graph, &plan, 16).unwrap_or_else(|error| panic!("{error}"));
        let cluster = Cluster::parse("h100-80g:2x8").expect("a preset");
        let found = simulate(&graph, &cluster, &program, Options::default()).expect("it runs");
        let per_step = |class: ClassId| {
            let sent: u64 = found.timeline.tracks[class.0 as usize].sent_bytes;
            let steps = u64::from(Options::default().steps);
            assert_eq!(sent, steps * program.sent_bytes(class, 0));
            sent / steps
        };
        let (mut total, mut of_servers) = (0, 0);
        for (id, class) in program.classes() {
            let sent = per_step(id);
            total += sent;
            if class.serves().is_none() {
                assert_eq!(sent, whole, "a worker sends its gradients, and gets as much");
                continue;
            }
            of_servers += sent;
            // As much comes to it: 2 n M / S, where all have as much, and little more as ranges are dealt.
            let held: usize = class.buckets.iter().map(|bucket| bucket.elements).sum();
            assert_eq!(sent, workers as u64 * 4 * held as u64);
            let most = 9.0 / 8.0 * whole as f64 / f64::from(count) + bucket_bytes as f64;
            assert!(4.0 * held as f64 <= most, "{held} elements of {count} servers");
        }
        assert_eq!(of_servers, workers as u64 * whole);
        assert_eq!(total, 1_472_000_000);
    }
}
