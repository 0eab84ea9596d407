//! Recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005).
//!
//! With `extra` members beyond the largest power of two, members 2i and 2i + 1 for
//! i < `extra` form pairs: 2i + 1 folds into 2i first and gets its part back last.
//! The survivors stay in member order, so what a pair owns is contiguous.

use std::ops::Range;

use crate::{
    Combine, Kind, Transfer,
    chunk::chunk,
    step_list::{Step, overlay},
};

/// The largest power of two within `members`, and how many are beyond it.
pub(crate) fn fold(members: u32) -> (u32, u32) {
    let survivors = 1 << members.ilog2();
    (survivors, members - survivors)
}

pub(crate) fn steps(kind: Kind, members: u32, elements: usize) -> Vec<Vec<Transfer>> {
    let (survivors, extra) = fold(members);
    let blocks = (0..survivors).map(|index| block(kind, members, elements, index));
    let group = Group { extra, blocks: blocks.collect() };
    let mut phase = Vec::new();
    if kind != Kind::AllGather {
        if extra > 0 {
            phase.push(group.pairs(|step, survivor, folded| {
                step.send(folded, survivor, 0..elements, Combine::Reduce);
            }));
        }
        let spans = (0..survivors.ilog2()).rev().map(|bit| 1 << bit);
        phase.extend(spans.map(|span| group.halve(span)));
    }
    let own = |folded: u32| chunk(elements, members as usize, folded as usize);
    if kind == Kind::AllGather && extra > 0 {
        phase.push(group.pairs(|step, survivor, folded| {
            step.send(folded, survivor, own(folded), Combine::Overwrite);
        }));
    }
    if kind != Kind::ReduceScatter {
        let spans = (0..survivors.ilog2()).map(|bit| 1 << bit);
        phase.extend(spans.map(|span| group.double(span)));
    }
    if extra > 0 {
        phase.push(group.pairs(|step, survivor, folded| {
            let returned = match kind {
                Kind::ReduceScatter => [own(folded), 0..0],
                Kind::AllGather => [0..own(folded).start, own(folded).end..elements],
                _ => [0..elements, 0..0],
            };
            for range in returned {
                step.send(survivor, folded, range, Combine::Overwrite);
            }
        }));
    }
    let mut steps = Vec::new();
    overlay(&mut steps, 0, phase);
    steps
}

/// Elements that `member` sends.
pub(crate) fn sent(kind: Kind, members: u32, elements: usize, member: u32) -> usize {
    let (survivors, extra) = fold(members);
    let own = |folded: u32| chunk(elements, members as usize, folded as usize).len();
    let is_paired = member < 2 * extra;
    if is_paired && member % 2 == 1 {
        return if kind == Kind::AllGather { own(member) } else { elements };
    }
    let survivor = if is_paired { member / 2 } else { member - extra };
    let blocks = |first: u32, span: u32| {
        let start = block(kind, members, elements, first).start;
        block(kind, members, elements, first + span - 1).end - start
    };
    let level = |span: u32| {
        let given = |whose: u32| blocks(whose & !(span - 1), span);
        let halved = if kind == Kind::AllGather { 0 } else { given(survivor ^ span) };
        let doubled = if kind == Kind::ReduceScatter { 0 } else { given(survivor) };
        halved + doubled
    };
    let swapped: usize = (0..survivors.ilog2()).map(|bit| level(1 << bit)).sum();
    let returned = match kind {
        _ if !is_paired => 0,
        Kind::ReduceScatter => own(member + 1),
        Kind::AllGather => elements - own(member + 1),
        _ => elements,
    };
    swapped + returned
}

/// Elements of the chunks of those that fold into others, which a reduce-scatter returns to them.
pub(crate) fn folded_elements(members: u32, elements: usize) -> usize {
    let (_, extra) = fold(members);
    (0..extra).map(|pair| chunk(elements, members as usize, 2 * pair as usize + 1).len()).sum()
}

/// What a survivor owns between the phases: its (and its partner's) chunk where the kind says who owns what,
/// an even share where only the end result counts.
fn block(kind: Kind, members: u32, elements: usize, index: u32) -> Range<usize> {
    let (survivors, extra) = fold(members);
    if kind == Kind::AllReduce {
        return chunk(elements, survivors as usize, index as usize);
    }
    let chunk_of = |member: u32| chunk(elements, members as usize, member as usize);
    let first = index + index.min(extra);
    let last = first + u32::from(index < extra);
    chunk_of(first).start..chunk_of(last).end
}

struct Group {
    extra: u32,
    blocks: Vec<Range<usize>>,
}

impl Group {
    fn member(&self, survivor: u32) -> u32 {
        survivor + survivor.min(self.extra)
    }

    fn pairs(&self, mut send: impl FnMut(&mut Step, u32, u32)) -> Step {
        let mut step = Step::default();
        for pair in 0..self.extra {
            send(&mut step, 2 * pair, 2 * pair + 1);
        }
        step
    }

    /// Everyone gives away the half, of `span` blocks, that its partner keeps.
    fn halve(&self, span: u32) -> Step {
        self.swap(span, |_, partner| partner, Combine::Reduce)
    }

    /// Everyone gives its `span` blocks to its partner.
    fn double(&self, span: u32) -> Step {
        self.swap(span, |own, _| own, Combine::Overwrite)
    }

    fn swap(&self, span: u32, whose: impl Fn(u32, u32) -> u32, combine: Combine) -> Step {
        let mut step = Step::default();
        for own in 0..self.blocks.len() as u32 {
            let partner = own ^ span;
            let first = (whose(own, partner) & !(span - 1)) as usize;
            let last = first + span as usize - 1;
            let range = self.blocks[first].start..self.blocks[last].end;
            step.send(self.member(own), self.member(partner), range, combine);
        }
        step
    }
}
