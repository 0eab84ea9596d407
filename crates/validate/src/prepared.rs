//! What of a prediction does not depend on a stack's constants: the model, the machines, the plan and its
//! program, made once for many predictions.

use std::sync::OnceLock;

use shardloom_cluster::{Cluster, Stack};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Plan, Recompute, usual_attention};
use shardloom_program::{Program, lower};

use crate::hardware::plan;
use crate::prediction::{Prediction, simulated};
use crate::{Case, Refusal};

/// A case, ready to be predicted under stacks that differ in constants only: defaults of plans, which decide what plans
/// have, are those of the stack that it was made under.
pub(crate) struct Prepared {
    case: Case,
    spec: ModelSpec,
    graph: Graph,
    cluster: Cluster,
    /// In the order to try.
    candidates: Vec<Candidate>,
}

/// A plan that may be the one.
struct Candidate {
    micro_batch: usize,
    recompute: Recompute,
    /// Made when it is tried first: usually an earlier one fits.
    lowered: OnceLock<Result<(Plan, Program), Refusal>>,
}

impl Prepared {
    /// Prepares a case for predictions under `stack`, or else under the stack that it ran under.
    ///
    /// # Errors
    /// If there is no such model or cluster.
    pub fn new(case: &Case, stack: Option<&Stack>) -> Result<Prepared, Refusal> {
        let spec = case.spec()?;
        let graph = spec.graph().map_err(|error| plan(&error))?;
        let cluster = case.cluster(stack)?;
        let attention = usual_attention(&graph, cluster.fuses_attention());
        let graph = attention.of(&graph).into_owned();
        let mut candidates = vec![];
        for micro_batch in case.micro_batches()? {
            for recompute in case.recomputations() {
                candidates.push(Candidate { micro_batch, recompute, lowered: OnceLock::new() });
            }
        }
        Ok(Prepared { case: case.clone(), spec, graph, cluster, candidates })
    }

    /// Predicts it under the stack that it was prepared for, or that with other constants.
    ///
    /// # Errors
    /// If there is no such plan.
    pub fn predict(&self, stack: Option<&Stack>) -> Result<Prediction, Refusal> {
        let cluster = match stack {
            Some(stack) => &self.cluster.clone().under(stack.clone()),
            None => &self.cluster,
        };
        let mut found = None;
        for candidate in &self.candidates {
            let lowered = candidate.lowered.get_or_init(|| self.lower(candidate));
            let (made, program) = lowered.as_ref().map_err(Clone::clone)?;
            let prediction = simulated(
                &self.graph,
                cluster,
                made,
                program,
                candidate.micro_batch,
                self.case.memory_of,
            )?;
            if !prediction.exceeds {
                return Ok(prediction);
            }
            found = Some(prediction);
        }
        found.ok_or(Refusal::NotGiven("the micro-batch"))
    }

    fn lower(&self, candidate: &Candidate) -> Result<(Plan, Program), Refusal> {
        let Candidate { micro_batch, recompute, .. } = *candidate;
        let (spec, graph, cluster) = (&self.spec, &self.graph, &self.cluster);
        let made = self.case.plan(spec, graph, cluster, micro_batch, recompute)?;
        let devices = cluster.device_count() as usize;
        let program = lower(graph, &made, devices).map_err(|error| plan(&error))?;
        Ok((made, program))
    }
}
