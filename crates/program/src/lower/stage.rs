//! One stage before it has instructions: its operators, their assignments, its parameters' layouts.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::{BlockId, Extents, Graph, OpId, ValueId};
use shardloom_plan::{Mesh, Plan, Stage};

use super::boundary::{Boundaries, Handovers};
use super::buckets::Parameters;
use super::liveness::of_microbatch;
use super::needed_gradients::NeededGradients;
use crate::{Assignment, ClassId, Instruction, Layout, ProgramError, Tensor, TensorId};
use shardloom_schedule::Instance;

/// A stage's number among the stages of all pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StageId(pub usize);

/// What a stage computes, where, and how it is split.
pub(super) struct StageModel {
    /// Which stage of which pipeline it is.
    pub place: Instance,
    /// The ranks that it lives on.
    pub class: ClassId,
    /// Its operators, in order.
    pub ops: Vec<OpId>,
    /// Its mesh.
    pub mesh: Mesh,
    /// Global extents of one micro-batch.
    pub extents: Extents,
    assignments: BTreeMap<OpId, Assignment>,
    parameter_layouts: BTreeMap<ValueId, Layout>,
}

impl StageModel {
    pub fn of(
        graph: &Graph,
        plan: &Plan,
        (place, class): (Instance, ClassId),
        stage: &Stage,
    ) -> Result<StageModel, ProgramError> {
        let mesh = stage.mesh;
        let blocks = (stage.blocks.0 as u32..stage.blocks.1 as u32).map(BlockId);
        let ops: Vec<OpId> =
            blocks.flat_map(|block| graph.blocks()[block.index()].ops.clone()).collect();
        let layout = plan.layout_of(stage);
        let assignments: BTreeMap<OpId, Assignment> =
            ops.iter().map(|&op| (op, Assignment::of(graph, op, layout, &mesh))).collect();
        let mut parameter_layouts: BTreeMap<ValueId, Layout> = BTreeMap::new();
        for &op in &ops {
            for (index, &input) in graph.op(op).inputs.iter().enumerate() {
                if graph.value(input).parameter().is_none() {
                    continue;
                }
                let layout = assignments[&op].input(graph, op, index);
                let known = parameter_layouts.entry(input).or_insert_with(|| layout.clone());
                if *known != layout {
                    return Err(ProgramError::ParameterLayouts {
                        name: graph.value(input).name.clone(),
                        first: known.to_string(),
                        second: layout.to_string(),
                    });
                }
            }
        }
        let extents = Extents::global(graph, plan.microbatch_samples());
        Ok(StageModel { place, class, ops, mesh, extents, assignments, parameter_layouts })
    }

    pub fn assignment(&self, op: OpId) -> &Assignment {
        &self.assignments[&op]
    }

    pub fn holds(&self, op: OpId) -> bool {
        self.assignments.contains_key(&op)
    }

    /// How many rows of a table a rank reads in one pass of an operator: its first input says which.
    pub fn rows_read(&self, graph: &Graph, op: OpId) -> usize {
        let node = graph.op(op);
        let indices = graph.row_indices(op);
        let global = self.extents.shape(&graph.value(indices).axes);
        let input = node.inputs.iter().position(|&it| it == indices).unwrap_or_default();
        let layout = self.assignment(op).input(graph, op, input);
        let named: usize = layout.local_shape(&global, &self.mesh).iter().product();
        named + node.kind.drawn_classes()
    }

    /// Whether it uses a parameter.
    pub fn uses(&self, value: ValueId) -> bool {
        self.parameter_layouts.contains_key(&value)
    }

    /// The layout in which it uses a parameter.
    pub fn parameter_layout(&self, value: ValueId) -> &Layout {
        &self.parameter_layouts[&value]
    }

    /// The parameters it uses, in order of first use, with their layouts.
    pub fn parameters(&self, graph: &Graph) -> Vec<(ValueId, &Layout)> {
        let mut seen = BTreeSet::new();
        let inputs = self.ops.iter().flat_map(|&op| &graph.op(op).inputs);
        inputs
            .filter(|input| self.parameter_layouts.contains_key(input) && seen.insert(**input))
            .map(|&input| (input, &self.parameter_layouts[&input]))
            .collect()
    }
}

/// All that is known when a stage's bodies are built.
pub(super) struct Context<'a> {
    pub graph: &'a Graph,
    pub plan: &'a Plan,
    pub gradients_needed: &'a NeededGradients,
    pub model: &'a StageModel,
    pub params: &'a Parameters<'a>,
    pub boundaries: &'a Boundaries,
    /// The stage's number among all stages.
    pub stage: StageId,
    /// Where values wait that go to another stage of the same class.
    pub handovers: &'a Handovers,
}

impl Context<'_> {
    /// Global shape of a value of one micro-batch.
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.model.extents.shape(&self.graph.value(value).axes)
    }
}

/// The values that `instructions` read without having written: what earlier bodies must leave to them.
pub(super) fn awaited(instructions: &[Instruction], tensors: &[Tensor]) -> BTreeSet<TensorId> {
    let mut written = BTreeSet::new();
    let mut awaited = BTreeSet::new();
    for instruction in instructions {
        for read in &instruction.reads {
            if of_microbatch(tensors, read.tensor) && !written.contains(&read.tensor) {
                awaited.insert(read.tensor);
            }
        }
        written.extend(instruction.writes.iter().map(|write| write.to.tensor));
    }
    awaited
}
