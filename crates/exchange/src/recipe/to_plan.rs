//! The plan that a recipe is.

use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, AxisSet, DeviceList, LayoutRule, Mesh, Pipeline, Stage, Sync, Uniform};

use super::Recipe;
use super::usual_groups;
use crate::{ExchangeError, Imported, StagePlace, Transformer};

impl Recipe {
    /// The stages that blocks cut at `cuts` make on this recipe's groups of devices, where its schedule has
    /// them. None if the schedule has none for so many.
    pub(crate) fn stages_at(&self, cuts: &[usize]) -> Option<Vec<StagePlace>> {
        let stages = cuts.len().checked_sub(1)?;
        if self.pp == 0 || stages % self.pp != 0 {
            return None;
        }
        let groups = usual_groups(self.schedule, self.pp, stages / self.pp)?;
        let place =
            |(run, group): (&[usize], usize)| StagePlace { blocks: (run[0], run[1]), group };
        Some(cuts.windows(2).zip(groups).map(place).collect())
    }

    /// The plan, checked, for `spec` on the machines `cluster`, which are `devices`.
    pub(crate) fn plan(
        &self,
        spec: ModelSpec,
        cluster: &str,
        devices: usize,
        place: &str,
        notes: Vec<String>,
    ) -> Result<Imported, ExchangeError> {
        let in_model =
            |source| ExchangeError::Model { place: place.into(), source: Box::new(source) };
        let graph = spec.graph().map_err(in_model)?;
        let [dp, ep, cp, tp] =
            [self.dp / self.ep, self.ep, self.cp, self.tp].map(|width| width as u32);
        let mesh = Mesh::of(dp, cp, tp);
        let sharers = self.second_copy.unwrap_or(self.sharers()) / self.ep;
        let mesh = mesh.sharing_within(sharers as u32).unwrap_or(mesh).with(Axis::EP, ep);
        let numbers = Uniform {
            pp: self.pp,
            mesh,
            sequence_parallel: self.sequence_parallel,
            global_batch: self.global_batch,
            microbatches: self.microbatches,
            schedule: self.schedule,
            recompute: self.recompute,
            sync: Sync {
                zero: self.zero,
                bucket_bytes: self.bucket_bytes,
                second_copy_over: AxisSet::of(&[Axis::DP]).filter(|_| self.second_copy.is_some()),
                ..Sync::default()
            },
            precision: self.precision,
            optimizer: self.optimizer,
            clip_norm: self.clip_norm,
        };
        let stage = |it: &StagePlace| {
            let devices = self.rank_order.devices(it.group, self.pp, mesh);
            Stage::new(it.blocks, mesh, DeviceList(devices))
        };
        let pipeline = Pipeline::of(self.stages.iter().map(stage).collect());
        let mut plan = numbers.plan_of(&graph, &spec.to_string(), cluster, vec![pipeline]);
        if self.ep > 1 {
            let rule = |dim: &str| LayoutRule { dim: dim.into(), axis: Axis::EP };
            let rules = &mut plan.layout.0;
            let batch = rules.iter().rposition(|it| it.dim == "batch");
            rules.insert(batch.map_or(0, |at| at + 1), rule("batch"));
            rules.insert(0, rule("expert"));
        }
        plan.keeps_gathered = self.keeps_gathered;
        plan.attention = self.attention;
        plan.loss_scale = self.loss_scale;
        let in_plan = |source| ExchangeError::Plan { place: place.into(), source };
        plan.validate(&graph, devices).map_err(in_plan)?;
        Ok(Imported { plan, spec, notes })
    }
}

/// The model of a configuration that describes one, or the one that was given, which then must have as many
/// layers, widths and positions.
pub(crate) fn model_of(
    given: Option<&ModelSpec>,
    described: Option<Transformer>,
    place: &str,
) -> Result<(ModelSpec, Transformer), ExchangeError> {
    let text = |message: String| ExchangeError::Text { place: place.into(), message };
    match (given, described) {
        (None, None) => Err(text("says nothing of the model: name it with --model".into())),
        (None, Some(described)) => {
            let in_model =
                |source| ExchangeError::Model { place: place.into(), source: Box::new(source) };
            Ok((described.spec().map_err(in_model)?, described))
        }
        (Some(spec), described) => {
            let Some(model) = Transformer::of(spec) else {
                let message = format!(
                    "trains transformers; {} is no GPT or Llama with its loss in one block with the head, and no network \
                     of examples/models/transformer-with-experts.toml",
                    spec.name()
                );
                return Err(text(message));
            };
            let sizes =
                |it: &Transformer| [it.layers, it.hidden, it.heads, it.kv_heads, it.seq, it.ffn];
            match described {
                Some(other) if sizes(&other) != sizes(&model) => Err(text(format!(
                    "describes another model than --model {}: layers, width, heads, heads of keys and values, positions \
                     and feed-forward width are {:?} there and {:?} here",
                    spec.name(),
                    sizes(&other),
                    sizes(&model)
                ))),
                _ => Ok((spec.clone(), model)),
            }
        }
    }
}
