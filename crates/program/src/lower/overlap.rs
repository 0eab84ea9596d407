//! Two passes of one action at once: while one waits for other ranks, the other computes (DeepSeek-V3,
//! arXiv 2412.19437, section 3.2.1 and figure 4).
//!
//! Each pass is cut behind its collectives, and the pieces alternate. A piece is a body like any other,
//! with its pass's kind and stage: what runs, counts or draws entries knows nothing of overlapping.

use std::collections::BTreeSet;

use super::liveness::of_microbatch;
use crate::class::{Body, BucketId};
use crate::{Action, Content, Instruction, Tensor, TensorId};

/// Which of an action's passes a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    First,
    Second,
}

/// The pieces of two passes in the order in which they run; none if they are better run one after the
/// other: where neither has a collective to hide, or one gathers or reduces weights that the other
/// uses too (tied weights at both ends of a model), which must be before or after all of the other.
pub(super) fn interleaved(passes: [&Body; 2], tensors: &[Tensor]) -> Option<Vec<(Side, Body)>> {
    let [first, second] = passes.map(|body| Buckets::of(&body.instructions, tensors));
    if !first.synchronised.is_disjoint(&second.used)
        || !second.synchronised.is_disjoint(&first.used)
    {
        return None;
    }
    let pieces = passes.map(|body| cut(&body.instructions, tensors));
    let [of_first, of_second] = [pieces[0].len(), pieces[1].len()];
    if of_first + of_second == 2 {
        return None;
    }
    let mut runs: Vec<(usize, Side, &[Instruction])> = vec![];
    // The middles of pieces, as if each pass took the whole action, in a unit that both divide.
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
fn cut<'a>(instructions: &'a [Instruction], tensors: &[Tensor]) -> Vec<&'a [Instruction]> {
    let mut pieces = vec![];
    let mut begin = 0;
    for (index, pair) in instructions.windows(2).enumerate() {
        if exchanges(&pair[0], tensors) && !exchanges(&pair[1], tensors) {
            pieces.push(&instructions[begin..=index]);
            begin = index + 1;
        }
    }
    pieces.push(&instructions[begin..]);
    pieces
}

/// Whether it is a collective whose result the pass goes on with.
fn exchanges(instruction: &Instruction, tensors: &[Tensor]) -> bool {
    let of_values = instruction.reads.iter().all(|read| of_microbatch(tensors, read.tensor));
    matches!(instruction.action, Action::Collective { .. }) && of_values
}

/// What a pass does with lasting tensors, by bucket and by whether it is their weights or their gradients.
#[derive(Default)]
struct Buckets {
    /// What it gathers, frees or reduces.
    synchronised: BTreeSet<(BucketId, bool)>,
    /// What it has anything to do with.
    used: BTreeSet<(BucketId, bool)>,
}

impl Buckets {
    fn of(instructions: &[Instruction], tensors: &[Tensor]) -> Buckets {
        let mut buckets = Buckets::default();
        let subject = |tensor: TensorId| {
            let tensor = &tensors[tensor.0 as usize];
            Some((tensor.bucket?, tensor.content == Content::Gradient))
        };
        for instruction in instructions {
            let operands = || instruction.operands().filter_map(|view| subject(view.tensor));
            buckets.used.extend(operands());
            let reduces = matches!(
                instruction.action,
                Action::Collective { .. }
                    | Action::Compress { .. }
                    | Action::Decompress { .. }
                    | Action::SumRows
            );
            if reduces {
                buckets.synchronised.extend(operands());
            }
            let freed = instruction.frees.iter().filter_map(|&tensor| subject(tensor));
            buckets.synchronised.extend(freed);
        }
        buckets
    }
}
