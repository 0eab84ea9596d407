//! The search over one set of machines: every candidate of its space is scored by estimate or bounded away,
//! and the best are judged by the simulator.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_sim::estimate::{Candidate, Estimator};

use crate::auto::Finalist;
use crate::baseline::Baseline;
use crate::judge::unless_too_large;
use crate::scan::{Limits, Scan};
use crate::space::Space;
use crate::{Judgement, Request, SearchError, judge};

/// Micro-batches times blocks that are simulated at most, but for the first finalist that fits, baselines
/// aside: what a simulation takes is proportional to them.
const EFFORT: usize = 10_000;

/// Models of more blocks are simulated under one plan only on a set of machines, the fastest by estimate of those that
/// fit: lowering and simulating one takes as long as hundreds of usual ones.
pub(crate) const MOST_BLOCKS: usize = 3_000;

/// Whether a model has more.
pub(crate) fn is_deep(graph: &Graph) -> bool {
    graph.blocks().len() > MOST_BLOCKS
}

/// Plans that are too large to simulate before no others are tried: where a few are, most are, and to find out takes as
/// long as a small simulation.
const MOST_TOO_LARGE: usize = 4;

/// Estimates this much slower than the best simulated plan are not simulated: the estimate is right to a
/// few percent.
const DOUBT: f64 = 1.05;

/// A space that was looked through.
pub(crate) struct Search<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    request: &'a Request,
    /// What a step of a plan takes that others are to be faster than.
    known_seconds: f64,
    estimator: Estimator<'a>,
    /// The second if there is nothing in the first.
    pub spaces: Vec<Space>,
    /// What was found.
    pub scan: Scan,
}

impl<'a> Search<'a> {
    /// Looks for plans that fit, and across nodes for wider tensor-parallel groups where there are none.
    ///
    /// # Errors
    /// If the request asks for what cannot be.
    pub fn of(
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
    ) -> Result<Search<'a>, SearchError> {
        Search::within(graph, cluster, request, request.memory_share, f64::INFINITY)
    }

    /// Looks for those only that might be faster than a plan of which a step takes `known_seconds`.
    ///
    /// # Errors
    /// As [`Search::of`].
    pub fn faster_than(
        known_seconds: f64,
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
    ) -> Result<Search<'a>, SearchError> {
        Search::within(graph, cluster, request, request.memory_share, known_seconds)
    }

    /// The same as [`Search::of`] for devices of any memory.
    ///
    /// # Errors
    /// As [`Search::of`].
    pub fn without_limit(
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
    ) -> Result<Search<'a>, SearchError> {
        Search::within(graph, cluster, request, f64::INFINITY, f64::INFINITY)
    }

    fn within(
        graph: &'a Graph,
        cluster: &'a Cluster,
        request: &'a Request,
        memory_share: f64,
        known_seconds: f64,
    ) -> Result<Search<'a>, SearchError> {
        let mut estimator = Estimator::new(graph, cluster, request.settings())?;
        let bytes = memory_share * estimator.memory_bytes() as f64;
        let limits = Limits { bytes, seconds: DOUBT * known_seconds };
        let mut spaces = vec![Space::new(graph, cluster, request)?];
        let mut scan = Scan::of(&spaces[0], request, limits, &mut estimator)?;
        if scan.ranking.is_empty() && !scan.has_slower {
            let wider = Space::across_nodes(graph, cluster, request)?;
            let found = Scan::of(&wider, request, limits, &mut estimator)?;
            scan = Scan {
                evaluated: scan.evaluated + found.evaluated,
                bounded_away: scan.bounded_away + found.bounded_away,
                ..found
            };
            spaces.push(wider);
        }
        Ok(Search { graph, cluster, request, known_seconds, estimator, spaces, scan })
    }

    /// The plan of the fastest candidate by estimate; none if none fits.
    ///
    /// # Errors
    /// As [`Estimator::estimate`].
    pub fn fastest_estimate(mut self) -> Result<Option<Plan>, SearchError> {
        let Some(&(candidate, _)) = self.scan.ranking.first() else { return Ok(None) };
        self.planned(&candidate)
    }

    /// How many estimates there were not because orders take too long to make.
    pub fn left_out(&self) -> usize {
        self.estimator.left_out()
    }

    /// The time of one device that a sample takes at least.
    pub fn least_sample_seconds(&self) -> f64 {
        self.estimator.least_sample_seconds()
    }

    /// Simulates the best candidates, also with updates that are validated afterwards.
    ///
    /// # Errors
    /// If one cannot be simulated.
    pub fn finalists(&mut self, baselines: &[Baseline]) -> Result<Vec<Finalist>, SearchError> {
        let mut finalists = self.simulate_best(baselines)?;
        if self.request.may_validate_afterwards() {
            self.validate_afterwards(&mut finalists)?;
        }
        Ok(finalists)
    }

    fn planned(&mut self, candidate: &Candidate) -> Result<Option<Plan>, SearchError> {
        self.request.planned(self.graph, &mut self.estimator, candidate)
    }

    fn judge(&self, plan: &Plan) -> Result<Judgement, SearchError> {
        judge(self.graph, self.cluster, plan)
    }

    fn effort(&self, plan: &Plan) -> usize {
        plan.microbatches * self.graph.blocks().len()
    }

    /// Simulates candidates best first, until enough fit or the rest are too slow to win; before others the best of each
    /// way to deal stages to devices, between which estimates are least sure. Those with more instructions than are
    /// simulated are left out, unless that leaves none.
    fn simulate_best(&mut self, baselines: &[Baseline]) -> Result<Vec<Finalist>, SearchError> {
        let mut finalists: Vec<Finalist> = vec![];
        let (mut fitting, mut best_seconds, mut effort) = (0, self.known_seconds, 0);
        let mut too_large = vec![];
        let candidates = [&self.scan.arranged[..], &self.scan.ranking].concat();
        for (candidate, estimate) in candidates {
            if fitting == self.request.finalists {
                break;
            }
            if estimate.step_seconds > DOUBT * best_seconds {
                continue;
            }
            let Some(plan) = self.planned(&candidate)? else { continue };
            let is_known = finalists.iter().any(|it| it.plan == plan);
            if is_known || !self.request.runs(self.cluster, &plan) {
                continue;
            }
            let known = baselines.iter().find(|it| it.plan.as_ref() == Some(&plan));
            let judgement = match known.and_then(|it| it.judgement.clone()) {
                Some(known) => known,
                None => {
                    // The first that fits is simulated whatever that takes.
                    if fitting > 0 && (is_deep(self.graph) || effort + self.effort(&plan) > EFFORT)
                    {
                        continue;
                    }
                    effort += self.effort(&plan);
                    match self.judge(&plan) {
                        Err(error) if error.is_too_large() => {
                            too_large.push(error);
                            if too_large.len() == MOST_TOO_LARGE {
                                break;
                            }
                            continue;
                        }
                        judged => judged?,
                    }
                }
            };
            if judgement.fits(self.request.memory_share) {
                fitting += 1;
                best_seconds = judgement.step_seconds.min(best_seconds);
            }
            let estimated_seconds = Some(estimate.step_seconds);
            finalists.push(Finalist { plan, estimated_seconds, judgement });
        }
        match too_large.pop().filter(|_| finalists.is_empty()) {
            Some(error) => Err(error),
            None => Ok(finalists),
        }
    }

    /// Simulates candidates with updates that do not wait for the norm of all gradients, as long as that is
    /// less effort than finding them was; estimates wait for it.
    fn validate_afterwards(&mut self, finalists: &mut Vec<Finalist>) -> Result<(), SearchError> {
        let mut effort: usize = finalists.iter().skip(1).map(|it| self.effort(&it.plan)).sum();
        let fitting = finalists.iter().filter(|it| it.judgement.fits(self.request.memory_share));
        let seconds = fitting.map(|it| it.judgement.step_seconds);
        let best_seconds = seconds.fold(self.known_seconds, f64::min);
        for index in 0..self.scan.halves.len() {
            let (candidate, estimate) = self.scan.halves[index];
            if estimate.step_seconds > DOUBT * best_seconds {
                break;
            }
            let Some(mut plan) = self.planned(&candidate)? else { continue };
            if is_deep(self.graph) || effort + self.effort(&plan) > EFFORT {
                continue;
            }
            effort += self.effort(&plan);
            plan.post_validation = true;
            let Some(judgement) = unless_too_large(self.judge(&plan))? else { continue };
            let estimated_seconds = Some(estimate.step_seconds);
            finalists.push(Finalist { plan, estimated_seconds, judgement });
        }
        Ok(())
    }
}
