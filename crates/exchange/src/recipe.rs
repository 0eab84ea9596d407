//! What the configurations of frameworks have in common: a model, widths, a cut into stages, a batch.
//!
//! A [`Recipe`] lies between plans and every project's words, so that each project is one file that knows
//! its own words, and nothing about plans.

mod of_numbers;
mod of_plan;
mod to_plan;

use std::fmt::Display;

use shardloom_plan::{
    AttentionKind, LossScale, Optimizer, Plan, Precision, Recompute, ScheduleKind, Sync,
};

use crate::transformer::Kind;
use crate::{ExchangeError, Machines, Project, Transformer, Unsaid};

pub(crate) use of_plan::{transformer_of, usual_groups};
pub(crate) use to_plan::model_of;

/// Bytes of gradients that are more than any stage has: all are reduced together, after the last backward
/// pass.
pub(crate) const ONE_BUCKET: usize = 1 << 40;

/// A plan whose stages are alike but for their blocks, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The model.
    pub model: Transformer,
    /// Groups of devices that a pipeline goes through.
    pub pp: usize,
    /// Data-parallel width.
    pub dp: usize,
    /// Groups of neighbouring data-parallel replicas, of which each shares what ZeRO shards among itself: hybrid
    /// sharding. 1 if all replicas share, or nothing is shared.
    pub groups: usize,
    /// How many neighbouring data-parallel replicas share a second copy of the weights, where all share the first (ZeRO++'s
    /// hpZ).
    pub second_copy: Option<usize>,
    /// Ranks among which experts are dealt, neighbouring data-parallel replicas: expert parallelism.
    pub ep: usize,
    /// Context-parallel width.
    pub cp: usize,
    /// Tensor-parallel width.
    pub tp: usize,
    /// Whether what tensor parallelism leaves whole is split along the sequence.
    pub sequence_parallel: bool,
    /// Whether what tensor parallelism gathers is kept for backward passes.
    pub keeps_gathered: bool,
    /// The stages of the pipeline, first to last.
    pub stages: Vec<StagePlace>,
    /// How ranks are numbered.
    pub rank_order: RankOrder,
    /// Samples of a step.
    pub global_batch: usize,
    /// Micro-batches of a step.
    pub microbatches: usize,
    /// The order of passes.
    pub schedule: ScheduleKind,
    /// Which activations are computed twice.
    pub recompute: Recompute,
    /// How attention is computed.
    pub attention: AttentionKind,
    /// ZeRO stage.
    pub zero: u8,
    /// Up to how many bytes of gradients share a collective.
    pub bucket_bytes: usize,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Norm to which gradients are clipped.
    pub clip_norm: Option<f64>,
    /// By how much the loss is scaled.
    pub loss_scale: Option<LossScale>,
}

/// A stage and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePlace {
    /// Its first block, and the block after its last. Block 0 is the embedding, the last the head.
    pub blocks: (usize, usize),
    /// The group of devices that it is on.
    pub group: usize,
}

/// How ranks are numbered. Tensor-parallel neighbours are always adjacent, context-parallel ones next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankOrder {
    /// Data parallelism inside of a pipeline's stage: `tp`, `cp`, `dp`, then `pp`.
    PipelineSlowest,
    /// Pipelines inside of data parallelism: `tp`, `cp`, `pp`, then `dp`.
    DataSlowest,
}

/// A recipe on its way to a project: what the project cannot say is collected.
pub(crate) struct Leaving<'a> {
    /// Where it goes.
    pub project: Project,
    /// What goes there.
    pub recipe: Recipe,
    /// The plan that it is of; none where it is only asked whether a plan of these numbers can go there.
    pub plan: Option<&'a Plan>,
    /// The machines that the plan is for.
    pub machines: Machines,
    /// What cannot be said there.
    pub unsaid: Vec<Unsaid>,
}

impl Recipe {
    /// The whole model in one stage on one device, in fp32, with one sample a step.
    pub(crate) fn in_one_stage(model: Transformer) -> Recipe {
        let blocks = (0, model.blocks());
        Recipe {
            model,
            pp: 1,
            dp: 1,
            groups: 1,
            second_copy: None,
            ep: 1,
            cp: 1,
            tp: 1,
            sequence_parallel: false,
            keeps_gathered: false,
            stages: vec![StagePlace { blocks, group: 0 }],
            rank_order: RankOrder::PipelineSlowest,
            global_batch: 1,
            microbatches: 1,
            schedule: ScheduleKind::OneForwardOneBackward,
            recompute: Recompute::None,
            attention: AttentionKind::Fused,
            zero: 0,
            bucket_bytes: Sync::default().bucket_bytes,
            precision: Precision::FP32,
            optimizer: Optimizer::default(),
            clip_norm: None,
            loss_scale: None,
        }
    }

    /// Devices that it uses.
    pub fn devices(&self) -> usize {
        self.pp * self.dp * self.cp * self.tp
    }

    /// Data-parallel replicas that share what ZeRO shards.
    pub fn sharers(&self) -> usize {
        self.dp / self.groups
    }

    /// Samples of a micro-batch on one replica.
    pub fn microbatch(&self) -> usize {
        self.global_batch / self.microbatches / self.dp
    }

    /// Stages of each group of devices.
    pub fn chunks(&self) -> usize {
        self.stages.len() / self.pp
    }

    /// The layers of a stage, counted without the embedding.
    pub fn layers(&self, stage: &StagePlace) -> std::ops::Range<usize> {
        let layer = |block: usize| block.saturating_sub(1).min(self.model.layers);
        layer(stage.blocks.0)..layer(stage.blocks.1)
    }

    /// Whether a stage has the embedding.
    pub fn embeds(&self, stage: &StagePlace) -> bool {
        stage.blocks.0 == 0
    }

    /// Whether a stage has the head and the loss.
    pub fn has_loss(&self, stage: &StagePlace) -> bool {
        stage.blocks.1 == self.model.blocks()
    }

    /// Blocks of the stages: the first of each, then how many there are.
    pub fn cuts(&self) -> Vec<usize> {
        let firsts = self.stages.iter().map(|stage| stage.blocks.0);
        firsts.chain([self.model.blocks()]).collect()
    }

    /// Bytes of one accumulated gradient.
    pub(crate) fn gradient_bytes(&self) -> usize {
        self.precision.gradients.bytes()
    }

    /// Parameters of a rank whose gradients share a collective: plans count those of all tensor-parallel ranks, and
    /// other projects each rank's own.
    pub(crate) fn bucket_elements(&self) -> usize {
        (self.bucket_bytes / self.gradient_bytes() / self.tp).max(1)
    }
}

/// What is to be done where the training script says how attention is computed.
pub(crate) const SCORES: &str =
    "choose an attention kernel that keeps no scores in the training script";

impl Leaving<'_> {
    /// Refuses something of the plan that the project has no word for.
    pub fn refuse<T>(
        &self,
        key: &str,
        value: impl Display,
        reason: impl Into<String>,
    ) -> Result<T, ExchangeError> {
        Err(ExchangeError::refused(self.project, key, value, reason))
    }

    /// Notes something of the plan that the project has no word for, and that need not be said for it to
    /// remain the same plan.
    pub fn leave_out(&mut self, key: &str, value: impl Display, reason: impl Into<String>) {
        self.unsaid.push(Unsaid {
            key: key.into(),
            value: value.to_string(),
            reason: reason.into(),
        });
    }

    /// Notes how attention is computed, where the training script says so.
    pub fn leave_out_attention(&mut self) {
        let reason = match self.recipe.attention {
            AttentionKind::Fused => SCORES,
            AttentionKind::Unfused => {
                "choose attention without a fused kernel in the training script (attn_implementation=\"eager\" of a \
                 Hugging Face model)"
            }
        };
        self.leave_out("attention", self.recipe.attention.name(), reason);
    }

    /// Notes that attention is not fused, where it always is.
    pub fn leave_out_unfused(&mut self) {
        if self.recipe.attention == AttentionKind::Unfused {
            self.leave_out("attention", "unfused", "attention is fused there");
        }
    }

    /// Notes rows of the vocabulary that are no tokens.
    pub fn leave_out_padding(&mut self) {
        let Transformer { vocab, padding, .. } = self.recipe.model;
        if padding > 0 {
            let reason =
                format!("{padding} of the {vocab} rows are no tokens, and count in its softmax");
            self.leave_out("model", format!("padded_vocab={vocab}"), reason);
        }
    }

    /// Refuses vocabularies that tensor parallelism would not divide.
    pub fn require_divided_vocabulary(&self) -> Result<(), ExchangeError> {
        let (vocab, tp) = (self.recipe.model.vocab, self.recipe.tp);
        if vocab.is_multiple_of(tp) {
            return Ok(());
        }
        let reason = format!(
            "tensor parallelism of width {tp} splits the vocabulary: pad it (--pad-vocabulary {})",
            128 * tp
        );
        self.refuse("model", format!("vocab={vocab}"), reason)
    }

    /// Refuses models with more than a GPT or a Llama of the project has: `written` of what a Llama may have, and
    /// nothing else.
    pub fn require_plain_model(&self, written: &[&str]) -> Result<(), ExchangeError> {
        let Transformer { changes, kind, .. } = &self.recipe.model;
        let mut unwritten = changes.clone();
        if let Kind::Llama { qkv_bias, qk_norm, .. } = *kind {
            let own = [("qkv_bias", qkv_bias), ("qk_norm", qk_norm)];
            unwritten.extend(
                own.iter().filter(|(word, has)| *has && !written.contains(word)).map(|it| it.0),
            );
        }
        if unwritten.is_empty() {
            return Ok(());
        }
        let reason = "models with that are not written for it yet; DeepSpeed and Accelerate take plans of any, as the \
                      training script builds it there";
        self.refuse("model", unwritten.join(", "), reason)
    }

    /// Refuses sharding among some of the replicas where a project shards among all.
    pub fn require_one_group(&self, reason: &str) -> Result<(), ExchangeError> {
        let Recipe { groups, zero, .. } = self.recipe;
        if groups == 1 {
            return Ok(());
        }
        let value =
            format!("{} of {} replicas with zero = {zero}", self.recipe.sharers(), self.recipe.dp);
        self.refuse("sync.shard_over", value, reason)
    }

    /// Refuses a second copy of shared weights where a project has none.
    pub fn require_no_second_copy(&self) -> Result<(), ExchangeError> {
        match self.recipe.second_copy {
            None => Ok(()),
            Some(sharers) => {
                let reason = "weights are sharded once: leave it out; DeepSpeed has it (zero_hpz_partition_size)";
                self.refuse("sync.second_copy_over", format!("{sharers} replicas"), reason)
            }
        }
    }

    /// Refuses experts that are dealt to ranks where a project deals none.
    pub fn require_no_ep(&self, reason: &str) -> Result<(), ExchangeError> {
        match self.recipe.ep {
            1 => Ok(()),
            ep => self.refuse("pipeline.stage.mesh.ep", ep, reason),
        }
    }

    /// Refuses tensor or context parallelism, which leave experts whole here.
    pub fn require_experts_alone(&self) -> Result<(), ExchangeError> {
        let Recipe { tp, cp, .. } = self.recipe;
        if self.recipe.model.experts() == 0 || tp * cp == 1 {
            return Ok(());
        }
        let reason = "experts are split by tensor parallelism there, and computed by all of its ranks here; nor are \
                      sequences split with them";
        let (key, width) = if tp > 1 { ("tp", tp) } else { ("cp", cp) };
        self.refuse(&format!("pipeline.stage.mesh.{key}"), width, reason)
    }

    /// Refuses products in 8 bits where a project has none.
    pub fn require_no_fp8(&self, reason: &str) -> Result<(), ExchangeError> {
        match self.recipe.precision.fp8_products {
            true => self.refuse("precision.fp8_products", true, reason),
            false => Ok(()),
        }
    }

    /// Refuses pipelines where a project's configuration has none.
    pub fn require_no_pipeline(&self, reason: &str) -> Result<(), ExchangeError> {
        match self.recipe.pp {
            1 => Ok(()),
            pp => self.refuse("pipeline.stage", format!("{pp} groups of devices"), reason),
        }
    }

    /// Where there is one stage, refuses orders of passes other than backward after each forward.
    pub fn require_accumulation(&self) -> Result<(), ExchangeError> {
        let Recipe { schedule, microbatches, .. } = self.recipe;
        if schedule == ScheduleKind::OneForwardOneBackward || microbatches == 1 {
            return Ok(());
        }
        let reason = "without a pipeline every forward pass is followed by its backward pass: write \
                      schedule = \"1f1b\"";
        self.refuse("schedule", schedule.name(), reason)
    }
}
