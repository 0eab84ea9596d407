//! Fifty plans for every project, which have all words that it takes between them: each comes back the same. What is
//! written for them is kept in a folder of its own below the one that `SHARDLOOM_EXPORTS` names, if it does, for
//! `benches/exchange/judge.py`.

use std::env;
use std::fs;
use std::path::Path;

use crate::plans::{Case, GPT, LLAMA, SMALL_LLAMA, data_slowest, numbers, plan, plan_with_experts};
use crate::there_and_back::assert_back;
use shardloom_exchange::{Project, export, own_cuts};
use shardloom_graph::ModelSpec;
use shardloom_plan::{
    AttentionKind, Axis, AxisSet, LossScale, Mesh, Number, Optimizer, Plan, Precision, Recompute,
    ScheduleKind, Sync, Uniform,
};

const BF16_GRADIENTS: Precision = Precision { gradients: Number::Bf16, ..Precision::MIXED };
const EIGHT_BITS: Precision = Precision { fp8_products: true, ..Precision::MIXED };
const FP16: Precision =
    Precision { compute: Number::Fp16, gradients: Number::Fp16, ..Precision::MIXED };

/// A Llama with rotary frequencies that are scaled as in Llama 3.
const SCALED: &str = "llama:layers=10,hidden=256,heads=8,kv_heads=8,ffn=512,seq=512,vocab=4096,\
                      rope_scaling=[8,1,4,8192],norm_epsilon=1e-6";
const TIED: &str = "llama:layers=5,hidden=128,heads=4,ffn=384,seq=256,vocab=1024,tied=true";

/// Something for each of a series of plans: of several things in turn.
fn turn<T: Copy>(things: &[T], index: usize) -> T {
    things[index % things.len()]
}

/// The mesh with groups of so many replicas that shard among themselves.
fn hybrid(mesh: Mesh, sharers: u32) -> Mesh {
    mesh.sharing_within(sharers).expect("it divides the replicas")
}

fn adamw(index: usize) -> Optimizer {
    let (beta1, beta2) = turn(&[(0.9, 0.95), (0.8, 0.99)], index);
    let (epsilon, weight_decay) = turn(&[(1e-8, 0.1), (1e-6, 0.0)], index / 2);
    Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }
}

fn scale(index: usize) -> LossScale {
    turn(
        &[
            LossScale::Constant { scale: 128.0 },
            LossScale::Dynamic { initial: 4096.0, growth_interval: 50 },
        ],
        index,
    )
}

/// Asserts that plans come back the same, of which there are fifty, all different.
fn check(project: Project, plans: &[Plan]) {
    assert!(plans.len() >= 50, "{} plans", plans.len());
    for (index, plan) in plans.iter().enumerate() {
        let name = format!("plan {index}: {}", plan.to_toml());
        assert!(!plans[..index].contains(plan), "{name}: twice");
        let case = Case::of(&name, plan.clone());
        assert_back(&case, project, plan);
        if let Some(folder) = env::var_os("SHARDLOOM_EXPORTS") {
            keep(
                &case,
                project,
                &Path::new(&folder).join(format!("plan-{index:02}_{}", project.name())),
            );
        }
    }
}

/// Writes what is written for a plan, anew.
fn keep(case: &Case, project: Project, folder: &Path) {
    let exported = export(project, &case.plan, &case.spec, &case.graph, case.machines());
    if folder.exists() {
        fs::remove_dir_all(folder).expect("it is deleted");
    }
    fs::create_dir_all(folder).expect("a folder");
    for file in exported.expect("it was exported before").files {
        fs::write(folder.join(file.name), file.text).expect("written");
    }
}

#[test]
fn megatrons_come_back_the_same() {
    let mut plans = vec![];
    let meshes = [
        (1, Mesh::of(2, 1, 1)),
        (2, Mesh::of(2, 1, 1)),
        (2, Mesh::of(2, 2, 2)),
        (4, Mesh::of(2, 1, 4)),
        (3, Mesh::of(4, 1, 1)),
        (7, Mesh::of(2, 1, 2)),
        // Replicas of the weights that have parts of one sequence.
        (2, Mesh::of(1, 2, 1)),
        (2, Mesh::of(4, 1, 2)),
    ];
    for (index, (pp, mesh)) in meshes.into_iter().enumerate() {
        for (turned, (zero, model)) in
            [(0, LLAMA), (1, LLAMA), (1, GPT), (0, SMALL_LLAMA), (2, LLAMA), (3, SCALED)]
                .into_iter()
                .enumerate()
        {
            let index = 6 * index + turned;
            let usual = numbers();
            let precisions = [Precision::FP32, Precision::MIXED, BF16_GRADIENTS, EIGHT_BITS, FP16];
            let precision = turn(&precisions, index);
            let layered = zero > 1;
            let sync = Sync {
                zero,
                // Those of what is sharded by layers are not said.
                bucket_bytes: if layered {
                    usual.sync.bucket_bytes
                } else {
                    turn(&[25_000_000, 1 << 40], index)
                },
                ..usual.sync
            };
            let mesh = match mesh.dp() {
                4 if zero > 0 => hybrid(mesh, 2),
                2 if zero > 0 && index % 4 == 0 && mesh.size() > 2 => hybrid(mesh, 1),
                _ => mesh,
            };
            // With nobody to share it nothing is sharded.
            let alone = mesh.width(Axis::DP) * mesh.width(Axis::CP) == 1;
            let (mesh, sync) = match alone {
                true => (Mesh::of(mesh.dp(), 1, mesh.tp()), Sync { zero: 0, ..sync }),
                false => (mesh, sync),
            };
            let numbers = Uniform {
                pp,
                mesh,
                recompute: turn(&[Recompute::None, Recompute::Selective, Recompute::Block], index),
                sequence_parallel: mesh.tp() > 1 && index % 2 == 0,
                sync,
                precision,
                optimizer: if index % 5 == 4 { Optimizer::sgd(0.9) } else { adamw(index) },
                clip_norm: turn(&[Some(1.0), None, Some(0.5)], index),
                ..usual
            };
            let mut add = |mut plan: Plan| {
                plan.attention = turn(&AttentionKind::ALL, plans.len());
                plan.loss_scale = (precision == FP16).then(|| scale(index));
                plans.push(plan);
            };
            add(plan(model, &numbers, 1));
            if pp == 2 && index % 2 == 0 {
                let schedule = ScheduleKind::Interleaved;
                add(plan(model, &Uniform { schedule, ..numbers.clone() }, 3));
            }
            if pp > 1 && mesh.dp() > 1 && index % 3 == 0 {
                add(data_slowest(plan(model, &numbers, 1)));
            }
        }
    }
    for (index, (pp, dp, ep)) in
        [(1, 1, 2), (1, 2, 4), (2, 2, 2), (3, 1, 8), (1, 4, 1), (2, 4, 2)].into_iter().enumerate()
    {
        let zero = if dp * ep > 1 { turn(&[0, 1], index) } else { 0 };
        let sync = Sync { zero, ..Sync::default() };
        let numbers = Uniform { pp, mesh: Mesh::of(dp, 1, 1), sync, ..numbers() };
        let mut plan = plan_with_experts(&numbers, ep);
        plan.attention = AttentionKind::Fused;
        plans.push(plan);
    }
    check(Project::Megatron, &plans);
}

#[test]
fn deepspeeds_come_back_the_same() {
    let mut plans = vec![];
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.98, epsilon: 1e-6, weight_decay: 0.01 };
    for (index, mesh) in [
        Mesh::of(1, 1, 2),
        Mesh::of(2, 1, 1),
        Mesh::of(8, 1, 1),
        Mesh::of(4, 1, 2),
        Mesh::of(2, 1, 4),
    ]
    .into_iter()
    .enumerate()
    {
        for zero in 0..4 {
            for precision in [Precision::FP32, Precision::MIXED, BF16_GRADIENTS, FP16] {
                let index = 16 * index + plans.len();
                // Automatic tensor parallelism goes with stages 0 to 2, and without ZeRO gradients are of the format of
                // the weights.
                let accumulates = precision.gradients == precision.compute || zero > 0;
                if (mesh.tp() > 1 && zero == 3)
                    || (mesh.dp() == 1 && zero > 0)
                    || (mesh.dp() > 1 && !accumulates)
                {
                    continue;
                }
                let numbers = Uniform {
                    mesh,
                    recompute: Recompute::None,
                    sync: Sync {
                        zero,
                        bucket_bytes: turn(&[4_000_000, 25_000_000], index),
                        ..Sync::default()
                    },
                    precision,
                    optimizer: turn(&[adamw(index), lamb, Optimizer::sgd(0.9)], index),
                    clip_norm: turn(&[Some(1.0), None], index / 3),
                    microbatches: turn(&[8, 4, 1], index),
                    ..numbers()
                };
                let mut plan = plan(turn(&[LLAMA, GPT], index), &numbers, 1);
                plan.attention = AttentionKind::Fused;
                plan.loss_scale = (precision == FP16).then(|| scale(index));
                plans.push(plan);
            }
        }
    }
    for (dp, within) in [(4, 2), (8, 2), (8, 4)] {
        let second_copy_over = AxisSet::of(&[Axis::DP]);
        let sync = Sync { zero: 3, second_copy_over, ..Sync::default() };
        let (recompute, precision) = (Recompute::None, BF16_GRADIENTS);
        let mesh = Mesh::of(dp, 1, 1).sharing_within(within).expect("it divides");
        let mut plan = plan(LLAMA, &Uniform { mesh, sync, recompute, precision, ..numbers() }, 1);
        plan.attention = AttentionKind::Fused;
        plans.push(plan);
    }
    for (zero, (dp, ep)) in (0..4).zip([(1, 2), (2, 4), (4, 2), (1, 8)]) {
        let sync = Sync { zero, ..Sync::default() };
        let (recompute, precision) = (Recompute::None, BF16_GRADIENTS);
        let mesh = Mesh::of(dp, 1, 1);
        let numbers = Uniform { mesh, sync, recompute, precision, ..numbers() };
        let mut plan = plan_with_experts(&numbers, ep);
        plan.attention = AttentionKind::Fused;
        plans.push(plan);
    }
    check(Project::DeepSpeed, &plans);
}

#[test]
fn torchtitans_come_back_the_same() {
    let mut plans = vec![];
    let meshes = [
        Mesh::of(1, 1, 1),
        Mesh::of(8, 1, 1),
        Mesh::of(4, 1, 2),
        Mesh::of(4, 2, 1),
        Mesh::of(2, 2, 2),
    ];
    let orders = [
        (1, ScheduleKind::OneForwardOneBackward, 1),
        (2, ScheduleKind::OneForwardOneBackward, 1),
        (4, ScheduleKind::Afab, 1),
        (2, ScheduleKind::Interleaved, 2),
        (2, ScheduleKind::ZeroBubbleH1, 1),
        (4, ScheduleKind::ZeroBubbleH2, 1),
        (2, ScheduleKind::ZeroBubbleV, 2),
        (2, ScheduleKind::VHalf, 2),
        (4, ScheduleKind::VMin, 2),
        (2, ScheduleKind::DualPipeV, 2),
        (2, ScheduleKind::Hanayo, 2),
    ];
    for (first, mesh) in meshes.into_iter().enumerate() {
        for (second, (pp, schedule, chunks)) in orders.into_iter().enumerate() {
            let index = 3 * first + second;
            let zero = match turn(&[0, 2, 3, 3], index) {
                0 if mesh.width(Axis::CP) > 1 => 2,
                _ if mesh.is_single() => 0,
                zero => zero,
            };
            let mesh = match mesh.dp() {
                4 | 8 if zero > 0 && index % 2 == 0 => hybrid(mesh, 2),
                // Whose context-parallel ranks alone share.
                2 if zero > 0 && index % 2 == 0 => hybrid(mesh, 1),
                _ => mesh,
            };
            let numbers = Uniform {
                pp,
                mesh,
                schedule,
                sequence_parallel: mesh.tp() > 1 && index % 3 > 0,
                recompute: turn(&[Recompute::None, Recompute::Block], index),
                sync: Sync { zero, ..Sync::default() },
                precision: turn(&[Precision::MIXED, Precision::FP32, EIGHT_BITS], index),
                optimizer: adamw(index),
                clip_norm: turn(&[Some(1.0), None, Some(0.25)], index),
                ..numbers()
            };
            let model = match pp {
                1 => turn(&[TIED, LLAMA], first),
                _ => turn(&[LLAMA, SCALED], index),
            };
            let mut plan = plan(model, &numbers, chunks);
            plan.attention = AttentionKind::Fused;
            let stages = &mut plan.pipeline[0].stage;
            if index % 4 == 1 && pp > 1 && stages[1].blocks.1 - stages[1].blocks.0 > 1 {
                // The first stage gets a block of the second.
                (stages[0].blocks.1, stages[1].blocks.0) =
                    (stages[0].blocks.1 + 1, stages[1].blocks.0 + 1);
            }
            plans.push(plan);
        }
    }
    check(Project::Torchtitan, &plans);
}

#[test]
fn nanotrons_come_back_the_same() {
    let mut plans = vec![];
    let meshes = [
        Mesh::of(1, 1, 1),
        Mesh::of(2, 1, 1),
        Mesh::of(4, 1, 2),
        Mesh::of(2, 1, 4),
        Mesh::of(8, 1, 1),
        Mesh::of(1, 1, 2),
    ];
    for (first, mesh) in meshes.into_iter().enumerate() {
        for (second, (pp, model)) in [
            (1, LLAMA),
            (2, LLAMA),
            (4, LLAMA),
            (1, TIED),
            (2, SMALL_LLAMA),
            (3, SMALL_LLAMA),
            (3, LLAMA),
        ]
        .into_iter()
        .enumerate()
        {
            for schedule in [ScheduleKind::OneForwardOneBackward, ScheduleKind::Afab] {
                let spec = ModelSpec::parse(model).expect("a model");
                let cuts = own_cuts(Project::Nanotron, &spec, pp);
                // Without a pipeline there is one order.
                let (Some(cuts), false) = (cuts, pp == 1 && schedule == ScheduleKind::Afab) else {
                    continue;
                };
                let index = 2 * first + second + usize::from(schedule == ScheduleKind::Afab);
                let sequence_parallel = mesh.tp() > 1 && index % 3 > 0;
                let zero = if mesh.dp() > 1 { turn(&[0, 1], index / 2) } else { 0 };
                let precision = turn(&[Precision::MIXED, Precision::FP32], index / 2);
                // Of a rank's weights.
                let weight_bytes = turn(&[25 << 20, 4 << 20], index);
                let elements = weight_bytes / precision.compute.bytes() * mesh.tp() as usize;
                let numbers = Uniform {
                    pp,
                    mesh,
                    schedule,
                    sequence_parallel,
                    recompute: turn(&[Recompute::None, Recompute::Block], index),
                    sync: Sync {
                        zero,
                        all_reduces: zero == 1,
                        splits_blocks: zero == 0,
                        bucket_bytes: elements * precision.gradients.bytes(),
                        ..Sync::default()
                    },
                    precision,
                    optimizer: adamw(index),
                    clip_norm: turn(&[Some(1.0), None], index),
                    ..numbers()
                };
                let mut plan = plan(model, &numbers, 1);
                for (stage, run) in plan.pipeline[0].stage.iter_mut().zip(cuts.windows(2)) {
                    stage.blocks = (run[0], run[1]);
                }
                plan.attention = AttentionKind::Fused;
                plan.keeps_gathered = sequence_parallel && index % 2 == 0;
                plans.push(plan);
            }
        }
    }
    check(Project::Nanotron, &plans);
}

#[test]
fn accelerates_come_back_the_same() {
    let mut plans = vec![];
    let meshes = [
        Mesh::of(1, 1, 1),
        Mesh::of(2, 1, 1),
        Mesh::of(8, 1, 1),
        Mesh::of(4, 1, 2),
        Mesh::of(4, 2, 1),
        Mesh::of(2, 2, 2),
        Mesh::of(16, 1, 1),
    ];
    let fp16 = Precision { compute: Number::Fp16, ..Precision::MIXED };
    for (first, mesh) in meshes.into_iter().enumerate() {
        for zero in [0, 2, 3] {
            for precision in [Precision::FP32, Precision::MIXED, fp16, EIGHT_BITS] {
                let index = first + plans.len();
                if (zero == 0 && mesh.size() > mesh.dp() as usize) || (zero > 0 && mesh.is_single())
                {
                    continue;
                }
                let mesh = match mesh.dp() {
                    4 | 8 | 16 if zero > 0 && index % 2 == 0 => {
                        hybrid(mesh, turn(&[2, 4], index / 2))
                    }
                    _ => mesh,
                };
                let numbers = Uniform {
                    mesh,
                    // The script's, where FSDP does not do it.
                    recompute: if zero > 0 {
                        turn(&[Recompute::None, Recompute::Block], index)
                    } else {
                        Recompute::None
                    },
                    sync: Sync { zero, ..Sync::default() },
                    precision,
                    clip_norm: None,
                    microbatches: turn(&[1, 2, 4], index),
                    ..numbers()
                };
                let mut plan = plan(turn(&[LLAMA, GPT], index), &numbers, 1);
                plan.attention = AttentionKind::Fused;
                plan.loss_scale = (precision == fp16).then(LossScale::dynamic);
                plans.push(plan);
            }
        }
    }
    check(Project::Accelerate, &plans);
}
