//! The arithmetic that a model takes.

use shardloom_graph::work::work;
use shardloom_graph::{Extents, Graph};
use shardloom_plan::{ParameterGroup, ParameterGroups};
use shardloom_program::NeededGradients;

use crate::Result;

/// By block, FLOPs of one sample: of the forward passes of its operators, and of those gradients that training needs
/// where the parameters of some groups are `frozen`. No matrix product runs over the batch twice, so samples add up.
///
/// # Errors
/// If a group's names are no pattern.
pub(crate) fn sample_flops(graph: &Graph, frozen: &[ParameterGroup]) -> Result<Vec<f64>> {
    let frozen = ParameterGroups::from_groups(frozen)?;
    let needed = NeededGradients::of(graph, |name| frozen.group(name).is_none());
    let sample = Extents::global(graph, 1);
    let flops = |op| {
        let passes = needed.passes(graph, op);
        let works = passes.filter_map(|pass| work(graph, op, pass, &sample, 4));
        works.map(|work| work.flops).sum::<f64>()
    };
    Ok(graph.blocks().iter().map(|block| block.ops.iter().map(|&op| flops(op)).sum()).collect())
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;

    use super::*;

    /// Of a product the forward pass, input gradients and weight gradients take as much each. What the lowest trained
    /// block reads needs no gradient, as data do not.
    #[test]
    fn frozen_blocks_have_no_weight_gradients_and_those_below_all_trained_ones_no_gradients() {
        let graph = ModelSpec::parse("mlp:inputs=8,hidden=8,layers=4,classes=8");
        let graph = graph.and_then(|spec| spec.graph()).expect("a model");
        let names = |name: &str| ParameterGroup { frozen: true, ..ParameterGroup::named(name) };
        let products = |frozen: &[ParameterGroup]| {
            let flops = sample_flops(&graph, frozen).expect("patterns");
            flops.iter().map(|flops| (flops / 128.0).floor()).collect::<Vec<_>>()
        };
        assert_eq!(products(&[]), [2.0, 3.0, 3.0, 3.0, 3.0]);
        let frozen = [names("block.0.*"), names("block.2.*")];
        assert_eq!(products(&frozen), [1.0, 2.0, 2.0, 3.0, 3.0]);
    }
}
