//! What each word of a project's configuration becomes of a plan: one word is changed at a time.

mod plans;

use plans::LLAMA;
use shardloom_exchange::{ExchangeError, Given, Imported, import, project_of};
use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, Number, Optimizer, Plan, Precision, Recompute, ScheduleKind};

/// What a text says, what it says instead, and what is then so of the plan, and was not so before.
type Word = (&'static str, &'static str, fn(&Plan) -> bool);
/// What a text says, what it says instead, and what the refusal says.
type Wrong = (&'static str, &'static str, &'static str);

/// A configuration and what it does not say.
struct Base<'a> {
    place: &'a str,
    text: &'a str,
    given: Given<'a>,
}

impl Base<'_> {
    fn read(&self, from: &str, to: &str) -> Result<Imported, ExchangeError> {
        assert!(self.text.contains(from), "{from:?} is not there");
        let text = self.text.replacen(from, to, 1);
        import(project_of(self.place, &text)?, &text, self.place, &self.given)
    }

    fn check(&self, words: &[Word], wrong: &[Wrong]) {
        let base = self.read("", "").unwrap_or_else(|error| panic!("{error}")).plan;
        for (index, &(from, to, is_so)) in words.iter().enumerate() {
            let name = format!("{index}: {from:?} -> {to:?}");
            let found = self.read(from, to).unwrap_or_else(|error| panic!("{name}: {error}")).plan;
            assert!(!is_so(&base), "{name}: it was so before");
            assert!(is_so(&found), "{name}:\n{}", found.to_toml());
        }
        for &(from, to, message) in wrong {
            let error = self.read(from, to).err();
            let error = error.unwrap_or_else(|| panic!("{from:?} -> {to:?} is taken"));
            assert!(error.to_string().contains(message), "{from:?} -> {to:?}: {error}");
        }
    }
}

fn given(devices: usize) -> Given<'static> {
    Given {
        model: None,
        cluster: "h100-80g:1024",
        devices,
        global_batch: None,
        microbatches: None,
        table: None,
    }
}

/// Blocks of the stages.
fn blocks(plan: &Plan) -> Vec<(usize, usize)> {
    plan.pipeline[0].stage.iter().map(|stage| stage.blocks).collect()
}

fn width(plan: &Plan, axis: Axis) -> usize {
    plan.pipeline[0].stage[0].mesh.width(axis)
}

fn is_adamw(plan: &Plan, of: [f64; 4]) -> bool {
    let [beta1, beta2, epsilon, weight_decay] = of;
    plan.optimizer == Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }
}

fn is_sgd(plan: &Plan, of: [f64; 2]) -> bool {
    let [momentum, weight_decay] = of;
    plan.optimizer == Optimizer::Sgd { momentum, weight_decay, reference_batch: None }
}

/// 12 layers on 4 groups of 2 x 2 devices.
const MEGATRON: &str = "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \
    --vocab-size 50257 --micro-batch-size 2 --global-batch-size 128 --bf16 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \
    --use-distributed-optimizer ";

const MEGATRON_LLAMA: &str = "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \
    --vocab-size 50257 --micro-batch-size 2 --bf16 --swiglu --normalization RMSNorm \
    --position-embedding-type rope --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 ";

#[test]
fn megatrons_words() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    // Words at the begin are those of another command; options are added at the end.
    let words: [Word; 35] = [
        ("--tensor-model-parallel-size 2", "--context-parallel-size 2", |it| {
            (width(it, Axis::CP), it.sync.bucket_bytes) == (2, 1 << 40)
        }),
        ("--use-distributed-optimizer", "", |it| it.sync.zero == 0),
        ("r ", "r --overlap-grad-reduce ", |it| it.sync.bucket_bytes == 160_000_000),
        ("r ", "r --overlap-grad-reduce --ddp-bucket-size 1000 ", |it| {
            it.sync.bucket_bytes == 4000
        }),
        ("--bf16", "--bf16 --grad-reduce-in-bf16 --overlap-grad-reduce", |it| {
            it.precision == Precision { gradients: Number::Bf16, ..Precision::MIXED }
                && it.sync.bucket_bytes == 80_000_000
        }),
        ("--bf16", "--fp16", |it| {
            let (compute, gradients) = (Number::Fp16, Number::Fp16);
            it.precision == Precision { compute, gradients, ..Precision::MIXED }
        }),
        ("--bf16", "--fp16 --accumulate-allreduce-grads-in-fp32", |it| {
            it.precision == Precision { compute: Number::Fp16, ..Precision::MIXED }
        }),
        ("--bf16", "", |it| it.precision == Precision::FP32),
        ("--use-distributed-optimizer", "--use-megatron-fsdp", |it| it.sync.zero == 3),
        (
            "--use-distributed-optimizer",
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            |it| it.sync.zero == 2 && it.sync.bucket_bytes == 25_000_000,
        ),
        (
            "--use-distributed-optimizer",
            "--use-megatron-fsdp --data-parallel-sharding-strategy no_shard",
            |it| it.sync.zero == 0,
        ),
        ("--use-distributed-optimizer", "--use-torch-fsdp2", |it| it.sync.zero == 3),
        (
            "--use-distributed-optimizer",
            "--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward",
            |it| it.sync.zero == 2,
        ),
        ("--bf16", "--bf16 --clip-grad 0", |it| it.clip_norm.is_none()),
        ("--bf16", "--bf16 --clip-grad 0.5", |it| it.clip_norm == Some(0.5)),
        (
            "--bf16",
            "--bf16 --weight-decay 0.5 --adam-beta1 0.8 --adam-beta2 0.7 --adam-eps 1e-3",
            |it| is_adamw(it, [0.8, 0.7, 1e-3, 0.5]),
        ),
        ("--bf16", "--bf16 --optimizer sgd", |it| is_sgd(it, [0.9, 0.01])),
        ("--bf16", "--bf16 --optimizer sgd --sgd-momentum 0.5", |it| is_sgd(it, [0.5, 0.01])),
        ("--bf16", "--bf16 --use-tp-pp-dp-mapping", |it| {
            it.pipeline[0].stage[1].devices.0 == [2, 3, 10, 11]
        }),
        ("--bf16", "--bf16 --recompute-activations", |it| it.recompute == Recompute::Selective),
        ("--bf16", "--bf16 --recompute-granularity selective", |it| {
            it.recompute == Recompute::Selective
        }),
        ("--bf16", "--bf16 --recompute-granularity full --recompute-method uniform", |it| {
            it.recompute == Recompute::Block
        }),
        (
            "--bf16",
            "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 3",
            |it| it.recompute == Recompute::Stage,
        ),
        (
            "--bf16",
            "--bf16 --recompute-granularity full --recompute-method block --recompute-num-layers 3",
            |it| it.recompute == Recompute::Block,
        ),
        (
            "--bf16",
            "--bf16 --decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 4",
            |it| blocks(it) == [(0, 3), (3, 6), (6, 9), (9, 14)],
        ),
        ("--bf16", "--bf16 --decoder-last-pipeline-num-layers 6", |it| {
            blocks(it) == [(0, 3), (3, 5), (5, 7), (7, 14)]
        }),
        ("--bf16", "--bf16 --pipeline-model-parallel-layout Et*2|t*4|t*4|ttL", |it| {
            blocks(it) == [(0, 3), (3, 7), (7, 11), (11, 14)]
                && it.schedule == ScheduleKind::OneForwardOneBackward
        }),
        ("--bf16", "--bf16 --num-virtual-stages-per-pipeline-rank 3", |it| {
            blocks(it)[..2] == [(0, 2), (2, 3)]
                && blocks(it).len() == 12
                && it.schedule == ScheduleKind::Interleaved
        }),
        ("--micro-batch-size 2", "--micro-batch-size 4", |it| it.microbatches == 16),
        // One micro-batch on each of two replicas.
        ("--global-batch-size 128", "", |it| (it.global_batch, it.microbatches) == (4, 1)),
        ("--bf16", "--bf16 --sequence-parallel", |it| it.layout.splits("seq", Axis::TP)),
        ("--bf16", "--bf16 --context-parallel-size 2", |it| {
            (width(it, Axis::CP), width(it, Axis::DP)) == (2, 1)
        }),
        ("--bf16", "--bf16 --untie-embeddings-and-output-weights", |it| {
            !it.model.contains("tied=true")
        }),
        ("--bf16", "--bf16 --attention-dropout 0 --hidden-dropout 0", |it| {
            !it.model.contains("dropout=0.1")
        }),
        ("--bf16", "--bf16 --padded-vocab-size 50304", |it| it.model.contains("vocab=50304")),
    ];
    let wrong: [Wrong; 17] = [
        ("--seq-length 1024", "--max-position-embeddings 1024", "--seq-length = nothing"),
        (
            "--bf16",
            "--bf16 --decoder-first-pipeline-num-layers 6 --recompute-granularity full --recompute-method block --recompute-num-layers 2",
            "--recompute-method = block with 2 layers",
        ),
        ("--bf16", "--bf16 --fp16", "--fp16 = given: --bf16 is given, too"),
        (
            "--bf16",
            "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy all",
            "--data-parallel-sharding-strategy = all",
        ),
        (
            "--bf16",
            "--bf16 --num-distributed-optimizer-instances 2",
            "--num-distributed-optimizer-instances = several",
        ),
        (
            "--bf16",
            "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            "--recompute-method = uniform with 2 layers",
        ),
        (
            "--bf16",
            "--bf16 --recompute-granularity full --recompute-method block --recompute-num-layers 2",
            "--recompute-method = block with 2 layers",
        ),
        ("--bf16", "--bf16 --recompute-granularity some", "there are selective and full"),
        ("--bf16", "--bf16 --decoder-first-pipeline-num-layers 2", "12 layers are cut evenly"),
        (
            "--bf16",
            "--bf16 --decoder-first-pipeline-num-layers 6 --num-virtual-stages-per-pipeline-rank 4",
            "rank 0 has 6 layers, which it divides",
        ),
        (
            "--bf16",
            "--bf16 --pipeline-model-parallel-layout E|t*4|t*4|t*4|L",
            "5 stages on 4 groups of devices",
        ),
        ("--bf16", "--bf16 --attention-dropout 0", "--attention-dropout and --hidden-dropout"),
        ("--bf16", "--bf16 --max-position-embeddings 2048", "as many learned positions"),
        ("--bf16", "--bf16 --expert-model-parallel-size 2", "the model has no experts"),
        ("--vocab-size 50257", "", "add --vocab-size, or name a --model"),
        ("--micro-batch-size 2", "", "--micro-batch-size = nothing"),
        ("--num-layers 12", "--num-layers 0", "--num-layers = 0: a number from 1 up is needed"),
    ];
    base.check(&words, &wrong);
    for fine in [
        "--num-distributed-optimizer-instances 1",
        "--expert-model-parallel-size 1",
        "--max-position-embeddings 1024",
        "--rotary-percent 1.0",
        "--nnodes 2",
    ] {
        base.read("r ", &format!("r {fine} ")).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
}

#[test]
fn megatrons_words_that_plans_have_nothing_for_are_refused_one_by_one() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    for option in [
        "num-experts",
        "optimizer-cpu-offload",
        "cpu-offloading",
        "use-cpu-offload",
        "fp8-format",
        "fp4-format",
        "qk-layernorm",
        "squared-relu",
        "add-qkv-bias",
        "window-size",
        "hybrid-layer-pattern",
        "rampup-batch-size",
        "mtp-num-layers",
        "yaml-cfg",
        "multi-latent-attention",
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
    ] {
        let error = base.read("--bf16", &format!("--bf16 --{option} 1")).expect_err(option);
        assert!(error.to_string().contains(&format!("--{option} = given")), "{error}");
    }
}

#[test]
fn megatrons_words_of_a_llama() {
    let base = Base { place: "run.sh", text: MEGATRON_LLAMA, given: given(16) };
    let words: [Word; 10] = [
        ("--bf16", "--bf16 --group-query-attention --num-query-groups 2", |it| {
            it.model.contains("kv_heads=2")
        }),
        ("--bf16", "--bf16 --kv-channels 32", |it| it.model.contains("head_dim=32")),
        ("--bf16", "--bf16 --rotary-base 500000", |it| it.model.contains("rope_theta=500000")),
        ("--bf16", "--bf16 --use-rope-scaling --rope-scaling-factor 32", |it| {
            it.model.contains("rope_scaling=[32,1,4,8192]")
        }),
        ("--bf16", "--bf16 --use-rope-scaling", |it| {
            it.model.contains("rope_scaling=[8,1,4,8192]")
        }),
        ("--bf16", "--bf16 --norm-epsilon 0.125", |it| it.model.contains("norm_epsilon=0.125")),
        ("--bf16", "--bf16 --init-method-std 0.25", |it| it.model.contains("init_std=0.25")),
        ("--bf16", "--bf16 --ffn-hidden-size 1000", |it| it.model.contains("ffn=1000")),
        // 50257 in multiples of 2 x 1.
        (
            "--bf16",
            "--bf16 --tensor-model-parallel-size 2 --make-vocab-size-divisible-by 1",
            |it| it.model.contains("vocab=50258"),
        ),
        ("--bf16", "--bf16 --seq-length 2048", |it| it.model.contains("seq=2048")),
    ];
    let wrong: [Wrong; 2] = [
        ("--hidden-dropout 0", "", "a Llama has no dropout"),
        ("--disable-bias-linear", "", "rope, RMSNorm, swiglu, biases"),
    ];
    base.check(&words, &wrong);
}

/// Of very many replicas buckets have a million elements for each.
#[test]
fn megatrons_buckets_grow_with_the_number_of_replicas() {
    let text = MEGATRON.replace("--nnodes 2", "--nnodes 128").replace(" 128 --bf16", " 512 --bf16");
    let base = Base { place: "run.sh", text: &text, given: given(1024) };
    let plan = base.read("r ", "r --overlap-grad-reduce ").expect("a plan").plan;
    assert_eq!(width(&plan, Axis::DP), 128);
    assert_eq!(plan.sync.bucket_bytes, 4 * 128_000_000);
}

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
    let words: [Word; 18] = [
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
                it.precision == Precision { compute, gradients, ..Precision::MIXED }
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
    let wrong: [Wrong; 12] = [
        ("256,", "256, \"sequence_parallel_size\": 2,", "sequence_parallel_size = 2"),
        ("\"stage\": 3", "\"stage\": 3, \"mics_shard_size\": 4", "mics_shard_size = 4"),
        ("\"stage\": 3", "\"stage\": 3, \"zero_hpz_partition_size\": 8", "hpz_partition_size = 8"),
        ("\"stage\": 3", "\"stage\": 3, \"cpu_offload\": true", "cpu_offload = true"),
        ("\"stage\": 3", "\"stage\": 3, \"cpu_offload_params\": true", "cpu_offload_params = true"),
        (
            "\"stage\": 3",
            "\"stage\": 3, \"offload_param\": { \"device\": \"nvme\" }",
            "offload_param.device = \"nvme\"",
        ),
        ("false", "true", "fp16.enabled = true: bf16.enabled is true, too"),
        ("false", "false }, \"data_types\": { \"grad_accum_dtype\": \"fp8\"", "fp32, bf16 or fp16"),
        ("\"AdamW\"", "\"Muon\"", "optimizer.type = Muon"),
        ("[0.8, 0.99]", "[0.8]", "optimizer.params.betas"),
        ("256,", "256, \"tensor_parallel\": { \"autotp_size\": 3 },", "has 16 devices"),
        (
            "\"train_batch_size\": 256, \"gradient_accumulation_steps\": 8",
            "\"steps\": 8",
            "--global-batch",
        ),
    ];
    base.check(&words, &wrong);
    for fine in ["\"mics_shard_size\": -1", "\"zero_hpz_partition_size\": 1"] {
        let to = format!("\"stage\": 3, {fine}");
        base.read("\"stage\": 3", &to).unwrap_or_else(|error| panic!("{fine}: {error}"));
    }
}

/// 12 layers in 4 stages, 2 replicas of 2 devices.
const TORCHTITAN: &str = "
[training]
local_batch_size = 16
seq_len = 1024
[parallelism]
pipeline_parallel_degree = 4
tensor_parallel_degree = 2
[activation_checkpoint]
mode = 'full'
";

#[test]
fn torchtitans_words() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "titan.toml", text: TORCHTITAN, given };
    let plan = base.read("", "").expect("a plan").plan;
    // 14 in 4 stages, longer ones first, the embedding and the head with one less.
    assert_eq!(blocks(&plan), [(0, 4), (4, 8), (8, 11), (11, 14)]);
    assert_eq!((plan.global_batch, plan.microbatches, plan.sync.zero), (32, 16, 2));
    assert!(is_adamw(&plan, [0.9, 0.95, 1e-8, 0.1]));
    let words: [Word; 23] = [
        ("'full'", "'none'", |it| it.recompute == Recompute::Selective),
        ("'full'", "'selective'", |it| it.recompute == Recompute::Selective),
        ("tensor_parallel_degree = 2\n", "", |it| {
            (width(it, Axis::TP), width(it, Axis::DP)) == (1, 4)
        }),
        ("tensor_parallel_degree = 2\n", "context_parallel_degree = 2\n", |it| {
            width(it, Axis::CP) == 2
        }),
        ("[parallelism]", "[parallelism]\nenable_sequence_parallel = false", |it| {
            !it.layout.splits("seq", Axis::TP)
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_microbatch_size = 2", |it| {
            it.microbatches == 8
        }),
        ("[parallelism]", "[parallelism]\nfsdp_reshard_after_forward = 'always'", |it| {
            it.sync.zero == 3
        }),
        ("[parallelism]", "[parallelism]\ndata_parallel_replicate_degree = 2", |it| {
            it.sync.zero == 0
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = 'GPipe'", |it| {
            it.schedule == ScheduleKind::Afab
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = 'Interleaved1F1B'", |it| {
            it.schedule == ScheduleKind::Interleaved && blocks(it).len() == 8
        }),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = 'ZBVZeroBubble'", |it| {
            it.schedule == ScheduleKind::ZeroBubbleV && blocks(it).len() == 8
        }),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_first_stage_less_layers = 3",
            // 16 in 4 stages of 4, the first with 3 less.
            |it| blocks(it) == [(0, 2), (2, 6), (6, 10), (10, 14)],
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_last_stage_less_layers = 0",
            // 13 in 4 stages, the embedding as one.
            |it| blocks(it) == [(0, 4), (4, 7), (7, 10), (10, 14)],
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_layers_per_stage = 4\npipeline_parallel_schedule = '1F1B'
             pipeline_parallel_last_stage_less_layers = 3",
            // 16 in stages of 4, the last with 3 less, the first with one less.
            |it| blocks(it) == [(0, 4), (4, 8), (8, 12), (12, 14)],
        ),
        ("[training]", "[training]\nmax_norm = 0.5", |it| it.clip_norm == Some(0.5)),
        ("[training]", "[training]\ndtype = 'bfloat16'", |it| {
            let (gradients, master) = (Number::Bf16, false);
            it.precision == Precision { gradients, master, ..Precision::MIXED }
        }),
        ("[training]", "[training]\nmixed_precision_param = 'float32'", |it| {
            it.precision == Precision::FP32
        }),
        ("[training]", "[optimizer]\nbeta1 = 0.8\nbeta2 = 0.7\n[training]", |it| {
            is_adamw(it, [0.8, 0.7, 1e-8, 0.1])
        }),
        ("[training]", "[optimizer]\neps = 1e-6\nweight_decay = 0.3\n[training]", |it| {
            is_adamw(it, [0.9, 0.95, 1e-6, 0.3])
        }),
        ("local_batch_size = 16\n", "", |it| (it.global_batch, it.microbatches) == (16, 8)),
        ("pipeline_parallel_degree = 4\n", "", |it| {
            // Eight replicas with 16 samples at a time.
            (it.global_batch, it.microbatches, it.sync.zero) == (128, 1, 3)
        }),
        (
            "local_batch_size = 16\nseq_len = 1024\n[parallelism]\npipeline_parallel_degree = 4\n",
            "local_batch_size = 4\nglobal_batch_size = 64\n[parallelism]\n",
            |it| (it.global_batch, it.microbatches) == (64, 2),
        ),
        (
            "pipeline_parallel_degree = 4\n",
            "data_parallel_replicate_degree = 8\nfsdp_reshard_after_forward = 'never'\n",
            |it| it.sync.zero == 0,
        ),
    ];
    let wrong: [Wrong; 14] = [
        ("[parallelism]", "[parallelism]\nexpert_parallel_degree = 2", "the model has no experts"),
        ("[training]", "[training]\nenable_cpu_offload = true", "enable_cpu_offload = true"),
        ("[training]", "[model]\nconverters = ['float8']\n[training]", "model.converters"),
        ("[training]", "[model]\nconverters = ['mx']\n[training]", "model.converters"),
        ("[training]", "[training]\nglobal_batch_size = 64", "several rounds of a pipeline"),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_microbatch_size = 3",
            "2 replicas with 16 samples at a time",
        ),
        ("[parallelism]", "[parallelism]\npipeline_parallel_schedule = '2F2B'", "_dump_csv"),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_schedule_csv = 'a.csv'",
            "name that file after the configuration",
        ),
        (
            "[parallelism]",
            "[parallelism]\ndata_parallel_shard_degree = 4",
            "with the other widths there are 2 replicas",
        ),
        ("[parallelism]", "[parallelism]\nfsdp_reshard_after_forward = 'no'", "default, always or"),
        (
            "pipeline_parallel_degree = 4\n",
            "data_parallel_replicate_degree = 2\n",
            "over all replicas here, or over none",
        ),
        (
            "[parallelism]",
            "[parallelism]\npipeline_parallel_first_stage_less_layers = 5",
            "leave a stage without one",
        ),
        ("[training]", "[training]\nmixed_precision_reduce = 'bfloat16'", "reduced in fp32"),
        ("[training]", "[optimizer]\nname = 'Adam'\n[training]", "AdamW is known here"),
    ];
    base.check(&words, &wrong);
}

/// What torchtitan writes itself has defaults, too.
#[test]
fn torchtitans_json_has_the_defaults_of_pytorchs_adamw() {
    let text = include_str!("torchtitan/fully-sharded.json");
    let base = Base { place: "plan.json", text, given: given(8) };
    let settings = "\"lr\": 0.0003, \"betas\": [0.9, 0.95], \"eps\": 1e-08, \"weight_decay\": 0.1";
    let words: [Word; 2] = [
        (settings, "\"lr\": 0.0003", |it| is_adamw(it, [0.9, 0.999, 1e-8, 0.01])),
        (settings, "\"betas\": [0.5, 0.6], \"eps\": 1e-3, \"weight_decay\": 0.3", |it| {
            is_adamw(it, [0.5, 0.6, 1e-3, 0.3])
        }),
    ];
    base.check(&words, &[("\"llama3\"", "\"llama4\"", "model_spec.name = llama4")]);
}

#[test]
fn words_that_are_not_read_are_named_and_lines_that_cannot_be_too() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), ..given(16) };
    let base = Base { place: "titan.toml", text: TORCHTITAN, given };
    let notes = base.read("[training]", "[training]\nsteps = 10").expect("a plan").notes;
    assert_eq!(notes, ["not part of a plan: training.seq_len, training.steps"]);
    let error = base.read("[training]", "[training").expect_err("no TOML").to_string();
    assert!(error.starts_with("titan.toml:2"), "{error}");
}

#[test]
fn torchtitans_names_of_models() {
    let text = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\n";
    let base = Base { place: "titan.toml", text, given: given(256) };
    let words: [Word; 3] = [
        ("8B", "70B", |it| it.model.contains("layers=80")),
        ("8B", "405B", |it| it.model.contains("layers=126")),
        ("size = 1", "size = 1\nseq_len = 4096", |it| it.model.contains("seq=4096")),
    ];
    let wrong = [("8B", "1B", "model.flavor = 1B of llama3"), ("llama3", "llama4", "of llama4")];
    base.check(&words, &wrong);
    let model = base.read("", "").expect("a plan").plan.model;
    assert!(model.contains("layers=32") && model.contains("seq=2048"), "{model}");
}

const NANOTRON: &str = "
model:
  ddp_bucket_cap_mb: 23
  dtype: bfloat16
  model_config:
    is_llama_config: true
    num_hidden_layers: 12
    hidden_size: 512
    intermediate_size: 1408
    num_attention_heads: 8
    vocab_size: 32001
parallelism:
  dp: 2
  pp: 2
  tp: 4
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
tokens:
  sequence_length: 1024
  micro_batch_size: 4
  batch_accumulation_per_replica: 8
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  zero_stage: 0
";

#[test]
fn nanotrons_words() {
    let base = Base { place: "nanotron.yaml", text: NANOTRON, given: given(16) };
    let plan = base.read("", "").expect("a plan").plan;
    assert!(is_adamw(&plan, [0.9, 0.95, 1e-8, 0.0]));
    assert_eq!((plan.global_batch, plan.microbatches), (64, 8));
    assert_eq!(plan.recompute, Recompute::Selective);
    // In multiples of the four ranks that share it.
    assert!(plan.model.contains("vocab=32004"), "{}", plan.model);
    let words: [Word; 25] = [
        ("zero_stage: 0", "zero_stage: 1", |it| it.sync.zero == 1),
        ("clip_grad: 1.0", "clip_grad: 0.5", |it| it.clip_norm == Some(0.5)),
        ("clip_grad: 1.0", "clip_grad: 0.0", |it| it.clip_norm.is_none()),
        ("clip_grad: 1.0", "weight_decay: 0.25", |it| is_adamw(it, [0.9, 0.95, 1e-8, 0.25])),
        (
            "clip_grad: 1.0",
            "optimizer_factory:\n    name: adamW\n    adam_beta1: 0.5\n    adam_beta2: 0.6\n    adam_eps: 1.0e-3",
            |it| is_adamw(it, [0.5, 0.6, 1e-3, 0.0]),
        ),
        ("accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: false", |it| {
            let (gradients, master) = (Number::Bf16, false);
            it.precision == Precision { gradients, master, ..Precision::MIXED }
        }),
        ("dtype: bfloat16", "dtype: float32", |it| it.precision == Precision::FP32),
        ("  ddp_bucket_cap_mb: 23\n", "", |it| it.sync.bucket_bytes == 25 << 20),
        ("ddp_bucket_cap_mb: 23", "ddp_bucket_cap_mb: 7", |it| it.sync.bucket_bytes == 7 << 20),
        ("pp_engine: 1f1b", "pp_engine: afab", |it| it.schedule == ScheduleKind::Afab),
        ("  pp_engine: 1f1b\n", "", |it| it.schedule == ScheduleKind::Afab),
        ("tp_mode: REDUCE_SCATTER", "tp_mode: ALL_REDUCE", |it| !it.layout.splits("seq", Axis::TP)),
        ("  tp_mode: REDUCE_SCATTER\n", "", |it| !it.layout.splits("seq", Axis::TP)),
        ("tp_mode: REDUCE_SCATTER", "tp_mode: REDUCE_SCATTER\n  recompute_layer: true", |it| {
            it.recompute == Recompute::Block
        }),
        (
            "tp_mode: REDUCE_SCATTER",
            "tp_mode: REDUCE_SCATTER\n  tp_recompute_allgather: false",
            |it| it.keeps_gathered,
        ),
        ("micro_batch_size: 4", "micro_batch_size: 2", |it| it.global_batch == 32),
        ("replica: 8", "replica: 4", |it| (it.global_batch, it.microbatches) == (32, 4)),
        ("num_attention_heads: 8", "num_attention_heads: 8\n    num_key_value_heads: 4", |it| {
            it.model.contains("kv_heads=4")
        }),
        ("hidden_size: 512", "hidden_size: 512\n    rope_theta: 500000.0", |it| {
            it.model.contains("rope_theta=500000")
        }),
        ("hidden_size: 512", "hidden_size: 512\n    rms_norm_eps: 0.125", |it| {
            it.model.contains("norm_epsilon=0.125")
        }),
        ("hidden_size: 512", "hidden_size: 512\n    tie_word_embeddings: true", |it| {
            it.model.contains("tied=true")
        }),
        ("dtype: bfloat16", "dtype: bfloat16\n  make_vocab_size_divisible_by: 128", |it| {
            // 32001 in multiples of 4 x 128.
            it.model.contains("vocab=32256")
        }),
        ("dtype: bfloat16", "dtype: bfloat16\n  init_method:\n    std: 0.25", |it| {
            it.model.contains("init_std=0.25")
        }),
        ("  dp: 2\n  pp: 2\n", "  dp: 4\n  pp: 1\n", |it| it.global_batch == 128),
        ("  dp: 2\n  pp: 2\n  tp: 4", "  dp: 8\n  pp: 2\n  tp: 1", |it| {
            width(it, Axis::DP) == 8 && !it.layout.splits("seq", Axis::TP)
        }),
    ];
    let wrong: [Wrong; 15] = [
        ("micro_batch_size: 4", "micro_batch_size: 0", "size = 0: a whole number from 1 up"),
        ("dp: 2", "dp: 4", "parallelism: dp x pp x tp"),
        ("dp: 2", "dp: 1", "parallelism = 8 devices"),
        ("pp_engine: 1f1b", "pp_engine: gpipe", "1f1b or afab"),
        ("REDUCE_SCATTER", "RING", "REDUCE_SCATTER or ALL_REDUCE"),
        ("tp: 4", "tp: 4\n  expert_parallel_size: 2", "the model has no experts"),
        ("tp: 4", "tp: 4\n  context_parallel_size: 2", "keys and values go around in a ring"),
        ("is_llama_config: true", "is_llama_config: false", "a Llama is known here"),
        ("hidden_size: 512", "hidden_size: 512\n    hidden_act: gelu", "activation is silu"),
        ("hidden_size: 512", "hidden_size: 512\n    attention_bias: true", "have no bias"),
        ("hidden_size: 512", "hidden_size: 512\n    sliding_window_size: 8", "all positions"),
        ("hidden_size: 512", "hidden_size: 512\n    rope_scaling: 8", "are not scaled"),
        ("dtype: bfloat16", "dtype: float16", "bfloat16 or float32"),
        ("zero_stage: 0", "zero_stage: 2", "optimizer.zero_stage = 2: 0 or 1"),
        ("clip_grad: 1.0", "optimizer_factory:\n    name: sgd", "adamW is known here"),
    ];
    base.check(&words, &wrong);
}

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
    let words: [Word; 9] = [
        ("mixed_precision: bf16", "mixed_precision: 'no'", |it| it.precision == Precision::FP32),
        ("mixed_precision: bf16", "mixed_precision: fp16", |it| {
            it.precision == Precision { compute: Number::Fp16, ..Precision::MIXED }
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
        ("  parallelism_config_dp_replicate_size: 4", "over all 16 replicas here, or over none"),
        ("  parallelism_config_dp_shard_size: 8", "over all 16 replicas here, or over none"),
        ("  parallelism_config_sp_size: 2", "split attention by heads"),
        (
            "  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: alltoall",
            "plans gather keys and values",
        ),
        ("  parallelism_config_tp_size: 3", "has 16 devices"),
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
