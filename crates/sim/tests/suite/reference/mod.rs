//! The engine against a plain reference that shares nothing with it, on random programs: the start and the
//! duration of every instruction of every rank, equal to the picosecond.

mod durations;
mod plans;
mod reading;
mod timing;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::scenario::{cores, h100, narrow};
use durations::{Drawn, Log, Logged, Modelled};
use plans::{Case, cases};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};
use shardloom_cluster::{Cluster, Stack};
use shardloom_plan::{Communication, Precision, ScheduleKind};
use shardloom_program::timeline::{Interval, Lane};
use shardloom_program::{Action, Collective, Content, Group, Program, Rank, View, lower};
use shardloom_sim::{CostModel, Driver, Options, Recorded, Recorder, SimError, Simulation, run};
use timing::{Computed, Times, Track, occupied};

/// Runs `program` in the engine and in the reference.
fn both<D: Driver<Error = SimError>>(
    program: &Program,
    cluster: &Cluster,
    steps: u32,
    driver: D,
    times: &dyn Times,
) -> (Simulation, Log, Vec<Track>) {
    let log: Log = Rc::new(RefCell::new(BTreeMap::new()));
    let mut driver = Logged { driver, log: Rc::clone(&log) };
    let options = Options { steps, folded: false };
    let found = run(program, cluster, options, &mut driver).expect("it runs");
    let readings = reading::read(program, cluster, steps);
    (found, log, timing::time(&readings, steps, times))
}

/// Every instruction starts when the reference says, every step ends then, and the drawn lanes say so.
fn assert_equal((found, log, tracks): &(Simulation, Log, Vec<Track>)) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.timeline.tracks.len(), tracks.len());
    let log = log.borrow();
    for (rank, track) in tracks.iter().enumerate() {
        let events = log.get(&Rank(rank as u32)).map_or(&[][..], Vec::as_slice);
        let differs = events.iter().zip(&track.events).position(|(one, other)| one != other);
        if let Some(place) = differs {
            prop_assert_eq!(&events[place], &track.events[place], "instruction {}", place);
        }
        prop_assert_eq!(events.len(), track.events.len(), "instructions of rank {}", rank);
        prop_assert_eq!(&found.step_ends[rank], &track.step_ends, "steps of rank {}", rank);
        let drawn = &found.timeline.tracks[rank].intervals;
        let on = |lane: Lane| drawn.iter().filter(move |it| it.lane == lane);
        let times = |it: &Interval| (it.start, it.end);
        let computing: Vec<Computed> =
            on(Lane::Compute).map(|it| (it.microbatch, it.start, it.end)).collect();
        prop_assert_eq!(&computing, &track.computing, "computation of rank {}", rank);
        let sending = occupied(on(Lane::CommunicationOut).map(times).collect());
        prop_assert_eq!(&sending, &track.sending, "messages of rank {}", rank);
        let incoming = occupied(on(Lane::CommunicationIn).map(times).collect());
        prop_assert_eq!(&incoming, &track.incoming, "what comes to rank {}", rank);
    }
    Ok(())
}

/// Devices whose lanes overlap, then some on which they do not, or the other way round.
fn mixed(ranks: usize, overlapping_first: bool) -> Cluster {
    let mut groups = [h100(ranks.div_ceil(2)).groups(), cores(ranks.div_ceil(2)).groups()].concat();
    if !overlapping_first {
        groups.reverse();
    }
    Cluster::new(groups).expect("a cluster")
}

/// Two kinds of devices, three of the first, so that classes have both.
fn two_kinds(ranks: usize) -> Cluster {
    let others = ranks.div_ceil(8);
    Cluster::parse(&format!("h100-80g:3+a100-40g:{others}x8")).expect("presets")
}

/// So many H100s to a node, with a way out no wider than one card's.
fn uneven(ranks: usize, to_a_node: usize) -> Cluster {
    let nodes = ranks.div_ceil(to_a_node);
    let cluster = Cluster::parse(&format!("h100-80g:{nodes}x{to_a_node}")).expect("a preset");
    let mut groups = cluster.groups().to_vec();
    for group in &mut groups {
        let node = &mut group.profile.node;
        node.uplink_bytes_per_second = node.inter.bytes_per_second;
    }
    Cluster::new(groups).expect("a cluster")
}

fn config(cases: u32, seed: u64) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 0,
        max_local_rejects: 1 << 20,
        max_global_rejects: 1 << 20,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(128, 10))]

    #[test]
    fn with_random_durations_every_instruction_starts_when_the_reference_says(
        case in cases(),
        seed: u64,
        steps in 1u32..4,
        lanes in 0..4,
        launches: bool,
        waits: [bool; 2],
    ) {
        let Case { program, .. } = &case;
        let ranks = program.ranks();
        let cluster = match lanes {
            0 => h100(ranks),
            1 => cores(ranks),
            lanes => mixed(ranks, lanes == 2),
        };
        let mut stack = Stack::default();
        [stack.host.waits_for_messages, stack.host.waits_for_steps] =
            waits.map(|waits| waits && launches);
        stack.host.step_seconds = (seed % 3) as f64 * 1e-3;
        stack.beside_collectives = [1.0, 1.25, 3.0][(seed / 3 % 3) as usize];
        let cluster = cluster.under(stack);
        let drawn = Drawn { program, seed, launches };
        assert_equal(&both(program, &cluster, steps, drawn, &drawn))?;
    }

    #[test]
    fn with_modelled_durations_every_instruction_starts_and_ends_when_the_reference_says(
        case in cases(),
        to_a_node in 1usize..9,
        lanes in 0..6,
        stack in prop::sample::select(&["shardloom", "megatron-2021", "nanotron"][..]),
    ) {
        let Case { graph, plan, .. } = &case;
        let ranks = plan.device_count();
        let cluster = match lanes {
            0 => cores(ranks),
            1 => narrow(ranks),
            2 => two_kinds(ranks),
            _ => uneven(ranks, to_a_node),
        };
        let cluster = cluster.under(Stack::parse(stack).expect("a preset"));
        let mut plan = plan.clone();
        if !cluster.groups()[0].profile.device.lanes_overlap {
            // The model of cores knows no other format.
            plan.precision = Precision::FP32;
        }
        let program = lower(graph, &plan, ranks).expect("it was lowered before");
        let modelled = shardloom_sim::Modelled::new(graph, &cluster, &program).expect("a model");
        let costs = CostModel::new(graph, &cluster, &program);
        let plain = Modelled { costs, cluster: &cluster, program: &program };
        assert_equal(&both(&program, &cluster, 2, modelled, &plain))?;
    }
}

proptest! {
    #![proptest_config(config(12, 11))]

    #[test]
    fn what_was_recorded_is_repeated_to_the_picosecond(
        case in cases(),
        seed: u64,
        steps in 1u32..4,
        launches: bool,
    ) {
        let Case { program, .. } = &case;
        let cluster = mixed(program.ranks(), seed.is_multiple_of(2));
        let options = Options { steps, folded: false };
        let mut recorder = Recorder::new(Drawn { program, seed, launches });
        let found = run(program, &cluster, options, &mut recorder).expect("it runs");
        let (_, recording) = recorder.finish();
        let again = run(program, &cluster, options, &mut Recorded::new(&recording));
        let again = again.expect("it runs");
        prop_assert_eq!(again.timeline, found.timeline);
        prop_assert_eq!(again.step_ends, found.step_ends);
    }
}

#[test]
fn the_random_programs_are_of_every_schedule_and_hold_every_action() {
    let mut runner = TestRunner::new(config(256, 10));
    let mut schedules = vec![];
    let mut found = BTreeSet::new();
    for _ in 0..256 {
        let Case { plan, program, .. } =
            cases().new_tree(&mut runner).expect("some plans exist").current();
        schedules.push(plan.schedule);
        let takes_turns = program.classes.iter().any(|class| class.replica.is_some());
        let rounds = program.classes.iter().any(|class| class.updates() > 1);
        let reshapes = program.routes.iter().any(|route| {
            let sizes = [route.from, route.to].map(|class| program.class(class).mesh);
            sizes[0] != sizes[1]
        });
        let has_thread = program.communication == Communication::Thread;
        found.extend(has_thread.then_some("communication threads"));
        found.extend(takes_turns.then_some("replicas in turn"));
        found.extend(rounds.then_some("updates in rounds"));
        let sums = program.classes.iter().any(|class| class.sums());
        found.extend(sums.then_some("servers that sum"));
        found.extend(reshapes.then_some("unlike meshes"));
        for class in &program.classes {
            found.extend(class.guards().next().map(|_| "guards"));
            for instruction in class.bodies.iter().flat_map(|body| &body.instructions) {
                let content = |view: View| class.tensor(view.tensor).content;
                let read = instruction.reads.first().map(|&it| content(it));
                let written = instruction.writes.first().map(|it| content(it.to));
                found.insert(match (&instruction.action, read) {
                    (Action::Collective { kind, group, .. }, Some(read)) => match (read, kind) {
                        (Content::Activation, _) => "redistribution",
                        (Content::Weight, _) => "gather",
                        (Content::Gradient, Collective::ReduceScatter { .. }) => "reduce-scatter",
                        (Content::Gradient, _) if matches!(group, Group::Classes(_)) => {
                            "reduction over owners"
                        }
                        _ => continue,
                    },
                    (Action::Norm, _) => "norm",
                    (Action::Statistics { .. }, _) => "statistics",
                    (Action::Copy, _) if written == Some(Content::Backup) => "backup",
                    (Action::Test, _) => "test",
                    (Action::Copy, Some(Content::Backup)) => "rollback",
                    (Action::Free, _) => "free",
                    (Action::Optimizer, _) => "update",
                    (Action::Average { .. }, _) => "average",
                    (Action::Due { .. }, _) => "question whether to average",
                    _ => continue,
                });
            }
        }
    }
    for kind in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        assert!(schedules.contains(&kind), "no program of {kind:?}");
    }
    assert_eq!(found.len(), 19, "only {found:?}");
}
