//! DualPipe's actions of a forward and a backward pass at once, where communication takes time.

use crate::scenario::{gpt, h100, uniform};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Plan, ScheduleKind, Uniform};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Program, lower};
use shardloom_schedule::{Action, Schedule, StageMap};
use shardloom_sim::{Call, Driver, Modelled, Options, SimError, Simulation, run, simulate};

const OPTIONS: Options = Options { steps: 2, folded: true };

/// A step of so many stages in tensor-parallel groups, its passes overlapped and one after the other.
fn both(graph: &Graph, schedule: ScheduleKind, (pp, tp): (usize, u32)) -> [Program; 2] {
    let uniform = Uniform { schedule, ..uniform(pp, 1, tp, 4 * pp) };
    let plan = uniform.plan_in_chunks(graph, "gpt", "cluster", 2);
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let apart = one_after_the_other(&plan, pp);
    [plan, apart]
        .map(|plan| lower(graph, &plan, pp * tp as usize).unwrap_or_else(|error| panic!("{error}")))
}

/// The same order as a table of passes alone.
fn one_after_the_other(plan: &Plan, devices: usize) -> Plan {
    let arrangement = plan.schedule.arrangement().expect("it says where stages live");
    let schedule = StageMap::arranged(arrangement, devices, 2, plan.microbatches)
        .and_then(|map| Schedule::build(plan.schedule, map, &plan.pass_times))
        .unwrap_or_else(|error| panic!("{error}"));
    let line = |(device, order): (usize, &Vec<Action>)| {
        let passes = order.iter().flat_map(|action| action.passes());
        let passes = passes.map(|pass| schedule.map.text(device, Action::Alone(pass)));
        passes.collect::<Vec<String>>().join(" ")
    };
    let order = schedule.orders.iter().enumerate().map(line).collect();
    Plan { schedule: ScheduleKind::Table, order, ..plan.clone() }
}

fn simulated(graph: &Graph, cluster: &Cluster, program: &Program) -> Simulation {
    simulate(graph, cluster, program, OPTIONS).unwrap_or_else(|error| panic!("{error}"))
}

/// Computation as modelled, and communication in no time.
struct Computing<'a>(Modelled<'a>);

impl Driver for Computing<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.0.local(call)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        self.0.send(call, durations)?;
        durations.fill(Picos::ZERO);
        Ok(())
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, _: &[Call<'_>]) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }
}

/// The path of computation through the step that nothing can be shorter than.
fn critical_path(graph: &Graph, cluster: &Cluster, program: &Program) -> Picos {
    let modelled = Modelled::new(graph, cluster, program).expect("a model of it");
    let found = run(program, cluster, OPTIONS, &mut Computing(modelled)).expect("it runs");
    found.step_time()
}

#[test]
fn overlapping_hides_collectives_and_beats_no_critical_path() {
    let graph = gpt(30, false);
    for (schedule, width) in [
        (ScheduleKind::DualPipe, (2, 2)),
        (ScheduleKind::DualPipe, (4, 2)),
        (ScheduleKind::DualPipe, (4, 4)),
        (ScheduleKind::DualPipeV, (2, 2)),
        (ScheduleKind::DualPipeV, (4, 2)),
        (ScheduleKind::DualPipeV, (4, 4)),
    ] {
        let [overlapped, apart] = both(&graph, schedule, width);
        let cluster = h100(overlapped.ranks());
        let (found, other) =
            (simulated(&graph, &cluster, &overlapped), simulated(&graph, &cluster, &apart));
        let (step, without) = (found.step_time(), other.step_time());
        assert!(step < without, "{schedule:?} {width:?}: {step:?} and {without:?}");
        let path = critical_path(&graph, &cluster, &overlapped);
        assert!(step >= path, "{schedule:?} {width:?}: {step:?} beats {path:?}");
        for (rank, other) in found.summary().ranks.iter().zip(&other.summary().ranks) {
            // The same work, differently ordered.
            assert!((rank.busy_seconds - other.busy_seconds).abs() < 1e-9);
            assert_eq!(rank.sent_bytes, other.sent_bytes);
            assert!(step.seconds() >= rank.busy_seconds - 1e-9);
        }
    }
}

#[test]
fn without_communication_inside_passes_nothing_changes() {
    let graph = gpt(30, false);
    for schedule in [ScheduleKind::DualPipe, ScheduleKind::DualPipeV] {
        let [overlapped, apart] = both(&graph, schedule, (4, 1));
        let cluster = h100(4);
        assert_eq!(
            simulated(&graph, &cluster, &overlapped),
            simulated(&graph, &cluster, &apart),
            "{schedule:?}"
        );
    }
}
