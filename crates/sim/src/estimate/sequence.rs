//! A schedule's passes in an order in which each comes after all that it waits for, to be timed in one go.

use shardloom_plan::{PassTimes, ScheduleKind};
use shardloom_schedule::{Action, Pass, PassKind, Schedule, StageMap, Succession};

/// What is not there.
const NONE: u32 = u32::MAX;

/// One pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// The mesh that runs it.
    pub device: u16,
    /// Which stage of which pipeline, those of the first pipeline first.
    pub instance: u16,
    /// The pass on another mesh whose message it waits for.
    pub message: Option<Before>,
    pub kind: PassKind,
    /// Whether what it makes goes to another mesh.
    pub sends: bool,
    /// Whether it is the first forward pass of its stage.
    pub first: bool,
    /// Whether it is the last pass of its stage, after which the stage's gradients are whole.
    pub last: bool,
    /// Whether it runs at the same time as the pass before it.
    pub joined: bool,
}

/// The place of an earlier pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before(std::num::NonZeroU32);

impl Before {
    fn new(index: u32) -> Option<Before> {
        std::num::NonZeroU32::new(index.wrapping_add(1)).map(Before)
    }

    /// Its index.
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// All passes of one step.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// Each after all that it waits for, those of a mesh in its order.
    pub nodes: Vec<Node>,
}

impl Sequence {
    /// The passes of `kind` for pipelines whose stages live at `places`; none if the schedule does not exist
    /// for these numbers.
    pub fn of(
        kind: ScheduleKind,
        places: Vec<Vec<usize>>,
        microbatches: usize,
        times: &PassTimes,
        succession: Succession,
    ) -> Option<Sequence> {
        let map = StageMap::new(places, microbatches).ok()?;
        let schedule = Schedule::build_for(kind, map, times, succession).ok()?;
        Some(Sequence::in_order(&schedule))
    }

    fn in_order(schedule: &Schedule) -> Sequence {
        let map = &schedule.map;
        let microbatches = map.microbatches() as usize;
        let mut bases = vec![0];
        for chain in map.chains() {
            bases.push(bases[bases.len() - 1] + chain.stages());
        }
        let instances = bases[bases.len() - 1];
        let number = |pass: Pass| {
            bases[usize::from(pass.instance.pipeline)] + usize::from(pass.instance.stage)
        };
        // By stage and micro-batch where its forward pass and its input gradients are.
        let mut done = [(); 2].map(|()| vec![NONE; instances * microbatches]);
        let place = |pass: Pass| number(pass) * microbatches + pass.microbatch as usize;
        let way = |pass: Pass| usize::from(pass.kind != PassKind::Forward);
        let needed = |pass: Pass| {
            let instance = match pass.kind {
                PassKind::Forward => map.before(pass.instance),
                PassKind::Backward | PassKind::BackwardInput => map.after(pass.instance),
                PassKind::BackwardWeight => None,
            };
            instance.map(|instance| Pass { instance, ..pass })
        };
        let device = |pass: Pass| map.device(pass.instance);
        let sends = |pass: Pass| {
            let to = match pass.kind {
                PassKind::Forward => map.after(pass.instance),
                PassKind::Backward | PassKind::BackwardInput => map.before(pass.instance),
                PassKind::BackwardWeight => None,
            };
            to.is_some_and(|to| map.device(to) != device(pass))
        };
        let mut nodes: Vec<Node> = vec![];
        let mut firsts = vec![NONE; instances];
        let mut lasts = vec![NONE; instances];
        let mut next = vec![0; schedule.orders.len()];
        let mut moved = true;
        while moved {
            moved = false;
            for (order, next) in schedule.orders.iter().zip(&mut next) {
                while let Some(&action) = order.get(*next) {
                    let waits = |pass: Pass| {
                        needed(pass).is_some_and(|it| done[way(it)][place(it)] == NONE)
                    };
                    if action.passes().any(waits) {
                        break;
                    }
                    for (position, pass) in action.passes().enumerate() {
                        let here = nodes.len() as u32;
                        let from = needed(pass).filter(|&it| device(it) != device(pass));
                        let message = from.and_then(|it| Before::new(done[way(it)][place(it)]));
                        let instance = number(pass);
                        nodes.push(Node {
                            device: device(pass) as u16,
                            instance: instance as u16,
                            message,
                            kind: pass.kind,
                            sends: sends(pass),
                            first: pass.kind == PassKind::Forward && firsts[instance] == NONE,
                            last: false,
                            joined: position > 0 && matches!(action, Action::Overlapped(..)),
                        });
                        match pass.kind {
                            PassKind::Forward => firsts[instance] = here,
                            _ => lasts[instance] = here,
                        }
                        if pass.kind != PassKind::BackwardWeight {
                            done[way(pass)][place(pass)] = here;
                        }
                    }
                    *next += 1;
                    moved = true;
                }
            }
        }
        for last in lasts.into_iter().filter(|&it| it != NONE) {
            nodes[last as usize].last = true;
        }
        Sequence { nodes }
    }
}
