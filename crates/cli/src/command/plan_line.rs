//! A plan in one line.

use std::collections::BTreeSet;

use shardloom::plan::{
    Arrangement, AttentionKind, Averaging, Axis, AxisSet, ParameterGroup, Partners, Plan, Push,
    SendOrder, Share, Updates,
};
use shardloom::program::quantity::counted;

/// [`split_line`], and whether some parameters are frozen.
pub fn plan_line(plan: &Plan) -> String {
    let frozen = plan.parameters.iter().any(|group| group.frozen);
    format!("{}{}", split_line(plan), if frozen { ", some parameters frozen" } else { "" })
}

/// Devices, stages, mesh, ZeRO, schedule, micro-batches, recomputation and attention.
fn split_line(plan: &Plan) -> String {
    let turns = turns(plan);
    let own = plan.stages().filter(|(_, stage)| stage.recompute.is_some()).count();
    let recompute = match own {
        0 => plan.recompute.name().to_owned(),
        _ => format!("{}, of its own in {}", plan.recompute.name(), counted(own, "stage")),
    };
    let attention = match (plan.attention, plan.mask_documents) {
        (AttentionKind::Unfused, false) => "",
        (AttentionKind::Unfused, true) => ", attention within documents",
        (AttentionKind::Fused, false) => ", attention fused",
        (AttentionKind::Fused, true) => ", attention fused and within documents",
    };
    let (stages, pipelines) = match &turns {
        Some(replicas) => (replicas.len(), 1),
        None => (plan.stages().count(), plan.pipeline.len()),
    };
    let meshes: Vec<String> = plan.stages().map(|(_, stage)| stage.mesh.to_string()).collect();
    let mesh = match meshes.split_first() {
        Some((first, rest)) if rest.iter().all(|each| each == first) => first.clone(),
        _ => meshes.join(" | "),
    };
    let groups: BTreeSet<&[u32]> = plan.stages().map(|(_, stage)| &stage.devices.0[..]).collect();
    let each = match turns.is_none() && groups.len() < stages && stages.is_multiple_of(groups.len())
    {
        true => format!(", {} on each device,", stages / groups.len()),
        false => String::new(),
    };
    let sequence = plan.layout.splits("seq", Axis::TP);
    let schedule = match stages {
        1 => String::new(),
        _ => format!("{} with ", plan.schedule.name()),
    };
    let replicas = turns.map_or_else(String::new, |replicas| {
        let counts: Vec<String> = replicas.iter().map(usize::to_string).collect();
        let updates = match plan.updates {
            Updates::Step => "",
            Updates::Round => ", updated after each round",
        };
        let shares = plan.shares();
        let share = match shares.iter().all(|share| *share == shares[0]) {
            true => format!("that take turns{updates}"),
            false => {
                let shares: Vec<String> = shares.iter().map(usize::to_string).collect();
                format!("with {} micro-batches of a step", shares.join("-"))
            }
        };
        format!(" with {} replicas {share}, each", counts.join("-"))
    });
    if let Some(servers) = plan.sync.servers {
        let replicas = match servers.replicas {
            0 => String::new(),
            replicas => format!(" with {} of each range", counted(replicas as usize, "replica")),
        };
        let pushed = match servers.push {
            Push::Gradients => "",
            Push::Deltas => ", which are pushed deltas",
        };
        let own = servers.left(0).count();
        return format!(
            "{}: {}{replicas}{pushed}, staleness {}, {} of {}, recompute {}{attention}",
            counted(plan.device_count(), "device"),
            workers_and(plan, "server", own),
            servers.staleness,
            counted(plan.microbatches, "micro-batch"),
            counted(plan.microbatch_samples(), "sample"),
            recompute,
        );
    }
    if let Some(summation) = plan.sync.summation {
        let share = match summation.share {
            _ if plan.parameters.iter().any(|group| group.servers.is_some()) => {
                let on_servers = |group: &ParameterGroup| {
                    let servers = group.servers.as_ref().is_some_and(|it| !it.is_empty());
                    group.sparse == Some(true) && servers
                };
                let tables = plan.parameters.iter().any(on_servers);
                let tables = if tables { " and with tables" } else { "" };
                format!(", by groups of parameters{tables}")
            }
            Share::Part(1.0) => String::new(),
            _ if summation.servers == 0 => String::new(),
            share => {
                let part = share.part(plan.pipeline.len(), summation.servers);
                format!(" of {:.1}% of gradients", 100.0 * part)
            }
        };
        let order = match summation.order {
            SendOrder::Backward => "",
            SendOrder::NextUse if plan.looks_at_norm() => {
                ", sent by next use (the next step waits for all of it, as the norm of all gradients does)"
            }
            SendOrder::NextUse => ", sent by next use",
        };
        return format!(
            "{}: {}{share}{order}, {} of {}, recompute {}{attention}",
            counted(plan.device_count(), "device"),
            workers_and(plan, "summing server", summation.servers as usize),
            counted(plan.microbatches, "micro-batch"),
            counted(plan.microbatch_samples(), "sample"),
            recompute,
        );
    }
    let zeros: BTreeSet<u8> = plan.syncs().map(|sync| sync.zero).collect();
    let zeros: Vec<String> = zeros.iter().map(u8::to_string).collect();
    let over: BTreeSet<String> = plan
        .syncs()
        .filter(|sync| sync.zero > 0)
        .filter_map(|sync| sync.shard_over)
        .map(axes)
        .collect();
    let over: Vec<String> = over.into_iter().collect();
    let mut zero = zeros.join(" and ");
    if !over.is_empty() {
        zero += &format!(" over {}", over.join(" and "));
    }
    if let Some(over) = plan.sync.second_copy_over {
        zero += &format!(" with a second copy over {}", axes(over));
    }
    let mut kept = match plan.sync.averaging {
        None => format!("ZeRO {zero}"),
        Some(Averaging { partners: Partners::One, .. }) => "averaged in pairs every step".into(),
        Some(Averaging { every: 1, .. }) => "averaged every step".into(),
        Some(Averaging { every, .. }) => format!("averaged every {every} steps"),
    };
    if let Some(until) = plan.averaging_ends() {
        kept += &format!(" until step {until}");
    }
    format!(
        "{}: {}{}{each}{replicas} of {mesh}{}, {kept}, {schedule}{} of {}, recompute {}{}{attention}{}{}{}",
        counted(plan.device_count(), "device"),
        counted(stages, "stage"),
        if pipelines > 1 {
            format!(" in {}", counted(pipelines, "pipeline"))
        } else {
            String::new()
        },
        if sequence { " with sequence parallelism" } else { "" },
        counted(plan.microbatches, "micro-batch"),
        counted(plan.microbatch_samples(), "sample"),
        recompute,
        if plan.spares_last() { " except the last" } else { "" },
        if plan.post_validation { ", post-validation" } else { "" },
        exchanged(plan),
        if plan.sync.negotiation.is_some() { ", reductions negotiated" } else { "" }
    )
}

/// The names of axes, as a mesh has them.
fn axes(over: AxisSet) -> String {
    over.iter().map(|axis| axis.to_string()).collect::<Vec<_>>().join(" x ")
}

/// How replicas compress their gradients, if some do, and whether some are rows of tables.
fn exchanged(plan: &Plan) -> String {
    let sparse = plan.syncs().any(|sync| sync.sparse);
    format!("{}{}", compressed(plan), if sparse { ", sparse gradients" } else { "" })
}

fn compressed(plan: &Plan) -> String {
    let all: BTreeSet<String> = plan
        .syncs()
        .filter(|sync| !sync.compression.is_none())
        .map(|sync| sync.compression.to_string())
        .collect();
    match all.is_empty() {
        true => String::new(),
        false => format!(", gradients by {}", all.into_iter().collect::<Vec<_>>().join(" and ")),
    }
}

/// How many replicas each stage has that take micro-batches in turn, if some stage has several.
fn turns(plan: &Plan) -> Option<Vec<usize>> {
    let takes_turns = plan.schedule.arrangement() == Some(Arrangement::TakingTurns);
    if !takes_turns || plan.pipeline.len() < 2 {
        return None;
    }
    let devices = |stage: usize| -> BTreeSet<&[u32]> {
        let stages = plan.pipeline.iter().filter_map(|it| it.stage.get(stage));
        stages.map(|stage| &stage.devices.0[..]).collect()
    };
    Some((0..plan.pipeline[0].stage.len()).map(|stage| devices(stage).len()).collect())
}

/// The workers of a plan, and its servers: so many on machines of their own, and those on the workers' devices.
fn workers_and(plan: &Plan, kind: &str, own: usize) -> String {
    let workers = counted(plan.pipeline.len(), "worker");
    match (plan.sync.has_colocated_servers(), own) {
        (false, _) => format!("{workers} and {}", counted(own, kind)),
        (true, 0) => format!("{workers}, each with a {kind}"),
        (true, _) => format!("{workers}, each with a {kind}, and {} besides", counted(own, kind)),
    }
}

#[cfg(test)]
mod tests {
    use shardloom::plan::{
        DeviceList, Mesh, ParameterGroup, Pipeline, Recompute, ScheduleKind, SendOrder, Servers,
        Share, Stage, Staleness, Summation, Sync, Uniform,
    };
    use shardloom::{Model, uniform_plan};

    use super::{Plan, plan_line};

    #[test]
    fn what_is_not_computed_twice_has_no_exceptions() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let line = |recompute| {
            let numbers = Uniform { recompute, ..numbers(ScheduleKind::Afab, 2, 4) };
            let plan = uniform_plan(&model, &numbers, "local:4").expect("a plan");
            plan_line(&Plan { recompute_last: false, ..plan })
        };
        assert!(line(Recompute::None).ends_with("recompute none"));
        assert!(line(Recompute::Stage).ends_with("recompute stage except the last"));
    }

    #[test]
    fn servers_are_said_with_whether_they_are_on_workers_devices() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let line = |sync| {
            let numbers =
                Uniform { sync, mesh: Mesh::of(4, 1, 1), ..numbers(ScheduleKind::Afab, 1, 1) };
            let plan = uniform_plan(&model, &numbers, "local:8").expect("a plan");
            plan_line(&plan).split(", 4 ").next().expect("a beginning").to_owned()
        };
        let summed = |servers, colocated| {
            let share = Share::Part(0.25);
            let summation = Summation { colocated, share, ..Summation::of(servers) };
            line(Sync { summation: Some(summation), ..Sync::default() })
        };
        let held = |count, colocated| {
            let servers = Servers { colocated, ..Servers::of(count, Staleness::SYNCHRONOUS) };
            line(Sync { servers: Some(servers), ..Sync::default() })
        };
        assert_eq!(
            summed(2, false),
            "6 devices: 4 workers and 2 summing servers of 25.0% of gradients"
        );
        assert_eq!(
            summed(1, true),
            "5 devices: 4 workers, each with a summing server, and 1 summing server besides of 25.0% of gradients"
        );
        assert_eq!(summed(0, true), "4 devices: 4 workers, each with a summing server");
        assert_eq!(held(2, false), "6 devices: 4 workers and 2 servers, staleness 0");
        assert_eq!(
            held(1, true),
            "5 devices: 4 workers, each with a server, and 1 server besides, staleness 0"
        );
    }

    #[test]
    fn sending_by_next_use_is_said_with_whether_the_next_step_waits_for_all_of_it() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let line = |order, clip_norm| {
            let summation = Summation { order, colocated: true, ..Summation::of(0) };
            let sync = Sync { summation: Some(summation), ..Sync::default() };
            let numbers = Uniform { sync, clip_norm, ..numbers(ScheduleKind::Afab, 1, 1) };
            plan_line(&uniform_plan(&model, &numbers, "local:2").expect("a plan"))
        };
        assert!(!line(SendOrder::Backward, Some(1.0)).contains("next use"));
        let begins = line(SendOrder::NextUse, None);
        assert!(begins.contains(", sent by next use, 2 micro-batches"), "{begins}");
        let waits = "sent by next use (the next step waits for all of it, as the norm of all gradients does)";
        let clipped = line(SendOrder::NextUse, Some(1.0));
        assert!(clipped.contains(waits), "{clipped}");
    }

    #[test]
    fn frozen_parameters_are_said_whatever_keeps_replicas_equal() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let summation = Some(Summation::of(1));
        for sync in [Sync::default(), Sync { summation, ..Sync::default() }] {
            let mesh = Mesh::of(2, 1, 1);
            let uniform = Uniform { mesh, sync, global_batch: 2, ..Uniform::default() };
            let mut plan = uniform_plan(&model, &uniform, "local:3").expect("a plan");
            assert!(!plan_line(&plan).contains("frozen"));
            let frozen = ParameterGroup { frozen: true, ..ParameterGroup::named("block.*") };
            plan.parameters.push(frozen);
            let line = plan_line(&plan);
            assert!(line.ends_with(", some parameters frozen"), "{line}");
            assert!(!line.contains("by groups of parameters"), "{line}");
        }
    }

    fn numbers(schedule: ScheduleKind, pp: usize, microbatches: usize) -> Uniform {
        Uniform {
            pp,
            mesh: Mesh::of(2, 1, 1),
            global_batch: 8,
            microbatches,
            schedule,
            ..Uniform::default()
        }
    }

    #[test]
    fn one_is_not_many_and_a_single_stage_has_no_schedule() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let line = |schedule, pp, microbatches| {
            let numbers = numbers(schedule, pp, microbatches);
            plan_line(&uniform_plan(&model, &numbers, "local:4").expect("a plan"))
        };
        assert_eq!(
            line(ScheduleKind::Afab, 1, 1),
            "2 devices: 1 stage of dp 2, ZeRO 0, 1 micro-batch of 8 samples, recompute none"
        );
        assert_eq!(
            line(ScheduleKind::Afab, 2, 4),
            "4 devices: 2 stages of dp 2, ZeRO 0, afab with 4 micro-batches of 2 samples, recompute none"
        );
        let chimera = "4 devices: 4 stages in 2 pipelines, 2 on each device, of dp 2, ZeRO 0, chimera \
                       with 4 micro-batches of 2 samples, recompute none";
        assert_eq!(line(ScheduleKind::Chimera, 2, 4), chimera);
    }

    #[test]
    fn who_shares_is_said_where_not_all_do() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let line = |mesh, zero| {
            let sync = Sync { zero, ..Sync::default() };
            let numbers = Uniform { mesh, sync, ..numbers(ScheduleKind::Afab, 1, 1) };
            plan_line(&uniform_plan(&model, &numbers, "local:4").expect("a plan"))
        };
        let pairs = |mesh: Mesh| mesh.sharing_within(2).expect("two pairs");
        let all = line(Mesh::of(4, 1, 1), 2);
        assert!(all.contains("of dp 4, ZeRO 2, 1 micro-batch"), "{all}");
        let some = line(pairs(Mesh::of(4, 1, 1)), 2);
        assert!(some.contains("of replica 2 x dp 2, ZeRO 2 over dp, 1 micro-batch"), "{some}");
        let long = line(pairs(Mesh::of(4, 2, 1)), 1);
        assert!(long.contains("of replica 2 x dp 2 x cp 2, ZeRO 1 over dp x cp"), "{long}");
    }

    #[test]
    fn unequal_shares_are_said() {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=16").expect("a model");
        let numbers = numbers(ScheduleKind::OneForwardOneBackward, 1, 4);
        let mut plan = uniform_plan(&model, &numbers, "local:4").expect("a plan");
        let pipeline = |(device, share)| {
            let stage = Stage::new((0, 4), Mesh::SINGLE, DeviceList(vec![device]));
            Pipeline { microbatches: Some(share), ..Pipeline::of(vec![stage]) }
        };
        plan.pipeline = [(0, 3), (1, 1)].map(pipeline).into();
        assert_eq!(
            plan_line(&plan),
            "2 devices: 1 stage with 2 replicas with 3-1 micro-batches of a step, each of 1 device, ZeRO 0, \
             4 micro-batches of 2 samples, recompute none"
        );
        plan.pipeline = [(0, 2), (1, 2)].map(pipeline).into();
        assert!(plan_line(&plan).contains("1 stage with 2 replicas that take turns, each of"));
    }
}
