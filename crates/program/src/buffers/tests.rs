//! The plan against an execution: whoever is there at the same time lies apart, in rows of any length.

mod arms;

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use rustc_hash::FxHashMap;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Communication, Corrections, DeviceList, Mesh, Optimizer, Plan, Prediction, Recompute,
    ScheduleKind, StageReplicas, Sync, Uniform, Updates, Weights, pipelines_in_turn,
};

use super::{BufferPlan, Place, Stay, assign, peak_bytes};
use crate::allocation::Allocated;
use crate::{Allocation, Class, Entry, Issued, Next, Outstanding, Program, Run, lower};

fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn uniform() -> Uniform {
    Uniform { global_batch: 16, microbatches: 8, clip_norm: Some(1.0), ..Uniform::default() }
}

/// Runs a row of steps and an evaluation on the arena.
struct Replay<'a> {
    plan: &'a BufferPlan,
    class: &'a Class,
    outstanding: Outstanding,
    held: HashMap<Allocation, Place>,
    /// Ends of what is in use, by start.
    used: BTreeMap<u64, u64>,
}

impl Replay<'_> {
    fn run(&mut self, run: Run) {
        let Run { entry, microbatch, .. } = run;
        let (body, row) = (entry.body, self.plan.row(&run));
        assert!(row < self.plan.rows(), "row {row} of {}", self.plan.rows());
        let class = self.class;
        for (index, instruction) in (0u32..).zip(&class.body(body).instructions) {
            let issued = Issued { body, index, microbatch };
            self.end_first(self.outstanding.ending_before(class, issued));
            for Allocated { what, from } in class.allocated_by(instruction, microbatch) {
                if let Some(place) = from.and_then(|from| self.held.remove(&from)) {
                    self.held.insert(what, place);
                    continue;
                }
                if self.held.contains_key(&what) {
                    continue;
                }
                let place = self.plan.find(body, row, index, what.tensor);
                let place = place.unwrap_or_else(|| panic!("{what:?} has no place"));
                let place = self.plan.place(place);
                assert_eq!(place.bytes, class.tensor_bytes(what.tensor, 0));
                let end = place.offset + place.bytes;
                assert!(end <= self.plan.arena_bytes);
                let before = self.used.range(..end.max(place.offset + 1)).next_back();
                if let Some((_, &taken)) = before {
                    assert!(
                        taken <= place.offset,
                        "{} lies on another",
                        class.allocation_text(what)
                    );
                }
                self.used.insert(place.offset, end);
                self.held.insert(what, place);
            }
            if !self.outstanding.start(class, issued) {
                self.free(issued);
            }
        }
    }

    fn end_first(&mut self, count: usize) {
        for _ in 0..count {
            let issued = self.outstanding.end_first().expect("there are as many");
            self.free(issued);
        }
    }

    fn free(&mut self, issued: Issued) {
        for what in self.class.freed_by(issued.instruction(self.class), issued.microbatch) {
            if let Some(place) = self.held.remove(&what) {
                self.used.remove(&place.offset);
            }
        }
    }
}

/// Plans buffers once and replays rows of each number of steps on them.
fn check_class(
    program: &Program,
    class: &Class,
    rows_of_steps: impl IntoIterator<Item = u32>,
) -> BufferPlan {
    let plan = BufferPlan::new(program, class);
    assert!(plan.arena_bytes >= plan.peak_bytes);
    rows_of_steps.into_iter().for_each(|steps| check_row(&plan, program, class, steps));
    plan
}

fn check_row(plan: &BufferPlan, program: &Program, class: &Class, steps: u32) {
    // Where the flags of guards hold, where none does, and in turn.
    let outcomes: [fn(i64) -> bool; 4] =
        [|_| true, |_| false, |step| step % 2 == 0, |step| step % 2 == 1];
    let guards = class.guards().count();
    for holds in outcomes.into_iter().take(if guards > 0 { 4 } else { 1 }) {
        let (held, used) = (HashMap::new(), BTreeMap::new());
        let outstanding = Outstanding::new(program, class);
        let mut replay = Replay { plan, class, outstanding, held, used };
        let mut cursor = program.cursor(class, steps);
        let mut now = None;
        while let Some(next) = cursor.advance() {
            match next {
                Next::Run(run) => {
                    if now.replace(run.step).is_some_and(|before| before != run.step) {
                        replay.end_first(replay.outstanding.ending_with_step(false));
                    }
                    replay.run(run);
                }
                Next::Guard(_, step) => cursor.take(holds(step)),
                Next::Choice => replay.run(cursor.choose_in_turn()),
            }
        }
        replay.end_first(replay.outstanding.ending_with_step(true));
        assert!(replay.held.is_empty(), "{:?}", replay.held);
        let entries = class.evaluation.iter().map(|&body| Entry::new(body, Some(0)));
        entries.for_each(|entry| replay.run(Run::alone(entry)));
        replay.end_first(replay.outstanding.ending_with_step(true));
        assert!(replay.held.is_empty(), "{:?}", replay.held);
    }
}

/// How much larger than the peak arenas may be, in percent. Over these plans it was up to 13.3 with
/// DualPipeV, 4.0 with other schedules whose backward passes run in halves, and 0.9 with the rest, the mean
/// 1.4, 0.7 and 0.1; and where updates are tested in the next step up to 13.2 with interleaved stages,
/// 10.5 with ZB-V and ZB-2p, and 0.7 with schedules that have neither several stages the same way nor halves.
fn allowed_percent(plan: &Plan) -> u64 {
    match plan.schedule {
        ScheduleKind::DualPipeV => 14,
        ScheduleKind::Interleaved if plan.post_validation => 14,
        ScheduleKind::ZeroBubbleV | ScheduleKind::ZeroBubbleTwoP | ScheduleKind::DualPipe
            if plan.post_validation =>
        {
            11
        }
        ScheduleKind::ZeroBubbleH1 | ScheduleKind::ZeroBubbleOneP if plan.post_validation => 8,
        ScheduleKind::ZeroBubbleH2 | ScheduleKind::VHalf if plan.post_validation => 6,
        ScheduleKind::ZeroBubbleH1
        | ScheduleKind::ZeroBubbleH2
        | ScheduleKind::ZeroBubbleOneP
        | ScheduleKind::ZeroBubbleTwoP
        | ScheduleKind::ZeroBubbleV
        | ScheduleKind::VHalf
        | ScheduleKind::VMin
        | ScheduleKind::DualPipe => 4,
        _ => 1,
    }
}

/// Plans that differ in what is alive when.
fn variants(graph: &Graph, schedule: ScheduleKind) -> Vec<Plan> {
    let sharded = |zero| Sync { zero, bucket_bytes: 20_000, ..Sync::default() };
    let variant = |pp, (dp, tp), zero, recompute| Uniform {
        pp,
        schedule,
        mesh: Mesh::of(dp, 1, tp),
        sequence_parallel: tp > 1,
        sync: sharded(zero),
        recompute,
        clip_norm: schedule.flushes().then_some(1.0),
        ..uniform()
    };
    let plan = |uniform: Uniform| uniform.plan(graph, "model", "local");
    let plain = plan(variant(2, (1, 1), 0, Recompute::None));
    let sharded = plan(variant(2, (2, 1), 1, Recompute::Full));
    let mut plans = vec![
        plan(variant(2, (2, 1), 2, Recompute::Selective)),
        plan(variant(2, (2, 1), 3, Recompute::None)),
        plan(variant(2, (1, 2), 1, Recompute::Full)),
        plan(variant(4, (1, 1), 0, Recompute::None)),
        plan(variant(2, (1, 1), 0, Recompute::Stage)),
        Plan { recompute_last: false, ..sharded.clone() },
    ];
    if schedule.flushes() {
        plans.extend([&plain, &sharded, &plans[3]].map(validated));
    }
    plans.push(plain);
    plans
}

/// `plan` with updates that are tested in the next step.
fn validated(plan: &Plan) -> Plan {
    Plan { post_validation: true, ..plan.clone() }
}

#[test]
fn what_is_there_at_the_same_time_lies_apart_and_the_arena_is_close_to_the_peak() {
    let size = "layers=14,hidden=32,seq=16,vocab=64";
    // Every variant of one model, and every third of another.
    let models = [
        (graph(&format!("gpt:{size},heads=2,dropout=0.1,tied=true")), 1),
        (graph(&format!("llama:{size},heads=4,kv_heads=2,ffn=64")), 3),
    ];
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    for schedule in kinds {
        let mut plans = 0;
        let mut exists = BTreeMap::new();
        for (graph, plan) in models.iter().flat_map(|(graph, every)| {
            let variants = variants(graph, schedule).into_iter().step_by(*every);
            variants.map(move |plan| (graph, plan))
        }) {
            let lowered = lower(graph, &plan, plan.device_count());
            // Some schedules exist for some numbers of stages only.
            let stages = plan.pipeline[0].stage.len();
            let same = *exists.entry(stages).or_insert(lowered.is_ok()) == lowered.is_ok();
            assert!(same, "{stages} stages, {:?}\n{}", lowered.err(), plan.to_toml());
            let Ok(program) = lowered else { continue };
            plans += 1;
            for class in &program.classes {
                let planned = check_class(&program, class, [program.ahead + 3]);
                let percent = allowed_percent(&plan);
                let most = planned.peak_bytes + planned.peak_bytes * percent / 100;
                let (arena, peak) = (planned.arena_bytes, planned.peak_bytes);
                assert!(arena <= most, "{arena} bytes for {peak}\n{}", plan.to_toml());
            }
        }
        assert!(plans >= 2, "{schedule:?}");
    }
}

#[test]
fn what_collectives_touch_that_are_not_waited_for_lies_apart_from_all_else() {
    let graph = graph("gpt:layers=14,hidden=32,seq=16,vocab=64,heads=2,dropout=0.1,tied=true");
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    for schedule in kinds {
        let has_thread = |plan| Plan { communication: Communication::Thread, ..plan };
        // Those of which ranks run collectives, and what lasts comes and goes.
        for plan in variants(&graph, schedule).into_iter().take(3).map(has_thread) {
            let Ok(program) = lower(&graph, &plan, plan.device_count()) else { continue };
            for class in &program.classes {
                check_class(&program, class, [1, program.ahead + 3]);
            }
        }
    }
}

#[test]
fn rows_of_any_length_find_their_places() {
    let graph = graph("gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32");
    for schedule in [ScheduleKind::PipeDream, ScheduleKind::PipeMare] {
        for microbatches in [1, 2, 3, 4, 6] {
            for pp in [2, 4] {
                let uniform = Uniform {
                    pp,
                    schedule,
                    microbatches,
                    global_batch: microbatches,
                    clip_norm: None,
                    ..uniform()
                };
                let mut plan = uniform.plan(&graph, "model", "local");
                if schedule == ScheduleKind::PipeMare {
                    plan.optimizer = Optimizer::sgd(0.9);
                    plan.weights = Weights::Newest {
                        corrections: Corrections {
                            discrepancy: Some(0.135),
                            prediction: Some(Prediction::Velocity),
                            ..Corrections::default()
                        },
                    };
                }
                let program = lower(&graph, &plan, pp).unwrap_or_else(|error| panic!("{error}"));
                for class in &program.classes {
                    check_class(&program, class, 1..2 * program.ahead + 4);
                }
            }
        }
    }
}

/// Optimizers that need sums over whole parameters while they update.
fn with_statistics() -> [Optimizer; 2] {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.95, 1e-6, 0.1);
    let (decay_exponent, clip, least_parameter_rms) = (0.8, 1.0, 1e-3);
    [
        Optimizer::Lamb { beta1, beta2, epsilon, weight_decay },
        Optimizer::Adafactor { decay_exponent, clip, least_parameter_rms, weight_decay },
    ]
}

/// A plan whose stages have replicas that take micro-batches in turn and update after every round.
fn in_rounds(graph: &Graph, replicas: &[u32], dp: u32, optimizer: Optimizer) -> Plan {
    let mesh = Mesh::of(dp, 1, 1);
    let uniform = Uniform {
        pp: replicas.len(),
        mesh,
        schedule: ScheduleKind::PipeDream,
        sync: Sync { bucket_bytes: 20_000, ..Sync::default() },
        optimizer,
        clip_norm: None,
        ..uniform()
    };
    let mut plan = uniform.plan(graph, "model", "local");
    let mut devices = 0u32..;
    let mut replica = || DeviceList(devices.by_ref().take(dp as usize).collect());
    let stages = plan.pipeline[0].stage.iter().zip(replicas);
    let stages = stages.map(|(stage, &count)| StageReplicas {
        blocks: stage.blocks,
        mesh,
        replicas: (0..count).map(|_| replica()).collect(),
    });
    let stages: Vec<StageReplicas> = stages.collect();
    plan.pipeline = pipelines_in_turn(&stages).unwrap_or_else(|error| panic!("{error}"));
    plan.updates = Updates::Round;
    plan
}

/// Bodies without micro-batches run several times in each of the steps that take turns.
#[test]
fn a_row_of_places_is_for_one_run_in_as_many_steps_as_take_turns() {
    let rows = super::Rows { microbatches: 4, steps: 3, occurrences: 2 };
    let plan = BufferPlan {
        places: vec![],
        known: FxHashMap::default(),
        rows,
        arena_bytes: 0,
        peak_bytes: 0,
    };
    assert_eq!(plan.rows(), 6);
    let row = |step, occurrence| {
        let entry = Entry { occurrence, ..Entry::new(crate::BodyId(0), None) };
        plan.row(&Run { step, ..Run::alone(entry) })
    };
    let first: Vec<u32> = (0..3).flat_map(|step| [row(step, 0), row(step, 1)]).collect();
    assert_eq!(first, [0, 1, 2, 3, 4, 5]);
    assert_eq!([row(3, 0), row(5, 1)], [first[0], first[5]]);
    let many = super::Rows { microbatches: 9, ..rows };
    assert_eq!(BufferPlan { rows: many, ..plan }.rows(), 9);
}

/// Rows that what is in flight divides, or where these have too many places all that have not.
#[test]
fn rows_that_are_planned_for_as_a_whole_are_those_that_can_be_tighter() {
    use super::longer;
    assert!(longer(16, 4, 1_000).is_empty());
    assert_eq!(longer(16, 3, 1_000), [3]);
    assert_eq!(longer(12, 9, 1_000), [3]);
    assert_eq!(longer(96, 7, 4_000), [7]);
    assert_eq!(longer(96, 7, 10_000), [2, 3]);
    assert!(longer(96, 7, 40_000).is_empty());
    assert!(longer(8, 0, 10).is_empty());
}

#[test]
fn each_of_several_updates_in_a_step_finds_its_places() {
    let graph = graph("gpt:layers=6,hidden=16,heads=2,seq=8,vocab=32");
    let [lamb, adafactor] = with_statistics();
    for replicas in [&[1, 1][..], &[2, 1], &[1, 2], &[1, 2, 1]] {
        for (dp, zero, optimizer) in [
            (1, 0, lamb),
            (1, 0, adafactor),
            (2, 1, Optimizer::default()),
            (2, 2, Optimizer::default()),
            (2, 3, Optimizer::default()),
            (2, 1, lamb),
        ] {
            let mut plan = in_rounds(&graph, replicas, dp, optimizer);
            plan.sync.zero = zero;
            let program = lower(&graph, &plan, plan.device_count());
            let program = program.unwrap_or_else(|error| panic!("{error}"));
            assert!(program.classes.iter().all(|class| class.updates() > 1));
            for class in &program.classes {
                check_class(&program, class, 1..2 * program.ahead + 4);
            }
        }
    }
}

proptest! {
    #[test]
    fn stays_that_meet_lie_apart_in_an_arena_no_smaller_than_the_peak(
        // Few moments, and so many that stays touch one block, some, or most.
        period in prop_oneof![1u64..40, 200u64..400],
        stays in prop::collection::vec((0u64..400, 1u64..100, 0u64..6), 1..60),
        border in prop_oneof![1u64..3, 1u64..20],
    ) {
        let stays: Vec<Stay> = stays
            .into_iter()
            .map(|(start, length, bytes)| Stay {
                start: start % period,
                length: length.min(period),
                bytes: 64 * bytes,
            })
            .collect();
        let borders: Vec<u64> = (0..period).step_by(border as usize).collect();
        let assignment = assign(&stays, period, &borders);
        // Moment by moment, what is there.
        let mut peak = 0;
        for now in 0..period {
            let mut there: Vec<(u64, u64)> = stays
                .iter()
                .zip(&assignment.offsets)
                .filter(|(stay, _)| (now + period - stay.start) % period < stay.length)
                .map(|(stay, &offset)| (offset, offset + stay.bytes))
                .filter(|(start, end)| start < end)
                .collect();
            there.sort_unstable();
            prop_assert!(there.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            peak = peak.max(there.iter().map(|(start, end)| end - start).sum());
        }
        prop_assert_eq!(peak_bytes(&stays, period), peak);
        prop_assert!(assignment.arena_bytes >= peak);
        let ends = stays.iter().zip(&assignment.offsets).map(|(stay, offset)| stay.bytes + offset);
        prop_assert_eq!(assignment.arena_bytes, ends.max().unwrap_or(0));
    }
}
