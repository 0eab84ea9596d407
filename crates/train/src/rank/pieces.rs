//! A rank's part of a checkpoint: what it alone answers for when writing, what it holds when reading.

use std::ops::Range;

use shardloom_kernels::Buffer;
use shardloom_kernels::window::cut_box;
use shardloom_program::{ParamId, Placement};

use super::Rank;
use super::parameters::{Owned, answered_for};
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
        let weights = &self.parameters.weights;
        let mut pieces = vec![];
        for (id, bucket) in class.buckets() {
            let answered = answered_for(class, self.class, id, self.position);
            let resident = &weights.ranges[id.0 as usize];
            let buffer = weights.resident[id.0 as usize].as_f32();
            for &param in &bucket.params {
                let spec = class.param(param);
                let part = overlap(&answered, spec.offset, spec.elements());
                if part.is_empty() {
                    continue;
                }
                let Site { name, global, placement } = self.site(param);
                let data = &buffer[part.start - resident.start..part.end - resident.start];
                let first = part.start - spec.offset;
                let (start, extent) = (&placement.start, &placement.extent);
                pieces.push(Piece::flat(name, &global, start, extent, first, data));
            }
        }
        pieces
    }

    /// The optimizer state this rank answers for.
    pub fn state_pieces(&self) -> Vec<Piece<'_>> {
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

    /// Takes weights and, if it has them, optimizer state from a checkpoint that may have been written
    /// under another plan.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn restore(&mut self, checkpoint: &Checkpoint, with_state: bool) -> Result<()> {
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
        if !with_state {
            return Ok(());
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

    /// Takes weights from whole tensors by name.
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
        })
    }

    /// Fills resident weights with what `read` gives for a flat range of a parameter's local part.
    fn restore_weights(
        &mut self,
        read: impl Fn(&Site, Range<usize>) -> Result<Vec<f32>>,
    ) -> Result<()> {
        for index in 0..self.parameters.weights.resident.len() {
            let resident = self.parameters.weights.ranges[index].clone();
            for param in self.class().buckets[index].params.clone() {
                let spec = self.class().param(param);
                let (offset, elements) = (spec.offset, spec.elements());
                let part = overlap(&resident, offset, elements);
                if part.is_empty() {
                    continue;
                }
                let values = read(&self.site(param), part.start - offset..part.end - offset)?;
                let at = part.start - resident.start..part.end - resident.start;
                let weights = &mut self.parameters.weights.resident[index];
                weights.as_f32_mut()[at].copy_from_slice(&values);
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
