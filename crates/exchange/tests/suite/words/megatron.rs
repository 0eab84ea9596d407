//! Megatron-LM's words.

use super::{Base, Word, Wrong, blocks, given, is_adamw, is_sgd, width};
use shardloom_plan::{AttentionKind, Axis, LossScale, Number, Precision, Recompute, ScheduleKind};

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
    let words: [Word; 45] = [
        ("--bf16", "--bf16 --num-distributed-optimizer-instances 2", |it| {
            it.sync.zero == 1 && (width(it, Axis::REPLICA), width(it, Axis::DP)) == (2, 1)
        }),
        ("--bf16", "--bf16 --fp8-format hybrid --fp8-recipe tensorwise", |it| {
            it.precision == Precision { fp8_products: true, ..Precision::MIXED }
        }),
        ("--bf16", "--bf16 --fp8-format e4m3", |it| it.precision.fp8_products),
        ("--tensor-model-parallel-size 2", "--context-parallel-size 2", |it| {
            (width(it, Axis::CP), it.sync.bucket_bytes) == (2, 1 << 40)
        }),
        ("--use-distributed-optimizer", "", |it| it.sync.zero == 0),
        // 40 million elements on each of two ranks.
        ("r ", "r --overlap-grad-reduce ", |it| it.sync.bucket_bytes == 2 * 160_000_000),
        ("r ", "r --overlap-grad-reduce --ddp-bucket-size 1000 ", |it| {
            it.sync.bucket_bytes == 2 * 4000
        }),
        ("--bf16", "--bf16 --grad-reduce-in-bf16 --overlap-grad-reduce", |it| {
            it.precision == Precision { gradients: Number::Bf16, ..Precision::MIXED }
                && it.sync.bucket_bytes == 2 * 80_000_000
        }),
        ("--bf16", "--fp16", |it| {
            let (compute, gradients) = (Number::Fp16, Number::Fp16);
            it.precision == Precision { compute, gradients, ..Precision::MIXED }
        }),
        ("--bf16", "--fp16 --accumulate-allreduce-grads-in-fp32", |it| {
            let scale = LossScale::Dynamic { initial: 4_294_967_296.0, growth_interval: 1_000 };
            it.precision == Precision { compute: Number::Fp16, ..Precision::MIXED }
                && it.loss_scale == Some(scale)
        }),
        ("--bf16", "--fp16 --loss-scale 128", |it| {
            it.loss_scale == Some(LossScale::Constant { scale: 128.0 })
        }),
        ("--bf16", "--fp16 --initial-loss-scale 256 --loss-scale-window 7", |it| {
            let scale = LossScale::Dynamic { initial: 256.0, growth_interval: 7 };
            it.loss_scale == Some(scale)
        }),
        ("--bf16", "", |it| it.precision == Precision::FP32),
        ("--use-distributed-optimizer", "--use-megatron-fsdp", |it| it.sync.zero == 3),
        (
            "--use-distributed-optimizer",
            "--use-megatron-fsdp --data-parallel-sharding-strategy no_shard",
            |it| it.sync.zero == 0,
        ),
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
        ("--bf16", "--bf16 --attention-backend unfused", |it| {
            it.attention == AttentionKind::Unfused
        }),
        ("--bf16", "--bf16 --attention-backend local", |it| it.attention == AttentionKind::Unfused),
        ("--bf16", "--bf16 --transformer-impl local", |it| it.attention == AttentionKind::Unfused),
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
        (
            "--bf16",
            "--bf16 --decoder-first-pipeline-num-layers 6 --num-virtual-stages-per-pipeline-rank 2",
            |it| {
                let of_rank =
                    [(0, 4), (4, 5), (5, 6), (6, 7), (7, 10), (10, 11), (11, 12), (12, 14)];
                blocks(it) == of_rank
            },
        ),
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
    let wrong: [Wrong; 19] = [
        ("--seq-length 1024", "--max-position-embeddings 1024", "--seq-length is missing"),
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
            "--bf16 --num-distributed-optimizer-instances 3",
            "--num-distributed-optimizer-instances = 3: it divides the 2 replicas",
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
        (
            "--bf16",
            "--bf16 --attention-backend slow",
            "there are flash, fused, unfused, local and auto",
        ),
        ("--bf16", "--bf16 --decoder-first-pipeline-num-layers 2", "12 layers are cut evenly"),
        (
            "--bf16",
            "--bf16 --decoder-first-pipeline-num-layers 6 --num-layers-per-virtual-pipeline-stage 1",
            "it divides the 2 layers of each rank",
        ),
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
        ("--vocab-size 50257", "", "add --vocab-size there, or name a --model"),
        ("--micro-batch-size 2", "", "--micro-batch-size is missing"),
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
        "fp8-param-gather",
        "fp8-output-proj",
        "fp8-dot-product-attention",
        "fp8-multi-head-attention",
        "first-last-layers-bf16",
        "fp4-format",
        "squared-relu",
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

/// Whatever else asks for tensors in the host's memory, by its name.
#[test]
fn megatrons_words_for_offloading_that_are_not_known_are_refused() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    for (option, said) in [
        ("--fine-grained-activation-offloading", "offloading = given"),
        ("--optimizer-offload-fraction 0.5", "offload-fraction = 0.5"),
        ("--offload-modules core_attn", "offload-modules = core_attn"),
    ] {
        let error = base.read("--bf16", &format!("--bf16 {option}")).expect_err(option).to_string();
        assert!(
            error.contains(said) && error.contains("plans keep all tensors on devices"),
            "{error}"
        );
    }
    let off = base.read("--bf16", "--bf16 --optimizer-offload-fraction 0.0").expect("none of it");
    let note = "not part of a plan: ";
    assert!(off.notes.iter().any(|it| it.starts_with(note) && it.contains("offload-fraction")));
}

#[test]
fn weights_that_megatron_gathers_beside_forward_passes_are_noted_where_plans_gather_them_before() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    let overlaps = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather";
    let fsdp = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params";
    for (words, is_noted) in [
        (overlaps.to_owned(), true),
        ("--use-distributed-optimizer --overlap-grad-reduce".to_owned(), false),
        (format!("{overlaps} {fsdp}"), false),
        // Shards that are kept between the passes are gathered before them here.
        (
            format!("{overlaps} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"),
            true,
        ),
    ] {
        let notes = base.read("--use-distributed-optimizer", &words).expect("a plan").notes;
        let found = notes.iter().any(|note| note.contains("behind the update in the plan"));
        assert_eq!(found, is_noted, "{words}: {notes:?}");
    }
    for words in ["--use-distributed-optimizer --overlap-param-gather", "--overlap-param-gather"] {
        let error = base.read("--use-distributed-optimizer", words).expect_err(words).to_string();
        assert!(error.contains("--overlap-param-gather = given: Megatron-LM takes it"), "{error}");
    }
}

/// As documented for all projects.
/// Before core_v0.18.0 the same words sharded nothing.
#[test]
fn megatron_fsdp_without_a_strategy_is_noted() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    let fsdp = "--use-megatron-fsdp";
    for (words, is_noted) in [
        (fsdp.to_owned(), true),
        (format!("{fsdp} --data-parallel-sharding-strategy optim_grads_params"), false),
        ("--use-torch-fsdp2".to_owned(), false),
    ] {
        let notes = base.read("--use-distributed-optimizer", &words).expect("a plan").notes;
        let found = notes.iter().any(|note| note.contains("core_v0.18.0"));
        assert_eq!(found, is_noted, "{words}: {notes:?}");
    }
}

#[test]
fn misspelt_options_of_megatron_are_refused() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    for (from, to, said) in [
        (
            "--bf16",
            "--bf16 --clip-gradd 1",
            "there is no --clip-gradd here, did you mean --clip-grad?",
        ),
        (
            "--use-distributed-optimizer",
            "--use-distributed-optimiser",
            "did you mean --use-distributed-optimizer?",
        ),
    ] {
        let error = base.read(from, to).expect_err(to).to_string();
        assert!(error.contains(said), "{error}");
    }
    base.read("--bf16", "--bf16 --tensorboard-dir x --seed 1").expect("others are listed");
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
    let wrong: [Wrong; 3] = [
        (
            "--hidden-dropout 0",
            "",
            "--hidden-dropout = 0.1, as it is where the script does not say it: a Llama has no dropout",
        ),
        (
            "--attention-dropout 0",
            "--attention-dropout 0.25",
            "--attention-dropout = 0.25: a Llama has no dropout",
        ),
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
    assert_eq!(plan.sync.bucket_bytes, 2 * 4 * 128_000_000);
}

#[test]
fn megatrons_attention_is_fused_unless_it_is_said_otherwise() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    for words in [
        "",
        "--attention-backend auto",
        "--attention-backend flash --transformer-impl local",
        "--transformer-impl local --use-flash-attn",
        "--transformer-impl local --attention-backend fused",
    ] {
        let plan = base.read("--bf16", &format!("--bf16 {words}")).expect("a plan").plan;
        assert_eq!(plan.attention, AttentionKind::Fused, "{words}");
    }
}

#[test]
fn megatrons_scales_of_eight_bits_that_are_found_otherwise_are_noted() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    for (words, is_noted) in [
        ("--fp8-format hybrid", true),
        ("--fp8-format hybrid --fp8-recipe mxfp8", true),
        ("--fp8-format hybrid --fp8-recipe tensorwise", false),
        ("", false),
    ] {
        let notes = base.read("--bf16", &format!("--bf16 {words}")).expect("a plan").notes;
        let found = notes.iter().any(|note| note.contains("scales of numbers in 8 bits"));
        assert_eq!(found, is_noted, "{words}: {notes:?}");
    }
}

/// As there, where nothing else looks at their number.
#[test]
fn query_groups_count_only_where_attention_is_grouped() {
    let base = Base { place: "run.sh", text: MEGATRON_LLAMA, given: given(16) };
    let model = |words: &str| base.read("--bf16", &format!("--bf16 {words}")).expect("a plan").spec;
    let (plain, two) = (model(""), "--num-query-groups 2");
    assert_eq!(model(two).network(), plain.network());
    assert_ne!(model(&format!("--group-query-attention {two}")).network(), plain.network());
}

/// Of two replicas. Without sharded states every replica has all of them, however many instances are said.
#[test]
fn instances_of_the_distributed_optimizer_count_where_there_is_one() {
    let base = Base { place: "run.sh", text: MEGATRON, given: given(16) };
    let with = |words: &str| base.read("--use-distributed-optimizer", words);
    let plain = with("").expect("a plan").plan.to_toml();
    for count in 1..=4 {
        let words = format!("--num-distributed-optimizer-instances {count}");
        let found = with(&words).expect("it is of no use").plan.to_toml();
        assert_eq!(found, plain, "{count} instances");
        let found = with(&format!("--use-distributed-optimizer {words}"));
        assert_eq!(found.is_ok(), 2 % count == 0, "{count} instances of two replicas");
    }
}
