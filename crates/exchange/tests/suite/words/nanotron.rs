//! nanotron's words.

use shardloom_graph::Network;

use super::{Base, Word, Wrong, given, is_adamw, width};
use shardloom_plan::{AttentionKind, Axis, Number, Precision, Recompute, ScheduleKind};

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
    assert_eq!((plan.recompute, plan.attention), (Recompute::None, AttentionKind::Fused));
    // In multiples of the four ranks that share it.
    assert!(plan.model.contains("vocab=32004"), "{}", plan.model);
    let words: [Word; 26] = [
        ("is_llama_config: true", "is_llama_config: true\n    _use_doc_masking: true", |it| {
            it.mask_documents
        }),
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
        // Of weights in bf16 on each of four ranks, whose gradients are in fp32.
        ("  ddp_bucket_cap_mb: 23\n", "", |it| it.sync.bucket_bytes == 4 * (50 << 20)),
        ("ddp_bucket_cap_mb: 23", "ddp_bucket_cap_mb: 7", |it| {
            it.sync.bucket_bytes == 4 * (14 << 20)
        }),
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
        ("hidden_size: 512", "hidden_size: 512\n    attention_bias: true", "biases of attention"),
        ("hidden_size: 512", "hidden_size: 512\n    sliding_window_size: 8", "all positions"),
        ("hidden_size: 512", "hidden_size: 512\n    rope_scaling: 8", "are not scaled"),
        ("dtype: bfloat16", "dtype: float16", "bfloat16 or float32"),
        ("zero_stage: 0", "zero_stage: 2", "optimizer.zero_stage = 2: 0 or 1"),
        ("clip_grad: 1.0", "optimizer_factory:\n    name: sgd", "adamW is known here"),
    ];
    base.check(&words, &wrong);
}

/// As `LlamaConfig` of nanotron has them.
#[test]
fn a_llama_of_nanotron_is_llama_twos_where_nothing_else_is_said() {
    let base = Base { place: "nanotron.yaml", text: NANOTRON, given: given(16) };
    let spec = base.read("", "").expect("a plan").spec;
    let Network::Llama(llama) = spec.network() else { panic!("{spec}") };
    assert_eq!((llama.rope_theta, llama.norm_epsilon, llama.init_std), (1e4, 1e-6, 0.02));
    assert_eq!((llama.kv_heads(), llama.head_dim(), llama.tied), (8, 64, false));
    assert_eq!((llama.layers, llama.hidden, llama.ffn, llama.seq), (12, 512, 1408, 1024));
    assert!(llama.rope_scaling.is_none() && llama.changes().is_empty());
}

#[test]
fn texts_of_nanotron_are_texts() {
    Base { place: "nanotron.yaml", text: NANOTRON, given: given(16) }.check_texts(&[
        ("tp_mode: REDUCE_SCATTER", "tp_mode: @", "parallelism.tp_mode"),
        ("pp_engine: 1f1b", "pp_engine: @", "parallelism.pp_engine"),
        ("dtype: bfloat16", "dtype: @", "model.dtype"),
        ("clip_grad: 1.0", "optimizer_factory:\n    name: @", "optimizer.optimizer_factory.name"),
    ]);
}
