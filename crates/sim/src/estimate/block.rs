//! What one block takes and holds, from the bodies that lowering made for it.

use std::collections::BTreeMap;

use shardloom_cluster::DeviceId;
use shardloom_graph::ValueId;
use shardloom_graph::work::Pass;
use shardloom_program::{
    Action, BodyKind, Class, ClassId, Content, Group, Instruction, MemoryTracker, Queue, Tensor,
};

use crate::{CostModel, SimError};

/// What a block of one kind costs on each device of a replica.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockCost {
    /// The forward pass, collectives of tensor and context parallelism included.
    pub forward_seconds: f64,
    /// The backward pass, likewise; its first half where it is split.
    pub backward_seconds: f64,
    /// The second half of a backward pass that is split, weight gradients; 0 of one that is whole.
    pub weight_seconds: f64,
    /// Of the forward and the backward pass, what they take longer than their computation.
    pub exposed_seconds: [f64; 2],
    /// How long the backward pass, or its first half, runs before it needs what it receives: what it
    /// computes twice.
    pub early_seconds: f64,
    /// What it holds where weights and gradients are always there.
    pub whole: Held,
    /// What it holds besides shards where gradients are scattered once they are whole (ZeRO-2).
    pub scattered: Held,
    /// What it holds besides shards where weights are gathered for use too (ZeRO-3).
    pub gathered: Held,
    /// Likewise, but for gradients.
    pub gathered_weights: Held,
}

impl BlockCost {
    /// All its passes.
    pub fn seconds(&self) -> f64 {
        self.forward_seconds + self.backward_seconds + self.weight_seconds
    }

    /// How long a later stage is idle for this block at least, while the pipeline fills with a step's first micro-batch
    /// and drains after the last. Where backward passes are in halves it may compute weight gradients while the
    /// pipeline drains.
    pub fn fill_seconds(&self, halves: bool) -> f64 {
        match halves {
            true => self.forward_seconds,
            false => self.forward_seconds + self.backward_seconds - self.early_seconds,
        }
    }
}

/// Bytes held besides what is always there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// What the forward pass leaves for the backward pass.
    pub kept_bytes: f64,
    /// What input gradients leave for weight gradients, where a backward pass is split.
    pub waiting_bytes: f64,
    /// The most during the forward pass.
    pub forward_peak_bytes: f64,
    /// The most during the backward pass, or its first half where it is split, kept bytes included.
    pub backward_peak_bytes: f64,
    /// The most during that once it has begun to write gradients of parameters.
    pub late_backward_peak_bytes: f64,
    /// The most during the second half of a backward pass that is split, waiting bytes included.
    pub weight_peak_bytes: f64,
}

/// Where a block runs.
pub(super) struct Site<'s> {
    /// The devices that work on one sample.
    pub devices: &'s [DeviceId],
    /// Sets of devices like it that share its nodes' uplinks, itself included.
    pub concurrent: u32,
    /// Devices of a node.
    pub per_node: u32,
    /// Whether collectives run beside computation.
    pub overlaps: bool,
    /// Inputs that several blocks read, which a stage loads once for all of them.
    pub loaded_once: &'s [ValueId],
}

impl Site<'_> {
    /// The passes of `id`: forward, backward or input gradients, weight gradients by themselves.
    ///
    /// # Errors
    /// As [`CostModel`].
    pub fn passes(&self, costs: &CostModel<'_>, id: ClassId) -> Result<[PassCost; 3], SimError> {
        let mut passes = [vec![], vec![], vec![]];
        for (kind, instruction) in pass_instructions(costs.program().class(id)) {
            let pass = &mut passes[match kind {
                BodyKind::Forward => 0,
                BodyKind::BackwardWeight => 2,
                _ => 1,
            }];
            let seconds = self.seconds(costs, id, instruction)?;
            pass.push((instruction, seconds, costs.launch_seconds(id, instruction)));
        }
        Ok(passes.map(|pass| {
            let run = |arrival: f64| {
                let mut queues = Queues::default();
                for &(instruction, seconds, launched) in &pass {
                    match seconds {
                        Some(seconds) => {
                            queues.launched += launched;
                            queues.run(instruction, seconds, self.overlaps);
                        }
                        None => queues.receive(instruction, arrival),
                    }
                }
                queues
            };
            let queues = run(0.0);
            let seconds = queues.end();
            let receives = |it: &Instruction| matches!(it.action, Action::Receive { .. });
            // What comes when the pass would be over holds up all but what does not need it. In one lane a
            // message is waited for first.
            let early_seconds = match self.overlaps && pass.iter().any(|(it, ..)| receives(it)) {
                true => 2.0 * seconds - run(seconds).end(),
                false => 0.0,
            };
            PassCost { seconds, exposed_seconds: seconds - queues.computed, early_seconds }
        }))
    }

    /// Seconds of one instruction; none for messages between stages, for what keeps replicas equal, and for what a
    /// stage does once for several blocks, which depend on more than the block.
    fn seconds(
        &self,
        costs: &CostModel<'_>,
        id: ClassId,
        instruction: &Instruction,
    ) -> Result<Option<f64>, SimError> {
        let program = costs.program();
        let class = program.class(id);
        match instruction.action {
            Action::Send { .. } | Action::Receive { .. } => return Ok(None),
            Action::Load { value, .. } if self.loaded_once.contains(&value) => return Ok(None),
            Action::Collective { .. }
                if !class.tensor(instruction.reads[0].tensor).is_activation() =>
            {
                return Ok(None);
            }
            _ => {}
        }
        let Some(exchange) = program.exchange(class, 0, instruction) else {
            return costs.local_seconds(id, 0, instruction).map(Some);
        };
        let (group, concurrent) = self.group(class, &exchange.group);
        let seconds = costs.collective_seconds(&exchange, &group, concurrent)?;
        Ok(Some(seconds + costs.staging_seconds(id, 0, instruction)?))
    }

    /// The devices of the first of the groups that run a collective at the same time, and how many of them
    /// share an uplink: groups of every second device, such as those of context parallelism beside two
    /// tensor-parallel ranks, lie two in each node.
    fn group(&self, class: &Class, group: &Group) -> (Vec<DeviceId>, u32) {
        let Group::Mesh(axes) = group else { return (self.devices.to_vec(), self.concurrent) };
        let members = class.mesh.members_along(0, axes);
        let stride = members.get(1).map_or(1, |second| second - members[0]) as u32;
        let devices = members.iter().map(|&member| self.devices[member % self.devices.len()]);
        (devices.collect(), self.concurrent * stride.min(self.per_node))
    }
}

/// What a pass of a block takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassCost {
    pub seconds: f64,
    /// What it takes longer than its computation.
    pub exposed_seconds: f64,
    /// How long it runs before it needs what it receives.
    pub early_seconds: f64,
}

/// What a device's queues have got to, and when each tensor is ready.
#[derive(Default)]
struct Queues {
    computing: f64,
    /// By communicator.
    communicating: BTreeMap<Queue, f64>,
    /// What the first has run, without waiting.
    computed: f64,
    /// Until when the host has launched what it launches.
    launched: f64,
    ready: Vec<f64>,
}

impl Queues {
    /// Runs an instruction: collectives beside computation that does not touch their operands.
    fn run(&mut self, instruction: &Instruction, seconds: f64, overlaps: bool) {
        let queue = match overlaps && instruction.involves_others() {
            true => self.communicating.entry(instruction.queue).or_default(),
            false => {
                self.computed += seconds;
                &mut self.computing
            }
        };
        let touched = instruction.operands().map(|view| view.tensor.0 as usize);
        let ready = |tensor: usize| self.ready.get(tensor).copied().unwrap_or(0.0);
        *queue = touched.map(ready).fold(queue.max(self.launched), f64::max) + seconds;
        let end = *queue;
        self.write(instruction, end);
    }

    /// Has what an instruction receives there at `arrival`.
    fn receive(&mut self, instruction: &Instruction, arrival: f64) {
        if matches!(instruction.action, Action::Receive { .. }) {
            self.write(instruction, arrival);
        }
    }

    /// Has what an instruction writes ready at `end`.
    fn write(&mut self, instruction: &Instruction, end: f64) {
        for tensor in instruction.writes.iter().map(|write| write.to.tensor.0 as usize) {
            if self.ready.len() <= tensor {
                self.ready.resize(tensor + 1, 0.0);
            }
            self.ready[tensor] = end;
        }
    }

    /// When all of them are done.
    fn end(&self) -> f64 {
        self.communicating.values().copied().fold(self.computing, f64::max)
    }
}

impl Held {
    /// What a device of class `id` holds while one micro-batch passes, of those tensors that come and go only
    /// that `counts` says: others are there all the time.
    pub fn of(costs: &CostModel<'_>, id: ClassId, counts: impl Fn(&Tensor) -> bool) -> Held {
        let class = costs.program().class(id);
        let mut tracker = MemoryTracker::new(class, 0);
        let always = tracker.live_bytes();
        let mut held = Held::default();
        let mut late = false;
        let mut saved = BTreeMap::new();
        for (kind, instruction) in pass_instructions(class) {
            let live = |tracker: &MemoryTracker<'_>| (tracker.live_bytes() - always) as f64;
            tracker.begin_counting(instruction, Some(0), &counts);
            let extra = costs.extra_bytes(id, 0, instruction);
            let most = live(&tracker) + extra.workspace as f64;
            match kind {
                BodyKind::Forward => held.forward_peak_bytes = held.forward_peak_bytes.max(most),
                BodyKind::BackwardWeight => {
                    held.weight_peak_bytes = held.weight_peak_bytes.max(most);
                }
                _ => {
                    held.backward_peak_bytes = held.backward_peak_bytes.max(most);
                    let content = |tensor| class.tensor(tensor).content;
                    let mut writes = instruction.writes.iter();
                    late |= writes.any(|write| content(write.to.tensor) == Content::Gradient);
                    if late {
                        held.late_backward_peak_bytes = held.late_backward_peak_bytes.max(most);
                    }
                }
            }
            tracker.end(instruction, Some(0));
            match &instruction.action {
                Action::Kernel { op, pass: Pass::Forward, .. } => {
                    tracker.hold(extra.saved);
                    tracker.give_back(saved.insert(*op, extra.saved).unwrap_or(0));
                }
                Action::Kernel { op, pass: Pass::Input, .. } => {
                    tracker.give_back(saved.remove(op).unwrap_or(0));
                }
                _ => {}
            }
            match kind {
                BodyKind::Forward => held.kept_bytes = live(&tracker),
                BodyKind::BackwardInput => held.waiting_bytes = live(&tracker),
                _ => {}
            }
        }
        held
    }
}

/// The instructions that a micro-batch runs through, each with the kind of its body.
pub(super) fn pass_instructions(class: &Class) -> impl Iterator<Item = (BodyKind, &Instruction)> {
    let passes = class.unguarded().filter(|it| (it.microbatch, it.shift) == (Some(0), 0));
    passes.flat_map(|entry| {
        let body = class.body_of(entry);
        body.instructions.iter().map(|instruction| (body.kind, instruction))
    })
}
