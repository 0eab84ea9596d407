//! What a plan that was found gets for its reductions, which no search has in its space.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Plan;

use crate::bucket_size::with_fastest_size;
use crate::{Judgement, Request, SearchError, with_fastest_algorithms};

/// A plan whose steps take no longer than those of another.
#[derive(Clone, Debug)]
pub struct Faster {
    /// The plan.
    pub plan: Plan,
    /// How it was simulated.
    pub judgement: Judgement,
    /// How many others were simulated.
    pub simulated: usize,
    /// What was changed, and what a step would take without that; none if nothing was.
    pub notes: Vec<String>,
}

impl Faster {
    /// The plan itself.
    pub(crate) fn unchanged(plan: Plan, judgement: Judgement) -> Faster {
        Faster { plan, judgement, simulated: 0, notes: vec![] }
    }

    /// Has a further change made to the plan.
    fn then(
        self,
        change: impl FnOnce(Plan, Judgement) -> Result<Faster, SearchError>,
    ) -> Result<Faster, SearchError> {
        let changed = change(self.plan, self.judgement)?;
        Ok(Faster {
            simulated: self.simulated + changed.simulated,
            notes: [self.notes, changed.notes].concat(),
            ..changed
        })
    }
}

/// `plan` with the algorithms of collectives, and then the size of buckets, with which its steps take least: each
/// where the request leaves it to a search.
///
/// # Errors
/// If the plan does not fit the model or the cluster.
pub fn with_fastest_reductions(
    graph: &Graph,
    cluster: &Cluster,
    plan: Plan,
    judgement: Judgement,
    request: &Request,
) -> Result<Faster, SearchError> {
    let mut found = Faster::unchanged(plan, judgement);
    if request.fastest_algorithm {
        found = found.then(|plan, judgement| {
            with_fastest_algorithms(graph, cluster, plan, judgement, request.memory_share)
        })?;
    }
    if request.fastest_bucket_size {
        found = found
            .then(|plan, judgement| with_fastest_size(graph, cluster, plan, judgement, request))?;
    }
    Ok(found)
}
