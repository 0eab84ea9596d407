//! How long single instructions, collectives and messages take.

use shardloom_cluster::{Cluster, DeviceId, DeviceKind, Precision};
use shardloom_graph::work::{self, MatmulShape, Pass, Work};
use shardloom_graph::{Extents, Graph, OpId, OpKind};
use shardloom_plan::Number;
use shardloom_program::{
    Action, Assignment, Bucket, Change, Class, ClassId, Exchange, Instruction, Operand, Program,
};

use crate::SimError;
use crate::rate::{collective_rate_name, rate_name};

/// Seconds of the parts of one program on one cluster.
///
/// A measured rate of the device, where there is one, wins over the model. Rates are looked up by name:
/// that of [`rate_name`] for the passes of an operator, among the device's products where it is a
/// product (arguments: its sizes) and among its rates otherwise (argument: elements of its largest
/// operand); `add`, `copy` (also slices and loads of data), `norm`, `update.adamw` and
/// `statistics.lamb` (argument: elements); and, on devices that compute and communicate on the same
/// cores, that of [`collective_rate_name`] (argument: elements of the buffer that each member holds).
#[derive(Clone, Debug)]
pub struct CostModel<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    program: &'a Program,
    extents: Extents,
}

impl<'a> CostModel<'a> {
    /// The costs of `program`, lowered from `graph`, on `cluster`.
    pub fn new(graph: &'a Graph, cluster: &'a Cluster, program: &'a Program) -> CostModel<'a> {
        CostModel { graph, cluster, program, extents: program.microbatch_extents(graph) }
    }

    pub(crate) fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    pub(crate) fn program(&self) -> &'a Program {
        self.program
    }

    /// Seconds of the part of `instruction` that `position` of `class` does by itself: nothing for
    /// messages and for most collectives.
    ///
    /// # Errors
    /// If the cluster lacks the device, or the device does not compute in the plan's precision.
    pub fn local_seconds(
        &self,
        class: ClassId,
        position: usize,
        instruction: &Instruction,
    ) -> Result<f64, SimError> {
        let class = self.program.class(class);
        let device = self.cluster.kind_of(class.devices[position])?;
        let read = || self.tensor(class, instruction.reads[0]);
        let written = || self.tensor(class, instruction.writes[0].to);
        let moved = |name: &str, elements: usize, bytes: usize| match elements {
            0 => 0.0,
            _ => device.memory_bound_seconds(name, elements as f64, bytes as f64),
        };
        let precision = self.program.precision;
        let gradient_bytes = precision.gradients.bytes();
        Ok(match &instruction.action {
            // Fused attention computes the scores again in its backward pass anyway, but not the
            // context.
            Action::Compute { op, again: true, .. }
                if device.fused_attention.is_some()
                    && matches!(self.graph.op(*op).kind, OpKind::AttentionContext { .. }) =>
            {
                0.0
            }
            Action::Compute { op, pass, assignment, .. } => {
                let extrapolates = self.program.extrapolates(class, instruction).is_some();
                let elements = |read: &Operand| match *read {
                    Operand::Weight(param) if extrapolates => class.param(param).elements(),
                    _ => 0,
                };
                let elements: usize = instruction.reads.iter().map(elements).sum();
                let moving = moved("add", elements, 3 * elements * precision.compute.bytes());
                moving + self.compute_seconds(class, device, *op, *pass, assignment)?
            }
            Action::Add => {
                let (elements, bytes) = written();
                moved("add", elements, read().1 + 2 * bytes)
            }
            Action::Copy if instruction.is_move() => 0.0,
            Action::Copy | Action::Load { .. } => {
                let (elements, bytes) = written();
                moved("copy", elements, 2 * bytes)
            }
            Action::Redistribute { change: Change::Slice { .. }, .. } => {
                let (elements, bytes) = written();
                moved("copy", elements, 2 * bytes)
            }
            Action::Norm { .. } => {
                let owned = |bucket: &Bucket| self.owned_elements(class, bucket, position);
                let elements = class.buckets.iter().map(owned).sum();
                moved("norm", elements, elements * gradient_bytes)
            }
            Action::Statistics { bucket, .. } => {
                let elements = self.owned_elements(class, class.bucket(*bucket), position);
                let each = gradient_bytes + self.program.optimizer.state_bytes_per_parameter();
                moved(
                    &format!("statistics.{}", self.program.optimizer.name()),
                    elements,
                    elements * each,
                )
            }
            Action::Backup { bucket } => {
                let bytes = class.backup_bytes(self.program, *bucket, position) as usize;
                let elements = self.owned_elements(class, class.bucket(*bucket), position);
                moved("copy", elements, 2 * bytes)
            }
            Action::Update { bucket } => {
                let elements = self.owned_elements(class, class.bucket(*bucket), position);
                // The gradient is read, state and weights are read and written; with a master copy the
                // weights in use are only written.
                let weights = match precision.master {
                    true => 2 * 4 + precision.compute.bytes(),
                    false => 2 * precision.compute.bytes(),
                };
                let state = 2 * self.program.optimizer.state_bytes_per_parameter();
                let each = gradient_bytes + weights + state;
                // An earlier version is a copy; a mean velocity or previous weights are read and written.
                let version = usize::from(class.versions() > 1) * 2 * precision.compute.bytes();
                let corrections = class.corrections(self.program) as usize;
                let kept = version + 3 * corrections * precision.compute.bytes();
                moved(
                    &format!("update.{}", self.program.optimizer.name()),
                    elements,
                    elements * each,
                ) + moved("copy", elements * usize::from(kept > 0), elements * kept)
            }
            Action::Redistribute { .. }
            | Action::Send { .. }
            | Action::Receive { .. }
            | Action::Loss
            | Action::Gather { .. }
            | Action::Release { .. }
            | Action::Validate
            | Action::Reduce { .. } => 0.0,
        })
    }

    /// Seconds that an executor computing and communicating on the same cores spends on copies around
    /// the collective of `instruction`: shards into and out of whole buckets, parts of tensors side by
    /// side. Nothing where copy engines do that on the way.
    ///
    /// # Errors
    /// If the cluster lacks the device.
    pub fn staging_seconds(
        &self,
        class: ClassId,
        position: usize,
        instruction: &Instruction,
    ) -> Result<f64, SimError> {
        let class = self.program.class(class);
        let device = self.cluster.kind_of(class.devices[position])?;
        if device.lanes_overlap {
            return Ok(0.0);
        }
        let moved = |name: &str, elements: usize, bytes: usize| match elements {
            0 => 0.0,
            _ => device.memory_bound_seconds(name, elements as f64, (elements * bytes) as f64),
        };
        let shard = |bucket| class.shard_range(class.bucket(bucket), position).len();
        let precision = self.program.precision;
        Ok(match instruction.action {
            Action::Gather { bucket } if self.program.shard.weights() => {
                moved("copy", shard(bucket), 2 * precision.compute.bytes())
            }
            Action::Reduce { bucket, scatter: true, .. } if self.program.shard.gradients() => {
                moved("add", shard(bucket), 3 * precision.gradients.bytes())
            }
            Action::Redistribute { change, .. } => {
                let (whole, bytes) = match change {
                    Change::Slice { .. } | Change::AllReduce(_) => return Ok(0.0),
                    Change::AllGather { .. } => self.tensor(class, instruction.writes[0].to),
                    Change::ReduceScatter { .. } | Change::AllToAll { .. } => {
                        self.tensor(class, instruction.reads[0])
                    }
                };
                moved("copy", whole, 2 * bytes.checked_div(whole).unwrap_or(0))
            }
            _ => 0.0,
        })
    }

    /// Seconds of a collective over `group` while `concurrent` groups like it, itself included, share
    /// the uplinks of its nodes. One member alone needs no time.
    ///
    /// # Errors
    /// If the cluster lacks a device, or the algorithm does not exist for the group.
    pub fn collective_seconds(
        &self,
        exchange: &Exchange,
        group: &[DeviceId],
        concurrent: u32,
    ) -> Result<f64, SimError> {
        if group.len() <= 1 || exchange.elements == 0 {
            return Ok(0.0);
        }
        let device = self.cluster.kind_of(group[0])?;
        if !device.lanes_overlap {
            let rate = collective_rate_name(exchange.algorithm, exchange.kind, group.len());
            if let Some(curve) = device.rates.get(&rate) {
                return Ok(curve.seconds(exchange.elements as f64, 0.0));
            }
        }
        let bytes = (exchange.elements * exchange.element_bytes) as f64;
        let Exchange { kind, algorithm, .. } = *exchange;
        Ok(self.cluster.collective_seconds(kind, algorithm, group, bytes, concurrent)?)
    }

    /// Seconds of a message of `bytes` while `concurrent` messages like it leave (or enter) the same
    /// node; none between a device and itself.
    ///
    /// # Errors
    /// If the cluster lacks a device.
    pub fn message_seconds(
        &self,
        from: DeviceId,
        to: DeviceId,
        bytes: u64,
        concurrent: u32,
    ) -> Result<f64, SimError> {
        let path = self.cluster.link(from, to)?;
        Ok(path.map_or(0.0, |path| path.transfer_seconds(bytes as f64, concurrent)))
    }

    fn compute_seconds(
        &self,
        class: &Class,
        device: &DeviceKind,
        op: OpId,
        pass: Pass,
        assignment: &Assignment,
    ) -> Result<f64, SimError> {
        let node = self.graph.op(op);
        let real_bytes = self.program.precision.compute.bytes();
        let local = assignment.local_extents(self.graph, op, &self.extents, &class.mesh);
        let found = work::work(self.graph, op, pass, &local, real_bytes);
        let Work { flops, bytes, elements, matmul } = found.ok_or_else(|| SimError::NoPass {
            op: node.name.clone(),
            kind: node.kind.name(),
            pass: pass_name(pass),
        })?;
        let rate = rate_name(self.graph, op, pass);
        if let Some(product) = device.products.get(&rate)
            && let Some((MatmulShape { batch, m, n, k }, _)) = matmul
        {
            // Asked for the error: a device without a peak rate does not compute in this precision.
            device.peak_flops(self.matmul_precision())?;
            return Ok(batch as f64 * product.seconds(m as u64, n as u64, k as u64));
        }
        if let Some(reached) = device.fused_attention.filter(|_| node.kind.in_attention_core()) {
            // Fused kernels skip what a causal mask hides: all but half of it.
            let seen = if is_causal(&node.kind) { 0.5 } else { 1.0 };
            let peak = device.peak_flops(self.matmul_precision())?;
            return Ok(device.launch_seconds + seen * flops / (peak * reached));
        }
        let Some((shape, count)) = matmul.filter(|_| !device.rates.contains_key(&rate)) else {
            return Ok(device.memory_bound_seconds(&rate, elements as f64, bytes));
        };
        let [batch, m, n, k] = [shape.batch, shape.m, shape.n, shape.k].map(|size| size as u64);
        let product = device.matmul_seconds(self.matmul_precision(), batch, m, n, k)?;
        let beside = match self.bytes_beside_products(op, pass, &local, real_bytes) {
            0 => 0.0,
            bytes => device.memory_bound_seconds(&rate, elements as f64, bytes as f64),
        };
        Ok(count as f64 * product + beside)
    }

    /// Bytes that pass through memory besides the operands of the operator's matrix products: those of
    /// the softmax and dropout over attention probabilities.
    fn bytes_beside_products(
        &self,
        op: OpId,
        pass: Pass,
        local: &Extents,
        real_bytes: usize,
    ) -> usize {
        let node = self.graph.op(op);
        let elements = |value| local.elements(&self.graph.value(value).axes);
        match node.kind {
            // Scores in, probabilities out; backward probabilities and their gradient in, scores'
            // gradient out.
            OpKind::AttentionProbs { .. } => {
                let operands = if pass == Pass::Forward { 2 } else { 3 };
                operands * real_bytes * elements(node.outputs[0])
            }
            // Both ways in, out, and the mask.
            OpKind::AttentionContext { .. } if node.kind.dropout().is_some() => {
                (2 * real_bytes + 1) * elements(node.inputs[0])
            }
            _ => 0,
        }
    }

    /// Elements and bytes of an operand.
    fn tensor(&self, class: &Class, operand: Operand) -> (usize, usize) {
        let elements = class.shape(operand).iter().product();
        let bytes = match operand {
            Operand::Slot(slot) => class.slot(slot).bytes,
            Operand::Weight(_) => elements * self.program.precision.compute.bytes(),
            Operand::Gradient(_) => elements * self.program.precision.gradients.bytes(),
            Operand::Norm => 4 * Operand::NORM_WORDS,
        };
        (elements, bytes)
    }

    /// Elements of a bucket whose optimizer state `position` holds.
    fn owned_elements(&self, class: &Class, bucket: &Bucket, position: usize) -> usize {
        match self.program.shard.state() && class.replicated(bucket) {
            true => class.shard_range(bucket, position).len(),
            false => bucket.elements,
        }
    }

    fn matmul_precision(&self) -> Precision {
        match self.program.precision.compute {
            Number::Fp32 => Precision::Fp32,
            Number::Bf16 => Precision::Bf16,
            Number::Fp16 => Precision::Fp16,
        }
    }
}

fn is_causal(kind: &OpKind) -> bool {
    match *kind {
        OpKind::AttentionProbs { causal, .. } | OpKind::AttentionContext { causal, .. } => causal,
        _ => false,
    }
}

fn pass_name(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "forward",
        Pass::Input => "input",
        Pass::Weight => "weight",
    }
}
