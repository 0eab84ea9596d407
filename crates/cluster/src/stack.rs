//! The software that drives machines, as data: what it costs beside the machines' own work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use shardloom_collectives::{Algorithm, Kind};
use shardloom_document::{read_text, toml_fault};

use crate::profile::nearest;
use crate::{
    ClusterError, DeviceKind, FusedAttention, Residuals, StepKind, checked, rate_class, residuals,
};

/// A software stack: the framework, its kernels and the defaults of its plans.
///
/// A step's time is that of a plan on machines *under a stack*. The same product takes the same time
/// whoever asks for it; how many kernels an operator is cut into, how long the host needs to launch one and
/// what passes through memory between them is the stack's. What changes instructions is the plan's: a stack
/// only says what plans made for it usually have ([`PlanDefaults`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// What it is called on the command line.
    pub name: String,
    /// Where the numbers come from, and which of them are estimates.
    pub source: String,
    /// The measurements that its constants were fitted to; none if they are estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated_on: Option<String>,
    /// The processor that launches kernels.
    #[serde(default)]
    pub host: Host,
    /// What a pass of an operator is cut into, by rate class without suffixes (`layer-norm.forward`). What is
    /// not listed is one kernel that reads and writes each operand once.
    #[serde(
        default,
        deserialize_with = "rate_class::by_class",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub operators: BTreeMap<String, Kernels>,
    /// Time of a matrix product, in terms of what the device's analytic rates say (neither of rates that were
    /// measured by operator nor of fused attention); above 1 where operands come in
    /// shapes, layouts and memory that the library's best kernels are not for.
    #[serde(default = "one", deserialize_with = "checked::factor")]
    pub product_time: f64,
    /// Time of what passes through memory, in terms of what the device's bandwidth says; rates that were
    /// measured by operator stay as they are.
    #[serde(default = "one", deserialize_with = "checked::factor")]
    pub memory_time: f64,
    /// How fast its kernels of fused attention are on a device,
    /// by the device's name. What is not listed is as the device says; where that has no such kernels, there
    /// are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fused_attention: BTreeMap<String, FusedAttention>,
    /// Time of a collective, in terms of what the links' bandwidth and latency say.
    #[serde(default = "one", deserialize_with = "checked::factor")]
    pub collective_time: f64,
    /// Time of computation while its device is in a collective, in terms of what it takes alone: kernels of
    /// collectives take multiprocessors and bandwidth of memory. Where lanes overlap.
    #[serde(default = "one", deserialize_with = "checked::slowing")]
    pub beside_collectives: f64,
    /// Which algorithm a collective takes.
    #[serde(default)]
    pub algorithms: Algorithms,
    /// Bytes of a device's memory that are the software's own and no tensor's: contexts, libraries' buffers.
    #[serde(default)]
    pub context_bytes: u64,
    /// What of a device's memory it takes for copies of tensors, and when it gives memory back.
    #[serde(default, skip_serializing_if = "Memory::is_default")]
    pub memory: Memory,
    /// By which kernels software computes attention, and so what plans for it [usually
    /// have](crate::Cluster::fuses_attention).
    #[serde(default)]
    pub attention: Attention,
    /// What plans usually have.
    #[serde(default)]
    pub plan_defaults: PlanDefaults,
    /// How far measured step times were from predicted ones, by group of steps; no step is in two groups.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "residuals::disjoint"
    )]
    pub residuals: Vec<Residuals>,
}

/// The processor that launches a device's kernels, one after the other. It runs ahead of the device as far
/// as it can; a device that is faster waits for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Time that it takes to launch one kernel: interpreter, dispatch and driver.
    #[serde(deserialize_with = "checked::host_seconds")]
    pub kernel_seconds: f64,
    /// Time that it takes to launch a collective or a message.
    #[serde(deserialize_with = "checked::host_seconds")]
    pub communication_seconds: f64,
    /// Whether it waits for messages from other stages before it launches more.
    pub waits_for_messages: bool,
    /// Whether it waits for the end of a step, such as to print its loss, before it launches the next.
    pub waits_for_steps: bool,
    /// What it then does before it launches the next, such as to look at losses, schedules and data: seconds
    /// that a step takes besides. Only where it waits for steps.
    #[serde(deserialize_with = "checked::host_seconds")]
    pub step_seconds: f64,
    /// What an update of parameters whose optimizer state is sharded takes it besides: seconds for every
    /// parameter and every replica that has a share, where shares are sliced out one by one.
    #[serde(deserialize_with = "checked::host_seconds")]
    pub share_seconds: f64,
    /// What a collective of activations takes it besides in a stage that exchanges messages with other nodes.
    pub between_nodes: BetweenNodes,
}

/// What software takes of a device's memory though no plan says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Whether gradients of a micro-batch are there whole, in the format of the weights in use, before they are added
    /// to sums in another format: a copy of each parameter, as that of `param.grad` in PyTorch.
    pub separate_gradients: bool,
    /// Whether replicas reduce gradients by way of buckets of their own, in the format of the weights in use: a copy of
    /// each parameter, as PyTorch's DistributedDataParallel makes without `gradient_as_bucket_view`.
    pub reduction_buckets: bool,
    /// Whether gradients are there only from when the first backward pass of a step writes them to the end of the step,
    /// as in PyTorch, where `zero_grad` frees them and a backward pass allocates them; otherwise they are there all the
    /// time.
    pub late_gradients: bool,
    /// Kernels that the host may launch before the device runs them, as it allocates memory when it launches, ahead of
    /// the device: what a collective frees it can use again only when the collective has ended, or when it has
    /// launched so many kernels more, for which it waits. 0 of an allocator that does not run ahead.
    pub queued_kernels: u32,
}

impl Memory {
    fn is_default(&self) -> bool {
        *self == Memory::default()
    }
}

/// Time by the number of members of a collective: `seconds`, times the members to the power of `exponent`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BetweenNodes {
    /// Of one member.
    #[serde(deserialize_with = "checked::host_seconds")]
    pub seconds: f64,
    /// How it grows.
    #[serde(deserialize_with = "checked::exponent")]
    pub exponent: f64,
}

impl Host {
    /// Whether launching takes it any time.
    pub fn launches(&self) -> bool {
        self.kernel_seconds > 0.0
            || self.communication_seconds > 0.0
            || self.between_nodes.seconds > 0.0
            || self.share_seconds > 0.0
            || self.pause_seconds() > 0.0
    }

    /// Seconds between the end of a step and the first launch of the next.
    pub fn pause_seconds(&self) -> f64 {
        if self.waits_for_steps { self.step_seconds } else { 0.0 }
    }

    /// Time that it takes to launch a collective of `members`; of activations in a stage that exchanges
    /// messages with other nodes if it `crosses`.
    pub fn collective_seconds(&self, members: u32, crosses: bool) -> f64 {
        let BetweenNodes { seconds, exponent } = self.between_nodes;
        let besides = if crosses { seconds * f64::from(members).powf(exponent) } else { 0.0 };
        self.communication_seconds + besides
    }
}

/// What one pass of an operator is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernels {
    /// Kernels that the host launches; below 1 where a compiler joins operators.
    #[serde(default = "one", deserialize_with = "checked::multiple")]
    pub launched: f64,
    /// Bytes that go through memory, in terms of each operand once. Of an operator that is in the main a
    /// matrix product, those beside the product's own.
    #[serde(default = "one", deserialize_with = "checked::multiple")]
    pub traffic: f64,
    /// Bytes of memory in use while it runs besides its operands, for each element of the largest of these.
    #[serde(default, deserialize_with = "checked::multiple")]
    pub workspace: f64,
    /// Bytes of memory that a forward pass leaves for the operator's backward pass besides what that reads of its
    /// operands, for each element of the largest of these.
    #[serde(default, deserialize_with = "checked::multiple")]
    pub saved: f64,
}

fn one() -> f64 {
    1.0
}

impl Default for Kernels {
    fn default() -> Kernels {
        Kernels { launched: 1.0, traffic: 1.0, workspace: 0.0, saved: 0.0 }
    }
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// By a fused kernel where the device has a rate for one.
    #[default]
    AsTheDevice,
    /// As two products and a softmax, whatever the device has.
    Separate,
}

/// Which algorithm a collective takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithms {
    /// The plan's.
    #[default]
    Planned,
    /// Of ring and double binary tree what is faster for the size, as NCCL chooses for all-reduces since its
    /// version 2.4, with trees over nodes; an all-to-all is direct, and other collectives take the ring.
    BySize,
}

/// An algorithm that a stack's library takes for a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryAlgorithm {
    /// One that plans name, of which each message is listed.
    Listed(Algorithm),
    /// NCCL's double binary tree over nodes:
    /// [`GroupShape::tree_of_nodes_seconds`](crate::GroupShape::tree_of_nodes_seconds).
    TreeOfNodes,
}

/// What plans made for a stack usually have, where nobody asks for anything else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanDefaults {
    /// Whether full recomputation runs whole blocks again, also what no gradient needs.
    pub reruns_blocks: bool,
    /// Whether values that were gathered are kept for the backward pass, and not gathered again.
    pub keeps_gathered: bool,
    /// Whether gradients are reduced in one piece after the last backward pass.
    pub reduces_at_end: bool,
    /// Whether they are where optimizer states are sharded, and in buckets otherwise.
    pub reduces_shards_at_end: bool,
    /// Whether replicas that share optimizer states alone (ZeRO-1) all-reduce gradients, where a reduce-scatter would
    /// do.
    pub all_reduces_shards: bool,
    /// Bytes of a rank's gradients that are reduced together, where the software has a default of its own.
    pub bucket_bytes: Option<usize>,
    /// Whether buckets end within blocks (`splits_blocks` of plans), where none is of more than one.
    pub splits_blocks: bool,
}

impl PlanDefaults {
    /// Of software that says nothing.
    pub const NONE: PlanDefaults = PlanDefaults {
        reruns_blocks: false,
        keeps_gathered: false,
        reduces_at_end: false,
        reduces_shards_at_end: false,
        all_reduces_shards: false,
        bucket_bytes: None,
        splits_blocks: false,
    };

    /// More than the gradients of any stage take, so that they are reduced as one.
    const ONE_BUCKET: usize = 1 << 40;

    /// Whether replicas all-reduce gradients of which each updates a share, under ZeRO stage `zero`.
    pub fn all_reduces(self, zero: u8) -> bool {
        self.all_reduces_shards && zero == 1
    }

    /// Bytes of gradients that are reduced together under ZeRO stage `zero`, on all `ranks` that have parts of a
    /// replica's together, where `usual` are with other stacks. Weights that are gathered for use (stage 3) are so in
    /// buckets.
    pub fn bucket_bytes(self, usual: usize, zero: u8, ranks: usize) -> usize {
        match self.bucket_bytes {
            _ if self.has_one_bucket(zero) => Self::ONE_BUCKET,
            Some(of_rank) => of_rank.saturating_mul(ranks),
            None => usual,
        }
    }

    /// Whether buckets end within blocks under ZeRO stage `zero`.
    pub fn splits_blocks(self, zero: u8) -> bool {
        self.splits_blocks && zero < 3 && !self.has_one_bucket(zero)
    }

    fn has_one_bucket(self, zero: u8) -> bool {
        self.reduces_at_end || (self.reduces_shards_at_end && matches!(zero, 1 | 2))
    }
}

/// Names and texts of the preset files.
const PRESETS: [(&str, &str); 8] = [
    ("shardloom", include_str!("../stacks/shardloom.toml")),
    ("megatron", include_str!("../stacks/megatron.toml")),
    ("megatron-2021", include_str!("../stacks/megatron-2021.toml")),
    ("fsdp-eager", include_str!("../stacks/fsdp-eager.toml")),
    ("pytorch", include_str!("../stacks/pytorch.toml")),
    ("pytorch-compiled", include_str!("../stacks/pytorch-compiled.toml")),
    ("internevo", include_str!("../stacks/internevo.toml")),
    ("nanotron", include_str!("../stacks/nanotron.toml")),
];

impl Stack {
    /// Names of all presets, the default first.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|&(name, _)| name)
    }

    /// The preset of that name, or the stack in a file whose path ends in `.toml`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownStack`] with the most similar name; [`ClusterError::Read`] and
    /// [`ClusterError::Text`] of files.
    pub fn parse(text: &str) -> Result<Stack, ClusterError> {
        if text.ends_with(".toml") {
            let path = std::path::PathBuf::from(text);
            let content = read_text(&path)
                .map_err(|source| ClusterError::Read { path: path.clone(), source })?;
            return Self::read(&content, text);
        }
        match PRESETS.iter().find(|&&(known, _)| known.eq_ignore_ascii_case(text)) {
            Some((_, content)) => Self::from_toml(content),
            None => {
                let known: Vec<&str> = Self::preset_names().collect();
                Err(ClusterError::UnknownStack {
                    name: text.to_owned(),
                    nearest: nearest(text, &known),
                    known: known.join(", "),
                })
            }
        }
    }

    /// Reads a stack.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Text`] naming line and key of what is malformed, unknown, missing or out of range.
    pub fn from_toml(text: &str) -> Result<Stack, ClusterError> {
        Self::read(text, "software stack")
    }

    fn read(text: &str, what: &str) -> Result<Stack, ClusterError> {
        toml::from_str(text)
            .map_err(|error| ClusterError::in_document(what, toml_fault(text, &error)))
    }

    /// What a pass is cut into, by its rate class; suffixes of the class (`+causal`) do not matter.
    pub fn kernels(&self, rate: &str) -> Kernels {
        let (operator, pass) = rate.split_once('.').unwrap_or((rate, ""));
        let operator = operator.split('+').next().unwrap_or(operator);
        // Few stacks list many: a map of joined names need not be made for each question.
        let listed = self.operators.iter().find(|(name, _)| {
            let rest = name.strip_prefix(operator);
            rest.is_some_and(|rest| rest.strip_prefix('.').unwrap_or(rest) == pass)
        });
        listed.map_or_else(Kernels::default, |(_, kernels)| *kernels)
    }

    /// How fast `device` computes attention by fused kernels; none where this software has none for it.
    pub fn fused_attention(&self, device: &DeviceKind) -> Option<FusedAttention> {
        let reached = device.fused_attention?;
        match self.attention {
            Attention::AsTheDevice => {
                Some(self.fused_attention.get(&device.name).copied().unwrap_or(reached))
            }
            Attention::Separate => None,
        }
    }

    /// The algorithms that a collective of `kind` may take, where the plan has `planned`.
    pub fn algorithms(
        &self,
        kind: Kind,
        planned: Algorithm,
    ) -> impl Iterator<Item = LibraryAlgorithm> + use<> {
        let trees = match (self.algorithms, kind) {
            (Algorithms::BySize, Kind::AllReduce) => Some(LibraryAlgorithm::TreeOfNodes),
            _ => None,
        };
        let listed = match (self.algorithms, kind) {
            (Algorithms::Planned, _) => planned,
            // NCCL's is point-to-point messages among all members.
            (Algorithms::BySize, Kind::AllToAll) => Algorithm::Direct,
            (Algorithms::BySize, _) => Algorithm::Ring,
        };
        std::iter::once(LibraryAlgorithm::Listed(listed)).chain(trees)
    }

    /// The residuals of published rows that were steps like `step`, if there are enough of them.
    pub fn residuals_of(&self, step: &StepKind) -> Option<&Residuals> {
        self.residuals.iter().find(|group| group.include(step))
    }

    /// Its name, and what its constants were fitted to if they were: `nanotron, not calibrated`.
    pub fn described(&self) -> String {
        match &self.calibrated_on {
            Some(data) => format!("{}, calibrated on {data}", self.name),
            None => format!("{}, not calibrated", self.name),
        }
    }
}

impl Default for Stack {
    /// Shardloom's own trainer: no host beside the device, every operand once through memory.
    fn default() -> Stack {
        Stack {
            name: "shardloom".to_owned(),
            source: String::new(),
            calibrated_on: None,
            host: Host::default(),
            operators: BTreeMap::new(),
            product_time: 1.0,
            memory_time: 1.0,
            fused_attention: BTreeMap::new(),
            collective_time: 1.0,
            beside_collectives: 1.0,
            algorithms: Algorithms::Planned,
            context_bytes: 0,
            memory: Memory::default(),
            attention: Attention::AsTheDevice,
            plan_defaults: PlanDefaults::default(),
            residuals: vec![],
        }
    }
}
