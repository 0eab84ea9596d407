//! Forward passes of given weights up to the logits, on one rank.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use shardloom_data::Source;
use shardloom_graph::{Graph, OpKind, ValueId};
use shardloom_kernels::{Tier, processor};
use shardloom_plan::{Mesh, Optimizer, Precision, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_program::buffers::{BufferPlan, MessagePlan};
use shardloom_program::{Action, BodyId, Entry, Instruction, Rank as RankId, Run, View, lower};

use crate::learning_rate::{Curve, LearningRate};
use crate::rank::{Rank, Shared, Work};
use crate::{Error, Result};

/// A model whose evaluation ends where its loss begins.
pub(crate) struct Forward {
    rank: Rank,
    /// The body that is run, and how many instructions of it.
    body: BodyId,
    instructions: Vec<Step>,
    logits: View,
}

/// An instruction that is run, by its place in the body.
struct Step {
    index: u32,
    /// The input that it loads, if that is what it does.
    loads: Option<ValueId>,
}

/// A model whose loss is over all classes, so that there are logits of all.
///
/// # Errors
/// If a name that is needed for it is taken.
pub(crate) fn with_all_classes(graph: &Graph) -> Result<Graph> {
    let full = graph.with_full_softmax();
    full.map(Cow::into_owned).map_err(|error| Error::Sampling { reason: error.to_string() })
}

impl Forward {
    /// Passes of `samples` samples of `source` through `graph` with the given weights, whole tensors by
    /// parameter name, in fp32. Inputs that only the loss reads are not asked for. `available_bytes` of memory are
    /// there for it, if the system says how many.
    ///
    /// # Errors
    /// If that is too little, before any of it is taken; if a weight is missing or has another size, or the
    /// environment asks for kernels that cannot be had.
    pub fn new(
        graph: Graph,
        weights: &BTreeMap<String, Vec<f32>>,
        source: Arc<dyn Source + Send>,
        samples: usize,
        available_bytes: Option<u64>,
    ) -> Result<Forward> {
        let graph = with_all_classes(&graph)?;
        // Asked here, as kernels have no way to report it.
        Tier::selected()?;
        let uniform = Uniform {
            pp: 1,
            mesh: Mesh::SINGLE,
            sequence_parallel: false,
            global_batch: samples,
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
        let all = &class.body(body).instructions;
        let begins_loss = |instruction: &Instruction| match instruction.action {
            Action::Kernel { op, .. } => {
                matches!(graph.op(op).kind, OpKind::LogitMax { .. } | OpKind::SigmoidCrossEntropy)
            }
            _ => false,
        };
        let end = all.iter().position(begins_loss).expect("the loss is a cross-entropy");
        let logits = all[end].reads[0];
        let is_read = |value: ValueId| {
            all[..end].iter().any(|instruction| match instruction.action {
                Action::Kernel { op, .. } => graph.op(op).inputs.contains(&value),
                _ => false,
            })
        };
        let step = |(index, instruction): (u32, &Instruction)| match instruction.action {
            Action::Load { value, .. } if !is_read(value) => None,
            Action::Load { value, .. } => Some(Step { index, loads: Some(value) }),
            _ => Some(Step { index, loads: None }),
        };
        let instructions = (0u32..).zip(&all[..end]).filter_map(step).collect();
        let buffers = BufferPlan::for_evaluation(&program, class);
        let needed_bytes = class.persistent_bytes(0).total().saturating_add(buffers.arena_bytes);
        if let Some(available_bytes) = available_bytes.filter(|&available| needed_bytes > available)
        {
            return Err(Error::Memory { needed_bytes, available_bytes });
        }
        let shared = Arc::new(Shared {
            buffers: vec![buffers],
            messages: MessagePlan::new(&program),
            began: Instant::now(),
            program,
            device: processor(),
            source,
            seed: 0,
            learning_rate: LearningRate::new(Curve::Constant { peak: 1.0 })?,
            skip_non_finite: false,
            stops: false,
            graph,
        });
        let mut rank = Rank::new(&shared, RankId(0));
        rank.set_weights(&|name| weights.get(name).cloned())?;
        Ok(Forward { rank, body, instructions, logits })
    }

    /// The inputs that logits are computed from.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        self.instructions.iter().filter_map(|step| step.loads)
    }

    /// The logits of samples of the validation part from the n-th on.
    ///
    /// # Errors
    /// If data is missing, or rows find no room.
    pub fn logits(&mut self, first_sample: u64) -> Result<Vec<f32>> {
        self.run(first_sample, None)
    }

    /// The logits of samples whose only input is `indices`.
    ///
    /// # Errors
    /// If rows find no room.
    pub fn logits_of(&mut self, indices: &[u32]) -> Result<Vec<f32>> {
        self.run(0, Some(indices))
    }

    fn run(&mut self, first_sample: u64, given: Option<&[u32]>) -> Result<Vec<f32>> {
        // A pass ends at the logits here, so what the rest would have read and freed is still there.
        self.rank.begin_evaluation(first_sample);
        self.rank.begin_entry(&Run::alone(Entry::new(self.body, Some(0))));
        let linked = Arc::clone(self.rank.linked());
        for step in &self.instructions {
            let at = self.rank.at(step.index);
            let instruction = linked.instruction(at.issued);
            match (&instruction.work, given) {
                (_, Some(indices)) if step.loads.is_some() => {
                    self.rank.write_indices(instruction, at, indices);
                }
                (Work::Local(work), _) => self.rank.execute(instruction, work, at)?,
                _ => unreachable!("one rank has nobody to communicate with"),
            }
        }
        Ok(self.rank.reals(self.logits))
    }
}
