//! The next-token distribution of a trained language model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use shardloom_data::{Field, Part, Source};
use shardloom_graph::{DType, Graph, OpKind, Role, Value, ValueId};
use shardloom_kernels::{Tier, processor};
use shardloom_plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::{Action, BodyId, Entry, Instruction, Rank as RankId, Run, View, lower};

use crate::learning_rate::{Curve, LearningRate};
use crate::rank::{Rank, Shared, Work};
use crate::{Error, Result};

/// A causal language model, ready to say what comes next. One sample at a time, on one rank.
pub struct Sampler {
    rank: Rank,
    seq: usize,
    /// The forward pass up to the logits, by places in the body, and which of it loads the tokens.
    instructions: Vec<u32>,
    load: Option<u32>,
    /// The body that they are of.
    body: BodyId,
    logits: View,
}

impl Sampler {
    /// A sampler of `graph` with the given weights, whole tensors by parameter name.
    ///
    /// # Errors
    /// If the model does not read tokens in causal order and nothing else, or does not give logits for
    /// each position; if a weight is missing or has another size, or the environment asks for kernels
    /// that cannot be had.
    pub fn new(graph: Graph, weights: &BTreeMap<String, Vec<f32>>) -> Result<Sampler> {
        let unfit = |reason: String| Error::Sampling { reason };
        // Asked here, as kernels have no way to report it.
        Tier::selected()?;
        let causal = graph.ops().all(|(_, op)| match op.kind {
            OpKind::AttentionProbs { causal, .. } => causal,
            _ => true,
        });
        let seq = graph.dim_named("seq").map(|dim| graph.dim(dim).size);
        let is_tokens = |value: &Value| value.name == "tokens" && value.dtype == DType::Index;
        let tokens = graph.inputs().find(|(_, value)| is_tokens(value));
        let (Some(seq), Some((tokens, _)), true) = (seq, tokens, causal) else {
            let reason = "sampling needs a causal language model: inputs `tokens` over a dimension \
                          `seq`, attention that sees only earlier positions";
            return Err(unfit(reason.to_owned()));
        };
        require_positions(&graph, tokens, "tokens").map_err(unfit)?;
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
            optimizer: Optimizer::sgd(0.0),
            clip_norm: None,
        };
        let plan = uniform.plan(&graph, graph.name(), "one device");
        let program = lower(&graph, &plan, 1)?;
        let class = &program.classes[0];
        let body = class.evaluation[0];
        let instructions = class.body(body).instructions.iter().cloned();
        let mut instructions: Vec<(u32, Instruction)> = (0u32..).zip(instructions).collect();
        let first_of_loss = |(_, instruction): &(u32, Instruction)| match instruction.action {
            Action::Kernel { op, .. } => graph.op(op).kind == OpKind::LogitMax,
            _ => false,
        };
        let no_logits = || unfit("sampling needs a model that ends in logits".to_owned());
        let end = instructions.iter().position(first_of_loss).ok_or_else(no_logits)?;
        let logits = instructions[end].1.reads[0];
        if let Action::Kernel { op, .. } = instructions[end].1.action {
            require_positions(&graph, graph.op(op).inputs[0], "logits").map_err(unfit)?;
        }
        instructions.truncate(end);
        for (_, instruction) in &instructions {
            let Action::Kernel { op, .. } = instruction.action else { continue };
            let is_input = |id: ValueId| graph.value(id).role == Role::Input;
            let mut read = graph.op(op).inputs.iter().copied();
            if let Some(other) = read.find(|&id| is_input(id) && id != tokens) {
                let reason = format!(
                    "sampling has nothing but tokens to give, and the model also reads `{}`",
                    graph.value(other).name
                );
                return Err(unfit(reason));
            }
        }
        // What only the loss reads, its targets, nobody has.
        instructions.retain(|(_, instruction)| match instruction.action {
            Action::Load { value, .. } => value == tokens,
            _ => true,
        });
        let is_load = |it: &&(u32, Instruction)| matches!(it.1.action, Action::Load { .. });
        let load = instructions.iter().find(is_load).map(|(index, _)| *index);
        let instructions = instructions.into_iter().map(|(index, _)| index).collect();
        let buffers = vec![BufferPlan::for_evaluation(&program, class)];
        let device = processor();
        let shared = Arc::new(Shared {
            buffers,
            messages: MessagePlan::new(&program),
            began: Instant::now(),
            program,
            device,
            source: Arc::new(Nothing),
            seed: 0,
            learning_rate: LearningRate::new(Curve::Constant { peak: 1.0 })?,
            skip_non_finite: false,
            stops: false,
            graph,
        });
        let mut rank = Rank::new(&shared, RankId(0));
        rank.set_weights(&|name| weights.get(name).cloned())?;
        Ok(Sampler { rank, seq, instructions, load, body, logits })
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
        // A pass ends at the logits here, so what the rest would have read and freed is still there.
        self.rank.begin_evaluation(0);
        self.rank.begin_entry(&Run::alone(Entry::new(self.body, Some(0))));
        let linked = Arc::clone(self.rank.linked());
        for &index in &self.instructions {
            let at = self.rank.at(index);
            let instruction = linked.instruction(at.issued);
            match &instruction.work {
                _ if self.load == Some(index) => {
                    self.rank.write_indices(instruction, at, &padded);
                }
                Work::Local(work) => self.rank.execute(instruction, work, at)?,
                _ => unreachable!("one rank has nobody to communicate with"),
            }
        }
        let logits = self.rank.reals(self.logits);
        let vocab = logits.len() / self.seq;
        Ok(logits[last * vocab..(last + 1) * vocab].to_vec())
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
