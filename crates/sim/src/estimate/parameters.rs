//! The parameters of blocks, sorted by how they are spread over a replica's devices.

use shardloom_graph::{Graph, Representative, ValueId};
use shardloom_plan::{Axis, Optimizer};
use shardloom_program::{Bucket, Program, WeightParam};

/// Kinds of buckets: what is in one is synchronised, gathered and updated as one.
pub(super) const BUCKETS: usize = 4;
const SPLIT: usize = 0;
const WHOLE: usize = 1;
/// Whole, and with gradients that are partial over the tensor-parallel group.
const PARTIAL: usize = 2;
/// Split along the sequence by context parallelism, such as embeddings of positions: only data-parallel
/// replicas hold the same.
const OF_CONTEXT: usize = 3;

/// Parameters of a block on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parameters {
    /// Elements of each kind of bucket that are trained.
    pub elements: [f64; BUCKETS],
    /// Those that are frozen.
    pub frozen: [f64; BUCKETS],
    /// Elements on all devices of a replica together that are trained, for the size of buckets.
    pub global_elements: f64,
    /// In how many buckets of each kind they are where buckets end within blocks, as far as they fill these.
    pub buckets: [f64; BUCKETS],
    /// Elements of optimizer state that are not one per parameter.
    pub factored_elements: f64,
    /// Elements of the optimizer's statistics over whole parameters, all rounds.
    pub statistics_elements: f64,
}

impl Parameters {
    /// Elements in all buckets that are trained.
    pub fn total(&self) -> f64 {
        self.elements.iter().sum()
    }

    /// Elements in all buckets that are frozen.
    pub fn total_frozen(&self) -> f64 {
        self.frozen.iter().sum()
    }

    /// Elements that context parallelism splits and that are trained.
    pub fn of_context(&self) -> f64 {
        self.elements[OF_CONTEXT]
    }

    /// Likewise, frozen.
    pub fn frozen_of_context(&self) -> f64 {
        self.frozen[OF_CONTEXT]
    }

    /// Adds another block's.
    pub fn add(&mut self, other: &Parameters) {
        let all = self.elements.iter_mut().chain(&mut self.frozen);
        for (sum, elements) in all.zip(other.elements.into_iter().chain(other.frozen)) {
            *sum += elements;
        }
        self.global_elements += other.global_elements;
        for (sum, buckets) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += buckets;
        }
        self.factored_elements += other.factored_elements;
        self.statistics_elements += other.statistics_elements;
    }

    fn of(param: &WeightParam, bucket: &Bucket, optimizer: &Optimizer) -> Parameters {
        let WeightParam { rows, columns, .. } = *param;
        let mut parameters = Parameters::default();
        if bucket.is_frozen {
            parameters.frozen[kind(bucket)] = param.elements() as f64;
            return parameters;
        }
        parameters.elements[kind(bucket)] = param.elements() as f64;
        parameters.global_elements = (rows * columns) as f64;
        let factored = optimizer.factored_elements(rows, columns, param.elements());
        parameters.factored_elements = factored as f64;
        let rounds = 0..optimizer.statistics_rounds();
        let statistics = rounds.map(|round| optimizer.statistics_elements(rows, columns, round));
        parameters.statistics_elements = statistics.sum::<usize>() as f64;
        parameters
    }
}

/// A parameter that several blocks use.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// Those blocks, ascending.
    pub blocks: Vec<usize>,
    /// What it adds to a stage that has one of them.
    pub parameters: Parameters,
}

/// All parameters of a graph.
#[derive(Clone, Debug)]
pub(super) struct ParameterTable {
    /// Per kind of block: parameters of only one block.
    pub own: Vec<Parameters>,
    /// Parameters of several blocks.
    pub shared: Vec<Shared>,
}

impl ParameterTable {
    /// The parameters of `graph`, spread as those of its lowered representative model are, where a bucket is full with
    /// so many elements, on all devices of a replica together.
    pub fn of(
        graph: &Graph,
        representative: &Representative,
        program: &Program,
        optimizer: &Optimizer,
        full: f64,
    ) -> ParameterTable {
        let mut own = vec![];
        let mut shared: Vec<(ValueId, Shared)> = vec![];
        for class in &program.classes {
            let mut sum = Parameters::default();
            let mut sizes = vec![];
            for param in &class.params {
                let bucket = class.bucket(param.bucket);
                let mut parameters = Parameters::of(param, bucket, optimizer);
                let value = representative.original(param.value);
                let blocks = using_blocks(graph, value);
                if blocks.len() == 1 {
                    if !bucket.is_frozen {
                        sizes.push((kind(bucket), parameters.global_elements));
                    }
                    sum.add(&parameters);
                } else if shared.iter().all(|(known, _)| *known != value) {
                    parameters.buckets =
                        filled_buckets(&[(kind(bucket), parameters.global_elements)], full);
                    shared.push((value, Shared { blocks, parameters }));
                }
            }
            sum.buckets = filled_buckets(&sizes, full);
            own.push(sum);
        }
        ParameterTable { own, shared: shared.into_iter().map(|(_, shared)| shared).collect() }
    }
}

/// In how many buckets of each kind parameters of these kinds and sizes are. All kinds together, the last parameter first,
/// are dealt to runs, each of which ends with the parameter with which it has `full` elements, and has a bucket of every
/// kind that is in it; the run that is not full counts by what it has of that.
fn filled_buckets(sizes: &[(usize, f64)], full: f64) -> [f64; BUCKETS] {
    let mut buckets = [0.0; BUCKETS];
    let (mut filled, mut has) = (0.0, [false; BUCKETS]);
    let mut count = |has: [bool; BUCKETS], share: f64| {
        let kinds = buckets.iter_mut().zip(has).filter(|(_, has)| *has);
        kinds.for_each(|(count, _)| *count += share);
    };
    for &(kind, size) in sizes.iter().rev() {
        filled += size;
        has[kind] = true;
        if filled >= full {
            count(has, 1.0);
            (filled, has) = (0.0, [false; BUCKETS]);
        }
    }
    count(has, filled / full);
    buckets
}

/// The blocks that use a parameter, ascending.
fn using_blocks(graph: &Graph, value: ValueId) -> Vec<usize> {
    let readers = graph.value(value).consumers.iter();
    let mut blocks: Vec<usize> = readers.map(|&op| graph.op(op).block.index()).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// The kind of a lowered bucket.
fn kind(bucket: &Bucket) -> usize {
    match (bucket.splits.is_empty(), bucket.partial.is_empty()) {
        (false, _) if bucket.splits.contains(&Axis::CP) => OF_CONTEXT,
        (false, _) => SPLIT,
        (true, false) => PARTIAL,
        (true, true) => WHOLE,
    }
}

/// Whether gradients in this kind of bucket are partial over the tensor-parallel group.
pub(super) fn is_partial(bucket: usize) -> bool {
    bucket == PARTIAL
}

/// Whether this kind of bucket is split over the devices that work on a sample.
pub(super) fn is_split(bucket: usize) -> bool {
    bucket == SPLIT || bucket == OF_CONTEXT
}

/// Whether this kind of bucket is split by context parallelism, along which others are replicas.
pub(super) fn is_of_context(bucket: usize) -> bool {
    bucket == OF_CONTEXT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_parameters_is_full_with_the_one_that_fills_it_and_has_a_bucket_of_each_kind() {
        let of = |sizes: &[(usize, f64)]| {
            let [split, whole, ..] = filled_buckets(sizes, 8.0);
            [split, whole]
        };
        // From the last one on: 4 and 4, 10, 1 and 5 of 8.
        let sizes = [5.0, 1.0, 10.0, 4.0, 4.0];
        assert_eq!(of(&sizes.map(|size| (SPLIT, size))), [2.75, 0.0]);
        // A small one of another kind has a bucket where it is, and fills as well.
        assert_eq!(of(&[(SPLIT, 9.0), (WHOLE, 1.0), (SPLIT, 7.0)]), [2.0, 1.0]);
        assert_eq!(of(&[(WHOLE, 2.0), (SPLIT, 100.0)]), [1.0, 0.25]);
        assert_eq!(of(&[]), [0.0; 2]);
        assert_eq!(filled_buckets(&[(SPLIT, 5.0)], f64::INFINITY), [0.0; BUCKETS]);
    }
}
