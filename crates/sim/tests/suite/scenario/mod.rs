//! A small GPT in many plans.

pub mod fixed;

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_collectives::Algorithm;
use shardloom_graph::Graph;
use shardloom_graph::families::GptConfig;
use shardloom_plan::{Mesh, Precision, Sync, Uniform};
use shardloom_program::{Action, Class, Content, Instruction, Program, lower};

/// A GPT of `layers` blocks between its embedding and its head.
pub fn gpt(layers: usize, tied: bool) -> Graph {
    let config = GptConfig {
        layers,
        hidden: 64,
        heads: 8,
        seq: 32,
        vocab: 128,
        padded_vocab: None,
        ffn: None,
        dropout: 0.1,
        attention_dropout: None,
        embedding_dropout: None,
        rotary: None,
        rope_theta: None,
        parallel: false,
        head_bias: false,
        tied,
        separate_loss: false,
        norm_epsilon: 1e-5,
        init_std: 0.02,
    };
    config.graph("gpt").expect("the sizes divide")
}

/// A plan with everything at its plainest, `samples` to a micro-batch.
pub fn uniform(pp: usize, dp: u32, tp: u32, microbatches: usize) -> Uniform {
    Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        global_batch: microbatches * dp as usize,
        microbatches,
        sync: Sync {
            algorithm: Algorithm::Ring,
            zero: 0,
            bucket_bytes: 100_000,
            ..Sync::default()
        },
        precision: Precision::MIXED,
        clip_norm: Some(1.0),
        ..Uniform::default()
    }
}

/// What a collective combines or exchanges; none of other instructions.
pub fn exchanged(class: &Class, instruction: &Instruction) -> Option<Content> {
    let collective = matches!(instruction.action, Action::Collective { .. });
    collective.then(|| class.tensor(instruction.reads[0].tensor).content)
}

/// The plan's program.
pub fn lowered(graph: &Graph, plan: &Uniform) -> Program {
    let plan_of = plan.plan(graph, "gpt", "cluster");
    let devices = plan.pp * plan.mesh.size();
    lower(graph, &plan_of, devices).expect("the plan fits")
}

/// As many H100s as `ranks`, eight to a node.
pub fn h100(ranks: usize) -> Cluster {
    let text = match ranks <= 8 {
        true => format!("h100-80g:{ranks}"),
        false => format!("h100-80g:{}x8", ranks.div_ceil(8)),
    };
    Cluster::parse(&text).expect("a preset")
}

/// [`h100`] with a way out of each node that is no wider than one card's.
pub fn narrow(ranks: usize) -> Cluster {
    let mut groups: Vec<NodeGroup> = h100(ranks).groups().to_vec();
    for group in &mut groups {
        let node = &mut group.profile.node;
        node.uplink_bytes_per_second = node.inter.bytes_per_second;
    }
    Cluster::new(groups).expect("a cluster")
}

/// Sockets of a machine on which computation and communication share the cores.
pub fn cores(ranks: usize) -> Cluster {
    let text = format!(
        r#"
        [[group]]
        machine = "cores"
        nodes = 1

        [[machine]]
        source = "made up"
        [machine.device]
        name = "cores"
        memory_bytes = 8000000000
        memory_bytes_per_second = 1e10
        memory_reachable = 0.8
        launch_seconds = 0.0
        lanes_overlap = false
        [machine.device.peak_flops]
        fp32 = 1e11
        [machine.device.matmul.analytic]
        units = 1
        half_k = 16.0
        tiles = [{{ m = 6, n = 16, reachable = 0.9 }}]
        [machine.node]
        devices = {ranks}
        uplink_bytes_per_second = 1e9
        [machine.node.intra]
        latency_seconds = 2e-6
        bytes_per_second = 5e9
        [machine.node.inter]
        latency_seconds = 1e-4
        bytes_per_second = 1e8
        "#
    );
    Cluster::from_toml(&text).expect("a cluster")
}
