//! Estimates of many candidates on one model and cluster.

mod bounds;
mod filled;
mod known_stages;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use shardloom_cluster::{Cluster, PlanDefaults};
use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, Representative};
use shardloom_plan::{
    Arrangement, Optimizer, ParameterGroup, ParameterGroups, PassTimes, Precision, Recompute,
    ScheduleKind, even_cut,
};
use shardloom_program::{NeededGradients, ProgramError};
use shardloom_schedule::Succession;

use self::filled::run_starts;
use self::known_stages::KnownStages;
use super::block::BlockCost;
use super::ends::Ends;
use super::orders::{self, Orders, pass_times, rounded};
use super::parameters::Shared;
use super::pipeline::{self, Instance, Step};
use super::place::Place;
use super::sequence::Sequence;
use super::stage::{StageCost, persistent_bytes};
use super::table::{BlockTable, SplitTable};
use super::{Candidate, Cut, cut, reduced};
use crate::SimError;

/// What all candidates have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Whether all ranks agree on a gradient norm before they update.
    pub norm: bool,
    /// The collectives' algorithm.
    pub algorithm: Algorithm,
    /// Bytes of gradient up to which consecutive blocks share a collective, where the software has no size of its own.
    pub bucket_bytes: usize,
    /// What else plans have.
    pub plan_defaults: PlanDefaults,
    /// Parameters that are frozen: groups that say no more.
    pub frozen: Vec<ParameterGroup>,
    /// The cuts of [`Cut::Own`] by the number of stages: the first block of each, then the number of blocks.
    pub own_cuts: BTreeMap<usize, Vec<usize>>,
}

impl Settings {
    /// Bytes of gradients that are reduced together under ZeRO stage `zero`, on all `tp` ranks that split a replica.
    pub(super) fn full_bucket(&self, zero: u8, tp: u32) -> f64 {
        self.plan_defaults.bucket_bytes(self.bucket_bytes, zero, tp as usize) as f64
    }

    /// Bytes of a gradient.
    pub(super) fn gradient_bytes(&self) -> f64 {
        self.precision.gradients.bytes() as f64
    }
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

/// What the costs of blocks depend on: that, samples of a micro-batch, recomputation, whether backward passes
/// are in halves, and whether stages exchange messages with other nodes.
type BlockKey = (SplitKey, u32, Recompute, bool, bool);

/// Where stages are, which schedules of one arrangement have alike, and the weight of each kind of block.
type CutKey = (Arrangement, u32, u32, Vec<u32>);

/// What an average block weighs where blocks are dealt to meshes of several stages: as finely as that blocks
/// are told apart, so that candidates whose blocks have about the same shares are cut alike.
const AVERAGE_WEIGHT: f64 = 32.0;

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
///     plan_defaults: cluster.stack().plan_defaults,
///     frozen: vec![],
///     own_cuts: Default::default(),
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
///     chunks: 1,
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
    /// For each block the first of those up to it that are all of its kind.
    run_starts: Vec<usize>,
    /// How many parameters the model has.
    parameters: usize,
    update_rate: String,
    statistics_rate: String,
    split_ids: BTreeMap<SplitKey, usize>,
    splits: Vec<SplitTable>,
    /// By what they depend on; none where the layout is impossible.
    block_ids: BTreeMap<BlockKey, Option<usize>>,
    blocks: Vec<BlockTable>,
    /// Balanced cuts.
    cuts: BTreeMap<CutKey, usize>,
    /// Of candidates, by table of blocks and where stages are: which of the cuts that were made.
    cut_ids: BTreeMap<(usize, Arrangement, u32, u32), usize>,
    made_cuts: Vec<Vec<usize>>,
    orders: Orders,
    known_stages: KnownStages,
    /// The table of blocks of the candidate that was looked at last, its stages, and where they live.
    table: Option<usize>,
    stages: Vec<Rc<StageCost>>,
    pipelines: Vec<Vec<Instance>>,
}

impl<'a> Estimator<'a> {
    /// Estimates for `graph` on `cluster`.
    ///
    /// # Errors
    /// If a device does not compute in the precision, or frozen parameters are named by no pattern.
    pub fn new(
        graph: &'a Graph,
        cluster: &'a Cluster,
        settings: Settings,
    ) -> Result<Estimator<'a>, SimError> {
        let name = settings.optimizer.name();
        let representative = representative(graph, &settings)?;
        let place = Place::of(cluster, settings.precision.compute)?;
        Ok(Estimator {
            graph,
            cluster,
            settings,
            place,
            run_starts: run_starts(representative.stand_ins()),
            representative,
            parameters: graph.parameters().count(),
            update_rate: format!("update.{name}"),
            statistics_rate: format!("statistics.{name}"),
            split_ids: BTreeMap::new(),
            splits: vec![],
            block_ids: BTreeMap::new(),
            blocks: vec![],
            cuts: BTreeMap::new(),
            cut_ids: BTreeMap::new(),
            made_cuts: vec![],
            orders: Orders::default(),
            known_stages: KnownStages::default(),
            table: None,
            stages: vec![],
            pipelines: vec![],
        })
    }

    /// The least memory that any device has.
    pub fn memory_bytes(&self) -> u64 {
        self.place.memory_bytes
    }

    /// The time of one device that the passes of a sample take at least, of all splits, micro-batches and
    /// recomputation that candidates had so far.
    pub fn least_sample_seconds(&self) -> f64 {
        let seconds = self.block_ids.iter().filter_map(|(key, id)| {
            let ((cp, tp, _), microbatch, ..) = *key;
            let blocks = &self.blocks[(*id)?];
            let busy = blocks.total_seconds() - blocks.exposed_seconds;
            Some(busy * f64::from(cp * tp) / f64::from(microbatch))
        });
        seconds.fold(f64::INFINITY, f64::min)
    }

    /// How many estimates there were not because the pipeline has too many passes for an order that fills
    /// gaps to be made in time.
    pub fn left_out(&self) -> usize {
        self.orders.left_out
    }

    /// The estimate of `candidate`; none if its layout is impossible for the model, it has more stages
    /// than there are blocks, or its schedule does not exist for these numbers.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel), or if its schedule is none of [`ScheduleKind::SEARCHED`] or its
    /// recomputation is by stage.
    pub fn estimate(&mut self, candidate: &Candidate) -> Result<Option<Estimate>, SimError> {
        if !self.evaluate(candidate)? {
            return Ok(None);
        }
        let Some(step) = self.run(candidate) else { return Ok(None) };
        let peak_bytes = step.peak_bytes.iter().copied().fold(0.0, f64::max);
        let seconds = match step.whole {
            true => step.seconds,
            // Rounds that were not run may take longer than those that were.
            false => step.seconds.max(self.bound_seconds(candidate)),
        };
        let step_seconds = seconds + self.host_seconds(candidate);
        Ok(Some(Estimate { step_seconds, peak_bytes }))
    }

    /// The most that a device of each mesh holds; none where there is no estimate.
    ///
    /// # Errors
    /// As [`Estimator::estimate`].
    pub fn mesh_peak_bytes(&mut self, candidate: &Candidate) -> Result<Option<Vec<f64>>, SimError> {
        if !self.evaluate(candidate)? {
            return Ok(None);
        }
        Ok(self.run(candidate).map(|step| step.peak_bytes))
    }

    /// What the orders of `candidate` are made for, in units of a forward pass; the usual times for a
    /// schedule whose orders do not depend on them, and none where its layout is impossible.
    ///
    /// # Errors
    /// As [`Estimator::estimate`].
    pub fn pass_times(&mut self, candidate: &Candidate) -> Result<Option<PassTimes>, SimError> {
        if !self.evaluate(candidate)? {
            return Ok(None);
        }
        Ok(Some(self.order_times(candidate)))
    }

    /// Runs the schedule; the stages of `candidate` are filled in.
    fn run(&mut self, candidate: &Candidate) -> Option<Step> {
        let ends = self.ends(candidate);
        let persistent = self.persistent_bytes(candidate);
        let instances: Vec<Instance> = self.pipelines.iter().flatten().cloned().collect();
        let times = self.order_times(candidate);
        let succession = match self.settings.norm {
            true => Succession::Common,
            false => Succession::Own,
        };
        let places = || places_of(&self.pipelines);
        let run = |sequence: &Sequence| pipeline::step(sequence, &instances, &persistent, &ends);
        self.orders.step(candidate, &times, succession, places, run)
    }

    /// What the order of `candidate` is made for; its stages are filled in.
    fn order_times(&self, candidate: &Candidate) -> PassTimes {
        match candidate.schedule.is_timed() {
            true => rounded(pass_times(&self.pipelines), orders::precision(candidate.schedule)),
            false => PassTimes::default(),
        }
    }

    /// By mesh what a device holds all the time: parameters that several of its stages share once.
    fn persistent_bytes(&self, candidate: &Candidate) -> Vec<f64> {
        let mut held = vec![0.0; candidate.pp as usize];
        for it in self.pipelines.iter().flatten() {
            held[it.device] += it.cost.persistent_bytes;
        }
        for each in self.shared() {
            let sharers = [candidate.sharers(), candidate.sharing];
            let once = persistent_bytes(
                &self.settings,
                self.place.stack,
                candidate.zero,
                sharers,
                &each.parameters,
            );
            for (device, held) in held.iter_mut().enumerate() {
                let holds = self.pipelines.iter().flat_map(|pipeline| {
                    let here = pipeline.iter().filter(|it| it.device == device);
                    here.filter(|it| it.cost.has_one_of(&each.blocks))
                });
                *held -= once * holds.count().saturating_sub(1) as f64;
            }
        }
        held
    }

    /// The first block of each stage of `candidate`, then the number of blocks; none if the layout is
    /// impossible for the model.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel).
    pub fn cuts(&mut self, candidate: &Candidate) -> Result<Option<Vec<usize>>, SimError> {
        let Some(blocks) = self.table(candidate)? else { return Ok(None) };
        self.balance(candidate, blocks);
        let ends = self.stage_blocks(candidate, blocks).map(|range| range.end);
        Ok(Some(std::iter::once(0).chain(ends).collect()))
    }

    /// Fills in the stages of `candidate` and where they live. Whether its layout is possible.
    fn evaluate(&mut self, candidate: &Candidate) -> Result<bool, SimError> {
        if !ScheduleKind::SEARCHED.contains(&candidate.schedule) {
            let name = candidate.schedule.name();
            return Err(SimError::NoEstimate { what: "schedule", name });
        }
        let Some(id) = self.table(candidate)? else { return Ok(false) };
        // Passes that overlap are whole, in schedules that have halves too.
        let whole = match candidate.halves() && candidate.schedule.overlaps() {
            true => self.table(&candidate.with_whole_passes())?,
            false => None,
        };
        let (devices, chunks) = (candidate.pp as usize, candidate.chunks as usize);
        let Ok(places) = candidate.arrangement().places(devices, chunks) else { return Ok(false) };
        self.balance(candidate, id);
        self.fill_stages(candidate, id, whole);
        self.fill_pipelines(candidate, id, &places);
        self.table = Some(id);
        Ok(true)
    }

    /// What happens between steps; the stages of `candidate` are filled in.
    fn ends(&self, candidate: &Candidate) -> Ends {
        Ends::of(&self.settings, &self.place, candidate, &self.pipelines, self.shared())
    }

    /// Parameters that several blocks use; the stages of a candidate are filled in.
    fn shared(&self) -> &[Shared] {
        let blocks = self.table.map(|id| &self.blocks[id]);
        blocks.map_or(&[], |blocks| &self.splits[blocks.split].parameters.shared)
    }

    /// The blocks of each stage; a balanced cut is known.
    fn stage_blocks(
        &self,
        candidate: &Candidate,
        blocks: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let (all, stages) = (self.representative.stand_ins().len(), candidate.stages());
        let made = match candidate.cut {
            Cut::Even => None,
            Cut::Balanced => {
                let id = self.cut_ids.get(&cut_id(candidate, blocks));
                id.map(|&made| &self.made_cuts[made])
            }
            Cut::Own => self.settings.own_cuts.get(&stages),
        };
        let start =
            move |stage| made.map_or_else(|| even_cut(all, stages, stage), |cut| cut[stage]);
        (0..stages).map(move |stage| start(stage)..start(stage + 1))
    }

    fn balance(&mut self, candidate: &Candidate, blocks: usize) {
        let id = cut_id(candidate, blocks);
        if candidate.cut != Cut::Balanced || self.cut_ids.contains_key(&id) {
            return;
        }
        let (devices, chunks) = (candidate.pp as usize, candidate.chunks as usize);
        // Where there are no such places there is no estimate either.
        let Ok(places) = candidate.arrangement().places(devices, chunks) else { return };
        let table = &self.blocks[blocks];
        let kinds = self.representative.stand_ins();
        let known = match candidate.chunks {
            1 => None,
            _ => {
                let average = table.total_seconds() / kinds.len() as f64;
                let weight = |it: &BlockCost| {
                    (AVERAGE_WEIGHT * it.seconds() / average).round().max(1.0) as u32
                };
                let weights: Vec<u32> = table.blocks.iter().map(weight).collect();
                Some((candidate.arrangement(), candidate.pp, candidate.chunks, weights))
            }
        };
        let made = known.as_ref().and_then(|key| self.cuts.get(key)).copied();
        let made = made.unwrap_or_else(|| {
            let before = match &known {
                Some((.., weights)) => sums(kinds.iter().map(|&kind| f64::from(weights[kind]))),
                None => table.seconds_before.clone(),
            };
            self.made_cuts.push(cut::balanced_stages(&before, &places));
            self.made_cuts.len() - 1
        });
        self.cuts.extend(known.map(|key| (key, made)));
        self.cut_ids.insert(id, made);
    }

    /// The table of blocks of `candidate`, by number; none if its layout is impossible.
    fn table(&mut self, candidate: &Candidate) -> Result<Option<usize>, SimError> {
        let stages = candidate.stages();
        let is_cut = candidate.cut != Cut::Own || self.settings.own_cuts.contains_key(&stages);
        if stages > self.graph.blocks().len() || !is_cut {
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
        let parameters = self.parameters as f64 / f64::from(candidate.pp);
        let shares = parameters * f64::from(sharers);
        host.pause_seconds() + host.share_seconds * shares
    }

    /// What the costs of blocks depend on.
    fn block_key(&self, candidate: &Candidate) -> BlockKey {
        // Other stacks have the same costs wherever messages go.
        let host = self.place.stack.host;
        let crosses = host.between_nodes.seconds > 0.0 && self.place.crosses(candidate);
        (
            split_key(candidate),
            candidate.microbatch,
            candidate.recompute,
            candidate.halves(),
            crosses,
        )
    }

    /// Lowers the reduced model and fills in its tables.
    fn tabulate(&mut self, candidate: &Candidate) -> Result<Option<usize>, SimError> {
        let Estimator { graph, representative, settings, .. } = self;
        let Some(program) = reduced::program(representative, settings, candidate)? else {
            return Ok(None);
        };
        let split = *self.split_ids.entry(split_key(candidate)).or_insert_with(|| {
            let samples = candidate.microbatch;
            let full = settings.full_bucket(0, candidate.tp) / settings.gradient_bytes();
            let table = SplitTable::of(graph, representative, &program, settings, full, samples);
            self.splits.push(table);
            self.splits.len() - 1
        });
        let Estimator { cluster, place, .. } = self;
        let table = BlockTable::of(cluster, place, representative, program, candidate, split)?;
        self.blocks.push(table);
        Ok(Some(self.blocks.len() - 1))
    }
}

/// One block of each kind: of those that are frozen alike and of which training needs the same gradients.
fn representative(graph: &Graph, settings: &Settings) -> Result<Representative, SimError> {
    let frozen = ParameterGroups::from_groups(&settings.frozen).map_err(ProgramError::from)?;
    let needed = NeededGradients::of(graph, |name| frozen.group(name).is_none());
    let labels = graph.blocks().iter().map(|block| {
        let inputs = block.ops.iter().flat_map(|&op| &graph.op(op).inputs);
        inputs.map(|&input| needed.needs(input)).collect()
    });
    let labels: Vec<Vec<bool>> = labels.collect();
    Ok(Representative::of_labelled(graph, &labels))
}

fn split_key(candidate: &Candidate) -> SplitKey {
    (candidate.cp, candidate.tp, candidate.sequence_parallel)
}

fn cut_id(candidate: &Candidate, blocks: usize) -> (usize, Arrangement, u32, u32) {
    (blocks, candidate.arrangement(), candidate.pp, candidate.chunks)
}

/// The sum of all weights before each, and of all.
fn sums(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0];
    weights.for_each(|weight| sums.push(sums[sums.len() - 1] + weight));
    sums
}

fn places_of(pipelines: &[Vec<Instance>]) -> Vec<Vec<usize>> {
    let devices = |pipeline: &Vec<Instance>| pipeline.iter().map(|it| it.device).collect();
    pipelines.iter().map(devices).collect()
}
