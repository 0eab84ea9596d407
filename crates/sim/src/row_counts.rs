//! How many rows go to each expert, as far as the time of a step depends on it.

use shardloom_graph::{Extents, Graph, OpKind, ValueId};
use shardloom_program::{Class, MeasuredRows, Placement, Program, TableRows};

use crate::SimError;

/// How many rows go to each expert, where that is known only while running. No expert has more than it has
/// slots for.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RowCounts {
    /// All experts have equally many.
    #[default]
    Even,
    /// All rows go to experts in these shares, of whichever sample and routing.
    Shares(Vec<f64>),
    /// As a run has measured; later steps are like the one that was.
    Measured(MeasuredRows),
}

/// What is known of a routing ahead.
struct Routing {
    experts: usize,
    /// Rows of one sample.
    rows: usize,
    /// Slots that an expert has for these.
    slots: usize,
}

impl Routing {
    /// The routing whose rows `counts` counts.
    fn of(graph: &Graph, counts: ValueId) -> Option<Routing> {
        let node = graph.op(graph.value(counts).producer?);
        let OpKind::Route { slots, .. } = node.kind else { return None };
        let extents = Extents::global(graph, 1);
        let experts = extents.elements(&graph.value(counts).axes);
        let rows = extents.elements(&graph.value(node.outputs[0]).axes);
        Some(Routing { experts, rows, slots })
    }
}

impl RowCounts {
    /// Rows that some experts have of some samples of a micro-batch.
    ///
    /// # Errors
    /// If there are not as many shares as experts, or it was not measured.
    pub(crate) fn rows(
        &self,
        graph: &Graph,
        counts: ValueId,
        microbatch: u32,
        of: &Placement,
    ) -> Result<f64, SimError> {
        let name = || graph.value(counts).name.clone();
        let unknown = |reason: String| SimError::Rows { counts: name(), reason };
        let routing =
            Routing::of(graph, counts).ok_or_else(|| unknown("no routing counts them".into()))?;
        let samples = of.extent[1] as f64;
        let (rows, most) = (routing.rows as f64, routing.slots as f64);
        match self {
            RowCounts::Even => {
                let each = (rows / routing.experts as f64).min(most);
                Ok(of.extent[0] as f64 * samples * each)
            }
            RowCounts::Shares(shares) => {
                let sum: f64 = shares.iter().sum();
                let fit = |share: &f64| share.is_finite() && *share >= 0.0;
                let sums_up = sum.is_finite() && sum > 0.0;
                if shares.len() != routing.experts || !shares.iter().all(fit) || !sums_up {
                    return Err(unknown(format!(
                        "{} shares {shares:?} are given, and there are {} experts; each needs one that is \
                         not negative, and they a sum above 0 that can be told",
                        shares.len(),
                        routing.experts
                    )));
                }
                let each = shares[of.range(0)].iter().map(|share| (rows * share / sum).min(most));
                Ok(samples * each.sum::<f64>())
            }
            RowCounts::Measured(measured) => {
                let found = measured.rows(counts, microbatch, of.range(0), of.range(1));
                let reason = || format!("those of micro-batch {microbatch} were not measured");
                found.map(|rows| rows as f64).ok_or_else(|| unknown(reason()))
            }
        }
    }

    /// Rows of a piece of a table that a worker looks up in a step: those that were measured, or as many as are expected
    /// where each is as likely as any other.
    ///
    /// # Errors
    /// If others were measured, and these were not.
    pub(crate) fn looked_up(&self, rows: &TableRows) -> Result<f64, SimError> {
        match self {
            RowCounts::Even | RowCounts::Shares(_) => Ok(rows.expected()),
            RowCounts::Measured(measured) => {
                let found = measured.looked_up(rows).map(|rows| rows as f64);
                found.ok_or_else(|| SimError::Rows {
                    counts: format!("rows looked up in piece {} of a table", rows.piece),
                    reason: "they were not measured".into(),
                })
            }
        }
    }

    /// Whether all ranks of each class have equally many rows in every tensor, so that one may stand for all.
    pub(crate) fn are_alike(&self, graph: &Graph, program: &Program) -> Result<bool, SimError> {
        match self {
            RowCounts::Even => Ok(true),
            RowCounts::Measured(_) => Ok(!program.classes.iter().any(has_rows)),
            RowCounts::Shares(_) if !program.classes.iter().any(has_rows) => Err(SimError::NoRows),
            RowCounts::Shares(_) => {
                for class in &program.classes {
                    for (id, _) in class.tensors().filter(|(_, it)| it.counts().is_some()) {
                        let mut first = None;
                        for position in 0..class.mesh.size() {
                            let Some((counts, of)) = class.counted(id, position) else { continue };
                            let rows = self.rows(graph, counts, 0, &of)?;
                            if *first.get_or_insert(rows) != rows {
                                return Ok(false);
                            }
                        }
                    }
                }
                Ok(true)
            }
        }
    }
}

fn has_rows(class: &Class) -> bool {
    class.tensors.iter().any(|tensor| tensor.counts().is_some())
}
