//! What is tabulated: blocks under one split, micro-batch and recomputation, and stage boundaries.

use shardloom_graph::{Extents, Graph, ValueId};
use shardloom_plan::Recompute;

use super::Settings;
use super::class::Classes;
use super::parameters::{self, ParameterTable};
use super::place::Place;
use super::probe::{BlockCost, Probe};
use super::walk::{Split, Walk};
use crate::SimError;
use shardloom_cluster::Cluster;

/// Blocks under one way of splitting a replica.
#[derive(Clone, Debug)]
pub(super) struct SplitTable {
    pub split: Split,
    pub parameters: ParameterTable,
    /// Elements of the parameters on one device if it had all blocks.
    pub total_elements: f64,
    /// For each cut before a block: bytes of one sample that cross it, on one device.
    pub crossing_bytes: Vec<f64>,
}

impl SplitTable {
    /// The blocks of `graph` under `split`; none if a parameter would be split in two ways.
    pub fn of(
        graph: &Graph,
        classes: &Classes,
        split: Split,
        settings: &Settings,
    ) -> Option<SplitTable> {
        let parameters = ParameterTable::of(graph, classes, &split, &settings.optimizer)?;
        let own = classes.of_block.iter().map(|&class| parameters.own[class].total());
        let shared = parameters.shared.iter().map(|it| it.parameters.total());
        let total_elements = own.chain(shared).sum();
        let crossing_bytes = crossing_bytes(graph, &split, settings.precision.compute.bytes());
        Some(SplitTable { split, parameters, total_elements, crossing_bytes })
    }
}

/// Each value that crosses a cut does so in the layout in which the first operator behind it reads it.
fn crossing_bytes(graph: &Graph, split: &Split, real_bytes: usize) -> Vec<f64> {
    let extents = Extents::global(graph, 1);
    let mut bytes = vec![0.0; graph.blocks().len() + 1];
    for (id, value) in graph.values() {
        let Some(producer) = value.producer else { continue };
        let mut next = graph.op(producer).block.index() + 1;
        for &reader in &value.consumers {
            let block = graph.op(reader).block.index();
            if block < next {
                continue;
            }
            let index = graph.op(reader).inputs.iter().position(|&it| it == id).unwrap_or(0);
            let layout = split.assignment(graph, reader).input(graph, reader, index);
            let shape = layout.local_shape(&extents.shape(&value.axes), &split.mesh);
            let size = shape.iter().product::<usize>() * value.dtype.bytes(real_bytes);
            bytes[next..=block].iter_mut().for_each(|cut| *cut += size as f64);
            next = block + 1;
        }
    }
    bytes
}

/// What each class of blocks costs with one micro-batch and recomputation.
#[derive(Clone, Debug)]
pub(super) struct BlockTable {
    /// Per class.
    pub blocks: Vec<BlockCost>,
    /// Forward and backward seconds of all blocks before each block, and of all.
    pub seconds_before: Vec<f64>,
    /// Kept bytes of all blocks.
    pub kept_bytes: f64,
}

impl BlockTable {
    /// The costs of `graph`'s blocks; none if the split is impossible.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel).
    #[expect(clippy::too_many_arguments, reason = "one call")]
    pub fn of(
        graph: &Graph,
        cluster: &Cluster,
        place: &Place<'_>,
        classes: &Classes,
        split: &Split,
        settings: &Settings,
        samples: u32,
        recompute: Recompute,
    ) -> Result<Option<BlockTable>, SimError> {
        let (devices, concurrent) = place.replica(split.mesh.tp);
        let overlaps = place.overlaps();
        let probe =
            Probe { graph, cluster, settings, split, devices: &devices, concurrent, overlaps };
        let bucket_of = |value: ValueId| parameters::bucket(graph, split, value);
        let samples = samples as usize;
        let real_bytes = settings.precision.compute.bytes();
        let mut blocks = vec![];
        for &block in &classes.examples {
            let walk = Walk::new(graph, split, block, samples, real_bytes);
            match probe.block(walk, samples, recompute, &bucket_of)? {
                Some(cost) => blocks.push(cost),
                None => return Ok(None),
            }
        }
        let mut seconds_before = vec![0.0];
        let mut kept_bytes = 0.0;
        let mut seconds = 0.0;
        for &class in &classes.of_block {
            seconds += blocks[class].forward_seconds + blocks[class].backward_seconds;
            seconds_before.push(seconds);
            kept_bytes += blocks[class].kept_bytes;
        }
        Ok(Some(BlockTable { blocks, seconds_before, kept_bytes }))
    }

    /// Forward and backward seconds of all blocks.
    pub fn total_seconds(&self) -> f64 {
        self.seconds_before.last().copied().unwrap_or(0.0)
    }
}
