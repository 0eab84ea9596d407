//! Two passes of one turn at once: while one waits for other ranks, the other computes (DeepSeek-V3,
//! arXiv 2412.19437, section 3.2.1 and figure 4).
//!
//! Each pass is cut behind its collectives, and the pieces alternate. A piece is a body like any other,
//! with its pass's kind and stage: what runs, counts or draws streams knows nothing of overlapping.

use std::collections::BTreeSet;

use super::buckets::Parameters;
use crate::class::{Body, BucketId};
use crate::{Action, Instruction, Operand, ParamId};

/// Which of a turn's passes a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    First,
    Second,
}

/// The pieces of two passes in the order in which they run; none if they are better run one after the
/// other: where neither has a collective to hide, or one gathers or reduces weights that the other
/// uses too (tied weights at both ends of a model), which must be before or after all of the other.
pub(super) fn interleaved(
    passes: [&Body; 2],
    parameters: &Parameters,
) -> Option<Vec<(Side, Body)>> {
    let [first, second] = passes.map(|body| Buckets::of(&body.instructions, parameters));
    if !first.synchronised.is_disjoint(&second.used)
        || !second.synchronised.is_disjoint(&first.used)
    {
        return None;
    }
    let pieces = passes.map(|body| cut(&body.instructions));
    let [of_first, of_second] = [pieces[0].len(), pieces[1].len()];
    if of_first + of_second == 2 {
        return None;
    }
    let mut runs: Vec<(usize, Side, &[Instruction])> = vec![];
    // The middles of pieces, as if each pass took the whole turn, in a unit that both divide.
    for ((side, pieces), unit) in
        [Side::First, Side::Second].into_iter().zip(pieces).zip([of_second, of_first])
    {
        let middle = |index: usize| (2 * index + 1) * unit;
        runs.extend(pieces.into_iter().enumerate().map(|(at, piece)| (middle(at), side, piece)));
    }
    runs.sort_by_key(|&(middle, side, _)| (middle, side == Side::Second));
    let piece = |(_, side, instructions): (usize, Side, &[Instruction])| {
        let body = passes[usize::from(side == Side::Second)];
        (side, Body { kind: body.kind, part: body.part, instructions: instructions.to_vec() })
    };
    Some(runs.into_iter().map(piece).collect())
}

/// The stretches of a pass, each but the last up to collectives that the next waits for.
fn cut(instructions: &[Instruction]) -> Vec<&[Instruction]> {
    let mut pieces = vec![];
    let mut begin = 0;
    for (index, pair) in instructions.windows(2).enumerate() {
        if exchanges(&pair[0]) && !exchanges(&pair[1]) {
            pieces.push(&instructions[begin..=index]);
            begin = index + 1;
        }
    }
    pieces.push(&instructions[begin..]);
    pieces
}

/// Whether it is a collective whose result the pass goes on with.
fn exchanges(instruction: &Instruction) -> bool {
    matches!(instruction.action, Action::Redistribute { .. }) && instruction.involves_others()
}

/// A bucket's weights, or its gradients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Weights(BucketId),
    Gradients(BucketId),
}

/// What a pass does with buckets.
#[derive(Default)]
struct Buckets {
    /// What it gathers, drops or reduces.
    synchronised: BTreeSet<Content>,
    /// What it has anything to do with.
    used: BTreeSet<Content>,
}

impl Buckets {
    fn of(instructions: &[Instruction], parameters: &Parameters) -> Buckets {
        let mut buckets = Buckets::default();
        for instruction in instructions {
            buckets.synchronised.extend(match instruction.action {
                Action::Gather { bucket } | Action::Release { bucket } => {
                    Some(Content::Weights(bucket))
                }
                Action::Reduce { bucket, .. } => Some(Content::Gradients(bucket)),
                _ => None,
            });
            let written = instruction.writes.iter().map(|write| write.to);
            let operands = instruction.reads.iter().copied().chain(written);
            let bucket = |param: ParamId| parameters.params[param.0 as usize].bucket;
            buckets.used.extend(operands.filter_map(|operand| match operand {
                Operand::Weight(param) => Some(Content::Weights(bucket(param))),
                Operand::Gradient(param) => Some(Content::Gradients(bucket(param))),
                Operand::Slot(_) | Operand::Norm => None,
            }));
        }
        buckets.used.extend(&buckets.synchronised);
        buckets
    }
}
