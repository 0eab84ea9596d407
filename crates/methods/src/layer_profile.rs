//! What partitioners know of a layer, and how a graph's blocks come by it.

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::{Extents, Graph};
use shardloom_plan::{
    DeviceList, Mesh, Optimizer, ParameterGroup, ParameterGroups, Pipeline, Precision, Recompute,
    ScheduleKind, Stage, Sync, Uniform,
};
use shardloom_program::{Action, Body, BodyKind, Program, ProgramError, lower};
use shardloom_sim::CostModel;

use crate::MethodError;

/// One layer, or several in a row, with one micro-batch on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerProfile {
    /// The forward pass.
    pub forward_seconds: f64,
    /// The backward pass, activations' and weights' gradients together.
    pub backward_seconds: f64,
    /// What later layers read across a cut behind this one; as much comes back as gradients.
    pub output_bytes: f64,
    /// The weights as they are computed with.
    pub parameter_bytes: f64,
    /// The weights' gradients, which replicas exchange.
    pub gradient_bytes: f64,
    /// What the forward pass leaves for the backward pass.
    pub kept_bytes: f64,
}

impl LayerProfile {
    /// Forward and backward pass.
    pub fn seconds(&self) -> f64 {
        self.forward_seconds + self.backward_seconds
    }

    /// Consecutive layers as one. Parameters that two of them share count twice.
    pub fn of_stage(layers: &[LayerProfile]) -> LayerProfile {
        let sum = |part: fn(&LayerProfile) -> f64| layers.iter().map(part).sum();
        LayerProfile {
            forward_seconds: sum(|layer| layer.forward_seconds),
            backward_seconds: sum(|layer| layer.backward_seconds),
            output_bytes: layers.last().map_or(0.0, |layer| layer.output_bytes),
            parameter_bytes: sum(|layer| layer.parameter_bytes),
            gradient_bytes: sum(|layer| layer.gradient_bytes),
            kept_bytes: sum(|layer| layer.kept_bytes),
        }
    }
}

/// The profile of each block of `graph` with a micro-batch of `microbatch` samples on `device`, with parameters of
/// `frozen` groups as they are: backward passes do only what the others need.
///
/// The graph is lowered for this device alone, nothing split and nothing computed twice, and the
/// instructions are timed by the cost model. What accumulates gradients or copies counts to the block of
/// the operator before it. A parameter of several blocks (tied embeddings) counts to each of them, as each
/// stage that uses it holds one.
///
/// # Errors
/// If the cluster lacks the device, or the device does not compute in the precision.
pub fn profile(
    graph: &Graph,
    cluster: &Cluster,
    device: DeviceId,
    (precision, frozen): (Precision, &[ParameterGroup]),
    microbatch: usize,
) -> Result<Vec<LayerProfile>, MethodError> {
    let program = alone(graph, cluster, device, (precision, frozen), microbatch)?;
    let (class_id, class) = program.classes().next().expect("a plan of one stage has one class");
    let costs = CostModel::new(graph, cluster, &program);
    let body = |kind| class.bodies.iter().find(|body| body.kind == kind).expect("each pass once");
    let (forward, backward) = (body(BodyKind::Forward), body(BodyKind::Backward));
    let mut layers = vec![LayerProfile::default(); graph.blocks().len()];
    let mut written = vec![None; class.tensors.len()];
    for (block, instruction) in blocks(graph, forward).zip(&forward.instructions) {
        layers[block].forward_seconds += costs.local_seconds(class_id, 0, instruction)?;
        for write in &instruction.writes {
            let tensor = write.to.tensor;
            if class.tensor(tensor).is_activation() {
                written[tensor.0 as usize] = Some(block);
            }
        }
    }
    for (block, instruction) in blocks(graph, backward).zip(&backward.instructions) {
        layers[block].backward_seconds += costs.local_seconds(class_id, 0, instruction)?;
        for read in &instruction.reads {
            // Only what the forward pass wrote is kept, and each value once.
            if let Some(block) = written[read.tensor.0 as usize].take() {
                layers[block].kept_bytes += class.tensor_bytes(read.tensor, 0) as f64;
            }
        }
    }
    let frozen = ParameterGroups::from_groups(frozen).map_err(ProgramError::from)?;
    add_sizes(graph, (precision, &frozen), microbatch, &mut layers);
    Ok(layers)
}

/// The program of one micro-batch of `graph` on `device` alone.
fn alone(
    graph: &Graph,
    cluster: &Cluster,
    device: DeviceId,
    (precision, frozen): (Precision, &[ParameterGroup]),
    microbatch: usize,
) -> Result<Program, MethodError> {
    let whole = Uniform {
        pp: 1,
        mesh: Mesh::SINGLE,
        sequence_parallel: false,
        global_batch: microbatch,
        microbatches: 1,
        schedule: ScheduleKind::OneForwardOneBackward,
        recompute: Recompute::None,
        sync: Sync::default(),
        precision,
        optimizer: Optimizer::default(),
        clip_norm: None,
    };
    let devices = DeviceList(vec![device.0]);
    let stage = Stage::new((0, graph.blocks().len()), whole.mesh, devices);
    let mut plan = whole.plan_of(graph, graph.name(), "", vec![Pipeline::of(vec![stage])]);
    plan.parameters = frozen.to_vec();
    Ok(lower(graph, &plan, cluster.device_count() as usize)?)
}

/// The block of each instruction of `body`: its operator's, or that of the operator before it.
fn blocks(graph: &Graph, body: &Body) -> impl Iterator<Item = usize> {
    let own = |action: &Action| match action {
        Action::Kernel { op, .. } => Some(graph.op(*op).block.index()),
        _ => None,
    };
    let mut current = body.instructions.iter().find_map(|it| own(&it.action)).unwrap_or(0);
    body.instructions.iter().map(move |instruction| {
        current = own(&instruction.action).unwrap_or(current);
        current
    })
}

/// Fills in the sizes of parameters and of what crosses cuts.
fn add_sizes(
    graph: &Graph,
    (precision, frozen): (Precision, &ParameterGroups),
    microbatch: usize,
    layers: &mut [LayerProfile],
) {
    let extents = Extents::global(graph, microbatch);
    let block = |op| graph.op(op).block.index();
    for (_, value) in graph.values() {
        let elements = extents.elements(&value.axes);
        let mut readers: Vec<usize> = value.consumers.iter().map(|&op| block(op)).collect();
        readers.sort_unstable();
        readers.dedup();
        if value.parameter().is_some() {
            for &reader in &readers {
                layers[reader].parameter_bytes += (elements * precision.compute.bytes()) as f64;
                if frozen.group(&value.name).is_none() {
                    layers[reader].gradient_bytes +=
                        (elements * precision.gradients.bytes()) as f64;
                }
            }
        }
        if let (Some(producer), Some(&last)) = (value.producer, readers.last()) {
            let bytes = elements * value.dtype.bytes(precision.compute.bytes());
            for layer in &mut layers[block(producer)..last] {
                layer.output_bytes += bytes as f64;
            }
        }
    }
}
