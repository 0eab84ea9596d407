//! How long single instructions, collectives and messages take.

use std::collections::BTreeSet;

use shardloom_cluster::{
    Cluster, DeviceId, DeviceKind, Kernels, LibraryAlgorithm, Path, Precision,
};
use shardloom_graph::work::{self, MatmulShape, Pass, Work};
use shardloom_graph::{Extents, Graph, OpId, OpKind};
use shardloom_plan::Number;
use shardloom_program::{
    Action, Assignment, Class, ClassId, Collective, Content, Copies, Exchange, Extent, Instruction,
    Message, Placement, Program, Route, Shape, Tensor, View, multiplies_in_8_bits,
};

use crate::held::ExtraBytes;
use crate::lookups::Lookups;
use crate::rate::{collective_rate_name, rate_name};
use crate::{RowCounts, SimError, host};

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
    rows: RowCounts,
    lookups: Lookups,
    /// Per class, whether it exchanges messages with other nodes; empty where that costs nothing.
    crosses: Vec<bool>,
    /// Per class, the operators of which it runs the forward pass twice.
    run_again: Vec<BTreeSet<OpId>>,
}

impl<'a> CostModel<'a> {
    /// The costs of `program`, lowered from `graph`, on `cluster`.
    pub fn new(graph: &'a Graph, cluster: &'a Cluster, program: &'a Program) -> CostModel<'a> {
        let extents = program.microbatch_extents(graph);
        let crosses = host::crosses(cluster, program);
        let (rows, lookups) = (RowCounts::Even, Lookups::of(program));
        let run_again = program.classes.iter().map(run_again).collect();
        CostModel { graph, cluster, program, extents, rows, lookups, crosses, run_again }
    }

    /// The same where every stage exchanges messages with other nodes if `crosses`, and none otherwise.
    #[must_use]
    pub(crate) fn with_groups_between_nodes(self, crosses: bool) -> CostModel<'a> {
        CostModel { crosses: vec![crosses; self.program.classes.len()], ..self }
    }

    /// The same where so many rows go to experts as `rows` says.
    #[must_use]
    pub fn with_rows(self, rows: RowCounts) -> CostModel<'a> {
        CostModel { rows, ..self }
    }

    /// Whether how many rows there are is found out while running, and may be another time others.
    pub(crate) fn finds_rows_out(&self) -> bool {
        matches!(self.rows, RowCounts::Measured(_))
    }

    pub(crate) fn row_counts(&mut self) -> &mut RowCounts {
        &mut self.rows
    }

    /// Whether an instruction takes longer where there are more rows, and how many there are is not the same
    /// everywhere and always.
    pub(crate) fn depends_on_rows(&self, class: &Class, instruction: &Instruction) -> bool {
        let mut operands = instruction.operands();
        self.rows != RowCounts::Even
            && operands.any(|view| class.tensor(view.tensor).counts().is_some())
    }

    /// Rows of an instruction's operands on `position` in a micro-batch; none if it has no such.
    fn rows_of(
        &self,
        class: &Class,
        position: usize,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Result<Option<f64>, SimError> {
        let mut operands = instruction.operands();
        let counted = operands.find_map(|view| class.counted(view.tensor, position));
        let rows = counted
            .map(|(counts, of)| self.rows.rows(self.graph, counts, self.measured(microbatch), &of));
        rows.transpose()
    }

    /// The micro-batch of a step that one of several steps in a row is like.
    fn measured(&self, microbatch: u32) -> u32 {
        microbatch % self.program.microbatches as u32
    }

    /// The collective that `position` of `class` takes part in when it runs `instruction` on a micro-batch.
    /// An exchange of rows takes as long as one in which everybody sends as much as the busiest member
    /// sends or receives.
    ///
    /// # Errors
    /// If how many rows there are is not known.
    pub fn exchange(
        &self,
        class: ClassId,
        position: usize,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Result<Option<Exchange>, SimError> {
        let node = self.program.class(class);
        let exchange = self.program.exchange(node, position, instruction);
        let (Some(exchange), Some(rows)) =
            (exchange.clone(), node.row_exchange(position, instruction))
        else {
            return Ok(exchange);
        };
        let microbatch = self.measured(microbatch);
        let count = |of: &Placement| self.rows.rows(self.graph, rows.counts, microbatch, of);
        let members = rows.moves.len() as f64;
        let elements = rows.busiest(count)? * rows.row_elements as f64 * members / (members - 1.0);
        let elements = (elements.ceil() as usize).next_multiple_of(rows.moves.len());
        Ok(Some(Exchange { elements, ..exchange }))
    }

    /// Bytes of a message, as many as it brings rows.
    ///
    /// # Errors
    /// If how many rows there are is not known.
    pub fn message_bytes(&self, route: &Route, message: &Message) -> Result<u64, SimError> {
        let most = route.message_bytes(message);
        let Some(rows) = self.program.table_rows(route) else { return Ok(most) };
        let room = message.source.extent[0].max(1) as u64;
        Ok((self.rows.looked_up(&rows)? * (most / room) as f64).round() as u64)
    }

    /// Bytes that `position` of `class` sends less in one step than if all slots were filled.
    ///
    /// # Errors
    /// If how many rows there are is not known.
    pub(crate) fn unfilled_bytes(&self, class: ClassId, position: usize) -> Result<u64, SimError> {
        let node = self.program.class(class);
        let mut bytes = 0;
        let held = node.guards().flat_map(|guard| &guard.then);
        for entry in node.unguarded().chain(held) {
            let microbatch = self.measured(entry.microbatch.unwrap_or(0));
            for instruction in &node.body_of(entry).instructions {
                if let Action::Send { route } = instruction.action {
                    let route = self.program.route(route);
                    if !route.moves_rows() {
                        continue;
                    }
                    for message in route.sent_by(position) {
                        let most = route.message_bytes(message);
                        bytes += most - self.message_bytes(route, message)?.min(most);
                    }
                }
                let Some(rows) = node.row_exchange(position, instruction) else { continue };
                let count =
                    |of: &Placement| self.rows.rows(self.graph, rows.counts, microbatch, of);
                let most = self.program.instruction_sent_bytes(class, position, instruction);
                bytes += most - rows.sent_bytes(count)?;
            }
        }
        Ok(bytes)
    }

    /// Whether `class` exchanges messages with other nodes, where that costs its host something.
    pub(crate) fn crosses(&self, class: ClassId) -> bool {
        self.crosses.get(class.0 as usize).copied().unwrap_or(false)
    }

    pub(crate) fn graph(&self) -> &'a Graph {
        self.graph
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
        self.local_seconds_of(class, position, instruction, 0)
    }

    /// The same in a micro-batch, counted from the first of all steps, on which the number of rows may depend
    /// that go to experts.
    ///
    /// # Errors
    /// Also if how many rows there are is not known.
    pub fn local_seconds_of(
        &self,
        class: ClassId,
        position: usize,
        instruction: &Instruction,
        microbatch: u32,
    ) -> Result<f64, SimError> {
        let class = self.program.class(class);
        let device = self.cluster.kind_of(class.devices[position])?;
        let elements = |view: View| class.view_range(view, position).len();
        let bytes = |view: View| class.view_bytes(view, position) as usize;
        let read = || bytes(instruction.reads[0]);
        let all_read = || instruction.reads.iter().map(|&it| bytes(it)).sum::<usize>();
        let written = || elements(instruction.writes[0].to);
        let written_bytes = || instruction.writes.iter().map(|it| bytes(it.to)).sum::<usize>();
        let stack = self.cluster.stack();
        let moved = |name: &str, elements: usize, bytes: usize| match elements {
            0 => 0.0,
            _ => {
                let bytes = stack.memory_time * stack.kernels(name).traffic * bytes as f64;
                device.memory_bound_seconds(name, elements as f64, bytes)
            }
        };
        let copied = |bytes: usize| self.copy_seconds(device, bytes as f64);
        Ok(match &instruction.action {
            Action::Kernel { op, pass, assignment, .. } => {
                let rows = self.rows_of(class, position, instruction, microbatch)?;
                self.compute_seconds(class, device, (*op, *pass, assignment), rows)?
            }
            Action::Extrapolate { .. } => moved("add", written(), 3 * written_bytes()),
            Action::Add | Action::Difference | Action::Average { .. } => {
                moved("add", written(), read() + 2 * written_bytes())
            }
            Action::Copy if instruction.is_move() => 0.0,
            Action::Copy
            | Action::Load { .. }
            | Action::LoadRows { .. }
            | Action::FindRows
            | Action::Slice { .. }
            | Action::Publish { .. } => copied(2 * written_bytes()),
            Action::TakeRows => {
                let filled = self.lookups.filled(class, instruction, &self.rows)?;
                self.copy_seconds(device, filled * (2 * written_bytes()) as f64)
            }
            Action::Norm => {
                let all = instruction.reads.iter();
                let (elements, bytes) =
                    all.fold((0, 0), |sum, &it| (sum.0 + elements(it), sum.1 + bytes(it)));
                moved("norm", elements, bytes)
            }
            Action::Statistics { .. } => {
                let gradients = instruction.reads[0];
                let name = format!("statistics.{}", self.program.optimizer.name());
                let state = self.state_bytes(class, position, instruction);
                // As many as there are weights, also where gradients are of some rows.
                moved(&name, elements(instruction.reads[1]), bytes(gradients) + state)
            }
            Action::Optimizer => {
                let gradients = instruction.reads[0];
                let name = format!("update.{}", self.program.optimizer.name());
                let weights = self.updated_bytes(class, position, instruction);
                // Of a table only the rows are touched that have gradients, where nothing changes without.
                let filled = self.lookups.filled(class, instruction, &self.rows)?;
                let touched = match self.program.optimizer.changes_without_gradient() {
                    true => written(),
                    false => ((filled * elements(gradients) as f64) as usize).min(written()),
                };
                // Tables of billions of elements have more squares of bytes than 64 bits count.
                let share = weights as u128 * touched as u128 / written().max(1) as u128;
                let weights = share as usize;
                let state = 2 * self.state_bytes(class, position, instruction);
                // An earlier version is a copy; what corrections keep is read and written.
                let kept = self.kept_bytes(class, position, instruction);
                moved(&name, touched, bytes(gradients) + weights + state) + copied(kept)
            }
            // Everything is read and written once, as if it took one kernel.
            Action::Compress { .. } | Action::Decompress { .. } | Action::SumRows => {
                let filled = self.lookups.filled(class, instruction, &self.rows)?;
                let part = |all: usize| (filled * all as f64) as usize;
                let elements = instruction.operands().map(elements).max().unwrap_or(0);
                moved("copy", part(elements), part(all_read() + written_bytes()))
            }
            Action::Cast => {
                let kept = self.kept_bytes(class, position, instruction);
                copied(read() + written_bytes() + kept)
            }
            Action::Collective { .. }
            | Action::Send { .. }
            | Action::Receive { .. }
            | Action::Fetch { .. }
            | Action::Report
            | Action::Due { .. }
            | Action::Test
            | Action::Free => 0.0,
        })
    }

    /// Seconds of a copy that reads and writes so many `bytes` in all.
    fn copy_seconds(&self, device: &DeviceKind, bytes: f64) -> f64 {
        if bytes == 0.0 {
            return 0.0;
        }
        let stack = self.cluster.stack();
        let moved = stack.memory_time * stack.kernels("copy").traffic * bytes;
        device.memory_bound_seconds("copy", copied_elements(bytes), moved)
    }

    /// Bytes of what `instruction` writes of some content.
    fn written_bytes(
        &self,
        class: &Class,
        position: usize,
        instruction: &Instruction,
        wanted: impl Fn(&Tensor) -> bool,
    ) -> usize {
        let written = instruction.writes.iter().map(|write| write.to);
        let wanted = written.filter(|view| wanted(class.tensor(view.tensor)));
        wanted.map(|view| class.view_bytes(view, position) as usize).sum()
    }

    /// Bytes of the optimizer's state with a number for each element; what it keeps of whole parameters is
    /// little.
    fn state_bytes(&self, class: &Class, position: usize, instruction: &Instruction) -> usize {
        self.written_bytes(class, position, instruction, |tensor| {
            let per_element = !matches!(tensor.shape, Shape::Flat(Extent::OfParam { .. }));
            matches!(tensor.content, Content::OptimizerState(_)) && per_element
        })
    }

    /// Bytes of weights that an update moves: they are read and written.
    fn updated_bytes(&self, class: &Class, position: usize, instruction: &Instruction) -> usize {
        2 * self.written_bytes(class, position, instruction, |tensor| {
            matches!(tensor.content, Content::Weight | Content::MasterWeight)
        })
    }

    /// Bytes that an update moves to keep what passes with older weights need.
    fn kept_bytes(&self, class: &Class, position: usize, instruction: &Instruction) -> usize {
        let versions = self.written_bytes(class, position, instruction, |tensor| {
            matches!(tensor.copies, Copies::Versions(_))
        });
        let corrections = self.written_bytes(class, position, instruction, |tensor| {
            matches!(tensor.content, Content::PreviousWeight | Content::WeightVelocity)
        });
        2 * versions + 3 * corrections
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
        let Action::Collective { kind, .. } = &instruction.action else { return Ok(0.0) };
        if device.lanes_overlap || instruction.is_in_place() {
            return Ok(0.0);
        }
        let copied =
            |view: View| self.copy_seconds(device, (2 * class.view_bytes(view, position)) as f64);
        let added = |view: View| match class.view_range(view, position).len() {
            0 => 0.0,
            elements => {
                let bytes = (3 * class.view_bytes(view, position)) as f64;
                let bytes = self.cluster.stack().memory_time * bytes;
                device.memory_bound_seconds("add", elements as f64, bytes)
            }
        };
        let (read, written) = (instruction.reads[0], instruction.writes[0]);
        let of_value = class.tensor(read.tensor).is_activation();
        Ok(match kind {
            Collective::AllReduce(_) => 0.0,
            // Weights are gathered around one's own shard, gradients scattered into it.
            Collective::AllGather { .. } if !of_value => copied(read),
            Collective::ReduceScatter { .. } if !of_value => added(written.to),
            Collective::AllGather { .. } => copied(written.to),
            Collective::ReduceScatter { .. } | Collective::AllToAll { .. } => copied(read),
        })
    }

    /// Seconds that a device takes to lay what is reduced as one side by side, and to take it back from there.
    ///
    /// # Errors
    /// If the cluster lacks the device.
    pub fn fusion_seconds(
        &self,
        class: ClassId,
        position: usize,
        fused: &Exchange,
    ) -> Result<f64, SimError> {
        let device = self.cluster.kind_of(self.program.class(class).devices[position])?;
        let Exchange { elements, element_bytes, .. } = *fused;
        Ok(2.0 * self.copy_seconds(device, (2 * elements * element_bytes) as f64))
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
        if self.program.classes.iter().any(|class| class.stages.is_empty()) {
            // A server on a worker's device and that worker have nothing to send each other.
            let devices: BTreeSet<DeviceId> = group.iter().copied().collect();
            if devices.len() < group.len() {
                let devices: Vec<DeviceId> = devices.into_iter().collect();
                return self.collective_seconds(exchange, &devices, concurrent);
            }
        }
        if group.len() <= 1 || exchange.elements == 0 {
            return Ok(0.0);
        }
        let device = self.cluster.kind_of(group[0])?;
        // What cores were measured to do is of one machine.
        if !device.lanes_overlap && self.is_on_one_node(group)? {
            let rate = collective_rate_name(exchange.algorithm, exchange.kind, group.len());
            if let Some(curve) = device.rates.get(&rate) {
                let bytes = (exchange.elements * exchange.element_bytes) as f64;
                return Ok(curve.seconds(full_precision_elements(bytes), 0.0));
            }
        }
        let bytes = (exchange.elements * exchange.element_bytes) as f64;
        let Exchange { kind, algorithm, .. } = *exchange;
        let stack = self.cluster.stack();
        let mut least = f64::INFINITY;
        for algorithm in stack.algorithms(kind, algorithm) {
            let seconds = match algorithm {
                LibraryAlgorithm::Listed(algorithm) => {
                    self.cluster.collective_seconds(kind, algorithm, group, bytes, concurrent)?
                }
                LibraryAlgorithm::TreeOfNodes => {
                    self.cluster.group_shape(group, concurrent)?.tree_of_nodes_seconds(bytes)
                }
            };
            least = least.min(seconds);
        }
        Ok(stack.collective_time * least)
    }

    fn is_on_one_node(&self, group: &[DeviceId]) -> Result<bool, SimError> {
        let first = self.cluster.node_of(group[0])?;
        for &member in &group[1..] {
            if self.cluster.node_of(member)? != first {
                return Ok(false);
            }
        }
        Ok(true)
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

    /// Seconds that a message of `bytes` occupies the way into its receiver: as long as it would take over that
    /// alone, but for what its first byte takes.
    ///
    /// # Errors
    /// If the cluster lacks a device.
    pub fn inflow_seconds(
        &self,
        from: DeviceId,
        to: DeviceId,
        bytes: u64,
    ) -> Result<f64, SimError> {
        let path = self.cluster.way_in(from, to)?;
        let takes = |path: Path<'_>| {
            let seconds = path.transfer_seconds(bytes as f64, 1);
            (seconds - path.link.latency_seconds).max(0.0)
        };
        Ok(path.map_or(0.0, takes))
    }

    fn compute_seconds(
        &self,
        class: &Class,
        device: &DeviceKind,
        (op, pass, assignment): (OpId, Pass, &Assignment),
        rows: Option<f64>,
    ) -> Result<f64, SimError> {
        let node = self.graph.op(op);
        let real_bytes = self.program.precision.compute.bytes();
        let local = assignment.local_extents(self.graph, op, &self.extents, &class.mesh);
        let found = work::work_on_rows(self.graph, op, pass, &local, real_bytes, rows);
        let Work { flops, bytes, elements, matmul, turns } =
            found.ok_or_else(|| SimError::NoPass {
                op: node.name.clone(),
                kind: node.kind.name(),
                pass: pass_name(pass),
            })?;
        let format = self.product_format(op);
        let compute = matmul_precision(self.program.precision.compute);
        let rate = rate_name(self.graph, op, pass);
        if let Some(product) = device.measured_product(format, &rate)
            && let Some((MatmulShape { batch, m, n, k }, _)) = matmul
        {
            // Asked for the error: a device without a peak rate does not compute in this format.
            device.peak_flops(format)?;
            if flops == 0.0 {
                return Ok(0.0);
            }
            let products = (turns * batch) as f64;
            return Ok(products * product.seconds(m as u64, n as u64, k as u64));
        }
        let stack = self.cluster.stack();
        if let OpKind::FusedAttention { visibility, .. } = node.kind
            && let Some(kernels) = stack.fused_attention(device)
            && let Some((MatmulShape { batch, m, n, k }, count)) = matmul
        {
            // Fused kernels skip what a mask hides.
            let keys = node.signature.inputs[1][1];
            let seen = n as f64 * visibility.seen(local.get(node.signature.loops[keys].dim));
            let peak = device.peak_flops(compute)?;
            let pass = if pass == Pass::Forward { kernels.forward } else { kernels.backward };
            let of_score = (2 * count * k) as f64;
            let seconds = pass.seconds(peak, (batch * m) as f64 * seen, of_score, seen);
            return Ok(device.launch_seconds + seconds);
        }
        let traffic = stack.memory_time * stack.kernels(&rate).traffic;
        let Some((shape, count)) =
            matmul.filter(|_| device.measured_rate(compute, &rate).is_none())
        else {
            let bytes = traffic * bytes;
            return Ok(device.memory_bound_seconds_in(compute, &rate, elements as f64, bytes));
        };
        let [batch, m, n, k] = [shape.batch, shape.m, shape.n, shape.k].map(|size| size as u64);
        let rows = shape.row_lengths(pass).map(|length| length as u64);
        let product = device.matmul_seconds_in_rows(format, [batch, m, n, k], &rows)?;
        let beside = match self.bytes_beside_products(op, pass, &local, real_bytes) {
            0 => 0.0,
            bytes => {
                let bytes = traffic * bytes as f64;
                device.memory_bound_seconds_in(compute, &rate, elements as f64, bytes)
            }
        };
        let count = match node.kind {
            // What a projection multiplies is counted as more of the recurrent products.
            OpKind::Lstm { .. } => flops / (2.0 * m as f64 * n as f64 * k as f64),
            _ => (turns * count) as f64,
        };
        Ok(count * stack.product_time * product + beside)
    }

    /// The format of the operands of a product.
    fn product_format(&self, op: OpId) -> Precision {
        let Program { precision, .. } = *self.program;
        match multiplies_in_8_bits(self.graph, precision, op) {
            true => Precision::Fp8,
            false => matmul_precision(precision.compute),
        }
    }

    /// What `instruction` takes of memory on `position` of `class` besides tensors. Of a forward pass that is run
    /// a second time, what is saved is the second's.
    pub fn extra_bytes(
        &self,
        class: ClassId,
        position: usize,
        instruction: &Instruction,
    ) -> ExtraBytes {
        let Action::Kernel { op, pass, again, .. } = &instruction.action else {
            return ExtraBytes::default();
        };
        let stack = self.cluster.stack();
        if stack.operators.is_empty() {
            return ExtraBytes::default();
        }
        let Kernels { workspace, saved, .. } = stack.kernels(&rate_name(self.graph, *op, *pass));
        let saves = *pass == Pass::Forward && (*again || !self.runs_again(class, *op));
        let saved = if saves { saved } else { 0.0 };
        if (workspace, saved) == (0.0, 0.0) {
            return ExtraBytes::default();
        }
        let class = self.program.class(class);
        let elements = instruction.operands().map(|view| class.view_range(view, position).len());
        let elements = elements.max().unwrap_or(0) as f64;
        let bytes = |each: f64| (each * elements) as u64;
        ExtraBytes { workspace: bytes(workspace), saved: bytes(saved) }
    }

    /// Whether backward passes of `class` run the forward pass of `op` a second time.
    fn runs_again(&self, class: ClassId, op: OpId) -> bool {
        self.run_again[class.0 as usize].contains(&op)
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
            // Gates in, activated gates, cells and results out; backward these in and the gates' gradient out.
            OpKind::Lstm { .. } => match pass {
                Pass::Forward | Pass::Input => {
                    let cells = 4 * elements(node.outputs[2]);
                    real_bytes * (2 * elements(node.inputs[0]) + elements(node.outputs[0]))
                        + 2 * cells
                }
                Pass::Weight => 0,
            },
            // What a pass has first is read, and written in 8 bits as it is and transposed: activations for
            // the products forward and of weights, their gradients for those backward. So it is also with what is
            // stored in 8 bits, as where a scale is that of the tensor itself; with scales of earlier steps norms
            // write 8 bits by themselves, which is not counted.
            OpKind::Contract { .. } if self.product_format(op) == Precision::Fp8 => match pass {
                Pass::Forward => (real_bytes + 2) * elements(node.inputs[0]),
                Pass::Input => (real_bytes + 2) * elements(node.outputs[0]),
                Pass::Weight => 0,
            },
            _ => 0,
        }
    }
}

/// The rate of a device at which products run where a plan computes in `compute`.
pub fn matmul_precision(compute: Number) -> Precision {
    match compute {
        Number::Fp32 => Precision::Fp32,
        Number::Bf16 => Precision::Bf16,
        Number::Fp16 => Precision::Fp16,
    }
}

/// As many elements as are so many bytes in full precision, in which what moves and adds them is measured.
pub(crate) fn full_precision_elements(bytes: f64) -> f64 {
    bytes / f64::from(Precision::Fp32.bytes())
}

/// As many elements as a copy in full precision has that reads and writes so many bytes in all.
pub(crate) fn copied_elements(bytes: f64) -> f64 {
    full_precision_elements(bytes) / 2.0
}

fn pass_name(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "forward",
        Pass::Input => "input",
        Pass::Weight => "weight",
    }
}

/// The operators of which backward passes of `class` run the forward pass a second time.
fn run_again(class: &Class) -> BTreeSet<OpId> {
    let instructions = class.bodies.iter().flat_map(|body| &body.instructions);
    let ops = instructions.filter_map(|instruction| match instruction.action {
        Action::Kernel { op, again: true, .. } => Some(op),
        _ => None,
    });
    ops.collect()
}
