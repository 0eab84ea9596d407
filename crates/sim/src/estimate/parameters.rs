//! The parameters of blocks, sorted by how they are spread over a replica's devices.

use shardloom_graph::{BlockId, Extents, Graph, ValueId};
use shardloom_plan::Optimizer;
use shardloom_program::Layout;

use super::class::Classes;
use super::walk::Split;

/// Kinds of buckets: what is in one is synchronised, gathered and updated as one.
pub(super) const BUCKETS: usize = 3;
const SPLIT: usize = 0;
const WHOLE: usize = 1;
/// Whole, and with gradients that are partial over the tensor-parallel group.
const PARTIAL: usize = 2;

/// Parameters of a block on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parameters {
    /// Elements of each kind of bucket.
    pub elements: [f64; BUCKETS],
    /// Elements on all devices of a replica together, for the size of buckets.
    pub global_elements: f64,
    /// Elements of optimizer state that are not one per parameter.
    pub factored_elements: f64,
    /// Elements of the optimizer's statistics over whole parameters, all rounds.
    pub statistics_elements: f64,
}

impl Parameters {
    /// Elements in all buckets.
    pub fn total(&self) -> f64 {
        self.elements.iter().sum()
    }

    /// Adds another block's.
    pub fn add(&mut self, other: &Parameters) {
        for (sum, elements) in self.elements.iter_mut().zip(other.elements) {
            *sum += elements;
        }
        self.global_elements += other.global_elements;
        self.factored_elements += other.factored_elements;
        self.statistics_elements += other.statistics_elements;
    }

    fn of(graph: &Graph, split: &Split, optimizer: &Optimizer, value: ValueId) -> Parameters {
        let mut parameters = Parameters::default();
        let elements = local_elements(graph, split, value);
        parameters.elements[bucket(graph, split, value)] = elements;
        let shape = Extents::global(graph, 1).shape(&graph.value(value).axes);
        let row_axes = graph.value(value).parameter().map_or(0, |it| it.row_axes);
        let (rows, columns) =
            (shape[..row_axes].iter().product(), shape[row_axes..].iter().product());
        parameters.global_elements = shape.iter().product::<usize>() as f64;
        let factored = optimizer.factored_elements(rows, columns, elements as usize);
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
    /// Per class of blocks: parameters of only one block.
    pub own: Vec<Parameters>,
    /// Parameters of several blocks.
    pub shared: Vec<Shared>,
}

impl ParameterTable {
    /// The parameters of `graph` under `split`; none if two blocks split one differently.
    pub fn of(
        graph: &Graph,
        classes: &Classes,
        split: &Split,
        optimizer: &Optimizer,
    ) -> Option<ParameterTable> {
        let blocks = |value: ValueId| {
            let readers = graph.value(value).consumers.iter();
            let mut blocks: Vec<usize> = readers.map(|&op| graph.op(op).block.index()).collect();
            blocks.sort_unstable();
            blocks.dedup();
            blocks
        };
        let mut own = vec![Parameters::default(); classes.examples.len()];
        let mut shared = vec![];
        for (value, _) in graph.parameters() {
            let mut layouts = readers(graph, value)
                .map(|(op, index)| split.assignment(graph, op).input(graph, op, index));
            let first = layouts.next();
            if layouts.any(|layout| Some(layout) != first) {
                return None;
            }
            let blocks = blocks(value);
            let parameters = || Parameters::of(graph, split, optimizer, value);
            match blocks[..] {
                [block] => {
                    let class = classes.of_block[block];
                    if classes.examples[class] == BlockId(block as u32) {
                        own[class].add(&parameters());
                    }
                }
                _ => shared.push(Shared { parameters: parameters(), blocks }),
            }
        }
        Some(ParameterTable { own, shared })
    }
}

/// The kind of bucket that a parameter is in.
pub(super) fn bucket(graph: &Graph, split: &Split, value: ValueId) -> usize {
    let mut kind = WHOLE;
    for (op, index) in readers(graph, value) {
        let gradient = split.assignment(graph, op).input_gradient(graph, op, index);
        if gradient.splits.iter().any(|axes| !axes.is_empty()) {
            return SPLIT;
        }
        if gradient.is_partial() {
            kind = PARTIAL;
        }
    }
    kind
}

/// Whether gradients in this kind of bucket are partial over the tensor-parallel group.
pub(super) fn is_partial(bucket: usize) -> bool {
    bucket == PARTIAL
}

/// Whether this kind of bucket is split over the tensor-parallel group.
pub(super) fn is_split(bucket: usize) -> bool {
    bucket == SPLIT
}

/// Elements of a parameter on one device.
pub(super) fn local_elements(graph: &Graph, split: &Split, value: ValueId) -> f64 {
    let global = Extents::global(graph, 1).shape(&graph.value(value).axes);
    let layout = readers(graph, value)
        .next()
        .map(|(op, index)| split.assignment(graph, op).input(graph, op, index));
    let layout = layout.unwrap_or_else(|| Layout::replicated(global.len()));
    layout.local_shape(&global, &split.mesh).iter().product::<usize>() as f64
}

/// The operators that read `value`, with the operand that it is to them.
fn readers(graph: &Graph, value: ValueId) -> impl Iterator<Item = (shardloom_graph::OpId, usize)> {
    graph.value(value).consumers.iter().flat_map(move |&op| {
        let inputs = graph.op(op).inputs.iter().enumerate();
        inputs.filter(move |&(_, &it)| it == value).map(move |(index, _)| (op, index))
    })
}
