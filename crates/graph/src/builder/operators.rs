//! One method per operator: what its operands' axes must be, and its loop signature.

use super::{GraphBuilder, NewOutput};
use crate::op::{Activation, Gate, RotaryScaling};
use crate::{DType, Dim, DimId, GraphError, OpKind, Reduction, Role, Signature, Split, ValueId};

impl GraphBuilder {
    /// `y = table[tokens]`.
    ///
    /// # Errors
    /// If the operands' axes do not fit.
    pub fn embed(
        &mut self,
        name: &str,
        tokens: ValueId,
        table: ValueId,
    ) -> Result<ValueId, GraphError> {
        let (rows, table_axes) = (self.axes(tokens), self.axes(table));
        let [vocab, model] = table_axes[..] else {
            return Err(self.axes_error(name, table, "an embedding table is [vocab, model]"));
        };
        let out = [&rows[..], &[model]].concat();
        let mut loops = parallel(&rows);
        loops.extend([(vocab, Split::Masked), (model, Split::Parallel)]);
        let signature = Signature::by_dim(&loops, &[rows, table_axes], std::slice::from_ref(&out));
        self.op(name, OpKind::Embed, &[tokens, table], vec![output(out)], signature)
    }

    /// `y = x . w + bias`, contracted over the axes that `x` ends with and `w` starts with (or, for a
    /// table used the other way round, ends with).
    ///
    /// # Errors
    /// If the operands' axes do not fit.
    pub fn contract(
        &mut self,
        name: &str,
        x: ValueId,
        w: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let (xs, ws) = (self.axes(x), self.axes(w));
        let shared = xs.iter().filter(|dim| ws.contains(dim)).count();
        let (rows, inner) = xs.split_at(xs.len() - shared);
        let transposed = !ws.starts_with(inner);
        if shared == 0 || shared == ws.len() || (transposed && !ws.ends_with(inner)) {
            let rule = format!(
                "it must start or end with the last axes of x [{}]",
                self.graph.axes_text(&xs)
            );
            return Err(self.axes_error(name, w, &rule));
        }
        let columns = if transposed { &ws[..ws.len() - shared] } else { &ws[shared..] }.to_vec();
        if let Some(bias) = bias
            && self.axes(bias) != columns
        {
            let rule = format!("the product's columns are [{}]", self.graph.axes_text(&columns));
            return Err(self.axes_error(name, bias, &rule));
        }
        let out = [rows, &columns[..]].concat();
        let mut loops = parallel(&out);
        // A bias would be added once per part of a split sum.
        let reduce = if bias.is_some() { Split::Opaque } else { Split::Reduce(Reduction::Sum) };
        loops.extend(inner.iter().map(|&dim| (dim, reduce)));
        let mut inputs = vec![xs.clone(), ws.clone()];
        inputs.extend(bias.map(|_| columns));
        let signature = Signature::by_dim(&loops, &inputs, std::slice::from_ref(&out));
        let operands: Vec<ValueId> = [x, w].into_iter().chain(bias).collect();
        self.op(name, OpKind::Contract { transposed }, &operands, vec![output(out)], signature)
    }

    /// `y = a + b`, where a parameter `b` may lack leading axes of `a`.
    ///
    /// # Errors
    /// If `b` does not have the axes of `a`, nor is a parameter with the last ones of them.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        let (a_axes, b_axes) = (self.axes(a), self.axes(b));
        // The gradient of a second activation is passed on unchanged, so it needs all the axes.
        match self.graph.value(b).parameter() {
            Some(_) => self.suffix(name, b, &a_axes)?,
            None => self.same_axes(name, b, &a_axes)?,
        }
        let signature = Signature::by_dim(
            &parallel(&a_axes),
            &[a_axes.clone(), b_axes],
            std::slice::from_ref(&a_axes),
        );
        self.op(name, OpKind::Add, &[a, b], vec![output(a_axes)], signature)
    }

    /// The `parts` side by side along their axis number `axis`, which becomes the dimension `joined`.
    ///
    /// # Errors
    /// If there are fewer than two parts, one of them is no operator's result, they differ in another
    /// axis, the axis is the batch or does not exist, or `joined` is not as long as the parts together.
    pub fn concat(
        &mut self,
        name: &str,
        parts: &[ValueId],
        axis: usize,
        joined: DimId,
    ) -> Result<ValueId, GraphError> {
        let error = |key, value, rule: &str| self.parameter_error(name, key, value, rule.into());
        let [first, _, ..] = *parts else {
            return Err(error("parts", parts.len().to_string(), "there are two or more"));
        };
        let mut out = self.axes(first);
        if out.get(axis).is_none_or(|&dim| dim == self.graph.batch) {
            let rule = format!("there is no axis {axis} after the batch");
            return Err(self.axes_error(name, first, &rule));
        }
        out[axis] = joined;
        let mut length = 0_usize;
        for &part in parts {
            let mut axes = self.axes(part);
            let Some(own) = axes.get_mut(axis) else {
                return Err(self.axes_error(name, part, &format!("it needs an axis {axis}")));
            };
            length = length.saturating_add(self.graph.dim(*own).size);
            *own = joined;
            if axes != out {
                let needed = self.graph.axes_text(&self.axes(first));
                let rule = format!("[{needed}] are needed, but for axis {axis}");
                return Err(self.axes_error(name, part, &rule));
            }
        }
        let Dim { name: dim, size } = self.graph.dim(joined);
        if *size != length {
            return Err(error(dim, size.to_string(), &format!("the parts are {length} together")));
        }
        let others: Vec<DimId> = out.iter().copied().filter(|&dim| dim != joined).collect();
        let inputs: Vec<Vec<DimId>> = parts.iter().map(|&part| self.axes(part)).collect();
        let signature = Signature::by_dim(&parallel(&others), &inputs, std::slice::from_ref(&out));
        self.op(name, OpKind::Concat { axis }, parts, vec![output(out)], signature)
    }

    /// Inverted dropout.
    ///
    /// # Errors
    /// If the probability is outside [0, 1).
    pub fn dropout(
        &mut self,
        name: &str,
        x: ValueId,
        probability: f32,
    ) -> Result<ValueId, GraphError> {
        self.check_probability(name, probability)?;
        if probability == 0.0 {
            return Ok(x);
        }
        let axes = self.axes(x);
        self.rowwise(name, OpKind::Dropout { probability }, &[x], &parallel(&axes), &axes, true)
    }

    /// `y = residual + dropout(x + bias)`.
    ///
    /// # Errors
    /// If axes do not fit or the probability is outside [0, 1).
    pub fn bias_dropout_add(
        &mut self,
        name: &str,
        x: ValueId,
        bias: ValueId,
        residual: ValueId,
        probability: f32,
    ) -> Result<ValueId, GraphError> {
        self.check_probability(name, probability)?;
        let axes = self.axes(x);
        self.same_axes(name, residual, &axes)?;
        self.suffix(name, bias, &axes)?;
        let kind = OpKind::BiasDropoutAdd { probability };
        let operands = [x, bias, residual];
        self.rowwise(name, kind, &operands, &parallel(&axes), &axes, probability > 0.0)
    }

    /// Layer normalisation over the last axis.
    ///
    /// # Errors
    /// If gain or bias do not have exactly the last axis of `x`, or epsilon is not above 0.
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: ValueId,
        gain: ValueId,
        bias: ValueId,
        epsilon: f32,
    ) -> Result<ValueId, GraphError> {
        self.check_positive(name, "epsilon", epsilon)?;
        let axes = self.axes(x);
        let pair = self.moments();
        let rows = &axes[..axes.len().saturating_sub(1)];
        self.same_axes(name, gain, &axes[rows.len()..])?;
        self.same_axes(name, bias, &axes[rows.len()..])?;
        let stats = [rows, &[pair]].concat();
        let inputs: Vec<Vec<DimId>> = [x, gain, bias].map(|id| self.axes(id)).to_vec();
        let signature = Signature::by_dim(&parallel(rows), &inputs, &[axes.clone(), stats.clone()]);
        let outputs = vec![output(axes), auxiliary("stats", stats, DType::Float)];
        self.op(name, OpKind::LayerNorm { epsilon }, &[x, gain, bias], outputs, signature)
    }

    /// Root-mean-square normalisation over the last axis, times `offset + gain`.
    ///
    /// # Errors
    /// If the gain does not have exactly the last axis of `x`, epsilon is not above 0, or the offset is not
    /// finite.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        gain: ValueId,
        offset: f32,
        epsilon: f32,
    ) -> Result<ValueId, GraphError> {
        self.check_positive(name, "epsilon", epsilon)?;
        self.check_finite(name, "offset", offset)?;
        let axes = self.axes(x);
        let rows = axes[..axes.len().saturating_sub(1)].to_vec();
        self.same_axes(name, gain, &axes[rows.len()..])?;
        let inputs = [axes.clone(), self.axes(gain)];
        let signature = Signature::by_dim(&parallel(&rows), &inputs, &[axes.clone(), rows.clone()]);
        let outputs = vec![output(axes), auxiliary("stats", rows, DType::Float)];
        self.op(name, OpKind::RmsNorm { epsilon, offset }, &[x, gain], outputs, signature)
    }

    /// A pointwise nonlinearity.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn pointwise(
        &mut self,
        name: &str,
        x: ValueId,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        let axes = self.axes(x);
        if let Some(counts) = self.graph.value(x).counts {
            return self.rows_pointwise(name, x, counts, activation);
        }
        self.rowwise(name, OpKind::Pointwise(activation), &[x], &parallel(&axes), &axes, false)
    }

    /// `f(gate) * up`.
    ///
    /// # Errors
    /// If the two differ in axes.
    pub fn glu(
        &mut self,
        name: &str,
        f: Gate,
        gate: ValueId,
        up: ValueId,
    ) -> Result<ValueId, GraphError> {
        let axes = self.axes(gate);
        self.same_axes(name, up, &axes)?;
        self.rowwise(name, OpKind::Glu(f), &[gate, up], &parallel(&axes), &axes, false)
    }

    /// `factor x`.
    ///
    /// # Errors
    /// If the factor is not finite.
    pub fn scale(&mut self, name: &str, x: ValueId, factor: f32) -> Result<ValueId, GraphError> {
        self.check_finite(name, "factor", factor)?;
        let axes = self.axes(x);
        self.rowwise(name, OpKind::Scale { factor }, &[x], &parallel(&axes), &axes, false)
    }

    /// `cap tanh(x / cap)`.
    ///
    /// # Errors
    /// If the bound is not finite and above 0.
    pub fn soft_cap(&mut self, name: &str, x: ValueId, cap: f32) -> Result<ValueId, GraphError> {
        self.check_positive(name, "cap", cap)?;
        let axes = self.axes(x);
        self.rowwise(name, OpKind::SoftCap { cap }, &[x], &parallel(&axes), &axes, false)
    }

    /// Rotary position embedding of the first `width` elements, or all, of the heads of `x [batch, seq,
    /// heads..., head_dim]`.
    ///
    /// # Errors
    /// If `x` has fewer than four axes, an odd number of elements or more than a head has are to be rotated,
    /// or the base or scaling is not possible.
    pub fn rotary(
        &mut self,
        name: &str,
        x: ValueId,
        theta: f32,
        scaling: Option<RotaryScaling>,
        width: Option<usize>,
    ) -> Result<ValueId, GraphError> {
        self.check_positive(name, "theta", theta)?;
        if let Some(scaling) = scaling
            && !scaling.is_possible()
        {
            return Err(GraphError::Parameter {
                model: self.graph.name.clone(),
                key: format!("{name} scaling"),
                value: format!("{scaling:?}"),
                rule: RotaryScaling::RULE.into(),
            });
        }
        let axes = self.axes(x);
        let head_dim = axes.last().map_or(0, |&dim| self.graph.dim(dim).size);
        let width = match width {
            Some(width) if width == 0 || !width.is_multiple_of(2) || width > head_dim => {
                let rule = format!("an even number from 2 to the {head_dim} of a head is needed");
                return Err(self.parameter_error(name, "width", width.to_string(), rule));
            }
            width => width.unwrap_or(head_dim),
        };
        if axes.len() < 4 || !width.is_multiple_of(2) {
            let rule = "rotation needs [batch, seq, heads..., head_dim] with an even head_dim";
            return Err(self.axes_error(name, x, rule));
        }
        let loops = parallel(&axes[..axes.len() - 1]);
        let kind = OpKind::Rotary { width, theta, scaling };
        self.rowwise(name, kind, &[x], &loops, &axes, false)
    }

    /// Softmax cross-entropy of `logits [..., vocab]` against `targets [...]`, summed over all rows, in
    /// three phases so that the vocabulary may be split.
    ///
    /// # Errors
    /// If the targets are not the logits' rows.
    pub fn cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        targets: ValueId,
    ) -> Result<ValueId, GraphError> {
        self.padded_cross_entropy(name, logits, targets, None)
    }

    /// [`GraphBuilder::cross_entropy`] over the first `classes` of the vocabulary, if some are given: the others are
    /// padding, which makes it divisible, and have no part in the loss.
    ///
    /// # Errors
    /// If the targets are not the logits' rows, or there are more classes than logits, or none.
    pub(crate) fn padded_cross_entropy(
        &mut self,
        name: &str,
        logits: ValueId,
        targets: ValueId,
        classes: Option<usize>,
    ) -> Result<ValueId, GraphError> {
        let axes = self.axes(logits);
        let Some((&vocab, rows)) = axes.split_last() else {
            return Err(self.axes_error(name, logits, "logits are [..., vocab]"));
        };
        self.same_axes(name, targets, rows)?;
        let columns = self.graph.dim(vocab).size;
        if let Some(classes) = classes.filter(|classes| !(1..=columns).contains(classes)) {
            let rule = format!("from 1 to the {columns} of the logits are needed");
            return Err(self.parameter_error(name, "classes", classes.to_string(), rule));
        }
        // Where nothing is padding, it is not said.
        let classes = classes.filter(|&classes| classes < columns);
        let rows = rows.to_vec();
        let with = |split| {
            let mut loops = parallel(&rows);
            loops.push((vocab, split));
            loops
        };
        let max = Split::Reduce(Reduction::Max);
        let signature =
            Signature::by_dim(&with(max), std::slice::from_ref(&axes), std::slice::from_ref(&rows));
        let stat = |suffix| auxiliary(suffix, rows.clone(), DType::Float);
        let max = self.op(
            &format!("{name}.max"),
            OpKind::LogitMax { classes },
            &[logits],
            vec![stat("value")],
            signature,
        )?;

        let sum = Split::Reduce(Reduction::Sum);
        let inputs = [axes.clone(), rows.clone(), rows.clone()];
        let signature = Signature::by_dim(&with(sum), &inputs, &[rows.clone(), rows.clone()]);
        let outputs = vec![stat("value"), stat("target")];
        let op_name = format!("{name}.sum");
        let sum = self.op(
            &op_name,
            OpKind::LogitSum { classes },
            &[logits, max, targets],
            outputs,
            signature,
        )?;
        let target = ValueId(sum.0 + 1);

        let mut loops: Vec<_> =
            rows.iter().map(|&dim| (dim, Split::Reduce(Reduction::Sum))).collect();
        loops.push((vocab, Split::Resolved));
        let inputs = [axes, rows.clone(), rows.clone(), rows.clone(), rows];
        let signature = Signature::by_dim(&loops, &inputs, &[vec![]]);
        let loss = NewOutput { dtype: DType::Float, ..output(vec![]) };
        let operands = [logits, max, sum, target, targets];
        self.op(name, OpKind::CrossEntropy { classes }, &operands, vec![loss], signature)
    }

    /// An operator whose outputs have the axes of `axes`: one activation and, if `masked`, a mask.
    fn rowwise(
        &mut self,
        name: &str,
        kind: OpKind,
        inputs: &[ValueId],
        loops: &[(DimId, Split)],
        axes: &[DimId],
        masked: bool,
    ) -> Result<ValueId, GraphError> {
        let input_dims: Vec<Vec<DimId>> = inputs.iter().map(|&id| self.axes(id)).collect();
        let mut outputs = vec![output(axes.to_vec())];
        if masked {
            outputs.push(auxiliary("mask", axes.to_vec(), DType::Mask));
        }
        let output_dims = vec![axes.to_vec(); outputs.len()];
        let signature = Signature::by_dim(loops, &input_dims, &output_dims);
        self.op(name, kind, inputs, outputs, signature)
    }

    pub(super) fn same_axes(
        &self,
        op: &str,
        value: ValueId,
        axes: &[DimId],
    ) -> Result<(), GraphError> {
        if self.graph.value(value).axes == axes {
            return Ok(());
        }
        let rule = format!("[{}] are needed", self.graph.axes_text(axes));
        Err(self.axes_error(op, value, &rule))
    }

    fn suffix(&self, op: &str, value: ValueId, axes: &[DimId]) -> Result<(), GraphError> {
        if axes.ends_with(&self.graph.value(value).axes) {
            return Ok(());
        }
        let rule = format!("they must be the last of [{}]", self.graph.axes_text(axes));
        Err(self.axes_error(op, value, &rule))
    }

    pub(super) fn check_positive(&self, op: &str, key: &str, value: f32) -> Result<(), GraphError> {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        Err(GraphError::Parameter {
            model: self.graph.name.clone(),
            key: format!("{op} {key}"),
            value: value.to_string(),
            rule: "a finite number above 0 is needed".into(),
        })
    }

    fn check_finite(&self, op: &str, key: &str, value: f32) -> Result<(), GraphError> {
        if value.is_finite() {
            return Ok(());
        }
        Err(self.parameter_error(op, key, value.to_string(), "a finite number is needed".into()))
    }

    pub(super) fn check_probability(&self, op: &str, probability: f32) -> Result<(), GraphError> {
        if (0.0..1.0).contains(&probability) {
            return Ok(());
        }
        let rule = "a dropout probability is at least 0 and below 1".into();
        Err(self.parameter_error(op, "dropout", probability.to_string(), rule))
    }
}

pub(super) fn output(axes: Vec<DimId>) -> NewOutput {
    NewOutput { suffix: None, axes, dtype: DType::Real, role: Role::Activation, counts: None }
}

pub(super) fn auxiliary(suffix: &'static str, axes: Vec<DimId>, dtype: DType) -> NewOutput {
    NewOutput { suffix: Some(suffix), axes, dtype, role: Role::Auxiliary, counts: None }
}

pub(super) fn parallel(dims: &[DimId]) -> Vec<(DimId, Split)> {
    dims.iter().map(|&dim| (dim, Split::Parallel)).collect()
}
