//! What a row says was run: a model, a cluster, and a plan.

use shardloom_cluster::{Cluster, Stack};
use shardloom_graph::{Extents, Graph, ModelSpec};
use shardloom_plan::{
    Mesh, Number, Optimizer, Plan, Precision, Recompute, ScheduleKind, Sync, Uniform,
    usual_attention,
};
use shardloom_program::quantity::counted;

use crate::cut::Cut;
use crate::hardware::{self, Hardware, plan};
use crate::{Refusal, Shape};

/// The most passes that the stages of a pipeline may run in a step.
const MOST_PASSES: usize = 10_000_000;

/// The most bytes that a value of one step may have over all devices together.
const MOST_BYTES: u128 = 1 << 60;

/// What was run.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// On what.
    pub hardware: Hardware,
    /// Under which software stack, by its name.
    pub stack: &'static str,
    /// Which model.
    pub shape: Shape,
    /// How it was split.
    pub split: Split,
    /// Samples of a step.
    pub global_batch: usize,
    /// Samples of a micro-batch on one replica.
    pub micro_batch: MicroBatch,
    /// The format of weights in use and of activations. Gradients are summed, and weights updated, in fp32.
    pub compute: Number,
    /// Whether products of weights are computed in 8 bits.
    pub fp8_products: bool,
    /// Whose memory was measured.
    pub memory_of: MemoryOf,
}

/// Whose memory was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOf {
    /// The fullest device's.
    Fullest,
    /// The first rank's, which has the first stage.
    First,
}

/// Samples of a micro-batch on one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatch {
    /// So many.
    Given(usize),
    /// The largest power of two up to so many that divides a replica's samples and with which the plan fits
    /// in memory; 1, if it fits with none.
    LargestFitting(usize),
}

/// How a model was split over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Width of tensor parallelism.
    pub tp: u32,
    /// Devices that a pipeline goes through.
    pub pp: u32,
    /// Stages on each of them.
    pub chunks: u32,
    /// Data-parallel replicas.
    pub dp: u32,
    /// Width of context parallelism.
    pub cp: u32,
    /// Whether operators that tensor parallelism leaves whole are split along the sequence.
    pub sequence_parallel: bool,
    /// ZeRO stage.
    pub zero: u8,
    /// Of the data-parallel replicas, how many share what that says.
    pub sharing: u32,
    /// What is computed twice, if that is known; otherwise nothing where that fits in memory, and everything
    /// where it does not.
    pub recompute: Option<Recompute>,
    /// How layers become stages.
    pub cut: Cut,
}

impl Case {
    /// Its devices and how it is split, in a few words; `micro` is the size of micro-batches that was taken.
    pub fn describe(&self, micro: Option<usize>) -> String {
        let Split { tp, pp, chunks, dp, cp, zero, sharing, .. } = self.split;
        let mut words = format!("{}: dp {dp}", counted(self.hardware.gpus as usize, "device"));
        for (name, value) in [("cp", cp), ("tp", tp), ("pp", pp), ("chunks", chunks)] {
            if value > 1 {
                words += &format!(", {name} {value}");
            }
        }
        if zero > 0 {
            words += &format!(", ZeRO-{zero}");
            if sharing < dp {
                words += &format!(" within {sharing} replicas");
            }
        }
        let micro = micro.or(match self.micro_batch {
            MicroBatch::Given(micro) => Some(micro),
            MicroBatch::LargestFitting(_) => None,
        });
        if let Some(micro) = micro {
            words += &format!(", micro-batch {micro}");
        }
        if self.fp8_products {
            words += ", fp8";
        }
        if self.split.recompute.is_none() {
            words += ", recomputation assumed";
        }
        words
    }

    /// The model.
    ///
    /// # Errors
    /// If there is none of this shape, or tensor parallelism does not divide it.
    pub fn spec(&self) -> Result<ModelSpec, Refusal> {
        self.shape.spec(self.split.tp)
    }

    /// The cluster, under `stack` if there is one and otherwise under the stack that it ran under.
    ///
    /// # Errors
    /// If the devices do not fill nodes, or there is no such stack.
    pub fn cluster(&self, stack: Option<&Stack>) -> Result<Cluster, Refusal> {
        let stack = stack.map_or_else(|| Stack::parse(self.stack), |stack| Ok(stack.clone()));
        Ok(hardware::cluster(&self.hardware)?.under(stack.map_err(|error| plan(&error))?))
    }

    /// The sizes of micro-batches to try, in order; the first with which the plan fits is the one, and
    /// otherwise the last.
    ///
    /// # Errors
    /// If the one that is given does not divide the samples of a replica.
    pub fn micro_batches(&self) -> Result<Vec<usize>, Refusal> {
        let dp = self.split.dp as usize;
        let global = self.global_batch;
        let divides = |micro: usize| {
            let samples = micro.checked_mul(dp).filter(|samples| *samples > 0);
            samples.is_some_and(|samples| global > 0 && global.is_multiple_of(samples))
        };
        let tried = match self.micro_batch {
            MicroBatch::Given(micro) => vec![micro],
            MicroBatch::LargestFitting(most) => {
                let powers = std::iter::successors(Some(1), |power: &usize| power.checked_mul(2));
                let mut sizes: Vec<usize> = powers.take_while(|power| *power <= most).collect();
                sizes.reverse();
                sizes
            }
        };
        let dividing: Vec<usize> = tried.iter().copied().filter(|it| divides(*it)).collect();
        if dividing.is_empty() {
            let text =
                format!("micro-batches of {tried:?} on {dp} replicas do not divide {global}");
            return Err(Refusal::Numbers(text));
        }
        Ok(dividing)
    }

    /// What may be computed twice, in the order to try; the first with which the plan fits is taken.
    pub fn recomputations(&self) -> Vec<Recompute> {
        match self.split.recompute {
            Some(known) => vec![known],
            None => vec![Recompute::None, Recompute::Full],
        }
    }

    /// The plan on `cluster` with micro-batches of `micro` samples on each replica.
    ///
    /// # Errors
    /// If the numbers contradict each other, layers cannot be cut so, or there is no such plan.
    pub fn plan(
        &self,
        spec: &ModelSpec,
        graph: &Graph,
        cluster: &Cluster,
        micro: usize,
        recompute: Recompute,
    ) -> Result<Plan, Refusal> {
        let Split { tp, pp, chunks, dp, cp, sharing, .. } = self.split;
        let gpus = self.hardware.gpus;
        let factors = [tp, pp, dp, cp].into_iter().try_fold(1u32, u32::checked_mul);
        if factors != Some(gpus) {
            let context = if cp == 1 { String::new() } else { format!(" x cp {cp}") };
            let text = format!("tp {tp} x pp {pp} x dp {dp}{context} is not {gpus} devices");
            return Err(Refusal::Numbers(text));
        }
        let mesh = Mesh::of(dp, cp, tp).sharing_within(sharing);
        let Some(mesh) = mesh else {
            let text = format!("of {dp} replicas {sharing} each cannot share");
            return Err(Refusal::Numbers(text));
        };
        let microbatches = self.global_batch / micro.saturating_mul(dp as usize).max(1);
        let stages = pp as usize * chunks as usize;
        if stages.saturating_mul(microbatches).saturating_mul(2) > MOST_PASSES {
            let text = format!("{microbatches} micro-batches in {stages} stages are too many");
            return Err(Refusal::Numbers(text));
        }
        let extents = Extents::global(graph, 1);
        let largest = graph.values().map(|(_, value)| extents.elements(&value.axes) as u128).max();
        let bytes =
            largest.unwrap_or(0).saturating_mul(8).saturating_mul(self.global_batch as u128);
        if bytes > MOST_BYTES {
            let text = format!("a batch of {} has values of over 2^60 bytes", self.global_batch);
            return Err(Refusal::Numbers(text));
        }
        let cuts = self.split.cut.cuts(&self.shape, stages)?;
        let plan_defaults = cluster.stack().plan_defaults;
        let attention = usual_attention(graph, cluster.fuses_attention());
        // One replica has nobody to share its state with.
        let zero = if sharing * cp > 1 { self.split.zero } else { 0 };
        let numbers = Uniform {
            // Idle devices are in no pipeline.
            pp: (cuts.len() - 1) / chunks.max(1) as usize,
            mesh,
            sequence_parallel: self.split.sequence_parallel && tp > 1,
            global_batch: self.global_batch,
            microbatches,
            schedule: match chunks {
                0 | 1 => ScheduleKind::OneForwardOneBackward,
                _ => ScheduleKind::Interleaved,
            },
            recompute: recompute.under(cluster.stack()),
            sync: Sync::usual(plan_defaults, zero, tp, Sync::default().bucket_bytes),
            precision: Precision {
                compute: self.compute,
                fp8_products: self.fp8_products,
                ..Precision::MIXED
            },
            optimizer: Optimizer::default(),
            clip_norm: Some(1.0),
        };
        let places = numbers.places(chunks.max(1) as usize).map_err(|error| plan(&error))?;
        let pipelines = numbers.pipelines(&places, &cuts);
        let groups = cluster.groups().iter().map(|group| {
            let name = &group.profile.device.name;
            format!("{name}:{}x{}", group.nodes, group.devices_per_node)
        });
        let cluster = groups.collect::<Vec<_>>().join("+");
        let mut made = numbers.plan_of(graph, &spec.to_string(), &cluster, pipelines);
        made.keeps_gathered = plan_defaults.keeps_gathered;
        made.attention = attention;
        made.validate(graph, made.device_count()).map_err(|error| plan(&error))?;
        Ok(made)
    }
}
