//! Which stages the host takes longer for because their neighbours are on other nodes.

use std::collections::BTreeSet;

use crate::scenario::{gpt, lowered, uniform};
use shardloom_cluster::{BetweenNodes, Cluster, Stack};
use shardloom_program::{Action, Instruction};
use shardloom_sim::CostModel;

/// Of tensor-parallel stages of `tp` ranks each in order, rank `r` of one sends to rank `r` of the next.
#[test]
fn the_host_takes_longer_for_those_stages_whose_own_messages_go_to_other_nodes() {
    let graph = gpt(4, false);
    let mut kinds = BTreeSet::new();
    for (pp, tp, to_a_node) in
        [(4, 2, 4), (4, 2, 2), (4, 2, 8), (3, 2, 4), (6, 1, 4), (4, 1, 3), (3, 4, 8), (2, 4, 8)]
    {
        let program = lowered(&graph, &uniform(pp, 1, tp, pp));
        let (between, usual) = (3e-4, 1e-5);
        let mut stack = Stack::default();
        stack.host.communication_seconds = usual;
        stack.host.between_nodes = BetweenNodes { seconds: between, exponent: 1.5 };
        let ranks = pp as u32 * tp;
        let nodes = ranks.div_ceil(to_a_node);
        let cluster = Cluster::parse(&format!("h100-80g:{nodes}x{to_a_node}")).expect("a preset");
        let cluster = cluster.under(stack);
        let costs = CostModel::new(&graph, &cluster, &program);
        let node = |stage: u32, place: u32| (stage * tp + place) / to_a_node;
        let apart = |stage: u32| (0..tp).any(|it| node(stage, it) != node(stage + 1, it));
        let mut crossing = vec![];
        for ((id, class), stage) in program.classes().zip(0..pp as u32) {
            let crosses = stage > 0 && apart(stage - 1) || stage + 1 < pp as u32 && apart(stage);
            crossing.push(crosses);
            let of_value = |it: &Instruction| class.tensor(it.reads[0].tensor).is_activation();
            let mut sums = 0;
            for instruction in class.bodies.iter().flat_map(|body| &body.instructions) {
                let expected = match &instruction.action {
                    Action::Collective { .. } if crosses && of_value(instruction) => {
                        sums += 1;
                        usual + between * f64::from(tp).powf(1.5)
                    }
                    Action::Collective { .. } | Action::Send { .. } | Action::Receive { .. } => {
                        usual
                    }
                    _ => continue,
                };
                let found = costs.launch_seconds(id, instruction);
                assert!((found - expected).abs() < 1e-12, "stage {stage} of {pp} x {tp}: {found}");
            }
            assert_eq!(sums > 0, crosses && tp > 1, "stage {stage} of {pp} x {tp}");
        }
        kinds.insert(crossing);
    }
    // None, all, the first alone, both ends without the middle, and so on.
    assert!(kinds.len() >= 6, "{kinds:?}");
}
