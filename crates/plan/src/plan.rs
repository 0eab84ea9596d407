//! The plan.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use shardloom_cluster::{PlanDefaults, Stack};
use shardloom_collectives::Algorithm;
use shardloom_graph::{AttentionKind, DimId, Extents, Graph};

use crate::{
    Averaging, Axis, AxisSet, Compression, DeviceList, LayoutRules, LossScale, Mesh, Negotiation,
    Optimizer, ParameterGroup, ParameterGroups, PassTimes, PlanError, Precision, ScheduleKind,
    ServerSet, Servers, Summation, Updates, Weights,
};

/// Version of the TOML form that this crate reads and writes.
pub const FORMAT: u32 = 1;

/// One way of training one model on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of this form.
    pub format: u32,
    /// The model: whatever the command line takes for MODEL.
    pub model: String,
    /// The cluster: a preset with a size, or a file.
    pub cluster: String,
    /// The names of mesh axes, slowest in rank order first.
    #[serde(default = "usual_axes", skip_serializing_if = "are_usual")]
    pub axes: Vec<Axis>,
    /// Samples of one step, over all pipelines and replicas.
    pub global_batch: usize,
    /// Micro-batches that a step is cut into, dealt to the pipelines in turn.
    pub microbatches: usize,
    /// In which order stages run passes.
    pub schedule: ScheduleKind,
    /// The order of a schedule that is written down: each device's actions, `F0 F1 B0 B1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<String>,
    /// The times of passes that the schedule is made for, where it depends on them.
    #[serde(default, skip_serializing_if = "PassTimes::is_default")]
    pub pass_times: PassTimes,
    /// Which version of the weights passes run with.
    #[serde(default, skip_serializing_if = "Weights::is_default")]
    pub weights: Weights,
    /// When stages update their weights.
    #[serde(default, skip_serializing_if = "Updates::is_default")]
    pub updates: Updates,
    /// Which activations are computed twice instead of kept.
    pub recompute: Recompute,
    /// Whether that goes for the last micro-batch of each pipeline in a step too. In torchgpipe (Kim et al.
    /// 2020, arXiv 2004.09910) it usually keeps everything (`except_last`), as it is the first to go
    /// backward.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub recompute_last: bool,
    /// Whether values that were gathered from the ranks of a group are kept whole for the backward pass, and
    /// not gathered again (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2, gather again).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_gathered: bool,
    /// How attention is computed.
    #[serde(default, skip_serializing_if = "is_unfused")]
    pub attention: AttentionKind,
    /// Whether attention is within documents, where samples are packed of several: a position sees none of another
    /// document.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mask_documents: bool,
    /// Which dimension is split over which mesh axis.
    pub layout: LayoutRules,
    /// Global norm to which gradients are clipped; none for no clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Whether a step whose gradients are not all finite is skipped by all ranks alike.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_non_finite: bool,
    /// By how much the loss is scaled for the backward pass; none for not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Whether stages update before they know the norm of all gradients, and validate that in the next
    /// step, which undoes it and begins anew if it was wrong (Qi et al. 2024, arXiv 2401.10241, section 4).
    /// Training is the same. Without a norm to wait for, or with stages on one device only, it changes
    /// nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub post_validation: bool,
    /// Whether ranks have a thread for collectives, beside which they compute.
    #[serde(default, skip_serializing_if = "Communication::is_default")]
    pub communication: Communication,
    /// How replicas stay equal.
    pub sync: Sync,
    /// Number formats.
    pub precision: Precision,
    /// What is otherwise for some parameters; of several groups the first counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<ParameterGroup>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The pipelines. Stages with equal devices share them; data parallelism is inside the stages.
    pub pipeline: Vec<Pipeline>,
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

fn is_unfused(attention: &AttentionKind) -> bool {
    *attention == AttentionKind::Unfused
}

fn usual_axes() -> Vec<Axis> {
    Axis::USUAL.to_vec()
}

fn are_usual(axes: &[Axis]) -> bool {
    axes == Axis::USUAL
}

/// A chain of stages that samples flow through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Micro-batches of a step that it gets; the same share as others if no pipeline says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatches: Option<usize>,
    /// Its stages, first to last.
    pub stage: Vec<Stage>,
}

/// Some consecutive blocks of the model on some devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// First block and the block after the last.
    #[serde(deserialize_with = "first_and_end")]
    pub blocks: (usize, usize),
    /// The mesh of its devices.
    #[serde(default, skip_serializing_if = "Mesh::is_single")]
    pub mesh: Mesh,
    /// Its devices, in the order of mesh positions.
    pub devices: DeviceList,
    /// Which of its activations are computed twice, where that is not as in other stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Recompute>,
    /// Which dimension is split over which mesh axis, where that is not as in other stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutRules>,
}

/// Two numbers and no more.
fn first_and_end<'de, D: Deserializer<'de>>(document: D) -> Result<(usize, usize), D::Error> {
    let blocks = Vec::<usize>::deserialize(document)?;
    match blocks[..] {
        [first, end] => Ok((first, end)),
        _ => {
            let expected = &"a list of two, the first block and the block after the last,";
            Err(D::Error::invalid_length(blocks.len(), expected))
        }
    }
}

/// `model` with its attention computed like `kind`, and within documents if they are masked. Where they cannot be, it
/// is as if they were not, which [`Plan::validate`] refuses.
pub fn with_attention(model: &Graph, kind: AttentionKind, mask_documents: bool) -> Cow<'_, Graph> {
    match mask_documents.then(|| model.with_document_mask()).flatten() {
        Some(masked) => Cow::Owned(kind.of(&masked).into_owned()),
        None => kind.of(model),
    }
}

/// How plans compute the attention of a model where nobody says otherwise: fused, if there are
/// [fused kernels](shardloom_cluster::Cluster::fuses_attention).
pub fn usual_attention(model: &Graph, fuses: bool) -> AttentionKind {
    match model.attention() {
        Some(_) if fuses => AttentionKind::Fused,
        Some(kind) => kind,
        None => AttentionKind::Unfused,
    }
}

impl Pipeline {
    /// These stages, with as many micro-batches as other pipelines have.
    pub fn of(stage: Vec<Stage>) -> Pipeline {
        Pipeline { microbatches: None, stage }
    }
}

impl Stage {
    /// These blocks on these devices, in all else as the plan says.
    pub fn new(blocks: (usize, usize), mesh: Mesh, devices: DeviceList) -> Stage {
        Stage { blocks, mesh, devices, recompute: None, layout: None }
    }
}

/// Which activations are computed again in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// None.
    None,
    /// The core of attention (Korthikanti et al. 2022, section 5).
    Selective,
    /// Everything but the inputs of blocks (Chen et al. 2016, arXiv 1604.06174), and the block that ends in
    /// the loss.
    Full,
    /// As [`Recompute::Full`], and the whole forward pass of a block is run again, with its collectives and what
    /// no gradient needs, but for one that begins with data: frameworks that run a module again (PyTorch's `checkpoint`, Megatron-LM's `full`
    /// granularity) do not know what of it is needed.
    Block,
    /// Everything but the inputs of stages (Huang et al. 2019, arXiv 1811.06965, section 2.3): a micro-batch
    /// in flight takes no more than what crosses into the stage, and one that goes backward all that the
    /// stage makes. With few in flight that is more than [`Recompute::Full`] takes.
    Stage,
}

impl Recompute {
    /// All policies, from what is kept of a micro-batch in flight the most to the least.
    pub const ALL: [Recompute; 5] = [
        Recompute::None,
        Recompute::Selective,
        Recompute::Full,
        Recompute::Block,
        Recompute::Stage,
    ];

    /// Those under which what a block needs does not depend on its stage, so that searches can estimate
    /// plans by block. Of [`Recompute::Full`] and [`Recompute::Block`] a software stack does one or the other.
    pub const BY_BLOCK: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

    /// What plans for a software stack have where this is asked for: one that runs whole blocks again has no
    /// other full recomputation.
    #[must_use]
    pub fn under(self, stack: &Stack) -> Recompute {
        match self {
            Recompute::Full if stack.plan_defaults.reruns_blocks => Recompute::Block,
            other => other,
        }
    }

    /// The different ones of [`Recompute::BY_BLOCK`] under a software stack, of a model that computes attention
    /// so, if it has any: where it is fused there is no core that could be computed again.
    pub fn by_block_under(stack: &Stack, attention: Option<AttentionKind>) -> Vec<Recompute> {
        let has_core =
            |it: &Recompute| *it != Recompute::Selective || attention != Some(AttentionKind::Fused);
        Self::BY_BLOCK.into_iter().filter(has_core).map(|it| it.under(stack)).collect()
    }

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Full => "full",
            Recompute::Block => "block",
            Recompute::Stage => "stage",
        }
    }
}

/// Who carries out the collectives of a rank whose device computes and communicates on the same cores.
/// Training is the same; on devices that communicate beside computation it changes only what lives how
/// long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Communication {
    /// The rank itself, where it comes to them.
    #[default]
    InLine,
    /// A thread of the rank's own, one after the other in the order in which the rank comes to them. The rank
    /// goes on until it needs what a collective is about.
    Thread,
}

impl Communication {
    fn is_default(&self) -> bool {
        *self == Communication::default()
    }
}

/// How the replicas of a parameter group stay equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sync {
    /// The collectives' algorithm.
    pub algorithm: Algorithm,
    /// ZeRO stage, 0 to 3 (Rajbhandari et al. 2020): what is sharded over replicas is nothing, optimizer
    /// state, also gradients, also parameters.
    pub zero: u8,
    /// Consecutive blocks share one collective up to this many bytes of gradient. ZeRO-3 works block by
    /// block whatever this says.
    pub bucket_bytes: usize,
    /// Whether the gradients of one block fill several buckets where they are more than that: parameters, the last
    /// first, share a collective up to the one with which they reach `bucket_bytes`, as in PyTorch's
    /// DistributedDataParallel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub splits_blocks: bool,
    /// Whether replicas that share optimizer state alone (ZeRO-1) sum gradients up by an all-reduce, so that each has
    /// the sums of all and updates its share, where a reduce-scatter would do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_reduces: bool,
    /// The mesh axes along which replicas share what `zero` says, some of
    /// [`Plan::replica_axes`]; all of them if absent. Replicas along the others hold the same shares (hybrid
    /// sharding).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_over: Option<AxisSet>,
    /// With ZeRO-3 the mesh axes along which replicas share a second copy of the weights, some of those along which
    /// they share the first: forward passes gather weights from the first and renew the second, backward passes gather
    /// from the second, among fewer (ZeRO++'s hpZ, Wang et al. 2023, arXiv 2306.10209, section 3.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_copy_over: Option<AxisSet>,
    /// Servers that hold the weights, where replicas do not update them themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<Servers>,
    /// How gradients are compressed on their way between replicas.
    #[serde(default, skip_serializing_if = "Compression::is_none")]
    pub compression: Compression,
    /// How replicas with weights of their own are kept near each other, where they are not kept equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub averaging: Option<Averaging>,
    /// Servers that sum gradients, where replicas do not sum all of them up among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summation: Option<Summation>,
    /// How replicas agree on the order of their reductions, where it is not fixed beforehand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negotiation: Option<Negotiation>,
    /// Whether gradients of tables that only embeddings read are rows and values, and not as large as the tables.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sparse: bool,
}

impl Sync {
    /// As plans usually have it for software with these defaults, under ZeRO stage `zero` and where `tp` ranks split a
    /// replica: buckets of `bucket_bytes` on all of these together, where the software has no size of its own.
    pub fn usual(defaults: PlanDefaults, zero: u8, tp: u32, bucket_bytes: usize) -> Sync {
        Sync {
            zero,
            bucket_bytes: defaults.bucket_bytes(bucket_bytes, zero, tp as usize),
            splits_blocks: defaults.splits_blocks(zero),
            all_reduces: defaults.all_reduces(zero),
            ..Sync::default()
        }
    }

    /// Whether there are servers, of either kind: each pipeline is then a worker of theirs.
    pub fn has_servers(&self) -> bool {
        self.servers.is_some() || self.summation.is_some()
    }

    /// How many servers there are on machines of their own, of either kind.
    pub fn own_server_count(&self) -> u32 {
        let holding = self.servers.map_or(0, |servers| servers.count);
        holding.saturating_add(self.summation.map_or(0, |summation| summation.servers))
    }

    /// Whether each worker's device has a server, of either kind.
    pub fn has_colocated_servers(&self) -> bool {
        self.servers.is_some_and(|servers| servers.colocated)
            || self.summation.is_some_and(|summation| summation.colocated)
    }
}

impl Default for Sync {
    fn default() -> Sync {
        Sync {
            algorithm: Algorithm::Ring,
            zero: 0,
            bucket_bytes: 25_000_000,
            splits_blocks: false,
            all_reduces: false,
            shard_over: None,
            second_copy_over: None,
            servers: None,
            compression: Compression::None,
            averaging: None,
            summation: None,
            negotiation: None,
            sparse: false,
        }
    }
}

impl Plan {
    /// The same without parameter servers of these numbers; none if it has no servers, or such numbers cannot be lost.
    pub fn without_servers(&self, numbers: impl IntoIterator<Item = u32>) -> Option<Plan> {
        let mut plan = self.clone();
        let servers = plan.sync.servers.as_mut()?;
        for number in numbers {
            servers.lost = servers.lost.with(number)?;
        }
        Some(plan)
    }

    /// Whether the last micro-batch of each pipeline keeps activations that others compute twice; without
    /// recomputation [`Plan::recompute_last`] means nothing.
    pub fn spares_last(&self) -> bool {
        let computes_twice = |(_, stage): (_, &Stage)| self.recompute_of(stage) != Recompute::None;
        !self.recompute_last && self.stages().any(computes_twice)
    }

    /// The graph that this is a plan for, of a model as it is described: with attention as the plan computes it.
    pub fn graph_of<'g>(&self, model: &'g Graph) -> Cow<'g, Graph> {
        with_attention(model, self.attention, self.mask_documents)
    }

    /// Which activations of a stage of this plan are computed twice.
    pub fn recompute_of(&self, stage: &Stage) -> Recompute {
        stage.recompute.unwrap_or(self.recompute)
    }

    /// What a stage of this plan splits over which mesh axis.
    pub fn layout_of<'p>(&'p self, stage: &'p Stage) -> &'p LayoutRules {
        stage.layout.as_ref().unwrap_or(&self.layout)
    }

    /// The layouts of all stages.
    pub fn layouts(&self) -> impl Iterator<Item = &LayoutRules> {
        let of_stages = self.stages().filter_map(|(_, stage)| stage.layout.as_ref());
        std::iter::once(&self.layout).chain(of_stages)
    }

    /// Micro-batches of a step that each pipeline gets. Where pipelines do not say, the first have one more
    /// than the last if they do not divide evenly.
    pub fn shares(&self) -> Vec<usize> {
        let pipelines = self.pipeline.len();
        let (each, left) =
            (self.microbatches / pipelines.max(1), self.microbatches % pipelines.max(1));
        let even = |index| each + usize::from(index < left);
        let share =
            |(index, it): (usize, &Pipeline)| it.microbatches.unwrap_or_else(|| even(index));
        self.pipeline.iter().enumerate().map(share).collect()
    }

    /// All stages with their place as `(pipeline, stage)`.
    pub fn stages(&self) -> impl Iterator<Item = ((usize, usize), &Stage)> {
        self.pipeline.iter().enumerate().flat_map(|(pipeline, each)| {
            each.stage.iter().enumerate().map(move |(stage, it)| ((pipeline, stage), it))
        })
    }

    /// The devices it uses, in order. One that has several stages counts once.
    pub fn devices(&self) -> BTreeSet<u32> {
        let of_stages = self.stages().flat_map(|(_, stage)| stage.devices.0.iter().copied());
        of_stages.chain(self.server_devices()).collect()
    }

    /// The number of devices it uses.
    pub fn device_count(&self) -> usize {
        let of_stages = self.stages().flat_map(|(_, stage)| &stage.devices.0);
        let lost = self.sync.servers.map_or(0, |servers| servers.lost.iter().count());
        let servers = (self.sync.own_server_count() as usize).saturating_sub(lost);
        of_stages.collect::<BTreeSet<_>>().len() + servers
    }

    /// The least number of devices that a cluster must have: one more than the last that it uses.
    pub fn least_devices(&self) -> usize {
        let last = self.own_server_devices().next_back();
        last.map_or(self.first_server_device(), |last| last.saturating_add(1)) as usize
    }

    /// The devices of servers, in their order: those after the pipelines', without those of servers that are lost, and
    /// then the workers' if each of these has one.
    pub fn server_devices(&self) -> impl Iterator<Item = u32> {
        let of_workers = self.stages().flat_map(|(_, stage)| stage.devices.0.iter().copied());
        let colocated = of_workers.filter(|_| self.sync.has_colocated_servers());
        self.own_server_devices().chain(colocated)
    }

    fn own_server_devices(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        let first = self.first_server_device();
        let lost = self.sync.servers.map_or(ServerSet::default(), |servers| servers.lost);
        let numbers = (0..self.sync.own_server_count()).filter(move |&it| !lost.contains(it));
        numbers.map(move |server| first.saturating_add(server))
    }

    fn first_server_device(&self) -> u32 {
        let last = self.stages().flat_map(|(_, stage)| &stage.devices.0).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// How replicas of parameters stay equal, by group: what has none first.
    pub fn syncs(&self) -> impl Iterator<Item = Sync> {
        let groups = self.parameters.iter().map(|group| group.sync(self.sync));
        std::iter::once(self.sync).chain(groups)
    }

    /// The number formats of parameters, by group: what has none first.
    pub fn precisions(&self) -> impl Iterator<Item = Precision> {
        let groups = self.parameters.iter().map(|group| group.precision(self.precision));
        std::iter::once(self.precision).chain(groups)
    }

    /// The number formats of parameters that are trained, by group.
    pub fn trained_precisions(&self) -> impl Iterator<Item = Precision> {
        let trained = self.parameters.iter().filter(|group| !group.frozen);
        std::iter::once(self.precision).chain(trained.map(|it| it.precision(self.precision)))
    }

    /// The names of parameters that are frozen.
    ///
    /// # Errors
    /// If a group's names are no pattern.
    pub fn frozen<'g>(&self, graph: &'g Graph) -> Result<BTreeSet<&'g str>, PlanError> {
        let groups = ParameterGroups::of(self)?;
        let names = graph.parameters().map(|(_, node)| node.name.as_str());
        Ok(names.filter(|name| groups.is_frozen(self, name)).collect())
    }

    /// How many elements of parameters are frozen.
    ///
    /// # Errors
    /// If a group's names are no pattern.
    pub fn frozen_count(&self, graph: &Graph) -> Result<u64, PlanError> {
        let frozen = self.frozen(graph)?;
        let extents = Extents::global(graph, 1);
        let those = graph.parameters().filter(|(_, node)| frozen.contains(node.name.as_str()));
        Ok(those.map(|(_, node)| extents.elements(&node.axes) as u64).sum())
    }

    /// Whether a step ends with the norm of all its gradients: to clip them, or to see whether they are
    /// finite.
    pub fn looks_at_norm(&self) -> bool {
        self.norm_key().is_some()
    }

    /// The first key of the plan that asks for the norm of all gradients.
    pub(crate) fn norm_key(&self) -> Option<&'static str> {
        let keys = [
            ("clip_norm", self.clip_norm.is_some()),
            ("skip_non_finite", self.skip_non_finite),
            ("loss_scale", self.loss_scale.is_some()),
        ];
        keys.into_iter().find_map(|(key, asks)| asks.then_some(key))
    }

    /// Whether a step whose gradients are not all finite is left out by all ranks alike.
    pub fn leaves_out_non_finite(&self) -> bool {
        self.skip_non_finite || self.loss_scale.is_some()
    }

    /// The mesh axes over which the batch is split.
    pub fn batch_axes(&self, graph: &Graph) -> Vec<Axis> {
        let batch = &graph.dim(graph.batch()).name;
        let splits = |axis: &Axis| self.layouts().any(|layout| layout.splits(batch, *axis));
        self.axes.iter().copied().filter(splits).collect()
    }

    /// The mesh axes along which ranks are replicas of what parameters they hold alike: those that split the
    /// batch, or nothing but dimensions of the loss's targets. Others, as in tensor parallelism, split
    /// operators, and parameters that are alike along them are those of operators left whole.
    pub fn replica_axes(&self, graph: &Graph) -> Vec<Axis> {
        let of_targets = &graph.value(graph.targets()).axes;
        let is_replica = |axis: &Axis| {
            let rules = self.layouts().flat_map(|layout| &layout.0).filter(|it| it.axis == *axis);
            let dims: Vec<DimId> = rules.filter_map(|rule| graph.dim_named(&rule.dim)).collect();
            dims.contains(&graph.batch()) || dims.iter().all(|dim| of_targets.contains(dim))
        };
        self.axes.iter().copied().filter(is_replica).collect()
    }

    /// Samples in one micro-batch, over all replicas of a stage.
    pub fn microbatch_samples(&self) -> usize {
        self.global_batch / self.microbatches
    }
}
