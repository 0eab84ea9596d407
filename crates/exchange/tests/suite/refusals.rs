//! What a project cannot have of a plan's shape, beside what it can.

use shardloom_exchange::{Given, Machines, Project, export, import};
use shardloom_graph::ModelSpec;
use shardloom_plan::{
    AttentionKind, Axis, AxisSet, Mesh, Plan, Recompute, ScheduleKind, Sync, Uniform,
};

use crate::plans::{Case, LLAMA, NAMES, numbers, plan, plan_with_experts};

/// The refusal of a plan; none if it is written.
fn refusal(plan: Plan, project: Project) -> Option<String> {
    let case = Case::of("a plan", plan);
    let exported = export(project, &case.plan, &case.spec, &case.graph, case.machines());
    exported.err().map(|error| error.to_string())
}

#[track_caller]
fn refuses(plan: Plan, project: Project, key: &str) {
    let found = refusal(plan, project).expect("there is no word for it");
    assert!(found.starts_with(&format!("{project} has no word for {key} = ")), "{found}");
}

#[test]
fn all_machines_have_as_many_devices_as_the_plan() {
    for name in NAMES {
        let case = crate::plans::case(name);
        let count = case.plan.device_count();
        for project in Project::ALL {
            let written = |nodes, devices| {
                let machines = Machines { nodes, devices };
                export(project, &case.plan, &case.spec, &case.graph, machines).is_ok()
            };
            if !written(1, count) {
                continue;
            }
            for (nodes, devices) in (0..=4).flat_map(|it| (0..=count + 1).map(move |d| (it, d))) {
                let fits = nodes * devices == count;
                assert_eq!(written(nodes, devices), fits, "{name} on {nodes} x {devices}");
            }
        }
    }
}

#[test]
fn without_a_pipeline_each_backward_pass_follows_its_forward_pass() {
    for project in Project::ALL {
        for microbatches in [1, 2, 4] {
            for schedule in [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward] {
                let sync = Sync { zero: 2, ..Sync::default() };
                let sync = if project == Project::Nanotron { Sync::default() } else { sync };
                let numbers = Uniform {
                    mesh: Mesh::of(4, 1, 1),
                    recompute: Recompute::None,
                    schedule,
                    microbatches,
                    sync,
                    ..numbers()
                };
                let attention = AttentionKind::Fused;
                let plan = Plan { attention, ..plan(LLAMA, &numbers, 1) };
                let is_usual = schedule == ScheduleKind::OneForwardOneBackward;
                // nanotron runs all forward passes first where it is told so.
                let takes = is_usual || microbatches == 1 || project == Project::Nanotron;
                match takes {
                    true => assert_eq!(refusal(plan, project), None),
                    false => refuses(plan, project, "schedule"),
                }
            }
        }
    }
}

#[test]
fn megatron_computes_stages_again_that_have_as_many_layers() {
    let stages = |blocks: [(usize, usize); 2]| {
        let recompute = Recompute::Stage;
        let mut plan = plan(LLAMA, &Uniform { pp: 2, recompute, ..numbers() }, 1);
        for (stage, blocks) in plan.pipeline[0].stage.iter_mut().zip(blocks) {
            stage.blocks = blocks;
        }
        plan
    };
    // The embedding and 12 layers and the head.
    for cut in 1..14 {
        let plan = stages([(0, cut), (cut, 14)]);
        match cut {
            7 => assert_eq!(refusal(plan, Project::Megatron), None),
            _ => refuses(plan, Project::Megatron, "recompute"),
        }
    }
}

#[test]
fn experts_are_alone_on_their_devices() {
    let of = |mesh| {
        let sync = Sync { zero: 1, ..Sync::default() };
        plan_with_experts(&Uniform { mesh, sync, ..numbers() }, 2)
    };
    assert_eq!(refusal(of(Mesh::of(4, 1, 1)), Project::Megatron), None);
    refuses(of(Mesh::of(2, 2, 1)), Project::Megatron, "pipeline.stage.mesh.cp");
    refuses(of(Mesh::of(2, 1, 2)), Project::Megatron, "pipeline.stage.mesh.tp");
    refuses(of(Mesh::of(2, 2, 2)), Project::Megatron, "pipeline.stage.mesh.tp");
}

/// Groups of replicas in which only the ranks of a sequence share.
#[test]
fn accelerate_shares_among_two_replicas_or_more() {
    for (groups, sharers) in [(2, 1), (2, 2), (4, 1), (4, 2)] {
        let mesh = Mesh::of(sharers, 2, 1).with(Axis::REPLICA, groups);
        let sync = Sync { zero: 3, ..Sync::default() };
        let numbers = Uniform { mesh, sync, recompute: Recompute::None, ..numbers() };
        let plan = plan(LLAMA, &numbers, 1);
        match sharers {
            1 => refuses(plan, Project::Accelerate, "sync.shard_over"),
            _ => assert_eq!(refusal(plan, Project::Accelerate), None),
        }
    }
}

/// In any of its sizes.
#[test]
fn a_model_that_is_named_has_the_sizes_that_megatrons_arguments_give() {
    let numbers = Uniform { mesh: Mesh::of(4, 1, 1), recompute: Recompute::None, ..numbers() };
    let case = Case::of("a plan", plan(LLAMA, &numbers, 1));
    let exported = export(Project::Megatron, &case.plan, &case.spec, &case.graph, case.machines());
    let file = &exported.expect("written").files[0];
    for (from, to) in [
        ("", ""),
        ("layers=12", "layers=10"),
        ("hidden=512", "hidden=1024"),
        ("heads=8", "heads=16"),
        ("seq=1024", "seq=512"),
        ("ffn=1408", "ffn=1536"),
    ] {
        assert!(LLAMA.contains(from), "{from}");
        let named = ModelSpec::parse(&LLAMA.replacen(from, to, 1)).expect("a model");
        let given = Given {
            model: Some(&named),
            cluster: &case.plan.cluster,
            devices: case.plan.device_count(),
            global_batch: None,
            microbatches: None,
            table: None,
        };
        match import(Project::Megatron, &file.text, file.name, &given) {
            Ok(found) => assert_eq!((from, found.spec.network()), ("", named.network())),
            Err(error) => {
                let size = to.split_once('=').map_or("", |(_, size)| size);
                let cure =
                    if from.starts_with("seq") { "; with --seq 1024 it has as many" } else { "" };
                let part = format!(": the model of --model has {size}{cure}");
                assert!(error.to_string().ends_with(&part), "{from}: {error}");
            }
        }
    }
}

/// Which other projects take as it is.
#[test]
fn a_base_of_rotary_embeddings_goes_to_megatron_where_it_is_whole() {
    let numbers = Uniform { mesh: Mesh::of(4, 1, 1), recompute: Recompute::None, ..numbers() };
    for (theta, is_whole) in
        [("1", true), ("10000", true), ("500000", true), ("10000.5", false), ("0.5", false)]
    {
        let model = LLAMA.replace("rope_theta=500000", &format!("rope_theta={theta}"));
        let of = || Plan { attention: AttentionKind::Fused, ..plan(&model, &numbers, 1) };
        match is_whole {
            true => assert_eq!(refusal(of(), Project::Megatron), None, "{theta}"),
            false => refuses(of(), Project::Megatron, "model"),
        }
        assert_eq!(refusal(of(), Project::Torchtitan), None, "{theta}");
    }
}

/// Where each group of replicas has all experts, there is no word for who has which.
#[test]
fn experts_are_dealt_along_dp_where_that_is_all_of_the_replicas() {
    let of = |mesh: Mesh, batch: &str| {
        let sync = Sync { zero: 1, ..Sync::default() };
        let mut plan = plan_with_experts(&Uniform { mesh, sync, ..numbers() }, 1);
        let rules = format!("expert:dp, {batch}, seq:cp, heads:tp, ffn:tp, vocab:tp");
        plan.layout = rules.try_into().expect("rules");
        plan
    };
    let all = of(Mesh::of(4, 1, 1), "batch:dp");
    assert_eq!(refusal(all, Project::Megatron), None);
    let groups = Mesh::of(2, 1, 1).with(Axis::REPLICA, 2);
    refuses(of(groups, "batch:replica, batch:dp"), Project::Megatron, "layout");
}

/// Two replicas of sequences that two ranks have: all share, those of a sequence do, or nobody does.
#[test]
fn ranks_of_a_sequence_share_what_replicas_share() {
    let of = |axes: &[Axis]| {
        let mesh = Mesh::of(1, 2, 1).with(Axis::REPLICA, 2);
        let sync = Sync { zero: 3, ..Sync::default() };
        let numbers = Uniform { mesh, sync, recompute: Recompute::None, ..numbers() };
        let mut plan = Plan { attention: AttentionKind::Fused, ..plan(LLAMA, &numbers, 1) };
        plan.sync.shard_over = AxisSet::of(axes);
        plan
    };
    for project in [Project::Torchtitan, Project::Accelerate] {
        let found = refusal(of(&[Axis::CP]), project);
        assert!(found.is_none() || project == Project::Accelerate, "{found:?}");
        for axes in [&[Axis::DP][..], &[Axis::REPLICA], &[Axis::DP, Axis::REPLICA]] {
            refuses(of(axes), project, "sync.shard_over");
        }
    }
}

/// Neighbours have all experts between them, and samples of their own.
#[test]
fn samples_are_split_over_the_ranks_that_experts_are_dealt_to_after_all_others() {
    let of = |batch: &str| {
        let sync = Sync { zero: 1, ..Sync::default() };
        let mut plan =
            plan_with_experts(&Uniform { mesh: Mesh::of(2, 1, 1), sync, ..numbers() }, 2);
        let rules = format!("expert:ep, {batch}, seq:cp, heads:tp, ffn:tp, vocab:tp");
        plan.layout = rules.try_into().expect("rules");
        plan
    };
    assert_eq!(refusal(of("batch:dp, batch:ep"), Project::Megatron), None);
    refuses(of("batch:ep, batch:dp"), Project::Megatron, "layout");
}
