//! The first row of each schema, as a model, a cluster and a plan.

use super::files::shipped;
use shardloom_cluster::Stack;
use shardloom_plan::{AttentionKind, Axis, Number, Plan, Recompute, ScheduleKind};
use shardloom_validate::{Case, MicroBatch, Row, read};

/// The rows of a shipped file.
fn rows(name: &str) -> Vec<Row> {
    read(&shipped(name)).expect("it is part of the project").rows
}

fn case(row: &Row) -> &Case {
    row.case.as_ref().expect("it can be predicted")
}

/// The plan, in which micro-batches have as many samples as the file says.
fn plan(case: &Case) -> Plan {
    let spec = case.spec().expect("a model");
    let graph = spec.graph().expect("a graph");
    let cluster = case.cluster(None).expect("a cluster");
    let micro = case.micro_batches().expect("micro-batches")[0];
    let recompute = case.recomputations()[0];
    case.plan(&spec, &graph, &cluster, micro, recompute).expect("a plan")
}

/// Blocks of each stage, and its devices.
fn stages(plan: &Plan) -> Vec<((usize, usize), usize)> {
    plan.stages().map(|(_, stage)| (stage.blocks, stage.devices.0.len())).collect()
}

fn is_sequence_parallel(plan: &Plan) -> bool {
    plan.layout.splits("seq", Axis::TP)
}

#[test]
fn multi_node_vtrain() {
    let rows = rows("a100_multinode.csv");
    assert_eq!(rows.len(), 41);
    let row = &rows[0];
    assert_eq!((row.line, row.measured.step_seconds), (2, Some(3.5665)));
    let case = case(row);
    assert_eq!(
        case.spec().expect("a model").to_string(),
        "gpt:layers=30,hidden=3072,heads=32,seq=2048,vocab=50304,dropout=0.1,tied=true"
    );
    let cluster = case.cluster(None).expect("a cluster");
    let group = &cluster.groups()[0];
    assert_eq!((group.nodes, group.devices_per_node), (8, 8));
    assert_eq!(group.profile.device.name, "a100-80g");
    assert_eq!(group.profile.node.uplink_bytes_per_second, 100e9);
    let plan = plan(case);
    assert_eq!(plan.cluster, "a100-80g:8x8");
    assert_eq!((plan.global_batch, plan.microbatches), (512, 1));
    assert_eq!((plan.recompute, plan.sync.zero), (Recompute::Block, 0));
    // All gradients at once, at the end.
    assert!(plan.sync.bucket_bytes > 4 * 3_600_000_000);
    assert_eq!(case.cluster(None).expect("a cluster").stack().name, "megatron-2021");
    let other = Stack::parse("nanotron").expect("a preset");
    assert_eq!(case.cluster(Some(&other)).expect("a cluster").stack().name, "nanotron");
    assert_eq!(plan.schedule, ScheduleKind::OneForwardOneBackward);
    assert_eq!(stages(&plan), [((0, 32), 64)]);
    assert_eq!((plan.precision.compute, plan.precision.gradients), (Number::Fp16, Number::Fp32));
    assert!(plan.precision.master && !is_sequence_parallel(&plan));
}

#[test]
fn single_node_vtrain() {
    let rows = rows("a100_singlenode.csv");
    assert_eq!(rows.len(), 426);
    let row = &rows[0];
    assert_eq!(row.measured.step_seconds, Some(406.355066 / 1e3));
    let case = case(row);
    assert_eq!(
        case.spec().expect("a model").to_string(),
        "gpt:layers=16,hidden=2048,heads=16,seq=1024,vocab=50304,dropout=0.1,tied=true"
    );
    let plan = plan(case);
    assert_eq!(plan.cluster, "a100-80g:1x4");
    assert_eq!((plan.global_batch, plan.microbatches), (32, 4));
    // The second is split by tensor parallelism, which the vocabulary is padded for; the third has stages.
    let second = self::case(&rows[1]).spec().expect("a model").to_string();
    assert!(second.contains("vocab=50688"), "{second}");
    let third = self::plan(self::case(&rows[2]));
    assert_eq!(stages(&third), [((0, 13), 4), ((13, 26), 4)]);
    assert!(!is_sequence_parallel(&third));
}

#[test]
fn korthikanti() {
    let rows = rows("korthikanti22_table5.csv");
    assert_eq!(rows.len(), 4);
    let [full, selective] = [&rows[0], &rows[1]];
    assert_eq!((full.line, selective.line), (2, 2));
    assert_eq!(full.measured.step_seconds, Some(1.42));
    assert_eq!(selective.measured.step_seconds, Some(1.10));
    let text = case(full).spec().expect("a model").to_string();
    assert_eq!(
        text,
        "gpt:layers=48,hidden=6144,heads=64,seq=2048,vocab=51200,dropout=0.1,tied=true"
    );
    let [full, selective] = [plan(case(full)), plan(case(selective))];
    assert_eq!((full.global_batch, full.microbatches), (4, 1));
    assert_eq!((full.recompute, is_sequence_parallel(&full)), (Recompute::Block, false));
    let said = (selective.recompute, is_sequence_parallel(&selective));
    assert_eq!(said, (Recompute::Selective, true));
    // The second line has three stages on each of eight devices.
    let interleaved = plan(case(&rows[2]));
    assert_eq!(interleaved.schedule, ScheduleKind::Interleaved);
    assert_eq!((interleaved.stages().count(), interleaved.device_count()), (24, 64));
    assert_eq!(stages(&interleaved)[..2], [((0, 5), 8), ((5, 9), 8)]);
}

#[test]
fn weak_scaling() {
    let rows = rows("megatron_sc21_weak_scaling.csv");
    assert_eq!(rows.len(), 7);
    let case = case(&rows[0]);
    // 96 x 512 x 2048 x 24 x 2304^2 x (1 + 2048 / 13824 + 51200 / 884736) over 32 x 137e12.
    let step = rows[0].measured.step_seconds.expect("a time");
    let flops = 96.0 * 512.0 * 2048.0 * 24.0 * 2304.0 * 2304.0 * (1.0 + 4.0 / 27.0 + 25.0 / 432.0);
    assert!((step - flops / (32.0 * 137e12)).abs() < 1e-9, "{step}");
    assert_eq!(case.micro_batch, MicroBatch::LargestFitting(8));
    assert_eq!(case.micro_batches().expect("some divide"), [8, 4, 2, 1]);
    let plan = plan(case);
    assert_eq!((plan.global_batch, plan.microbatches), (512, 2));
    assert_eq!((plan.recompute, plan.cluster.as_str()), (Recompute::Block, "a100-80g:4x8"));
}

#[test]
fn published() {
    let rows = rows("nanotron_ultrascale_h100.csv");
    assert_eq!(rows.len(), 1027);
    let row = &rows[0];
    assert_eq!(row.source, "nanotron ultra-scale playbook");
    assert_eq!((row.hardware.as_str(), row.model.as_str()), ("H100-80G", "nanotron-1.34B"));
    let gib = 1024.0 * 1024.0 * 1024.0;
    assert_eq!(row.measured.step_seconds, Some(372.3636));
    assert_eq!(row.measured.peak_bytes, Some(gib));
    let case = case(row);
    assert_eq!(
        case.spec().expect("a model").to_string(),
        "llama:layers=16,hidden=2048,heads=32,ffn=8192,seq=4096,vocab=131072,tied=true"
    );
    let plan = plan(case);
    assert_eq!(plan.cluster, "h100-80g:8x8");
    assert_eq!((plan.global_batch, plan.microbatches), (256, 256));
    // Its attention keeps no scores.
    assert_eq!((plan.recompute, plan.attention), (Recompute::None, AttentionKind::Fused));
    assert_eq!(plan.sync.zero, 0);
    // 25 MiB of weights in bf16 on each of 32 ranks, whose gradients are in fp32.
    assert_eq!((plan.sync.bucket_bytes, plan.sync.splits_blocks), (32 * (50 << 20), true));
    // The head is as much as four layers.
    assert_eq!(stages(&plan), [((0, 12), 32), ((12, 18), 32)]);
    assert_eq!((plan.precision.compute, plan.precision.gradients), (Number::Bf16, Number::Fp32));
    assert!(is_sequence_parallel(&plan));
}

#[test]
fn sources_have_their_conventions() {
    let mosaic = rows("mosaic_llm_foundry.csv");
    let text = case(&mosaic[0]).spec().expect("a model").to_string();
    assert_eq!(text, "gpt:layers=40,hidden=5120,heads=40,seq=2048,vocab=50368,tied=true");
    let plan = plan(case(&mosaic[0]));
    // FSDP runs whole blocks again.
    assert_eq!((plan.sync.zero, plan.recompute), (3, Recompute::Block));

    let intern = rows("internevo.csv");
    let cluster = case(&intern[1]).cluster(None).expect("a cluster");
    assert_eq!(cluster.groups()[0].profile.node.uplink_bytes_per_second, 50e9);

    let dgxc = rows("nvidia_dgxc_benchmarking.csv");
    let nemotron = dgxc.iter().find(|row| row.model == "nemotron15b" && row.case.is_ok());
    let text = case(nemotron.expect("one in bf16")).spec().expect("a model").to_string();
    // Two matrices of 24,576 are as much as three of 16,384.
    assert!(text.contains("ffn=16384") && text.contains("kv_heads=8"), "{text}");
}
