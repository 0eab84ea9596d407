//! A plan that was exported and imported again is the same plan.

use crate::plans::{Case, EXPERTS, LLAMA, NAMES, numbers, plan};
use shardloom_exchange::{ExchangeError, Given, Imported, Project, export, import};
use shardloom_plan::{
    AttentionKind, LossScale, Mesh, Number, Plan, Precision, Recompute, Sync, Uniform,
};

pub fn there_and_back(case: &Case, project: Project) -> Result<Imported, ExchangeError> {
    let exported = export(project, &case.plan, &case.spec, &case.graph, case.machines())?;
    // torchtitan's script only starts what is beside it.
    let file = match project {
        Project::Torchtitan => &exported.files[1],
        _ => &exported.files[0],
    };
    let table = exported.files.iter().find(|it| it.name == "schedule.csv");
    let described = matches!(project, Project::Megatron | Project::Nanotron | Project::Torchtitan);
    let given = Given {
        model: (!described || case.plan.model == EXPERTS).then_some(&case.spec),
        cluster: &case.plan.cluster,
        devices: case.plan.device_count(),
        global_batch: Some(case.plan.global_batch),
        microbatches: Some(case.plan.microbatches),
        table: table.map(|it| (it.name, &it.text[..])),
    };
    import(project, &file.text, file.name, &given)
}

/// Asserts that a plan comes back as `expected`, but for the name of its model, which is told by its sizes.
pub fn assert_back(case: &Case, project: Project, expected: &Plan) {
    let back =
        there_and_back(case, project).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    assert_eq!(back.spec.network(), case.spec.network(), "{}", case.name);
    let back = Plan { model: expected.model.clone(), ..back.plan };
    assert_eq!(back.to_toml(), expected.to_toml(), "{} by {project}", case.name);
}

#[test]
fn what_a_project_says_in_full_comes_back_the_same() {
    let full = [
        ("interleaved-3d", Project::Megatron),
        ("uneven-stages", Project::Megatron),
        ("sharded-states", Project::Megatron),
        ("replicated-gpt", Project::Megatron),
        ("fully-sharded", Project::Megatron),
        ("context-parallel", Project::Megatron),
        ("hybrid-sharded", Project::Megatron),
        ("hybrid-states", Project::Megatron),
        ("eight-bits", Project::Megatron),
        ("fully-sharded", Project::Torchtitan),
    ];
    for (name, project) in full {
        let case = crate::plans::case(name);
        assert_back(&case, project, &case.plan);
    }
}

#[test]
fn what_a_script_says_has_to_be_said_again() {
    // Recomputation of DeepSpeed, optimizer, clipping and batch of Accelerate are the training script's.
    let case = crate::plans::case("fully-sharded");
    for name in ["fully-sharded", "sharded-states", "replicated-gpt"] {
        let case = crate::plans::case(name);
        let unsaid = AttentionKind::Fused;
        let expected = Plan { recompute: Recompute::None, attention: unsaid, ..case.plan.clone() };
        assert_back(&case, Project::DeepSpeed, &expected);
    }
    let attention = AttentionKind::Fused;
    let expected = Plan { clip_norm: None, attention, ..case.plan.clone() };
    assert_back(&case, Project::Accelerate, &expected);
}

#[test]
fn in_fp16_the_scale_of_the_loss_goes_along() {
    let of = |loss_scale, gradients| {
        let precision = Precision { compute: Number::Fp16, gradients, ..Precision::MIXED };
        let sync = Sync { zero: 0, ..numbers().sync };
        let (mesh, recompute) = (Mesh::of(2, 1, 1), Recompute::None);
        let numbers = Uniform { mesh, precision, sync, recompute, ..numbers() };
        let attention = AttentionKind::Fused;
        Plan { loss_scale: Some(loss_scale), attention, ..plan(LLAMA, &numbers, 1) }
    };
    let changing = LossScale::Dynamic { initial: 4096.0, growth_interval: 50 };
    for project in [Project::Megatron, Project::DeepSpeed] {
        for scale in [LossScale::Constant { scale: 128.0 }, changing] {
            let plan = of(scale, Number::Fp16);
            let case = Case::of("in fp16", plan.clone());
            assert_back(&case, project, &plan);
            // Nothing of it is done otherwise there.
            let back = there_and_back(&case, project).expect("a plan");
            assert!(back.notes.iter().all(|note| !note.contains("halved")), "{:?}", back.notes);
        }
    }

    // Accelerate's configuration says nothing of it: it is PyTorch's.
    let unsaid = |scale| {
        let plan = of(scale, Number::Fp32);
        let case = Case::of("in fp16", plan.clone());
        let usual = Plan { loss_scale: Some(LossScale::dynamic()), clip_norm: None, ..plan };
        assert_back(&case, Project::Accelerate, &usual);
        let exported =
            export(Project::Accelerate, &case.plan, &case.spec, &case.graph, case.machines());
        let unsaid = exported.expect("it is said").unsaid;
        unsaid.iter().any(|it| it.key == "loss_scale")
    };
    assert!(unsaid(changing) && !unsaid(LossScale::dynamic()));

    // Nor is any other than a power of two.
    let odd = LossScale::Dynamic { initial: 100.0, growth_interval: 50 };
    let case = Case::of("in fp16", of(odd, Number::Fp16));
    let refused = there_and_back(&case, Project::DeepSpeed).expect_err("it is refused");
    assert!(refused.to_string().contains("power of two"), "{refused}");
}

#[test]
fn every_case_goes_somewhere_and_what_is_refused_says_why() {
    for name in NAMES {
        let case = crate::plans::case(name);
        let mut taken = 0;
        for project in Project::ALL {
            match export(project, &case.plan, &case.spec, &case.graph, case.machines()) {
                Ok(_) => taken += 1,
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with(&format!("{project} has no word for ")), "{text}");
                }
            }
        }
        assert!(taken > 0, "{name} goes nowhere");
    }
}

#[test]
fn nanotron_keeps_what_is_gathered_or_gathers_it_again() {
    for keeps_gathered in [false, true] {
        // 25 MiB of a rank's weights in bf16, whose gradients are in fp32.
        let sync = Sync { bucket_bytes: 4 * (50 << 20), splits_blocks: true, ..numbers().sync };
        let (mesh, recompute) = (Mesh::of(2, 1, 4), Recompute::Block);
        let numbers = Uniform { mesh, sequence_parallel: true, recompute, sync, ..numbers() };
        let attention = AttentionKind::Fused;
        let plan = Plan { keeps_gathered, attention, ..plan(LLAMA, &numbers, 1) };
        let case = Case::of("gathered", plan.clone());
        assert_back(&case, Project::Nanotron, &plan);
    }
}

/// Under ZeRO-1 it all-reduces gradients, and no other project does.
#[test]
fn nanotron_all_reduces_gradients_of_which_replicas_update_shares() {
    for all_reduces in [false, true] {
        let sync = Sync { zero: 1, all_reduces, ..numbers().sync };
        let (mesh, recompute) = (Mesh::of(2, 1, 4), Recompute::Block);
        let numbers = Uniform { mesh, sequence_parallel: true, recompute, sync, ..numbers() };
        let attention = AttentionKind::Fused;
        let case = Case::of("shared", Plan { attention, ..plan(LLAMA, &numbers, 1) });
        let back = there_and_back(&case, Project::Nanotron).expect("it is said").plan;
        assert!(back.sync.all_reduces && back.sync.zero == 1, "{}", back.to_toml());
        let said = |project| {
            let exported = export(project, &case.plan, &case.spec, &case.graph, case.machines());
            let unsaid = exported.expect("it is said").unsaid;
            let found = unsaid.into_iter().find(|it| it.key == "sync.all_reduces");
            found.map(|it| it.value)
        };
        assert_eq!(said(Project::Nanotron), (!all_reduces).then(|| "false".into()));
        assert_eq!(said(Project::Megatron), all_reduces.then(|| "true".into()));
    }
}

/// Plans count buckets over all tensor-parallel ranks, in bytes of gradients; Megatron-LM and DeepSpeed count a rank's
/// parameters, nanotron mebibytes of a rank's weights, and it fills buckets by parameters whatever a plan says.
#[test]
fn buckets_are_counted_as_each_project_counts_them() {
    let of = |project, splits_blocks| {
        let sync = Sync { bucket_bytes: 4 * (50 << 20), splits_blocks, ..numbers().sync };
        let (mesh, recompute) = (Mesh::of(2, 1, 4), Recompute::None);
        let numbers = Uniform { mesh, sequence_parallel: true, recompute, sync, ..numbers() };
        let attention = AttentionKind::Fused;
        let case = Case::of("buckets", Plan { attention, ..plan(LLAMA, &numbers, 1) });
        let machines = case.machines();
        let exported = export(project, &case.plan, &case.spec, &case.graph, machines);
        let exported = exported.expect("it is said");
        let said = exported.unsaid.iter().any(|it| it.key == "sync.splits_blocks");
        (exported.files[0].text.clone(), said)
    };
    let (text, unsaid) = of(Project::Nanotron, false);
    assert!(text.contains("ddp_bucket_cap_mb: 25\n") && unsaid, "{text}");
    assert!(!of(Project::Nanotron, true).1);
    let (text, unsaid) = of(Project::Megatron, true);
    let parameters = (50 << 20) / 4;
    assert!(text.contains(&format!("--ddp-bucket-size {parameters}")) && !unsaid, "{text}");
}

#[test]
fn one_replica_has_nobody_to_shard_with_and_a_scale_of_the_loss_is_of_fp16_only() {
    let sync = Sync { zero: 2, ..numbers().sync };
    let (mesh, recompute) = (Mesh::of(1, 1, 2), Recompute::None);
    let numbers = Uniform { mesh, sync, recompute, ..numbers() };
    let loss_scale = Some(LossScale::Constant { scale: 128.0 });
    let attention = AttentionKind::Fused;
    let case = Case::of("alone", Plan { loss_scale, attention, ..plan(LLAMA, &numbers, 1) });
    let exported = export(Project::Megatron, &case.plan, &case.spec, &case.graph, case.machines());
    let exported = exported.expect("it is said");
    let text = &exported.files[0].text;
    for word in ["--use-distributed-optimizer", "--use-megatron-fsdp", "--loss-scale"] {
        assert!(!text.contains(word), "{text}");
    }
    for (key, value) in [("sync.zero", "2"), ("loss_scale", "128")] {
        let said = exported.unsaid.iter().any(|it| (&it.key[..], &it.value[..]) == (key, value));
        assert!(said, "{key}: {:?}", exported.unsaid);
    }
}

/// Without ZeRO gradients are accumulated there in the format of the weights in use.
#[test]
fn gradients_of_more_bits_than_weights_take_deepspeeds_first_stage_also_of_one_replica() {
    for (gradients, stage) in [(Number::Fp32, 1), (Number::Bf16, 0)] {
        let precision = Precision { gradients, ..Precision::MIXED };
        let numbers = Uniform { precision, recompute: Recompute::None, ..numbers() };
        let attention = AttentionKind::Unfused;
        let case = Case::of("alone", Plan { attention, ..plan(LLAMA, &numbers, 1) });
        let exported =
            export(Project::DeepSpeed, &case.plan, &case.spec, &case.graph, case.machines());
        let text = &exported.expect("it is said").files[0].text;
        assert!(text.contains(&format!("\"stage\": {stage}")), "{text}");
    }
}
