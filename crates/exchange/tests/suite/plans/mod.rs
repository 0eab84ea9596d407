//! Plans that go elsewhere in tests.

use shardloom_exchange::Machines;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    AttentionKind, Axis, DeviceList, LayoutRules, Mesh, Optimizer, Plan, Precision, Recompute,
    ScheduleKind, Sync, Uniform,
};

/// A plan with its model.
pub struct Case {
    pub name: String,
    pub plan: Plan,
    pub spec: ModelSpec,
    pub graph: Graph,
}

impl Case {
    pub fn of(name: &str, plan: Plan) -> Case {
        let spec = match &plan.model[..] {
            EXPERTS => with_experts(),
            model => ModelSpec::parse(model).expect("a model"),
        };
        let graph = spec.graph().expect("a graph");
        plan.validate(&plan.graph_of(&graph), plan.least_devices())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Case { name: name.into(), plan, spec, graph }
    }

    /// Machines of eight devices, or one of as many as there are.
    pub fn machines(&self) -> Machines {
        let devices = self.plan.device_count();
        match devices.is_multiple_of(8) {
            true => Machines { nodes: devices / 8, devices: 8 },
            false => Machines { nodes: 1, devices },
        }
    }
}

pub const LLAMA: &str =
    "llama:layers=12,hidden=512,heads=8,kv_heads=4,ffn=1408,seq=1024,vocab=32000,rope_theta=500000";
pub const SMALL_LLAMA: &str = "llama:layers=8,hidden=64,heads=4,ffn=256,seq=64,vocab=128";
pub const GPT: &str = "gpt:layers=6,hidden=128,heads=8,seq=256,vocab=50304,dropout=0.1,tied=true";

/// The model with experts, by its file.
pub const EXPERTS: &str = "transformer-with-experts.toml";
pub const EXPERTS_TEXT: &str =
    include_str!("../../../../../examples/models/transformer-with-experts.toml");

fn with_experts() -> ModelSpec {
    ModelSpec::from_toml(EXPERTS_TEXT, EXPERTS).expect("a model")
}

/// A plan of the model with experts, dealt to `ep` ranks of each of as many groups as `numbers` have replicas.
pub fn plan_with_experts(numbers: &Uniform, ep: u32) -> Plan {
    let spec = with_experts();
    let graph = spec.graph().expect("a graph");
    let mesh = numbers.mesh.with(Axis::EP, ep);
    let cluster = format!("h100-80g:{}", numbers.pp * mesh.size());
    let mut plan = Uniform { mesh, ..numbers.clone() }.plan(&graph, EXPERTS, &cluster);
    if ep > 1 {
        let dealt =
            format!("expert:ep, batch:dp, batch:ep, {}", "seq:cp, heads:tp, ffn:tp, vocab:tp");
        plan.layout = LayoutRules::try_from(dealt).expect("rules");
    }
    plan
}

/// The ordinary numbers, for tests to change.
pub fn numbers() -> Uniform {
    Uniform {
        global_batch: 64,
        microbatches: 8,
        recompute: Recompute::Selective,
        precision: Precision::MIXED,
        clip_norm: Some(1.0),
        ..Uniform::default()
    }
}

/// The plan of some numbers, with so many stages on each device.
pub fn plan(model: &str, numbers: &Uniform, chunks: usize) -> Plan {
    let spec = ModelSpec::parse(model).expect("a model");
    let graph = spec.graph().expect("a graph");
    let devices = numbers.pp * numbers.mesh.size();
    let cluster = format!("h100-80g:{devices}");
    numbers.plan_in_chunks(&graph, &spec.to_string(), &cluster, chunks).expect("an arrangement")
}

/// A plan by its name.
pub fn case(name: &str) -> Case {
    let usual = numbers();
    let mut made = match name {
        "interleaved-3d" => {
            let schedule = ScheduleKind::Interleaved;
            let sync = Sync { zero: 1, ..Sync::default() };
            plan(LLAMA, &Uniform { pp: 2, mesh: Mesh::of(2, 1, 2), schedule, sync, ..usual }, 2)
        }
        "zero-bubble-v" => {
            plan(LLAMA, &Uniform { pp: 4, schedule: ScheduleKind::ZeroBubbleV, ..usual }, 2)
        }
        "zero-bubble-h1" => {
            let (schedule, sync) =
                (ScheduleKind::ZeroBubbleH1, Sync { zero: 3, ..Sync::default() });
            plan(LLAMA, &Uniform { pp: 4, mesh: Mesh::of(2, 1, 1), schedule, sync, ..usual }, 1)
        }
        "interleaved-sharded" => {
            let (schedule, sync) = (ScheduleKind::Interleaved, Sync { zero: 2, ..Sync::default() });
            plan(LLAMA, &Uniform { pp: 2, mesh: Mesh::of(2, 1, 2), schedule, sync, ..usual }, 3)
        }
        "dualpipe-v" => plan(
            LLAMA,
            &Uniform { pp: 2, schedule: ScheduleKind::DualPipeV, microbatches: 4, ..usual },
            2,
        ),
        "fully-sharded" => {
            let (sync, recompute) = (Sync { zero: 3, ..Sync::default() }, Recompute::Block);
            plan(LLAMA, &Uniform { mesh: Mesh::of(8, 1, 1), sync, recompute, ..usual }, 1)
        }
        "uneven-stages" => {
            let mut plan = plan(SMALL_LLAMA, &Uniform { pp: 4, ..usual }, 1);
            for (stage, blocks) in
                plan.pipeline[0].stage.iter_mut().zip([(0, 4), (4, 7), (7, 9), (9, 10)])
            {
                stage.blocks = blocks;
            }
            plan
        }
        "sequence-parallel" => {
            let recompute = Recompute::Full;
            let numbers =
                Uniform { mesh: Mesh::of(2, 1, 4), sequence_parallel: true, recompute, ..usual };
            plan(LLAMA, &numbers, 1)
        }
        "context-parallel" => {
            let sync = Sync { zero: 3, ..Sync::default() };
            plan(LLAMA, &Uniform { mesh: Mesh::of(4, 2, 1), sync, ..usual }, 1)
        }
        "sharded-states" => {
            let (sync, recompute) = (Sync { zero: 1, ..Sync::default() }, Recompute::Block);
            plan(SMALL_LLAMA, &Uniform { mesh: Mesh::of(4, 1, 2), sync, recompute, ..usual }, 1)
        }
        "hybrid-sharded" => {
            let sync = Sync { zero: 3, ..Sync::default() };
            let mesh = Mesh::of(8, 1, 1).sharing_within(4).expect("it divides");
            plan(LLAMA, &Uniform { mesh, sync, recompute: Recompute::Block, ..usual }, 1)
        }
        "hybrid-states" => {
            let sync = Sync { zero: 1, ..Sync::default() };
            let mesh = Mesh::of(4, 1, 2).sharing_within(2).expect("it divides");
            plan(LLAMA, &Uniform { pp: 2, mesh, sync, ..usual }, 1)
        }
        "experts" => {
            let sync = Sync { zero: 1, ..Sync::default() };
            let numbers = Uniform { mesh: Mesh::of(4, 1, 1), sync, ..usual };
            plan_with_experts(&numbers, 2)
        }
        "eight-bits" => {
            let sync = Sync { zero: 2, ..Sync::default() };
            let precision = Precision { fp8_products: true, ..Precision::MIXED };
            plan(LLAMA, &Uniform { mesh: Mesh::of(4, 1, 2), sync, precision, ..usual }, 1)
        }
        "replicated-gpt" => {
            let precision = Precision::FP32;
            let optimizer = Optimizer::sgd(0.9);
            let numbers =
                Uniform { mesh: Mesh::of(4, 1, 1), precision, optimizer, clip_norm: None, ..usual };
            plan(GPT, &numbers, 1)
        }
        other => panic!("no plan is called {other}"),
    };
    if ["interleaved-sharded", "fully-sharded", "context-parallel", "eight-bits"].contains(&name) {
        made.attention = AttentionKind::Fused;
    }
    Case::of(name, made)
}

/// All names of plans.
pub const NAMES: [&str; 15] = [
    "experts",
    "hybrid-sharded",
    "hybrid-states",
    "eight-bits",
    "zero-bubble-h1",
    "interleaved-sharded",
    "interleaved-3d",
    "zero-bubble-v",
    "dualpipe-v",
    "fully-sharded",
    "uneven-stages",
    "sequence-parallel",
    "context-parallel",
    "sharded-states",
    "replicated-gpt",
];

/// A plan with its devices numbered with data parallelism outside of pipelines.
pub fn data_slowest(mut plan: Plan) -> Plan {
    let groups = plan.pipeline[0].stage.len() as u32;
    for (group, stage) in (0u32..).zip(&mut plan.pipeline[0].stage) {
        let inner = stage.mesh.size() as u32 / stage.mesh.dp();
        let position = |it: u32| (it / inner) * inner * groups + group * inner + it % inner;
        stage.devices = DeviceList((0..stage.mesh.size() as u32).map(position).collect());
    }
    plan
}
