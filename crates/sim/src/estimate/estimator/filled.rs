//! The stages of the candidate that is looked at, and where they live.

use std::ops::Range;
use std::rc::Rc;

use shardloom_collectives::{Algorithm, Kind};

use super::super::Candidate;
use super::super::collective::Collective;
use super::super::pipeline::Instance;
use super::super::stage::{Peaks, Replicas, StageCost, Terms};
use super::super::table::BlockTable;
use super::known_stages::StageKey;
use super::{Estimator, Settings};

impl<'a> Estimator<'a> {
    /// Fills in the costs of the stages of `candidate`, whose table of blocks is `id`. Where passes that overlap are
    /// whole, `whole` is that of these.
    pub(super) fn fill_stages(&mut self, candidate: &Candidate, id: usize, whole: Option<usize>) {
        let key = StageKey::of(candidate, id, whole);
        let mut known = self.known_stages.take(key);
        let mut stages = std::mem::take(&mut self.stages);
        stages.clear();
        let kinds = self.representative.stand_ins();
        // A stage has its own part in what stages share.
        let may_be_alike = self.splits[self.blocks[id].split].parameters.shared.is_empty();
        let mut terms = None;
        let mut before = 0..0;
        for range in self.stage_blocks(candidate, id) {
            let alike = may_be_alike && kinds[range.clone()] == kinds[before.clone()];
            let cost = match stages.last() {
                Some(last) if alike => Rc::clone(last),
                _ => {
                    let alike = may_be_alike.then(|| self.first_like(&range));
                    let cost = known.entry(alike.unwrap_or((range.start, range.end)));
                    Rc::clone(cost.or_insert_with(|| {
                        let terms = terms.get_or_insert_with(|| {
                            let of = |id: usize| self.terms(candidate, &self.blocks[id]);
                            (of(id), whole.map(of))
                        });
                        Rc::new(stage_cost(&range, terms))
                    }))
                }
            };
            stages.push(cost);
            before = range;
        }
        self.stages = stages;
        self.known_stages.keep(key, known);
    }

    /// Fills in the pipelines of `candidate`, whose table of blocks is `id` and whose stages are filled in: the meshes
    /// of each are `places`.
    pub(super) fn fill_pipelines(
        &mut self,
        candidate: &Candidate,
        id: usize,
        places: &[Vec<usize>],
    ) {
        let mut pipelines = std::mem::take(&mut self.pipelines);
        let (stages, split) = (&self.stages, &self.splits[self.blocks[id].split]);
        let size = candidate.mesh_devices();
        // Of what crosses each cut the bytes, and the seconds within a node and to another one.
        let mut cuts = Vec::with_capacity(stages.len() + 1);
        cuts.push((0.0, [0.0; 2]));
        for range in self.stage_blocks(candidate, id) {
            let bytes = f64::from(candidate.microbatch) * split.cut_bytes[range.end];
            let seconds = |near| self.place.message_seconds(bytes, size, near);
            cuts.push(match cuts.last() {
                Some(&last) if last.0 == bytes => last,
                _ => (bytes, [true, false].map(seconds)),
            });
        }
        let message = |cut: usize, [from, to]: [usize; 2]| {
            let [near, far] = cuts[cut].1;
            match self.place.share_a_node(size, [from as u32, to as u32]) {
                _ if from == to => 0.0,
                true => near,
                false => far,
            }
        };
        let instance = |chain: &[usize], stage: usize| {
            let to = |cut: usize, other: Option<&usize>| {
                other.map_or(0.0, |&other| message(cut, [chain[stage], other]))
            };
            let before = stage.checked_sub(1).filter(|&before| stages[before].has_backward());
            let before = before.and_then(|before| chain.get(before));
            Instance {
                device: chain[stage],
                cost: Rc::clone(&stages[stage]),
                send_seconds: [to(stage + 1, chain.get(stage + 1)), to(stage, before)],
                alternates: candidate.sample_devices() > 1,
            }
        };
        pipelines.resize_with(places.len(), Vec::new);
        for (pipeline, chain) in pipelines.iter_mut().zip(places) {
            pipeline.clear();
            pipeline.extend((0..chain.len()).map(|stage| instance(chain, stage)));
        }
        if places.len() > 1 {
            // Every stage lives on as many meshes as there are pipelines, which add up its gradients.
            let shape = self.place.holders(places.len() as u32, size, candidate.devices());
            let Settings { algorithm, precision, .. } = self.settings;
            let bytes = precision.gradients.bytes();
            let sum = Collective::new(&self.place, Kind::AllReduce, algorithm, shape, bytes);
            for it in pipelines.iter_mut().flatten() {
                let seconds = sum.seconds(it.cost.owned_elements);
                Rc::make_mut(&mut it.cost).once_seconds += seconds;
            }
        }
        if candidate.zero >= 3 && candidate.sharers() > 1 {
            for each in &split.parameters.shared {
                keep_apart(&mut pipelines, &each.blocks);
            }
        }
        self.pipelines = pipelines;
    }

    /// Of a stage's blocks, if they are of one kind, as many from the first of their neighbours of that kind on.
    fn first_like(&self, range: &Range<usize>) -> (usize, usize) {
        match self.run_starts.get(range.clone()) {
            Some([first, .., last]) if last == first => (*first, first + range.len()),
            Some([first]) => (*first, first + 1),
            _ => (range.start, range.end),
        }
    }

    fn terms<'t>(&'t self, candidate: &Candidate, blocks: &'t BlockTable) -> Terms<'t, 'a> {
        let Settings { precision, algorithm, plan_defaults, .. } = self.settings;
        let over = |kind, algorithm, shape, bytes| {
            Collective::new(&self.place, kind, algorithm, shape, bytes)
        };
        let reduced = match candidate.zero {
            0 => Kind::AllReduce,
            zero if plan_defaults.all_reduces(zero) => Kind::AllReduce,
            _ => Kind::ReduceScatter,
        };
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
            tp: candidate.tp,
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
}

/// The cost of a stage under the terms of its passes, and where passes that overlap are whole, of these.
fn stage_cost(
    range: &Range<usize>,
    (terms, whole): &mut (Terms<'_, '_>, Option<Terms<'_, '_>>),
) -> StageCost {
    let mut cost = StageCost::of(range.start, range.end, terms);
    if let Some(terms) = whole {
        let Peaks { backward, first_backward, .. } =
            StageCost::of(range.start, range.end, terms).peak_bytes;
        cost.peak_bytes = Peaks { backward, first_backward, ..cost.peak_bytes };
    }
    cost
}

/// For each block the first of those up to it that are all of its kind.
pub(super) fn run_starts(kinds: &[usize]) -> Vec<usize> {
    let mut starts: Vec<usize> = Vec::with_capacity(kinds.len());
    for (block, kind) in kinds.iter().enumerate() {
        let same = block.checked_sub(1).filter(|&before| kinds[before] == *kind);
        starts.push(same.map_or(block, |before| starts[before]));
    }
    starts
}

/// A pass that gathers weights comes before or after all of another one that uses them: on a mesh that has
/// several stages with one of `blocks`.
fn keep_apart(pipelines: &mut [Vec<Instance>], blocks: &[usize]) {
    let all = || pipelines.iter().flatten();
    let holders = all().filter(|it| it.cost.has_one_of(blocks)).map(|it| it.device);
    let mut counts = vec![0; all().map(|it| it.device + 1).max().unwrap_or(0)];
    holders.for_each(|device| counts[device] += 1);
    let users = pipelines.iter_mut().flatten().filter(|it| it.cost.has_one_of(blocks));
    for instance in users.filter(|it| counts[it.device] > 1) {
        instance.alternates = false;
    }
}
