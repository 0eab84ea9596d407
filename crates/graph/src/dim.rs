//! Named dimensions and their extents.

use std::collections::HashMap;

use crate::Graph;

/// Identifies a named dimension of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DimId(pub(crate) u32);

impl DimId {
    /// Position in the graph's list of dimensions.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A named dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// The field's standard word: `batch`, `seq`, `model`, `heads`, `head_dim`, `ffn`, `vocab`.
    pub name: String,
    /// Its global extent; for `batch` the extent of one sample, 1.
    pub size: usize,
}

/// All dimensions of a graph, found by number and by name: models of many tables have thousands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dims {
    all: Vec<Dim>,
    by_name: HashMap<String, DimId>,
}

impl Dims {
    /// Adds one, whose name no other has.
    pub fn push(&mut self, dim: Dim) -> DimId {
        let id = DimId(self.all.len() as u32);
        self.by_name.insert(dim.name.clone(), id);
        self.all.push(dim);
        id
    }

    /// All of them, in the order of their numbers.
    pub fn all(&self) -> &[Dim] {
        &self.all
    }

    /// The one of this name.
    pub fn named(&self, name: &str) -> Option<DimId> {
        self.by_name.get(name).copied()
    }
}

/// How far each dimension of a graph reaches, for one choice of batch or on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents(Vec<usize>);

impl Extents {
    /// The global extents of `graph` for a batch of `batch` samples.
    pub fn global(graph: &Graph, batch: usize) -> Extents {
        let mut extents: Vec<usize> = graph.dims().iter().map(|dim| dim.size).collect();
        extents[graph.batch().index()] = batch;
        Extents(extents)
    }

    /// The extent of one dimension.
    pub fn get(&self, dim: DimId) -> usize {
        self.0[dim.index()]
    }

    /// Sets the extent of one dimension.
    pub fn set(&mut self, dim: DimId, extent: usize) {
        self.0[dim.index()] = extent;
    }

    /// The shape of a tensor with these axes.
    pub fn shape(&self, axes: &[DimId]) -> Vec<usize> {
        axes.iter().map(|&dim| self.get(dim)).collect()
    }

    /// The number of elements of a tensor with these axes.
    pub fn elements(&self, axes: &[DimId]) -> usize {
        axes.iter().map(|&dim| self.get(dim)).product()
    }
}
