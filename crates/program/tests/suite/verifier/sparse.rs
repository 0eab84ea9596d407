//! Programs whose tables have gradients of rows are sound, and rejected where one instruction of it is left out, is
//! done with other rows or between others.

use shardloom_collectives::Algorithm;
use shardloom_graph::Reduction;
use shardloom_plan::{Axis, Mesh, Optimizer, Plan, ScheduleKind, Sync, Uniform};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, Body, Collective, Content, Group, Instruction, Keep, Program, Tensor, TensorId, View,
    Window, lower,
};

use super::programs::gpt;

fn uniform(schedule: ScheduleKind, mesh: Mesh) -> Uniform {
    let sync = Sync { sparse: true, ..Sync::default() };
    Uniform {
        schedule,
        mesh,
        sync,
        global_batch: 8,
        microbatches: 2,
        clip_norm: Some(1.0),
        ..Uniform::default()
    }
}

fn lowered(plan: &Plan) -> Program {
    lower(&gpt(false), plan, plan.device_count()).expect("a program")
}

/// One stage, two replicas, a table that is split.
fn program() -> Program {
    let plan = uniform(ScheduleKind::OneForwardOneBackward, Mesh::of(2, 1, 2));
    lowered(&plan.plan(&gpt(false), "model", "local"))
}

/// Two pipelines that both hold it, each with two replicas.
fn pipelines() -> Program {
    let uniform = Uniform { pp: 2, ..uniform(ScheduleKind::Chimera, Mesh::of(2, 1, 1)) };
    lowered(&uniform.plan(&gpt(false), "model", "local"))
}

/// Whether an instruction has to do with rows.
fn is_of_rows(program: &Program, instruction: &Instruction) -> bool {
    let class = &program.classes[0];
    let is_row = |view: View| {
        let tensor = class.tensor(view.tensor);
        let is_values = tensor.content == Content::Gradient && tensor.local_shape().len() == 2;
        tensor.content == Content::Rows || is_values
    };
    instruction.operands().any(is_row)
}

/// Where the instructions of the first class are that are, by body and number.
fn places(program: &Program, is_it: impl Fn(&Instruction) -> bool) -> Vec<(usize, usize)> {
    let of_body = |(body, spec): (usize, &Body)| {
        let all = spec.instructions.iter().enumerate();
        let those = all.filter(|(_, it)| is_of_rows(program, it) && is_it(it));
        those.map(|(index, _)| (body, index)).collect::<Vec<_>>()
    };
    program.classes[0].bodies.iter().enumerate().flat_map(of_body).collect()
}

fn changed(
    program: &Program,
    (body, index): (usize, usize),
    change: impl FnOnce(&mut Vec<Instruction>, usize),
) -> Result<(), Vec<Violation>> {
    let mut program = program.clone();
    change(&mut program.classes[0].bodies[body].instructions, index);
    program.assign_queues();
    verify(&program)
}

#[test]
fn gradients_of_rows_are_sound_in_every_schedule_and_layout() {
    let graph = gpt(false);
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    for schedule in kinds {
        for mesh in [Mesh::SINGLE, Mesh::of(2, 1, 1), Mesh::of(2, 1, 2), Mesh::of(1, 2, 1)] {
            for optimizer in [Optimizer::sgd(0.0), Optimizer::default()] {
                let clip_norm = schedule.flushes().then_some(1.0);
                let uniform = Uniform {
                    pp: 2,
                    microbatches: 4,
                    optimizer,
                    clip_norm,
                    ..uniform(schedule, mesh)
                };
                let plan = uniform.plan(&graph, "model", "local");
                let later = Plan { post_validation: schedule.flushes(), ..plan.clone() };
                for plan in [plan, later] {
                    let program = lowered(&plan);
                    assert_eq!(verify(&program), Ok(()), "{schedule:?} x {mesh}");
                    let held = program.classes.iter().flat_map(|class| {
                        let tables =
                            class.buckets.iter().filter_map(|it| it.held.replicated.rows());
                        tables.map(|_| ()).collect::<Vec<_>>()
                    });
                    assert!(held.count() > 0, "{schedule:?} x {mesh}");
                }
            }
        }
    }
}

#[test]
fn what_is_left_out_or_done_twice_is_found() {
    for program in [program(), pipelines()] {
        // Sums of equal rows, and what gathers both.
        let is_it = |it: &Instruction| {
            matches!(it.action, Action::SumRows | Action::Collective { .. } | Action::Optimizer)
        };
        let places = places(&program, is_it);
        assert!(places.len() >= 5, "{} instructions", places.len());
        for place in places {
            let instruction = &program.classes[0].bodies[place.0].instructions[place.1];
            let without = changed(&program, place, |all, at| {
                all.remove(at);
            });
            assert!(without.is_err(), "without {:?}", instruction.action);
            let twice = changed(&program, place, |all, at| all.insert(at, all[at].clone()));
            assert!(twice.is_err(), "twice {:?}", instruction.action);
        }
    }
}

#[test]
fn rows_that_are_gathered_between_others_or_summed_element_by_element_are_found() {
    let program = program();
    let is_collective = |it: &Instruction| matches!(it.action, Action::Collective { .. });
    let places = places(&program, is_collective);
    assert_eq!(places.len(), 2, "rows and values, after the last pass");
    for place in places {
        let other = changed(&program, place, |all, at| {
            if let Action::Collective { group, .. } = &mut all[at].action {
                *group = Group::Mesh(vec![Axis::TP]);
            }
        });
        assert!(other.is_err());
        let sum = changed(&program, place, |all, at| {
            let read = all[at].reads[0];
            all[at].writes[0].to = read;
            all[at].action = Action::Collective {
                kind: Collective::AllReduce(Reduction::Sum),
                group: Group::Mesh(vec![Axis::DP]),
                algorithm: Algorithm::Ring,
            };
        });
        assert!(sum.is_err());
    }
}

#[test]
fn values_with_other_rows_are_found() {
    let program = program();
    let class = &program.classes[0];
    let rows: Vec<TensorId> =
        class.tensors().filter(|(_, it)| it.content == Content::Rows).map(|(id, _)| id).collect();
    assert_eq!(rows.len(), 2, "a rank's own, and those of both replicas");
    for what in [Action::Optimizer, Action::Norm, Action::SumRows] {
        let places = places(&program, |it| it.action == what);
        assert!(!places.is_empty(), "{what:?}");
        for place in places {
            let others = changed(&program, place, |all, at| {
                for read in &mut all[at].reads {
                    if let Some(other) = rows.iter().position(|&it| it == read.tensor) {
                        read.tensor = rows[1 - other];
                    }
                }
            });
            assert!(others.is_err(), "{what:?} with other rows");
            if what != Action::SumRows {
                let none = changed(&program, place, |all, at| {
                    all[at].reads.retain(|read| !rows.contains(&read.tensor));
                });
                assert!(none.is_err(), "{what:?} without rows");
            }
        }
    }
}

/// Equal rows are summed where they lie: what it writes besides is the order alone.
#[test]
fn equal_rows_that_are_summed_to_another_place_are_found() {
    let program = program();
    let class = &program.classes[0];
    for place in places(&program, |it| it.action == Action::SumRows) {
        for number in 0..2 {
            let elsewhere = changed(&program, place, |all, at| {
                let own = all[at].writes[number].to.tensor;
                let like = |it: &TensorId| {
                    let [one, other] = [own, *it].map(|id| class.tensor(id));
                    own != *it && (one.content, one.bucket) == (other.content, other.bucket)
                };
                let other = class.tensors().map(|(id, _)| id).find(like).expect("two of each kind");
                all[at].writes[number].to = View::whole(other);
            });
            assert!(elsewhere.is_err(), "result {number}");
        }
    }
}

/// A window of rows needs one of values, and the other way round: neither is whole then.
#[test]
fn a_part_of_the_rows_or_of_the_values_is_found() {
    let program = program();
    let class = &program.classes[0];
    for what in [Action::Optimizer, Action::Norm, Action::SumRows] {
        for place in places(&program, |it| it.action == what) {
            for content in [Content::Rows, Content::Gradient] {
                let part = changed(&program, place, |all, at| {
                    let is_it = |read: &&mut View| class.tensor(read.tensor).content == content;
                    let read = all[at].reads.iter_mut().find(is_it).expect("it reads both");
                    read.window = Window::Next { elements: 1 };
                });
                assert!(part.is_err(), "{what:?} with a part of {content:?}");
            }
        }
    }
}

#[test]
fn more_rows_than_there_is_room_for_are_found() {
    let program = program();
    let is_kernel = |it: &Instruction| matches!(it.action, Action::Kernel { .. });
    for place in places(&program, is_kernel) {
        for times in [2, 5] {
            let more = changed(&program, place, |all, at| {
                for write in &mut all[at].writes {
                    if let Window::Next { elements } = &mut write.to.window {
                        *elements *= times;
                    }
                }
            });
            assert!(more.is_err(), "{times} times");
        }
        let fewer_values = changed(&program, place, |all, at| {
            if let Window::Next { elements } = &mut all[at].writes[1].to.window {
                *elements /= 2;
            }
        });
        assert!(fewer_values.is_err());
    }
}

/// What single ranks and replicas have of them is gathered into that and gone.
#[test]
fn of_the_rows_of_a_table_those_of_all_ranks_last_and_no_others() {
    for program in [program(), pipelines()] {
        for class in &program.classes {
            let of_rows = class.tensors().filter(|(_, it)| it.content == Content::Rows);
            let of_rows: Vec<(TensorId, &Tensor)> = of_rows.collect();
            let lasting = of_rows.iter().filter(|(_, it)| it.keep != Keep::Transient);
            let lasting: Vec<usize> = lasting.map(|(id, _)| class.elements(*id, 0)).collect();
            let most = of_rows.iter().map(|(id, _)| class.elements(*id, 0)).max();
            assert!(of_rows.len() > 1);
            assert_eq!(lasting, most.into_iter().collect::<Vec<usize>>(), "{}", class.place());
            // Two tensors for each: rows, and their values.
            let values = class.lasting().filter(|(_, it)| it.local_shape().len() == 2);
            assert_eq!(values.count(), 1, "{}", class.place());
        }
    }
}
