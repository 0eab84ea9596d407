//! A class's bodies and their order: the schedule's passes, then the end of the step.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::Graph;

use super::bodies::StageBodies;
use super::buckets::Parameters;
use super::overlap::{Side, interleaved};
use super::owners::Early;
use super::stage::{StageId, StageModel};
use super::versions::Versions;
use super::{extrapolation, sharding};
use crate::class::{Body, BodyId, BodyKind, BucketId, Part};
use crate::sync::UseBy;
use crate::{Entry, Instruction, ProgramError, Tensor};
use shardloom_schedule::{Action, Pass, PassKind, StageMap};

/// What a class runs.
pub(crate) struct Order {
    pub bodies: Vec<Body>,
    /// Its entries, each with the pass that it is, or a piece of.
    pub entries: Vec<(Entry, Option<Pass>)>,
    pub evaluation: Vec<BodyId>,
}

impl Order {
    /// Adds a body that belongs to no stage.
    pub fn add(&mut self, kind: BodyKind, instructions: Vec<Instruction>) -> BodyId {
        self.bodies.push(Body { kind, part: Part::default(), instructions });
        BodyId(self.bodies.len() as u32 - 1)
    }
}

/// Assembles the order of one class.
pub(super) struct Assembly<'a> {
    pub graph: &'a Graph,
    pub parameters: &'a Parameters<'a>,
    /// The class's tensors.
    pub tensors: &'a [Tensor],
    pub map: &'a StageMap,
    /// The class's place in the map.
    pub device: usize,
    /// The class's stages with their bodies.
    pub stages: Vec<(StageId, &'a StageModel, StageBodies)>,
    /// Which weights passes run with.
    pub versions: &'a Versions<'a>,
    /// What is reduced over its classes between passes.
    pub early: &'a Early,
}

/// What distinguishes bodies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    /// Among the class's.
    stage: usize,
    pass: PassKind,
    /// Whether the micro-batch is spared recomputation.
    spared: bool,
    /// The buckets to which no later pass adds.
    completes: &'a BTreeSet<BucketId>,
}

/// The bodies made so far.
#[derive(Default)]
struct Made<'a> {
    bodies: Vec<Body>,
    whole: BTreeMap<Key<'a>, BodyId>,
    /// The pieces of passes that overlap, in order; none where they run one after the other.
    overlapped: BTreeMap<[Key<'a>; 2], Option<Vec<(Side, BodyId)>>>,
    epilogue: Option<BodyId>,
}

impl<'a> Made<'a> {
    fn add(&mut self, body: Body) -> BodyId {
        self.bodies.push(body);
        BodyId(self.bodies.len() as u32 - 1)
    }

    fn whole(&mut self, assembly: &Assembly<'_>, key: Key<'a>) -> BodyId {
        if let Some(&known) = self.whole.get(&key) {
            return known;
        }
        let body = self.add(assembly.body(key));
        self.whole.insert(key, body);
        body
    }

    /// The entry that runs the epilogue of these instructions, which all updates have.
    fn update(&mut self, epilogue: &[Instruction]) -> Entry {
        let body = self.epilogue.unwrap_or_else(|| {
            let instructions = epilogue.to_vec();
            self.add(Body { kind: BodyKind::Epilogue, part: Part::default(), instructions })
        });
        self.epilogue = Some(body);
        Entry::new(body, None)
    }

    /// What an action of these passes runs, with whose pass.
    fn action(
        &mut self,
        assembly: &Assembly<'_>,
        passes: &[(Pass, Key<'a>)],
    ) -> Vec<(Pass, BodyId)> {
        if let &[(first, one), (second, other)] = passes
            && let Some(pieces) = self.overlapped(assembly, [one, other])
        {
            let pass = |side| match side {
                Side::First => first,
                Side::Second => second,
            };
            return pieces.iter().map(|&(side, body)| (pass(side), body)).collect();
        }
        passes.iter().map(|&(pass, key)| (pass, self.whole(assembly, key))).collect()
    }

    fn overlapped(
        &mut self,
        assembly: &Assembly<'_>,
        keys: [Key<'a>; 2],
    ) -> Option<&[(Side, BodyId)]> {
        if !self.overlapped.contains_key(&keys) {
            let [first, second] = keys.map(|key| assembly.body(key));
            let pieces = interleaved([&first, &second], assembly.tensors);
            let pieces = pieces.map(|pieces| {
                pieces.into_iter().map(|(side, body)| (side, self.add(body))).collect()
            });
            self.overlapped.insert(keys, pieces);
        }
        self.overlapped[&keys].as_deref()
    }
}

impl Assembly<'_> {
    /// The order that runs passes in `order` and ends with `epilogue`.
    pub fn order(
        &self,
        order: &[Action],
        epilogue: Vec<Instruction>,
    ) -> Result<Order, ProgramError> {
        let passes: Vec<Pass> = order.iter().flat_map(|action| action.passes()).collect();
        let completed = self.completed(&passes);
        let mut completed = completed.iter();
        let mut made = Made::default();
        let mut entries = vec![];
        for (index, action) in order.iter().enumerate() {
            let passes = action.passes().zip(&mut completed);
            let passes: Vec<(Pass, Key<'_>)> =
                passes.map(|(pass, completes)| (pass, self.key(pass, completes))).collect();
            for (pass, body) in made.action(self, &passes) {
                let microbatches = self.map.microbatches();
                let entry = Entry {
                    age: self.versions.age(pass)?,
                    // A pass that runs ahead is of a later step.
                    shift: (pass.microbatch / microbatches) as i32,
                    ..Entry::new(body, Some(pass.microbatch % microbatches))
                };
                entries.push((entry, Some(pass)));
            }
            if action.passes().any(|pass| self.versions.ends_round(pass)) {
                entries.push((made.update(&epilogue), None));
            }
            if let Some(body) = self.synchronisation(index) {
                entries.push((Entry::new(made.add(body), None), None));
            }
        }
        let update = made.update(&epilogue);
        // The last round may end with the step.
        if entries.last().is_none_or(|(entry, _)| entry.body != update.body) {
            entries.push((update, None));
        }
        count_occurrences(&mut entries);
        // One pipeline holds the whole model.
        let first = |(_, (_, model, _)): &(usize, &(StageId, &StageModel, StageBodies))| {
            model.place.pipeline == 0
        };
        let evaluated = self.stages.iter().enumerate().filter(first);
        let evaluation = evaluated.map(|(stage, (_, _, passes))| {
            let mut instructions = passes.evaluation.clone();
            self.gather(&mut instructions, UseBy::Evaluation);
            let part = self.part(stage);
            made.add(Body { kind: BodyKind::Evaluation, part, instructions })
        });
        let evaluation = evaluation.collect();
        Ok(Order { bodies: made.bodies, entries, evaluation })
    }

    /// What is synchronised between an action and the next.
    fn synchronisation(&self, action: usize) -> Option<Body> {
        let buckets = self.early.after(action).iter();
        let reductions = buckets.flat_map(|&it| self.parameters.over_classes(it));
        let instructions: Vec<Instruction> = reductions.collect();
        let body = Body { kind: BodyKind::Synchronisation, part: Part::default(), instructions };
        (!body.instructions.is_empty()).then_some(body)
    }

    /// The place among the class's stages of the one that a pass runs.
    fn stage(&self, pass: Pass) -> usize {
        let found = self.stages.iter().position(|(_, model, _)| model.place == pass.instance);
        found.expect("a device runs the stages that live on it")
    }

    fn written(&self, stage: usize, pass: PassKind) -> BTreeSet<BucketId> {
        sharding::written(self.stages[stage].2.pass(pass, false), self.parameters)
    }

    /// For each pass the buckets to which no later pass adds before the next update.
    fn completed(&self, passes: &[Pass]) -> Vec<BTreeSet<BucketId>> {
        let mut written: BTreeMap<(usize, PassKind), BTreeSet<BucketId>> = BTreeMap::new();
        let all = || (0..self.parameters.buckets.len() as u32).map(BucketId).collect();
        let mut open: BTreeSet<BucketId> = all();
        let mut completed = vec![];
        for pass in passes.iter().rev() {
            if self.versions.ends_round(*pass) {
                open = all();
            }
            let key = (self.stage(*pass), pass.kind);
            let writes = written.entry(key).or_insert_with(|| self.written(key.0, key.1));
            let completes: BTreeSet<BucketId> = writes.intersection(&open).copied().collect();
            open.retain(|bucket| !completes.contains(bucket));
            completed.push(completes);
        }
        completed.reverse();
        completed
    }

    fn key<'a>(&self, pass: Pass, completes: &'a BTreeSet<BucketId>) -> Key<'a> {
        let stage = self.stage(pass);
        let spared = self.stages[stage].2.spares() && self.is_last(pass);
        Key { stage, pass: pass.kind, spared, completes }
    }

    /// Whether a pass's micro-batch is the last of its pipeline in its step.
    fn is_last(&self, pass: Pass) -> bool {
        self.map.is_last(pass.instance, pass.microbatch)
    }

    fn body(&self, key: Key<'_>) -> Body {
        let Key { stage, pass, spared, completes } = key;
        let mut instructions = self.stages[stage].2.pass(pass, spared).to_vec();
        // A shard takes in each micro-batch once, after the last pass that adds to it.
        let later = match pass {
            PassKind::BackwardInput => self.written(stage, PassKind::BackwardWeight),
            _ => BTreeSet::new(),
        };
        let is_due = |bucket: BucketId| {
            let each_pass = self.parameters.way(bucket).reduces_each_pass();
            completes.contains(&bucket) || (each_pass && !later.contains(&bucket))
        };
        let is_last = |bucket: BucketId| completes.contains(&bucket);
        sharding::insert_reductions(&mut instructions, self.parameters, is_due, is_last);
        let by = match pass {
            PassKind::Forward => UseBy::Forward,
            PassKind::Backward | PassKind::BackwardInput | PassKind::BackwardWeight => {
                UseBy::Backward
            }
        };
        self.gather(&mut instructions, by);
        extrapolation::insert(&mut instructions, self.parameters);
        let kind = match pass {
            PassKind::Forward => BodyKind::Forward,
            PassKind::Backward => BodyKind::Backward,
            PassKind::BackwardInput => BodyKind::BackwardInput,
            PassKind::BackwardWeight => BodyKind::BackwardWeight,
        };
        Body { kind, part: self.part(stage), instructions }
    }

    fn gather(&self, instructions: &mut Vec<Instruction>, by: UseBy) {
        sharding::insert_gathers(instructions, self.graph, self.parameters, by);
    }

    /// Which of the class's stages it is, for people.
    fn part(&self, stage: usize) -> Part {
        let instance = self.stages[stage].1.place;
        let reverse = self.map.chain(instance).is_reverse();
        let chunks = self.map.chunks(self.device, reverse);
        let chunk = chunks.iter().position(|it| it.contains(&instance)).map(|it| it as u32);
        Part { chunk: chunk.filter(|_| chunks.len() > 1), reverse }
    }
}

/// Notes in each entry how many before it run the same body on the same micro-batch.
fn count_occurrences(entries: &mut [(Entry, Option<Pass>)]) {
    let mut counts = BTreeMap::new();
    for (entry, _) in entries {
        let count = counts.entry((entry.body, entry.microbatch, entry.shift)).or_insert(0);
        entry.occurrence = *count;
        *count += 1;
    }
}
