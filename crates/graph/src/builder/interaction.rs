//! What recommendation models need: products of features with each other, and a loss of yes and no.

use super::operators::{output, parallel};
use super::{GraphBuilder, NewOutput};
use crate::{DType, DimId, GraphError, OpKind, Reduction, Signature, Split, ValueId};

impl GraphBuilder {
    /// The dot products of all pairs of `parts [batch, model]`, in the dimension `pairs`; with `diagonal`
    /// also of each part with itself.
    ///
    /// # Errors
    /// If there are fewer than two parts, one of them is no operator's result or occurs twice, they
    /// differ in their axes, or `pairs` is not as long as there are pairs.
    pub fn dot_interaction(
        &mut self,
        name: &str,
        parts: &[ValueId],
        pairs: DimId,
        diagonal: bool,
    ) -> Result<ValueId, GraphError> {
        let error = |key, value, rule| self.parameter_error(name, key, value, rule);
        let count = parts.len();
        let [first, _, ..] = *parts else {
            return Err(error("parts", count.to_string(), "there are two or more".into()));
        };
        let axes = self.axes(first);
        let [batch, model] = axes[..] else {
            return Err(self.axes_error(name, first, "parts are [batch, model]"));
        };
        for (at, &part) in parts.iter().enumerate() {
            self.same_axes(name, part, &axes)?;
            if parts[..at].contains(&part) {
                return Err(self.axes_error(name, part, "each part is there once"));
            }
        }
        let needed = pair_count(count, diagonal);
        let dim = self.graph.dim(pairs);
        if dim.size != needed {
            let rule = format!("{count} parts have {needed} pairs");
            return Err(error(&dim.name, dim.size.to_string(), rule));
        }
        let out = vec![batch, pairs];
        // Parts of a model dimension that is split have a part of each sum.
        let mut loops = parallel(&[batch]);
        loops.push((model, Split::Reduce(Reduction::Sum)));
        let inputs = vec![axes; count];
        let signature = Signature::by_dim(&loops, &inputs, std::slice::from_ref(&out));
        self.op(name, OpKind::DotInteraction { diagonal }, parts, vec![output(out)], signature)
    }

    /// Binary cross-entropy of the sigmoid of `logits [...]` against `targets [...]` of 0 and 1, summed over
    /// all elements.
    ///
    /// # Errors
    /// If the two differ in their axes.
    pub fn sigmoid_cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        targets: ValueId,
    ) -> Result<ValueId, GraphError> {
        let axes = self.axes(logits);
        self.same_axes(name, targets, &axes)?;
        let loops: Vec<_> = axes.iter().map(|&dim| (dim, Split::Reduce(Reduction::Sum))).collect();
        let signature = Signature::by_dim(&loops, &[axes.clone(), axes], &[vec![]]);
        let loss = NewOutput { dtype: DType::Float, ..output(vec![]) };
        let operands = [logits, targets];
        self.op(name, OpKind::SigmoidCrossEntropy, &operands, vec![loss], signature)
    }
}

/// Pairs of so many parts, with or without those of a part with itself.
pub(crate) fn pair_count(parts: usize, diagonal: bool) -> usize {
    parts * (parts - 1) / 2 + if diagonal { parts } else { 0 }
}
