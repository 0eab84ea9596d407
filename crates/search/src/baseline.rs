//! Plans that an answer is held against.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_sim::estimate::{Candidate, Estimator};

use crate::judge::unless_too_large;
use crate::{Judgement, Request, SearchError, judge};

/// A plan that an answer is held against, and how it does.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// What it is called.
    pub name: &'static str,
    /// Whether it can be and fits in memory.
    pub fits: bool,
    /// The plan; none where nothing divides.
    pub plan: Option<Plan>,
    /// How it was simulated; none without a plan, and of one with more instructions than are simulated.
    pub judgement: Option<Judgement>,
}

impl Baseline {
    /// The first of `candidates` that fits by estimate, simulated; if none fits, the last that can be
    /// lowered, which should be the one that asks for the least.
    ///
    /// # Errors
    /// If the request asks for what cannot be.
    pub fn first_fitting(
        name: &'static str,
        candidates: impl IntoIterator<Item = Candidate>,
        graph: &Graph,
        cluster: &Cluster,
        request: &Request,
    ) -> Result<Baseline, SearchError> {
        request.validate()?;
        let mut estimator = Estimator::new(graph, cluster, request.settings())?;
        let limit_bytes = request.memory_share * estimator.memory_bytes() as f64;
        let mut chosen = None;
        for candidate in candidates {
            let Some(estimate) = estimator.estimate(&candidate)? else { continue };
            chosen = Some(candidate);
            if estimate.peak_bytes <= limit_bytes {
                break;
            }
        }
        let plan = match &chosen {
            Some(candidate) => request.planned(graph, &mut estimator, candidate)?,
            None => None,
        };
        let judgement = match &plan {
            Some(plan) => unless_too_large(judge(graph, cluster, plan))?,
            None => None,
        };
        let fits = judgement.as_ref().is_some_and(|it| it.fits(request.memory_share));
        Ok(Baseline { name, fits, plan, judgement })
    }

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
