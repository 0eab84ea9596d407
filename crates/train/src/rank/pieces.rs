//! A rank's part of a checkpoint: what it alone answers for when writing, what it holds when reading.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardloom_checkpoint::{Piece, Saved, replica_name};
use shardloom_kernels::Buffer;
use shardloom_kernels::window::cut_box;
use shardloom_plan::Kept;
use shardloom_program::{
    Bucket, Content, Extent, Keep, ParamId, Placement, Shape, Tensor, TensorId, View, overlap,
};

use super::own_state::is_own;
use super::parameters::{Owned, is_weight};
use super::{At, Rank};
use crate::executor::Updates;
use crate::{Error, Result};

/// What is to be read of a saved tensor: by its name, the parameter's site, and a flat range of its local part.
type Read<'a> = dyn Fn(&str, &Site, Range<usize>) -> Result<Option<Vec<f32>>> + 'a;

/// Where a parameter's local part lies in the whole.
pub(super) struct Site {
    pub(super) name: String,
    global: Vec<usize>,
    placement: Placement,
    /// Whether what is read belongs to the whole parameter and not to its elements.
    is_whole: bool,
}

/// A part of a global tensor that a rank owns, copied to the host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OwnedPiece {
    name: String,
    global_shape: Vec<usize>,
    start: Vec<usize>,
    extent: Vec<usize>,
    /// The first element, within the box.
    first: usize,
    values: Vec<f32>,
}

impl OwnedPiece {
    /// All of a tensor that no other rank has a part of.
    pub fn whole(name: String, values: Vec<f32>) -> OwnedPiece {
        let all = vec![values.len()];
        OwnedPiece {
            name,
            global_shape: all.clone(),
            start: vec![0],
            extent: all,
            first: 0,
            values,
        }
    }

    /// The piece, to be saved.
    pub fn piece(&self) -> Piece<'_> {
        let OwnedPiece { name, global_shape, start, extent, first, values } = self;
        Piece::flat(name, global_shape, start, extent, *first, values)
    }

    /// Whether all values are finite.
    pub fn is_finite(&self) -> bool {
        self.values.iter().all(|value| value.is_finite())
    }

    /// The name of the global tensor.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Rank {
    pub(super) fn site(&self, param: ParamId) -> Site {
        let spec = self.class().param(param);
        let node = self.shared.graph.value(spec.value);
        let global = self.program().microbatch_extents(&self.shared.graph).shape(&node.axes);
        let placement = spec.layout.placement(&global, &self.class().mesh, self.position);
        Site { name: node.name.clone(), global, placement, is_whole: false }
    }

    /// The weights that this rank owns: in full precision, where it holds them so.
    pub fn weight_pieces(&self) -> Vec<OwnedPiece> {
        self.pieces(self.owned_weights(), |_| true)
    }

    /// Those of one parameter.
    pub fn weight_pieces_of(&self, parameter: &str) -> Vec<OwnedPiece> {
        // Whoever asks for one asks for all, one after the other.
        let by_name = self.weights_by_name.get_or_init(|| self.weights_by_name());
        let class = self.class();
        let tensors = by_name.get(parameter).into_iter().flatten();
        let tensors = tensors.map(|&id| (id, class.tensor(id)));
        self.pieces(tensors, |param| self.name_of(param) == parameter)
    }

    /// The tensors of the weights that this rank owns, by the names of the parameters that it holds some of.
    fn weights_by_name(&self) -> BTreeMap<String, Vec<TensorId>> {
        let class = self.class();
        let mut by_name: BTreeMap<String, Vec<TensorId>> = BTreeMap::new();
        for (id, tensor) in self.owned_weights() {
            let bucket = class.bucket(tensor.bucket.expect("state belongs to parameters"));
            for part in self.parts(id, tensor, bucket) {
                by_name.entry(self.name_of(part.param).to_owned()).or_default().push(id);
            }
        }
        by_name
    }

    fn owned_weights(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.state_tensors().filter(|&(id, tensor)| self.owns(id) && is_weight(tensor))
    }

    /// All that lasts from step to step besides the weights and that this rank owns: the optimizer's state
    /// and what corrections keep.
    pub fn state_pieces(&self) -> Vec<OwnedPiece> {
        let others = |&(id, tensor): &(TensorId, &Tensor)| self.owns(id) && !is_weight(tensor);
        self.pieces(self.state_tensors().filter(others), |_| true)
    }

    /// All that lasts from step to step of these buckets, as if the rank owned them.
    pub fn bucket_pieces(&self, buckets: &[u32]) -> Vec<OwnedPiece> {
        let is_of = |(_, tensor): &(TensorId, &Tensor)| {
            tensor.bucket.is_some_and(|it| buckets.contains(&it.0))
        };
        self.pieces(self.state_tensors().filter(is_of), |_| true)
    }

    /// Whether its class is the one that owns a tensor.
    fn owns(&self, tensor: TensorId) -> bool {
        self.program().owns(self.class, tensor)
    }

    /// The name of a parameter.
    fn name_of(&self, param: ParamId) -> &str {
        &self.shared.graph.value(self.class().param(param).value).name
    }

    /// This rank's part of these state tensors, of parameters that are `wanted`.
    fn pieces<'a>(
        &self,
        tensors: impl Iterator<Item = (TensorId, &'a Tensor)>,
        wanted: impl Fn(ParamId) -> bool,
    ) -> Vec<OwnedPiece> {
        let class = self.class();
        let mut pieces = vec![];
        for (id, tensor) in tensors {
            let bucket = class.bucket(tensor.bucket.expect("state belongs to parameters"));
            let owned = class.owned_within(bucket, self.position);
            let saved = self.saved_under(bucket);
            let values = self.store.newest(self.store.slot(id)).view();
            let parts = self.parts(id, tensor, bucket);
            for part in parts.into_iter().filter(|part| wanted(part.param)) {
                let spec = class.param(part.param);
                let Site { name, global, placement, .. } = self.site(part.param);
                let name = saved(&saved_name(tensor.content, &name));
                let own = overlap(&owned, &spec.range());
                if part.is_whole {
                    // All owners hold the same; the one with the first element of the whole writes.
                    let first = placement.start.iter().all(|&start| start == 0)
                        && own.start == spec.offset
                        && !own.is_empty();
                    if first {
                        pieces.push(OwnedPiece::whole(name, self.device().reals(values)));
                    }
                    continue;
                }
                let own = overlap(&own, &part.range);
                if own.is_empty() {
                    continue;
                }
                let held = values.slice(own.start - part.origin..own.end - part.origin);
                pieces.push(OwnedPiece {
                    name,
                    global_shape: global,
                    start: placement.start,
                    extent: placement.extent,
                    first: spec.local(&own).start,
                    values: self.device().reals(held),
                });
            }
        }
        pieces
    }

    /// The names in checkpoints of what this rank holds of a bucket, by plain names: that of its replica, if
    /// replicas have their own.
    fn saved_under(&self, bucket: &Bucket) -> impl Fn(&str) -> String + use<> {
        let (replicas, replica) = self.class().own_replica(bucket, self.position);
        move |name| match replicas {
            1 => name.to_owned(),
            _ => replica_name(replica, name),
        }
    }

    /// Checks that replicas with values of their own of a parameter are as many as were saved, or that one was saved
    /// for all. Whether so, of what such a tensor holds.
    fn has_own(&self, param: ParamId, content: Content, checkpoint: &dyn Saved) -> Result<bool> {
        let parameter = self.site(param).name;
        let name = saved_name(content, &parameter);
        let bucket = self.class().bucket(self.class().param(param).bucket);
        let has =
            |replica: &usize| checkpoint.global_shape(&replica_name(*replica, &name)).is_some();
        let saved = (0..).take_while(has).count();
        let (replicas, _) = self.class().own_replica(bucket, self.position);
        match saved {
            0 => Ok(false),
            _ if saved == replicas => Ok(replicas > 1),
            _ if bucket.is_frozen => Err(Error::FrozenReplicas { parameter, saved }),
            _ => Err(Error::Replicas { saved, replicas }),
        }
    }

    /// The tensors that are saved.
    fn state_tensors(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.class().tensors().filter(|(_, tensor)| is_saved(tensor))
    }

    /// What is held here of each parameter in a state tensor of a bucket.
    fn parts(&self, id: TensorId, tensor: &Tensor, bucket: &Bucket) -> Vec<Part> {
        let class = self.class();
        let held = class.bucket_range(View::whole(id), self.position);
        match tensor.shape {
            Shape::Flat(Extent::OfParam { param, kept, .. }) => {
                let is_whole = matches!(kept, Kept::PerParameter(_));
                vec![Part { param, origin: held.start, range: held, is_whole }]
            }
            _ => {
                let part = |&param: &ParamId| {
                    let range = overlap(&held, &class.param(param).range());
                    Part { param, range, origin: held.start, is_whole: false }
                };
                bucket.params.iter().map(part).filter(|part| !part.range.is_empty()).collect()
            }
        }
    }

    /// Takes weights and all other state from where they were saved, maybe under another plan.
    /// What neither weights nor the optimizer's state is begins anew where the checkpoint has none, because
    /// its plan needed none or an earlier version wrote it. So does the velocity of gradient descent, of which
    /// a plan without momentum keeps none, and the state of parameters that have had none of the `updates`, as they
    /// were frozen.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn restore(&mut self, checkpoint: &dyn Saved, updates: &Updates) -> Result<()> {
        let fill = |rank: &mut Rank, wanted: fn(&Tensor) -> bool, read: &Read<'_>| {
            rank.fill_state(wanted, Some(checkpoint), read)
        };
        fill(self, is_weight, &|name, site, range| {
            let Site { global, placement, .. } = site;
            match checkpoint.global_shape(name) {
                Some(shape) if shape != global.as_slice() => Err(Error::Shape {
                    name: name.to_owned(),
                    found: shape.to_vec(),
                    expected: global.clone(),
                }),
                _ => {
                    let Placement { start, extent } = placement;
                    Ok(Some(checkpoint.read_flat(name, start, extent, range)?))
                }
            }
        })?;
        self.begin_state();
        self.restore_own(checkpoint)?;
        fn is_moment(tensor: &Tensor) -> bool {
            matches!(tensor.content, Content::OptimizerState(_))
        }
        fn begins_anew(tensor: &Tensor) -> bool {
            is_saved(tensor) && !is_weight(tensor) && !is_moment(tensor)
        }
        fill(self, begins_anew, &|name, Site { placement, .. }, range| match checkpoint
            .global_shape(name)
        {
            None => Ok(None),
            Some(_) => {
                let Placement { start, extent } = placement;
                Ok(Some(checkpoint.read_flat(name, start, extent, range)?))
            }
        })?;
        let shared = Arc::clone(&self.shared);
        let has = |parameter: &str| {
            let name = saved_name(Content::OptimizerState(0), parameter);
            let names = [replica_name(0, &name), name];
            names.iter().any(|name| checkpoint.global_shape(name).is_some())
        };
        // A checkpoint that has it of some parameters lost it of the others.
        let may_lack = shared.program.optimizer.begins_without_state()
            && !shared.graph.parameters().any(|(_, value)| has(&value.name));
        fill(self, is_moment, &|name, site, range| {
            let Site { placement, is_whole, name: parameter, .. } = site;
            let begins = may_lack || updates.of(parameter) == 0;
            if begins && checkpoint.global_shape(name).is_none() {
                return Ok(None);
            }
            Ok(Some(match is_whole {
                true => checkpoint.read_whole(name)?,
                false => checkpoint.read_flat(name, &placement.start, &placement.extent, range)?,
            }))
        })
    }

    /// Takes weights from whole tensors by name. All other state is as at the start of a run.
    ///
    /// # Errors
    /// If a tensor is missing or has another number of elements.
    pub fn set_weights(&mut self, whole: &dyn Fn(&str) -> Option<Vec<f32>>) -> Result<()> {
        self.fill_state(is_weight, None, |name, site, range| {
            let Site { global, placement, .. } = site;
            let values =
                whole(name).ok_or_else(|| Error::MissingWeight { name: name.to_owned() })?;
            if values.len() != global.iter().product::<usize>() {
                return Err(Error::Shape {
                    name: name.to_owned(),
                    found: vec![values.len()],
                    expected: global.clone(),
                });
            }
            let mut local = vec![0.0; placement.elements()];
            cut_box(&values, global, &placement.start, &mut local, &placement.extent);
            Ok(Some(local[range].to_vec()))
        })?;
        self.begin_state();
        for owned in self.parameters.owned.iter_mut().flatten() {
            owned.updates = 0;
        }
        Ok(())
    }

    /// Has all state but the weights begin with these.
    fn begin_state(&mut self) {
        let Rank { shared, class, store, parameters, .. } = self;
        parameters.begin_state(shared.program.class(*class), store, &*shared.device);
    }

    /// Fills lasting tensors that are `wanted` with what `read` gives for the saved name of a parameter's part
    /// and a flat range of its local part, in the tensor's format, and leaves as they are those for which it
    /// gives nothing. Where `saved` has what replicas have of their own, names are those of that. Weights that are
    /// made of master weights are filled alike, so that they need not be made.
    fn fill_state(
        &mut self,
        wanted: impl Fn(&Tensor) -> bool,
        saved: Option<&dyn Saved>,
        read: impl Fn(&str, &Site, Range<usize>) -> Result<Option<Vec<f32>>>,
    ) -> Result<()> {
        let tensors: Vec<TensorId> =
            self.class().lasting().filter(|(_, it)| wanted(it)).map(|(id, _)| id).collect();
        for id in tensors {
            let slot = self.store.slot(id);
            let taken = self.store.take(slot, At::START);
            let mut buffer = taken.expect("state is there all the time");
            let filled = self.fill(id, &mut buffer, saved, &read);
            self.store.put(slot, At::START, buffer);
            filled?;
        }
        Ok(())
    }

    fn fill(
        &self,
        id: TensorId,
        buffer: &mut Buffer,
        saved: Option<&dyn Saved>,
        read: impl Fn(&str, &Site, Range<usize>) -> Result<Option<Vec<f32>>>,
    ) -> Result<()> {
        let class = self.class();
        let tensor = class.tensor(id);
        let bucket = class.bucket(tensor.bucket.expect("state belongs to parameters"));
        for Part { param, range, origin, is_whole } in self.parts(id, tensor, bucket) {
            if range.is_empty() {
                continue;
            }
            let spec = class.param(param);
            let site = Site { is_whole, ..self.site(param) };
            let name = saved_name(tensor.content, &site.name);
            let own =
                saved.map_or(Ok(false), |saved| self.has_own(param, tensor.content, saved))?;
            let name = if own { self.saved_under(bucket)(&name) } else { name };
            let Some(values) = read(&name, &site, spec.local(&range))? else {
                continue;
            };
            let at = match is_whole {
                true => 0..buffer.len(),
                false => range.start - origin..range.end - origin,
            };
            if at.len() != values.len() {
                let (found, expected) = (vec![values.len()], vec![at.len()]);
                return Err(Error::Shape { name, found, expected });
            }
            self.device().set_reals(&values, buffer.view_mut().slice(at));
        }
        Ok(())
    }

    /// The parameters of which this rank updates a part, by name, and how many updates they have had that the
    /// optimizer's state is of: of frozen ones none is kept.
    pub fn updates(&self) -> Vec<(String, u64)> {
        let class = self.class();
        let is_updated_here =
            |param: ParamId| class.bucket(class.param(param).bucket).is_updated_here();
        let owned = self.parameters.owned.iter().flatten();
        let owned = owned.filter(|it| it.piece.elements() > 0 && is_updated_here(it.param));
        let updates = |it: &Owned| {
            let is_frozen = class.bucket(class.param(it.param).bucket).is_frozen;
            (self.site(it.param).name, if is_frozen { 0 } else { it.updates })
        };
        owned.map(updates).collect()
    }

    /// Goes on from so many updates of each parameter.
    pub fn set_updates(&mut self, updates: impl Fn(&str) -> u64) {
        let names: Vec<ParamId> =
            self.parameters.owned.iter().flatten().map(|it| it.param).collect();
        let names: Vec<String> = names.into_iter().map(|param| self.site(param).name).collect();
        for (owned, name) in self.parameters.owned.iter_mut().flatten().zip(names) {
            owned.updates = updates(&name);
        }
    }
}

/// Whether a tensor is saved by the parameters that lie in it.
fn is_saved(tensor: &Tensor) -> bool {
    matches!(tensor.keep, Keep::State(_)) && !is_own(tensor)
}

/// What is held of one parameter in a state tensor.
struct Part {
    param: ParamId,
    /// Which elements of the bucket.
    range: Range<usize>,
    /// The element of the bucket that the tensor begins with.
    origin: usize,
    /// Whether the tensor belongs to the whole parameter and not to its elements.
    is_whole: bool,
}

/// The name in checkpoints of what a state tensor holds of a parameter.
fn saved_name(content: Content, parameter: &str) -> String {
    match content {
        Content::OptimizerState(index) => format!("optimizer.{index}/{parameter}"),
        Content::WeightVelocity => format!("correction.mean-velocity/{parameter}"),
        Content::PreviousWeight => format!("correction.previous-weights/{parameter}"),
        Content::Synchronisation(index) => format!("synchronisation.{index}/{parameter}"),
        Content::Gradient => format!("gradient/{parameter}"),
        Content::Weight | Content::MasterWeight => parameter.to_owned(),
        Content::Activation
        | Content::Staging
        | Content::ExtrapolatedWeight
        | Content::SecondWeight
        | Content::SummedWeight
        | Content::WeightDelta
        | Content::PublishedWeight
        | Content::Statistics
        | Content::OfRank(_)
        | Content::Compressed
        | Content::Negotiation
        | Content::Rows
        | Content::Lookups
        | Content::LookedUp
        | Content::Norm
        | Content::Backup
        | Content::Flag => unreachable!("{content:?} of {parameter} is not kept"),
    }
}
