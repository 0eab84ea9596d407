//! DeepSpeed: its JSON file.

use shardloom_plan::{LossScale, Number, Optimizer, Precision};

use super::words::Words;
use super::{ATTENTION_NOTE, Given, Imported, halving_note, replicas, unread_note};
use crate::recipe::{ONE_BUCKET, model_of};
use crate::{ExchangeError, Recipe, Transformer};

pub(super) fn import(words: &Words, given: &Given<'_>) -> Result<Imported, ExchangeError> {
    for path in [
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_param.device",
        "zero_optimization.cpu_offload",
        "zero_optimization.cpu_offload_params",
    ] {
        words.only(path, &["none"], "plans keep weights and optimizer states on devices")?;
    }
    let activations = "activation_checkpointing.cpu_checkpointing";
    words.only(activations, &[], "plans keep activations on devices")?;
    words.only("fp8.enabled", &[], "plans compute in fp32, bf16 or fp16")?;
    for path in [
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.zero_quantized_nontrainable_weights",
        "zero_optimization.zero_quantized_gradients",
    ] {
        words.only(path, &[], "plans send weights and gradients as they are, and not in 8 bits")?;
    }
    let stages =
        "the script's PipelineModule has the stages, and plans of this file one: leave it out";
    words.only("pipeline.stages", &["1"], stages)?;
    let sparse =
        "plans say it for parameters that are trained without ZeRO (sync.sparse): leave it out";
    words.only("sparse_gradients", &[], sparse)?;
    words.only(
        "sequence_parallel_size",
        &["1"],
        "plans do not split attention by heads (Ulysses)",
    )?;
    let (spec, model) = model_of(given.model, None, &words.place)?;
    let tp = words.size("tensor_parallel.autotp_size")?.unwrap_or(1);
    let dp = replicas(
        &words.at("tensor_parallel.autotp_size"),
        "tensor_parallel.autotp_size",
        tp,
        given,
    )?;
    let ep = ep(words, &model, dp)?;
    let (global_batch, microbatches) = batch(words, dp, given)?;
    let zero = zero(words)?;
    let groups = groups(words, dp, zero)?;
    let second_copy = second_copy(words, dp, (zero, groups, ep))?;
    // A single replica shares nothing.
    let zero = if dp > 1 { zero } else { 0 };
    let precision = precision(words)?;
    let mut notes = vec![];
    if words.get("optimizer").is_none() {
        notes.push("the optimizer is the training script's: AdamW is assumed".into());
    }
    notes.push(
        "whether activations are computed twice is the training script's: none is assumed".into(),
    );
    notes.push(ATTENTION_NOTE.into());
    if groups > 1 {
        notes.push(
            "DeepSpeed 0.19.8 has no mics_shard_size any more: a version before it is meant".into(),
        );
    }
    if second_copy.is_some() && microbatches > 1 {
        notes.push(
            "of a step's forward passes only the first gathers weights from all replicas there, in the plan each does \
             (zero_hpz_partition_size)"
                .into(),
        );
    }
    let loss_scale = loss_scale(words, precision)?;
    if matches!(loss_scale, Some(LossScale::Dynamic { .. })) {
        let overflows = words.size("fp16.hysteresis")?.unwrap_or(2);
        let least = words.real("fp16.min_loss_scale")?.unwrap_or(1.0);
        notes.extend(halving_note("fp16.hysteresis", overflows, "fp16.min_loss_scale", least));
    }
    let recipe = Recipe {
        loss_scale,
        dp,
        groups,
        second_copy,
        ep,
        tp,
        global_batch,
        microbatches,
        zero,
        bucket_bytes: bucket_bytes(words, tp, precision)?,
        precision,
        optimizer: optimizer(words)?,
        clip_norm: words.real("gradient_clipping")?.filter(|&norm| norm > 0.0),
        ..Recipe::in_one_stage(model)
    };
    notes.extend(words.auto_note());
    notes.extend(unread_note(&words.unread()?));
    recipe.plan(spec, given.cluster, given.devices, &words.place, notes)
}

/// Ranks among which the experts of a model are dealt (AutoEP).
fn ep(words: &Words, model: &Transformer, dp: usize) -> Result<usize, ExchangeError> {
    let path = "expert_parallel.autoep_size";
    let ep = words.size(path)?.unwrap_or(1);
    if !words.flag("expert_parallel.enabled")? || ep == 1 {
        return Ok(1);
    }
    let experts = model.experts();
    match dp.is_multiple_of(ep) && experts > 0 && experts.is_multiple_of(ep) {
        true => Ok(ep),
        false => {
            let rule = format!("it divides the {dp} replicas and the {experts} experts of --model");
            words.error(path, ep, rule)
        }
    }
}

/// Samples and micro-batches of a step: of the three numbers two give the third.
fn batch(words: &Words, dp: usize, given: &Given<'_>) -> Result<(usize, usize), ExchangeError> {
    let global = words.size("train_batch_size")?.or(given.global_batch);
    let micro = words.size("train_micro_batch_size_per_gpu")?;
    let steps = words.size("gradient_accumulation_steps")?.or(given.microbatches);
    let (global, steps) = match (global, micro, steps) {
        (None, Some(micro), steps) => {
            let steps = steps.unwrap_or(1);
            (micro.saturating_mul(dp).saturating_mul(steps), steps)
        }
        (Some(global), None, steps) => (global, steps.unwrap_or(1)),
        (Some(global), Some(micro), None) => (global, (global / dp / micro).max(1)),
        (Some(global), Some(_), Some(steps)) => (global, steps),
        (None, None, _) => {
            let rule = "it is the training script's: say it with --global-batch";
            return words.missing("train_batch_size", rule);
        }
    };
    let micro = micro.unwrap_or(global / dp / steps);
    if micro.checked_mul(dp).and_then(|it| it.checked_mul(steps)) != Some(global) {
        let rule = format!(
            "it is micro-batch x accumulation steps x replicas, and here {micro} x {steps} x {dp}"
        );
        return words.error("train_batch_size", global, rule);
    }
    Ok((global, steps))
}

fn zero(words: &Words) -> Result<u8, ExchangeError> {
    let stage = words.real("zero_optimization.stage")?.unwrap_or(0.0);
    words.get("zero_optimization.contiguous_gradients");
    words.get("zero_optimization.stage3_param_persistence_threshold");
    match stage {
        0.0 => Ok(0),
        1.0 => Ok(1),
        2.0 => Ok(2),
        3.0 => Ok(3),
        other => words.error("zero_optimization.stage", other, "a stage is 0 to 3"),
    }
}

/// Groups of replicas that shard among themselves (MiCS, which 0.19.8 no longer has); of a number below 0 it is one.
fn groups(words: &Words, dp: usize, zero: u8) -> Result<usize, ExchangeError> {
    let path = "zero_optimization.mics_shard_size";
    if words.real(path)?.is_none_or(|size| size < 0.0) {
        return Ok(1);
    }
    let size = words.needed(path)?;
    match zero {
        3 if dp.is_multiple_of(size) => Ok(dp / size),
        3 => words.error(path, size, format!("it divides the {dp} replicas")),
        _ => words.error(path, size, "it goes with stage 3"),
    }
}

/// Replicas that share a second copy of the weights (ZeRO++'s hpZ); up to 1, and where all would, there is none.
fn second_copy(
    words: &Words,
    dp: usize,
    (zero, groups, ep): (u8, usize, usize),
) -> Result<Option<usize>, ExchangeError> {
    let path = "zero_optimization.zero_hpz_partition_size";
    if words.real(path)?.is_none_or(|size| size < 2.0) {
        return Ok(None);
    }
    let size = words.needed(path)?;
    let rule = match () {
        () if zero != 3 => "it goes with stage 3".into(),
        () if !dp.is_multiple_of(size) => format!("it divides the {dp} replicas"),
        () if groups > 1 => "all replicas share the first copy: leave mics_shard_size out".into(),
        () if ep > 1 => "plans have it for experts that are not dealt to ranks".into(),
        () => return Ok(Some(size).filter(|&size| size < dp)),
    };
    words.error(path, size, rule)
}

fn bucket_bytes(words: &Words, tp: usize, precision: Precision) -> Result<usize, ExchangeError> {
    words.get("zero_optimization.overlap_comm");
    let elements = words.size("zero_optimization.reduce_bucket_size")?.unwrap_or(USUAL_BUCKET);
    let all = elements.saturating_mul(tp).saturating_mul(precision.gradients.bytes());
    Ok(all.min(ONE_BUCKET))
}

/// Gradients that share a collective where nobody says it.
const USUAL_BUCKET: usize = 500_000_000;

/// The same in bytes.
pub(super) fn usual_bucket_bytes(precision: Precision) -> usize {
    USUAL_BUCKET * precision.gradients.bytes()
}

fn precision(words: &Words) -> Result<Precision, ExchangeError> {
    for path in ["bf16.enabled", "fp16.enabled"] {
        if words.is_auto(path) {
            return words.error(
                path,
                "auto",
                "the training script knows it, and not this file: true or false",
            );
        }
    }
    let (bf16, fp16) = (words.flag("bf16.enabled")?, words.flag("fp16.enabled")?);
    words.get("communication_data_type");
    let compute = match (bf16, fp16) {
        (true, true) => return words.error("fp16.enabled", true, "bf16.enabled is true, too"),
        (true, false) => Number::Bf16,
        (false, true) => Number::Fp16,
        (false, false) => Number::Fp32,
    };
    let gradients = match words.text("data_types.grad_accum_dtype")? {
        None => compute,
        Some("fp32") => Number::Fp32,
        Some("bf16") => Number::Bf16,
        Some("fp16") => Number::Fp16,
        Some(other) => {
            return words.error("data_types.grad_accum_dtype", other, "fp32, bf16 or fp16");
        }
    };
    Ok(Precision { compute, gradients, master: compute != Number::Fp32, ..Precision::FP32 })
}

/// By how much the loss is scaled: in fp16 only. 0 is a scale that changes.
fn loss_scale(words: &Words, precision: Precision) -> Result<Option<LossScale>, ExchangeError> {
    if precision.compute != Number::Fp16 {
        return Ok(None);
    }
    let power = words.real("fp16.initial_scale_power")?.unwrap_or(16.0);
    let window = words.size("fp16.loss_scale_window")?.unwrap_or(1_000);
    let changes = LossScale::Dynamic { initial: power.exp2(), growth_interval: window as u64 };
    let constant = words.real("fp16.loss_scale")?.filter(|&scale| scale != 0.0);
    Ok(Some(constant.map_or(changes, |scale| LossScale::Constant { scale })))
}

fn optimizer(words: &Words) -> Result<Optimizer, ExchangeError> {
    let real = |name: &str, usual: f64| {
        Ok::<f64, ExchangeError>(words.real(&format!("optimizer.params.{name}"))?.unwrap_or(usual))
    };
    words.get("optimizer.params.lr");
    let Some(kind) = words.text("optimizer.type")? else { return Ok(Optimizer::default()) };
    let weight_decay = real("weight_decay", 0.0)?;
    let betas = match words.get("optimizer.params.betas") {
        None => [0.9, 0.999],
        Some(value) => {
            let numbers = value.as_array().map(|both| both.iter().map(|it| it.as_f64()).collect());
            match numbers.unwrap_or_else(Vec::new)[..] {
                [Some(first), Some(second)] => [first, second],
                _ => return words.error("optimizer.params.betas", value, "two numbers"),
            }
        }
    };
    let [beta1, beta2] = betas;
    let epsilon = real("eps", 1e-8)?;
    match kind.to_ascii_lowercase().as_str() {
        "adam" | "adamw" => Ok(Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }),
        "lamb" => Ok(Optimizer::Lamb { beta1, beta2, epsilon, weight_decay }),
        "sgd" => {
            let momentum = real("momentum", 0.0)?;
            Ok(Optimizer::Sgd { momentum, weight_decay, reference_batch: None })
        }
        _ => words.error("optimizer.type", kind, "AdamW, Lamb and SGD are known here"),
    }
}
