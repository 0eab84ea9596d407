//! Which pieces of buckets which servers sum.

use shardloom_collectives::chunk;
use shardloom_plan::{Ranges, Summation};

use crate::ProgramError;
use crate::class::{BucketId, ClassId, ServedRange};
use crate::lower::Parameters;
use crate::ring::Ring;

/// Deals the parts of buckets that servers sum to them, by bucket.
///
/// # Errors
/// If a server gets none.
pub(super) fn dealt(
    parameters: &Parameters<'_>,
    summation: Summation,
    workers: usize,
) -> Result<Vec<Vec<ServedRange>>, ProgramError> {
    let Summation { servers, ranges, share, .. } = summation;
    let part = share.part(workers, servers);
    // The elements of a bucket that are dealt as the plan has it for all.
    let summed = |index: usize| match parameters.servers(BucketId(index as u32)) {
        Some(_) => 0,
        None => {
            let elements = parameters.buckets[index].elements;
            ((elements as f64 * part).round() as usize).min(elements)
        }
    };
    let buckets = 0..parameters.buckets.len();
    let cut = |index: usize, count: usize| {
        let pieces = (0..count).map(move |piece| chunk(summed(index), count, piece));
        pieces.filter(|range| !range.is_empty())
    };
    let mut dealt: Vec<Vec<ServedRange>> = match ranges {
        Ranges::Equal => {
            let dealt = buckets.map(|index| {
                let ranges = cut(index, servers as usize).zip((0..).map(ClassId));
                ranges.map(|(range, server)| ServedRange::of(range, server)).collect()
            });
            dealt.collect()
        }
        Ranges::Hashed => {
            let pieces = buckets.map(|index| {
                let most = parameters.most_elements(BucketId(index as u32));
                cut(index, summed(index).div_ceil(most)).collect()
            });
            let pieces: Vec<Vec<_>> = pieces.collect();
            let sizes: Vec<usize> = pieces.iter().flatten().map(|range| range.len()).collect();
            let mut owners = Ring::of(0..servers).owners(&sizes).into_iter().map(ClassId);
            let of_bucket = |pieces: Vec<_>| {
                let ranges = pieces.into_iter().zip(owners.by_ref());
                ranges.map(|(range, server)| ServedRange::of(range, server)).collect()
            };
            pieces.into_iter().map(of_bucket).collect()
        }
    };
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
    if (0..servers).all(has_some) {
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
    Err(ProgramError::TooManyServers { key, servers, ranges, instead })
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
