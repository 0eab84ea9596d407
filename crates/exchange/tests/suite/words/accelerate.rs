//! Accelerate's words.

use shardloom_exchange::Given;
use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, LossScale, Number, Precision, Recompute};

use super::{Base, Word, given, is_hybrid, width};
use crate::plans::LLAMA;

const ACCELERATE: &str = "
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
mixed_precision: bf16
num_processes: 16
";

#[test]
fn accelerates_words() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), global_batch: Some(64), ..given(16) };
    let base = Base { place: "accelerate.yaml", text: ACCELERATE, given };
    let plan = base.read("", "").expect("a plan").plan;
    assert_eq!((plan.sync.zero, plan.microbatches, plan.recompute), (3, 1, Recompute::None));
    let in_config = |words: &str| format!("mixed_precision: bf16\nparallelism_config:\n{words}");
    let words: [Word; 13] = [
        ("fsdp_version: 2", "fsdp_sharding_strategy: HYBRID_SHARD\nnum_machines: 2", |it| {
            is_hybrid(it, 3, 2, 8)
        }),
        ("fsdp_version: 2", "fsdp_sharding_strategy: HYBRID_SHARD_ZERO2\nnum_machines: 4", |it| {
            is_hybrid(it, 2, 4, 4)
        }),
        (
            "fsdp_version: 2",
            "fsdp_version: 2\nparallelism_config:\n  parallelism_config_dp_replicate_size: 4\n  parallelism_config_dp_shard_size: 4",
            |it| is_hybrid(it, 3, 4, 4),
        ),
        (
            "mixed_precision: bf16",
            "mixed_precision: fp8\nfp8_config:\n  backend: AO\n  enable_fsdp_float8_all_gather: false",
            |it| it.precision == Precision { fp8_products: true, ..Precision::MIXED },
        ),
        ("mixed_precision: bf16", "mixed_precision: 'no'", |it| it.precision == Precision::FP32),
        ("mixed_precision: bf16", "mixed_precision: fp16", |it| {
            it.precision == Precision { compute: Number::Fp16, ..Precision::MIXED }
                && it.loss_scale == Some(LossScale::dynamic())
        }),
        ("mixed_precision: bf16\n", "", |it| it.precision == Precision::FP32),
        ("FSDP", "MULTI_GPU", |it| it.sync.zero == 0),
        ("FSDP", "multi_gpu", |it| it.sync.zero == 0),
        (
            "fsdp_version: 2",
            "fsdp_version: 2\nparallelism_config:\n  parallelism_config_tp_size: 4\n  parallelism_config_dp_shard_size: 4",
            |it| (width(it, Axis::TP), width(it, Axis::DP)) == (4, 4),
        ),
        (
            "fsdp_version: 2",
            "fsdp_version: 2\nparallelism_config:\n  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: allgather",
            |it| (width(it, Axis::CP), width(it, Axis::DP)) == (2, 8),
        ),
        (
            "fsdp_version: 2",
            "fsdp_version: 2\nparallelism_config:\n  parallelism_config_dp_replicate_size: 16",
            |it| it.sync.zero == 0,
        ),
        (
            "FSDP\nfsdp_config:\n  fsdp_version: 2",
            "DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4",
            |it| (it.sync.zero, it.microbatches) == (2, 4),
        ),
    ];
    base.check(&words, &[]);
    for (words, message) in [
        ("  parallelism_config_dp_replicate_size: 4", "the product is the 16 replicas"),
        ("  parallelism_config_dp_shard_size: 8", "the product is the 16 replicas"),
        ("  parallelism_config_sp_size: 2", "split attention by heads"),
        (
            "  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: alltoall",
            "plans gather keys and values",
        ),
        ("  parallelism_config_tp_size: 3", "it must divide the 16 devices"),
    ] {
        let error = base.read("mixed_precision: bf16", &in_config(words)).expect_err(words);
        assert!(error.to_string().contains(message), "{error}");
    }
    for (words, message) in [
        ("deepspeed_config_file: ds.json", "import that file"),
        ("offload_optimizer_device: cpu", "offload_optimizer_device"),
        ("offload_param_device: nvme", "offload_param_device"),
        ("zero_stage: 4", "a stage is 0 to 3"),
    ] {
        let to = format!("DEEPSPEED\ndeepspeed_config:\n  {words}");
        let error = base.read("FSDP\nfsdp_config:\n  fsdp_version: 2", &to).expect_err(words);
        assert!(error.to_string().contains(message), "{error}");
    }
    for (stage, zero) in [("0", 0), ("1", 1), ("2", 2), ("3", 3)] {
        let to = format!("DEEPSPEED\ndeepspeed_config:\n  zero_stage: {stage}");
        let found = base.read("FSDP\nfsdp_config:\n  fsdp_version: 2", &to).expect("a plan");
        assert_eq!(found.plan.sync.zero, zero);
    }
    // What the command line says goes before the file.
    let given = Given { microbatches: Some(2), ..base.given };
    let base = Base { given, ..base };
    let found = base.read(
        "FSDP\nfsdp_config:\n  fsdp_version: 2",
        "DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4",
    );
    assert_eq!(found.expect("a plan").plan.microbatches, 2);
}

#[test]
fn how_many_micro_batches_there_are_is_said_to_be_assumed() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), global_batch: Some(64), ..given(16) };
    for (microbatches, is_assumed) in [(None, true), (Some(2), false)] {
        let given = Given { microbatches, ..given };
        let base = Base { place: "accelerate.yaml", text: ACCELERATE, given };
        let notes = base.read("", "").expect("a plan").notes;
        let said = notes.iter().any(|note| note.contains("one is assumed (--microbatches)"));
        assert_eq!(said, is_assumed, "{notes:?}");
    }
}

/// What the training script is to say is missed where the file says how that is run.
#[test]
fn errors_name_the_line() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), global_batch: Some(64), ..given(16) };
    let refused = |from: &str, to: &str, given: Given<'_>, line: usize| {
        let base = Base { place: "accelerate.yaml", text: ACCELERATE, given };
        let error = base.read(from, to).expect_err("refused").to_string();
        assert!(error.starts_with(&format!("accelerate.yaml:{line}: ")), "{error}");
    };
    refused("bf16", "bf15", given, 5);
    refused("num_processes: 16", "num_processes: 17", given, 6);
    refused("distributed_type: FSDP", "distributed_type: FSDQ", given, 2);
    let three = "16\nparallelism_config:\n  parallelism_config_tp_size: 3";
    refused("16", three, given, 2);
    refused("16", "16", Given { global_batch: None, ..given }, 2);
    refused("16", "16", Given { model: None, ..given }, 2);
}

#[test]
fn texts_of_accelerate_are_texts() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), global_batch: Some(64), ..given(16) };
    Base { place: "accelerate.yaml", text: ACCELERATE, given }.check_texts(&[
        ("mixed_precision: bf16", "mixed_precision: @", "mixed_precision"),
        ("distributed_type: FSDP", "distributed_type: @", "distributed_type"),
    ]);
}
