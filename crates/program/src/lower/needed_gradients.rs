//! Which gradients training needs: those on the way from the loss to a parameter that is not frozen.

use shardloom_graph::gradient::{self, GradientOp, Operand};
use shardloom_graph::work::Pass;
use shardloom_graph::{Graph, OpId, Value, ValueId};

/// By value, whether training needs its gradient.
#[derive(Clone, Debug)]
pub struct NeededGradients(Vec<bool>);

impl NeededGradients {
    /// Those of a graph of whose parameters these are trained, by name.
    pub fn of(graph: &Graph, is_trained: impl Fn(&str) -> bool) -> NeededGradients {
        let of_parameter = |node: &Value| node.parameter().is_some() && is_trained(&node.name);
        let mut needed =
            NeededGradients(graph.values().map(|(_, node)| of_parameter(node)).collect());
        for (_, op) in graph.ops() {
            if op.inputs.iter().any(|&input| needed.needs(input)) {
                for &output in &op.outputs {
                    needed.0[output.index()] = graph.value(output).differentiable();
                }
            }
        }
        needed
    }

    /// Whether training needs the gradient of a value.
    pub fn needs(&self, value: ValueId) -> bool {
        self.0[value.index()]
    }

    /// The passes of an operator that training needs.
    pub fn passes(&self, graph: &Graph, op: OpId) -> impl Iterator<Item = Pass> {
        let gradient::Rule { input, weight, .. } = self.rule(graph, op);
        let gradients = [input.map(|_| Pass::Input), weight.map(|_| Pass::Weight)];
        [Some(Pass::Forward)].into_iter().chain(gradients).flatten()
    }

    /// The gradient operators of an operator that training needs, with all that they produce: its input-gradient and
    /// its weight-gradient one. The latter may read what the former alone produces.
    pub(super) fn rule(&self, graph: &Graph, op: OpId) -> gradient::Rule {
        let inputs = &graph.op(op).inputs;
        let needed =
            |gradient: &GradientOp| gradient.produces.iter().any(|&it| self.needs(inputs[it]));
        let gradient::Rule { input, weight, mut passes } = gradient::rule(graph, op);
        let weight = weight.filter(needed);
        let is_read = weight.as_ref().is_some_and(|weight| {
            weight.reads.iter().any(|it| matches!(it, Operand::InputGradient(_)))
        });
        passes.retain(|&index| self.needs(inputs[index]));
        gradient::Rule { input: input.filter(|it| is_read || needed(it)), weight, passes }
    }
}
