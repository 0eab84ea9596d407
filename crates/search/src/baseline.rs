//! Plans that people use without a search.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::{Plan, Recompute, ScheduleKind};
use shardloom_sim::estimate::{Candidate, Cut, Estimator};

use crate::space::{Space, divisors};
use crate::{Judgement, Request, SearchError, judge};

/// How people choose a plan without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Replicas on as many devices as the batch can be dealt to, with the largest micro-batches that fit.
    DataParallel,
    /// Likewise with ZeRO-1 (Rajbhandari et al. 2020, arXiv 1910.02054), and with the least recomputation
    /// that fits.
    Zero1,
    /// Likewise with ZeRO-2.
    Zero2,
    /// Likewise with ZeRO-3.
    Zero3,
    /// Narayanan et al. 2021, section 3, with sequence parallelism, selective recomputation (Korthikanti
    /// et al. 2022) and a sharded optimizer: tensor parallelism within a node up to what is needed to
    /// fit, then pipeline stages, data parallelism outermost, at least four micro-batches a stage where
    /// the batch has them, then the largest micro-batch.
    Megatron,
}

/// A plan that people use without a search, and how it does.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// What it is called.
    pub name: &'static str,
    /// Whether it can be and fits in memory.
    pub fits: bool,
    /// The plan; none where nothing divides.
    pub plan: Option<Plan>,
    /// How it was simulated; none without a plan.
    pub judgement: Option<Judgement>,
}

impl Baseline {
    /// Its simulated step; none without a plan.
    pub fn step_seconds(&self) -> Option<f64> {
        self.judgement.as_ref().map(|it| it.step_seconds)
    }

    /// The plan and how it was simulated, if it fits.
    pub(crate) fn rival(&self, memory_share: f64) -> Option<(&Plan, &Judgement)> {
        let (plan, judgement) = (self.plan.as_ref()?, self.judgement.as_ref()?);
        judgement.fits(memory_share).then_some((plan, judgement))
    }
}

/// Plain data parallelism, ZeRO-3 where the request's algorithm scatters, and the rules of Megatron-LM, each
/// simulated.
///
/// # Errors
/// If the request asks for what cannot be.
pub fn baselines(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Vec<Baseline>, SearchError> {
    request.validate()?;
    all(graph, cluster, request, &mut Estimator::new(graph, cluster, request.settings())?)
}

/// [`baselines`] with an estimator at hand.
pub(crate) fn all(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    estimator: &mut Estimator<'_>,
) -> Result<Vec<Baseline>, SearchError> {
    let mut rules = vec![Rule::DataParallel];
    if request.shards() {
        rules.push(Rule::Zero3);
    }
    rules.push(Rule::Megatron);
    rules.into_iter().map(|rule| by(rule, graph, cluster, request, estimator)).collect()
}

impl Rule {
    /// The plan that it leads to, simulated.
    ///
    /// # Errors
    /// If the request asks for what cannot be.
    pub fn baseline(
        self,
        graph: &Graph,
        cluster: &Cluster,
        request: &Request,
    ) -> Result<Baseline, SearchError> {
        request.validate()?;
        let mut estimator = Estimator::new(graph, cluster, request.settings())?;
        by(self, graph, cluster, request, &mut estimator)
    }

    fn name(self) -> &'static str {
        match self {
            Rule::DataParallel => "data parallel",
            Rule::Zero1 => "zero-1",
            Rule::Zero2 => "zero-2",
            Rule::Zero3 => "zero-3",
            Rule::Megatron => "megatron rules",
        }
    }
}

/// The first plan of a rule's that fits by estimate, simulated; else the one that asks for the least.
fn by(
    rule: Rule,
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
    estimator: &mut Estimator<'_>,
) -> Result<Baseline, SearchError> {
    let limit_bytes = request.memory_share * estimator.memory_bytes() as f64;
    let sharded = |stage| replicated(cluster, request, stage, &Recompute::BY_BLOCK);
    let candidates = match rule {
        Rule::DataParallel => replicated(cluster, request, 0, &[Recompute::None]),
        Rule::Zero1 => sharded(1),
        Rule::Zero2 => sharded(2),
        Rule::Zero3 => sharded(3),
        Rule::Megatron => megatron(graph, cluster, request)?,
    };
    let mut chosen = None;
    for candidate in candidates {
        let Some(estimate) = estimator.estimate(&candidate)? else { continue };
        let fits = estimate.peak_bytes <= limit_bytes;
        // Of those that do not fit, what comes last asks for the least.
        chosen = Some(candidate);
        if fits {
            break;
        }
    }
    let plan = match chosen {
        Some(candidate) => {
            estimator.cuts(&candidate)?.map(|cuts| request.plan(graph, &candidate, &cuts))
        }
        None => None,
    };
    let judgement = match &plan {
        Some(plan) => Some(judge(graph, cluster, plan)?),
        None => None,
    };
    let fits = judgement.as_ref().is_some_and(|it| it.fits(request.memory_share));
    Ok(Baseline { name: rule.name(), fits, plan, judgement })
}

/// Replicas on as many devices as the batch can be dealt to; the largest micro-batches first, and least
/// recomputation before smaller micro-batches.
fn replicated(
    cluster: &Cluster,
    request: &Request,
    zero: u8,
    policies: &[Recompute],
) -> Vec<Candidate> {
    let global_batch = request.global_batch as u32;
    let dp = divisors(global_batch).filter(|&it| it <= cluster.device_count()).max().unwrap_or(1);
    let share = global_batch / dp;
    let mut candidates = vec![];
    for &recompute in policies {
        let mut microbatches: Vec<u32> = divisors(share).collect();
        microbatches.reverse();
        candidates.extend(microbatches.into_iter().map(|microbatch| Candidate {
            pp: 1,
            dp,
            tp: 1,
            sequence_parallel: false,
            zero: if dp > 1 { zero } else { 0 },
            microbatch,
            microbatches: share / microbatch,
            recompute,
            schedule: request.schedules[0],
            cut: Cut::Even,
        }));
    }
    candidates
}

/// What [`Rule::Megatron`] chooses from, best first.
fn megatron(
    graph: &Graph,
    cluster: &Cluster,
    request: &Request,
) -> Result<Vec<Candidate>, SearchError> {
    let schedule = match request.schedules.contains(&ScheduleKind::OneForwardOneBackward) {
        true => ScheduleKind::OneForwardOneBackward,
        false => request.schedules[0],
    };
    let all: Vec<Candidate> = Space::new(graph, cluster, request)?.candidates().collect();
    let widest = all.iter().map(|it| it.tp).max().unwrap_or(1);
    let mut sequences: Vec<u32> =
        all.iter().filter(|it| it.sequence_parallel).map(|it| it.tp).collect();
    sequences.dedup();
    let usual = |it: &Candidate| {
        it.recompute == Recompute::Selective
            && it.zero == u8::from(request.shards() && it.dp > 1)
            && it.cut == Cut::Even
            && (it.pp == 1 || (it.schedule == schedule && it.tp == widest))
            && it.sequence_parallel == sequences.contains(&it.tp)
    };
    let mut candidates: Vec<Candidate> = all.into_iter().filter(usual).collect();
    let scarce = |it: &Candidate| u64::from(it.microbatches) < 4 * u64::from(it.pp);
    candidates.sort_by_key(|it| {
        let left_out = cluster.device_count() - it.devices();
        (left_out, it.pp, it.tp, scarce(it), std::cmp::Reverse(it.microbatch))
    });
    Ok(candidates)
}
