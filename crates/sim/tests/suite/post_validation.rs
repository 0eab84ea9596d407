//! Zero bubble's post-validation: clipping without a bubble at the end of each step (Qi et al. 2024, arXiv
//! 2401.10241, section 4).

use crate::scenario::{gpt, h100, uniform};
use shardloom_graph::Graph;
use shardloom_plan::{Plan, ScheduleKind};
use shardloom_program::timeline::{Activity, Clock, Picos};
use shardloom_program::{Action, Program, lower};
use shardloom_sim::{Call, Driver, Options, SimError, Simulation, run, simulate};

/// How a step deals with the norm of its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norm {
    Unclipped,
    Awaited,
    Validated,
}

/// A plan of so many stages and micro-batches, with two layers to a stage.
fn planned(
    schedule: ScheduleKind,
    stages: usize,
    microbatches: usize,
    norm: Norm,
) -> (Graph, Program) {
    let graph = gpt(4 * stages, false);
    let mut numbers = uniform(stages, 1, 1, microbatches);
    numbers.schedule = schedule;
    numbers.clip_norm = (norm != Norm::Unclipped).then_some(1.0);
    let plan = numbers.plan(&graph, "gpt", "cluster");
    let plan = Plan { post_validation: norm == Norm::Validated, ..plan };
    let program = lower(&graph, &plan, stages).expect("the plan fits");
    (graph, program)
}

/// Gives each pass its time at its first operator and everything else none.
struct Passes<'p> {
    program: &'p Program,
    forward: u64,
    input: u64,
    weight: u64,
}

impl Driver for Passes<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Simulated
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let body = self.program.class(call.actor.class).body_of(&call.run.entry);
        let computes = |action: &Action| matches!(action, Action::Kernel { .. });
        let first = body.instructions.iter().position(|it| computes(&it.action));
        let pass = match body.kind.activity() {
            Activity::Forward => self.forward,
            Activity::Backward => self.input + self.weight,
            Activity::BackwardInput => self.input,
            Activity::BackwardWeight => self.weight,
            _ => 0,
        };
        Ok(Picos(if first == Some(call.index) { pass } else { 0 }))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let messages = self.program.route(route).sent_by(call.actor.position);
        durations.extend(messages.map(|_| Picos::ZERO));
        Ok(())
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, _: &[Call<'_>]) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }
}

/// Several steps of unit passes, one rank to a stage.
fn unit_steps(
    schedule: ScheduleKind,
    stages: usize,
    microbatches: usize,
    norm: Norm,
) -> Simulation {
    let (_, program) = planned(schedule, stages, microbatches, norm);
    let mut driver = Passes { program: &program, forward: 10, input: 10, weight: 10 };
    let options = Options { steps: 5, folded: false };
    run(&program, &h100(stages), options, &mut driver).expect("it runs")
}

#[test]
fn zb_h2_has_no_bubble_with_validation_and_one_of_a_forward_per_stage_with_waiting() {
    for (stages, microbatches) in [(2, 4), (4, 8), (4, 16), (8, 16)] {
        let step = |norm| unit_steps(ScheduleKind::ZeroBubbleH2, stages, microbatches, norm);
        let busy = Picos(30 * microbatches as u64);
        for norm in [Norm::Unclipped, Norm::Validated] {
            let found = step(norm);
            assert_eq!(found.step_time(), busy, "{stages} stages, {norm:?}");
            assert!(found.summary().bubble_fraction.abs() < 1e-12, "{norm:?}");
        }
        let waiting = step(Norm::Awaited);
        let lost = Picos(10 * (stages as u64 - 1));
        assert_eq!(waiting.step_time(), busy + lost, "{stages} stages");
        assert!(waiting.summary().bubble_fraction > 0.0);
    }
}

#[test]
fn no_schedule_with_flush_is_slower_with_validation_than_with_waiting() {
    for schedule in ScheduleKind::ALL {
        if schedule == ScheduleKind::Table || !schedule.flushes() {
            continue;
        }
        let step = |norm| unit_steps(schedule, 4, 8, norm).step_time();
        let [unclipped, awaited, validated] =
            [Norm::Unclipped, Norm::Awaited, Norm::Validated].map(step);
        assert!(unclipped <= validated && validated <= awaited, "{schedule:?}");
    }
}

/// With the cost model validation costs a copy of what is updated, and messages of a number.
#[test]
fn in_modelled_time_validation_costs_less_than_waiting() {
    let step = |norm| {
        let (graph, program) = planned(ScheduleKind::ZeroBubbleH2, 4, 16, norm);
        let options = Options { steps: 4, folded: true };
        let found = simulate(&graph, &h100(4), &program, options).expect("it simulates");
        (found.step_time().seconds(), found.summary().bubble_fraction)
    };
    let [unclipped, awaited, validated] =
        [Norm::Unclipped, Norm::Awaited, Norm::Validated].map(step);
    assert!(validated.0 < awaited.0, "{validated:?} against {awaited:?}");
    assert!(validated.0 < 1.02 * unclipped.0, "{validated:?} against {unclipped:?}");
    assert!(validated.1 < awaited.1);
}
