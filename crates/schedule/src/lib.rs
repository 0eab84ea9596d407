//! Schedules: in which order each device runs its passes. Pure functions, one file each; one checker
//! proves each.
//!
//! A [`StageMap`] says where the stages of all pipelines live; a [`Schedule`] what each device runs, in one
//! step. Nothing here knows operators, tensors or machines.

mod action;
mod afab;
mod building_block;
mod check;
mod chimera;
mod dualpipe;
mod dualpipe_v;
mod earliest_first;
mod error;
mod first;
mod hanayo;
mod held;
mod interleaved;
mod meeting;
mod notation;
mod one_forward_one_backward;
mod pass_table;
mod pipedream;
mod pipemare;
mod reordering;
mod stage_map;
mod table;
mod timing;
mod v_half;
mod v_min;
mod weight_filling;
mod zb_v;
mod zb_v_rounds;
mod zero_bubble;

use shardloom_plan::{PassTimes, Plan, ScheduleKind};

pub use action::{Action, Instance, Pass, PassKind};
pub use check::check;
pub use error::ScheduleError;
pub use meeting::{Meeting, MeetingRequest, meetings};
pub use notation::Notation;
pub use stage_map::{Chain, StageMap};
use timing::Purpose;
pub use timing::{Succession, Timed, Timing, time, time_with};
use weight_filling::Memory;

/// In which order each device of a map runs its passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Where stages live.
    pub map: StageMap,
    /// What each device does in one step. Without flush, devices also run passes of later steps'
    /// micro-batches, whose numbers go on from this step's.
    pub orders: Vec<Vec<Action>>,
}

impl Schedule {
    /// What `plan` says, on `map`: the order that it writes down, or the one that its schedule makes, for steps
    /// that follow each other as its own do.
    ///
    /// # Errors
    /// As [`Schedule::from_table`] and [`Schedule::build_for`].
    pub fn of(plan: &Plan, map: StageMap) -> Result<Schedule, ScheduleError> {
        if plan.schedule == ScheduleKind::Table {
            return Schedule::from_table(map, &plan.order);
        }
        let succession = match plan.looks_at_norm() && !plan.post_validation {
            true => Succession::Common,
            false => Succession::Own,
        };
        Schedule::build_for(plan.schedule, map, &plan.pass_times, succession)
    }

    /// The schedule `kind` on `map`, made for passes of the given times where it depends on them, and for
    /// devices that begin their next steps without waiting for each other.
    ///
    /// # Errors
    /// If the schedule does not exist for this map.
    pub fn build(
        kind: ScheduleKind,
        map: StageMap,
        times: &PassTimes,
    ) -> Result<Schedule, ScheduleError> {
        Schedule::build_for(kind, map, times, Succession::Own)
    }

    /// The same, for steps that follow each other in the given way.
    ///
    /// # Errors
    /// As [`Schedule::build`].
    pub fn build_for(
        kind: ScheduleKind,
        map: StageMap,
        times: &PassTimes,
        succession: Succession,
    ) -> Result<Schedule, ScheduleError> {
        let purpose = Purpose { times, succession };
        kind.arrangement().map_or(Ok(()), |arrangement| map.check(kind, arrangement))?;
        match kind {
            // Pipelines on devices of their own go through what they have.
            ScheduleKind::Afab | ScheduleKind::OneForwardOneBackward => {}
            // Chimera leaves the slots empty of the micro-batch that a pipeline lacks.
            ScheduleKind::Chimera => {}
            _ => map.require_even_shares()?,
        }
        let devices = map.devices();
        let orders = match kind {
            ScheduleKind::Afab => afab::orders(&map),
            ScheduleKind::OneForwardOneBackward => one_forward_one_backward::orders(&map),
            ScheduleKind::Interleaved => interleaved::orders(&map)?,
            ScheduleKind::Chimera => chimera::orders(&map),
            ScheduleKind::ChimeraDoubling => chimera::doubled_orders(&map)?,
            ScheduleKind::Hanayo => hanayo::orders(&map, purpose)?,
            ScheduleKind::PipeDream => pipedream::orders(&map),
            ScheduleKind::PipeMare => pipemare::orders(&map),
            ScheduleKind::ZeroBubbleH1 => {
                zero_bubble::orders(&map, purpose, Memory::microbatches(devices))
            }
            ScheduleKind::ZeroBubbleH2 => {
                zero_bubble::orders(&map, purpose, Memory::microbatches(2 * devices - 1))
            }
            ScheduleKind::ZeroBubbleOneP => {
                zero_bubble::orders(&map, purpose, Memory::forwards(devices, times.kept))
            }
            ScheduleKind::ZeroBubbleTwoP => {
                zero_bubble::orders(&map, purpose, Memory::forwards(2 * devices, times.kept))
            }
            ScheduleKind::ZeroBubbleV => zb_v::orders(&map, purpose)?,
            ScheduleKind::VHalf => v_half::orders(&map, purpose)?,
            ScheduleKind::VMin => v_min::orders(&map, purpose)?,
            ScheduleKind::DualPipe => dualpipe::orders(&map)?,
            ScheduleKind::DualPipeV => dualpipe_v::orders(&map)?,
            ScheduleKind::Table => {
                let message = "a table is read from the plan's `order`, one line of actions for each \
                               device, and not built";
                return Err(ScheduleError::Rule(message.into()));
            }
        };
        Ok(Schedule { map, orders })
    }

    /// How many steps some device runs ahead of the one that it is at; 0 for a schedule with flush.
    pub fn ahead(&self) -> u32 {
        let passes = self.orders.iter().flatten().flat_map(|action| action.passes());
        passes.map(|pass| pass.microbatch / self.map.microbatches()).max().unwrap_or(0)
    }

    /// What each device does to train `steps` steps. A schedule that runs ahead begins with what brings
    /// it there, and starts nothing that belongs to no step in the end.
    pub fn unrolled(&self, steps: u32) -> Vec<Vec<Action>> {
        let microbatches = i64::from(self.map.microbatches());
        let end = i64::from(steps) * microbatches;
        let rounds = -i64::from(self.ahead())..i64::from(steps);
        let order = |order: &Vec<Action>| {
            let round = |round: i64| {
                let shift = round * microbatches;
                let at = move |pass: &Pass| i64::from(pass.microbatch) + shift;
                let moved = move |pass: Pass| Pass { microbatch: at(&pass) as u32, ..pass };
                order.iter().filter_map(move |action| {
                    let action = action.filtered(|pass| (0..end).contains(&at(pass)))?;
                    Some(match action {
                        Action::Alone(pass) => Action::Alone(moved(pass)),
                        Action::Overlapped(first, second) => {
                            Action::Overlapped(moved(first), moved(second))
                        }
                    })
                })
            };
            rounds.clone().flat_map(round).collect()
        };
        self.orders.iter().map(order).collect()
    }
}

/// One of a few passes: any that has run will do.
struct OneOf {
    passes: [Pass; 2],
    count: usize,
}

impl OneOf {
    fn only(pass: Pass) -> OneOf {
        OneOf { passes: [pass; 2], count: 1 }
    }

    fn as_slice(&self) -> &[Pass] {
        &self.passes[..self.count]
    }
}

/// What must have run before `pass`: the same micro-batch in the stage that hands to it, and its own
/// earlier pass.
fn requirements(map: &StageMap, pass: Pass) -> [Option<OneOf>; 2] {
    let own = |kind| Some(OneOf::only(Pass { kind, ..pass }));
    match pass.kind {
        PassKind::Forward => {
            let before = map.before(pass.instance);
            [before.map(|instance| OneOf::only(Pass { instance, ..pass })), None]
        }
        PassKind::Backward | PassKind::BackwardInput => {
            let after = map.after(pass.instance).map(|instance| OneOf {
                passes: [PassKind::Backward, PassKind::BackwardInput].map(|kind| Pass {
                    kind,
                    instance,
                    microbatch: pass.microbatch,
                }),
                count: 2,
            });
            [after, own(PassKind::Forward)]
        }
        PassKind::BackwardWeight => [own(PassKind::BackwardInput), None],
    }
}

/// Refuses a pipeline to and fro that does not come to each device just twice.
fn wants_two_stages(map: &StageMap, name: &str) -> Result<(), ScheduleError> {
    let stages = map.instances_on(0).count();
    if stages == 2 {
        return Ok(());
    }
    let rule = format!("{name} wants 2 stages on each device, and there are {stages}");
    Err(ScheduleError::chunks(stages, rule))
}
