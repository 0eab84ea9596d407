//! Small plans of every kind.

use shardloom_collectives::Algorithm;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Axis, Corrections, DeviceList, Mesh, Optimizer, Plan, Precision, Prediction, Recompute,
    ScheduleKind, Servers, StageReplicas, Staleness, Sync, Uniform, Updates, Weights,
    pipelines_in_turn,
};

/// A plan with the name of its recording.
pub struct Case {
    pub name: String,
    pub graph: Graph,
    pub plan: Plan,
}

fn graph(spec: &str) -> Graph {
    ModelSpec::parse(spec).and_then(|spec| spec.graph()).expect("a valid model")
}

fn perceptron(layers: usize) -> Graph {
    graph(&format!("mlp:inputs=3,hidden=4,layers={layers},classes=2"))
}

fn gpt(tied: bool) -> Graph {
    graph(&format!("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16,dropout=0.1,tied={tied}"))
}

fn mesh(dp: u32, cp: u32, tp: u32) -> Mesh {
    Mesh::of(dp, cp, tp)
}

fn uniform(pp: usize, mesh: Mesh, zero: u8) -> Uniform {
    Uniform {
        pp,
        mesh,
        global_batch: 4 * mesh.dp() as usize,
        microbatches: 4,
        sync: Sync { zero, bucket_bytes: 400, ..Sync::default() },
        clip_norm: Some(1.0),
        ..Uniform::default()
    }
}

fn planned(graph: &Graph, uniform: &Uniform) -> Plan {
    uniform.plan(graph, "model", "local")
}

fn case(name: impl Into<String>, graph: &Graph, plan: Plan) -> Case {
    Case { name: name.into(), graph: graph.clone(), plan }
}

fn kinds() -> impl Iterator<Item = ScheduleKind> {
    ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table)
}

pub fn schedules() -> Vec<Case> {
    let graph = perceptron(8);
    let of = |kind: ScheduleKind| {
        let clip_norm = kind.flushes().then_some(1.0);
        let base = uniform(4, Mesh::SINGLE, 0);
        let uniform =
            Uniform { schedule: kind, microbatches: 8, global_batch: 8, clip_norm, ..base };
        case(format!("schedule-{}", kind.name()), &graph, planned(&graph, &uniform))
    };
    kinds().map(of).collect()
}

pub fn validated() -> Vec<Case> {
    let graph = perceptron(8);
    let mut cases = vec![];
    for kind in kinds().filter(|kind| kind.flushes()) {
        let uniform = Uniform { schedule: kind, ..uniform(2, Mesh::SINGLE, 0) };
        let plan = Plan { post_validation: true, ..planned(&graph, &uniform) };
        cases.push(case(format!("validated-{}", kind.name()), &graph, plan));
    }
    for zero in 0..=3 {
        let plan = planned(&graph, &uniform(2, mesh(2, 1, 1), zero));
        let plan = Plan { post_validation: true, ..plan };
        cases.push(case(format!("validated-zero{zero}"), &graph, plan));
    }
    cases
}

pub fn served() -> Vec<Case> {
    let graph = perceptron(2);
    let of = |(workers, count, staleness): (u32, u32, u32)| {
        let plain = uniform(1, Mesh::SINGLE, 0);
        let servers = Some(Servers::of(count, Staleness::Within(staleness)));
        let sync = Sync { servers, bucket_bytes: 100, ..plain.sync };
        let mesh = Mesh::of(workers, 1, 1);
        let microbatches = plain.microbatches / workers as usize;
        let uniform = Uniform { sync, clip_norm: None, mesh, microbatches, ..plain };
        let plan = planned(&graph, &uniform);
        case(format!("served-{workers}-by-{count}-within-{staleness}"), &graph, plan)
    };
    [(2, 1, 0), (2, 2, 3)].map(of).into()
}

pub fn splits() -> Vec<Case> {
    let mut cases = vec![];
    for (tied, pp) in [(false, 1), (true, 1), (true, 2)] {
        let graph = gpt(tied);
        for (mesh, zeros) in
            [(mesh(2, 1, 1), 0..=3), (mesh(2, 1, 2), 0..=3), (mesh(1, 2, 1), 0..=3)]
        {
            for zero in zeros {
                let uniform = Uniform { sequence_parallel: true, ..uniform(pp, mesh, zero) };
                let [dp, cp, tp] = [Axis::DP, Axis::CP, Axis::TP].map(|axis| mesh.width(axis));
                let shape = format!("pp{pp}-dp{dp}-cp{cp}-tp{tp}");
                let tied = if tied { "-tied" } else { "" };
                let name = format!("split-{shape}-zero{zero}{tied}");
                cases.push(case(name, &graph, planned(&graph, &uniform)));
            }
        }
    }
    let graph = gpt(false);
    let plain = planned(&graph, &uniform(1, mesh(1, 1, 2), 0));
    cases.push(case("split-tp2", &graph, plain));
    for algorithm in [Algorithm::Direct, Algorithm::HalvingDoubling] {
        let mut uniform = uniform(1, mesh(2, 1, 2), 1);
        uniform.sync.algorithm = algorithm;
        cases.push(case(format!("split-{algorithm}"), &graph, planned(&graph, &uniform)));
    }
    let zero_bubble = Uniform {
        schedule: ScheduleKind::ZeroBubbleH1,
        sequence_parallel: true,
        ..uniform(2, mesh(2, 1, 2), 2)
    };
    cases.push(case("split-halves-zero2", &graph, planned(&graph, &zero_bubble)));
    let overlapped = Uniform {
        schedule: ScheduleKind::DualPipe,
        sequence_parallel: true,
        ..uniform(2, mesh(1, 1, 2), 0)
    };
    cases.push(case("split-dualpipe", &graph, planned(&graph, &overlapped)));
    cases
}

pub fn optimizers() -> Vec<Case> {
    let adafactor = Optimizer::Adafactor {
        decay_exponent: 0.8,
        clip: 1.0,
        least_parameter_rms: 1e-3,
        weight_decay: 0.0,
    };
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    let optimizers =
        [Optimizer::sgd(0.0), Optimizer::sgd(0.9), Optimizer::default(), lamb, adafactor];
    let graph = gpt(false);
    let mut cases = vec![];
    for optimizer in optimizers {
        for (mesh, zero) in [(mesh(2, 1, 1), 0), (mesh(2, 1, 2), 1), (mesh(2, 1, 1), 3)] {
            let uniform = Uniform { optimizer, clip_norm: None, ..uniform(1, mesh, zero) };
            let momentum = match optimizer {
                Optimizer::Sgd { momentum, .. } if momentum > 0.0 => "-momentum",
                _ => "",
            };
            let name = format!("optimizer-{}{momentum}-zero{zero}", optimizer.name());
            cases.push(case(name, &graph, planned(&graph, &uniform)));
        }
    }
    for zero in 0..=3 {
        let uniform = Uniform { precision: Precision::MIXED, ..uniform(1, mesh(2, 1, 1), zero) };
        cases.push(case(format!("mixed-zero{zero}"), &graph, planned(&graph, &uniform)));
    }
    cases
}

pub fn versions() -> Vec<Case> {
    let graph = perceptron(4);
    let newest = |corrections| Weights::Newest { corrections };
    let rules = [
        ("stash", Weights::Stash, 0),
        ("stash-zero1", Weights::Stash, 1),
        ("stash-zero3", Weights::Stash, 3),
        ("vertical-sync", Weights::VerticalSync, 0),
        ("double-buffer", Weights::DoubleBuffer, 0),
        ("double-buffer-zero2", Weights::DoubleBuffer, 2),
        ("newest", newest(Corrections::default()), 0),
        (
            "discrepancy",
            newest(Corrections {
                discrepancy: Some(0.135),
                anneal_steps: Some(2),
                ..Corrections::default()
            }),
            0,
        ),
        (
            "prediction",
            newest(Corrections { prediction: Some(Prediction::Weights), ..Corrections::default() }),
            0,
        ),
    ];
    let mut cases = vec![];
    for (name, weights, zero) in rules {
        let base = uniform(2, if zero > 0 { mesh(2, 1, 1) } else { Mesh::SINGLE }, zero);
        let uniform = Uniform { schedule: ScheduleKind::PipeDream, clip_norm: None, ..base };
        let plan = Plan { weights, ..planned(&graph, &uniform) };
        cases.push(case(format!("versions-{name}"), &graph, plan));
    }
    let spiked = Corrections {
        spike: Some(1.0),
        prediction: Some(Prediction::Velocity),
        ..Corrections::default()
    };
    let base = uniform(2, Mesh::SINGLE, 0);
    let uniform = Uniform {
        schedule: ScheduleKind::PipeDream,
        clip_norm: None,
        optimizer: Optimizer::sgd(0.9),
        ..base
    };
    let plan = Plan { weights: newest(spiked), ..planned(&graph, &uniform) };
    cases.push(case("versions-spike", &graph, plan));
    for updates in [Updates::Step, Updates::Round] {
        let mut plan = planned(&graph, &uniform);
        let mut devices = (0u32..).map(|device| DeviceList(vec![device]));
        let stages = plan.pipeline[0].stage.iter().zip([2, 1]);
        let stages: Vec<StageReplicas> = stages
            .map(|(stage, count)| StageReplicas {
                blocks: stage.blocks,
                mesh: Mesh::SINGLE,
                replicas: devices.by_ref().take(count).collect(),
            })
            .collect();
        plan.pipeline = pipelines_in_turn(&stages).expect("replicas that take turns");
        let plan = Plan { weights: Weights::Stash, updates, ..plan };
        cases.push(case(format!("versions-updates-{}", updates.name()), &graph, plan));
    }
    cases
}

pub fn recomputation() -> Vec<Case> {
    let graph = gpt(false);
    let mut cases = vec![];
    for recompute in [Recompute::Selective, Recompute::Full, Recompute::Stage] {
        let name = recompute.name();
        let uniform = Uniform {
            recompute,
            sequence_parallel: true,
            schedule: ScheduleKind::Afab,
            ..uniform(2, mesh(1, 1, 2), 0)
        };
        cases.push(case(format!("recompute-{name}"), &graph, planned(&graph, &uniform)));
        let spared = Plan { recompute_last: false, ..planned(&graph, &uniform) };
        cases.push(case(format!("recompute-{name}-except-last"), &graph, spared));
    }
    cases
}

pub fn skips() -> Vec<Case> {
    let graph = graph("u-transformer:layers=4,hidden=8,heads=2,seq=4,vocab=16");
    let mut cases = vec![];
    for (name, schedule, pp, mesh) in [
        ("1f1b", ScheduleKind::OneForwardOneBackward, 2, mesh(1, 1, 1)),
        ("1f1b-dp2-tp2", ScheduleKind::OneForwardOneBackward, 2, mesh(2, 1, 2)),
        ("zb-v", ScheduleKind::ZeroBubbleV, 2, mesh(1, 1, 1)),
    ] {
        let uniform = Uniform { schedule, ..uniform(pp, mesh, 0) };
        cases.push(case(format!("skips-{name}"), &graph, planned(&graph, &uniform)));
    }
    cases
}
