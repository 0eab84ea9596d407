//! Which version of the weights each pass runs with.
//!
//! A pass that runs ahead, or whose forward did, may need the weights as they were some updates ago; how
//! many is the same in every step. Updates are counted from the first of a micro-batch's own step, and
//! those before it are negative.

use std::collections::HashMap;

use shardloom_plan::{Plan, Updates, Weights};

use crate::ProgramError;
use shardloom_schedule::{Cell, Instance, Pass, Schedule, ScheduleError};

/// The plan's rule on the schedule's order.
pub(super) struct Versions<'a> {
    rule: Weights,
    updates: Updates,
    schedule: &'a Schedule,
    /// How many updates a cell's device makes before it, counted from the first of its micro-batch's own
    /// step; cells by their micro-batch within the step.
    before: HashMap<Cell, i64>,
}

impl<'a> Versions<'a> {
    pub fn new(plan: &Plan, schedule: &'a Schedule) -> Versions<'a> {
        let (rule, updates) = (plan.weights, plan.updates);
        let mut versions = Versions { rule, updates, schedule, before: HashMap::new() };
        let microbatches = schedule.map.microbatches();
        for order in &schedule.orders {
            let mut updates = 0;
            for cell in order.iter().flat_map(|turn| turn.cells()) {
                let ahead = i64::from(cell.microbatch / microbatches);
                let before = updates - ahead * i64::from(versions.each_step(cell.instance));
                let microbatch = cell.microbatch % microbatches;
                versions.before.insert(Cell { microbatch, ..cell }, before);
                updates += i64::from(versions.ends_round(cell));
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

    /// Whether an update follows `cell` within the step: its device has had its micro-batch of the round.
    pub fn ends_round(&self, cell: Cell) -> bool {
        self.updates == Updates::Round && cell.pass.ends()
    }

    /// How many updates old the weights are that `cell` runs with.
    ///
    /// # Errors
    /// If the rule has no version for it.
    pub fn age(&self, cell: Cell) -> Result<u32, ProgramError> {
        let map = &self.schedule.map;
        let forward = cell.pass == Pass::Forward;
        Ok(match self.rule {
            Weights::Flush | Weights::Newest { .. } => 0,
            Weights::Stash if forward => 0,
            Weights::Stash => self.updates_since_forward(cell),
            Weights::VerticalSync => {
                let age = self.before(cell) - self.of_input_stage(cell);
                u32::try_from(age).map_err(|_| {
                    let device = map.device(cell.instance);
                    ScheduleError::Rule(format!(
                        "device {device} runs {} before the first stage does",
                        map.cell_text(device, cell)
                    ))
                })?
            }
            Weights::DoubleBuffer if !forward => 1,
            Weights::DoubleBuffer => u32::try_from(1 + self.before(cell)).map_err(|_| {
                ScheduleError::Rule(format!(
                    "two versions of weights do not suffice: some stage runs {} steps ahead, and with two \
                     it may run one ahead; give a step more micro-batches",
                    -self.before(cell)
                ))
            })?,
        })
    }

    /// How many updates there are, on average, between the forward passes of `instance` and the updates
    /// with their gradients.
    pub fn delay(&self, instance: Instance) -> f64 {
        let order = &self.schedule.orders[self.schedule.map.device(instance)];
        let ends = order.iter().flat_map(|turn| turn.cells());
        let ends = ends.filter(|cell| cell.instance == instance && cell.pass.ends());
        let delays: Vec<u32> = ends.map(|cell| self.updates_since_forward(cell)).collect();
        f64::from(delays.iter().sum::<u32>()) / delays.len() as f64
    }

    /// How many updates its device makes between the forward pass of a micro-batch and `cell`, a pass of
    /// its backward.
    fn updates_since_forward(&self, cell: Cell) -> u32 {
        let forward = Cell { pass: Pass::Forward, ..cell };
        let updates = self.before(cell) - self.before(forward);
        u32::try_from(updates).expect("a forward comes before its backward")
    }

    /// The version that stands for the one with which the first stage ran the forward pass of `cell`'s
    /// micro-batch: with the gradients of the same earlier micro-batches, and no others.
    fn of_input_stage(&self, cell: Cell) -> i64 {
        let first = Instance { stage: 0, ..cell.instance };
        let version = self.before(Cell { pass: Pass::Forward, instance: first, ..cell });
        let [there, here] = [first, cell.instance].map(|it| i64::from(self.each_step(it)));
        (version * here).div_euclid(there)
    }

    /// How many updates the device of `cell` makes before it.
    fn before(&self, cell: Cell) -> i64 {
        let microbatch = cell.microbatch % self.schedule.map.microbatches();
        let before = self.before.get(&Cell { microbatch, ..cell });
        *before.expect("orders have every pass of their devices' micro-batches")
    }
}
