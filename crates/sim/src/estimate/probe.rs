//! What one pass of a block takes and holds, from its instructions.

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::{Graph, ValueId};
use shardloom_plan::Recompute;
use shardloom_program::{
    Body, BodyId, BodyKind, Class, ClassId, Instruction, Operand, Part, Program, Rank, Shard, Slot,
    SlotId,
};

use super::Settings;
use super::reverse::Reverse;
use super::walk::{Split, Walk};
use crate::{CostModel, SimError};

/// What a block of a class costs on each device of a replica.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockCost {
    /// The forward pass, tensor-parallel collectives included.
    pub forward_seconds: f64,
    /// The backward pass, likewise.
    pub backward_seconds: f64,
    /// What the forward pass leaves for the backward pass.
    pub kept_bytes: f64,
    /// The most that the forward pass holds.
    pub forward_peak: Peak,
    /// The most that the backward pass holds, kept bytes included.
    pub backward_peak: Peak,
    /// The most that the backward pass holds once it has begun to write gradients of parameters.
    pub late_backward_peak: Peak,
}

/// The most that a pass holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peak {
    /// Where weights are always there.
    pub bytes: f64,
    /// Where weights are gathered for use (ZeRO-3), the block's own included.
    pub gathered_bytes: f64,
}

/// Where and how blocks are probed.
pub(super) struct Probe<'a> {
    pub graph: &'a Graph,
    pub cluster: &'a Cluster,
    pub settings: &'a Settings,
    pub split: &'a Split,
    /// The devices of one replica.
    pub devices: &'a [DeviceId],
    /// Groups like it that share its nodes' uplinks, itself included.
    pub concurrent: u32,
    pub overlaps: bool,
}

/// One pass's instructions.
struct PassTrace {
    instructions: Vec<Instruction>,
    /// Slots that are there when it begins.
    given: Vec<SlotId>,
    /// Slots that are there when it ends.
    left: Vec<SlotId>,
}

impl Probe<'_> {
    /// The cost of the block in `walk`, which has not begun; none if the layout is impossible.
    ///
    /// # Errors
    /// As [`CostModel`].
    pub fn block(
        &self,
        mut walk: Walk<'_>,
        samples: usize,
        recompute: Recompute,
        bucket_of: &dyn Fn(ValueId) -> usize,
    ) -> Result<Option<BlockCost>, SimError> {
        let Some((forward, backward, kept)) = traces(&mut walk, recompute) else {
            return Ok(None);
        };
        let slots = std::mem::take(&mut walk.slots);
        let bytes: Vec<f64> = slots.iter().map(|slot| slot.bytes as f64).collect();
        let buckets: Vec<usize> = walk.parameters.iter().map(|&value| bucket_of(value)).collect();
        let weights = self.weight_bytes(&walk, &buckets);
        let program = self.program(slots, samples);
        let costs = CostModel::new(self.graph, self.cluster, &program);
        let seconds = |trace: &PassTrace| -> Result<f64, SimError> {
            let each = trace.instructions.iter().map(|it| self.seconds(&costs, &program, it));
            let each: Vec<f64> = each.collect::<Result<_, SimError>>()?;
            Ok(self.elapsed(trace, &each, bytes.len()))
        };
        let peak = |trace: &PassTrace, from: usize| {
            let held = held_bytes(trace, &bytes);
            let gathered = gathered_bytes(trace, &buckets, &weights);
            let both = held.iter().zip(&gathered).map(|(held, gathered)| held + gathered);
            Peak {
                bytes: held.iter().skip(from).copied().fold(0.0, f64::max),
                gathered_bytes: both.skip(from).fold(0.0, f64::max),
            }
        };
        let writes_gradient = |it: &Instruction| {
            it.writes.iter().any(|write| matches!(write.to, Operand::Gradient(_)))
        };
        let late = backward.instructions.iter().position(writes_gradient);
        Ok(Some(BlockCost {
            forward_seconds: seconds(&forward)?,
            backward_seconds: seconds(&backward)?,
            kept_bytes: kept.iter().map(|slot| bytes[slot.0 as usize]).sum(),
            forward_peak: peak(&forward, 0),
            backward_peak: peak(&backward, 0),
            late_backward_peak: late.map_or_else(Peak::default, |late| peak(&backward, late)),
        }))
    }

    /// Bytes of each bucket's weights.
    fn weight_bytes(&self, walk: &Walk<'_>, buckets: &[usize]) -> Vec<f64> {
        let mut bytes = vec![0.0; buckets.iter().map(|bucket| bucket + 1).max().unwrap_or(0)];
        for (&value, &bucket) in walk.parameters.iter().zip(buckets) {
            let elements = super::parameters::local_elements(self.graph, self.split, value);
            bytes[bucket] += elements * self.settings.precision.compute.bytes() as f64;
        }
        bytes
    }

    /// A program of one class, for the cost model to look slots up in.
    fn program(&self, slots: Vec<Slot>, samples: usize) -> Program {
        let settings = self.settings;
        let class = Class {
            stages: vec![],
            mesh: self.split.mesh,
            first_rank: Rank(0),
            devices: self.devices.to_vec(),
            slots,
            params: vec![],
            buckets: vec![],
            bodies: vec![Body {
                kind: BodyKind::Evaluation,
                part: Part::default(),
                instructions: vec![],
            }],
            stream: vec![],
            evaluation: vec![BodyId(0)],
        };
        Program {
            classes: vec![class],
            routes: vec![],
            shard: Shard { zero: 0 },
            algorithm: settings.algorithm,
            precision: settings.precision,
            optimizer: settings.optimizer,
            clip_norm: None,
            global_batch: samples,
            microbatch_samples: samples,
            microbatches: 1,
        }
    }

    fn seconds(
        &self,
        costs: &CostModel<'_>,
        program: &Program,
        instruction: &Instruction,
    ) -> Result<f64, SimError> {
        match program.exchange(&program.classes[0], 0, instruction) {
            Some(exchange) => {
                let staging = costs.staging_seconds(ClassId(0), 0, instruction)?;
                let seconds = costs.collective_seconds(&exchange, self.devices, self.concurrent)?;
                Ok(seconds + staging)
            }
            None => costs.local_seconds(ClassId(0), 0, instruction),
        }
    }

    /// How long the pass takes: collectives run beside computation that does not read their results.
    fn elapsed(&self, trace: &PassTrace, seconds: &[f64], slots: usize) -> f64 {
        if !self.overlaps {
            return seconds.iter().sum();
        }
        let mut ready = vec![0.0f64; slots];
        let (mut computing, mut communicating) = (0.0f64, 0.0f64);
        for (instruction, seconds) in trace.instructions.iter().zip(seconds) {
            let queue = match instruction.involves_others() {
                true => &mut communicating,
                false => &mut computing,
            };
            let start = touched(instruction).map(|slot| ready[slot]).fold(*queue, f64::max);
            *queue = start + seconds;
            for write in &instruction.writes {
                if let Operand::Slot(slot) = write.to {
                    ready[slot.0 as usize] = *queue;
                }
            }
        }
        trace.left.iter().map(|slot| ready[slot.0 as usize]).fold(computing, f64::max)
    }
}

/// The forward pass, the backward pass, and what the forward pass keeps.
fn traces(
    walk: &mut Walk<'_>,
    recompute: Recompute,
) -> Option<(PassTrace, PassTrace, Vec<SlotId>)> {
    let given = walk.bring_inputs();
    walk.forward_pass()?;
    let instructions = std::mem::take(&mut walk.instructions);
    let mut left = walk.handed_on();
    let mut reverse = Reverse::new(walk, recompute);
    let received = reverse.receive_all();
    reverse.pass()?;
    let backward_left = reverse.handed_on();
    let (kept_forward, kept): (Vec<SlotId>, Vec<SlotId>) =
        std::mem::take(&mut reverse.kept).into_iter().unzip();
    left.extend(&kept_forward);
    let forward = PassTrace { instructions, given, left };
    let backward = PassTrace {
        instructions: std::mem::take(&mut walk.instructions),
        given: [received, kept.clone()].concat(),
        left: backward_left,
    };
    Some((forward, backward, kept_forward))
}

/// The slots that an instruction touches.
fn touched(instruction: &Instruction) -> impl Iterator<Item = usize> {
    let writes = instruction.writes.iter().map(|write| write.to);
    instruction.reads.iter().copied().chain(writes).filter_map(|operand| match operand {
        Operand::Slot(slot) => Some(slot.0 as usize),
        Operand::Weight(_) | Operand::Gradient(_) => None,
    })
}

/// What lives while each instruction runs.
fn held_bytes(trace: &PassTrace, bytes: &[f64]) -> Vec<f64> {
    let mut last = vec![usize::MAX; bytes.len()];
    for (index, instruction) in trace.instructions.iter().enumerate() {
        touched(instruction).for_each(|slot| last[slot] = index);
    }
    trace.left.iter().for_each(|slot| last[slot.0 as usize] = usize::MAX);
    let mut lives = vec![false; bytes.len()];
    let mut live = 0.0;
    for slot in trace.given.iter().map(|slot| slot.0 as usize) {
        if !std::mem::replace(&mut lives[slot], true) {
            live += bytes[slot];
        }
    }
    let mut held = vec![];
    for (index, instruction) in trace.instructions.iter().enumerate() {
        for slot in touched(instruction) {
            if !std::mem::replace(&mut lives[slot], true) {
                live += bytes[slot];
            }
        }
        held.push(live);
        for slot in touched(instruction) {
            if last[slot] == index && std::mem::replace(&mut lives[slot], false) {
                live -= bytes[slot];
            }
        }
    }
    held
}

/// The block's gathered weights while each instruction runs: all are there when the pass begins, and each
/// bucket goes after its last use.
fn gathered_bytes(trace: &PassTrace, buckets: &[usize], bytes: &[f64]) -> Vec<f64> {
    let mut last_use = vec![None; bytes.len()];
    for (index, instruction) in trace.instructions.iter().enumerate() {
        for read in &instruction.reads {
            if let Operand::Weight(parameter) = read {
                last_use[buckets[parameter.0 as usize]] = Some(index);
            }
        }
    }
    let there = |index: usize| {
        let used = last_use.iter().zip(bytes).filter(|(last, _)| **last >= Some(index));
        used.map(|(_, bytes)| bytes).sum()
    };
    (0..trace.instructions.len()).map(there).collect()
}
