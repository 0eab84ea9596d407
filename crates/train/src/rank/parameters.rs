//! Weights, gradients and optimizer state of one rank, in buckets.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use shardloom_graph::Init;
use shardloom_kernels::optimizer::{Block, Optimizer, Piece};
use shardloom_kernels::random::{Key, normal_fill};
use shardloom_kernels::window::Window;
use shardloom_kernels::{Buffer, DType, Memory};
use shardloom_plan::Axis;
use shardloom_program::{BucketId, Class, ClassId, ParamId, Shard, Tenant};
use smallvec::SmallVec;

use super::Shared;
use super::arena::Arena;
use super::compute::{FewWrites, stream};
use super::corrections::Corrections;
use crate::optimizer;

/// Everything that outlives micro-batches.
pub(crate) struct Parameters {
    pub(super) weights: Weights,
    pub(super) gradients: Gradients,
    /// That of updates with as many samples as this class makes them with.
    pub(super) optimizer: Optimizer,
    /// What the learning rate is multiplied by for them.
    pub(super) rate_share: f64,
    /// Per bucket, the parts of parameters that this rank updates, with their optimizer state.
    pub(super) owned: Vec<Vec<Owned>>,
    pub(super) corrections: Corrections,
}

/// The part of a parameter that this rank updates.
pub(crate) struct Owned {
    pub param: ParamId,
    pub piece: Piece,
    /// Where the part lies in its bucket.
    pub at: Range<usize>,
    pub state: Vec<Buffer>,
    /// Sums over all owners of the statistics of the last round.
    pub statistics: Vec<f32>,
    /// Updates made so far.
    pub updates: u64,
}

/// Weights by bucket.
pub(crate) struct Weights {
    /// All of a bucket or, where weights are sharded, this rank's shard of it.
    pub(super) resident: Vec<Buffer>,
    /// Earlier versions of what is resident, the latest first.
    older: Vec<VecDeque<Buffer>>,
    /// Room for earlier versions that there are not yet.
    spare: Vec<Vec<Buffer>>,
    /// Which of them the current entry of the stream runs with: 0 is the newest.
    lag: usize,
    /// All of a sharded bucket, while it is gathered.
    pub(super) gathered: Vec<Option<Buffer>>,
    /// The part of the bucket that is resident.
    pub(super) ranges: Vec<Range<usize>>,
}

/// Gradients by bucket.
pub(crate) struct Gradients {
    /// All of a bucket; where gradients are sharded, only while a micro-batch writes it.
    pub(super) full: Vec<Option<Buffer>>,
    /// This rank's shard, where gradients are sharded.
    pub(super) shards: Vec<Option<Buffer>>,
    /// Parameters whose next write overwrites.
    fresh: Vec<bool>,
    /// Buckets whose shard's next write overwrites.
    pub(super) shard_fresh: Vec<bool>,
}

impl Parameters {
    /// Freshly initialised parameters of `position` of `class`.
    pub fn new(
        shared: &Arc<Shared>,
        class: ClassId,
        position: usize,
        memory: &Memory,
    ) -> Parameters {
        let program = &shared.program;
        let class = program.class(class);
        let shard = program.shard;
        let mut weights = Weights {
            resident: vec![],
            older: vec![],
            spare: vec![],
            lag: 0,
            gathered: vec![],
            ranges: vec![],
        };
        let mut gradients = Gradients {
            full: vec![],
            shards: vec![],
            fresh: vec![true; class.params.len()],
            shard_fresh: vec![true; class.buckets.len()],
        };
        // A stage without parameters makes none.
        let updates = class.updates().max(1) as usize;
        let (optimizer, rate_share) = program.optimizer.for_batch(program.global_batch / updates);
        let optimizer = optimizer::kernel(&optimizer);
        let mut owned = vec![];
        for (id, bucket) in class.buckets() {
            let replicated = class.replicated(bucket);
            let own = class.shard_range(bucket, position);
            let whole = 0..bucket.elements;
            let kept = |sharded: bool| match replicated && sharded {
                true => own.clone(),
                false => whole.clone(),
            };
            let mut full = memory.alloc(DType::F32, bucket.elements);
            for &param in &bucket.params {
                initialise(shared, class, position, param, full.as_f32_mut());
            }
            let range = kept(shard.weights());
            if range.len() < bucket.elements {
                let mut resident = memory.alloc(DType::F32, range.len());
                resident.as_f32_mut().copy_from_slice(&full.as_f32()[range.clone()]);
                full = resident;
            }
            weights.resident.push(full);
            let keeps = class.versions() as usize - 1;
            let room = || memory.alloc(DType::F32, range.len());
            weights.spare.push(std::iter::repeat_with(room).take(keeps).collect());
            weights.older.push(VecDeque::with_capacity(keeps));
            weights.gathered.push(None);
            weights.ranges.push(range);

            let sharded = replicated && shard.gradients();
            let buffer = |elements| Some(memory.alloc(DType::F32, elements));
            gradients.full.push(if sharded { None } else { buffer(bucket.elements) });
            gradients.shards.push(if sharded { buffer(own.len()) } else { None });
            let updated = kept(shard.state());
            owned.push(pieces(shared, class, position, id, &updated, &optimizer, memory));
        }
        let corrections = Corrections::new(program, class, &weights.resident, memory);
        // Initialisation passed through whole buckets; training need not.
        memory.release_free();
        memory.reset_peak();
        Parameters { weights, gradients, optimizer, rate_share, owned, corrections }
    }

    /// Forgets the gradients that weights were updated with.
    pub fn forget_gradients(&mut self) {
        self.gradients.fresh.fill(true);
        self.gradients.shard_fresh.fill(true);
    }

    /// The weights, and for each of `params`, in their order, the gradient to write with whether to add to
    /// it.
    pub fn weights_and_gradients(
        &mut self,
        class: &Class,
        arena: &Arena,
        params: impl Iterator<Item = ParamId>,
    ) -> (&Weights, FewWrites<(&mut [f32], bool)>) {
        let gradients = &mut self.gradients;
        let mut wanted: FewWrites<(usize, ParamId, bool)> = params
            .enumerate()
            .map(|(index, param)| {
                let fresh = std::mem::replace(&mut gradients.fresh[param.0 as usize], false);
                (index, param, !fresh)
            })
            .collect();
        wanted.sort_unstable_by_key(|&(_, param, _)| {
            (class.param(param).bucket, class.param(param).offset)
        });
        let mut slices: FewWrites<(usize, &mut [f32], bool)> = FewWrites::new();
        let mut wanted = wanted.into_iter().peekable();
        for (id, full) in (0u32..).map(BucketId).zip(&mut gradients.full) {
            if wanted.peek().is_none_or(|&(_, param, _)| class.param(param).bucket != id) {
                continue;
            }
            let elements = class.bucket(id).elements;
            let full =
                full.get_or_insert_with(|| arena.take(Tenant::Gradients(id), DType::F32, elements));
            let (mut rest, mut passed) = (full.as_f32_mut(), 0);
            while let Some((index, param, accumulate)) =
                wanted.next_if(|&(_, param, _)| class.param(param).bucket == id)
            {
                let param = class.param(param);
                let (_, tail) = rest.split_at_mut(param.offset - passed);
                let (slice, tail) = tail.split_at_mut(param.elements());
                passed = param.offset + param.elements();
                rest = tail;
                slices.push((index, slice, accumulate));
            }
        }
        slices.sort_unstable_by_key(|&(index, ..)| index);
        let slices = slices.into_iter().map(|(_, slice, add)| (slice, add)).collect();
        (&self.weights, slices)
    }

    /// Drops a gathered bucket.
    pub fn release(&mut self, bucket: BucketId) {
        self.weights.gathered[bucket.0 as usize] = None;
    }

    /// Drops what is there only while a micro-batch passes: gathered weights and whole gradients of sharded
    /// buckets.
    pub(super) fn clear_passing(&mut self) {
        self.weights.gathered.fill_with(|| None);
        let Gradients { full, shards, .. } = &mut self.gradients;
        for (full, _) in full.iter_mut().zip(shards).filter(|(_, shard)| shard.is_some()) {
            *full = None;
        }
    }

    /// Makes the gradients of a bucket zero for parameters to which nothing was added: another stage of
    /// the class uses them.
    pub(super) fn clear_unwritten(&mut self, class: &Class, bucket: BucketId) {
        let Some(full) = &mut self.gradients.full[bucket.0 as usize] else { return };
        for &id in &class.bucket(bucket).params {
            if self.gradients.fresh[id.0 as usize] {
                let param = class.param(id);
                full.as_f32_mut()[param.offset..param.offset + param.elements()].fill(0.0);
            }
        }
    }

    /// The whole gradient buffer of a sharded bucket is done with: its parameters' next writes are the
    /// first of another micro-batch.
    pub(super) fn retire_gradient(&mut self, class: &Class, bucket: BucketId) {
        self.gradients.full[bucket.0 as usize] = None;
        for &param in &class.bucket(bucket).params {
            self.gradients.fresh[param.0 as usize] = true;
        }
    }
}

impl Weights {
    /// A parameter's weights.
    pub fn of(&self, class: &Class, param: ParamId) -> &[f32] {
        let spec = class.param(param);
        let bucket = spec.bucket.0 as usize;
        let whole = self.gathered[bucket].as_ref().unwrap_or_else(|| self.held(bucket));
        &whole.as_f32()[spec.offset..spec.offset + spec.elements()]
    }

    /// What is held of a bucket, in the version that the current entry of the stream runs with.
    pub(super) fn held(&self, bucket: usize) -> &Buffer {
        // Before there were so many updates, the oldest is the one from the start.
        let older = &self.older[bucket];
        match self.lag.min(older.len()) {
            0 => &self.resident[bucket],
            lag => &older[lag - 1],
        }
    }

    /// Chooses the version as it was `lag` updates ago.
    pub(super) fn go_back(&mut self, lag: u32) {
        self.lag = lag as usize;
    }

    /// Forgets all versions but the newest.
    pub(super) fn forget(&mut self) {
        for (older, spare) in self.older.iter_mut().zip(&mut self.spare) {
            spare.extend(older.drain(..));
        }
        self.lag = 0;
    }

    /// Keeps the newest version of a bucket, which is about to be updated.
    pub(super) fn keep(&mut self, bucket: usize) {
        let (resident, older) = (&self.resident[bucket], &mut self.older[bucket]);
        let room = self.spare[bucket].pop().or_else(|| older.pop_back());
        // A class whose passes all run with the newest keeps none.
        let Some(mut copy) = room else { return };
        copy.as_f32_mut().copy_from_slice(resident.as_f32());
        older.push_front(copy);
    }
}

/// Writes the initial weights of a parameter's local part into its bucket. They depend on the seed, the
/// parameter's name and each element's place in the whole, and on nothing else.
fn initialise(shared: &Shared, class: &Class, position: usize, param: ParamId, bucket: &mut [f32]) {
    let spec = class.param(param);
    let node = shared.graph.value(spec.value);
    let global = shared.program.microbatch_extents(&shared.graph).shape(&node.axes);
    let placement = spec.layout.placement(&global, &class.mesh, position);
    let local = &mut bucket[spec.offset..spec.offset + spec.elements()];
    match node.parameter().map(|parameter| parameter.init) {
        Some(Init::Normal { std }) => {
            let (extent, start) = (placement.extent.into(), placement.start.into());
            let window = Window { extent, start, global: global.into() };
            // Training steps count from 0, so the last one is free for initialisation.
            let key = Key { seed: shared.seed, stream: stream(&node.name), step: u64::MAX };
            normal_fill(key, &window, 0.0, std, local);
        }
        Some(Init::Constant(value)) => local.fill(value),
        None => unreachable!("{} is in a bucket, so it is a parameter", node.name),
    }
}

/// The parts of a bucket's parameters that lie in `updated`.
fn pieces(
    shared: &Shared,
    class: &Class,
    position: usize,
    bucket: BucketId,
    updated: &Range<usize>,
    optimizer: &Optimizer,
    memory: &Memory,
) -> Vec<Owned> {
    let extents = shared.program.microbatch_extents(&shared.graph);
    let mut owned = vec![];
    for &param in &class.bucket(bucket).params {
        let spec = class.param(param);
        let start = updated.start.max(spec.offset);
        let end = updated.end.min(spec.offset + spec.elements());
        let node = shared.graph.value(spec.value);
        let global = extents.shape(&node.axes);
        let placement = spec.layout.placement(&global, &class.mesh, position);
        let row_axes = node.parameter().map_or(0, |parameter| parameter.row_axes);
        let first = |axes: Range<usize>| {
            axes.fold(0, |index, axis| index * global[axis] + placement.start[axis])
        };
        let block = Block {
            global_rows: spec.rows,
            global_cols: spec.columns,
            row_start: first(0..row_axes),
            col_start: first(row_axes..global.len()),
            rows: placement.extent[..row_axes].iter().product(),
            cols: placement.extent[row_axes..].iter().product(),
        };
        let range = match start < end {
            true => start - spec.offset..end - spec.offset,
            false => 0..0,
        };
        let at = range.start + spec.offset..range.end + spec.offset;
        let piece = Piece { block, range };
        let lens = match piece.elements() {
            0 => SmallVec::new(),
            _ => optimizer.state_lens(&piece),
        };
        let state = lens.into_iter().map(|len| memory.alloc_zeroed(DType::F32, len)).collect();
        owned.push(Owned { param, piece, at, state, statistics: vec![], updates: 0 });
    }
    owned
}

/// The part of a bucket that this rank alone answers for where several ranks hold equal copies: each
/// element of each parameter has exactly one such rank, and that rank holds it in every ZeRO stage.
pub(crate) fn answered_for(
    class: &Class,
    id: ClassId,
    bucket: BucketId,
    position: usize,
) -> Range<usize> {
    match class.bucket(bucket).homes.first() {
        Some(&home) if home != id => 0..0,
        _ => answered_for_within(class, bucket, position),
    }
}

/// Likewise among the ranks of one class.
pub(crate) fn answered_for_within(
    class: &Class,
    bucket: BucketId,
    position: usize,
) -> Range<usize> {
    let bucket = class.bucket(bucket);
    let shard = class.shard_range(bucket, position);
    let others: SmallVec<[Axis; 3]> =
        bucket.copies.iter().copied().filter(|axis| !bucket.replicas.contains(axis)).collect();
    let part = shardloom_collectives::chunk(
        shard.len(),
        class.mesh.span(&others),
        class.mesh.index_along(position, &others),
    );
    shard.start + part.start..shard.start + part.end
}

/// Whether a rank keeps only its shard of a replicated bucket, by what is sharded.
pub(super) fn shards(
    class: &Class,
    bucket: BucketId,
    sharded: impl Fn(Shard) -> bool,
    by: Shard,
) -> bool {
    sharded(by) && class.replicated(class.bucket(bucket))
}
