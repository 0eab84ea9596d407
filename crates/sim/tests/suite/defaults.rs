//! What a driver comes to that says no more than it must.

use crate::scenario::{exchanged, gpt, h100, uniform};
use shardloom_plan::{Averaging, Mesh, Negotiation, Sync, Uniform};
use shardloom_program::timeline::{Activity, Clock, Picos};
use shardloom_program::{Action, BodyId, ClassId, Content, Program, Rank, lower};
use shardloom_sim::{Call, Driver, Options, SimError, run};

const LOCAL: u64 = 10;
const COLLECTIVE: u64 = 1000;

/// Everything takes some time; what is fetched from whom is noted.
#[derive(Default)]
struct Plain {
    fetched: Vec<(Rank, i64, Rank)>,
}

impl Driver for Plain {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos(LOCAL))
    }

    fn fetch(&mut self, call: &Call<'_>, from: Rank) -> Result<Picos, SimError> {
        self.fetched.push((call.actor.rank, call.run.step, from));
        self.local(call)
    }

    fn send(&mut self, _: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        durations.push(Picos::ZERO);
        Ok(())
    }

    fn receive(&mut self, _: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, _: &[Call<'_>]) -> Result<Picos, SimError> {
        Ok(Picos(COLLECTIVE))
    }
}

fn program(dp: u32, sync: Sync) -> Program {
    let graph = gpt(2, false);
    let common = uniform(1, 1, 1, 1);
    let uniform = Uniform {
        mesh: Mesh::of(dp, 1, 1),
        global_batch: dp as usize,
        clip_norm: None,
        sync,
        ..common
    };
    let plan = uniform.plan(&graph, "gpt", "cluster");
    lower(&graph, &plan, plan.device_count()).expect("a program")
}

/// The first step is then the first of the run, by which partners are drawn.
#[test]
fn no_steps_were_run_before() {
    let sync = Sync { averaging: Some(Averaging::PAIRS), ..uniform(1, 1, 1, 1).sync };
    let program = program(8, sync);
    let fetches = program.classes[0].bodies.iter().flat_map(|body| &body.instructions);
    let group = fetches.into_iter().find_map(|it| match &it.action {
        Action::Fetch { group } => Some(group),
        _ => None,
    });
    let group = group.expect("it fetches");
    let mut driver = Plain::default();
    let options = Options { steps: 9, folded: false };
    run(&program, &h100(8), options, &mut driver).expect("it runs");
    assert_eq!(driver.fetched.len(), 8 * 9);
    for (rank, step, from) in driver.fetched {
        let partner = program.partner(ClassId(0), rank.0 as usize, group, step as u64);
        assert_eq!(from, partner, "step {step} of {rank:?}");
    }
}

/// Telling each other what was requested takes none.
#[test]
fn requests_that_go_as_one_take_what_they_take_one_by_one() {
    let negotiation = Some(Negotiation { cycle_seconds: 1e-9, fusion_bytes: 1 << 27 });
    let sync = Sync { negotiation, bucket_bytes: 10_000, ..uniform(1, 1, 1, 1).sync };
    let program = program(4, sync);
    let class = &program.classes[0];
    let is_gradient = |it| exchanged(class, it) == Some(Content::Gradient);
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let requests = instructions.filter(|it| is_gradient(it)).count() as u64;
    assert!(requests > 3, "{requests} requests");
    let options = Options { steps: 1, folded: false };
    let found = run(&program, &h100(4), options, &mut Plain::default()).expect("it runs");
    for track in &found.timeline.tracks {
        let shown = track.intervals.iter().filter(|it| it.activity == Activity::Collective);
        let took: u64 = shown.map(|it| it.end.since(it.start).0).sum();
        assert_eq!(took, requests * COLLECTIVE, "{}", track.place);
    }
}

/// What arrives takes no time on the way in, however many messages come at once, and launching none.
#[test]
fn a_step_of_passes_alone_takes_what_its_instructions_take() {
    let program = program(1, uniform(1, 1, 1, 1).sync);
    let options = Options { steps: 1, folded: false };
    let found = run(&program, &h100(1), options, &mut Plain::default()).expect("it runs");
    let class = &program.classes[0];
    // All bodies but those of evaluations run once in a step of one micro-batch.
    let bodies = (0..).map(BodyId).zip(&class.bodies);
    let run = bodies.filter(|(id, _)| !class.evaluation.contains(id));
    let count: usize = run.map(|(_, body)| body.instructions.len()).sum();
    assert_eq!(found.timeline.makespan(), Picos(LOCAL * count as u64));
    // Nothing is held besides what the program says.
    assert_eq!(found.timeline.tracks[0].peak_bytes, class.memory_use(&program, 0).peak_bytes);
}
