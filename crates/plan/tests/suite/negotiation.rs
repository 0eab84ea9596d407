//! Plans whose replicas agree while running on the order of their reductions, and what such plans cannot have.

use shardloom_plan::{
    Averaging, Communication, Compression, Mesh, Negotiation, Number, ParameterGroup, Plan,
    ScheduleKind, Servers, Staleness, Summation, Sync, Uniform,
};

use crate::scenario::graph;

fn uniform() -> Uniform {
    let sync = Sync { negotiation: Some(Negotiation::default()), ..Sync::default() };
    Uniform { mesh: Mesh::of(2, 1, 2), global_batch: 24, sync, ..Uniform::default() }
}

fn plan() -> Plan {
    uniform().plan(&graph(), "model", "local")
}

fn refusal(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = plan();
    assert_eq!(plan.validate(&graph(), 8), Ok(()));
    change(&mut plan);
    plan.validate(&graph(), 8).expect_err("no such plan").to_string()
}

#[test]
fn what_is_not_said_is_what_horovod_begins_with() {
    let plan = plan();
    assert_eq!(plan.communication, Communication::Thread);
    let text = plan.to_toml();
    assert_eq!(Plan::from_toml(&text, "plan.toml"), Ok(plan));
    let (before, rest) = text.split_once("[sync.negotiation]\n").expect("it is written");
    let rest = rest.split_once("\n\n").map_or("", |(_, rest)| rest);
    let read = Plan::from_toml(&format!("{before}[sync.negotiation]\n\n{rest}"), "plan.toml");
    let negotiation = read.expect("a plan").sync.negotiation.expect("it negotiates");
    assert_eq!((negotiation.cycle_seconds, negotiation.fusion_bytes), (0.001, 134_217_728));
}

#[test]
fn what_it_does_not_go_with_is_named() {
    let cycle = |cycle_seconds| {
        refusal(|plan| {
            let fusion_bytes = 0;
            plan.sync.negotiation = Some(Negotiation { cycle_seconds, fusion_bytes });
        })
    };
    for seconds in [-1.0, 60.5, f64::NAN, f64::INFINITY] {
        let error = cycle(seconds);
        assert!(error.contains("sync.negotiation.cycle_seconds"), "{error}");
        assert!(error.contains("from 0 to 60 seconds"), "{error}");
    }
    let group = |change: &dyn Fn(&mut ParameterGroup)| {
        refusal(|plan| {
            let mut group = ParameterGroup::named("*weight");
            change(&mut group);
            plan.parameters.push(group);
        })
    };
    let rounded = Compression::Rounded { to: Number::Fp16, feedback: false };
    let mut plan = plan();
    plan.sync.compression = rounded;
    assert_eq!(plan.validate(&graph(), 8), Ok(()));
    let one_worker = |sync: fn(&mut Sync)| {
        refusal(|plan| {
            *plan = Uniform { mesh: Mesh::SINGLE, ..uniform() }.plan(&graph(), "model", "local");
            sync(&mut plan.sync);
        })
    };
    for (error, key, rule) in [
        (refusal(|it| it.communication = Communication::InLine), "communication", "thread"),
        (refusal(|it| it.sync.zero = 1), "sync.zero", "zero = 0"),
        (group(&|it| it.zero = Some(2)), "parameters[0].zero", "in groups of parameters too"),
        (group(&|it| it.bucket_bytes = Some(10)), "parameters[0].bucket_bytes", "leave it out"),
        (refusal(|it| it.sync.compression = Compression::OneBit), "sync.compression", "fp16"),
        (
            refusal(|it| it.sync.averaging = Some(Averaging::local_sgd(2))),
            "sync.averaging",
            "by their gradients",
        ),
        (
            one_worker(|it| {
                it.servers = Some(Servers::of(1, Staleness::SYNCHRONOUS));
            }),
            "sync.servers",
            "no servers",
        ),
        (one_worker(|it| it.summation = Some(Summation::of(1))), "sync.summation", "no servers"),
        (
            refusal(|it| {
                let schedule = ScheduleKind::PipeDream;
                let uniform = Uniform { pp: 2, schedule, microbatches: 4, ..uniform() };
                *it = Uniform { clip_norm: None, ..uniform }.plan(&graph(), "model", "local");
            }),
            "weights.rule",
            "a schedule with a flush",
        ),
        (
            refusal(|it| {
                let schedule = ScheduleKind::Chimera;
                let uniform = Uniform { pp: 2, schedule, microbatches: 4, ..uniform() };
                *it = uniform.plan(&graph(), "model", "local");
            }),
            "pipeline",
            "there is one pipeline",
        ),
    ] {
        assert!(error.contains(key) && error.contains(rule), "{error}");
    }
}
