//! What a plan of usual numbers is, before there is a plan.

use shardloom_graph::ModelSpec;
use shardloom_plan::{AttentionKind, Axis, LossScale, Number, Uniform, even_cuts};

use super::of_plan::several_pipelines;
use super::{RankOrder, Recipe, StagePlace, transformer_of};
use crate::{ExchangeError, Project, export};

impl Recipe {
    /// A plan for `spec` with `chunks` stages on each group of devices, cut evenly, or as the project cuts it if it
    /// does that itself.
    ///
    /// # Errors
    /// If the model is none of those that are written, or stages cannot be where the schedule has them.
    pub(crate) fn of_numbers(
        project: Project,
        spec: &ModelSpec,
        numbers: &Uniform,
        chunks: usize,
    ) -> Result<Recipe, ExchangeError> {
        let model = transformer_of(project, spec)?;
        let pp = numbers.pp;
        let cuts = match export::cuts_itself(project) {
            true => export::own_cut(project, &model, pp),
            false => Some(even_cuts(model.blocks(), pp * chunks)),
        };
        let Some(cuts) = cuts else {
            let reason = "a stage would have no block as stages are cut there";
            return Err(ExchangeError::refused(project, "pipeline.stage", pp, reason));
        };
        let mesh = numbers.mesh;
        let [cp, tp] = [Axis::CP, Axis::TP].map(|axis| mesh.width(axis));
        let sharing_ranks = mesh.width(Axis::DP) * cp;
        let mut recipe = Recipe {
            pp,
            dp: mesh.dp() as usize,
            groups: match numbers.sync.second_copy_over {
                None if numbers.sync.zero > 0 && sharing_ranks > 1 => mesh.width(Axis::REPLICA),
                _ => 1,
            },
            second_copy: numbers.sync.second_copy_over.map(|_| mesh.width(Axis::DP)),
            cp,
            tp,
            sequence_parallel: numbers.sequence_parallel && tp > 1,
            keeps_gathered: false,
            stages: vec![],
            rank_order: RankOrder::PipelineSlowest,
            global_batch: numbers.global_batch,
            microbatches: numbers.microbatches,
            schedule: numbers.schedule,
            recompute: numbers.recompute,
            attention: AttentionKind::Fused,
            zero: if sharing_ranks > 1 { numbers.sync.zero } else { 0 },
            bucket_bytes: numbers.sync.bucket_bytes,
            precision: numbers.precision,
            optimizer: numbers.optimizer,
            clip_norm: numbers.clip_norm,
            loss_scale: (numbers.precision.compute == Number::Fp16).then(LossScale::dynamic),
            ..Recipe::in_one_stage(model)
        };
        let places = numbers.places(chunks).unwrap_or_default();
        let [groups] = &places[..] else { return Err(several_pipelines(project, places.len())) };
        let place =
            |(run, &group): (&[usize], &usize)| StagePlace { blocks: (run[0], run[1]), group };
        recipe.stages = cuts.windows(2).zip(groups).map(place).collect();
        Ok(recipe)
    }
}
