//! The parameters of one rank: which part of them it updates, and how they begin.

use std::ops::Range;
use std::sync::Arc;

use shardloom_graph::Init;
use shardloom_kernels::Device;
use shardloom_kernels::optimizer::{Block, Optimizer, Piece};
use shardloom_kernels::random::{Key, normal_fill};
use shardloom_kernels::window::Window;
use shardloom_program::{
    BucketId, Class, ClassId, Content, Extent, Initial, Keep, ParamId, Shape, Tensor, TensorId,
};
use smallvec::SmallVec;

use super::compute::stream;
use super::link::Begins;
use super::store::{Slot, Store, origin};
use super::{At, Shared};
use crate::optimizer;

/// What a rank knows of its parameters.
pub(crate) struct Parameters {
    /// That of updates with as many samples as this class makes them with.
    pub(super) optimizer: Optimizer,
    /// What the learning rate is multiplied by for them.
    pub(super) rate_share: f64,
    /// Per bucket, the parts of parameters that this rank updates.
    pub(super) owned: Vec<Vec<Owned>>,
    /// By tensor: where in its bucket it begins, as held here.
    pub(super) origins: Vec<usize>,
    /// What is added up.
    pub(super) sums: Sums,
}

/// The part of a parameter that this rank updates.
pub(crate) struct Owned {
    pub param: ParamId,
    pub piece: Piece,
    /// Where the part lies in its bucket.
    pub at: Range<usize>,
    /// Where its optimizer state lies.
    pub state: SmallVec<[(Slot, Range<usize>); 2]>,
    /// Where the random numbers come from by which its weights are rounded, if they are stochastically.
    pub rounding: u64,
    /// Whether its weights decay, if the optimizer has that.
    pub decays: bool,
    /// Updates made so far.
    pub updates: u64,
    /// How many it had had when a copy of what an update changes was made last.
    pub updates_kept: u64,
}

impl Owned {
    /// `optimizer` as it is for the parameter.
    pub fn decaying(&self, optimizer: Optimizer) -> Optimizer {
        if self.decays { optimizer } else { optimizer.without_weight_decay() }
    }
}

/// Which sums begin with their next write.
pub(super) struct Sums {
    /// By parameter: those that operators write.
    params: Vec<bool>,
    /// By tensor: those that are written whole.
    tensors: Vec<bool>,
    /// By tensor: how many elements there are of those that are written piece by piece.
    filled: Vec<usize>,
}

impl Sums {
    /// Whether a write overwrites; later ones add where sums begin.
    pub fn begin(&mut self, begins: Begins) -> bool {
        match begins {
            Begins::Always | Begins::Behind(_) => true,
            Begins::Never => false,
            Begins::WithParam(param) => {
                std::mem::replace(&mut self.params[param.0 as usize], false)
            }
            Begins::WithTensor(tensor) => {
                std::mem::replace(&mut self.tensors[tensor.0 as usize], false)
            }
        }
    }

    /// Whether nothing was added to a parameter's gradient yet.
    pub fn is_empty(&self, param: ParamId) -> bool {
        self.params[param.0 as usize]
    }

    /// The gradients of these parameters are done with.
    pub fn end(&mut self, params: &[ParamId]) {
        params.iter().for_each(|param| self.params[param.0 as usize] = true);
    }

    /// Where a piece of so many elements begins that is written behind those before it.
    pub fn fill(&mut self, tensor: TensorId, elements: usize) -> usize {
        let filled = &mut self.filled[tensor.0 as usize];
        std::mem::replace(filled, *filled + elements)
    }

    /// How many elements were written piece by piece; the next is the first again.
    pub fn take_filled(&mut self, tensor: TensorId) -> usize {
        std::mem::take(&mut self.filled[tensor.0 as usize])
    }

    /// All sums are done with.
    pub fn end_all(&mut self) {
        self.filled.fill(0);
        self.params.fill(true);
        self.tensors.fill(true);
    }
}

impl Parameters {
    /// The parameters of `position` of `class`; what is held for the whole run begins in `store`.
    pub fn new(
        shared: &Arc<Shared>,
        class: ClassId,
        position: usize,
        store: &mut Store,
    ) -> Parameters {
        let program = &shared.program;
        let class = program.class(class);
        // A stage without parameters makes none.
        let updates = class.updates().max(1) as usize;
        let (optimizer, rate_share) = program.optimizer.for_batch(program.global_batch / updates);
        let optimizer = optimizer::kernel(&optimizer);
        let origins = class.tensors().map(|(id, _)| origin(class, id, position)).collect();
        let sums = Sums {
            params: vec![true; class.params.len()],
            tensors: vec![true; class.tensors.len()],
            filled: vec![0; class.tensors.len()],
        };
        let mut parameters = Parameters { optimizer, rate_share, owned: vec![], origins, sums };
        for (id, _) in class.buckets() {
            let owned = parameters.parts(shared, class, position, id, store);
            parameters.owned.push(owned);
        }
        // Of what servers hold, ranks have what they ask for.
        for bucket in class.buckets.iter().filter(|bucket| !bucket.is_looked_up()) {
            let mut whole = vec![0.0; bucket.elements];
            for &param in &bucket.params {
                initialise(shared, class, position, param, &mut whole);
            }
            let master = bucket.held.state.iter().filter(|&&it| is_weight(class.tensor(it)));
            for &weights in [&bucket.held.replicated.weights].into_iter().chain(master) {
                let start = parameters.origins[weights.0 as usize];
                let held = store.newest_mut(store.slot(weights)).view_mut();
                let own = start..start + held.len();
                shared.device.set_reals(&whole[own], held);
            }
        }
        parameters.begin_state(class, store, &*shared.device);
        parameters
    }

    /// The parts of a bucket's parameters that the rank updates.
    fn parts(
        &self,
        shared: &Shared,
        class: &Class,
        position: usize,
        bucket: BucketId,
        store: &Store,
    ) -> Vec<Owned> {
        let spec = class.bucket(bucket);
        if spec.is_looked_up() {
            return vec![];
        }
        let is_of_rows = spec.held.replicated.rows().is_some();
        let updated = class.bucket_range(spec.held.replicated.updated, position);
        let extents = shared.program.microbatch_extents(&shared.graph);
        let spec_held = &spec.held.state;
        let mut owned = vec![];
        for &param in &spec.params {
            let spec = class.param(param);
            let start = updated.start.max(spec.offset);
            let end = updated.end.min(spec.offset + spec.elements());
            let node = shared.graph.value(spec.value);
            let global = extents.shape(&node.axes);
            let placement = spec.layout.placement(&global, &class.mesh, position);
            let row_axes = node.parameter().map_or(0, |parameter| parameter.row_axes);
            let block = Block {
                global_rows: spec.rows,
                global_cols: spec.columns,
                row_start: first(&global[..row_axes], &placement.start[..row_axes]),
                col_start: first(&global[row_axes..], &placement.start[row_axes..]),
                rows: placement.extent[..row_axes].iter().product(),
                cols: placement.extent[row_axes..].iter().product(),
            };
            let (at, range) = match start < end {
                true => (start..end, spec.local(&(start..end))),
                false => (spec.offset..spec.offset, 0..0),
            };
            // Whole rows on a server are a matrix of their own, whose rows gradients name.
            let (block, range) = match is_of_rows && !spec.is_whole() {
                true => {
                    let rows = range.len() / block.cols;
                    let row_start = block.row_start + range.start / block.cols;
                    (Block { row_start, rows, ..block }, 0..range.len())
                }
                false => (block, range),
            };
            let piece = Piece { block, range };
            let mut state = SmallVec::new();
            let held = if piece.elements() > 0 { spec_held.as_slice() } else { &[] };
            for &tensor in held {
                let node = class.tensor(tensor);
                if !matches!(node.content, Content::OptimizerState(_)) {
                    continue;
                }
                match node.shape {
                    Shape::Flat(Extent::OfParam { param: of, .. }) if of != param => {}
                    Shape::Flat(Extent::OfParam { .. }) => {
                        state.push((store.slot(tensor), 0..class.elements(tensor, position)));
                    }
                    _ => {
                        let first = self.origins[tensor.0 as usize];
                        state.push((store.slot(tensor), at.start - first..at.end - first));
                    }
                }
            }
            let decays = node.parameter().is_some_and(|parameter| parameter.decays);
            let rounding = stream(&format!("rounding of {}", node.name));
            let (updates, updates_kept) = (0, 0);
            owned.push(Owned { param, piece, at, state, rounding, decays, updates, updates_kept });
        }
        owned
    }

    /// Fills what is saved besides the weights with what it begins with.
    pub fn begin_state(&self, class: &Class, store: &mut Store, device: &dyn Device) {
        let kept = class.tensors().filter(|(_, tensor)| !is_weight(tensor));
        for (tensor, spec) in kept {
            match spec.keep {
                Keep::State(Initial::Weights | Initial::Drawn) => {
                    let bucket = spec.bucket.expect("weights lie in buckets");
                    let weights = class.bucket(bucket).held.replicated.weights;
                    let slot = store.slot(tensor);
                    let taken = store.take(slot, At::START);
                    let mut buffer = taken.expect("state is there all the time");
                    let [first, of] = [tensor, weights].map(|it| self.origins[it.0 as usize]);
                    let own = first - of..first - of + buffer.len();
                    let whole = store.newest(store.slot(weights)).view();
                    device.copy(whole.slice(own), buffer.view_mut());
                    store.put(slot, At::START, buffer);
                }
                Keep::State(Initial::Zero) => {
                    device.fill(store.newest_mut(store.slot(tensor)).view_mut(), 0.0);
                }
                Keep::Resident | Keep::Transient => {}
            }
        }
    }
}

/// The number of the first row of a part that begins at `start`, or of its first column, among all of a parameter,
/// where several axes of these sizes make up rows, or columns.
fn first(sizes: &[usize], start: &[usize]) -> usize {
    sizes.iter().zip(start).fold(0, |index, (size, start)| index * size + start)
}

/// Whether a tensor holds weights, as operators read them or in full precision.
pub(super) fn is_weight(tensor: &Tensor) -> bool {
    matches!(tensor.content, Content::Weight | Content::MasterWeight)
}

/// Writes the initial weights of a parameter's local part into its bucket. They depend on the seed, the
/// parameter's name and each element's place in the whole, and on nothing else.
fn initialise(shared: &Shared, class: &Class, position: usize, param: ParamId, bucket: &mut [f32]) {
    let spec = class.param(param);
    let node = shared.graph.value(spec.value);
    let global = shared.program.microbatch_extents(&shared.graph).shape(&node.axes);
    let placement = spec.layout.placement(&global, &class.mesh, position);
    let in_bucket = &mut bucket[spec.range()];
    // Of a parameter that is cut all is drawn, and the rest dropped.
    let mut whole = vec![];
    if !spec.is_whole() {
        whole.resize(spec.shape.iter().product(), 0.0);
    }
    let local = if spec.is_whole() { &mut *in_bucket } else { &mut whole[..] };
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
    if !spec.is_whole() {
        in_bucket.copy_from_slice(&whole[spec.part.clone()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of four experts of six rows, the fourth row of the third comes behind 2 x 6 + 3 others.
    #[test]
    fn rows_are_counted_over_all_axes_that_they_are_made_of() {
        assert_eq!(first(&[4, 6], &[2, 3]), 15);
        assert_eq!(first(&[2, 4, 6], &[1, 2, 3]), 24 + 15);
        assert_eq!([first(&[5], &[3]), first(&[], &[])], [3, 0]);
    }
}
