//! What ranks with a communication thread have started and not waited for.

use std::collections::BTreeSet;

use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Communication, Mesh, Plan, ScheduleKind, Sync, Uniform};
use shardloom_program::verify::verify;
use shardloom_program::{
    Action, Class, Content, Copies, Issued, Keep, MemoryTracker, Outstanding, Program, TensorId,
    lower,
};

fn graph() -> Graph {
    let spec = "gpt:layers=14,hidden=16,heads=2,seq=8,vocab=32,dropout=0.1,tied=true";
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn uniform(schedule: ScheduleKind, pp: usize, (dp, tp): (u32, u32), zero: u8) -> Uniform {
    Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        sequence_parallel: tp > 1,
        global_batch: 16,
        microbatches: 8,
        schedule,
        sync: Sync { zero, bucket_bytes: 4_000, ..Sync::default() },
        clip_norm: schedule.flushes().then_some(1.0),
        ..Uniform::default()
    }
}

fn lowered(uniform: &Uniform, communication: Communication) -> Option<Program> {
    let graph = graph();
    let plan = uniform.plan(&graph, "model", "local");
    let plan = Plan { communication, ..plan };
    lower(&graph, &plan, plan.device_count()).ok()
}

/// Programs of every schedule whose ranks have a communication thread.
fn programs() -> Vec<Program> {
    let mut programs = vec![];
    for schedule in ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table) {
        let mut of_kind = 0;
        for (pp, mesh, zero) in [(2, (2, 1), 0), (2, (2, 2), 1), (2, (2, 1), 2), (4, (2, 1), 3)] {
            let program = lowered(&uniform(schedule, pp, mesh, zero), Communication::Thread);
            of_kind += usize::from(program.is_some());
            programs.extend(program);
        }
        assert!(of_kind > 0, "{schedule:?}");
    }
    programs
}

/// What is outstanding before each instruction of a row of steps, when the rank has waited for what it must.
fn follow(program: &Program, class: &Class, steps: u32, mut look: impl FnMut(Issued, &[Issued])) {
    let mut outstanding = Outstanding::new(program, class);
    let mut started: Vec<Issued> = vec![];
    let mut now = None;
    for entry in program.cursor(class, steps).runs(true) {
        if now.replace(entry.step).is_some_and(|before| before != entry.step) {
            for _ in 0..outstanding.ending_with_step(false) {
                outstanding.end_first();
                started.remove(0);
            }
        }
        for index in 0..class.body_of(&entry.entry).instructions.len() as u32 {
            let run = Issued { body: entry.entry.body, index, microbatch: entry.microbatch };
            for _ in 0..outstanding.ending_before(class, run) {
                assert_eq!(outstanding.end_first(), Some(started.remove(0)));
            }
            look(run, &started);
            if outstanding.start(class, run) {
                started.push(run);
            }
            assert_eq!(outstanding.len(), started.len());
        }
    }
}

/// The copies of tensors that an instruction reads, and those that it changes or frees.
fn touched(class: &Class, run: Issued) -> [BTreeSet<(TensorId, Option<u32>)>; 2] {
    let instruction = run.instruction(class);
    let copy = |tensor: TensorId| match class.tensor(tensor).copies {
        Copies::PerMicrobatch => (tensor, run.microbatch),
        Copies::One | Copies::Versions(_) => (tensor, None),
    };
    let reads = instruction.reads.iter().map(|read| copy(read.tensor)).collect();
    let written = instruction.writes.iter().map(|write| write.to.tensor);
    let changed = written.chain(instruction.frees.iter().copied()).map(copy).collect();
    [reads, changed]
}

#[test]
fn nothing_is_touched_that_a_collective_still_works_on() {
    let (mut beside, mut all) = (0, 0);
    for program in programs() {
        assert_eq!(verify(&program), Ok(()));
        for class in &program.classes {
            follow(&program, class, program.ahead + 2, |run, started| {
                let [reads, changes] = touched(class, run);
                for &other in started {
                    let [read, changed] = touched(class, other);
                    let is_apart = changes.is_disjoint(&read)
                        && changes.is_disjoint(&changed)
                        && reads.is_disjoint(&changed);
                    assert!(is_apart, "{run:?} beside {other:?} of {}", class.place());
                }
                let computes = matches!(run.instruction(class).action, Action::Kernel { .. });
                all += usize::from(computes);
                beside += usize::from(computes && !started.is_empty());
            });
        }
    }
    assert!(beside * 10 > all, "of {all} operators only {beside} run beside collectives");
}

#[test]
fn without_a_thread_nothing_is_outstanding() {
    for (pp, mesh, zero) in [(2, (2, 1), 0), (2, (2, 2), 3)] {
        let uniform = uniform(ScheduleKind::OneForwardOneBackward, pp, mesh, zero);
        let program = lowered(&uniform, Communication::InLine).expect("it exists");
        for class in &program.classes {
            follow(&program, class, 2, |_, started| assert_eq!(started, []));
        }
    }
}

/// The most whole gradients that a rank holds at once.
fn most_whole_gradients(program: &Program, class: &Class) -> usize {
    let is_whole = |&tensor: &TensorId| {
        let tensor = class.tensor(tensor);
        tensor.content == Content::Gradient && tensor.keep == Keep::Transient
    };
    let mut most = 0;
    let mut begun: BTreeSet<TensorId> = BTreeSet::new();
    follow(program, class, program.ahead + 2, |run, started| {
        let frees = |run: &Issued| run.instruction(class).frees.clone();
        let reduced: BTreeSet<TensorId> =
            started.iter().flat_map(frees).filter(|it| is_whole(it)).collect();
        let instruction = run.instruction(class);
        begun.extend(instruction.writes.iter().map(|it| it.to.tensor).filter(|it| is_whole(it)));
        most = most.max(begun.union(&reduced).count());
        for freed in &instruction.frees {
            begun.remove(freed);
        }
    });
    most
}

#[test]
fn assigning_queues_once_more_changes_nothing() {
    for communication in [Communication::InLine, Communication::Thread] {
        for zero in 0..=3 {
            let uniform = uniform(ScheduleKind::OneForwardOneBackward, 2, (2, 1), zero);
            let program = lowered(&uniform, communication).expect("it exists");
            let mut again = program.clone();
            again.assign_queues();
            assert_eq!(again, program, "{communication:?}, ZeRO-{zero}");
        }
    }
}

#[test]
fn whole_gradients_of_at_most_two_buckets_are_there_at_once() {
    for zero in [2, 3] {
        // A parameter that the first and the last block hold is not reduced before the first has added to it.
        let uniform = uniform(ScheduleKind::OneForwardOneBackward, 2, (2, 1), zero);
        let mut program = lowered(&uniform, Communication::Thread).expect("it exists");
        for class in &program.classes {
            assert!(class.buckets.len() > 3);
            assert_eq!(most_whole_gradients(&program, class), 2, "{}", class.place());
        }
        // By what instructions touch alone, nobody would wait before the update.
        program.communication = Communication::InLine;
        program.assign_queues();
        program.communication = Communication::Thread;
        for class in &program.classes {
            assert!(most_whole_gradients(&program, class) > 3, "{}", class.place());
        }
    }
}

#[test]
fn what_a_collective_frees_is_held_until_it_is_waited_for_and_no_longer() {
    for program in programs() {
        for class in &program.classes {
            let mut tracker = MemoryTracker::new(class, 0);
            // What was under way at the instruction before, and that instruction.
            let mut before: Vec<Issued> = vec![];
            let steps = 2 * program.ahead + 2;
            follow(&program, class, steps, |run, started| {
                let ended = before.len() - started.len();
                let last = before.last().copied();
                let goes_on =
                    |it: &Issued| matches!(it.instruction(class).action, Action::Collective { .. });
                if let Some(last) = last.filter(|it| !goes_on(it)) {
                    before.pop();
                    before.drain(..ended - 1).for_each(|it| {
                        tracker.end(it.instruction(class), it.microbatch);
                    });
                    tracker.end(last.instruction(class), last.microbatch);
                } else {
                    before.drain(..ended).for_each(|it| {
                        tracker.end(it.instruction(class), it.microbatch);
                    });
                }
                assert_eq!(before, started);
                tracker.begin(run.instruction(class), run.microbatch);
                before.push(run);
            });
            let found = class.memory_use(&program, 0).peak_bytes;
            assert_eq!(found, tracker.peak_bytes(), "{}", class.place());
        }
    }
}
