//! What a plan is wanted for.

use std::borrow::Cow;
use std::sync::Arc;

use shardloom_cluster::{Cluster, PlanDefaults, Precision as Format};
use shardloom_collectives::{Algorithm, Kind};
use shardloom_graph::{AttentionKind, Graph};
use shardloom_plan::{
    LossScale, Number, Optimizer, ParameterGroup, PassTimes, Plan, Precision, Recompute,
    ScheduleKind, Sync, Uniform, usual_attention, with_attention,
};
use shardloom_sim::estimate::{Candidate, Estimator, Settings};

use crate::{Only, Runner, SearchError, Trials};

/// What all plans of a search have in common, and how far it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The model, as plans write it.
    pub model: String,
    /// The cluster, as plans write it.
    pub cluster: String,
    /// Samples of one step.
    pub global_batch: usize,
    /// Number formats.
    pub precision: Precision,
    /// Whether plans for some of the machines are in [the format usual there](usual_precision) and not in
    /// `precision`: nobody asked for that.
    pub formats_by_machines: bool,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Parameters that are frozen: groups that say no more.
    pub frozen: Vec<ParameterGroup>,
    /// Global norm to which gradients are clipped.
    pub clip_norm: Option<f64>,
    /// Whether updates do not wait for the norm of all gradients, and are validated afterwards.
    pub post_validation: bool,
    /// The collectives' algorithm.
    pub algorithm: Algorithm,
    /// Whether the plan that is found then gets [the algorithm with which it is
    /// fastest](crate::with_fastest_algorithms), as nobody asked for `algorithm`.
    pub fastest_algorithm: bool,
    /// Whether the plan that is found then gets the size of buckets with which it is fastest, as nobody asked for
    /// `bucket_bytes`: where gradients are reduced in buckets of that size.
    pub fastest_bucket_size: bool,
    /// Bytes of gradient up to which consecutive blocks share a collective, where the software has no habit of
    /// its own.
    pub bucket_bytes: usize,
    /// What plans for the cluster's software usually have.
    pub plan_defaults: PlanDefaults,
    /// How attention is computed; none for what is [usual](usual_attention) for the cluster and its software.
    pub attention: Option<AttentionKind>,
    /// Whether attention is within documents.
    pub mask_documents: bool,
    /// Schedules to choose from.
    pub schedules: Vec<ScheduleKind>,
    /// What plans must have.
    pub only: Only,
    /// Who is to run the plan, where that is not this program, which runs all.
    pub runner: Option<Arc<dyn Runner>>,
    /// The most candidates that are lowered and simulated.
    pub finalists: usize,
    /// How a method that tries strategies one after another does so.
    pub trials: Trials,
    /// Share of a device's memory that a plan may fill; the rest is left for fragmentation and what the
    /// count does not know of.
    pub memory_share: f64,
}

/// The 16-bit format that all devices of `cluster` compute in, bf16 before fp16, beside 32 bits for gradients and
/// the optimizer; else 32 bits for all, and so on processors, which train exactly where nobody says otherwise.
pub fn usual_precision(cluster: &Cluster) -> Precision {
    let all = |format: Format| {
        // What computes and communicates on the same cores is a processor.
        cluster.groups().iter().all(|group| {
            let device = &group.profile.device;
            device.lanes_overlap && device.peak_flops(format).is_ok()
        })
    };
    match (all(Format::Bf16), all(Format::Fp16)) {
        (true, _) => Precision::MIXED,
        (false, true) => Precision::usual(Number::Fp16),
        (false, false) => Precision::FP32,
    }
}

/// The most samples of a step that is searched for. Nobody trains with more, and simulating as many
/// micro-batches as they make would take hours.
const MOST_SAMPLES: usize = 1 << 24;

impl Request {
    /// What a step of `global_batch` samples of `model` on `cluster` is usually wanted with: mixed
    /// precision, AdamW, clipping at 1, rings, any schedule that can be estimated.
    pub fn new(model: &str, cluster: &str, global_batch: usize) -> Request {
        let Sync { algorithm, bucket_bytes, .. } = Sync::default();
        Request {
            model: model.into(),
            cluster: cluster.into(),
            global_batch,
            precision: Precision::MIXED,
            formats_by_machines: false,
            optimizer: Optimizer::default(),
            frozen: vec![],
            clip_norm: Some(1.0),
            post_validation: false,
            algorithm,
            fastest_algorithm: false,
            fastest_bucket_size: false,
            bucket_bytes,
            attention: None,
            mask_documents: false,
            schedules: ScheduleKind::SEARCHED.to_vec(),
            only: Only::default(),
            runner: None,
            plan_defaults: PlanDefaults::default(),
            finalists: 16,
            trials: Trials::default(),
            memory_share: 0.95,
        }
    }

    /// What `plan` was made for.
    pub fn like(plan: &Plan) -> Request {
        Request {
            precision: plan.precision,
            optimizer: plan.optimizer,
            frozen: plan.parameters.iter().filter(|it| it.frozen).cloned().collect(),
            clip_norm: plan.clip_norm,
            post_validation: plan.post_validation,
            algorithm: plan.sync.algorithm,
            bucket_bytes: plan.sync.bucket_bytes,
            attention: Some(plan.attention),
            mask_documents: plan.mask_documents,
            plan_defaults: PlanDefaults {
                keeps_gathered: plan.keeps_gathered,
                all_reduces_shards: plan.sync.all_reduces,
                splits_blocks: plan.sync.splits_blocks,
                ..PlanDefaults::default()
            },
            ..Request::new(&plan.model, &plan.cluster, plan.global_batch)
        }
    }

    /// The graph that plans are made for, of a model as it is described: with attention as they compute it.
    ///
    /// # Errors
    /// If documents are to be masked that cannot be in this model.
    pub fn graph_of<'g>(
        &self,
        model: &'g Graph,
        cluster: &Cluster,
    ) -> Result<Cow<'g, Graph>, SearchError> {
        let usual = || usual_attention(model, cluster.fuses_attention());
        let graph =
            with_attention(model, self.attention.unwrap_or_else(usual), self.mask_documents);
        match self.mask_documents && !graph.masks_documents() {
            true => Err(SearchError::Request {
                key: "mask_documents",
                value: "true".into(),
                rule: Graph::DOCUMENT_MASK_RULE.into(),
            }),
            false => Ok(graph),
        }
    }

    /// The same for `machines`, which are some of those that it is for.
    pub(crate) fn on(&self, machines: &Cluster) -> Request {
        let precision = match self.formats_by_machines {
            true => usual_precision(machines),
            false => self.precision,
        };
        Request { precision, ..self.clone() }
    }

    /// Checks that it can be.
    ///
    /// # Errors
    /// The first field that cannot, and what could.
    pub fn validate(&self) -> Result<(), SearchError> {
        let wrong = |key, value: String, rule: &str| {
            Err(SearchError::Request { key, value, rule: rule.into() })
        };
        if !(1..=MOST_SAMPLES).contains(&self.global_batch) {
            let value = self.global_batch.to_string();
            return wrong("global_batch", value, "a step has 1 to 16777216 samples");
        }
        if self.schedules.is_empty() {
            return wrong("schedules", "[]".into(), "at least one to choose from");
        }
        if let Some(recompute @ Recompute::Stage) = self.only.recompute {
            let rule = "recomputation by stage has no estimate; take a method that has it by name";
            return wrong("recompute", recompute.name().into(), rule);
        }
        if let Some(zero @ 4..) = self.only.zero {
            return wrong("zero", zero.to_string(), "0 to 3");
        }
        if self.finalists == 0 {
            return wrong("finalists", "0".into(), "at least one plan must be simulated");
        }
        if !(self.memory_share > 0.0 && self.memory_share <= 1.0) {
            let value = self.memory_share.to_string();
            return wrong("memory_share", value, "above 0, and at most 1 for all memory");
        }
        Ok(())
    }

    /// Whether a plan made without its constraints may be the answer.
    pub(crate) fn takes_baselines(&self) -> bool {
        self.only.is_free() && self.schedules == ScheduleKind::SEARCHED
    }

    /// Whether whoever is to run it runs a plan on devices of `cluster`.
    pub(crate) fn runs(&self, cluster: &Cluster, plan: &Plan) -> bool {
        self.runner.as_ref().is_none_or(|it| it.runs(cluster, plan))
    }

    /// Whether updates may be validated afterwards, where they depend on the norm of all gradients at all. A scale of
    /// the loss that may change has every step wait for the norm of the one before, and of others it is not known that
    /// they validate updates.
    pub(crate) fn may_validate_afterwards(&self) -> bool {
        let waits = self.precision.compute == Number::Fp16 || self.runner.is_some();
        self.clip_norm.is_some() && !waits
    }

    /// The same without anything that plans must have.
    pub(crate) fn free(&self) -> Request {
        let schedules = ScheduleKind::SEARCHED.to_vec();
        Request { schedules, only: Only::default(), runner: None, ..self.clone() }
    }

    /// Whether shards can be scattered and gathered.
    pub fn shards(&self) -> bool {
        [Kind::ReduceScatter, Kind::AllGather].iter().all(|kind| kind.has(self.algorithm))
    }

    /// What estimates of its candidates need to know.
    pub fn settings(&self) -> Settings {
        Settings {
            precision: self.precision,
            optimizer: self.optimizer,
            norm: self.clip_norm.is_some() || self.precision.compute == Number::Fp16,
            algorithm: self.algorithm,
            bucket_bytes: self.bucket_bytes,
            plan_defaults: self.plan_defaults,
            frozen: self.frozen.clone(),
            own_cuts: self
                .runner
                .as_ref()
                .and_then(|it| it.own_cuts())
                .cloned()
                .unwrap_or_default(),
        }
    }

    /// The plan of `candidate`, cut and ordered as `estimator` has it; none if its layout is impossible.
    ///
    /// # Errors
    /// As [`Estimator::estimate`](shardloom_sim::estimate::Estimator::estimate).
    pub fn planned(
        &self,
        graph: &Graph,
        estimator: &mut Estimator<'_>,
        candidate: &Candidate,
    ) -> Result<Option<Plan>, SearchError> {
        let Some(cuts) = estimator.cuts(candidate)? else { return Ok(None) };
        let times = estimator.pass_times(candidate)?;
        Ok(times.map(|times| self.plan(graph, candidate, &cuts, times)))
    }

    /// The plan of `candidate` with stages cut at `cuts`, the first block of each stage and then the number
    /// of blocks (as [`Estimator::cuts`](shardloom_sim::estimate::Estimator::cuts) gives them), and with
    /// orders made for passes of these times
    /// ([`Estimator::pass_times`](shardloom_sim::estimate::Estimator::pass_times)).
    ///
    /// # Panics
    /// If there is no place for the candidate's stages; a candidate with an estimate has one.
    pub fn plan(
        &self,
        graph: &Graph,
        candidate: &Candidate,
        cuts: &[usize],
        times: PassTimes,
    ) -> Plan {
        let uniform = self.numbers(candidate);
        let places = uniform.places(candidate.chunks as usize);
        let places = places.expect("a candidate has places for its stages");
        let pipelines = uniform.pipelines(&places, cuts);
        let mut plan = uniform.plan_of(graph, &self.model, &self.cluster, pipelines);
        plan.layout = candidate.layout(graph);
        plan.parameters = self.frozen.clone();
        plan.pass_times = times;
        plan.post_validation = self.post_validation;
        plan.keeps_gathered = self.plan_defaults.keeps_gathered;
        plan.loss_scale = LossScale::usual(&plan);
        plan
    }

    /// The numbers of `candidate`.
    pub(crate) fn numbers(&self, candidate: &Candidate) -> Uniform {
        let Candidate { zero, tp, .. } = *candidate;
        let usual = Sync::usual(self.plan_defaults, zero, tp, self.bucket_bytes);
        Uniform {
            pp: candidate.pp as usize,
            mesh: candidate.mesh(),
            sequence_parallel: candidate.sequence_parallel,
            global_batch: self.global_batch,
            microbatches: candidate.microbatches as usize,
            schedule: candidate.schedule,
            recompute: candidate.recompute,
            sync: Sync { algorithm: self.algorithm, ..usual },
            precision: self.precision,
            optimizer: self.optimizer,
            clip_norm: self.clip_norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;
    use shardloom_sim::estimate::Cut;

    use super::*;

    #[test]
    fn a_plan_is_made_for_what_its_request_asked() {
        let graph = ModelSpec::parse("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16");
        let graph = graph.and_then(|spec| spec.graph()).expect("a model").with_fused_attention();
        let asked = Request {
            precision: Precision::FP32,
            optimizer: Optimizer::sgd(0.9),
            frozen: vec![ParameterGroup { frozen: true, ..ParameterGroup::named("*.norm*") }],
            clip_norm: None,
            post_validation: true,
            algorithm: Algorithm::Direct,
            bucket_bytes: 1234,
            attention: Some(AttentionKind::Fused),
            ..Request::new("model", "cluster", 6)
        };
        let candidate = Candidate {
            cut: Cut::Even,
            microbatch: 3,
            pp: 1,
            dp: 1,
            cp: 1,
            tp: 1,
            sequence_parallel: false,
            microbatches: 2,
            schedule: ScheduleKind::OneForwardOneBackward,
            chunks: 1,
            zero: 0,
            sharing: 1,
            recompute: Recompute::None,
        };
        let plan = asked.plan(&graph, &candidate, &[0, graph.blocks().len()], PassTimes::default());
        let found = Request::like(&plan);
        assert_eq!(found, asked);
    }

    #[test]
    fn numbers_of_a_request_are_taken_up_to_their_limits() {
        let request = || Request::new("model", "cluster", 6);
        let with_zero =
            |zero| Request { only: Only { zero: Some(zero), ..Only::default() }, ..request() };
        let with_recompute = |recompute| {
            let only = Only { recompute: Some(recompute), ..Only::default() };
            Request { only, ..request() }
        };
        for taken in [
            Request { global_batch: 1, ..request() },
            Request { global_batch: 1 << 24, ..request() },
            Request { finalists: 1, ..request() },
            Request { memory_share: 1.0, ..request() },
            Request { memory_share: 1e-9, ..request() },
            with_zero(0),
            with_zero(3),
            with_recompute(Recompute::None),
            with_recompute(Recompute::Block),
            with_recompute(Recompute::Full),
            Request { schedules: vec![ScheduleKind::Afab], ..request() },
        ] {
            assert_eq!(taken.validate().map_err(|error| error.to_string()), Ok(()));
        }
        for (refused, key) in [
            (Request { global_batch: 0, ..request() }, "global_batch = 0"),
            (Request { global_batch: (1 << 24) + 1, ..request() }, "global_batch = 16777217"),
            (Request { finalists: 0, ..request() }, "finalists = 0"),
            (Request { memory_share: 0.0, ..request() }, "memory_share = 0"),
            (Request { memory_share: -0.5, ..request() }, "memory_share = -0.5"),
            (Request { memory_share: 1.0001, ..request() }, "memory_share = 1.0001"),
            (Request { memory_share: f64::NAN, ..request() }, "memory_share = NaN"),
            (with_zero(4), "zero = 4"),
            (with_zero(u8::MAX), "zero = 255"),
            (with_recompute(Recompute::Stage), "recompute = "),
            (Request { schedules: vec![], ..request() }, "schedules = []"),
        ] {
            let message = refused.validate().expect_err(key).to_string();
            assert!(message.starts_with(key), "{message}");
        }
    }

    #[test]
    fn a_baseline_may_be_the_answer_where_nothing_was_asked_for() {
        let request = || Request::new("model", "cluster", 6);
        assert!(request().takes_baselines());
        let some = Request { schedules: vec![ScheduleKind::Afab], ..request() };
        let only = Request { only: Only { tp: Some(1), ..Only::default() }, ..request() };
        assert!(!some.takes_baselines() && !only.takes_baselines());
        // Without what is asked for all else is as it was.
        assert_eq!(only.free(), request());
        assert_eq!(some.free(), request());
    }
}
