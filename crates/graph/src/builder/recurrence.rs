//! Recurrences over the positions of a sequence.

use super::GraphBuilder;
use super::operators::{auxiliary, output, parallel};
use crate::{DType, GraphError, OpKind, Signature, ValueId};

impl GraphBuilder {
    /// The recurrence of a long short-term memory: `gates [batch, seq, gate, hidden]` are what the input
    /// contributes to input gate, forget gate, candidate and output gate, `weight [units, gate, hidden]`
    /// multiplies the result `[batch, seq, units]` of the position before. `projection [hidden, units]`
    /// makes the result narrower than the cells; without one the two are as wide. Only the batch can be
    /// split: a position needs all of the result before it.
    ///
    /// # Errors
    /// If the operands' axes do not fit, there are not four gates, or the bias is not finite. Whether
    /// nothing else reads the gates is seen by [`finish`](GraphBuilder::finish).
    pub fn lstm(
        &mut self,
        name: &str,
        gates: ValueId,
        weight: ValueId,
        projection: Option<ValueId>,
        forget_bias: f32,
    ) -> Result<ValueId, GraphError> {
        if !forget_bias.is_finite() {
            return Err(GraphError::Parameter {
                model: self.graph.name.clone(),
                key: format!("{name} forget bias"),
                value: forget_bias.to_string(),
                rule: "a finite number is needed".into(),
            });
        }
        let (gate_axes, weight_axes) = (self.axes(gates), self.axes(weight));
        let [batch, seq, gate, hidden] = gate_axes[..] else {
            return Err(self.axes_error(name, gates, "gates are [batch, seq, gate, hidden]"));
        };
        if batch != self.graph.batch || self.graph.dim(gate).size != 4 {
            let rule = "gates are [batch, seq, gate, hidden], where there are 4 of them";
            return Err(self.axes_error(name, gates, rule));
        }
        let units = match weight_axes[..] {
            [units, ..] if weight_axes[1..] == [gate, hidden] => units,
            _ => {
                let inner = self.graph.axes_text(&[gate, hidden]);
                let rule = format!("recurrent weights are [units, {inner}]");
                return Err(self.axes_error(name, weight, &rule));
            }
        };
        match projection {
            Some(projection) => self.same_axes(name, projection, &[hidden, units])?,
            None if self.graph.dim(units).size != self.graph.dim(hidden).size => {
                let rule = format!(
                    "without a projection there are as many units as {}",
                    self.graph.dim(hidden).name
                );
                return Err(self.axes_error(name, weight, &rule));
            }
            None => {}
        }
        let cells = vec![batch, seq, hidden];
        let mut outputs = vec![
            output(vec![batch, seq, units]),
            auxiliary("activated", gate_axes, DType::Real),
            auxiliary("cell", cells.clone(), DType::Float),
        ];
        if projection.is_some() {
            outputs.push(auxiliary("output", cells, DType::Real));
        }
        let operands: Vec<ValueId> = [gates, weight].into_iter().chain(projection).collect();
        let inputs: Vec<_> = operands.iter().map(|&id| self.axes(id)).collect();
        let results: Vec<_> = outputs.iter().map(|new| new.axes.clone()).collect();
        let signature = Signature::by_dim(&parallel(&[batch]), &inputs, &results);
        self.op(name, OpKind::Lstm { forget_bias }, &operands, outputs, signature)
    }
}
