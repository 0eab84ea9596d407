//! Which version of the weights each pass runs with.
//!
//! A pass that runs ahead, or whose forward did, may need the weights as they were some updates ago; how
//! many is the same in every step. Updates are counted from the first of a micro-batch's own step, and
//! those before it are negative.

use rustc_hash::FxHashMap;
use shardloom_plan::{Plan, Updates, Weights};

use crate::ProgramError;
use shardloom_schedule::{Instance, Pass, PassKind, Schedule, ScheduleError};

/// The plan's rule on the schedule's order.
pub(super) struct Versions<'a> {
    rule: Weights,
    updates: Updates,
    schedule: &'a Schedule,
    /// How many updates a pass's device makes before it, counted from the first of its micro-batch's own
    /// step; passes by their micro-batch within the step.
    before: FxHashMap<Pass, i64>,
}

impl<'a> Versions<'a> {
    pub fn new(plan: &Plan, schedule: &'a Schedule) -> Versions<'a> {
        let (rule, updates) = (plan.weights, plan.updates);
        let mut versions = Versions { rule, updates, schedule, before: FxHashMap::default() };
        let microbatches = schedule.map.microbatches();
        for order in &schedule.orders {
            let mut updates = 0;
            for pass in order.iter().flat_map(|action| action.passes()) {
                let ahead = i64::from(pass.microbatch / microbatches);
                let before = updates - ahead * i64::from(versions.each_step(pass.instance));
                let microbatch = pass.microbatch % microbatches;
                versions.before.insert(Pass { microbatch, ..pass }, before);
                updates += i64::from(versions.ends_round(pass));
            }
        }
        versions
    }

    /// How often the device of `instance` updates its weights in a step.
    fn each_step(&self, instance: Instance) -> u32 {
        let map = &self.schedule.map;
        match (self.updates, map.replicas()) {
            (Updates::Round, Some(replicas)) => {
                map.microbatches() / replicas[usize::from(instance.stage)] as u32
            }
            // PipeDream's order, which rounds are for, has replicas.
            (Updates::Step | Updates::Round, _) => 1,
        }
    }

    /// Whether an update follows `pass` within the step: its device has had its micro-batch of the round.
    pub fn ends_round(&self, pass: Pass) -> bool {
        self.updates == Updates::Round && pass.kind.ends()
    }

    /// How many updates old the weights are that `pass` runs with.
    ///
    /// # Errors
    /// If the rule has no version for it.
    pub fn age(&self, pass: Pass) -> Result<u32, ProgramError> {
        let map = &self.schedule.map;
        let forward = pass.kind == PassKind::Forward;
        Ok(match self.rule {
            Weights::Flush | Weights::Newest { .. } => 0,
            Weights::Stash if forward => 0,
            Weights::Stash => self.updates_since_forward(pass),
            Weights::VerticalSync => {
                let age = self.before(pass) - self.of_input_stage(pass);
                u32::try_from(age).map_err(|_| {
                    let device = map.device(pass.instance);
                    ScheduleError::Rule(format!(
                        "device {device} runs {} before the first stage does",
                        map.pass_text(device, pass)
                    ))
                })?
            }
            Weights::DoubleBuffer if !forward => 1,
            Weights::DoubleBuffer => u32::try_from(1 + self.before(pass)).map_err(|_| {
                ScheduleError::Rule(format!(
                    "two versions of weights do not suffice: some stage runs {} steps ahead, and with two \
                     it may run one ahead; give a step more micro-batches",
                    -self.before(pass)
                ))
            })?,
        })
    }

    /// How many updates there are, on average, between the forward passes of `instance` and the updates
    /// with their gradients.
    pub fn delay(&self, instance: Instance) -> f64 {
        let order = &self.schedule.orders[self.schedule.map.device(instance)];
        let ends = order.iter().flat_map(|action| action.passes());
        let ends = ends.filter(|pass| pass.instance == instance && pass.kind.ends());
        let delays: Vec<u32> = ends.map(|pass| self.updates_since_forward(pass)).collect();
        f64::from(delays.iter().sum::<u32>()) / delays.len() as f64
    }

    /// How many updates its device makes between the forward pass of a micro-batch and `pass`, a pass of
    /// its backward.
    fn updates_since_forward(&self, pass: Pass) -> u32 {
        let forward = Pass { kind: PassKind::Forward, ..pass };
        let updates = self.before(pass) - self.before(forward);
        u32::try_from(updates).expect("a forward comes before its backward")
    }

    /// The version that stands for the one with which the first stage ran the forward pass of `pass`'s
    /// micro-batch: with the gradients of the same earlier micro-batches, and no others.
    fn of_input_stage(&self, pass: Pass) -> i64 {
        let first = Instance { stage: 0, ..pass.instance };
        let version = self.before(Pass { kind: PassKind::Forward, instance: first, ..pass });
        let [there, here] = [first, pass.instance].map(|it| i64::from(self.each_step(it)));
        (version * here).div_euclid(there)
    }

    /// How many updates the device of `pass` makes before it.
    fn before(&self, pass: Pass) -> i64 {
        let microbatch = pass.microbatch % self.schedule.map.microbatches();
        let before = self.before.get(&Pass { microbatch, ..pass });
        *before.expect("orders have every pass of their devices' micro-batches")
    }
}
