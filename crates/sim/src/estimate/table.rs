//! What is tabulated: blocks under one split, micro-batch and recomputation, and stage boundaries.

use std::collections::BTreeMap;

use shardloom_cluster::Cluster;
use shardloom_graph::{BlockId, Graph, Representative, Value, ValueId};
use shardloom_program::{Action, BodyKind, Class, Content, Program};

use super::block::{BlockCost, Held, Site, pass_instructions};
use super::parameters::ParameterTable;
use super::place::Place;
use super::{Candidate, Settings};
use crate::{CostModel, SimError};

/// Blocks under one way of splitting a replica.
#[derive(Clone, Debug)]
pub(super) struct SplitTable {
    pub parameters: ParameterTable,
    /// Elements of the parameters that are trained on one device if it had all blocks.
    pub total_elements: f64,
    /// Likewise of those that are frozen.
    pub total_frozen: f64,
    /// For each cut before a block, and the end: bytes of one sample that cross it, on one device.
    pub cut_bytes: Vec<f64>,
}

impl SplitTable {
    /// The blocks of `graph` as those of its lowered representative model are split; micro-batches have `samples`
    /// samples.
    pub fn of(
        graph: &Graph,
        representative: &Representative,
        program: &Program,
        settings: &Settings,
        full: f64,
        samples: u32,
    ) -> SplitTable {
        let optimizer = &settings.optimizer;
        let parameters = ParameterTable::of(graph, representative, program, optimizer, full);
        let own = representative.stand_ins().iter().map(|&kind| &parameters.own[kind]);
        let all = own.chain(parameters.shared.iter().map(|it| &it.parameters));
        let (trained, frozen): (Vec<f64>, Vec<f64>) =
            all.map(|it| (it.total(), it.total_frozen())).unzip();
        let cut_bytes = cut_bytes(graph, representative, program, samples);
        SplitTable {
            total_elements: trained.iter().sum(),
            total_frozen: frozen.iter().sum(),
            parameters,
            cut_bytes,
        }
    }
}

/// Each value that crosses a cut is as large as what the first block behind it receives.
fn cut_bytes(
    graph: &Graph,
    representative: &Representative,
    program: &Program,
    samples: u32,
) -> Vec<f64> {
    let received: Vec<Vec<f64>> =
        program.classes.iter().map(|class| received_bytes(class, samples)).collect();
    let mut bytes = vec![0.0; graph.blocks().len() + 1];
    // The first cut that a value is not known to cross.
    let mut next: BTreeMap<ValueId, usize> = BTreeMap::new();
    for block in 0..graph.blocks().len() {
        let values = values_from_before(graph, block);
        for ((value, producer), size) in
            values.iter().zip(&received[representative.stand_in(block)])
        {
            let next = next.entry(*value).or_insert(producer + 1);
            bytes[*next..=block].iter_mut().for_each(|cut| *cut += size);
            *next = block + 1;
        }
    }
    bytes
}

/// Bytes of one sample of each value that a stage receives in its forward pass, in order of first use.
fn received_bytes(class: &Class, samples: u32) -> Vec<f64> {
    let received = pass_instructions(class).filter(|(kind, instruction)| {
        *kind == BodyKind::Forward && matches!(instruction.action, Action::Receive { .. })
    });
    let received = received.map(|(_, instruction)| instruction);
    let written = received.flat_map(|it| &it.writes).map(|it| class.view_bytes(it.to, 0));
    written.map(|bytes| bytes as f64 / f64::from(samples)).collect()
}

/// The inputs of a representative model that several blocks of the original read.
fn loaded_once(representative: &Representative) -> Vec<ValueId> {
    let graph = representative.graph();
    let is_read_often = |input: &Value| {
        let reads =
            |kind: usize| input.consumers.iter().any(|&op| graph.op(op).block.index() == kind);
        representative.stand_ins().iter().filter(|&&kind| reads(kind)).count() > 1
    };
    graph.inputs().filter(|(_, input)| is_read_often(input)).map(|(id, _)| id).collect()
}

/// The values that `block` reads and an earlier one made, in order of first use, with that block.
fn values_from_before(graph: &Graph, block: usize) -> Vec<(ValueId, usize)> {
    let mut values = vec![];
    let ops = graph.blocks()[block].ops.iter();
    for &input in ops.flat_map(|&op| &graph.op(op).inputs) {
        let Some(producer) = graph.value(input).producer else { continue };
        let found = (input, graph.op(producer).block.index());
        if graph.op(producer).block != BlockId(block as u32) && !values.contains(&found) {
            values.push(found);
        }
    }
    values
}

/// What each kind of block costs with one micro-batch and recomputation.
#[derive(Clone, Debug)]
pub(super) struct BlockTable {
    /// Which split they are under.
    pub split: usize,
    /// Per kind.
    pub blocks: Vec<BlockCost>,
    /// Seconds of all passes of all blocks before each block, and of all.
    pub seconds_before: Vec<f64>,
    /// What all passes take longer than their computation.
    pub exposed_seconds: f64,
    /// Seconds of what a micro-batch goes through one after the other: forward passes, and backward passes or their
    /// first halves.
    pub chain_seconds: f64,
    /// The most that a block's backward pass runs before it needs what it receives.
    pub early_seconds: f64,
    /// The least share that [`BlockCost::fill_seconds`] are of all passes of a block.
    pub fill_share: f64,
    /// Whether backward passes are in halves.
    pub halves: bool,
    /// Kept bytes of all blocks.
    pub kept_bytes: f64,
}

impl BlockTable {
    /// The costs of blocks as those of the lowered representative model.
    ///
    /// # Errors
    /// As [`CostModel`].
    pub fn of(
        cluster: &Cluster,
        place: &Place<'_>,
        representative: &Representative,
        mut program: Program,
        candidate: &Candidate,
        split: usize,
    ) -> Result<BlockTable, SimError> {
        let (devices, concurrent) = place.replica(candidate.sample_devices());
        for class in &mut program.classes {
            // Stages are costed one by one, all in the same place.
            class.devices = devices.iter().copied().cycle().take(class.mesh.size()).collect();
        }
        let loaded_once = loaded_once(representative);
        let site = Site {
            loaded_once: &loaded_once,
            devices: &devices,
            concurrent,
            per_node: place.per_node,
            overlaps: place.overlaps(),
        };
        let mut blocks = vec![BlockCost::default(); program.classes.len()];
        let costs = CostModel::new(representative.graph(), cluster, &program)
            .with_groups_between_nodes(place.crosses(candidate));
        for (block, (id, _)) in blocks.iter_mut().zip(program.classes()) {
            let [forward, backward, weight] = site.passes(&costs, id)?;
            block.forward_seconds = forward.seconds;
            block.backward_seconds = backward.seconds;
            block.weight_seconds = weight.seconds;
            block.exposed_seconds = [forward.exposed_seconds, backward.exposed_seconds];
            block.early_seconds = backward.early_seconds;
        }
        // Of whole weights and gradients those count that are there only while they are used.
        let held_with = |passing: &[Content]| -> Vec<Held> {
            let counts = |content| match content {
                Content::Weight | Content::Gradient => passing.contains(&content),
                _ => true,
            };
            let of = |(id, _)| Held::of(&costs, id, |tensor| counts(tensor.content));
            program.classes().map(of).collect()
        };
        let held = [
            &[][..],
            &[Content::Gradient],
            &[Content::Gradient, Content::Weight],
            &[Content::Weight],
        ];
        let held = held.map(held_with);
        for (index, block) in blocks.iter_mut().enumerate() {
            [block.whole, block.scattered, block.gathered, block.gathered_weights] =
                held.each_ref().map(|it| it[index]);
        }
        let mut seconds_before = vec![0.0];
        let mut kept_bytes = 0.0;
        let (mut seconds, mut exposed_seconds, mut chain_seconds) = (0.0, 0.0, 0.0);
        for &kind in representative.stand_ins() {
            seconds += blocks[kind].seconds();
            exposed_seconds += blocks[kind].exposed_seconds.iter().sum::<f64>();
            chain_seconds += blocks[kind].forward_seconds + blocks[kind].backward_seconds;
            seconds_before.push(seconds);
            kept_bytes += blocks[kind].whole.kept_bytes;
        }
        let early_seconds = blocks.iter().map(|it| it.early_seconds).fold(0.0, f64::max);
        let halves = candidate.halves();
        let taking = blocks.iter().filter(|it| it.seconds() > 0.0);
        let shares = taking.map(|it| it.fill_seconds(halves) / it.seconds());
        let fill_share = shares.fold(1.0, f64::min);
        Ok(BlockTable {
            split,
            blocks,
            seconds_before,
            exposed_seconds,
            chain_seconds,
            early_seconds,
            fill_share,
            halves,
            kept_bytes,
        })
    }

    /// What a step takes at least on a pipeline of so many `stages`, one on each mesh, that all begin the next step
    /// together.
    ///
    /// A mesh is idle while the pipeline fills and drains, for at least [a share](BlockTable::fill_share) `s` of what the
    /// passes of one micro-batch take on the stages before it, `before`. It runs `m` micro-batches, each for `own`. So
    /// `step >= s * before + m * own` on each mesh. The cut with the shortest step has these equal on all meshes. Then
    /// `own` falls from mesh to mesh by the factor `1 - s / m`, and adds up to the `total` of all `p` stages for
    /// `step = s * total / (1 - (1 - s / m)^p)`.
    pub fn least_filled_seconds(&self, microbatches: f64, stages: f64) -> f64 {
        let share = self.fill_share.max(0.0);
        if share == 0.0 {
            return microbatches * self.total_seconds() / stages;
        }
        let filled = -f64::exp_m1(stages * f64::ln_1p(-share / microbatches));
        share * self.total_seconds() / filled
    }

    /// What one micro-batch takes at least through all `stages` and back.
    pub fn least_chain_seconds(&self, stages: f64) -> f64 {
        self.chain_seconds - stages * self.early_seconds
    }

    /// Seconds of all passes of all blocks.
    pub fn total_seconds(&self) -> f64 {
        self.seconds_before.last().copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use shardloom_cluster::PlanDefaults;
    use shardloom_collectives::Algorithm;
    use shardloom_graph::{Extents, ModelSpec};
    use shardloom_plan::{Optimizer, Precision, Recompute, ScheduleKind};

    use std::collections::BTreeMap;

    use super::*;
    use crate::estimate::{Cut, reduced};

    /// Bytes of one sample of all values that are made before a cut and read behind it, each once.
    fn sent_over(graph: &Graph, cut: usize) -> f64 {
        let extents = Extents::global(graph, 1);
        let block = |op| graph.op(op).block.index();
        let crosses = graph.values().filter(|(_, value)| {
            value.producer.is_some_and(|op| block(op) < cut)
                && value.consumers.iter().any(|&op| block(op) >= cut)
        });
        crosses.map(|(_, value)| (4 * extents.elements(&value.axes)) as f64).sum()
    }

    #[test]
    fn a_value_crosses_every_cut_before_its_last_reader_once() {
        let settings = Settings {
            precision: Precision::FP32,
            optimizer: Optimizer::default(),
            norm: false,
            algorithm: Algorithm::Ring,
            bucket_bytes: 1 << 20,
            plan_defaults: PlanDefaults::NONE,
            frozen: vec![],
            own_cuts: BTreeMap::new(),
        };
        let candidate = Candidate {
            pp: 1,
            dp: 1,
            cp: 1,
            tp: 1,
            sequence_parallel: false,
            zero: 0,
            sharing: 1,
            microbatch: 2,
            microbatches: 1,
            recompute: Recompute::None,
            schedule: ScheduleKind::OneForwardOneBackward,
            chunks: 1,
            cut: Cut::Even,
        };
        // An encoder's output of a U-shaped transformer is read by the next block and by its decoder.
        for family in ["gpt", "u-transformer"] {
            let spec = format!("{family}:layers=7,hidden=16,heads=2,seq=8,vocab=32");
            let graph = ModelSpec::parse(&spec).and_then(|spec| spec.graph()).expect("a model");
            let whole = Representative::of(&graph);
            let program = reduced::program(&whole, &settings, &candidate);
            let program = program.expect("possible settings").expect("it is not split");
            let found = SplitTable::of(
                &graph,
                &whole,
                &program,
                &settings,
                f64::INFINITY,
                candidate.microbatch,
            );
            let cuts = 0..=graph.blocks().len();
            let expected: Vec<f64> = cuts.map(|cut| sent_over(&graph, cut)).collect();
            assert_eq!(found.cut_bytes, expected, "{family}");
        }
    }
}
