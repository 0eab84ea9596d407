//! DeepSpeed's words.

use shardloom_exchange::Given;
use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, AxisSet, LossScale, Number, Optimizer, Precision};

use super::{Base, Word, Wrong, given, is_adamw, is_hybrid, is_sgd, width};
use crate::plans::LLAMA;

const DEEPSPEED: &str = r#"{
    "train_batch_size": 256, "gradient_accumulation_steps": 8, "gradient_clipping": 1.0,
    "bf16": { "enabled": true }, "fp16": { "enabled": false },
    "zero_optimization": { "stage": 3 },
    "optimizer": { "type": "AdamW", "params": { "lr": 1e-4, "betas": [0.8, 0.99], "eps": 1e-6,
        "weight_decay": 0.3 } }
}"#;

#[test]
fn deepspeeds_words() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "ds.json", text: DEEPSPEED, given };
    let plan = base.read("", "").expect("a plan").plan;
    assert!(is_adamw(&plan, [0.8, 0.99, 1e-6, 0.3]));
    // 500 million elements where nothing is said.
    assert_eq!(plan.sync.bucket_bytes, 1_000_000_000);
    let words: [Word; 22] = [
        ("\"stage\": 3", "\"stage\": 3, \"zero_hpz_partition_size\": 4", |it| {
            let widths = [Axis::REPLICA, Axis::DP].map(|axis| width(it, axis));
            let over = it.sync.second_copy_over == AxisSet::of(&[Axis::DP]);
            (it.sync.zero, it.sync.shard_over, widths) == (3, None, [4, 4]) && over
        }),
        ("\"stage\": 3", "\"stage\": 3, \"mics_shard_size\": 4", |it| is_hybrid(it, 3, 4, 4)),
        ("\"stage\": 3", "\"stage\": 0", |it| it.sync.zero == 0),
        ("\"stage\": 3", "\"stage\": 1", |it| it.sync.zero == 1),
        ("\"stage\": 3", "\"stage\": 2", |it| it.sync.zero == 2),
        ("\"bf16\": { \"enabled\": true }", "\"bf16\": { \"enabled\": false }", |it| {
            it.precision == Precision::FP32 && it.sync.bucket_bytes == 2_000_000_000
        }),
        ("false", "false }, \"data_types\": { \"grad_accum_dtype\": \"fp32\"", |it| {
            it.precision == Precision::MIXED
        }),
        ("false", "false }, \"data_types\": { \"grad_accum_dtype\": \"fp16\"", |it| {
            it.precision.gradients == Number::Fp16
        }),
        (
            "\"bf16\": { \"enabled\": true }, \"fp16\": { \"enabled\": false }",
            "\"fp16\": { \"enabled\": true }",
            |it| {
                let (compute, gradients) = (Number::Fp16, Number::Fp16);
                let scale = LossScale::Dynamic { initial: 65_536.0, growth_interval: 1_000 };
                it.precision == Precision { compute, gradients, ..Precision::MIXED }
                    && it.loss_scale == Some(scale)
            },
        ),
        (
            "\"bf16\": { \"enabled\": true }, \"fp16\": { \"enabled\": false }",
            "\"fp16\": { \"enabled\": true, \"loss_scale\": 128 }",
            |it| it.loss_scale == Some(LossScale::Constant { scale: 128.0 }),
        ),
        (
            "\"bf16\": { \"enabled\": true }, \"fp16\": { \"enabled\": false }",
            "\"fp16\": { \"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 8, \
             \"loss_scale_window\": 7 }",
            |it| {
                let scale = LossScale::Dynamic { initial: 256.0, growth_interval: 7 };
                it.loss_scale == Some(scale)
            },
        ),
        ("\"gradient_clipping\": 1.0", "\"gradient_clipping\": 0", |it| it.clip_norm.is_none()),
        ("\"gradient_clipping\": 1.0", "\"gradient_clipping\": 0.5", |it| {
            it.clip_norm == Some(0.5)
        }),
        ("\"AdamW\"", "\"Lamb\"", |it| {
            let (beta1, beta2, epsilon, weight_decay) = (0.8, 0.99, 1e-6, 0.3);
            it.optimizer == Optimizer::Lamb { beta1, beta2, epsilon, weight_decay }
        }),
        ("\"AdamW\"", "\"SGD\"", |it| is_sgd(it, [0.0, 0.3])),
        ("\"betas\": [0.8, 0.99], \"eps\": 1e-6,", "", |it| is_adamw(it, [0.9, 0.999, 1e-8, 0.3])),
        (", \"betas\": [0.8, 0.99], \"eps\": 1e-6,\n        \"weight_decay\": 0.3", "", |it| {
            is_adamw(it, [0.9, 0.999, 1e-8, 0.0])
        }),
        ("\"AdamW\", \"params\": {", "\"sgd\", \"params\": { \"momentum\": 0.7,", |it| {
            is_sgd(it, [0.7, 0.3])
        }),
        ("256,", "256, \"tensor_parallel\": { \"autotp_size\": 2 },", |it| {
            (width(it, Axis::TP), width(it, Axis::DP)) == (2, 8)
        }),
        // Micro-batch x accumulation steps x 16 replicas.
        ("\"train_batch_size\": 256", "\"train_micro_batch_size_per_gpu\": 3", |it| {
            (it.global_batch, it.microbatches) == (3 * 8 * 16, 8)
        }),
        (
            "\"train_batch_size\": 256, \"gradient_accumulation_steps\": 8",
            "\"train_micro_batch_size_per_gpu\": 3",
            |it| (it.global_batch, it.microbatches) == (3 * 16, 1),
        ),
        ("\"gradient_accumulation_steps\": 8,", "", |it| it.microbatches == 1),
    ];
    let wrong: [Wrong; 20] = [
        ("256,", "256, \"sequence_parallel_size\": 2,", "sequence_parallel_size = 2"),
        ("\"stage\": 3", "\"stage\": 3, \"mics_shard_size\": 3", "it divides the 16 replicas"),
        ("\"stage\": 3", "\"stage\": 2, \"mics_shard_size\": 4", "it goes with stage 3"),
        ("\"stage\": 3", "\"stage\": 3, \"zero_hpz_partition_size\": 3", "it divides the 16"),
        ("\"stage\": 3", "\"stage\": 2, \"zero_hpz_partition_size\": 8", "it goes with stage 3"),
        (
            "\"stage\": 3",
            "\"stage\": 3, \"zero_quantized_weights\": true",
            "zero_quantized_weights = true: plans send weights and gradients as they are",
        ),
        ("256,", "256, \"pipeline\": { \"stages\": 2 },", "pipeline.stages = 2"),
        ("256,", "256, \"sparse_gradients\": true,", "sparse_gradients = true"),
        ("{ \"enabled\": true }", "{ \"enabled\": \"auto\" }", "bf16.enabled = auto"),
        ("\"stage\": 3", "\"stage\": 3, \"cpu_offload\": true", "cpu_offload = true"),
        ("\"stage\": 3", "\"stage\": 3, \"cpu_offload_params\": true", "cpu_offload_params = true"),
        (
            "\"stage\": 3",
            "\"stage\": 3, \"offload_param\": { \"device\": \"nvme\" }",
            "offload_param.device = \"nvme\"",
        ),
        ("256,", "256, \"offload_states\": true,", "offload_states = true: plans keep all tensors"),
        (
            "256,",
            "256, \"other\": { \"weight_offload\": { \"device\": \"cpu\" } },",
            "other.weight_offload = {\"device\":\"cpu\"}: plans keep all tensors",
        ),
        ("false", "true", "fp16.enabled = true: bf16.enabled is true, too"),
        ("false", "false }, \"data_types\": { \"grad_accum_dtype\": \"fp8\"", "fp32, bf16 or fp16"),
        ("\"AdamW\"", "\"Muon\"", "optimizer.type = Muon"),
        ("[0.8, 0.99]", "[0.8]", "optimizer.params.betas"),
        (
            "256,",
            "256, \"tensor_parallel\": { \"autotp_size\": 3 },",
            "it must divide the 16 devices",
        ),
        (
            "\"train_batch_size\": 256, \"gradient_accumulation_steps\": 8",
            "\"steps\": 8",
            "--global-batch",
        ),
    ];
    base.check(&words, &wrong);
    // Where all replicas would share the second copy there is none.
    let sizes = [
        "\"mics_shard_size\": -1",
        "\"zero_hpz_partition_size\": 1",
        "\"zero_hpz_partition_size\": 16",
    ];
    for fine in sizes {
        let to = format!("\"stage\": 3, {fine}");
        base.read("\"stage\": 3", &to).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
    let halves =
        base.read("\"stage\": 3", "\"stage\": 3, \"zero_hpz_partition_size\": 4").expect("a plan");
    let is_noted = halves.notes.iter().any(|it| it.contains("only the first gathers"));
    assert!(is_noted, "{:?}", halves.notes);
    let auto =
        base.read("\"gradient_clipping\": 1.0", "\"gradient_clipping\": \"auto\"").expect("a plan");
    assert!(
        auto.notes.iter().any(|it| it.contains("(\"auto\")") && it.ends_with("gradient_clipping"))
    );
}

/// With two overflows in a row where nothing is said.
#[test]
fn scales_that_deepspeed_halves_otherwise_than_plans_are_noted() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "ds.json", text: DEEPSPEED, given };
    let formats = "\"bf16\": { \"enabled\": true }, \"fp16\": { \"enabled\": false }";
    for (words, expected) in [
        ("", Some("after 2 overflows (fp16.hysteresis) and down to 1 ")),
        (", \"hysteresis\": 1", None),
        (", \"hysteresis\": 3", Some("after 3 overflows (fp16.hysteresis) and down to 1 ")),
        (", \"hysteresis\": 1, \"min_loss_scale\": 1", None),
        (
            ", \"hysteresis\": 1, \"min_loss_scale\": 4",
            Some("after 1 overflows (fp16.hysteresis) and down to 4 "),
        ),
        // A constant scale is not halved.
        (", \"loss_scale\": 128", None),
    ] {
        let said = format!("\"fp16\": {{ \"enabled\": true{words} }}");
        let notes = base.read(formats, &said).expect("a plan").notes;
        let found: Vec<&String> = notes.iter().filter(|note| note.contains("halved")).collect();
        assert_eq!(found.len(), usize::from(expected.is_some()), "{words}: {notes:?}");
        assert!(found.iter().all(|note| expected.is_some_and(|it| note.contains(it))), "{found:?}");
    }
}

#[test]
fn texts_of_deepspeed_are_texts() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    Base { place: "ds.json", text: DEEPSPEED, given }.check_texts(&[
        ("\"AdamW\"", "@", "optimizer.type"),
        ("256,", "256, \"data_types\": {\"grad_accum_dtype\": @},", "data_types.grad_accum_dtype"),
    ]);
}

/// Where there is one forward pass in a step it gathers from all replicas here as well.
#[test]
fn gathers_within_the_second_copy_are_noted_of_several_micro_batches() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let text = DEEPSPEED.replace("\"stage\": 3", "\"stage\": 3, \"zero_hpz_partition_size\": 4");
    let base = Base { place: "ds.json", text: &text, given };
    for (steps, is_noted) in [(1, false), (2, true), (8, true), (16, true)] {
        let words = format!("\"gradient_accumulation_steps\": {steps}");
        let found = base.read("\"gradient_accumulation_steps\": 8", &words).expect("a plan");
        assert_eq!(found.plan.microbatches, steps);
        let noted = found.notes.iter().any(|it| it.contains("only the first gathers"));
        assert_eq!(noted, is_noted, "{steps}: {:?}", found.notes);
    }
}
