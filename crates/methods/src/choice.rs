//! What a method is asked, and its answer.

use std::collections::BTreeMap;

use shardloom_cluster::{Cluster, DeviceId};
use shardloom_graph::Graph;
use shardloom_plan::{Mesh, PassTimes, Plan, Recompute, ScheduleKind, Sync, Uniform};
use shardloom_search::partition::{LayerProfile, profile};
use shardloom_search::{Baseline, Judgement, Request, Rule, SearchError, judge};
use shardloom_sim::estimate::Candidate;

use crate::configuration::Configuration;
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
    /// How many of them were simulated.
    pub simulated: usize,
    /// What a reader of the answer should know.
    pub notes: Vec<String>,
}

/// What a method is asked.
pub(crate) struct Task<'a> {
    /// The method's name.
    pub method: &'static str,
    pub graph: &'a Graph,
    pub cluster: &'a Cluster,
    pub request: &'a Request,
    /// Profiles by samples of a micro-batch.
    profiles: BTreeMap<usize, Vec<LayerProfile>>,
}

/// The fastest plan so far.
pub(crate) struct Best {
    pub plan: Plan,
    pub judgement: Judgement,
}

/// The most configurations that are simulated, as long as one of them fits.
const MOST_SIMULATED: usize = 24;

/// Micro-batches times blocks that are simulated at most, as long as something fits: what a simulation
/// takes is proportional to them.
const EFFORT: usize = 50_000;

impl<'a> Task<'a> {
    pub fn new(
        method: &'static str,
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
    ) -> Task<'a> {
        Task { method, graph, cluster, request, profiles: BTreeMap::new() }
    }

    /// What each block takes on the cluster's first device with a micro-batch of so many samples.
    pub fn layers(&mut self, samples: usize) -> Result<&[LayerProfile], SearchError> {
        if !self.profiles.contains_key(&samples) {
            let precision = self.request.precision;
            let found = profile(self.graph, self.cluster, DeviceId(0), precision, samples)?;
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

    /// Whether some of `configurations` may not be simulated, so that their order matters.
    pub fn is_too_much(&self, configurations: &[Configuration]) -> bool {
        let efforts = configurations.iter().map(|it| self.effort(it));
        configurations.len() > MOST_SIMULATED || efforts.sum::<usize>() > EFFORT
    }

    fn effort(&self, configuration: &Configuration) -> usize {
        configuration.microbatches * self.graph.blocks().len()
    }

    /// The fastest plan that fits, of the first [`MOST_SIMULATED`] configurations or as many as
    /// [`EFFORT`] allows; of later ones the first that fits, if none of those does. Each is tried with the least recomputation that fits.
    pub fn fastest(&mut self, configurations: &[Configuration]) -> Result<Choice, MethodError> {
        let mut best: Option<Best> = None;
        let mut closest: Option<Best> = None;
        let (mut simulated, mut effort) = (0, 0);
        for configuration in configurations {
            if best.is_some() && (simulated >= MOST_SIMULATED || effort >= EFFORT) {
                break;
            }
            simulated += 1;
            for &recompute in &configuration.recompute {
                effort += self.effort(configuration);
                let plan = self.plan(configuration, recompute)?;
                let judgement = judge(self.graph, self.cluster, &plan)?;
                let found = Best { plan, judgement };
                if !found.judgement.fits(self.request.memory_share) {
                    if closest.as_ref().is_none_or(|it| share(&found) < share(it)) {
                        closest = Some(found);
                    }
                    continue;
                }
                let seconds = found.judgement.step_seconds;
                if best.as_ref().is_none_or(|it| seconds < it.judgement.step_seconds) {
                    best = Some(found);
                }
                break;
            }
        }
        match (best, closest) {
            (Some(Best { plan, judgement }), _) => {
                let space = configurations.len();
                Ok(Choice { plan, judgement, space, simulated, notes: vec![] })
            }
            (None, Some(closest)) => Err(self.nothing_fits(&closest, simulated)),
            (None, None) => {
                let rule = "no configuration of this model can be lowered";
                Err(self.impossible("blocks", self.graph.blocks().len(), rule))
            }
        }
    }

    /// The fastest of the plans of some rules that fit.
    pub fn by_rules(&self, rules: &[Rule]) -> Result<Choice, MethodError> {
        let (mut best, mut closest): (Option<Best>, Option<Best>) = (None, None);
        for rule in rules {
            let found = rule.baseline(self.graph, self.cluster, self.request)?;
            let Baseline { plan: Some(plan), judgement: Some(judgement), fits, .. } = found else {
                continue;
            };
            let found = Best { plan, judgement };
            let seconds = found.judgement.step_seconds;
            match fits {
                true if best.as_ref().is_none_or(|it| seconds < it.judgement.step_seconds) => {
                    best = Some(found);
                }
                false if closest.as_ref().is_none_or(|it| share(&found) < share(it)) => {
                    closest = Some(found);
                }
                _ => {}
            }
        }
        let space = rules.len();
        match (best, closest) {
            (Some(Best { plan, judgement }), _) => {
                Ok(Choice { plan, judgement, space, simulated: space, notes: vec![] })
            }
            (None, Some(closest)) => Err(self.nothing_fits(&closest, space)),
            (None, None) => {
                let rule = "no width of these rules divides the model and the batch; take a global \
                            batch with more divisors, or another number of devices";
                Err(self.impossible("global_batch", self.request.global_batch, rule))
            }
        }
    }

    pub fn nothing_fits(&self, closest: &Best, simulated: usize) -> MethodError {
        let fullest = closest.judgement.fullest();
        let gigabytes = |bytes: Option<u64>| bytes.unwrap_or(0) as f64 / 1e9;
        let available = gigabytes(fullest.map(|it| it.memory_bytes)) * self.request.memory_share;
        MethodError::NothingFits {
            method: self.method,
            model: self.graph.name().to_owned(),
            cluster: self.request.cluster.clone(),
            simulated,
            closest: in_words(&closest.plan),
            needed_gigabytes: gigabytes(fullest.map(|it| it.peak_bytes)),
            available_gigabytes: available,
        }
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
            sync: Sync { zero: configuration.zero, ..self.unsharded() },
            clip_norm: request.clip_norm.filter(|_| configuration.schedule.flushes()),
            ..self.uniform(pp, mesh, microbatches)
        };
        let (graph, model) = (self.graph, &request.model);
        let mut plan = uniform.plan_in_chunks(graph, model, &request.cluster, chunks)?;
        plan.weights = configuration.weights;
        plan.recompute_last = configuration.recompute_last || recompute == Recompute::None;
        plan.post_validation = configuration.post_validation || request.post_validation;
        if mesh.tp > 1 {
            plan.layout = layout(configuration, graph);
        }
        let samples = request.global_batch / microbatches / mesh.dp as usize;
        let again = matches!(recompute, Recompute::Full | Recompute::Stage);
        let layers = self.layers(samples.max(1))?;
        let cuts = configuration.cut.blocks(layers, &plan.pipeline, again)?;
        for pipeline in &mut plan.pipeline {
            for (stage, run) in pipeline.stage.iter_mut().zip(cuts.windows(2)) {
                stage.blocks = (run[0], run[1]);
            }
        }
        if configuration.timed {
            plan.pass_times = PassTimes::default();
            plan.pass_times = pass_times(graph, self.cluster, &plan)?;
        }
        Ok(plan)
    }

    /// What all plans for this request have in common.
    pub fn uniform(&self, pp: usize, mesh: Mesh, microbatches: usize) -> Uniform {
        Uniform {
            pp,
            mesh,
            sequence_parallel: false,
            global_batch: self.request.global_batch,
            microbatches,
            schedule: ScheduleKind::Afab,
            recompute: Recompute::None,
            sync: self.unsharded(),
            precision: self.request.precision,
            optimizer: self.request.optimizer,
            clip_norm: self.request.clip_norm,
        }
    }

    fn unsharded(&self) -> Sync {
        let Request { algorithm, bucket_bytes, .. } = *self.request;
        Sync { algorithm, zero: 0, bucket_bytes }
    }

    /// What to say where gradients are not clipped although that was asked for.
    pub fn unclipped_note(&self) -> Option<String> {
        let norm = self.request.clip_norm?;
        Some(format!(
            "gradients are not clipped to {norm}: their norm is known only when all stages are through \
             with a step, and {} does not wait for that",
            self.method
        ))
    }
}

impl Choice {
    /// With the note that gradients are not clipped, where that was asked for.
    pub(crate) fn unclipped(mut self, task: &Task<'_>) -> Choice {
        self.notes.extend(task.unclipped_note());
        self
    }
}

/// How full the fullest device is.
fn share(found: &Best) -> f64 {
    let fullest = found.judgement.fullest();
    fullest.map_or(0.0, |it| it.peak_bytes as f64 / it.memory_bytes as f64)
}

/// Which dimensions are split: as plans of the search do it, so that a vocabulary that tensor parallelism
/// does not divide stays whole.
fn layout(configuration: &Configuration, graph: &Graph) -> shardloom_plan::LayoutRules {
    let candidate: Candidate = configuration.candidate(Recompute::None);
    candidate.layout(graph)
}

fn in_words(plan: &Plan) -> String {
    let mesh = plan.stages().next().map_or(Mesh::SINGLE, |(_, stage)| stage.mesh);
    format!(
        "{} stages of {mesh} with {} micro-batches and recomputation {}",
        plan.stages().count(),
        plan.microbatches,
        plan.recompute.name()
    )
}
