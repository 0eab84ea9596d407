//! Bounds of time and memory that candidates are left alone by before they are estimated.

use shardloom_cluster::Stack;

use super::super::parameters::Parameters;
use super::super::stage::{late_bytes, persistent_bytes};
use super::super::{Candidate, orders, pipeline};
use super::{Estimate, Estimator, Settings};
use crate::SimError;

/// What is left of a bound where it is rounded up.
const ROUNDED: f64 = 1.0 - 1e-12;

impl Estimator<'_> {
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
        let split = &self.splits[blocks.split];
        (all.elements[0], all.frozen[0]) = (split.total_elements, split.total_frozen);
        let sharers = [candidate.sharers(); 2];
        let of_zero = |bytes: fn(&Settings, &Stack, u8, [u32; 2], &Parameters) -> f64| {
            bytes(&self.settings, self.place.stack, candidate.zero, sharers, &all)
        };
        let (held, late) = (of_zero(persistent_bytes), of_zero(late_bytes));
        let kept = f64::from(candidate.microbatch) * blocks.kept_bytes;
        Ok(Some(held.max(held - late + kept) / f64::from(candidate.pp)))
    }

    /// The time that a step of `candidate` takes at least; none if its layout is impossible for the
    /// model.
    ///
    /// # Errors
    /// As [`CostModel`](crate::CostModel).
    pub fn least_seconds(&mut self, candidate: &Candidate) -> Result<Option<f64>, SimError> {
        let Some(blocks) = self.table(candidate)? else { return Ok(None) };
        let blocks = &self.blocks[blocks];
        // What passes that run at the same time hide of each other.
        let hidden = if candidate.schedule.overlaps() { blocks.exposed_seconds } else { 0.0 };
        let microbatches = f64::from(candidate.microbatches);
        let busy = microbatches * (blocks.total_seconds() - hidden) / f64::from(candidate.pp);
        if !self.settings.norm {
            return Ok(Some(busy));
        }
        let chain = blocks.least_chain_seconds(candidate.stages() as f64) - hidden;
        let filled = match candidate.chunks == 1 && !candidate.schedule.overlaps() {
            true => blocks.least_filled_seconds(microbatches, f64::from(candidate.pp)),
            false => 0.0,
        };
        Ok(Some(busy.max(ROUNDED * chain.max(filled))))
    }

    /// A time that no order of the stages of `candidate` is faster than, and memory that its schedule needs at
    /// least; none where its layout is impossible. They are closer than [`Estimator::least_seconds`] and
    /// [`Estimator::least_bytes`], and take longer to find.
    ///
    /// # Errors
    /// As [`Estimator::estimate`].
    pub fn bound(&mut self, candidate: &Candidate) -> Result<Option<Estimate>, SimError> {
        if !self.evaluate(candidate)? {
            return Ok(None);
        }
        let mut kept = vec![f64::INFINITY; candidate.pp as usize];
        let mut late = vec![0.0; candidate.pp as usize];
        for it in self.pipelines.iter().flatten() {
            kept[it.device] = kept[it.device].min(it.cost.kept_bytes);
            late[it.device] += it.cost.late_bytes;
        }
        let least = orders::least_held(candidate);
        let held = self.persistent_bytes(candidate).into_iter().zip(late);
        let meshes = held.zip(kept).zip(0u32..);
        // Those behind the first hold less the farther they are.
        let behind = |mesh: u32| 1.0 - f64::from(mesh) / f64::from(candidate.pp);
        let bytes = meshes.map(|(((held, late), kept), mesh)| {
            // Gradients may be absent while the most is kept, and are there in the end.
            held.max(held - late + (least * behind(mesh)).floor() * kept)
        });
        let peak_bytes = bytes.fold(0.0, f64::max);
        Ok(Some(Estimate { step_seconds: self.bound_seconds(candidate), peak_bytes }))
    }

    /// What no order of the stages of `candidate`, which are filled in, is faster than.
    pub(super) fn bound_seconds(&self, candidate: &Candidate) -> f64 {
        let microbatches = f64::from(candidate.microbatches) / self.pipelines.len() as f64;
        let overlapped = candidate.schedule.overlaps();
        let ends = self.ends(candidate);
        pipeline::bound_seconds(&self.pipelines, microbatches.floor(), overlapped, &ends)
    }
}
