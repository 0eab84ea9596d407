//! Which collectives of a class are in one queue: those over the same group, what keeps replicas equal apart from
//! values that passes wait for.

use std::collections::BTreeSet;

use shardloom_plan::{Mesh, Sync, Uniform};
use shardloom_program::{Action, Class, Group, Instruction, Program, Queue, lower};

use crate::every_kind;
use crate::verifier::programs::gpt;

fn programs() -> Vec<Program> {
    let graph = gpt(false);
    // Sequences are split over ranks that exchange keys and values, and then gradients.
    let split = (0..=3).map(|zero| {
        let uniform = Uniform {
            mesh: Mesh::of(2, 2, 1),
            global_batch: 8,
            microbatches: 2,
            sync: Sync { zero, bucket_bytes: 700, ..Sync::default() },
            ..Uniform::default()
        };
        let plan = uniform.plan(&graph, "model", "local");
        lower(&graph, &plan, plan.device_count()).expect("a program")
    });
    let others = every_kind::all().into_iter().map(|example| example.program);
    split.chain(others).collect()
}

/// Whether it is about what replicas of a bucket have in common: along axes over which only these differ.
fn keeps_replicas_equal(class: &Class, instruction: &Instruction, group: &Group) -> bool {
    let Group::Mesh(axes) = group else { return false };
    let Some(bucket) = class.tensor(instruction.reads[0].tensor).bucket else { return false };
    let bucket = class.bucket(bucket);
    let replicas: BTreeSet<_> = bucket.replicas.iter().chain(&bucket.own).collect();
    !axes.is_empty() && axes.iter().collect::<BTreeSet<_>>().is_subset(&replicas)
}

#[test]
fn collectives_share_a_queue_where_their_group_and_what_they_are_for_are_the_same() {
    let (mut together, mut apart) = (0, 0);
    for program in programs() {
        for class in &program.classes {
            let mut all = vec![];
            for (_, _, instruction) in class.instructions() {
                let Action::Collective { group, .. } = &instruction.action else { continue };
                // Others are in an order that is agreed on while running.
                let Queue::Communicator(number) = instruction.queue else { continue };
                assert_eq!(class.communicators[usize::from(number)], *group, "{instruction:?}");
                all.push((number, group, keeps_replicas_equal(class, instruction, group)));
            }
            for (one, other) in all.iter().flat_map(|one| all.iter().map(move |it| (one, it))) {
                let are_alike = (one.1, one.2) == (other.1, other.2);
                assert_eq!(one.0 == other.0, are_alike, "{one:?} and {other:?}");
                together += usize::from(are_alike);
                apart += usize::from(one.1 == other.1 && !are_alike);
            }
        }
    }
    assert!(together > 1000 && apart > 100, "{together} together, {apart} apart");
}
