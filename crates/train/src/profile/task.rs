//! One thing to be timed.

use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::op::Activation;
use shardloom_graph::work::{self, MatmulShape, Pass};
use shardloom_graph::{Extents, Graph, OpId, OpKind};
use shardloom_kernels::DType;
use shardloom_kernels::dispatch::{self, Data, DataMut, Input, Output, Setting};
use shardloom_kernels::random::Key;

use super::bench::Bench;
use super::links;
use super::streaming::Streaming;
use super::subject::Subject;
use crate::Result;

/// What a time is a function of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    /// Elements.
    Elements(usize),
    /// A product's sizes; its time is that of one product of the batch.
    Product(MatmulShape),
}

/// One thing to be timed.
pub(super) struct Task<'a> {
    /// The rate class.
    pub name: String,
    pub size: Size,
    work: Work<'a>,
}

enum Work<'a> {
    Operator { graph: &'a Graph, op: OpId, pass: Pass, extents: Extents },
    Streaming(Streaming),
    Collective { algorithm: Algorithm, kind: Kind, members: u32 },
    Message,
    Launch,
}

impl<'a> Task<'a> {
    /// A pass of an operator at given extents.
    pub fn operator(
        name: &str,
        graph: &'a Graph,
        op: OpId,
        pass: Pass,
        extents: Extents,
    ) -> Task<'a> {
        let work = work::work(graph, op, pass, &extents, size_of::<f32>())
            .expect("only passes that an operator has are measured");
        let size = match work.matmul {
            Some((shape, _)) => Size::Product(shape),
            None => Size::Elements(work.elements),
        };
        let work = Work::Operator { graph, op, pass, extents };
        Task { name: name.to_owned(), size, work }
    }

    /// A pass over `elements`.
    pub fn streaming(name: &str, streaming: Streaming, elements: usize) -> Task<'a> {
        let work = Work::Streaming(streaming);
        Task { name: name.to_owned(), size: Size::Elements(elements), work }
    }

    /// A collective over `elements` among groups of `members`.
    pub fn collective(
        name: &str,
        algorithm: Algorithm,
        kind: Kind,
        members: u32,
        elements: usize,
    ) -> Task<'a> {
        let work = Work::Collective { algorithm, kind, members };
        Task { name: name.to_owned(), size: Size::Elements(elements), work }
    }

    /// A message of `elements`.
    pub fn message(elements: usize) -> Task<'a> {
        Task { name: MESSAGE.into(), size: Size::Elements(elements), work: Work::Message }
    }

    /// The smallest operator there is.
    pub fn launch() -> Task<'a> {
        Task { name: LAUNCH.into(), size: Size::Elements(1), work: Work::Launch }
    }

    /// Seconds it takes.
    ///
    /// # Errors
    /// If communication fails.
    pub fn seconds(&self, bench: &mut Bench) -> Result<f64> {
        let Size::Elements(elements) = self.size else {
            return self.product_seconds(bench);
        };
        match &self.work {
            Work::Operator { graph, op, pass, extents } => {
                operator_seconds(graph, *op, *pass, extents, bench)
            }
            Work::Streaming(streaming) => streaming.seconds(elements, bench),
            Work::Collective { algorithm, kind, members } => {
                links::collective(*algorithm, *kind, *members, elements, bench)
            }
            Work::Message => links::message(elements, bench),
            Work::Launch => launch_seconds(bench),
        }
    }
}
