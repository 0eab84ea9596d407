//! What ranks send, against the steps that collectives take and the parts that messages bring.

use shardloom_collectives::{Kind, Member, plan};
use shardloom_program::{Action, Class, ClassId, Collective, Group, Instruction, Program, Rank};

use crate::every_kind::{self, Example};

/// The bytes of one element, by the name of its format.
fn element_bytes(format: &str) -> u64 {
    match format {
        "f64" => 8,
        "f32" | "u32" => 4,
        "bf16" | "f16" => 2,
        "u8" | "f8" => 1,
        _ => panic!("{format} is no format"),
    }
}

/// The ranks that take part in something beside a rank, in order, by the coordinates that they have in common.
fn members(program: &Program, id: ClassId, position: usize, group: &Group) -> Vec<Rank> {
    let class = program.class(id);
    let rank = |class: &Class, position: usize| Rank(class.first_rank.0 + position as u32);
    match group {
        Group::World => {
            let all = program.classes.iter();
            all.flat_map(|it| (0..it.devices.len()).map(|position| rank(it, position))).collect()
        }
        Group::Classes(classes) => {
            classes.iter().map(|&it| rank(program.class(it), position)).collect()
        }
        Group::Mesh(axes) => {
            let others = class.mesh.axes().filter(|axis| !axes.contains(axis));
            let others: Vec<_> = others.collect();
            let at = |position: usize, axis| class.mesh.coordinate(position, axis);
            let is_member =
                |other: &usize| others.iter().all(|&axis| at(*other, axis) == at(position, axis));
            let mut all: Vec<usize> = (0..class.devices.len()).filter(is_member).collect();
            // The last axis of the group counts fastest.
            all.sort_by_key(|&other| {
                axes.iter().map(|&axis| at(other, axis)).collect::<Vec<usize>>()
            });
            all.into_iter().map(|position| rank(class, position)).collect()
        }
    }
}

/// Bytes that a rank sends when it runs an instruction.
fn sent(program: &Program, id: ClassId, position: usize, instruction: &Instruction) -> u64 {
    let class = program.class(id);
    let format = |tensor| element_bytes(&class.tensor(tensor).format.to_string());
    match &instruction.action {
        Action::Send { route } => {
            let route = program.route(*route);
            let parts = route.messages.iter().filter(|it| it.from == position);
            let elements = parts.map(|it| it.source.extent.iter().product::<usize>() as u64);
            elements.sum::<u64>() * format(instruction.reads[0].tensor)
        }
        // It counts for who fetches, since the other takes no part.
        Action::Fetch { .. } => {
            let elements = |tensor| class.elements(tensor, position) as u64 * format(tensor);
            instruction.writes.iter().map(|write| elements(write.to.tensor)).sum()
        }
        Action::Collective { kind, group, algorithm } => {
            let read = instruction.reads[0];
            let members = members(program, id, position, group);
            let own = Rank(class.first_rank.0 + position as u32);
            let place = members.iter().position(|&it| it == own).expect("it takes part");
            let has = |position| class.view_range(read, position).len();
            let (kind, elements) = match kind {
                Collective::AllReduce(_) => (Kind::AllReduce, has(position)),
                Collective::ReduceScatter { .. } => (Kind::ReduceScatter, has(position)),
                Collective::AllToAll { .. } => (Kind::AllToAll, has(position)),
                // All have in the end what each had before.
                Collective::AllGather { .. } => {
                    let all = members.iter().map(|it| match group {
                        Group::Mesh(_) => has((it.0 - class.first_rank.0) as usize),
                        Group::Classes(_) | Group::World => has(position),
                    });
                    (Kind::AllGather, all.sum())
                }
            };
            let steps = plan(kind, *algorithm, members.len() as u32, elements);
            let steps = steps.expect("the plan's algorithms exist");
            steps.sent_elements(Member(place as u32)) as u64 * format(read.tensor)
        }
        _ => 0,
    }
}

#[test]
fn ranks_send_what_the_steps_of_their_collectives_and_the_parts_of_their_messages_say() {
    for Example { name, program, .. } in every_kind::all() {
        let mut of_all = 0;
        for (id, class) in program.classes() {
            let mut of_class = 0;
            for position in 0..class.mesh.size() {
                let mut of_step = 0;
                for run in program.cursor(class, 1).runs(true) {
                    for instruction in &class.body_of(&run.entry).instructions {
                        let expected = sent(&program, id, position, instruction);
                        let found = program.instruction_sent_bytes(id, position, instruction);
                        assert_eq!(found, expected, "{name}: {instruction:?}");
                        assert!(expected == 0 || instruction.involves_others());
                        of_step += expected;
                    }
                }
                assert_eq!(program.sent_bytes(id, position), of_step, "{name}");
                of_class += of_step;
            }
            assert_eq!(program.class_sent_bytes(id), of_class, "{name}: {}", class.place());
            of_all += of_class;
        }
        assert!(of_all > 0, "{name}");
    }
}

#[test]
fn groups_have_the_ranks_that_differ_along_their_axes_or_classes_only() {
    for Example { name, program, .. } in every_kind::all() {
        for (id, class) in program.classes() {
            for group in &class.communicators {
                if let Group::Mesh(axes) = group {
                    let in_order = class.mesh.axes().filter(|axis| axes.contains(axis));
                    assert_eq!(*axes, in_order.collect::<Vec<_>>(), "{name}");
                }
                for position in 0..class.mesh.size() {
                    let expected = members(&program, id, position, group);
                    assert_eq!(program.members(id, position, group), expected, "{name}");
                    assert_eq!(group.size(&class.mesh, program.ranks()), expected.len());
                }
            }
        }
    }
}
