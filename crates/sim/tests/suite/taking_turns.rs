//! Throughput of stages whose replicas take micro-batches in turn, where a pass takes each stage another
//! time and everything else takes none.

use crate::scenario::{gpt, h100, uniform};
use shardloom_plan::{Arrangement, DeviceList, Pipeline, ScheduleKind, Updates};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, BodyKind, Program, lower};
use shardloom_sim::{Call, Driver, Options, SimError, run};

/// Gives each pass of a stage its time at its first operator.
struct Stages<'a> {
    program: &'a Program,
    /// Of a forward and of a backward pass of each stage.
    seconds: &'a [u64],
}

impl Driver for Stages<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let class = self.program.class(call.actor.class);
        let body = class.body_of(&call.run.entry);
        let computes = |action: &Action| matches!(action, Action::Kernel { .. });
        let first = body.instructions.iter().position(|it| computes(&it.action));
        Ok(Picos(match body.kind {
            BodyKind::Forward | BodyKind::Backward if first == Some(call.index) => {
                self.seconds[usize::from(class.stages[0].instance.stage)]
            }
            _ => 0,
        }))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let messages = self.program.route(route).sent_by(call.actor.position);
        durations.extend(messages.map(|_| Picos::ZERO));
        Ok(())
    }

    fn receive(&mut self, _call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, _members: &[Call<'_>]) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }
}

/// Busy time over all time once the pipeline is full, of all devices, with `microbatches` in a step.
fn utilisation(replicas: &[usize], seconds: &[u64], updates: Updates, times: usize) -> f64 {
    let places = Arrangement::taking_turns(replicas).expect("few turns");
    let graph = gpt(replicas.len(), false);
    let mut uniform = uniform(replicas.len(), 1, 1, times * places.len());
    (uniform.schedule, uniform.clip_norm) = (ScheduleKind::PipeDream, None);
    let mut plan = uniform.plan(&graph, "gpt", "cluster");
    let chain = plan.pipeline.remove(0).stage;
    let pipeline = |devices: &Vec<usize>| {
        let mut stage = chain.clone();
        for (stage, &device) in stage.iter_mut().zip(devices) {
            stage.devices = DeviceList(vec![device as u32]);
        }
        Pipeline::of(stage)
    };
    plan.pipeline = places.iter().map(pipeline).collect();
    plan.updates = updates;
    let devices = replicas.iter().sum();
    let program = lower(&graph, &plan, devices).expect("the plan fits");
    let cluster = h100(devices);
    let makespan = |steps| {
        let mut driver = Stages { program: &program, seconds };
        let options = Options { steps, folded: false };
        let found = run(&program, &cluster, options, &mut driver).expect("no deadlock");
        found.timeline.makespan().0 as f64
    };
    // Long after the pipeline is full, over so many steps that a pattern over several comes round.
    let period = (makespan(36) - makespan(24)) / 12.0;
    let busy = |(&replicas, &seconds): (&usize, &u64)| {
        let microbatches = (plan.microbatches / replicas) as f64;
        replicas as f64 * microbatches * 2.0 * seconds as f64
    };
    let busy: f64 = replicas.iter().zip(seconds).map(busy).sum();
    busy / (devices as f64 * period)
}

/// A stage takes as many times as long for a micro-batch as it has replicas.
fn balanced(replicas: &[usize], updates: Updates, times: usize) -> f64 {
    let seconds: Vec<u64> = replicas.iter().map(|&count| 600 * count as u64).collect();
    utilisation(replicas, &seconds, updates, times)
}

const BOTH: [Updates; 2] = [Updates::Step, Updates::Round];

#[test]
fn two_replicas_of_a_first_stage_that_takes_twice_as_long_keep_all_devices_busy() {
    for updates in BOTH {
        assert_eq!(utilisation(&[2, 1], &[2000, 1000], updates, 1), 1.0, "{updates:?}");
    }
    // One device for the first stage keeps the other waiting half of the time.
    assert_eq!(utilisation(&[1, 1], &[2000, 1000], Updates::Round, 1), 0.75);
}

#[test]
fn stages_whose_replicas_are_a_multiple_of_the_next_stage_s_are_always_busy() {
    for replicas in [&[7, 1][..], &[2, 2], &[4, 2], &[3, 3]] {
        for updates in BOTH {
            for times in [1, 2] {
                let found = balanced(replicas, updates, times);
                assert_eq!(found, 1.0, "{replicas:?} {updates:?}, {times}");
            }
        }
    }
}

/// The passes alone would keep all devices busy; but replicas that got their micro-batches one after the
/// other update together, and the first of them has nothing to do meanwhile.
#[test]
fn replicas_of_a_stage_after_a_narrower_one_wait_for_each_other() {
    for (replicas, expected) in [(&[1, 2][..], 0.8), (&[1, 7], 0.7), (&[1, 2, 1], 0.8)] {
        for updates in BOTH {
            let found = balanced(replicas, updates, 1);
            assert!((found - expected).abs() < 1e-12, "{replicas:?} {updates:?}: {found}");
        }
    }
}

#[test]
fn fewer_updates_let_replicas_of_odd_numbers_wait_less_often() {
    let found = [(Updates::Round, 1), (Updates::Step, 1), (Updates::Step, 2), (Updates::Step, 8)]
        .map(|(updates, times)| balanced(&[2, 3], updates, times));
    assert!(found.is_sorted() && found[0] < found[1] && found[3] > 0.97, "{found:?}");
}
