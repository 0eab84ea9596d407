//! How long the host takes to launch instructions.

use shardloom_cluster::Cluster;
use shardloom_program::{Action, ClassId, Extent, Instruction, Program, Shape};

use crate::CostModel;
use crate::rate::rate_name;

impl CostModel<'_> {
    /// Seconds that the host takes to launch `instruction` of `class`.
    pub fn launch_seconds(&self, class: ClassId, instruction: &Instruction) -> f64 {
        let stack = self.cluster().stack();
        let host = stack.host;
        match &instruction.action {
            Action::Collective { group, .. } => {
                let read = instruction.reads.first();
                let of_values = read.is_some_and(|view| {
                    self.program().class(class).tensor(view.tensor).is_activation()
                });
                let crosses = of_values && self.crosses(class);
                let members =
                    if crosses { self.program().members(class, 0, group).len() } else { 0 };
                host.collective_seconds(members as u32, crosses)
            }
            Action::Kernel { op, pass, .. } if host.kernel_seconds > 0.0 => {
                stack.kernels(&rate_name(self.graph(), *op, *pass)).launched * host.kernel_seconds
            }
            Action::Kernel { .. } | Action::Report | Action::Due { .. } | Action::Free => 0.0,
            Action::Copy if instruction.is_move() => 0.0,
            Action::Send { .. } | Action::Receive { .. } | Action::Fetch { .. } => {
                host.communication_seconds
            }
            Action::Optimizer => {
                host.kernel_seconds + host.share_seconds * self.shares(class, instruction) as f64
            }
            Action::Extrapolate { .. }
            | Action::Add
            | Action::Difference
            | Action::Average { .. }
            | Action::Copy
            | Action::Publish { .. }
            | Action::Load { .. }
            | Action::LoadRows { .. }
            | Action::FindRows
            | Action::TakeRows
            | Action::Slice { .. }
            | Action::Norm
            | Action::Statistics { .. }
            | Action::Cast
            | Action::Compress { .. }
            | Action::Decompress { .. }
            | Action::SumRows
            | Action::Test => host.kernel_seconds,
        }
    }

    /// Shares of replicas in parameters, summed over those that an instruction updates; none where every
    /// replica has all of it.
    fn shares(&self, class: ClassId, instruction: &Instruction) -> usize {
        let class = self.program().class(class);
        let updated = instruction.writes.iter().map(|write| class.tensor(write.to.tensor));
        let mut shared = updated.filter(|it| matches!(it.shape, Shape::Flat(Extent::Share)));
        let bucket = shared.find_map(|tensor| tensor.bucket);
        bucket.map_or(0, |bucket| {
            let bucket = &class.buckets[bucket.0 as usize];
            bucket.params.len() * class.mesh.span(&bucket.shards)
        })
    }
}

/// Per class of `program`, whether it exchanges messages with other nodes; empty where that costs hosts
/// nothing.
pub(crate) fn crosses(cluster: &Cluster, program: &Program) -> Vec<bool> {
    if cluster.stack().host.between_nodes.seconds == 0.0 {
        return vec![];
    }
    let mut crosses = vec![false; program.classes.len()];
    for route in &program.routes {
        let ends = [route.from, route.to];
        let [sending, receiving] = ends.map(|class| &program.class(class).devices);
        let mut messages = route.messages.iter();
        if messages.any(|it| !cluster.share_node(sending[it.from], receiving[it.to])) {
            ends.iter().for_each(|class| crosses[class.0 as usize] = true);
        }
    }
    crosses
}
