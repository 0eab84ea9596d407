//! Values that cross stages, and the routes they and their gradients take.

use shardloom_graph::{Extents, Graph, ValueId};

use super::stage::StageModel;
use crate::route::{self, Cell};
use crate::{ClassId, Layout, ProgramError, Route, RouteId};

/// A value made in one stage and read in a later one.
pub(super) struct Crossing {
    pub value: ValueId,
    pub from: ClassId,
    pub to: ClassId,
    /// The layout in which the producing stage hands it over, and takes its gradient back.
    pub handed: Layout,
    /// The layout in which the consuming stage receives it, and hands its gradient back.
    pub received: Layout,
    /// The value's way.
    pub forward: RouteId,
    /// Its gradient's way.
    pub backward: RouteId,
}

/// All values that cross stages. A value read by several later stages goes from its producer to each
/// directly.
pub(super) struct Boundaries {
    pub crossings: Vec<Crossing>,
    pub routes: Vec<Route>,
}

impl Boundaries {
    pub fn find(graph: &Graph, stages: &[StageModel]) -> Result<Boundaries, ProgramError> {
        let mut found = Boundaries { crossings: vec![], routes: vec![] };
        for (to, consumer) in stages.iter().enumerate() {
            for &op in &consumer.ops {
                for (index, &value) in graph.op(op).inputs.iter().enumerate() {
                    let Some(producer_op) = graph.value(value).producer else { continue };
                    let known = |crossing: &Crossing| {
                        crossing.value == value && crossing.to.0 as usize == to
                    };
                    if consumer.holds(producer_op) || found.crossings.iter().any(known) {
                        continue;
                    }
                    let Some(from) = stages.iter().position(|stage| stage.holds(producer_op))
                    else {
                        continue;
                    };
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
                    found.add(graph, stages, (value, from, to), handed, received);
                }
            }
        }
        Ok(found)
    }

    fn add(
        &mut self,
        graph: &Graph,
        stages: &[StageModel],
        (value, from, to): (ValueId, usize, usize),
        handed: Layout,
        received: Layout,
    ) {
        let extents: &Extents = &stages[from].extents;
        let global = extents.shape(&graph.value(value).axes);
        let upstream = Cell { layout: &handed, mesh: &stages[from].mesh };
        let downstream = Cell { layout: &received, mesh: &stages[to].mesh };
        let (from, to) = (ClassId(from as u32), ClassId(to as u32));
        let dtype = graph.value(value).dtype;
        let mut route = |gradient: bool, from, to, messages| {
            self.routes.push(Route { value, gradient, from, to, dtype, messages });
            RouteId(self.routes.len() as u32 - 1)
        };
        let forward = route(false, from, to, route::messages(&global, upstream, downstream));
        let backward = route(true, to, from, route::messages(&global, downstream, upstream));
        self.crossings.push(Crossing { value, from, to, handed, received, forward, backward });
    }

    /// What `class` receives in its forward pass.
    pub fn into(&self, class: ClassId) -> impl Iterator<Item = &Crossing> {
        self.crossings.iter().filter(move |crossing| crossing.to == class)
    }

    /// What `class` sends in its forward pass.
    pub fn out_of(&self, class: ClassId) -> impl Iterator<Item = &Crossing> {
        self.crossings.iter().filter(move |crossing| crossing.from == class)
    }
}
