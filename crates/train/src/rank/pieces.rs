//! A rank's part of a checkpoint: what it alone answers for when writing, what it holds when reading.

use std::ops::Range;

use shardloom_kernels::Buffer;
use shardloom_kernels::window::cut_box;
use shardloom_program::{BucketId, ParamId, Placement};

use super::Rank;
use super::corrections::Kept;
use super::parameters::{Owned, answered_for, answered_for_within};
use crate::checkpoint::{Checkpoint, Piece};
use crate::{Error, Result};

/// Where a parameter's local part lies in the whole.
struct Site {
    name: String,
    global: Vec<usize>,
    placement: Placement,
}

/// The name of the n-th state tensor of a parameter in checkpoints.
fn state_name(index: usize, parameter: &str) -> String {
    format!("optimizer.{index}/{parameter}")
}

impl Rank {
    fn site(&self, param: ParamId) -> Site {
        let spec = self.class().param(param);
        let node = self.shared.graph.value(spec.value);
        let global = self.program().microbatch_extents(&self.shared.graph).shape(&node.axes);
        let placement = spec.layout.placement(&global, &self.class().mesh, self.position);
        Site { name: node.name.clone(), global, placement }
    }

    /// The weights this rank answers for.
    pub fn weight_pieces(&self) -> Vec<Piece<'_>> {
        let class = self.class();
        let mut pieces = vec![];
        for ((id, _), buffer) in class.buckets().zip(&self.parameters.weights.resident) {
            let answered = answered_for(class, self.class, id, self.position);
            self.push_pieces(id, &answered, buffer, str::to_owned, &mut pieces);
        }
        pieces
    }

    /// All that lasts from step to step besides the weights and that this rank answers for: the optimizer's
    /// state and what corrections keep.
    pub fn state_pieces(&self) -> Vec<Piece<'_>> {
        let mut pieces = self.optimizer_pieces();
        for kept in Kept::ALL {
            let buffers = self.parameters.corrections.of(kept);
            for ((id, _), buffer) in self.class().buckets().zip(buffers) {
                let answered = self.correction_answered_for(id);
                self.push_pieces(id, &answered, buffer, |name| kept.name(name), &mut pieces);
            }
        }
        pieces
    }

    /// As [`answered_for`], of what is kept only where gradients are late.
    fn correction_answered_for(&self, bucket: BucketId) -> Range<usize> {
        let class = self.class();
        let mut homes = class.bucket(bucket).homes.iter();
        match homes.find(|&&home| self.program().class(home).delay > 0.0) {
            Some(&home) if home != self.class => 0..0,
            _ => answered_for_within(class, bucket, self.position),
        }
    }

    /// Adds what of a bucket's parameters lies in `answered`, from a buffer of all that is resident of the
    /// bucket.
    fn push_pieces<'a>(
        &'a self,
        id: BucketId,
        answered: &Range<usize>,
        buffer: &'a Buffer,
        name_of: impl Fn(&str) -> String,
        pieces: &mut Vec<Piece<'a>>,
    ) {
        let class = self.class();
        let resident = &self.parameters.weights.ranges[id.0 as usize];
        for &param in &class.bucket(id).params {
            let spec = class.param(param);
            let part = overlap(answered, spec.offset, spec.elements());
            if part.is_empty() {
                continue;
            }
            let Site { name, global, placement } = self.site(param);
            let data = &buffer.as_f32()[part.start - resident.start..part.end - resident.start];
            let first = part.start - spec.offset;
            let (start, extent) = (&placement.start, &placement.extent);
            pieces.push(Piece::flat(name_of(&name), &global, start, extent, first, data));
        }
    }

    /// The optimizer state this rank answers for.
    fn optimizer_pieces(&self) -> Vec<Piece<'_>> {
        let class = self.class();
        let mut pieces = vec![];
        for (id, _) in class.buckets() {
            let answered = answered_for(class, self.class, id, self.position);
            for owned in &self.parameters.owned[id.0 as usize] {
                let spec = class.param(owned.param);
                let part = overlap(&answered, spec.offset, spec.elements());
                let Site { name, global, placement } = self.site(owned.param);
                for (index, state) in owned.state.iter().enumerate() {
                    let name = state_name(index, &name);
                    if self.factored(owned) {
                        // All owners hold the same; the one with the first element of the whole writes.
                        let first = placement.start.iter().all(|&start| start == 0)
                            && part.start == spec.offset
                            && !part.is_empty();
                        if first {
                            let data = state.as_f32();
                            pieces.push(Piece::whole(name, &[data.len()], data));
                        }
                        continue;
                    }
                    if part.is_empty() {
                        continue;
                    }
                    let data =
                        &state.as_f32()[part.start - owned.at.start..part.end - owned.at.start];
                    let first = part.start - spec.offset;
                    let (start, extent) = (&placement.start, &placement.extent);
                    pieces.push(Piece::flat(name, &global, start, extent, first, data));
                }
            }
        }
        pieces
    }

    /// Whether the state of `owned` belongs to the whole parameter and not to its elements.
    fn factored(&self, owned: &Owned) -> bool {
        let spec = self.class().param(owned.param);
        let adafactor =
            matches!(self.program().optimizer, shardloom_plan::Optimizer::Adafactor { .. });
        adafactor && spec.rows > 1 && spec.columns > 1
    }

    /// Takes weights and all other state from a checkpoint that may have been written under another plan.
    /// What corrections keep begins anew where the checkpoint has none, because its plan needed none or an
    /// earlier version wrote it.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.restore_weights(|site, range| {
            let Site { name, global, placement } = site;
            match checkpoint.global_shape(name) {
                Some(shape) if shape != global.as_slice() => Err(Error::Shape {
                    name: name.clone(),
                    found: shape.to_vec(),
                    expected: global.clone(),
                }),
                _ => checkpoint.read_flat(name, &placement.start, &placement.extent, range),
            }
        })?;
        for kept in Kept::ALL {
            let mut buffers = std::mem::take(self.parameters.corrections.of_mut(kept));
            let restored = self.fill_resident(&mut buffers, |site, range| {
                let Site { name, placement, .. } = site;
                let name = kept.name(name);
                if checkpoint.global_shape(&name).is_none() {
                    return Ok(None);
                }
                checkpoint.read_flat(&name, &placement.start, &placement.extent, range).map(Some)
            });
            *self.parameters.corrections.of_mut(kept) = buffers;
            restored?;
        }
        for bucket in 0..self.parameters.owned.len() {
            let mut owned = std::mem::take(&mut self.parameters.owned[bucket]);
            for part in &mut owned {
                let Site { name, placement, .. } = self.site(part.param);
                let factored = self.factored(part);
                for (index, state) in part.state.iter_mut().enumerate() {
                    let name = state_name(index, &name);
                    let values = match factored {
                        true => checkpoint.read_whole(&name)?,
                        false => checkpoint.read_flat(
                            &name,
                            &placement.start,
                            &placement.extent,
                            part.piece.range.clone(),
                        )?,
                    };
                    fill(&name, state, &values)?;
                }
            }
            self.parameters.owned[bucket] = owned;
        }
        Ok(())
    }

    /// Takes weights from whole tensors by name. All other state is as at the start of a run.
    ///
    /// # Errors
    /// If a tensor is missing or has another number of elements.
    pub fn set_weights(&mut self, whole: &dyn Fn(&str) -> Option<Vec<f32>>) -> Result<()> {
        self.restore_weights(|site, range| {
            let Site { name, global, placement } = site;
            let values = whole(name).ok_or_else(|| Error::MissingWeight { name: name.clone() })?;
            if values.len() != global.iter().product::<usize>() {
                return Err(Error::Shape {
                    name: name.clone(),
                    found: vec![values.len()],
                    expected: global.clone(),
                });
            }
            let mut local = vec![0.0; placement.elements()];
            cut_box(&values, global, &placement.start, &mut local, &placement.extent);
            Ok(local[range].to_vec())
        })?;
        for owned in self.parameters.owned.iter_mut().flatten() {
            owned.updates = 0;
            for state in &mut owned.state {
                state.as_f32_mut().fill(0.0);
            }
        }
        Ok(())
    }

    /// Fills resident weights with what `read` gives for a flat range of a parameter's local part, and
    /// begins corrections with them.
    fn restore_weights(
        &mut self,
        read: impl Fn(&Site, Range<usize>) -> Result<Vec<f32>>,
    ) -> Result<()> {
        let mut weights = std::mem::take(&mut self.parameters.weights.resident);
        let restored = self.fill_resident(&mut weights, |site, range| read(site, range).map(Some));
        self.parameters.corrections.begin(&weights);
        self.parameters.weights.resident = weights;
        restored
    }

    /// Fills buffers, one of all that is resident of each bucket or none at all, with what `read` gives for
    /// a flat range of a parameter's local part, and leaves as they are those for which it gives nothing.
    fn fill_resident(
        &self,
        buffers: &mut [Buffer],
        read: impl Fn(&Site, Range<usize>) -> Result<Option<Vec<f32>>>,
    ) -> Result<()> {
        let class = self.class();
        let ranges = &self.parameters.weights.ranges;
        for (((_, bucket), resident), buffer) in class.buckets().zip(ranges).zip(buffers) {
            for &param in &bucket.params {
                let spec = class.param(param);
                let part = overlap(resident, spec.offset, spec.elements());
                if part.is_empty() {
                    continue;
                }
                let range = part.start - spec.offset..part.end - spec.offset;
                if let Some(values) = read(&self.site(param), range)? {
                    let at = part.start - resident.start..part.end - resident.start;
                    buffer.as_f32_mut()[at].copy_from_slice(&values);
                }
            }
        }
        Ok(())
    }

    /// The parameters of which this rank updates a part, by name, and how many updates they have had.
    pub fn updates(&self) -> Vec<(String, u64)> {
        let owned = self.parameters.owned.iter().flatten().filter(|it| it.piece.elements() > 0);
        owned.map(|it| (self.site(it.param).name, it.updates)).collect()
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

fn overlap(range: &Range<usize>, offset: usize, elements: usize) -> Range<usize> {
    let start = range.start.max(offset);
    let end = range.end.min(offset + elements);
    start..end.max(start)
}

fn fill(name: &str, buffer: &mut Buffer, values: &[f32]) -> Result<()> {
    if buffer.len() != values.len() {
        return Err(Error::Shape {
            name: name.to_owned(),
            found: vec![values.len()],
            expected: vec![buffer.len()],
        });
    }
    buffer.as_f32_mut().copy_from_slice(values);
    Ok(())
}
