//! Which gradients training needs: those on the way from the loss to a parameter that is not frozen.

use shardloom_graph::gradient::{self, GradientOp, Operand};
use shardloom_graph::{Graph, OpId, ValueId};

use crate::ProgramError;
use crate::sync::Ways;
use shardloom_schedule::ScheduleError;

/// By value, whether training needs its gradient.
pub(super) struct NeededGradients(Vec<bool>);

impl NeededGradients {
    /// # Errors
    /// If all parameters that the loss depends on are frozen.
    pub fn of(graph: &Graph, ways: &Ways<'_>) -> Result<NeededGradients, ProgramError> {
        let is_trained = |name: &str| !ways.is_frozen(ways.group(name));
        let of_parameter =
            |node: &shardloom_graph::Value| node.parameter().is_some() && is_trained(&node.name);
        let mut needed =
            NeededGradients(graph.values().map(|(_, node)| of_parameter(node)).collect());
        for (_, op) in graph.ops() {
            if op.inputs.iter().any(|&input| needed.needs(input)) {
                for &output in &op.outputs {
                    needed.0[output.index()] = graph.value(output).differentiable();
                }
            }
        }
        match needed.needs(graph.loss()) {
            true => Ok(needed),
            false => Err(ScheduleError::Rule(
                "parameters: all that the loss depends on are frozen, so that there is nothing to train; \
                 leave some out of the groups with frozen = true"
                    .into(),
            )
            .into()),
        }
    }

    /// Whether training needs the gradient of a value.
    pub fn needs(&self, value: ValueId) -> bool {
        self.0[value.index()]
    }

    /// The gradient operators of an operator that training needs, with all that they produce: its input-gradient and
    /// its weight-gradient one. The latter may read what the former alone produces.
    pub fn rule(&self, graph: &Graph, op: OpId) -> gradient::Rule {
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
