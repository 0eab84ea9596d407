//! Which mesh axes split which loop of an operator, and the operand layouts that follow.

use shardloom_graph::{Extents, Graph, OpId, Reduction, Split};
use shardloom_plan::{Axis, LayoutRules, Mesh};

use crate::Layout;

/// For each loop of one operator, the mesh axes that split it, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// Mesh axes per loop, in the order of the operator's signature.
    pub loops: Vec<Vec<Axis>>,
}

impl Assignment {
    /// Gives each mesh axis wider than one to the first rule whose dimension is a loop of `op` that may
    /// be split; an axis without such a rule replicates the operator.
    pub fn of(graph: &Graph, op: OpId, rules: &LayoutRules, mesh: &Mesh) -> Assignment {
        let signature = &graph.op(op).signature;
        let mut loops = vec![vec![]; signature.loops.len()];
        for axis in mesh.axes() {
            let chosen = rules.0.iter().filter(|rule| rule.axis == axis).find_map(|rule| {
                let dim = graph.dim_named(&rule.dim)?;
                signature
                    .loops
                    .iter()
                    .position(|each| each.dim == dim && each.split != Split::Opaque)
            });
            if let Some(index) = chosen {
                loops[index].push(axis);
            }
        }
        Assignment { loops }
    }

    /// The layout in which the operator reads its n-th input.
    pub fn input(&self, graph: &Graph, op: OpId, index: usize) -> Layout {
        let signature = &graph.op(op).signature;
        Layout { splits: self.splits(&signature.inputs[index]), partial: vec![] }
    }

    /// The layout in which the operator gives its n-th output.
    pub fn output(&self, graph: &Graph, op: OpId, index: usize) -> Layout {
        let signature = &graph.op(op).signature;
        let axes = &signature.outputs[index];
        let partial = self.lacking(axes, |position| match signature.loops[position].split {
            Split::Reduce(reduction) => Some(reduction),
            Split::Masked => Some(Reduction::Sum),
            Split::Parallel | Split::Resolved | Split::Opaque => None,
        });
        Layout { splits: self.splits(axes), partial }
    }

    /// The layout in which the operator's gradient pass gives the gradient of its n-th input: a partial
    /// sum over every split loop that the input lacks.
    pub fn input_gradient(&self, graph: &Graph, op: OpId, index: usize) -> Layout {
        let axes = &graph.op(op).signature.inputs[index];
        let partial = self.lacking(axes, |_| Some(Reduction::Sum));
        Layout { splits: self.splits(axes), partial }
    }

    /// The extents that one device runs through, of `global` ones.
    pub fn local_extents(&self, graph: &Graph, op: OpId, global: &Extents, mesh: &Mesh) -> Extents {
        let mut local = global.clone();
        for (each, axes) in graph.op(op).signature.loops.iter().zip(&self.loops) {
            local.set(each.dim, global.get(each.dim) / mesh.span(axes));
        }
        local
    }

    fn splits(&self, operand: &[usize]) -> Vec<Vec<Axis>> {
        operand.iter().map(|&each| self.loops[each].clone()).collect()
    }

    fn lacking(
        &self,
        operand: &[usize],
        reduction: impl Fn(usize) -> Option<Reduction>,
    ) -> Vec<(Axis, Reduction)> {
        let mut partial: Vec<(Axis, Reduction)> = (0..self.loops.len())
            .filter(|each| !operand.contains(each))
            .filter_map(|each| reduction(each).map(|reduction| (each, reduction)))
            .flat_map(|(each, reduction)| self.loops[each].iter().map(move |&a| (a, reduction)))
            .collect();
        partial.sort();
        partial
    }
}
