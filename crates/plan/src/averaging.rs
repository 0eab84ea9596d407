//! Words for replicas that have weights of their own, which are averaged from time to time.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use shardloom_graph::{DimId, Graph};

use crate::{Axis, AxisSet, Optimizer, Plan, PlanError, Stage, Sync};

/// Replicas with weights and optimizer state of their own. Each updates them with the mean gradient of its own
/// samples, and every so many steps its weights become `(1 - rate) x + rate m`, m being the mean over replicas, or
/// the weights of one of them.
///
/// Local SGD (Stich 2019, ICLR, arXiv 1805.09767; McMahan et al. 2017, AISTATS, arXiv 1602.05629) averages after
/// the update of every H-th step with a rate of 1. Synchronous model averaging (Koliousis et al. 2019, VLDB,
/// arXiv 1901.02244; KungFu, Mai et al. 2020, OSDI, `SynchronousAveragingOptimizer`) does it in every step
/// before the update, with gradients at the weights from before, and a rate of 0.1. Pair averaging (KungFu,
/// `PairAveragingOptimizer`, after Lian et al. 2018, ICML, arXiv 1710.06952) does it with the weights of one other
/// replica and a rate of one half, and nobody waits for anybody.
///
/// Averages may end before the run does: adaptive SGD (KungFu, `AdaptiveSGDOptimizer`) is synchronous model
/// averaging up to a step, and from there on data parallelism from the weights of the first replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Averaging {
    /// Steps from one average to the next. The first is in the step with this number, counted from 1.
    #[serde(default = "one_step")]
    pub every: u32,
    /// The share of the mean in the new weights, above 0 and at most 1.
    #[serde(default = "all_of_it")]
    pub rate: f64,
    /// On which side of the step's update.
    #[serde(default)]
    pub when: AveragingTime,
    /// With whom.
    #[serde(default, skip_serializing_if = "Partners::are_all")]
    pub partners: Partners,
    /// The mesh axes along which replicas have weights of their own; along others that split the batch they
    /// are kept equal. All that split nothing but the batch if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<AxisSet>,
    /// The step, counted from 0, from which on there are no averages: it begins with all replicas taking the weights
    /// and the optimizer state of the first, and replicas are kept equal by reduced gradients. Never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u32>,
}

/// On which side of a step's update weights are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AveragingTime {
    /// Before it, though after the step's gradients: those are of the weights before the average.
    BeforeUpdate,
    /// After it.
    #[default]
    AfterUpdate,
}

/// Whose weights a replica takes a share of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partners {
    /// Those of all replicas: their mean. All take part at the same time.
    #[default]
    All,
    /// Those of one other, which is drawn anew for each replica and step. At the begin of each step a replica
    /// publishes its weights and copies what the other has published last, which takes no part in that and may be
    /// in another step: replicas never wait for each other, but for what each publishes at the begin of a row of
    /// steps. Its own weights take the share in that step; those of the other stay what they are.
    One,
}

impl Partners {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Partners::All => "all",
            Partners::One => "one",
        }
    }

    fn are_all(&self) -> bool {
        *self == Partners::All
    }
}

impl AveragingTime {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            AveragingTime::BeforeUpdate => "before-update",
            AveragingTime::AfterUpdate => "after-update",
        }
    }
}

fn one_step() -> u32 {
    1
}

fn all_of_it() -> f64 {
    1.0
}

impl Averaging {
    /// The most steps from one average to the next: as many are simulated.
    pub const MOST_STEPS: u32 = 1000;

    /// Local SGD: the mean after the update of every so-many-th step.
    pub fn local_sgd(every: u32) -> Averaging {
        let (when, partners) = (AveragingTime::AfterUpdate, Partners::All);
        Averaging { every, rate: 1.0, when, partners, over: None, until: None }
    }

    /// Synchronous model averaging: in every step a tenth of the mean, before the update.
    pub const SYNCHRONOUS: Averaging = Averaging {
        every: 1,
        rate: 0.1,
        when: AveragingTime::BeforeUpdate,
        partners: Partners::All,
        over: None,
        until: None,
    };

    /// Pair averaging: in every step half of another replica's weights, before the update.
    pub const PAIRS: Averaging =
        Averaging { rate: 0.5, partners: Partners::One, ..Averaging::SYNCHRONOUS };

    /// Checks that it goes with the rest of `plan`.
    pub(crate) fn validate(self, plan: &Plan, graph: &Graph) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            let rule = format!("with sync.averaging {rule}");
            Err(PlanError::field(key, value, rule))
        };
        if !(1..=Averaging::MOST_STEPS).contains(&self.every) {
            let rule = format!("from 1 to {} steps", Averaging::MOST_STEPS);
            return Err(PlanError::field("sync.averaging.every", self.every, rule));
        }
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            let rule = "a share of the mean is above 0 and at most 1";
            return Err(PlanError::field("sync.averaging.rate", self.rate, rule));
        }
        self.validate_axes(plan, graph)?;
        if self.partners == Partners::One {
            self.validate_pairs(plan, graph)?;
        }
        if plan.sync.has_servers() {
            let held = plan.sync.servers.is_some();
            let key = if held { "sync.servers" } else { "sync.summation" };
            let rule = "there are no servers, as each replica holds its own weights";
            return refuse(key, "set".into(), rule);
        }
        if let Some(zero) = plan.syncs().map(|sync| sync.zero).find(|&zero| zero > 0) {
            let rule =
                "replicas have nothing alike to share, so zero = 0, in groups of parameters too";
            return refuse("sync.zero", zero.to_string(), rule);
        }
        if !plan.flushes() {
            let rule = "a step's passes run with the weights of its begin: a schedule with a flush";
            return refuse("weights.rule", plan.weights.name().into(), rule);
        }
        if let Some(key) = plan.norm_key() {
            let rule = "each replica's gradients have a norm of their own, which its stages do not find: leave \
                        out clip_norm, skip_non_finite and loss_scale";
            return refuse(key, "set".into(), rule);
        }
        if let Optimizer::Sgd { reference_batch: Some(batch), .. } = plan.optimizer {
            let rule = "an update is of a replica's samples, and none for so many";
            return refuse("optimizer.reference_batch", batch.to_string(), rule);
        }
        self.validate_batch(plan, graph)?;
        self.validate_end(plan, graph)
    }

    /// Checks that replicas along its axes have nothing to do with each other in passes.
    fn validate_axes(self, plan: &Plan, graph: &Graph) -> Result<(), PlanError> {
        let independent = plan.independent_axes(graph);
        let names: Vec<&str> = independent.iter().map(Axis::name).collect();
        let names = names.join(", ");
        let key = "sync.averaging.over";
        let has_several = |axis| plan.stages().any(|(_, stage)| stage.mesh.width(axis) > 1);
        match self.over {
            None if independent.is_empty() => {
                let rule = "some mesh axis splits the batch and nothing else, of which the layout has none";
                Err(PlanError::field(key, "absent", rule))
            }
            Some(over) if over.iter().next().is_none() => {
                let rule =
                    format!("at least one of the axes that split nothing but the batch: {names}");
                Err(PlanError::field(key, over, rule))
            }
            Some(over) if over.iter().any(|axis| !independent.contains(&axis)) => {
                let rule =
                    format!("axes that split the batch and nothing else, which are: {names}");
                Err(PlanError::field(key, over, rule))
            }
            Some(over)
                if !over.iter().any(has_several)
                    && independent.iter().any(|&it| has_several(it)) =>
            {
                let rule = "some axis along which there are several replicas";
                Err(PlanError::field(key, over, rule))
            }
            _ => Ok(()),
        }
    }

    /// Checks that there are averages that end.
    fn validate_end(self, plan: &Plan, graph: &Graph) -> Result<(), PlanError> {
        let Some(until) = self.until else { return Ok(()) };
        let key = "sync.averaging.until";
        // The first average is at the end of the step of this number, counted from 1.
        let first = self.every;
        if until < first {
            let rule =
                format!("at least one step averages: {first} or more, or leave sync.averaging out");
            return Err(PlanError::field(key, until, rule));
        }
        let axes = plan.averaged_axes(graph);
        let has_several = |stage: &Stage| axes.iter().any(|&axis| stage.mesh.width(axis) > 1);
        if !plan.stages().any(|(_, stage)| has_several(stage)) {
            let rule =
                "one replica has no averages that could end: a mesh with several, or leave it out";
            return Err(PlanError::field(key, until, rule));
        }
        Ok(())
    }

    /// Checks what pairs need: what a replica publishes is all of its weights at one time, so it is one rank.
    fn validate_pairs(self, plan: &Plan, graph: &Graph) -> Result<(), PlanError> {
        let refuse = |key: &str, value: String, rule: &str| {
            let rule = format!("with sync.averaging.partners = one {rule}");
            Err(PlanError::field(key, value, rule))
        };
        if self.every != 1 {
            let rule = "every step takes in what another replica has published: 1";
            return refuse("sync.averaging.every", self.every.to_string(), rule);
        }
        if self.when != AveragingTime::BeforeUpdate {
            let rule = "weights are averaged before the update: before-update";
            return refuse("sync.averaging.when", self.when.name().into(), rule);
        }
        if self.rate >= 1.0 {
            let rule = "a replica keeps a share of its own weights: below 1, as 0.5";
            return refuse("sync.averaging.rate", self.rate.to_string(), rule);
        }
        let own = plan.averaged_axes(graph);
        let one_rank = "a replica is one rank, which publishes all of its weights at a time";
        let stages = plan.stages().count();
        if stages > 1 {
            return refuse("pipeline", stages.to_string(), &format!("{one_rank}: one stage"));
        }
        for (_, stage) in plan.stages() {
            let shared =
                plan.axes.iter().find(|&axis| stage.mesh.width(*axis) > 1 && !own.contains(axis));
            if let Some(axis) = shared {
                let rule = format!("{one_rank}: {axis} 1, or {axis} in sync.averaging.over");
                return refuse("pipeline[0].stage[0].mesh", stage.mesh.to_string(), &rule);
            }
        }
        Ok(())
    }

    /// Checks that a replica has the same samples in all stages.
    fn validate_batch(self, plan: &Plan, graph: &Graph) -> Result<(), PlanError> {
        let batch = &graph.dim(graph.batch()).name;
        let split = |stage: &Stage| -> Vec<(Axis, usize)> {
            let rules = plan.layout_of(stage).0.iter().filter(|rule| rule.dim == *batch);
            let axes = rules.map(|rule| (rule.axis, stage.mesh.width(rule.axis)));
            axes.filter(|&(_, width)| width > 1).collect()
        };
        let mut stages = plan.stages();
        let Some((_, first)) = stages.next() else { return Ok(()) };
        match stages.find(|(_, stage)| split(stage) != split(first)) {
            None => Ok(()),
            Some(((pipeline, stage), other)) => {
                let key = format!("pipeline[{pipeline}].stage[{stage}].mesh");
                let rule = "with sync.averaging a replica has the same samples in all stages: their meshes \
                            and layouts split the batch alike";
                Err(PlanError::field(key, other.mesh, rule))
            }
        }
    }
}

impl Plan {
    /// The mesh axes that split the batch and nothing else, in any stage: along them ranks compute apart.
    fn independent_axes(&self, graph: &Graph) -> Vec<Axis> {
        let splits = |axis: &Axis| -> Vec<DimId> {
            let rules = self.layouts().flat_map(|layout| &layout.0).filter(|it| it.axis == *axis);
            rules.filter_map(|rule| graph.dim_named(&rule.dim)).collect()
        };
        let is_independent = |axis: &Axis| {
            let dims = splits(axis);
            !dims.is_empty() && dims.iter().all(|&dim| dim == graph.batch())
        };
        self.axes.iter().copied().filter(is_independent).collect()
    }

    /// What it says of a step of a run, by its number from 0: no averages once they have ended.
    pub fn in_step(&self, step: u64) -> Cow<'_, Plan> {
        match self.averaging_ends().is_some_and(|until| step >= until) {
            false => Cow::Borrowed(self),
            true => {
                let sync = Sync { averaging: None, ..self.sync };
                Cow::Owned(Plan { sync, ..self.clone() })
            }
        }
    }

    /// The step in which averages are no more, counted from 0, if they end.
    pub fn averaging_ends(&self) -> Option<u64> {
        Some(self.sync.averaging?.until?.into())
    }

    /// The mesh axes along which replicas have weights of their own.
    pub fn averaged_axes(&self, graph: &Graph) -> Vec<Axis> {
        let Some(averaging) = self.sync.averaging else { return vec![] };
        let is_averaged = |axis: &Axis| averaging.over.is_none_or(|over| over.contains(*axis));
        self.independent_axes(graph).into_iter().filter(is_averaged).collect()
    }
}
