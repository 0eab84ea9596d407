//! The next-token distribution of a trained language model.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardloom_graph::{Graph, OpKind};
use shardloom_kernels::Memory;
use shardloom_plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::{Action, Instruction, Operand, Rank as RankId, lower};

use crate::learning_rate::{Curve, LearningRate};
use crate::rank::{Rank, Shared};
use crate::source::{Field, Part, Source};
use crate::{Error, Result};

/// A causal language model, ready to say what comes next. One sample at a time, on one rank.
pub struct Sampler {
    rank: Rank,
    seq: usize,
    /// The forward pass up to the logits.
    instructions: Vec<Instruction>,
    logits: Operand,
}

impl Sampler {
    /// A sampler of `graph` with the given weights, whole tensors by parameter name.
    ///
    /// # Errors
    /// If the model does not read tokens in causal order, or a weight is missing or has another size.
    pub fn new(graph: Graph, weights: &BTreeMap<String, Vec<f32>>) -> Result<Sampler> {
        let unfit = |reason: &str| Error::Sampling { reason: reason.into() };
        let tokens = graph.inputs().any(|(_, value)| value.name == "tokens");
        let causal = graph.ops().all(|(_, op)| match op.kind {
            OpKind::AttentionProbs { causal, .. } => causal,
            _ => true,
        });
        let seq = graph.dim_named("seq").map(|dim| graph.dim(dim).size);
        let (Some(seq), true, true) = (seq, tokens, causal) else {
            let reason = "sampling needs a causal language model: inputs `tokens` over a dimension \
                          `seq`, attention that sees only earlier positions";
            return Err(unfit(reason));
        };
        let uniform = Uniform {
            pp: 1,
            mesh: Mesh::SINGLE,
            sequence_parallel: false,
            global_batch: 1,
            microbatches: 1,
            schedule: ScheduleKind::Afab,
            recompute: Recompute::None,
            sync: Sync::default(),
            precision: Precision::FP32,
            optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
            clip_norm: None,
        };
        let plan = uniform.plan(&graph, graph.name(), "one device");
        let program = lower(&graph, &plan, 1)?;
        let class = &program.classes[0];
        let mut instructions = class.body(class.evaluation[0]).instructions.clone();
        let first_of_loss = |instruction: &Instruction| match instruction.action {
            Action::Compute { op, .. } => graph.op(op).kind == OpKind::LogitMax,
            _ => false,
        };
        let end = instructions.iter().position(first_of_loss);
        let end = end.ok_or_else(|| unfit("sampling needs a model that ends in logits"))?;
        let logits = instructions[end].reads[0];
        instructions.truncate(end);
        let shared = Arc::new(Shared {
            program,
            source: Box::new(Nothing),
            seed: 0,
            learning_rate: LearningRate::new(Curve::Constant { peak: 1.0 })?,
            skip_non_finite: false,
            in_transit: Memory::new(),
            graph,
        });
        let mut rank = Rank::new(&shared, RankId(0));
        rank.set_weights(&|name| weights.get(name).cloned())?;
        rank.begin_evaluation(0);
        Ok(Sampler { rank, seq, instructions, logits })
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
        for instruction in &self.instructions {
            match (&instruction.action, instruction.writes.first()) {
                (Action::Load { .. }, Some(write)) => self.rank.write_indices(write.to, &padded),
                _ => self.rank.execute(instruction, 0)?,
            }
        }
        let logits = self.rank.reals(self.logits);
        let vocab = logits.len() / self.seq;
        Ok(logits[last * vocab..(last + 1) * vocab].to_vec())
    }
}

/// The sampler writes its inputs itself.
struct Nothing;

impl Source for Nothing {
    fn field(&self, _: Part, _: u64, _: &str) -> Option<Field<'_>> {
        None
    }

    fn validation_len(&self) -> u64 {
        0
    }
}
