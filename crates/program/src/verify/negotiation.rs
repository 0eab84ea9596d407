//! Requests, whose order ranks agree on while running, are what they can be: whatever order that is, ranks come
//! through, and nobody touches what a request is about before it has ended.
//!
//! *Nothing is touched too early*: [races](super::races) takes a request to follow its points only, and no other
//! request. What must come after it has a point at it.
//!
//! *Ranks come through.* [`run_blocking`](super::run_blocking) has ranks wait at every request until all have come
//! to it, in the order of the program. If that ends, any order does. Take the order in which it carries out what
//! ranks do, and suppose that ranks which wait for requests only where points say so are stuck. Of what they are
//! stuck at take what comes first in that order. It is no message and no collective that is not negotiated: all
//! that these need comes before and is done. So it is an instruction that waits for a request. All members made
//! that request before it in that order, and have come past it now, or one of them would be stuck earlier. Each
//! member then has a request that was not carried out, that one at least, so that all take part in the next
//! cycle, as they do in every one (crates/fabric/README.md); and a request that all have made is in the next
//! answer.

use shardloom_plan::Communication;

use super::row::Step;
use super::violation::Violation;
use crate::{Action, Content, Format, Program, Queue, View};

/// Checks an instruction's part in negotiation.
pub(super) fn check(program: &Program, step: &Step<'_>, found: &mut Vec<Violation>) {
    if let Some(fault) = fault(program, step) {
        found.push(Violation::Operands { at: step.site(), fault: fault.to_owned() });
    }
}

fn fault(program: &Program, step: &Step<'_>) -> Option<&'static str> {
    let (class, instruction) = (step.class, step.instruction);
    let is_of_negotiation = |view: &View| class.tensor(view.tensor).content == Content::Negotiation;
    let Queue::Negotiated(number) = instruction.queue else {
        let touches = instruction.operands().any(|view| is_of_negotiation(&view));
        let frees = instruction.frees.iter().any(|&it| is_of_negotiation(&View::whole(it)));
        return (touches || frees).then_some("only requests touch what negotiation needs");
    };
    if program.negotiation.is_none() || program.communication != Communication::Thread {
        return Some("nobody negotiates in this program");
    }
    let (Action::Collective { .. }, true) = (&instruction.action, instruction.is_reduction())
    else {
        return Some("a request is a sum of what it reads in place");
    };
    let [_, told, side_by_side @ ..] = &instruction.writes[..] else {
        return Some("a request has no room for what members tell each other");
    };
    let requests = class.requests(number);
    let others = class.instructions().filter(|(_, _, it)| it.queue != instruction.queue);
    let is_elsewhere = |tensor| {
        let mut others = others.clone();
        others.any(|(_, _, it)| it.operands().any(|view| view.tensor == tensor))
    };
    let room = class.tensor(told.to.tensor);
    let all_here = requests.iter().all(|&(body, index)| {
        let writes = &class.body(body).instructions[index].writes;
        writes.get(1).is_some_and(|it| it.to == told.to)
    });
    if room.format != Format::U32
        || class.view_range(told.to, 0).len() < requests.len()
        || !is_of_negotiation(&told.to)
        || !all_here
        || is_elsewhere(told.to.tensor)
    {
        return Some(
            "members of a group tell each other of their requests in one place of its own",
        );
    }
    let format = class.tensor(instruction.reads[0].tensor).format;
    let fits = match side_by_side {
        [] => true,
        [fused] => {
            let tensor = class.tensor(fused.to.tensor);
            is_of_negotiation(&fused.to)
                && tensor.format == format
                && !is_elsewhere(fused.to.tensor)
        }
        _ => false,
    };
    (!fits).then_some("gradients side by side are in a place of their group's and their format's")
}
