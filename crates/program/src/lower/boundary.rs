//! Values that cross stages, and the ways they and their gradients take.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use shardloom_graph::{Extents, Graph, ValueId};
use shardloom_plan::{Mesh, Precision};

use super::needed_gradients::NeededGradients;
use super::stage::{StageId, StageModel};
use crate::route::{self, Side};
use crate::{Carried, ClassId, Format, Layout, Message, ProgramError, Route, RouteId, TensorId};

/// A value made in one stage and read in a later one of the same pipeline.
pub(super) struct Transfer {
    pub value: ValueId,
    pub from: StageId,
    pub to: StageId,
    /// The layout in which the producing stage hands it over, and takes its gradient back.
    pub handed: Layout,
    /// The layout in which the consuming stage receives it, and hands its gradient back.
    pub received: Layout,
    /// How it gets there.
    pub way: Way,
}

/// How a value goes from stage to stage, and its gradient back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In messages; there is no way back where training needs no gradient of it.
    Messages { forward: RouteId, backward: Option<RouteId> },
    /// Both stages live on the same ranks.
    Stays,
}

/// Where a value that stays on its ranks waits for the next stage, and its gradient for the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handover {
    pub value: TensorId,
    /// None where training needs none.
    pub gradient: Option<TensorId>,
}

/// The handovers of one class, by transfer.
pub(super) type Handovers = BTreeMap<TransferId, Handover>;

/// Identifies a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TransferId(usize);

/// All values that cross stages. A value read by several later stages goes from its producer to each
/// directly.
pub(crate) struct Boundaries {
    precision: Precision,
    transfers: Vec<Transfer>,
    pub routes: Vec<Route>,
    /// The messages that bring a shape from one layout to another.
    messages: FxHashMap<Redistribution, Arc<[Message]>>,
}

/// A shape, and the layout and mesh of each end.
type Redistribution = (Vec<usize>, [(Layout, Mesh); 2]);

impl Boundaries {
    pub(super) fn find(
        graph: &Graph,
        precision: Precision,
        stages: &[StageModel],
        gradients_needed: &NeededGradients,
    ) -> Result<Boundaries, ProgramError> {
        let mut found = Boundaries {
            precision,
            transfers: vec![],
            routes: vec![],
            messages: FxHashMap::default(),
        };
        for (to, consumer) in stages.iter().enumerate() {
            let siblings = |stage: &StageModel| stage.place.pipeline == consumer.place.pipeline;
            for &op in &consumer.ops {
                for (index, &value) in graph.op(op).inputs.iter().enumerate() {
                    let Some(producer_op) = graph.value(value).producer else { continue };
                    let known =
                        |transfer: &Transfer| transfer.value == value && transfer.to == StageId(to);
                    if consumer.holds(producer_op) || found.transfers.iter().any(known) {
                        continue;
                    }
                    let holds = |stage: &StageModel| siblings(stage) && stage.holds(producer_op);
                    let Some(from) = stages.iter().position(holds) else { continue };
                    let producer = &stages[from];
                    let output = graph.op(producer_op).outputs.iter().position(|&it| it == value);
                    let produced = producer.assignment(producer_op).output(
                        graph,
                        producer_op,
                        output.unwrap_or(0),
                    );
                    let received = consumer.assignment(op).input(graph, op, index);
                    // On equal meshes the producer brings it into the consumer's layout; otherwise it
                    // completes partial sums and the messages do the rest.
                    let handed = match producer.mesh == consumer.mesh {
                        true => received.clone(),
                        false => produced.reduced(),
                    };
                    let ends = (value, StageId(from), StageId(to));
                    found.add(graph, (stages, gradients_needed), ends, handed, received);
                }
            }
        }
        Ok(found)
    }

    fn add(
        &mut self,
        graph: &Graph,
        (stages, gradients_needed): (&[StageModel], &NeededGradients),
        (value, from, to): (ValueId, StageId, StageId),
        handed: Layout,
        received: Layout,
    ) {
        let (producer, consumer) = (&stages[from.0], &stages[to.0]);
        let way = if producer.class == consumer.class {
            Way::Stays
        } else {
            let extents: &Extents = &producer.extents;
            let global = extents.shape(&graph.value(value).axes);
            let upstream = Side { layout: &handed, mesh: &producer.mesh };
            let downstream = Side { layout: &received, mesh: &consumer.mesh };
            let format = Format::of_value(graph.value(value).dtype, self.precision);
            let there = self.messages(&global, upstream, downstream);
            let back = self.messages(&global, downstream, upstream);
            let mut route = |carried: Carried, from: ClassId, to: ClassId, messages| {
                self.add_route(Route { carried, from, to, format, messages, priority: None })
            };
            let forward = route(Carried::Value(value), producer.class, consumer.class, there);
            let backward = gradients_needed
                .needs(value)
                .then(|| route(Carried::Gradient(value), consumer.class, producer.class, back));
            Way::Messages { forward, backward }
        };
        self.transfers.push(Transfer { value, from, to, handed, received, way });
    }

    fn messages(&mut self, global: &[usize], from: Side<'_>, to: Side<'_>) -> Arc<[Message]> {
        let ends = [from, to].map(|side| (side.layout.clone(), *side.mesh));
        let known = self.messages.entry((global.to_vec(), ends));
        known.or_insert_with(|| route::messages(global, from, to).into()).clone()
    }

    /// Adds a route.
    pub fn add_route(&mut self, route: Route) -> RouteId {
        self.routes.push(route);
        RouteId(self.routes.len() as u32 - 1)
    }

    /// All of them.
    pub(super) fn transfers(&self) -> impl Iterator<Item = (TransferId, &Transfer)> {
        self.transfers.iter().enumerate().map(|(index, it)| (TransferId(index), it))
    }

    /// What `stage` receives in its forward pass.
    pub(super) fn into(&self, stage: StageId) -> impl Iterator<Item = (TransferId, &Transfer)> {
        self.transfers().filter(move |(_, transfer)| transfer.to == stage)
    }

    /// What `stage` sends in its forward pass.
    pub(super) fn out_of(&self, stage: StageId) -> impl Iterator<Item = (TransferId, &Transfer)> {
        self.transfers().filter(move |(_, transfer)| transfer.from == stage)
    }
}
