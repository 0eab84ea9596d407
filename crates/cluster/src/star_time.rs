//! The time of stars within inner groups and a tree across them, by closed form.

use shardloom_collectives::StarTree;

use crate::GroupShape;

impl GroupShape<'_> {
    /// Time of an all-reduce over `trees` on a buffer of `bytes` per member: step by step, as which levels are
    /// busy changes while pipelines fill and drain.
    pub(crate) fn star_tree(&self, trees: &StarTree, bytes: f64) -> f64 {
        let segment = bytes / f64::from(trees.trees * trees.segments());
        let steps = 0..trees.depth() + trees.segments() - 1;
        let reduction: f64 = steps
            .map(|index| {
                let [within, inter] = self.busiest_ports(trees, index);
                self.step(within * segment, inter * segment)
            })
            .sum();
        2.0 * reduction
    }

    /// The most segments that a device receives within its node, and a node from the network, in step `index` of
    /// a reduction.
    fn busiest_ports(&self, trees: &StarTree, index: u32) -> [f64; 2] {
        let (first, end) = trees.busy(index);
        let heads = f64::from(trees.heads_above(end) - trees.heads_above(first));
        let children = f64::from(trees.heads_above(end + 1) - trees.heads_above(first + 1));
        let most_children = f64::from(trees.most_children(first));
        let per_node = self.members_per_node.min(self.members);
        let heads_of_node = f64::from((per_node / trees.inner).max(1));
        let others = f64::from(trees.outer) - 1.0;
        let outside = if others > 0.0 { 1.0 - (heads_of_node - 1.0) / others } else { 0.0 };
        let near = f64::from(trees.inner.min(per_node)) - 1.0;
        let far = match per_node {
            _ if per_node.is_multiple_of(trees.inner) => 0,
            _ if trees.inner.is_multiple_of(per_node) => trees.inner - per_node,
            // Groups that begin in one node and end in another; of some only the head is in the first.
            _ => trees.inner - 1,
        };
        let far = f64::from(far);
        if trees.trees > 1 {
            // Each head has every role, so that all ports have as much to do.
            let within = heads * near + children * (1.0 - outside);
            return [within, heads_of_node * (heads * far + children * outside)];
        }
        let within = near + most_children * (1.0 - outside);
        [within, far + children.min(heads_of_node * most_children) * outside]
    }
}
