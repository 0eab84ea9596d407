//! Where each of many stays lies in one arena, so that stays that meet in time do not overlap in space.
//!
//! Greedy by size with the best-fitting gap (Pisarchyk and Lee 2020, arXiv 2001.03288, section 5,
//! offsets), on a circle of time: what runs ahead is alive across the border of a step, and then the
//! steps repeat. Deciding on the least arena is NP-hard (dynamic storage allocation).

use std::cmp::Reverse;

/// Something that needs bytes for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    /// When it moves in, below the period.
    pub start: u64,
    /// For how long, at least 1 and at most the period.
    pub length: u64,
    /// How much it needs.
    pub bytes: u64,
}

/// Places for stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Where each begins, in the order given.
    pub offsets: Vec<u64>,
    /// Where the last ends.
    pub arena_bytes: u64,
}

impl Stay {
    /// Whether both are there at some moment, in time that repeats after `period`.
    pub fn meets(&self, other: &Stay, period: u64) -> bool {
        let after = |a: &Stay, b: &Stay| match b.start >= a.start {
            true => b.start - a.start,
            false => b.start + period - a.start,
        };
        after(self, other) < self.length || after(other, self) < other.length
    }
}

/// The most bytes that are there at once: no arena is smaller.
pub(super) fn peak_bytes(stays: &[Stay], period: u64) -> u64 {
    let mut changes: Vec<(u64, bool, u64)> = vec![];
    let mut live = 0;
    for stay in stays {
        let end = stay.start + stay.length;
        if end > period || stay.length == period {
            live += stay.bytes;
        }
        if stay.length < period {
            // What ends at a moment is gone for what starts at it.
            changes.push((stay.start, true, stay.bytes));
            changes.push((if end > period { end - period } else { end }, false, stay.bytes));
        }
    }
    changes.sort_unstable();
    let mut peak = live;
    for (_, starts, bytes) in changes {
        match starts {
            true => live += bytes,
            false => live -= bytes,
        }
        peak = peak.max(live);
    }
    peak
}

/// Assigns every stay a place. `borders` are the moments, ascending from 0, that most stays do not last
/// across.
pub(super) fn assign(stays: &[Stay], period: u64, borders: &[u64]) -> Assignment {
    let block = |moment: u64| borders.partition_point(|&border| border <= moment) - 1;
    let span = |stay: &Stay| {
        let (first, last) = (block(stay.start), block((stay.start + stay.length - 1) % period));
        // A stay may go round and end in the block that it begins in.
        let round = last < first || (last == first && stay.start + stay.length > period);
        let blocks = if round { borders.len() - first + last + 1 } else { last - first + 1 };
        Span { first, blocks: blocks.min(borders.len()) }
    };
    let spans: Vec<Span> = stays.iter().map(span).collect();
    let mut by_size: Vec<usize> = (0..stays.len()).collect();
    by_size.sort_by_key(|&it| (Reverse(stays[it].bytes), stays[it].start));
    // What lasts packs best among its like; short stays fit around it.
    let mut lasting_first = by_size.clone();
    lasting_first.sort_by_key(|&it| spans[it].blocks == 1);
    let pack = |order: Vec<usize>| {
        let mut packing = Packing::new(stays, &spans, period, borders.len());
        order.into_iter().for_each(|it| packing.place(it));
        packing.assignment
    };
    let first = pack(lasting_first);
    if is_tight(first.arena_bytes, peak_bytes(stays, period)) {
        return first;
    }
    let second = pack(by_size);
    if second.arena_bytes < first.arena_bytes { second } else { first }
}

/// Whether so little of an arena is never used that another try is not worth its time: one percent.
pub(super) fn is_tight(arena_bytes: u64, peak_bytes: u64) -> bool {
    arena_bytes - peak_bytes <= peak_bytes / 100
}

/// The blocks between borders that a stay touches.
#[derive(Clone, Copy)]
struct Span {
    first: usize,
    blocks: usize,
}

impl Span {
    /// The blocks, of `all` that there are.
    fn over(self, all: usize) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.blocks).map(move |block| block % all)
    }
}

/// A stay that has its place.
#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    end: u64,
    stay: Stay,
}

/// Placed stays, by when they are there.
struct Packing<'a> {
    stays: &'a [Stay],
    spans: &'a [Span],
    period: u64,
    /// Those that touch each block, in ascending order of offset.
    there: Vec<Vec<Placed>>,
    /// Those that begin in each block.
    begun: Vec<Vec<Placed>>,
    /// All of them, in ascending order of offset up to those placed since somebody last looked.
    all: Vec<Placed>,
    /// The places that the stay being placed has to keep clear of, reused from stay to stay.
    near: Vec<(u64, u64)>,
    assignment: Assignment,
}

impl<'a> Packing<'a> {
    fn new(stays: &'a [Stay], spans: &'a [Span], period: u64, blocks: usize) -> Packing<'a> {
        let assignment = Assignment { offsets: vec![0; stays.len()], arena_bytes: 0 };
        let (there, begun) = (vec![vec![]; blocks], vec![vec![]; blocks]);
        Packing { stays, spans, period, there, begun, all: vec![], near: vec![], assignment }
    }

    fn place(&mut self, index: usize) {
        let (stay, span) = (self.stays[index], self.spans[index]);
        let offset = self.best_offset(&stay, span);
        let placed = Placed { offset, end: offset + stay.bytes, stay };
        span.over(self.there.len()).for_each(|block| insert(&mut self.there[block], placed));
        self.begun[span.first].push(placed);
        self.all.push(placed);
        self.assignment.offsets[index] = offset;
        self.assignment.arena_bytes = self.assignment.arena_bytes.max(placed.end);
    }

    fn best_offset(&mut self, stay: &Stay, span: Span) -> u64 {
        let (blocks, period) = (self.there.len(), self.period);
        if span.blocks == 1 {
            return best_fit(meeting(&self.there[span.first], stay, period), stay.bytes);
        }
        if span.blocks > blocks / WIDE {
            // Sorting is fast where little was added.
            self.all.sort_by_key(|it| it.offset);
            return best_fit(meeting(&self.all, stay, period), stay.bytes);
        }
        self.near.clear();
        self.near.extend(meeting(&self.there[span.first], stay, period));
        for block in span.over(blocks).skip(1) {
            self.near.extend(meeting(&self.begun[block], stay, period));
        }
        self.near.sort_unstable();
        best_fit(self.near.iter().copied(), stay.bytes)
    }
}

/// From which share of all blocks on, one in so many, a stay is compared with all others rather than with
/// those sought out that touch its blocks.
const WIDE: usize = 4;

/// Takes in a stay where its offset belongs.
fn insert(ascending: &mut Vec<Placed>, placed: Placed) {
    let at = ascending.partition_point(|it| it.offset <= placed.offset);
    ascending.insert(at, placed);
}

/// Where those lie that are there when `stay` is.
fn meeting(placed: &[Placed], stay: &Stay, period: u64) -> impl Iterator<Item = (u64, u64)> {
    placed.iter().filter(move |it| it.stay.meets(stay, period)).map(|it| (it.offset, it.end))
}

/// The start of the smallest gap of at least `bytes` between places that are `taken`, given by where they
/// begin and end in ascending order, or where the last of them ends.
fn best_fit(taken: impl Iterator<Item = (u64, u64)>, bytes: u64) -> u64 {
    let (mut best, mut reach) = (None, 0);
    for (offset, end) in taken {
        let gap = offset.saturating_sub(reach);
        if gap >= bytes && best.is_none_or(|(least, _)| gap < least) {
            best = Some((gap, reach));
        }
        reach = reach.max(end);
    }
    best.map_or(reach, |(_, offset)| offset)
}
