//! nanotron: its YAML file.

use shardloom_plan::{Number, Optimizer, Recompute, ScheduleKind};

use super::{Exported, File, real, single};
use crate::ExchangeError;
use crate::recipe::{Leaving, RankOrder, Recipe};
use crate::transformer::{Kind, Transformer};

pub(super) fn export(mut leaving: Leaving<'_>) -> Result<Exported, ExchangeError> {
    let model = model(&leaving)?;
    let parallelism = parallelism(&mut leaving)?;
    let (dtype, accumulate) = precision(&leaving)?;
    let optimizer = optimizer(&leaving, accumulate)?;
    let weight_bytes = leaving.recipe.bucket_elements() * leaving.recipe.precision.compute.bytes();
    let bucket = (weight_bytes >> 20).max(1);
    if bucket << 20 != weight_bytes {
        let reason = format!("buckets have whole mebibytes of a rank's weights: {bucket}");
        let bucket_bytes = leaving.recipe.bucket_bytes;
        leaving.leave_out("sync.bucket_bytes", bucket_bytes, &reason);
    }
    let recipe = &leaving.recipe;
    let text = format!(
        "{comments}#\n\
         # Launch it with torchrun --nnodes {nodes} --nproc-per-node {devices} run_train.py --config-file \
         nanotron.yaml\n\
         # and CUDA_DEVICE_MAX_CONNECTIONS=1. What a plan does not say: data, learning rate, steps.\n\
         general:\n  project: shardloom\n  run: plan\n  seed: 42\n  step: null\n  \
         consumed_train_samples: null\n  benchmark_csv_path: null\n  ignore_sanity_checks: true\n\
         model:\n  ddp_bucket_cap_mb: {bucket}\n  dtype: {dtype}\n  init_method:\n    std: {std}\n  \
         make_vocab_size_divisible_by: 1\n  model_config:\n{model}\
         parallelism:\n{parallelism}\
         tokens:\n  sequence_length: {seq}\n  micro_batch_size: {microbatch}\n  \
         batch_accumulation_per_replica: {accumulation}\n  train_steps: 100\n  val_check_interval: -1\n  \
         limit_val_batches: 0\n  limit_test_batches: 0\n\
         optimizer:\n{optimizer}\
         tokenizer:\n  tokenizer_name_or_path: gpt2\n  tokenizer_revision: null\n  \
         tokenizer_max_length: null\n\
         checkpoints:\n  checkpoints_path: checkpoints\n  checkpoint_interval: 1000\n  \
         checkpoints_path_is_shared_file_system: false\n  resume_checkpoint_path: null\n  \
         save_initial_state: false\n\
         data_stages:\n- name: all\n  start_training_step: 1\n  data:\n    dataset: null\n    \
         num_loading_workers: 1\n    seed: 42\n\
         logging:\n  iteration_step_info_interval: 1\n  log_level: info\n  log_level_replica: info\n",
        comments = leaving.comments(),
        nodes = leaving.machines.nodes,
        devices = leaving.machines.devices,
        std = single(recipe.model.init_std),
        seq = recipe.model.seq,
        microbatch = recipe.microbatch(),
        accumulation = recipe.microbatches,
    );
    Ok(Exported { files: vec![File { name: "nanotron.yaml", text }], unsaid: leaving.unsaid })
}

fn model(leaving: &Leaving<'_>) -> Result<String, ExchangeError> {
    let model = &leaving.recipe.model;
    let Kind::Llama { theta, scaling, .. } = model.kind else {
        let name = if model.experts() > 0 { "with experts" } else { "gpt" };
        return leaving.refuse("model", name, "of this program's models there is Llama");
    };
    if let Some(scaling) = scaling {
        let reason = "rotary frequencies are not scaled in training";
        return leaving.refuse("model", scaling.to_string(), reason);
    }
    if model.head_dim * model.heads != model.hidden {
        let reason = "a Llama's heads have the width / heads there";
        return leaving.refuse("model", format!("head_dim={}", model.head_dim), reason);
    }
    if model.kv_heads < leaving.recipe.tp {
        let reason = "tensor-parallel ranks have a key-value head each, or more";
        return leaving.refuse("pipeline.stage.mesh.tp", leaving.recipe.tp, reason);
    }
    let words = [
        ("is_llama_config", "true".into()),
        ("num_hidden_layers", model.layers.to_string()),
        ("hidden_size", model.hidden.to_string()),
        ("intermediate_size", model.ffn.to_string()),
        ("num_attention_heads", model.heads.to_string()),
        ("num_key_value_heads", model.kv_heads.to_string()),
        ("vocab_size", model.vocab.to_string()),
        ("max_position_embeddings", model.seq.to_string()),
        ("hidden_act", "silu".into()),
        ("rms_norm_eps", yaml_real(f64::from(model.norm_epsilon), single(model.norm_epsilon))),
        ("rope_theta", single(theta)),
        ("rope_interleaved", "false".into()),
        ("rope_scaling", "null".into()),
        ("tie_word_embeddings", model.tied.to_string()),
        ("initializer_range", single(model.init_std)),
        ("bos_token_id", "1".into()),
        ("eos_token_id", "2".into()),
        ("pad_token_id", "null".into()),
        ("pretraining_tp", "1".into()),
        ("use_cache", "true".into()),
    ];
    Ok(words.map(|(key, value)| format!("    {key}: {value}\n")).concat())
}

/// A number with a point, which YAML 1.1 wants before an exponent.
fn yaml_real(number: f64, written: String) -> String {
    match written.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') && number.is_finite() => {
            format!("{digits}.0e{exponent}")
        }
        _ => written,
    }
}

fn parallelism(leaving: &mut Leaving<'_>) -> Result<String, ExchangeError> {
    let recipe = &leaving.recipe;
    let engine = match recipe.schedule {
        ScheduleKind::OneForwardOneBackward => "1f1b",
        ScheduleKind::Afab => "afab",
        other => {
            let reason = "pipelines run \"1f1b\" or \"afab\"; torchtitan runs any table of actions";
            return leaving.refuse("schedule", other.name(), reason);
        }
    };
    if recipe.rank_order != RankOrder::PipelineSlowest {
        let reason = "ranks are numbered with the pipeline outside of data parallelism";
        return leaving.refuse("pipeline.stage.devices", "another order", reason);
    }
    if recipe.cp > 1 {
        let reason = "keys and values go around in a ring, and are not gathered";
        return leaving.refuse("pipeline.stage.mesh.cp", recipe.cp, reason);
    }
    leaving.require_one_group("optimizer states are sharded over all replicas")?;
    leaving.require_no_fp8(
        "products are in bf16 or fp32; Megatron-LM and torchtitan have some in 8 bits",
    )?;
    let cut = own_cut(&recipe.model, recipe.pp);
    if cut.as_deref() != Some(&recipe.cuts()) {
        let shown = cut.map_or_else(|| "no such stages".into(), |cut| format!("blocks {cut:?}"));
        let reason = format!(
            "stages are cut there by the parameters of layers and head, which makes {shown} of this model"
        );
        return leaving.refuse("pipeline.stage.blocks", format!("{:?}", recipe.cuts()), reason);
    }
    let mode = if recipe.sequence_parallel { "REDUCE_SCATTER" } else { "ALL_REDUCE" };
    let recompute = match recipe.recompute {
        Recompute::None | Recompute::Selective => false,
        Recompute::Full | Recompute::Block => true,
        Recompute::Stage => {
            let reason = "what is computed twice is computed twice layer by layer: \"block\"";
            return leaving.refuse("recompute", "stage", reason);
        }
    };
    let text = format!(
        "  dp: {}\n  pp: {}\n  tp: {}\n  pp_engine: {engine}\n  tp_mode: {mode}\n  \
         tp_linear_async_communication: {}\n  recompute_layer: {recompute}\n  \
         tp_recompute_allgather: {}\n  expert_parallel_size: 1\n  context_parallel_size: 1\n",
        recipe.dp, recipe.pp, recipe.tp, recipe.sequence_parallel, !recipe.keeps_gathered,
    );
    let is_full = recipe.recompute == Recompute::Full;
    leaving.leave_out_unfused();
    if is_full {
        let reason = "whole layers are computed twice, also what no gradient needs (\"block\")";
        leaving.leave_out("recompute", "full", reason);
    }
    Ok(text)
}

/// The first block of each stage, then the number of blocks, as nanotron cuts a Llama (`build_model` in
/// `models/base.py`): block by block, a stage ends with the block that makes the sum of costs larger than its
/// share. None if that leaves a stage empty.
pub(crate) fn own_cut(model: &Transformer, stages: usize) -> Option<Vec<usize>> {
    let layer = (4 * model.hidden + 3 * model.ffn) * model.hidden;
    let head = model.vocab * model.hidden;
    let total = layer * model.layers + head;
    // Embedding, layers, final norm, head; of the last two, and what follows, the head is a block here.
    let costs = [0].into_iter().chain(vec![layer; model.layers]).chain([0, head]);
    let (mut stage, mut sum, mut stage_of) = (0, 0, vec![]);
    for cost in costs {
        stage_of.push(stage);
        sum += cost;
        // In floating point, as there: what is equal in whole numbers may come out larger.
        let share = (stage + 1) as f64 / stages as f64;
        if stage < stages && sum as f64 > total as f64 * share {
            stage += 1;
        }
    }
    let norm = model.layers + 1;
    if stage_of[norm] != stage_of[norm + 1] {
        return None;
    }
    let firsts: Option<Vec<usize>> =
        (0..stages).map(|stage| stage_of.iter().position(|&it| it == stage)).collect();
    Some(firsts?.into_iter().chain([model.blocks()]).collect())
}

fn precision(leaving: &Leaving<'_>) -> Result<(&'static str, bool), ExchangeError> {
    let precision = leaving.recipe.precision;
    let dtype = match precision.compute {
        Number::Fp32 => "float32",
        Number::Bf16 => "bfloat16",
        Number::Fp16 => {
            return leaving.refuse("precision.compute", "fp16", "weights are in bf16 or fp32");
        }
    };
    let narrow = precision.compute == Number::Bf16;
    if narrow != precision.master || precision.gradients != Number::Fp32 {
        let reason = "with bf16 weights gradients are accumulated in fp32 and the optimizer has an fp32 \
                      copy of the weights; otherwise all is in fp32";
        let value = format!(
            "{} with gradients in {} and {}",
            precision.compute.name(),
            precision.gradients.name(),
            if precision.master { "master weights" } else { "no master weights" }
        );
        return leaving.refuse("precision", value, reason);
    }
    Ok((dtype, narrow))
}

fn optimizer(leaving: &Leaving<'_>, accumulate: bool) -> Result<String, ExchangeError> {
    let Recipe { optimizer, clip_norm, zero, .. } = leaving.recipe;
    let Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } = optimizer else {
        let reason = "of this program's optimizers there is adamw";
        return leaving.refuse("optimizer.kind", optimizer.name(), reason);
    };
    if zero > 1 {
        let reason =
            "optimizer states are sharded (1) or not (0), gradients and parameters are not";
        return leaving.refuse("sync.zero", zero, reason);
    }
    let clip = clip_norm.map_or_else(|| "null".into(), real);
    Ok(format!(
        "  accumulate_grad_in_fp32: {accumulate}\n  clip_grad: {clip}\n  weight_decay: {decay}\n  \
         zero_stage: {zero}\n  optimizer_factory:\n    name: adamW\n    adam_beta1: {}\n    \
         adam_beta2: {}\n    adam_eps: {}\n    torch_adam_is_fused: true\n  \
         weight_decay_exclude_named_params:\n  - .*norm.*\n  \
         learning_rate_scheduler:\n    learning_rate: 0.0003\n    lr_warmup_steps: 2\n    \
         lr_warmup_style: linear\n    lr_decay_style: cosine\n    lr_decay_steps: null\n    \
         lr_decay_starting_step: null\n    min_decay_lr: 0.00001\n",
        real(beta1),
        real(beta2),
        yaml_real(epsilon, real(epsilon)),
        decay = real(weight_decay),
    ))
}

#[cfg(test)]
mod tests {
    use shardloom_graph::ModelSpec;

    use super::*;

    #[test]
    fn stages_are_cut_as_nanotron_cuts_them() {
        // What its own lines give for these numbers; the second model's shares end on whole blocks.
        let tied = "llama:layers=54,hidden=64,heads=4,ffn=256,seq=64,vocab=1024";
        for (model, stages, expected) in [
            ("llama-3-8b", 4, vec![0, 10, 19, 27, 34]),
            (tied, 11, vec![0, 7, 12, 16, 22, 27, 31, 37, 42, 47, 52, 56]),
        ] {
            let spec = ModelSpec::parse(model).expect("a model");
            let model = Transformer::of(&spec).expect("a Llama");
            assert_eq!(own_cut(&model, stages), Some(expected));
        }
    }
}
