//! The arithmetic of a model, whatever runs it.

use shardloom_graph::work::{Pass, work};
use shardloom_graph::{Extents, Graph, OpId};

/// FLOPs of the forward and backward passes of some operators on one sample, each pass once. No matrix
/// product runs over the batch twice, so samples add up.
pub(crate) fn sample_flops(graph: &Graph, ops: impl IntoIterator<Item = OpId>) -> f64 {
    let sample = Extents::global(graph, 1);
    let mut flops = 0.0;
    for op in ops {
        for pass in [Pass::Forward, Pass::Input, Pass::Weight] {
            flops += work(graph, op, pass, &sample, 4).map_or(0.0, |work| work.flops);
        }
    }
    flops
}
