//! PyTorch's table of actions, as the order of a plan.

use shardloom_plan::{PassTimes, Plan, ScheduleKind};
use shardloom_schedule::{Action, Instance, Pass, PassKind, Schedule, StageMap, Succession};

use crate::ExchangeError;

/// What a table says: where stages are, and how many micro-batches there are.
pub(super) struct Table {
    /// The rank of each stage.
    pub groups: Vec<usize>,
    /// Micro-batches of a step.
    pub microbatches: usize,
    orders: Vec<Vec<Action>>,
}

/// More stages or micro-batches than schedules are made for.
const MOST: u32 = 1 << 16;

impl Table {
    pub fn of(text: &str, place: &str) -> Result<Table, ExchangeError> {
        let mut orders = vec![];
        for (line, row) in text.lines().enumerate() {
            let actions = row.split(',').map(str::trim).filter(|action| !action.is_empty());
            let action = |text: &str| {
                action(text).ok_or_else(|| ExchangeError::Text {
                    place: format!("{place}:{}", line + 1),
                    message: format!(
                        "{text:?} is no action: write stage, F, B, I or W, and micro-batch (2F0), or two \
                         that overlap ((0F1;3B0)OVERLAP_F_B); communication is added by whoever runs it"
                    ),
                })
            };
            orders.push(actions.map(action).collect::<Result<Vec<_>, _>>()?);
        }
        let passes = || orders.iter().flatten().flat_map(|action: &Action| action.passes());
        let stages = passes().map(|pass| usize::from(pass.instance.stage) + 1).max().unwrap_or(0);
        let microbatches = passes().map(|pass| pass.microbatch as usize + 1).max().unwrap_or(0);
        let mut groups = vec![None; stages];
        for (rank, order) in orders.iter().enumerate() {
            for pass in order.iter().flat_map(|action| action.passes()) {
                groups[usize::from(pass.instance.stage)].get_or_insert(rank);
            }
        }
        let groups: Option<Vec<usize>> = groups.into_iter().collect();
        match groups.filter(|groups| !groups.is_empty()) {
            Some(groups) => Ok(Table { groups, microbatches, orders }),
            None => Err(ExchangeError::Text {
                place: place.into(),
                message: "has no action of some stage; stages are numbered from 0".into(),
            }),
        }
    }

    /// Gives `plan` the order of this table: the name of a schedule, if it has just this order, or the table.
    pub fn apply(&self, plan: &mut Plan) -> Result<(), ExchangeError> {
        let map = || StageMap::new(vec![self.groups.clone()], self.microbatches);
        let times = PassTimes::default();
        let actions: usize = self.orders.iter().map(Vec::len).sum();
        let succession = if plan.looks_at_norm() { Succession::Common } else { Succession::Own };
        let named = |kind: &ScheduleKind| kind.flushes() && *kind != ScheduleKind::Table;
        let kinds = if actions > MOST_COMPARED { &[][..] } else { &ScheduleKind::ALL[..] };
        for kind in kinds.iter().copied().filter(named) {
            let same = Schedule::build_for(kind, map()?, &times, succession)
                .is_ok_and(|schedule| schedule.orders == self.orders);
            if same {
                plan.schedule = kind;
                return Ok(());
            }
        }
        let map = map()?;
        let order = |(rank, order): (usize, &Vec<Action>)| {
            let actions: Vec<String> = order.iter().map(|&action| map.text(rank, action)).collect();
            actions.join(" ")
        };
        plan.schedule = ScheduleKind::Table;
        plan.order = self.orders.iter().enumerate().map(order).collect();
        // Proves it, and says what is wrong with it.
        Schedule::from_table(map.clone(), &plan.order)?;
        Ok(())
    }
}

/// The most actions of tables that are compared with schedules, of which some take long to make.
const MOST_COMPARED: usize = 20_000;

fn action(text: &str) -> Option<Action> {
    let Some(inside) = text.strip_prefix('(') else { return Some(Action::Alone(pass(text)?)) };
    let (first, second) = inside.strip_suffix(")OVERLAP_F_B")?.split_once(';')?;
    Some(Action::Overlapped(pass(first.trim())?, pass(second.trim())?))
}

fn pass(text: &str) -> Option<Pass> {
    let at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (stage, rest) = text.split_at(at);
    let kind = match rest.as_bytes().first()? {
        b'F' => PassKind::Forward,
        b'B' => PassKind::Backward,
        b'I' => PassKind::BackwardInput,
        b'W' => PassKind::BackwardWeight,
        _ => return None,
    };
    let stage = stage.parse().ok().filter(|&stage| u32::from(stage) < MOST)?;
    let microbatch = rest[1..].parse().ok().filter(|&microbatch| microbatch < MOST)?;
    Some(Pass { kind, instance: Instance { pipeline: 0, stage }, microbatch })
}
