//! The log of ranks that ran as threads: each ran its control in order, and nothing began before what it
//! needed from others.

#[path = "../../../sim/tests/suite/reference/reading.rs"]
#[allow(dead_code, reason = "a log has no queues")]
mod reading;
use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Samples, graph, serial, trainer};
use reading::{At, Kind, Operation, Reading, Thing};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, Optimizer, Plan, ScheduleKind, Sync, Uniform};
use shardloom_program::timeline::{Interval, Lane, Picos, Track};
use shardloom_program::{Instruction, Program, Rank, RouteId};

const STEPS: u32 = 3;

/// An instruction that a rank ran.
struct Run<'a> {
    at: At,
    operation: &'a Operation,
    /// Computation of one pass in a row is one interval, so that these are the ends of that.
    start: Picos,
    end: Picos,
}

/// The instructions that a rank runs, where tests find all updates wrong or none.
fn instructions(reading: &Reading, all_wrong: bool) -> Vec<(At, &Operation)> {
    let mut instructions = vec![];
    let mut was_right = None;
    for entry in &reading.entries {
        if entry.only.is_some() && entry.only != was_right {
            continue;
        }
        let operations = &reading.bodies[entry.body.0 as usize];
        if operations.iter().any(|it| it.kind == Kind::Test) {
            was_right = Some(!all_wrong);
        }
        let at = |(index, operation)| (At { index, ..entry.at }, operation);
        instructions.extend(operations.iter().enumerate().map(at));
    }
    instructions
}

/// Finds each instruction of a rank in its log, which has no others.
fn found<'a>(
    program: &Program,
    reading: &'a Reading,
    track: &Track,
    all_wrong: bool,
) -> Vec<Run<'a>> {
    let mut intervals = track.intervals.iter().peekable();
    let mut runs = vec![];
    let mut last: Option<&Interval> = None;
    for (at, operation) in instructions(reading, all_wrong) {
        let class = program.class(at.class);
        let body = class.body(at.body);
        let instruction: &Instruction = &body.instructions[at.index];
        let (lane, label) = (instruction.lane(), instruction.label(class, body, at.microbatch));
        let same =
            |it: &&Interval| (it.lane, &it.label, it.microbatch) == (lane, &label, at.microbatch);
        let interval = match last.filter(|it| lane == Lane::Compute && same(it)) {
            Some(interval) => interval,
            None => {
                let next = intervals.next();
                let named = next.map(|it| (it.lane, it.label.clone(), it.microbatch));
                assert_eq!(named, Some((lane, label, at.microbatch)), "rank {:?}", at.rank);
                next.expect("it is there")
            }
        };
        last = Some(interval);
        runs.push(Run { at, operation, start: interval.start, end: interval.end });
    }
    assert_eq!(intervals.next(), None, "more than the control of rank {}", track.rank);
    runs
}

/// A rank does one thing at a time, and every value that it reads has been made.
fn assert_in_order(track: &Track, runs: &[Run<'_>]) {
    for pair in track.intervals.windows(2) {
        assert!(pair[0].start <= pair[0].end && pair[0].end <= pair[1].start, "{pair:?}");
    }
    let mut made: BTreeSet<(Thing, Option<u32>)> = BTreeSet::new();
    for run in runs {
        let values = |things: &[Thing]| -> Vec<(Thing, Option<u32>)> {
            let values = things.iter().filter(|it| matches!(it, Thing::Value(_)));
            values.map(|&it| (it, run.at.microbatch)).collect()
        };
        let makes = values(&run.operation.makes);
        for need in values(&run.operation.needs) {
            assert!(makes.contains(&need) || made.contains(&need), "{:?} lacks {need:?}", run.at);
        }
        made.extend(makes);
    }
}

/// A message, by its route, its number there, its micro-batch, and how often it was sent before.
type Message = (RouteId, usize, Option<u32>, usize);

/// A collective, by its members and how often they met before.
type Meeting = (Vec<Rank>, usize);

/// Receives end after their messages were sent, and collectives once all members have come.
fn assert_waited(program: &Program, ranks: &[Vec<Run<'_>>]) -> (usize, usize) {
    let mut sent: BTreeMap<Message, Picos> = BTreeMap::new();
    let mut received: BTreeMap<Message, Picos> = BTreeMap::new();
    let mut collectives: BTreeMap<Meeting, Vec<(Picos, Picos)>> = BTreeMap::new();
    for runs in ranks {
        let mut met: BTreeMap<&[Rank], usize> = BTreeMap::new();
        for run in runs {
            match &run.operation.kind {
                Kind::Send { route, messages, .. } => {
                    for &number in messages {
                        add(&mut sent, (*route, number, run.at.microbatch, 0), run.start);
                    }
                }
                Kind::Receive { route, messages, .. } => {
                    for &number in messages {
                        add(&mut received, (*route, number, run.at.microbatch, 0), run.end);
                    }
                }
                Kind::Collective { members, .. } => {
                    let times = met.entry(members).or_default();
                    let meeting = collectives.entry((members.clone(), *times)).or_default();
                    *times += 1;
                    // Of less than an element for each, some get nothing and wait for nobody.
                    let class = program.class(run.at.class);
                    let instruction = &class.body(run.at.body).instructions[run.at.index];
                    let exchange = program.exchange(class, run.at.position, instruction);
                    let elements = exchange.expect("it is a collective").elements;
                    let waits = elements >= members.len();
                    let end = if waits { run.end } else { Picos(u64::MAX) };
                    meeting.push((run.start, end));
                }
                Kind::Own | Kind::Test | Kind::Due => {}
            }
        }
    }
    assert!(sent.keys().eq(received.keys()), "all that is sent is received, and nothing else");
    for (message, end) in &received {
        assert!(sent[message] <= *end, "{message:?} is received before it is sent");
    }
    for ((members, _), times) in &collectives {
        assert_eq!(members.len(), times.len(), "{members:?} all come");
        let last = times.iter().map(|(start, _)| *start).max();
        assert!(times.iter().all(|(_, end)| Some(*end) >= last), "{members:?} wait: {times:?}");
    }
    (sent.len(), collectives.keys().filter(|(members, _)| members.len() > 1).count())
}

/// Adds a message, after those of the same name.
fn add(
    messages: &mut BTreeMap<Message, Picos>,
    (route, number, microbatch, _): Message,
    at: Picos,
) {
    let times = (0..).find(|&it| !messages.contains_key(&(route, number, microbatch, it)));
    messages.insert((route, number, microbatch, times.expect("finitely many")), at);
}

/// Trains `plan` and holds its log to its program. How many messages and collectives there were.
fn assert_follows_its_program(graph: &Graph, plan: &Plan, all_wrong: bool) -> (usize, usize) {
    let samples = Samples::patterned(32, 8, 32);
    let mut trainer = trainer(graph, plan, samples, 1e-3);
    let (_, timeline) = trainer.train_steps_recorded(STEPS).expect("steps");
    let program = trainer.program();
    let cluster = Cluster::parse("a100-40g:8").expect("a preset");
    let readings = reading::read(program, &cluster, STEPS);
    assert_eq!(readings.len(), timeline.tracks.len());
    let ranks = readings.iter().zip(&timeline.tracks).map(|(reading, track)| {
        let runs = found(program, reading, track, all_wrong);
        assert_in_order(track, &runs);
        runs
    });
    assert_waited(program, &ranks.collect::<Vec<_>>())
}

fn small() -> Graph {
    graph("gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32,tied=true")
}

#[test]
fn every_schedule_runs_in_order_and_waits_for_its_messages() {
    let graph = small();
    for schedule in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        let clip_norm = schedule.flushes().then_some(1.0);
        let uniform = Uniform { pp: 4, microbatches: 8, schedule, clip_norm, ..serial() };
        let plan = uniform.plan(&graph, "model", "local");
        let (messages, _) = assert_follows_its_program(&graph, &plan, false);
        assert!(messages >= 2 * 3 * 8 * STEPS as usize, "{schedule:?} sends {messages}");
    }
}

#[test]
fn replicas_wait_for_each_other_in_every_way_of_sharding() {
    let graph = small();
    for (pp, mesh, zero) in [
        (1, Mesh::of(4, 1, 1), 0),
        (1, Mesh::of(2, 1, 2), 1),
        (2, Mesh::of(2, 1, 1), 2),
        (2, Mesh::of(1, 2, 1), 3),
        (1, Mesh::of(2, 1, 2), 3),
    ] {
        let uniform = Uniform {
            pp,
            mesh,
            microbatches: 2,
            sequence_parallel: mesh.tp() > 1,
            sync: Sync { zero, bucket_bytes: 4000, ..Sync::default() },
            optimizer: Optimizer::Lamb {
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-6,
                weight_decay: 0.1,
            },
            ..serial()
        };
        let plan = uniform.plan(&graph, "model", "local");
        let (_, collectives) = assert_follows_its_program(&graph, &plan, false);
        assert!(collectives > 10, "{mesh:?}, ZeRO {zero}: {collectives} collectives");
    }
}

#[test]
fn a_step_that_begins_anew_runs_the_other_arm_and_receives_what_was_sent_for_nothing() {
    let graph = small();
    for schedule in [ScheduleKind::ZeroBubbleH2, ScheduleKind::Afab] {
        let messages = [(1e9, false), (1e-9, true)].map(|(clip_norm, all_wrong)| {
            let clip_norm = Some(clip_norm);
            let uniform = Uniform { pp: 4, microbatches: 8, schedule, clip_norm, ..serial() };
            let plan = uniform.plan(&graph, "model", "local");
            let plan = Plan { post_validation: true, ..plan };
            assert_follows_its_program(&graph, &plan, all_wrong).0
        });
        assert!(messages[0] < messages[1], "{schedule:?}: {messages:?}");
    }
}
