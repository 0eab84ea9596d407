//! Operators on rows that choose one of several experts while running.
//!
//! Only samples and experts may be split. The rows of a sample take slots in their order, so who holds some
//! of a sample's rows must hold all of them; and since each sample has slots of its own, which rows find
//! one does not depend on how samples are dealt to devices or micro-batches (a group of GShard, Lepikhin
//! et al. 2020, arXiv 2006.16668, section 2.2, is a sample here).

use super::operators::{auxiliary, output, parallel};
use super::{GraphBuilder, NewOutput};
use crate::op::{Activation, Overflow};
use crate::{DType, DimId, GraphError, OpKind, Signature, ValueId};

/// Counts are kept as 32-bit numbers with a fraction, which are exact up to here.
const MAX_SLOTS: usize = 1 << 24;

impl GraphBuilder {
    /// Top-1 gating of `logits [batch, rows..., choices]` to experts, of which each has `slots` for the rows
    /// of one sample. Gives the probability of each row's choice; the other results are found through it by
    /// [`dispatch`](Self::dispatch) and [`combine`](Self::combine).
    ///
    /// # Errors
    /// If there are no rows of samples, there are not as many choices as experts, or an expert has more than
    /// 2^24 slots.
    pub fn route(
        &mut self,
        name: &str,
        logits: ValueId,
        experts: DimId,
        slots: DimId,
        overflow: Overflow,
    ) -> Result<ValueId, GraphError> {
        let axes = self.axes(logits);
        let [batch, .., choices] = axes[..] else {
            return Err(self.axes_error(name, logits, "logits are [batch, rows..., choices]"));
        };
        let error =
            |key, value: usize, rule| self.parameter_error(name, key, value.to_string(), rule);
        let [choices, offered, most] =
            [choices, experts, slots].map(|dim| self.graph.dim(dim).size);
        if batch != self.graph.batch {
            return Err(self.axes_error(name, logits, "the first axis is the batch"));
        }
        if choices != offered {
            return Err(error("experts", offered, format!("the logits are of {choices}")));
        }
        if most > MAX_SLOTS {
            return Err(error("slots", most, format!("at most {MAX_SLOTS}")));
        }
        let rows = axes[..axes.len() - 1].to_vec();
        let counts = vec![experts, batch];
        let index = |suffix| auxiliary(suffix, rows.clone(), DType::Index);
        let outputs = vec![
            output(rows.clone()),
            index("choice"),
            index("slot"),
            auxiliary("counts", counts.clone(), DType::Float),
        ];
        let signature = Signature::by_dim(
            &parallel(&[batch]),
            std::slice::from_ref(&axes),
            &[rows.clone(), rows.clone(), rows.clone(), counts],
        );
        let kind = OpKind::Route { slots: most, overflow };
        let routed = self.op(name, kind, &[logits], outputs, signature)?;
        if let Some(op) = self.graph.value(routed).producer {
            self.slots.insert(op, slots);
        }
        Ok(routed)
    }

    /// The rows of `x [batch, rows..., model]`, packed by the expert that `routed` gives them to.
    ///
    /// # Errors
    /// If `routed` is not the probability of a routing of these rows.
    pub fn dispatch(
        &mut self,
        name: &str,
        x: ValueId,
        routed: ValueId,
    ) -> Result<ValueId, GraphError> {
        let Routing { choice, slot, counts, slots, .. } = self.routing(name, routed)?;
        let axes = self.axes(x);
        let model = self.row_axis(name, x, routed)?;
        let [experts, batch] = self.axes(counts)[..] else {
            return Err(self.axes_error(name, counts, "counts are [experts, batch]"));
        };
        let packed = vec![experts, batch, slots, model];
        let inputs = [x, choice, slot, counts];
        let dims: Vec<Vec<DimId>> =
            [axes].into_iter().chain(inputs[1..].iter().map(|&it| self.axes(it))).collect();
        let signature =
            Signature::by_dim(&parallel(&[batch]), &dims, std::slice::from_ref(&packed));
        let outputs = vec![NewOutput { counts: Some(counts), ..output(packed) }];
        self.op(name, OpKind::Dispatch, &inputs, outputs, signature)
    }

    /// The product of each expert's rows `x [experts, batch, slots, k]` with its matrix of `w [experts, k,
    /// n]`.
    ///
    /// # Errors
    /// If `x` does not come from a dispatch, or the axes do not fit.
    pub fn expert_contract(
        &mut self,
        name: &str,
        x: ValueId,
        w: ValueId,
    ) -> Result<ValueId, GraphError> {
        let counts = self.counts(name, x)?;
        let (x_axes, w_axes) = (self.axes(x), self.axes(w));
        let [experts, batch, slots, inner] = x_axes[..] else {
            return Err(self.axes_error(name, x, "rows are [experts, batch, slots, k]"));
        };
        let columns = match w_axes[..] {
            [own, rows, columns] if own == experts && rows == inner => columns,
            _ => {
                let first = self.graph.axes_text(&[experts, inner]);
                let rule = format!("a matrix for each expert is [{first}, columns]");
                return Err(self.axes_error(name, w, &rule));
            }
        };
        let out = vec![experts, batch, slots, columns];
        let dims = [x_axes, self.axes(counts), w_axes];
        let loops = parallel(&[experts, batch]);
        let signature = Signature::by_dim(&loops, &dims, std::slice::from_ref(&out));
        let outputs = vec![NewOutput { counts: Some(counts), ..output(out) }];
        self.op(name, OpKind::ExpertContract, &[x, counts, w], outputs, signature)
    }

    /// The experts' results `y [experts, batch, slots, model]` in the places of the rows that `routed`
    /// gave them, `[batch, rows..., model]`, times their probabilities.
    ///
    /// # Errors
    /// If `y` does not come from a dispatch of that routing.
    pub fn combine(
        &mut self,
        name: &str,
        y: ValueId,
        routed: ValueId,
    ) -> Result<ValueId, GraphError> {
        let Routing { choice, slot, counts, .. } = self.routing(name, routed)?;
        if self.counts(name, y)? != counts {
            let rule = "its rows were dispatched by another routing";
            return Err(self.axes_error(name, y, rule));
        }
        let y_axes = self.axes(y);
        let Some(&model) = y_axes.last() else {
            return Err(self.axes_error(name, y, "rows are [experts, batch, slots, model]"));
        };
        let out = [&self.axes(routed)[..], &[model]].concat();
        let inputs = [y, counts, choice, slot, routed];
        let dims: Vec<Vec<DimId>> = inputs.iter().map(|&it| self.axes(it)).collect();
        let loops = parallel(&[self.graph.batch]);
        let signature = Signature::by_dim(&loops, &dims, std::slice::from_ref(&out));
        self.op(name, OpKind::Combine, &inputs, vec![output(out)], signature)
    }

    /// A nonlinearity of rows whose number is known only while running.
    pub(super) fn rows_pointwise(
        &mut self,
        name: &str,
        x: ValueId,
        counts: ValueId,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        let axes = self.axes(x);
        let dims = [axes.clone(), self.axes(counts)];
        let loops = parallel(&dims[1]);
        let signature = Signature::by_dim(&loops, &dims, std::slice::from_ref(&axes));
        let outputs = vec![NewOutput { counts: Some(counts), ..output(axes) }];
        self.op(name, OpKind::Pointwise(activation), &[x, counts], outputs, signature)
    }

    /// The last axis of `x`, whose other axes are those of the routed rows.
    fn row_axis(&self, op: &str, x: ValueId, routed: ValueId) -> Result<DimId, GraphError> {
        let (axes, rows) = (self.axes(x), self.axes(routed));
        match axes.split_last() {
            Some((&model, leading)) if *leading == rows => Ok(model),
            _ => {
                let rule = format!("[{}, model] are needed", self.graph.axes_text(&rows));
                Err(self.axes_error(op, x, &rule))
            }
        }
    }

    fn counts(&self, op: &str, rows: ValueId) -> Result<ValueId, GraphError> {
        let rule = "rows that were dispatched to experts are needed";
        self.graph.value(rows).counts.ok_or_else(|| self.axes_error(op, rows, rule))
    }

    fn routing(&self, op: &str, routed: ValueId) -> Result<Routing, GraphError> {
        let error = || self.axes_error(op, routed, "the result of a routing is needed");
        let producer = self.graph.value(routed).producer.ok_or_else(error)?;
        let slots = *self.slots.get(&producer).ok_or_else(error)?;
        match self.graph.op(producer).outputs[..] {
            [probability, choice, slot, counts] if probability == routed => {
                Ok(Routing { choice, slot, counts, slots })
            }
            _ => Err(error()),
        }
    }
}

/// What a routing decided.
struct Routing {
    choice: ValueId,
    slot: ValueId,
    counts: ValueId,
    slots: DimId,
}
