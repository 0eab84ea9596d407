//! nanotron: its YAML file.

use shardloom_plan::{AttentionKind, Number, Optimizer, Precision, Recompute, ScheduleKind};

use super::words::Words;
use super::{Given, Imported, replicas, unread_note};
use crate::export::own_cut;
use crate::recipe::model_of;
use crate::transformer::{Kind, Transformer};
use crate::{ExchangeError, Project, RankOrder, Recipe};

pub(super) fn import(words: &Words, given: &Given<'_>) -> Result<Imported, ExchangeError> {
    let width = |name: &str| words.needed(&format!("parallelism.{name}"));
    let (dp, pp, tp) = (width("dp")?, width("pp")?, width("tp")?);
    words.only("parallelism.expert_parallel_size", &["1"], "the model has no experts")?;
    let ring = "keys and values go around in a ring there, and plans gather them";
    words.only("parallelism.context_parallel_size", &["1"], ring)?;
    let each = dp.saturating_mul(pp).saturating_mul(tp);
    if replicas(&words.at("parallelism"), "parallelism: dp x pp x tp", each, given)? != 1 {
        let rule = format!("--cluster {} has {} devices", given.cluster, given.devices);
        return words.error("parallelism", format!("{each} devices"), rule);
    }
    let described = match given.model {
        // What cannot be read of it cannot be compared.
        Some(_) => described(words).ok(),
        None => Some(described(words)?),
    };
    let (spec, model) = model_of(given.model, described, &words.place)?;
    let (microbatch, microbatches) = (
        words.needed("tokens.micro_batch_size")?,
        words.needed("tokens.batch_accumulation_per_replica")?,
    );
    let Some(cuts) = own_cut(Project::Nanotron, &model, pp) else {
        return words.error("parallelism.pp", pp, "nanotron would leave a stage without a block");
    };
    let sequence_parallel = words.text("parallelism.tp_mode")?.map(str::to_ascii_lowercase);
    let sequence_parallel = match sequence_parallel.as_deref() {
        Some("reduce_scatter") => true,
        None | Some("all_reduce") => false,
        Some(other) => {
            return words.error("parallelism.tp_mode", other, "REDUCE_SCATTER or ALL_REDUCE");
        }
    };
    words.get("parallelism.tp_linear_async_communication");
    let again = "parallelism.tp_recompute_allgather";
    // Gathered again where it is not said.
    let gathers_again = words.get(again).is_none() || words.flag(again)?;
    let precision = precision(words)?;
    // Of a rank's weights, as PyTorch's DistributedDataParallel counts them.
    let weight_bytes = words.size("model.ddp_bucket_cap_mb")?.unwrap_or(25).saturating_mul(1 << 20);
    let elements = (weight_bytes / precision.compute.bytes()).saturating_mul(tp);
    let bucket_bytes = elements.saturating_mul(precision.gradients.bytes());
    let mut recipe = Recipe {
        model,
        pp,
        dp,
        groups: 1,
        second_copy: None,
        ep: 1,
        cp: 1,
        tp,
        sequence_parallel: sequence_parallel && tp > 1,
        keeps_gathered: !gathers_again && sequence_parallel && tp > 1,
        stages: vec![],
        rank_order: RankOrder::PipelineSlowest,
        global_batch: microbatch.saturating_mul(dp).saturating_mul(microbatches),
        microbatches,
        schedule: match words.text("parallelism.pp_engine")? {
            Some("1f1b") => ScheduleKind::OneForwardOneBackward,
            // Without a pipeline there is one order.
            _ if pp == 1 => ScheduleKind::OneForwardOneBackward,
            None | Some("afab") => ScheduleKind::Afab,
            Some(other) => return words.error("parallelism.pp_engine", other, "1f1b or afab"),
        },
        recompute: match words.flag("parallelism.recompute_layer")? {
            true => Recompute::Block,
            false => Recompute::None,
        },
        attention: AttentionKind::Fused,
        zero: zero(words)?,
        bucket_bytes,
        precision,
        optimizer: optimizer(words)?,
        clip_norm: words.real("optimizer.clip_grad")?.filter(|&norm| norm > 0.0),
        // Nothing is in fp16 there.
        loss_scale: None,
    };
    let Some(stages) = recipe.stages_at(&cuts) else {
        return words.error("parallelism.pp", pp, "there are no such stages");
    };
    recipe.stages = stages;
    // One word of two places, by version.
    let masks_documents = words.flag("model.model_config._use_doc_masking")?;
    let notes = unread_note(&words.unread()?).into_iter().collect();
    let mut imported = recipe.plan(spec, given.cluster, given.devices, &words.place, notes)?;
    imported.plan.mask_documents = masks_documents;
    let sync = &mut imported.plan.sync;
    // Without ZeRO DistributedDataParallel fills buckets by parameters.
    sync.splits_blocks = sync.zero == 0;
    // As a reduce-scatter is "too memory hungry" there (trainer.py at 2411b02).
    sync.all_reduces = sync.zero == 1;
    Ok(imported)
}

fn described(words: &Words) -> Result<Transformer, ExchangeError> {
    let at = |name: &str| format!("model.model_config.{name}");
    let size = |name: &str| words.needed(&at(name));
    words.only(&at("hidden_act"), &["silu"], "a Llama's activation is silu")?;
    words.only(&at("rope_scaling"), &[], "rotary frequencies are not scaled")?;
    words.only(&at("attention_bias"), &[], "biases of attention's products are not read yet")?;
    words.only(&at("sliding_window_size"), &[], "attention sees all positions before")?;
    let real = |name: &str, usual: f32| {
        Ok::<f32, ExchangeError>(words.real(&at(name))?.map_or(usual, |real| real as f32))
    };
    if !words.flag(&at("is_llama_config"))? {
        return words.error(
            &at("is_llama_config"),
            false,
            "a Llama is known here; or name a --model",
        );
    }
    let (hidden, heads) = (size("hidden_size")?, size("num_attention_heads")?);
    let step = words.size("model.make_vocab_size_divisible_by")?.unwrap_or(1);
    let padded = step.saturating_mul(words.size("parallelism.tp")?.unwrap_or(1));
    words.get(&at("max_position_embeddings"));
    Ok(Transformer {
        kind: Kind::Llama {
            theta: real("rope_theta", 10_000.0)?,
            scaling: None,
            qkv_bias: false,
            qk_norm: false,
        },
        changes: vec![],
        layers: size("num_hidden_layers")?,
        hidden,
        heads,
        kv_heads: words.size(&at("num_key_value_heads"))?.unwrap_or(heads),
        head_dim: hidden / heads,
        ffn: size("intermediate_size")?,
        seq: words.needed("tokens.sequence_length")?,
        vocab: size("vocab_size")?.div_ceil(padded).saturating_mul(padded),
        padding: 0,
        tied: words.flag(&at("tie_word_embeddings"))?,
        norm_epsilon: real("rms_norm_eps", 1e-6)?,
        init_std: words.real("model.init_method.std")?.map_or(0.02, |std| std as f32),
    })
}

fn precision(words: &Words) -> Result<Precision, ExchangeError> {
    let wide = words.flag("optimizer.accumulate_grad_in_fp32")?;
    match words.text("model.dtype")?.unwrap_or("bfloat16") {
        "bfloat16" => {
            let gradients = if wide { Number::Fp32 } else { Number::Bf16 };
            Ok(Precision { compute: Number::Bf16, gradients, master: wide, ..Precision::FP32 })
        }
        "float32" => Ok(Precision::FP32),
        other => words.error("model.dtype", other, "bfloat16 or float32"),
    }
}

fn zero(words: &Words) -> Result<u8, ExchangeError> {
    match words.real("optimizer.zero_stage")?.unwrap_or(0.0) {
        0.0 => Ok(0),
        1.0 => Ok(1),
        other => words.error("optimizer.zero_stage", other, "0 or 1"),
    }
}

fn optimizer(words: &Words) -> Result<Optimizer, ExchangeError> {
    let real = |name: &str, usual: f64| {
        Ok::<f64, ExchangeError>(words.real(&format!("optimizer.{name}"))?.unwrap_or(usual))
    };
    match words.text("optimizer.optimizer_factory.name")? {
        None | Some("adamW") => Ok(Optimizer::Adamw {
            beta1: real("optimizer_factory.adam_beta1", 0.9)?,
            beta2: real("optimizer_factory.adam_beta2", 0.95)?,
            epsilon: real("optimizer_factory.adam_eps", 1e-8)?,
            weight_decay: real("weight_decay", 0.0)?,
        }),
        Some(other) => {
            words.error("optimizer.optimizer_factory.name", other, "adamW is known here")
        }
    }
}
