//! An operand that is another tensor, or a tensor that is another than it should be, is rejected wherever it stands.

use std::collections::BTreeSet;

use shardloom_program::verify::verify;
use shardloom_program::{
    Action, Class, Content, Extent, Instruction, Program, Shape, Tensor, TensorId, View,
};

use super::programs::{mixed, pairs, predicted, routed, second_copy, served, stashed, validated};
use crate::every_kind;

fn several() -> Vec<Program> {
    let others = [
        mixed(1),
        pairs(),
        predicted(),
        routed(1),
        second_copy(),
        served(),
        stashed(),
        validated(),
    ];
    let examples = every_kind::all().into_iter().map(|example| example.program);
    others.into_iter().chain(examples).collect()
}

/// What an instruction does, without what it does it with.
fn kind(action: &Action) -> String {
    let text = format!("{action:?}");
    let end = text.find(|it: char| !it.is_alphanumeric()).unwrap_or(text.len());
    match action {
        Action::Kernel { pass, .. } => format!("{} {pass:?}", &text[..end]),
        Action::Collective { kind, .. } => format!("{} {kind:?}", &text[..end]),
        Action::Compress { how, round } => format!("{} {how:?} {round}", &text[..end]),
        _ => text[..end].to_owned(),
    }
}

/// Tensors that differ from one: in what they hold, in how much of it, and in its format.
fn unlike(class: &Class, tensor: TensorId) -> Vec<TensorId> {
    let own = class.tensor(tensor);
    let holds = |id: TensorId| class.tensor(id).content == own.content;
    let is_as_large = |id: TensorId| class.elements(id, 0) == class.elements(tensor, 0);
    let all = || class.tensors().map(|(id, _)| id);
    let mut others = vec![all().find(|&it| !holds(it))];
    others.push(all().find(|&it| !holds(it) && is_as_large(it)));
    others.push(all().find(|&it| holds(it) && !is_as_large(it)));
    others.push(all().find(|&it| holds(it) && class.tensor(it).format != own.format));
    let others: BTreeSet<TensorId> = others.into_iter().flatten().collect();
    others.into_iter().collect()
}

fn operand(instruction: &mut Instruction, number: usize) -> &mut View {
    let reads = instruction.reads.len();
    match number < reads {
        true => &mut instruction.reads[number],
        false => &mut instruction.writes[number - reads].to,
    }
}

#[test]
fn an_operand_that_is_a_tensor_of_another_kind_is_rejected_in_every_place() {
    let mut known = BTreeSet::new();
    let mut count = 0;
    let mut passed = vec![];
    for program in several() {
        for (index, class) in program.classes.iter().enumerate() {
            for (body, spec) in class.bodies.iter().enumerate() {
                for (at, instruction) in spec.instructions.iter().enumerate() {
                    for (number, view) in instruction.operands().enumerate() {
                        let content = class.tensor(view.tensor).content;
                        if !known.insert((kind(&instruction.action), number, content)) {
                            continue;
                        }
                        for other in unlike(class, view.tensor) {
                            let mut mutated = program.clone();
                            let bodies = &mut mutated.classes[index].bodies;
                            let mutant = &mut bodies[body].instructions[at];
                            *operand(mutant, number) = View::whole(other);
                            mutated.assign_queues();
                            if verify(&mutated).is_ok() {
                                let name = &class.tensor(other).name;
                                passed.push(format!("{name} as {number} of {instruction:?}"));
                            }
                            count += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(passed.is_empty(), "{} of {count}: {passed:#?}", passed.len());
    assert!(count > 500, "{count}");
}

/// Whether buckets, tables or what ranks tell each other say how large it is: not of values, of which a program has no
/// graph to say it, nor of what a way of keeping replicas equal has room for as it likes.
fn has_one_size(tensor: &Tensor) -> bool {
    !matches!(
        tensor.content,
        Content::Activation
            | Content::Compressed
            | Content::OfRank(_)
            | Content::Negotiation
            | Content::Lookups
    )
}

/// The tensor with one more element, if its size is the same everywhere.
fn longer(tensor: &Tensor) -> Option<Tensor> {
    let mut longer = tensor.clone();
    match &mut longer.shape {
        Shape::Local(shape) => *shape.last_mut()? += 1,
        Shape::Flat(Extent::Exactly(elements)) => *elements += 1,
        _ => return None,
    }
    Some(longer)
}

#[test]
fn a_tensor_that_is_longer_than_what_it_holds_is_rejected_wherever_it_is_used() {
    let mut known = BTreeSet::new();
    let mut count = 0;
    let mut passed = vec![];
    for program in several() {
        for (index, class) in program.classes.iter().enumerate() {
            for (id, tensor) in class.tensors() {
                let uses = class
                    .instructions()
                    .filter(|(_, _, it)| it.operands().any(|view| view.tensor == id));
                let uses: BTreeSet<String> = uses.map(|(_, _, it)| kind(&it.action)).collect();
                let Some(mutant) = longer(tensor).filter(|_| has_one_size(tensor)) else {
                    continue;
                };
                if uses.is_empty() || !known.insert((tensor.content, tensor.format, uses)) {
                    continue;
                }
                let mut mutated = program.clone();
                let said = format!("{mutant:?} in {}", class.place());
                mutated.classes[index].tensors[id.0 as usize] = mutant;
                if verify(&mutated).is_ok() {
                    passed.push(said);
                }
                count += 1;
            }
        }
    }
    assert!(passed.is_empty(), "{} of {count}: {passed:#?}", passed.len());
    assert!(count > 40, "{count}");
}
