//! A softmax over drawn classes, and the same model with one over all.

use std::borrow::Cow;

use super::operators::{auxiliary, output};
use super::{GraphBuilder, NewOutput};
use crate::{DType, DimId, Graph, GraphError, OpKind, Reduction, Signature, Split, ValueId};

impl GraphBuilder {
    /// Softmax cross-entropy of `x [..., model] . w [vocab, model] + bias [vocab]` against `targets [...]`, summed
    /// over all rows, in training over each row's target and as many other classes as `samples` is long.
    ///
    /// # Errors
    /// If the operands' axes do not fit, or more than half of all classes are to be drawn.
    pub fn sampled_cross_entropy(
        &mut self,
        name: &str,
        x: ValueId,
        targets: ValueId,
        (w, bias): (ValueId, ValueId),
        samples: DimId,
    ) -> Result<ValueId, GraphError> {
        let (xs, ws) = (self.axes(x), self.axes(w));
        let (Some((&model, rows)), &[vocab, inner]) = (xs.split_last(), &ws[..]) else {
            return Err(self.axes_error(name, w, "it is [vocab, model]"));
        };
        if inner != model {
            let rule =
                format!("it must end with the last axis of x [{}]", self.graph.axes_text(&xs));
            return Err(self.axes_error(name, w, &rule));
        }
        self.same_axes(name, targets, rows)?;
        self.same_axes(name, bias, &[vocab])?;
        let [classes, drawn] = [vocab, samples].map(|dim| self.graph.dim(dim).size);
        if 2 * drawn > classes {
            let rule = format!("at most half of the {classes} classes are drawn");
            let key = &self.graph.dim(samples).name;
            return Err(self.parameter_error(name, key, drawn.to_string(), rule));
        }
        let rows = rows.to_vec();
        // Every device that has rows has all classes.
        let loops: Vec<_> = rows.iter().map(|&dim| (dim, Split::Reduce(Reduction::Sum))).collect();
        let sampled = [&rows[..], &[samples]].concat();
        let inputs = [xs, rows.clone(), ws, vec![vocab]];
        let outputs = [vec![], rows.clone(), sampled.clone()];
        let signature = Signature::by_dim(&loops, &inputs, &outputs);
        let outputs = vec![
            NewOutput { dtype: DType::Float, ..output(vec![]) },
            auxiliary("target", rows, DType::Float),
            auxiliary("sampled", sampled, DType::Float),
        ];
        let kind = OpKind::SampledCrossEntropy { classes, samples: drawn };
        self.op(name, kind, &[x, targets, w, bias], outputs, signature)
    }
}

impl Graph {
    /// The same model with a loss over all classes, whose logits are a value, as what a model says of a text needs
    /// them. Parameters and inputs keep their ids and names.
    ///
    /// ```
    /// use shardloom_graph::ModelSpec;
    /// let text = "lstm:layers=1,hidden=4,embed=4,vocab=16,seq=4,sampled_softmax=8";
    /// let graph = ModelSpec::parse(text)?.graph()?;
    /// let full = graph.with_full_softmax()?;
    /// assert_eq!(full.parameter_count(), graph.parameter_count());
    /// assert!(full.ops().any(|(_, op)| op.name == "loss.logits"));
    /// # Ok::<(), shardloom_graph::GraphError>(())
    /// ```
    ///
    /// # Errors
    /// If a name that is needed for it is taken.
    pub fn with_full_softmax(&self) -> Result<Cow<'_, Graph>, GraphError> {
        // A loss is the last operator of a model, and what it gives the last values.
        let Some(loss) = self.ops.last().filter(|op| op.kind.drawn_classes() > 0) else {
            return Ok(Cow::Borrowed(self));
        };
        let &[x, targets, w, bias] = &loss.inputs[..] else {
            unreachable!("a loss over drawn classes reads {} values", loss.inputs.len())
        };
        let mut graph = self.clone();
        graph.ops.pop();
        graph.values.truncate(self.values.len() - loss.outputs.len());
        let id = crate::OpId(graph.ops.len() as u32);
        graph.values.iter_mut().for_each(|value| value.consumers.retain(|&reader| reader != id));
        graph.blocks[loss.block.index()].ops.pop();
        let names = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect();
        let mut net = GraphBuilder {
            value_names: names(&mut graph.values.iter().map(|it| &it.name)),
            op_names: names(&mut graph.ops.iter().map(|it| &it.name)),
            dim_names: names(&mut graph.dims().iter().map(|it| &it.name)),
            parameter_elements: self.parameter_count(),
            slots: std::collections::HashMap::new(),
            graph,
        };
        let logits = net.contract(&format!("{}.logits", loss.name), x, w, Some(bias))?;
        let total = net.cross_entropy(&loss.name, logits, targets)?;
        Ok(Cow::Owned(net.finish(total)?))
    }
}
