//! The messages of a route lie in their tensors and bring each receiver all of its own.

use super::row::Step;
use super::violation::Violation;
use crate::{Action, Carried, Class, Message, Placement, Program, RouteId};

/// Checks the messages of every route for themselves.
pub(super) fn check(program: &Program, found: &mut Vec<Violation>) {
    for (index, route) in (0u32..).zip(&program.routes) {
        let mut wrong = |fault: String| found.push(Violation::Route { route: index, fault });
        let classes = program.classes.len() as u32;
        if route.from.0 >= classes || route.to.0 >= classes {
            wrong("it is between classes that are not there".into());
            continue;
        }
        let [senders, receivers] = [route.from, route.to].map(|it| program.class(it).mesh.size());
        for message in route.messages.iter() {
            let Message { from, to, source, target } = message;
            if *from >= senders || *to >= receivers {
                wrong(format!("a message goes from position {from} to {to}"));
            } else if source.extent != target.extent {
                wrong(format!("the message from position {from} to {to} changes its extents"));
            }
        }
        let positions = || 0..receivers;
        for to in positions().filter(|&it| route.received_by(it).next().is_none()) {
            wrong(format!("position {to} receives nothing"));
        }
    }
}

/// Checks that a route fits the tensor that an instruction sends or receives.
pub(super) fn check_end(program: &Program, step: &Step<'_>, found: &mut Vec<Violation>) {
    let (route, operand, sends) = match step.instruction.action {
        Action::Send { route } => (route, step.instruction.reads[0], true),
        Action::Receive { route } => (route, step.instruction.writes[0].to, false),
        _ => return,
    };
    let RouteId(number) = route;
    let route = program.route(route);
    let class = step.class;
    if (if sends { route.from } else { route.to }) != step.id {
        let fault = format!("route {number} does not begin or end at this class");
        found.push(Violation::Operands { at: step.site(), fault });
        return;
    }
    let tensor = class.tensor(operand.tensor);
    if tensor.format != route.format {
        let (read, written) = (format!("route {number}"), tensor.name.clone());
        found.push(Violation::Formats { at: step.site(), read, written });
    }
    let shape = tensor.extents();
    for position in 0..class.mesh.size() {
        let parts: Vec<&Placement> = match sends {
            true => route.sent_by(position).map(|it| &it.source).collect(),
            false => route.received_by(position).map(|it| &it.target).collect(),
        };
        let fault = match parts.iter().all(|part| within(part, shape)) {
            false => "a message does not lie within",
            // Of a worker's bucket each server sends ranges, which are looked at together.
            true if matches!(route.carried, Carried::Weights(_) | Carried::Sums(_)) => continue,
            true if route.moves_rows() => continue,
            true if !sends && !tile(&parts, class, step) => "messages do not make up the whole of",
            true => continue,
        };
        let fault = format!("{fault} {} at position {position}", tensor.name);
        found.push(Violation::Route { route: number, fault });
        return;
    }
}

/// Whether a part lies in a tensor of this shape.
fn within(part: &Placement, shape: &[usize]) -> bool {
    part.start.len() == shape.len()
        && part.extent.len() == shape.len()
        && (0..shape.len()).all(|axis| part.range(axis).end <= shape[axis])
}

/// Whether parts are disjoint and as many elements as the tensor that an instruction receives.
fn tile(parts: &[&Placement], class: &Class, step: &Step<'_>) -> bool {
    let elements: usize = parts.iter().map(|part| part.elements()).sum();
    let written = step.instruction.writes[0].to.tensor;
    let whole: usize = class.tensor(written).extents().iter().product();
    let disjoint = |index: usize| {
        parts[..index].iter().all(|other| parts[index].intersection(other).is_none())
    };
    elements == whole && (0..parts.len()).all(disjoint)
}
