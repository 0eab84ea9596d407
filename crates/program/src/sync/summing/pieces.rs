//! Which pieces of buckets which servers sum.

use std::ops::Range;

use shardloom_collectives::{chunk, chunk_of};
use shardloom_plan::{Ranges, Summation};

use crate::ProgramError;
use crate::class::{BucketId, ClassId, ServedRange};
use crate::lower::Parameters;
use crate::ring::Ring;

/// Deals the parts of buckets that servers sum to them, by bucket.
///
/// # Errors
/// If a server on a machine of its own gets none.
pub(super) fn dealt(
    parameters: &Parameters<'_>,
    summation: Summation,
    workers: usize,
) -> Result<Vec<Vec<ServedRange>>, ProgramError> {
    let Summation { servers: own, ranges, .. } = summation;
    let servers = summation.of_workers(workers);
    let part = summation.own_part(workers);
    // The elements of a bucket that are dealt as the plan has it for all: those of servers on machines of their own,
    // and those of the others.
    let summed = |index: usize| match parameters.servers(BucketId(index as u32)) {
        Some(_) => [0..0, 0..0],
        None => {
            let elements = parameters.buckets[index].elements;
            let first = ((elements as f64 * part).round() as usize).min(elements);
            [0..first, first..if summation.colocated { elements } else { first }]
        }
    };
    let mut dealt: Vec<Vec<ServedRange>> = vec![vec![]; parameters.buckets.len()];
    for (which, numbers) in [0..own, own..servers].into_iter().enumerate() {
        let parts = (0..dealt.len()).map(|index| summed(index)[which].clone());
        let of_these = match ranges {
            Ranges::Equal => parts.map(|part| equal_pieces(part, numbers.clone())).collect(),
            Ranges::Hashed => {
                let most = (0..dealt.len() as u32).map(|it| parameters.most_elements(BucketId(it)));
                hashed_pieces(parts.zip(most), numbers)
            }
        };
        dealt.iter_mut().zip(of_these).for_each(|(all, some)| all.extend(some));
    }
    for (index, dealt) in dealt.iter_mut().enumerate() {
        let id = BucketId(index as u32);
        if let Some(servers) = parameters.servers(id).filter(|_| !parameters.is_asked(id)) {
            *dealt = placed(parameters, BucketId(index as u32), servers);
        }
    }
    let of_tables = (0..dealt.len() as u32).map(BucketId).filter(|&id| parameters.is_asked(id));
    let of_tables: Vec<u32> =
        of_tables.filter_map(|id| parameters.servers(id)).flatten().copied().collect();
    let has_some = |server: u32| {
        let sums = dealt.iter().flatten().any(|it| it.server == ClassId(server));
        sums || of_tables.contains(&server)
    };
    // Those on the workers' devices are there anyway.
    if (0..own).all(has_some) {
        return Ok(dealt);
    }
    let said = |index: usize| {
        let is_said = parameters.servers(BucketId(index as u32)).is_some();
        is_said && !parameters.buckets[index].is_frozen
    };
    let (ranges, instead) = match ranges {
        _ if (0..dealt.len()).any(said) => (
            dealt.iter().map(Vec::len).sum::<usize>() + of_tables.len(),
            "name each of them in the servers of some group of parameters",
        ),
        Ranges::Equal => (
            dealt.iter().map(Vec::len).max().unwrap_or(0),
            "a larger sync.summation.share or sync.bucket_bytes",
        ),
        Ranges::Hashed => (
            dealt.iter().map(Vec::len).sum(),
            "a larger sync.summation.share, or a smaller sync.bucket_bytes",
        ),
    };
    let key = "sync.summation.servers";
    Err(ProgramError::TooManyServers { key, servers: own, ranges, instead })
}

/// A part of a bucket in as many pieces as these servers, which are equal but for an element.
fn equal_pieces(part: Range<usize>, servers: Range<u32>) -> Vec<ServedRange> {
    let count = servers.len();
    let pieces = (0..count).map(|piece| chunk_of(&part, count, piece)).zip(servers.map(ClassId));
    let pieces = pieces.filter(|(range, _)| !range.is_empty());
    pieces.map(|(range, server)| ServedRange::of(range, server)).collect()
}

/// By bucket, a part of it in pieces of at most so many elements, which consistent hashing deals to these servers.
fn hashed_pieces(
    parts: impl Iterator<Item = (Range<usize>, usize)>,
    servers: Range<u32>,
) -> Vec<Vec<ServedRange>> {
    let cut = |(part, most): (Range<usize>, usize)| {
        let count = part.len().div_ceil(most);
        (0..count).map(|piece| chunk_of(&part, count, piece)).collect()
    };
    let pieces: Vec<Vec<Range<usize>>> = parts.map(cut).collect();
    let sizes: Vec<usize> = pieces.iter().flatten().map(Range::len).collect();
    if sizes.is_empty() {
        return vec![vec![]; pieces.len()];
    }
    let mut owners = Ring::of(servers).owners(&sizes).into_iter().map(ClassId);
    let of_bucket = |pieces: Vec<Range<usize>>| {
        let ranges = pieces.into_iter().zip(owners.by_ref());
        ranges.map(|(range, server)| ServedRange::of(range, server)).collect()
    };
    pieces.into_iter().map(of_bucket).collect()
}

/// Cuts each parameter of a bucket along its first axis into a piece for each of these servers, if it has so many
/// rows.
fn placed(parameters: &Parameters<'_>, id: BucketId, servers: &[u32]) -> Vec<ServedRange> {
    let params = parameters.buckets[id.0 as usize].params.iter();
    let pieces = params.flat_map(|param| {
        let param = &parameters.params[param.0 as usize];
        let rows = param.shape.first().copied().unwrap_or(1).max(1);
        let each = param.elements() / rows;
        let at = move |row: usize| param.offset + each * row;
        servers.iter().enumerate().map(move |(piece, &server)| {
            let rows = chunk(rows, servers.len(), piece);
            ServedRange::of(at(rows.start)..at(rows.end), ClassId(server))
        })
    });
    pieces.filter(|piece| !piece.range.is_empty()).collect()
}

impl<'a> Parameters<'a> {
    /// How many elements of a bucket are at most in one piece for servers that sum: as many bytes of gradients
    /// as the plan lets buckets be.
    fn most_elements(&self, id: BucketId) -> usize {
        let group = self.groups[id.0 as usize];
        let bytes = self.ways.precision(group).gradients.bytes();
        (self.ways.sync(group).bucket_bytes / bytes).max(1)
    }

    /// The servers that sum a bucket, piece by piece of each parameter, where its group says so.
    pub fn servers(&self, id: BucketId) -> Option<&'a [u32]> {
        let group = &self.plan.parameters[self.groups[id.0 as usize]?];
        // Of what is frozen there is nothing to sum.
        if group.frozen { Some(&[]) } else { group.servers.as_deref() }
    }

    /// Whether servers that sum leave all of a bucket to the workers, as its group has it.
    pub(super) fn is_summed_by_workers(&self, id: BucketId) -> bool {
        self.servers(id).is_some_and(<[u32]>::is_empty)
    }
}
