//! What a method is asked, and its answer.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::Graph;
use shardloom_plan::{LossScale, Mesh, PassTimes, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_search::{Baseline, Judgement, Request, judge};
use shardloom_sim::estimate::Candidate;

use crate::configuration::Configuration;
use crate::layer_profile::{LayerProfile, profile};
use crate::selection::Selection;
use crate::{MethodError, pass_times};

/// A method's answer.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// How it was simulated.
    pub judgement: Judgement,
    /// Configurations that the method had to choose from.
    pub space: usize,
    /// Those that turned out to be no plan, such as for a layout that cannot be, before they were simulated.
    pub impossible: usize,
    /// How many were simulated; the others are slower by estimate, or by the method's planner.
    pub simulated: usize,
    /// What a reader of the answer should know.
    pub notes: Vec<String>,
}

impl Choice {
    /// Notes how many of so many devices do nothing, as those that hold the model (`holders`) divide the batch.
    pub(crate) fn noting_idle(mut self, devices: u32, holders: &str) -> Choice {
        let idle = devices - self.plan.device_count() as u32;
        if idle > 0 {
            let note =
                format!("{idle} of {devices} devices do nothing: {holders} divide the batch");
            self.notes.push(note);
        }
        self
    }
}

/// Finds out how long a step of a plan takes, in seconds.
pub type Measure<'a> =
    dyn FnMut(&Plan) -> Result<f64, Box<dyn Error + Send + std::marker::Sync>> + 'a;

/// What a method is asked.
pub(crate) struct Task<'a> {
    /// The method's name.
    pub method: &'static str,
    pub graph: &'a Graph,
    pub cluster: &'a Cluster,
    pub request: &'a Request,
    /// Whether the method takes the request's trials.
    pub takes_trials: bool,
    /// What finds out how long a step of a plan really takes, where trials are not simulated.
    pub measure: Option<RefCell<&'a mut Measure<'a>>>,
    /// Profiles by samples of a micro-batch.
    profiles: BTreeMap<usize, Vec<LayerProfile>>,
}

/// How many configurations are simulated before no more are, if one of them fits.
const MOST_SIMULATED: usize = 24;

/// Micro-batches times blocks of configurations that are simulated before no more are, if one of them fits:
/// what a simulation takes is proportional to them. A configuration counts once, however many policies of
/// recomputation it is tried with.
const EFFORT: usize = 50_000;

impl<'a> Task<'a> {
    pub fn new(
        method: &'static str,
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
    ) -> Task<'a> {
        Task {
            method,
            graph,
            cluster,
            request,
            takes_trials: false,
            measure: None,
            profiles: BTreeMap::new(),
        }
    }

    /// What each block takes on the cluster's first device with a micro-batch of so many samples.
    pub fn layers(&mut self, samples: usize) -> Result<&[LayerProfile], MethodError> {
        if !self.profiles.contains_key(&samples) {
            let Request { precision, frozen, .. } = self.request;
            let formats = (*precision, &frozen[..]);
            let found = profile(self.graph, self.cluster, DeviceId(0), formats, samples)?;
            self.profiles.insert(samples, found);
        }
        Ok(&self.profiles[&samples])
    }

    /// Blocks, devices or samples are such that there is no plan.
    pub fn impossible(
        &self,
        key: &'static str,
        value: impl ToString,
        rule: impl Into<String>,
    ) -> MethodError {
        MethodError::Impossible {
            method: self.method,
            key,
            value: value.to_string(),
            rule: rule.into(),
        }
    }

    /// Errors if parameters are frozen.
    pub fn require_none_frozen(&self) -> Result<(), MethodError> {
        match self.request.frozen.first() {
            None => Ok(()),
            Some(group) => {
                let rule = "it treats each parameter by itself, and does not know frozen ones; take another method";
                Err(self.impossible("frozen", &group.names, rule))
            }
        }
    }

    /// Whether some of `configurations` may not be simulated, so that their order matters.
    pub fn is_too_much(&self, configurations: &[Configuration]) -> bool {
        let efforts = configurations.iter().map(|it| self.effort(it));
        configurations.len() > MOST_SIMULATED || efforts.sum::<usize>() > EFFORT
    }

    fn effort(&self, configuration: &Configuration) -> usize {
        configuration.microbatches * self.graph.blocks().len()
    }

    /// The fastest plan that fits of `configurations`, simulated in their order until
    /// [`MOST_SIMULATED`] or [`EFFORT`] is reached; of later ones the first that fits, if none of those
    /// does. Each is tried with the least recomputation that fits.
    pub fn fastest(&mut self, configurations: &[Configuration]) -> Result<Choice, MethodError> {
        let mut selection = Selection::new(self.request.memory_share);
        let (mut simulated, mut effort) = (0, 0);
        for configuration in configurations {
            if selection.fits() && (simulated >= MOST_SIMULATED || effort >= EFFORT) {
                break;
            }
            simulated += 1;
            effort += self.effort(configuration);
            for &recompute in &configuration.recompute {
                let plan = self.plan(configuration, recompute)?;
                let judgement = judge(self.graph, self.cluster, &plan)?;
                if selection.offer(plan, judgement) {
                    break;
                }
            }
        }
        let nothing = || {
            let rule = "no configuration of this model can be lowered";
            self.impossible("blocks", self.graph.blocks().len(), rule)
        };
        let found = selection.finish(self).map_err(|why| why.unwrap_or_else(nothing))?;
        Ok(found.choice(configurations.len(), simulated))
    }

    /// The fastest that fits of what some rules lead to.
    pub fn by_rules(&self, found: Vec<Baseline>) -> Result<Choice, MethodError> {
        let mut selection = Selection::new(self.request.memory_share);
        let (rules, mut simulated) = (found.len(), 0);
        for each in found {
            if let (Some(plan), Some(judgement)) = (each.plan, each.judgement) {
                simulated += 1;
                selection.offer(plan, judgement);
            }
        }
        let nothing = || {
            let rule = "no width of these rules divides the model and the batch; take a global \
                        batch with more divisors, or another number of devices";
            self.impossible("global_batch", self.request.global_batch, rule)
        };
        let found = selection.finish(self).map_err(|why| why.unwrap_or_else(nothing))?;
        let impossible = rules - simulated;
        Ok(Choice { impossible, ..found.choice(rules, simulated) })
    }

    /// The plan of a configuration.
    pub fn plan(
        &mut self,
        configuration: &Configuration,
        recompute: Recompute,
    ) -> Result<Plan, MethodError> {
        let Configuration { pp, mesh, microbatches, chunks, .. } = *configuration;
        let request = self.request;
        let uniform = Uniform {
            recompute,
            schedule: configuration.schedule,
            sync: self.sync(mesh, configuration.zero),
            clip_norm: request.clip_norm.filter(|_| configuration.schedule.flushes()),
            ..self.uniform(pp, mesh, microbatches)
        };
        let places = uniform.places(chunks)?;
        let samples = request.global_batch / microbatches / mesh.dp() as usize;
        let again = !matches!(recompute, Recompute::None | Recompute::Selective);
        let cuts = configuration.cut.blocks(self.layers(samples.max(1))?, &places, again)?;
        let (graph, pipelines) = (self.graph, uniform.pipelines(&places, &cuts));
        let mut plan = uniform.plan_of(graph, &request.model, &request.cluster, pipelines);
        plan.parameters = request.frozen.clone();
        plan.weights = configuration.weights;
        plan.recompute_last = configuration.recompute_last;
        plan.keeps_gathered = self.request.plan_defaults.keeps_gathered;
        plan.post_validation = configuration.post_validation;
        if mesh.tp() > 1 {
            plan.layout = layout(configuration, graph);
        }
        let mut plan = self.completed(plan);
        if configuration.timed {
            plan.pass_times = PassTimes::default();
            plan.pass_times = pass_times(graph, self.cluster, &plan)?;
        }
        Ok(plan)
    }

    /// `plan` with what follows for all plans of this request: whether updates are validated after they are made,
    /// and the loss scaled as the plan's formats usually want it.
    pub fn completed(&self, plan: Plan) -> Plan {
        let post_validation = plan.post_validation || self.request.post_validation;
        let plan = Plan { post_validation, ..plan };
        Plan { loss_scale: LossScale::usual(&plan), ..plan }
    }

    /// What all plans for this request have in common.
    pub fn uniform(&self, pp: usize, mesh: Mesh, microbatches: usize) -> Uniform {
        Uniform {
            pp,
            mesh,
            global_batch: self.request.global_batch,
            microbatches,
            // One stage alone need not keep what a micro-batch made while others go forward.
            schedule: match pp {
                1 => ScheduleKind::OneForwardOneBackward,
                _ => ScheduleKind::Afab,
            },
            sync: self.sync(mesh, 0),
            precision: self.request.precision,
            optimizer: self.request.optimizer,
            clip_norm: self.request.clip_norm,
            ..Uniform::default()
        }
    }

    fn sync(&self, mesh: Mesh, zero: u8) -> Sync {
        let Request { algorithm, bucket_bytes, plan_defaults, .. } = *self.request;
        Sync { algorithm, ..Sync::usual(plan_defaults, zero, mesh.tp(), bucket_bytes) }
    }

    /// What to say where gradients are not clipped although that was asked for.
    fn unclipped_note(&self) -> Option<String> {
        let norm = self.request.clip_norm?;
        Some(format!(
            "gradients are not clipped to {norm}: their norm is known only when all stages are through \
             with a step, and {} does not wait for that",
            self.method
        ))
    }

    /// What to say where stages that should not wait for each other do, as the loss is scaled.
    fn scaled_note(&self) -> String {
        format!(
            "stages wait for each other at the end of every step, which is not {}'s: the loss is scaled in fp16, and \
             that gradients overflow is seen by the norm of all; in fp32 or bf16 they do not wait. Gradients are not \
             clipped",
            self.method
        )
    }

    /// What to say where stages that should not wait for each other share a parameter.
    fn shared_note(&self, plan: &Plan) -> Option<String> {
        let pipeline = plan.pipeline.first()?;
        let stage_of = |op| {
            let block = self.graph.op(op).block.index();
            pipeline
                .stage
                .iter()
                .position(|stage| (stage.blocks.0..stage.blocks.1).contains(&block))
        };
        self.graph.parameters().find_map(|(_, value)| {
            let stages: BTreeSet<usize> =
                value.consumers.iter().filter_map(|&op| stage_of(op)).collect();
            let devices: BTreeSet<&[u32]> =
                stages.iter().map(|&stage| &pipeline.stage[stage].devices.0[..]).collect();
            (devices.len() > 1).then(|| {
                let stages: Vec<String> = stages.iter().map(usize::to_string).collect();
                format!(
                    "stages {} share {} and add up its gradients before every update, so they wait for \
                     each other as after a flush; a model without shared parameters does not",
                    stages.join(" and "),
                    value.name
                )
            })
        })
    }
}

impl Choice {
    /// With what is to be said of a plan without flush: that gradients are not clipped, where that was
    /// asked for, and that stages wait for each other because of what they share, or to see overflows of fp16.
    pub(crate) fn without_flush(mut self, task: &Task<'_>) -> Choice {
        let waits = self.plan.loss_scale.is_some() && self.plan.stages().count() > 1;
        match self.plan.clip_norm {
            _ if waits => self.notes.push(task.scaled_note()),
            None => self.notes.extend(task.unclipped_note()),
            Some(_) => {}
        }
        self.notes.extend(task.shared_note(&self.plan));
        self
    }
}

/// Which dimensions are split: as plans of the search do it, so that a vocabulary that tensor parallelism
/// does not divide stays whole.
fn layout(configuration: &Configuration, graph: &Graph) -> shardloom_plan::LayoutRules {
    let candidate: Candidate = configuration.candidate(Recompute::None);
    candidate.layout(graph)
}
