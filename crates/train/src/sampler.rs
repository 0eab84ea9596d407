//! The next-token distribution of a trained language model.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardloom_data::{Field, Part, Source};
use shardloom_graph::{DType, Graph, OpKind, Value, ValueId};

use crate::forward::{Forward, with_all_classes};
use crate::{Error, Result};

/// A causal language model, ready to say what comes next. One sample at a time, on one rank.
pub struct Sampler {
    forward: Forward,
    seq: usize,
    /// How many entries the vocabulary has.
    entries: usize,
}

impl Sampler {
    /// A sampler of `graph` with the given weights, whole tensors by parameter name. `available_bytes` of memory
    /// are there for it, if the system says how many.
    ///
    /// # Errors
    /// If the model does not read tokens in causal order and nothing else, or does not give logits for
    /// each position; if it needs more memory than is there; if a weight is missing or has another size, or the
    /// environment asks for kernels that cannot be had.
    pub fn new(
        graph: Graph,
        weights: &BTreeMap<String, Vec<f32>>,
        available_bytes: Option<u64>,
    ) -> Result<Sampler> {
        let unfit = |reason: String| Error::Sampling { reason };
        let graph = with_all_classes(&graph)?;
        let causal = graph.ops().all(|(_, op)| op.kind.causal() != Some(false));
        let seq = graph.dim_named("seq").map(|dim| graph.dim(dim).size);
        let is_tokens = |value: &Value| value.name == "tokens" && value.dtype == DType::Index;
        let tokens = graph.inputs().find(|(_, value)| is_tokens(value));
        let (Some(seq), Some((tokens, _)), true) = (seq, tokens, causal) else {
            let reason = "sampling needs a causal language model: inputs `tokens` over a dimension \
                          `seq`, attention that sees only earlier positions";
            return Err(unfit(reason.to_owned()));
        };
        require_positions(&graph, tokens, "tokens").map_err(unfit)?;
        let max = graph.ops().find(|(_, op)| matches!(op.kind, OpKind::LogitMax { .. }));
        let (_, max) =
            max.ok_or_else(|| unfit("sampling needs a model that ends in logits".to_owned()))?;
        require_positions(&graph, max.inputs[0], "logits").map_err(unfit)?;
        let names: BTreeMap<ValueId, String> =
            graph.inputs().map(|(id, value)| (id, value.name.clone())).collect();
        let entries = graph.class_count().expect("its loss is a cross-entropy");
        let forward = Forward::new(graph, weights, Arc::new(Nothing), 1, available_bytes)?;
        if let Some(other) = forward.inputs().find(|&id| id != tokens) {
            let reason = format!(
                "sampling has nothing but tokens to give, and the model also reads `{}`",
                names[&other]
            );
            return Err(unfit(reason));
        }
        Ok(Sampler { forward, seq, entries })
    }

    /// The most tokens that the model looks back on.
    pub fn context_length(&self) -> usize {
        self.seq
    }

    /// The logits of the token after `tokens`, one per entry of the vocabulary. Only the last
    /// [`Sampler::context_length`] tokens count.
    ///
    /// # Errors
    /// If there are no tokens.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let seen = &tokens[tokens.len().saturating_sub(self.seq)..];
        let Some(last) = seen.len().checked_sub(1) else {
            let reason = "sampling needs at least one token to go on from".into();
            return Err(Error::Sampling { reason });
        };
        let mut padded = seen.to_vec();
        padded.resize(self.seq, 0);
        let logits = self.forward.logits_of(&padded)?;
        let columns = logits.len() / self.seq;
        Ok(logits[last * columns..][..self.entries].to_vec())
    }
}

/// Errors with the reason unless a value has one row for each position of each sample.
fn require_positions(graph: &Graph, value: ValueId, what: &str) -> std::result::Result<(), String> {
    let axes = &graph.value(value).axes;
    let rows = [Some(graph.batch()), graph.dim_named("seq")];
    if axes.len() >= rows.len() && axes.iter().zip(rows).all(|(&axis, row)| Some(axis) == row) {
        return Ok(());
    }
    let axes = graph.axes_text(axes);
    Err(format!("sampling needs {what} for each position, [batch, seq, ..], not [{axes}]"))
}

/// The sampler writes its inputs itself.
struct Nothing;

impl Source for Nothing {
    fn field<'a>(
        &'a self,
        _: Part,
        _: u64,
        _: &str,
        _: &'a mut Vec<u32>,
    ) -> shardloom_data::Result<Option<Field<'a>>> {
        Ok(None)
    }

    fn validation_len(&self) -> u64 {
        0
    }
}
