//! A step of a pipeline from the costs of its stages, in its schedule's order.

use std::rc::Rc;

use shardloom_schedule::PassKind;

use super::ends::Ends;
use super::sequence::{Node, Sequence};
use super::stage::StageCost;

/// A stage of one pipeline in its place.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    /// The mesh that it lives on.
    pub device: usize,
    pub cost: Rc<StageCost>,
    /// A message to the stage after it, and to the one before it; 0 on the same mesh.
    pub send_seconds: [f64; 2],
    /// Whether pieces of its passes alternate with those of a pass that runs at the same time.
    pub alternates: bool,
}

/// What a step takes and each mesh holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub seconds: f64,
    /// By mesh the most that one of its devices holds.
    pub peak_bytes: Vec<f64>,
    /// Whether all of its micro-batches were run.
    pub whole: bool,
}

/// A mesh on its way through a step.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    start: Option<f64>,
    clock: f64,
    /// Until when its messages out, and its reductions, take.
    sending: f64,
    reducing: f64,
    held: f64,
    peak: f64,
    /// Updates of its stages' parameters.
    update: f64,
    /// What the first forward pass waits for at the beginning of the step, from then.
    lead: f64,
}

/// Runs the passes of `sequence` one after another: each begins when its mesh is free and what it waits for
/// is there. `persistent_bytes` has by mesh what is held all the time.
pub(super) fn step(
    sequence: &Sequence,
    instances: &[Instance],
    persistent_bytes: &[f64],
    ends: &Ends,
) -> Step {
    let mut late = vec![0.0; persistent_bytes.len()];
    for it in instances {
        late[it.device] += it.cost.late_bytes;
    }
    let begin = persistent_bytes.iter().zip(late);
    let begin = begin.map(|(held, late)| held - late);
    let held = |held: f64| Device { held, peak: held, ..Device::default() };
    let mut devices: Vec<Device> = begin.map(held).collect();
    let mut starts = vec![0.0; instances.len()];
    let mut gradients = vec![Gradients::default(); instances.len()];
    // When what each pass hands on is there.
    let mut arrivals = vec![0.0f64; sequence.nodes.len()];
    let mut index = 0;
    while index < sequence.nodes.len() {
        let joined = sequence.nodes.get(index + 1).is_some_and(|it| it.joined);
        let count = if joined { 2 } else { 1 };
        let passes = &sequence.nodes[index..index + count];
        let device = &mut devices[usize::from(passes[0].device)];
        let needed = |node: &Node| {
            let cost = &instances[usize::from(node.instance)].cost;
            // What is no pass waits for nothing.
            if node.kind != PassKind::Forward && !cost.has_backward() {
                return None;
            }
            Some(arrivals[node.message?.index()] - early_seconds(node.kind, cost))
        };
        let start = passes.iter().filter_map(needed).fold(device.clock, f64::max);
        device.start.get_or_insert(start);
        let end = start + duration(passes, instances);
        device.clock = end;
        device.hold(passes, instances, &mut gradients);
        for (node, place) in passes.iter().zip(index..) {
            let instance = &instances[usize::from(node.instance)];
            if node.first {
                starts[usize::from(node.instance)] = start;
            }
            if node.sends {
                arrivals[place] = device.send(node, instance, ends.overlaps);
            }
            let whole = matches!(node.kind, PassKind::Backward | PassKind::BackwardWeight);
            if whole && (node.last || ends.reduces_each) {
                device.reduce(node, &instance.cost, end, ends);
            }
        }
        index += count;
    }
    Step {
        seconds: with_ends(&mut devices, instances, &starts, ends),
        peak_bytes: devices.iter().map(|it| it.peak).collect(),
        whole: true,
    }
}

/// Of one pass, or of two that run at the same time: the communication of each beside the computation of
/// the other.
fn duration(passes: &[Node], instances: &[Instance]) -> f64 {
    let pass = |node: &Node| pass_seconds(node.kind, &instances[usize::from(node.instance)].cost);
    match passes {
        [first, second] if alternate(passes, instances) => {
            let [(one, exposed_one), (other, exposed_other)] = [pass(first), pass(second)];
            let hidden = exposed_one.min(other - exposed_other);
            one + other - hidden - exposed_other.min(one - exposed_one)
        }
        _ => passes.iter().map(|node| pass(node).0).sum(),
    }
}

/// Whether pieces of these passes alternate: others run one after the other.
fn alternate(passes: &[Node], instances: &[Instance]) -> bool {
    passes.iter().all(|node| instances[usize::from(node.instance)].alternates)
}

/// What a pass takes, and how much of that is longer than its computation.
fn pass_seconds(kind: PassKind, cost: &StageCost) -> (f64, f64) {
    let [forward, backward] = cost.exposed_seconds;
    match kind {
        PassKind::Forward => (cost.forward_seconds, forward),
        PassKind::Backward => (cost.backward_seconds + cost.weight_seconds, backward),
        PassKind::BackwardInput => (cost.backward_seconds, backward),
        PassKind::BackwardWeight => (cost.weight_seconds, 0.0),
    }
}

/// How long a pass runs before it needs what it receives.
fn early_seconds(kind: PassKind, cost: &StageCost) -> f64 {
    match kind {
        PassKind::Backward | PassKind::BackwardInput => cost.early_seconds,
        PassKind::Forward | PassKind::BackwardWeight => 0.0,
    }
}

/// What there is of the gradients of a stage's parameters.
#[derive(Clone, Copy, Debug, Default)]
struct Gradients {
    /// Whether a backward pass of the step has allocated them, where none does before.
    allocated: bool,
    /// Whether input gradients have begun some that are not reduced yet.
    begun: bool,
}

/// What a pass needs beyond what its device holds before it.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// The most while it runs.
    most: f64,
    /// What is there behind it, below 0 where it frees more than it leaves.
    change: f64,
}

impl Memory {
    /// Of a pass of a stage that costs `cost`. What there is of its gradients changes with it.
    fn of(kind: PassKind, cost: &StageCost, gradients: &mut Gradients) -> Memory {
        let Gradients { allocated, begun } = gradients;
        let peaks = &cost.peak_bytes;
        let begun_bytes = if *begun { cost.begun_bytes } else { 0.0 };
        let is_first = kind != PassKind::Forward && !*allocated;
        let late_bytes = if is_first { cost.late_bytes } else { 0.0 };
        *allocated |= is_first;
        let (before, most, behind) = match kind {
            PassKind::Forward => (0.0, peaks.forward, cost.kept_bytes),
            PassKind::Backward if late_bytes > 0.0 => {
                // What it leaves is there at its end.
                (cost.kept_bytes, peaks.first_backward.max(late_bytes), 0.0)
            }
            PassKind::Backward => (cost.kept_bytes, peaks.backward, 0.0),
            PassKind::BackwardInput => {
                let most = if *begun { peaks.later_input } else { peaks.input };
                let most = most + late_bytes;
                *begun = true;
                (cost.kept_bytes + begun_bytes, most, cost.waiting_bytes + cost.begun_bytes)
            }
            PassKind::BackwardWeight => {
                let most = if *begun { peaks.weight } else { peaks.later_weight };
                *begun = false;
                (cost.waiting_bytes + begun_bytes, most, 0.0)
            }
        };
        Memory { most: most - before, change: behind + late_bytes - before }
    }

    /// What it needs besides what it keeps, or has not yet freed.
    fn besides(&self) -> f64 {
        self.most - self.change.max(0.0)
    }
}

impl Device {
    /// Sends what a pass that has just ended hands on, and says when it is there.
    fn send(&mut self, node: &Node, instance: &Instance, overlaps: bool) -> f64 {
        let seconds = instance.send_seconds[usize::from(node.kind != PassKind::Forward)];
        match overlaps {
            true => {
                self.sending = self.sending.max(self.clock) + seconds;
                self.sending
            }
            // A sender does nothing else meanwhile.
            false => {
                self.clock += seconds;
                self.clock
            }
        }
    }

    /// Takes in what an action's passes hold and leave. `gradients` has by stage what there is of its gradients.
    fn hold(&mut self, passes: &[Node], instances: &[Instance], gradients: &mut [Gradients]) {
        let mut memory = |node: &Node| {
            let index = usize::from(node.instance);
            Memory::of(node.kind, &instances[index].cost, &mut gradients[index])
        };
        match passes {
            [first, second] if alternate(passes, instances) => {
                // Both have come about as far at any time.
                let [first, second] = [memory(first), memory(second)];
                let both = first.change + second.change;
                let besides = first.besides().max(second.besides());
                self.peak = self.peak.max(self.held + besides + both.max(0.0));
                self.held += both;
            }
            _ => {
                for Memory { most, change } in passes.iter().map(memory) {
                    self.peak = self.peak.max(self.held + most);
                    self.held += change;
                }
            }
        }
    }

    /// Reduces the gradients of a pass that ended at `end`.
    fn reduce(&mut self, node: &Node, cost: &StageCost, end: f64, ends: &Ends) {
        let once = if node.last { cost.once_seconds } else { 0.0 };
        match ends.overlaps {
            true => {
                let tail = end + cost.tail_seconds + once;
                self.reducing = tail.max(self.reducing + cost.reduce_seconds);
            }
            // Reductions of every pass are part of it.
            false if node.last => self.clock += cost.tail_seconds + once,
            false => {}
        }
    }
}

/// The step of devices that have run their passes: what they do after the last and before the first.
fn with_ends(devices: &mut [Device], instances: &[Instance], starts: &[f64], ends: &Ends) -> f64 {
    for instance in instances {
        devices[instance.device].update += instance.cost.update_seconds;
    }
    // Gathers follow updates in the order of stages.
    let mut gathered = vec![0.0; devices.len()];
    for (instance, start) in instances.iter().zip(starts) {
        let (device, cost) = (&mut devices[instance.device], &instance.cost);
        let ready = match ends.overlaps {
            true => {
                let first = cost.first_update_seconds + cost.lead_seconds;
                device.update.max(gathered[instance.device] + first)
            }
            false => device.update + gathered[instance.device] + cost.lead_seconds,
        };
        gathered[instance.device] += cost.gather_seconds;
        let until_start = start - device.start.unwrap_or(0.0);
        device.lead = device.lead.max(ready - until_start);
    }
    let makespan = devices.iter().map(|it| it.clock).fold(0.0, f64::max);
    let last = |it: &Device| it.clock.max(it.reducing);
    for shared in &ends.shared {
        let ready = shared.meshes.iter().map(|&mesh| last(&devices[mesh])).fold(0.0, f64::max);
        shared.meshes.iter().for_each(|&mesh| devices[mesh].reducing = ready + shared.sum_seconds);
    }
    match &ends.norm {
        Some(norm) => {
            let ready = devices.iter().zip(&norm.own_seconds).map(|(it, own)| last(it) + own);
            let tail = ready.fold(makespan, f64::max);
            let lead = devices.iter().map(|it| it.lead - it.start.unwrap_or(0.0));
            tail + norm.sum_seconds + lead.fold(0.0, f64::max)
        }
        // Each device begins its next step when it is through with this one.
        None => {
            let own = devices.iter().map(|it| last(it) + it.lead - it.start.unwrap_or(0.0));
            own.fold(0.0, f64::max)
        }
    }
}

/// What no order can be faster than. Before its first pass a mesh waits for the forward passes of the stages
/// before; then it runs all of its passes; the backward passes of the stages before its first one, or their
/// first halves, follow its last. Likewise each stage by itself. `microbatches` are those of each pipeline.
pub(super) fn bound_seconds(
    pipelines: &[Vec<Instance>],
    microbatches: f64,
    overlapped: bool,
    ends: &Ends,
) -> f64 {
    let mut meshes: Vec<Mesh> = Vec::with_capacity(pipelines.first().map_or(0, Vec::len));
    let mut longest = 0.0f64;
    for pipeline in pipelines {
        let (mut before, mut behind) = (0.0, 0.0);
        for it in pipeline {
            let cost = &it.cost;
            // What passes that run at the same time hide of each other.
            let hidden: f64 = if overlapped { cost.exposed_seconds.iter().sum() } else { 0.0 };
            let chain = cost.forward_seconds + cost.backward_seconds - hidden;
            longest = longest.max(before + microbatches * chain + behind);
            if meshes.len() <= it.device {
                meshes.resize(it.device + 1, Mesh::default());
            }
            let mesh = &mut meshes[it.device];
            mesh.before = mesh.before.min(before);
            mesh.behind = mesh.behind.min(behind);
            mesh.chain += microbatches * chain;
            mesh.weights += microbatches * cost.weight_seconds;
            mesh.update += cost.update_seconds;
            let exposed = if overlapped { cost.exposed_seconds } else { [0.0; 2] };
            before += cost.forward_seconds - exposed[0] + it.send_seconds[0];
            behind += cost.backward_seconds - exposed[1] - cost.early_seconds + it.send_seconds[0];
        }
    }
    for shared in &ends.shared {
        shared.meshes.iter().for_each(|&mesh| meshes[mesh].end += shared.sum_seconds);
    }
    match &ends.norm {
        Some(norm) => {
            meshes.iter_mut().zip(&norm.own_seconds).for_each(|(mesh, own)| mesh.end += own);
            let end = meshes.iter().map(|it| it.end).fold(f64::INFINITY, f64::min);
            let alone =
                |it: &Mesh| it.before + it.chain + (it.weights + it.end).max(it.behind + end);
            // Some mesh begins at once, when it has updated.
            let update = meshes.iter().map(|it| it.update).fold(f64::INFINITY, f64::min);
            let ready = meshes.iter().map(alone).fold(longest + end, f64::max);
            ready + norm.sum_seconds + update
        }
        None => {
            let alone = |it: &Mesh| it.chain + it.weights + it.end + it.update;
            meshes.iter().map(alone).fold(0.0, f64::max)
        }
    }
}

/// What a mesh has to do.
#[derive(Clone, Copy)]
struct Mesh {
    /// Forward passes that come before its first, and backward passes that follow its last.
    before: f64,
    behind: f64,
    /// Its own passes that others wait for, and its weight gradients.
    chain: f64,
    weights: f64,
    /// What it does with its gradients when they are whole.
    end: f64,
    update: f64,
}

impl Default for Mesh {
    fn default() -> Mesh {
        let (before, behind) = (f64::INFINITY, f64::INFINITY);
        Mesh { before, behind, chain: 0.0, weights: 0.0, end: 0.0, update: 0.0 }
    }
}
