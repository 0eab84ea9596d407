//! When the copies of a stage add up their gradients: at the end of the step, as soon as they are whole,
//! or where lowering puts it (the comparison of Li and Hoefler 2021, arXiv 2107.06925, section 3.2).

use crate::scenario::{cores, exchanged, gpt, uniform};
use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Precision, ScheduleKind, Uniform};
use shardloom_program::timeline::Picos;
use shardloom_program::{
    Action, Body, BodyId, BodyKind, Class, Content, Control, Entry, Group, Instruction, Program,
    lower,
};
use shardloom_sim::{Options, simulate};

/// As many machines of one card as there are devices, so that reductions take a while.
fn apart(devices: usize) -> Cluster {
    Cluster::parse(&format!("h100-80g:{devices}x1")).expect("a preset")
}

fn program(graph: &Graph, schedule: ScheduleKind, devices: usize, microbatches: usize) -> Program {
    let uniform = Uniform {
        schedule,
        // The model of cores knows no other format.
        precision: Precision::FP32,
        ..uniform(devices, 1, 1, microbatches)
    };
    let plan = uniform.plan(graph, "gpt", "cluster");
    lower(graph, &plan, devices).unwrap_or_else(|error| panic!("{error}"))
}

fn over_classes(instruction: &Instruction) -> bool {
    matches!(instruction.action, Action::Collective { group: Group::Classes(_), .. })
}

/// Takes all reductions over classes out of a class.
fn taken(class: &mut Class) -> Vec<Instruction> {
    let of = |entry: &Entry| class.body_of(entry).instructions.iter();
    let all = class.entries().flat_map(of).filter(|it| over_classes(it)).cloned().collect();
    for body in &mut class.bodies {
        body.instructions.retain(|it| !over_classes(it));
    }
    all
}

/// All reductions over classes first thing after the last pass.
fn at_the_end(mut program: Program) -> Program {
    for class in &mut program.classes {
        let all = taken(class);
        let epilogue = class.bodies.iter_mut().find(|it| it.kind == BodyKind::Epilogue);
        epilogue.expect("a step ends").instructions.splice(0..0, all);
    }
    program.assign_queues();
    program
}

/// Every reduction over classes right after the last pass that adds to its bucket.
fn at_once(mut program: Program) -> Program {
    for class in &mut program.classes {
        for reduction in taken(class) {
            let gradients = reduction.reads[0].tensor;
            let writes = |it: &Instruction| {
                let kernel = matches!(it.action, Action::Kernel { .. });
                kernel && it.writes.iter().any(|write| write.to.tensor == gradients)
            };
            let adds = |entry: &Entry| class.body_of(entry).instructions.iter().any(writes);
            let is_it = |part: &Control| matches!(part, Control::Run(entry) if adds(entry));
            let last = class.control.iter().rposition(is_it);
            let body = BodyId(class.bodies.len() as u32);
            class.bodies.push(Body {
                kind: BodyKind::Synchronisation,
                part: Default::default(),
                instructions: vec![reduction],
            });
            let entry = Control::Run(Entry::new(body, None));
            class.control.insert(last.expect("every bucket gets a gradient") + 1, entry);
        }
    }
    program.assign_queues();
    program
}

/// The step with reductions as lowered, at once, and at the end.
fn steps(graph: &Graph, program: &Program, cluster: &Cluster) -> [Picos; 3] {
    let step = |program: &Program| {
        let found = simulate(graph, cluster, program, Options::default());
        found.unwrap_or_else(|error| panic!("{error}")).step_time()
    };
    let moved = [at_once(program.clone()), at_the_end(program.clone())];
    [step(program), step(&moved[0]), step(&moved[1])]
}

#[test]
fn where_lanes_overlap_reductions_between_passes_hide_as_well_as_at_once() {
    let graph = gpt(30, false);
    for schedule in [ScheduleKind::Chimera, ScheduleKind::ChimeraDoubling] {
        for (devices, units) in [(4, 2), (4, 4), (8, 2)] {
            let program = program(&graph, schedule, devices, units * devices);
            let [lowered, at_once, at_the_end] = steps(&graph, &program, &apart(devices));
            assert_eq!(lowered, at_once, "{schedule:?} on {devices}");
            assert!(lowered < at_the_end, "{schedule:?} on {devices}: {lowered:?} {at_the_end:?}");
        }
    }
    let program = program(&graph, ScheduleKind::DualPipe, 8, 16);
    let [lowered, at_once, at_the_end] = steps(&graph, &program, &apart(8));
    assert!(at_once <= lowered && lowered < at_the_end, "{at_once:?} {lowered:?} {at_the_end:?}");
}

#[test]
fn where_they_do_not_only_the_middle_stages_are_better_put_off() {
    let graph = gpt(30, false);
    for schedule in [ScheduleKind::Chimera, ScheduleKind::ChimeraDoubling] {
        for (devices, units) in [(4, 2), (4, 4), (8, 2)] {
            let program = program(&graph, schedule, devices, units * devices);
            let [lowered, at_once, at_the_end] = steps(&graph, &program, &cores(devices));
            assert!(lowered < at_the_end, "{schedule:?} on {devices}: {lowered:?} {at_the_end:?}");
            assert!(lowered < at_once, "{schedule:?} on {devices}: {lowered:?} {at_once:?}");
        }
    }
    let program = program(&graph, ScheduleKind::DualPipe, 4, 8);
    let [lowered, at_once, at_the_end] = steps(&graph, &program, &cores(4));
    assert!(lowered == at_once && lowered < at_the_end, "{lowered:?} {at_once:?} {at_the_end:?}");
}

#[test]
fn when_gradients_are_added_up_changes_no_traffic() {
    let graph = gpt(14, false);
    let lowered = program(&graph, ScheduleKind::Chimera, 4, 8);
    let moved = at_the_end(lowered.clone());
    for (id, _) in lowered.classes() {
        assert_eq!(lowered.sent_bytes(id, 0), moved.sent_bytes(id, 0));
    }
    // Each of a device's two stages is added up with one other copy.
    let single = program(&graph, ScheduleKind::OneForwardOneBackward, 4, 8);
    let elements = |it: &Class| it.buckets.iter().map(|it| it.elements).sum::<usize>();
    for (index, class) in lowered.classes.iter().enumerate() {
        let stages = [index, 3 - index].map(|stage| elements(&single.classes[stage]));
        assert_eq!(elements(class), stages[0] + stages[1]);
        let reduced = class.entries().flat_map(|it| &class.body_of(it).instructions);
        let reduced: usize = reduced
            .map(|it| match exchanged(class, it) {
                Some(Content::Gradient) => class.view_range(it.reads[0], 0).len(),
                _ => 0,
            })
            .sum();
        assert_eq!(reduced, elements(class));
    }
}
