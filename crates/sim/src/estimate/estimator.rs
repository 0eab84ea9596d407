//! Estimates of many candidates on one model and cluster.

use std::collections::BTreeMap;

use shardloom_cluster::Cluster;
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::{Graph, Representative};
use shardloom_plan::{Optimizer, Precision, Recompute, ScheduleKind, even_cut};

use super::collective::Collective;
use super::parameters::Parameters;
use super::pipeline::{self, Ends};
use super::place::Place;
use super::stage::{Replicas, StageCost, Terms, persistent_bytes};
use super::table::{BlockTable, SplitTable};
use super::{Candidate, Cut, cut, reduced};
use crate::SimError;

/// What all candidates have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Whether all ranks agree on a gradient norm before they update.
    pub norm: bool,
    /// The collectives' algorithm.
    pub algorithm: Algorithm,
    /// Bytes of gradient up to which consecutive blocks share a collective.
    pub bucket_bytes: usize,
}

/// What a candidate is estimated to need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// A step.
    pub step_seconds: f64,
    /// The most that a device of any stage holds.
    pub peak_bytes: f64,
}

/// What splits a replica: context- and tensor-parallel width, and sequence parallelism.
type SplitKey = (u32, u32, bool);

/// What the costs of blocks depend on: that, samples of a micro-batch, recomputation, and whether stages
/// exchange messages with other nodes.
type BlockKey = (SplitKey, u32, Recompute, bool);

/// Estimates candidates, tabulating what they have in common.
///
/// ```
/// use shardloom_cluster::Cluster;
/// use shardloom_collectives::Algorithm;
/// use shardloom_graph::ModelSpec;
/// use shardloom_plan::{Optimizer, Precision, Recompute, ScheduleKind, even_cut};
/// use shardloom_sim::estimate::{Candidate, Cut, Estimator, Settings};
///
/// let graph = ModelSpec::parse("gpt:layers=4,hidden=64,heads=4,seq=32,vocab=128")?.graph()?;
/// let cluster = Cluster::parse("h100-80g:8")?;
/// let settings = Settings {
///     precision: Precision::MIXED,
///     optimizer: Optimizer::default(),
///     norm: true,
///     algorithm: Algorithm::Ring,
///     bucket_bytes: 25_000_000,
/// };
/// let mut estimator = Estimator::new(&graph, &cluster, settings)?;
/// let candidate = Candidate {
///     pp: 2,
///     dp: 2,
///     cp: 1,
///     tp: 2,
///     sequence_parallel: true,
///     zero: 1,
///     sharing: 2,
///     microbatch: 1,
///     microbatches: 8,
///     recompute: Recompute::None,
///     schedule: ScheduleKind::OneForwardOneBackward,
///     cut: Cut::Even,
/// };
/// let estimate = estimator.estimate(&candidate)?.expect("heads, widths and vocabulary divide");
/// assert!(estimate.step_seconds > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Estimator<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    settings: Settings,
    place: Place<'a>,
    representative: Representative,
    update_rate: String,
    statistics_rate: String,
    split_ids: BTreeMap<SplitKey, usize>,
    splits: Vec<SplitTable>,
    /// By what they depend on; none where the layout is impossible.
    block_ids: BTreeMap<BlockKey, Option<usize>>,
    blocks: Vec<BlockTable>,
    /// Balanced cuts, by table of blocks and stages.
    cuts: BTreeMap<(usize, u32), Vec<usize>>,
    stages: Vec<StageCost>,
    sends: Vec<f64>,
}

impl<'a> Estimator<'a> {
    /// Estimates for `graph` on `cluster`.
    ///
    /// # Errors
    /// If a device does not compute in the precision.
    pub fn new(
        graph: &'a Graph,
        cluster: &'a Cluster,
        settings: Settings,
    ) -> Result<Estimator<'a>, SimError> {
        let name = settings.optimizer.name();
        Ok(Estimator {
            graph,
            cluster,
            settings,
            place: Place::of(cluster, settings.precision.compute)?,
            representative: Representative::of(graph),
            update_rate: format!("update.{name}"),
            statistics_rate: format!("statistics.{name}"),
            split_ids: BTreeMap::new(),
            splits: vec![],
            block_ids: BTreeMap::new(),
            blocks: vec![],
            cuts: BTreeMap::new(),
            stages: vec![],
            sends: vec![],
        })
    }

    /// The least memory that any device has.
    pub fn memory_bytes(&self) -> u64 {
        self.place.memory_bytes
    }

    /// The estimate of `candidate`; none if its layout is impossible for the model, or it has more stages
    /// than there are blocks.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel), or if its schedule is none of [`ScheduleKind::PLAIN`] or its
    /// recomputation is by stage.
    pub fn estimate(&mut self, candidate: &Candidate) -> Result<Option<Estimate>, SimError> {
        if !self.evaluate(candidate)? {
            return Ok(None);
        }
        let peak = |(stage, cost): (u32, &StageCost)| stage_bytes(candidate, stage, cost);
        let peak_bytes = (0u32..).zip(&self.stages).map(peak).fold(0.0, f64::max);
        let step_seconds =
            pipeline::step_seconds(candidate, &self.stages, &self.sends, &self.ends(candidate));
        let step_seconds = step_seconds + self.host_seconds(candidate);
        Ok(Some(Estimate { step_seconds, peak_bytes }))
    }

    /// The most that a device of each stage holds; none if the layout is impossible for the model.
    ///
    /// # Errors
    /// As [`Estimator::estimate`].
    pub fn stage_peak_bytes(
        &mut self,
        candidate: &Candidate,
    ) -> Result<Option<Vec<f64>>, SimError> {
        let possible = self.evaluate(candidate)?;
        let peak = |(stage, cost): (u32, &StageCost)| stage_bytes(candidate, stage, cost);
        Ok(possible.then(|| (0u32..).zip(&self.stages).map(peak).collect()))
    }

    /// The memory that `candidate` needs at least, without tabulating its micro-batch; none if its layout
    /// is impossible for the model.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel).
    pub fn least_bytes(&mut self, candidate: &Candidate) -> Result<Option<f64>, SimError> {
        let one = Candidate { microbatch: 1, ..*candidate };
        let Some(blocks) = self.table(&one)? else { return Ok(None) };
        let blocks = &self.blocks[blocks];
        let mut all = Parameters::default();
        all.elements[0] = self.splits[blocks.split].total_elements;
        let sharers = [candidate.sharers(); 2];
        let held = persistent_bytes(&self.settings, candidate.zero, sharers, &all);
        let kept = f64::from(candidate.microbatch) * blocks.kept_bytes;
        Ok(Some((held + kept) / f64::from(candidate.pp)))
    }

    /// The time that a step of `candidate` takes at least; none if its layout is impossible for the
    /// model.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel).
    pub fn least_seconds(&mut self, candidate: &Candidate) -> Result<Option<f64>, SimError> {
        let Some(blocks) = self.table(candidate)? else { return Ok(None) };
        let all = self.blocks[blocks].total_seconds();
        Ok(Some(f64::from(candidate.microbatches) * all / f64::from(candidate.pp)))
    }

    /// The first block of each stage of `candidate`, then the number of blocks; none if the layout is
    /// impossible for the model.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel).
    pub fn cuts(&mut self, candidate: &Candidate) -> Result<Option<Vec<usize>>, SimError> {
        let Some(blocks) = self.table(candidate)? else { return Ok(None) };
        self.balance(candidate, blocks);
        let starts = 0..=candidate.pp as usize;
        Ok(Some(starts.map(|stage| self.start(candidate, blocks, stage)).collect()))
    }

    /// Fills in the stages and sends of `candidate`. Whether its layout is possible.
    fn evaluate(&mut self, candidate: &Candidate) -> Result<bool, SimError> {
        if !ScheduleKind::PLAIN.contains(&candidate.schedule) {
            let name = candidate.schedule.name();
            return Err(SimError::NoEstimate { what: "schedule", name });
        }
        let Some(id) = self.table(candidate)? else { return Ok(false) };
        self.balance(candidate, id);
        let mut stages = std::mem::take(&mut self.stages);
        let mut sends = std::mem::take(&mut self.sends);
        stages.clear();
        sends.clear();
        let mut terms = self.terms(candidate, &self.blocks[id]);
        let size = candidate.mesh().size() as u32;
        let mut before = 0..0;
        for stage in 0..candidate.pp as usize {
            let range = self.start(candidate, id, stage)..self.start(candidate, id, stage + 1);
            let alike = terms.split.parameters.shared.is_empty()
                && terms.kinds[range.clone()] == terms.kinds[before.clone()];
            let cost = match stages.last() {
                Some(&known) if alike => known,
                _ => StageCost::of(range.start, range.end, &mut terms),
            };
            stages.push(cost);
            let bytes = f64::from(candidate.microbatch) * terms.split.crossing_bytes[range.end];
            let devices = (stage as u32 + 1) * size;
            sends.push(self.place.message_seconds(bytes, size, devices));
            before = range;
        }
        (self.stages, self.sends) = (stages, sends);
        Ok(true)
    }

    fn terms<'t>(&'t self, candidate: &Candidate, blocks: &'t BlockTable) -> Terms<'t, 'a> {
        let Settings { precision, algorithm, .. } = self.settings;
        let over = |kind, algorithm, shape, bytes| {
            Collective::new(&self.place, kind, algorithm, shape, bytes)
        };
        let reduced = if candidate.zero >= 1 { Kind::ReduceScatter } else { Kind::AllReduce };
        let gradient_bytes = precision.gradients.bytes();
        let (others, far) =
            (candidate.dp / candidate.sharing, candidate.sharing * candidate.sample_devices());
        let across = self.place.replicas(others, far);
        let of = |sharers, apart| {
            let shape = self.place.replicas(sharers, apart);
            Replicas {
                sharers,
                reduce: over(reduced, algorithm, shape, gradient_bytes),
                across: over(Kind::AllReduce, algorithm, across, gradient_bytes),
                gather: over(Kind::AllGather, algorithm, shape, precision.compute.bytes()),
            }
        };
        let tensor = self.place.world(candidate.tp);
        let statistics = |owners| over(Kind::AllReduce, Algorithm::Direct, owners, 4);
        let [split_owners, whole_owners] = match candidate.zero {
            0 => [tensor, self.place.world(1)],
            _ => [
                self.place.world(candidate.sharers() * candidate.tp),
                self.place.replicas(candidate.sharers(), candidate.tp),
            ],
        };
        Terms {
            kinds: self.representative.stand_ins(),
            blocks,
            split: &self.splits[blocks.split],
            settings: &self.settings,
            place: &self.place,
            zero: candidate.zero,
            replicas: [
                of(candidate.sharers(), candidate.tp),
                of(candidate.sharing, candidate.sample_devices()),
            ],
            partial: over(Kind::AllReduce, algorithm, tensor, gradient_bytes),
            statistics: [statistics(split_owners), statistics(whole_owners)],
            update_rate: &self.update_rate,
            statistics_rate: &self.statistics_rate,
            last_unit: None,
        }
    }

    /// What happens between steps; the stages of `candidate` are filled in.
    fn ends(&self, candidate: &Candidate) -> Ends {
        let precision = self.settings.precision;
        let place = &self.place;
        let agree = || {
            let world = place.world(candidate.devices());
            let sum = Collective::new(place, Kind::AllReduce, Algorithm::Direct, world, 8);
            let elements = self.stages.iter().map(|it| it.owned_elements).fold(0.0, f64::max);
            let bytes = elements * precision.gradients.bytes() as f64;
            place.memory_bound_seconds("norm", elements, bytes) + sum.seconds(1.0)
        };
        Ends {
            norm_seconds: self.settings.norm.then(agree),
            homes_seconds: self.homes_seconds(candidate),
            overlaps: place.overlaps(),
        }
    }

    /// Adding up the gradients of parameters that live in several stages.
    fn homes_seconds(&self, candidate: &Candidate) -> f64 {
        let Some(&Some(blocks)) = self.block_ids.get(&self.block_key(candidate)) else {
            return 0.0;
        };
        let mut seconds = 0.0;
        for each in &self.splits[self.blocks[blocks].split].parameters.shared {
            let stages = 0..candidate.pp as usize;
            let holds = |&stage: &usize| {
                let range =
                    self.start(candidate, blocks, stage)..self.start(candidate, blocks, stage + 1);
                each.blocks.iter().any(|block| range.contains(block))
            };
            let holders = stages.filter(holds).count() as u32;
            let shape = self.place.holders(holders, candidate.mesh().size() as u32);
            let Settings { algorithm, precision, .. } = self.settings;
            let bytes = precision.gradients.bytes();
            let sum = Collective::new(&self.place, Kind::AllReduce, algorithm, shape, bytes);
            let shards = if candidate.zero >= 1 { f64::from(candidate.sharers()) } else { 1.0 };
            seconds += sum.seconds(each.parameters.total() / shards);
        }
        seconds
    }

    /// The first block of a stage; a balanced cut is known.
    fn start(&self, candidate: &Candidate, blocks: usize, stage: usize) -> usize {
        let balanced = || self.cuts.get(&(blocks, candidate.pp)).map(|cut| cut[stage]);
        let even = || even_cut(self.representative.stand_ins().len(), candidate.pp as usize, stage);
        match candidate.cut {
            Cut::Even => even(),
            Cut::Balanced => balanced().unwrap_or_else(even),
        }
    }

    fn balance(&mut self, candidate: &Candidate, blocks: usize) {
        let key = (blocks, candidate.pp);
        if candidate.cut == Cut::Balanced && !self.cuts.contains_key(&key) {
            let before = &self.blocks[blocks].seconds_before;
            self.cuts.insert(key, cut::balanced_cut(before, candidate.pp as usize));
        }
    }

    /// The table of blocks of `candidate`, by number; none if its layout is impossible.
    fn table(&mut self, candidate: &Candidate) -> Result<Option<usize>, SimError> {
        if candidate.pp as usize > self.graph.blocks().len() {
            return Ok(None);
        }
        if candidate.recompute == Recompute::Stage {
            let name = candidate.recompute.name();
            return Err(SimError::NoEstimate { what: "recomputation", name });
        }
        let key = self.block_key(candidate);
        match self.block_ids.get(&key) {
            Some(&known) => Ok(known),
            None => {
                let id = self.tabulate(candidate)?;
                self.block_ids.insert(key, id);
                Ok(id)
            }
        }
    }

    /// What the host takes of a step besides launching: parameters are taken to be the same number on every
    /// stage.
    fn host_seconds(&self, candidate: &Candidate) -> f64 {
        let host = self.place.stack.host;
        let sharers = candidate.sharers();
        let sharers = if candidate.zero > 0 && sharers > 1 { sharers } else { 0 };
        let parameters = self.graph.parameters().count() as f64 / f64::from(candidate.pp);
        let shares = parameters * f64::from(sharers);
        host.pause_seconds() + host.share_seconds * shares
    }

    /// What the costs of blocks depend on.
    fn block_key(&self, candidate: &Candidate) -> BlockKey {
        // Other stacks have the same costs wherever messages go.
        let host = self.place.stack.host;
        let crosses = host.crossing.seconds > 0.0 && self.place.crosses(candidate);
        (split_key(candidate), candidate.microbatch, candidate.recompute, crosses)
    }

    /// Lowers the reduced model and fills in its tables.
    fn tabulate(&mut self, candidate: &Candidate) -> Result<Option<usize>, SimError> {
        let Estimator { graph, representative, settings, .. } = self;
        let habits = self.cluster.stack().habits;
        let Some(program) = reduced::program(representative, settings, habits, candidate)? else {
            return Ok(None);
        };
        let split = *self.split_ids.entry(split_key(candidate)).or_insert_with(|| {
            let samples = candidate.microbatch;
            self.splits.push(SplitTable::of(graph, representative, &program, settings, samples));
            self.splits.len() - 1
        });
        let Estimator { cluster, place, .. } = self;
        let table = BlockTable::of(cluster, place, representative, program, candidate, split)?;
        self.blocks.push(table);
        Ok(Some(self.blocks.len() - 1))
    }
}

fn split_key(candidate: &Candidate) -> SplitKey {
    (candidate.cp, candidate.tp, candidate.sequence_parallel)
}

fn stage_bytes(candidate: &Candidate, stage: u32, cost: &StageCost) -> f64 {
    let others = f64::from(candidate.in_flight(stage) - 1);
    cost.persistent_bytes + others * cost.kept_bytes + cost.peak_bytes
}
