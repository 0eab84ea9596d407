//! Accelerate: the YAML file of `accelerate launch`.

use shardloom_plan::{LossScale, Number, Precision, Recompute, Sync};

use super::deepspeed;
use super::words::Words;
use super::{ATTENTION_NOTE, Given, Imported, replicas, unread_note};
use crate::recipe::model_of;
use crate::{ExchangeError, Recipe};

pub(super) fn import(words: &Words, given: &Given<'_>) -> Result<Imported, ExchangeError> {
    let way = words.text("distributed_type")?.unwrap_or("NO").to_ascii_uppercase();
    if let Some(processes) = words.size("num_processes")?
        && processes != given.devices
    {
        let rule = format!("--cluster {} has {} devices", given.cluster, given.devices);
        return words.error("num_processes", processes, rule);
    }
    let machines = words.size("num_machines")?;
    let sharding = match way.as_str() {
        "NO" | "MULTI_GPU" | "MULTI_CPU" => Sharding::default(),
        "FSDP" => sharding_of_fsdp(words)?,
        "DEEPSPEED" => sharding_of_deepspeed(words)?,
        other => {
            let rule = "NO, MULTI_GPU, FSDP and DEEPSPEED are known here; of MEGATRON_LM import the \
                        arguments of the training script";
            return words.error("distributed_type", other, rule);
        }
    };
    let Sharding { zero, hybrid, tp, cp, recompute, microbatches } = sharding;
    // What it leaves to the training script is missed where it says how that is run.
    let place = words.at("distributed_type");
    let (spec, model) = model_of(given.model, None, &place)?;
    let dp = replicas(&place, "tensor x context parallel size", tp.saturating_mul(cp), given)?;
    let replicated = words.size("parallelism_config.parallelism_config_dp_replicate_size")?;
    let sharded = words.size("parallelism_config.parallelism_config_dp_shard_size")?;
    let (zero, groups) = match (replicated.unwrap_or(1), sharded) {
        (1, None) if hybrid => match machines {
            // Within a machine.
            Some(machines) if dp.is_multiple_of(machines) => (zero, machines),
            machines => {
                let value = machines.map_or_else(|| "nothing".into(), |it| it.to_string());
                let rule = format!(
                    "parameters are sharded within a machine: how many have the {dp} replicas"
                );
                return words.error("num_machines", value, rule);
            }
        },
        (1, None) => (zero, 1),
        (1, Some(width)) if width == dp => (zero, 1),
        (width, None | Some(1)) if width == dp => (0, 1),
        (groups, Some(width)) if groups.checked_mul(width) == Some(dp) => (zero, groups),
        (replicated, sharded) => {
            let rule = format!("the product is the {dp} replicas");
            let value = format!("{replicated} x {}", sharded.unwrap_or(1));
            return words.error("parallelism_config", value, rule);
        }
    };
    let Some(global_batch) = given.global_batch else {
        let message =
            "the global batch is the training script's; say it with --global-batch".into();
        return Err(ExchangeError::Text { place, message });
    };
    let by_deepspeed = way == "DEEPSPEED";
    let mut precision = match words.text("mixed_precision")?.unwrap_or("no") {
        "no" => Precision::FP32,
        "bf16" => Precision::MIXED,
        "fp16" => Precision::usual(Number::Fp16),
        "fp8" => eight_bits(words)?,
        other => {
            return words.error("mixed_precision", other, "no, bf16, fp16 and fp8 are known here");
        }
    };
    if by_deepspeed {
        // Its engine's usual: gradients in the format of the weights in use.
        precision.gradients = precision.compute;
    }
    let recipe = Recipe {
        dp,
        groups,
        cp,
        tp,
        global_batch,
        microbatches: given.microbatches.or(microbatches).unwrap_or(1),
        recompute,
        zero,
        clip_norm: match by_deepspeed {
            true => words.real("deepspeed_config.gradient_clipping")?.filter(|&norm| norm > 0.0),
            false => None,
        },
        bucket_bytes: match by_deepspeed {
            true => deepspeed::usual_bucket_bytes(precision),
            false => Sync::default().bucket_bytes,
        },
        precision,
        loss_scale: (precision.compute == Number::Fp16).then(LossScale::dynamic),
        ..Recipe::in_one_stage(model)
    };
    let mut notes = vec![match recipe.clip_norm {
        None => {
            "optimizer and clipping are the training script's: AdamW and no clipping are assumed"
                .to_owned()
        }
        Some(_) => "the optimizer is the training script's: AdamW is assumed".to_owned(),
    }];
    if given.microbatches.or(microbatches).is_none() {
        notes.push(
            "how many micro-batches a step has is the training script's: one is assumed (--microbatches)"
                .into(),
        );
    }
    notes.push(ATTENTION_NOTE.into());
    if by_deepspeed {
        notes.push(
            "buckets and the format of gradients are DeepSpeed's usual ones, which the training script may say otherwise"
                .into(),
        );
    }
    if way == "FSDP" && precision.compute != Number::Fp32 {
        notes.push(
            "FSDP reduces gradients in the format of the weights in use, unless the script says otherwise: \
             fp32 is assumed"
                .into(),
        );
    }
    if precision.fp8_products {
        notes.push(
            "the first product is in bf16 there as well as the last, in a plan only the last"
                .into(),
        );
    }
    notes.extend(unread_note(&words.unread()?));
    recipe.plan(spec, given.cluster, given.devices, &place, notes)
}

/// bf16 with products in 8 bits, by torchao.
fn eight_bits(words: &Words) -> Result<Precision, ExchangeError> {
    let at = |name: &str| match words.get(&format!("fp8_config.fp8_{name}")) {
        Some(_) => format!("fp8_config.fp8_{name}"),
        None => format!("fp8_config.{name}"),
    };
    let backend = at("backend");
    if words.get(&backend).is_some() {
        let others = "torchao's are known here (AO), which leave the head alone";
        words.only(&backend, &["AO", "ao"], others)?;
    }
    let gathered = at("enable_fsdp_float8_all_gather");
    if words.get(&gathered).is_none() || words.flag(&gathered)? {
        let rule = "plans gather weights in the format of computation: false";
        return words.error(&gathered, true, rule);
    }
    words.get(&at("pad_inner_dim"));
    Ok(Precision { fp8_products: true, ..Precision::MIXED })
}

/// What is split and sharded, and how.
struct Sharding {
    zero: u8,
    /// Whether that is within each machine.
    hybrid: bool,
    tp: usize,
    cp: usize,
    recompute: Recompute,
    microbatches: Option<usize>,
}

impl Default for Sharding {
    fn default() -> Sharding {
        Sharding {
            zero: 0,
            hybrid: false,
            tp: 1,
            cp: 1,
            recompute: Recompute::None,
            microbatches: None,
        }
    }
}

fn sharding_of_fsdp(words: &Words) -> Result<Sharding, ExchangeError> {
    let at = |name: &str| format!("fsdp_config.fsdp_{name}");
    if words.flag(&at("offload_params"))? {
        return words.error(&at("offload_params"), true, "plans keep parameters on devices");
    }
    let (zero, hybrid) = match stage_of(words, &at("sharding_strategy"))? {
        Some(stage) => stage,
        None => stage_of(words, &at("reshard_after_forward"))?.unwrap_or((3, false)),
    };
    let recompute = match words.flag(&at("activation_checkpointing"))? {
        true => Recompute::Block,
        false => Recompute::None,
    };
    let width = |name: &str| {
        let path = format!("parallelism_config.parallelism_config_{name}_size");
        Ok::<usize, ExchangeError>(words.size(&path)?.unwrap_or(1))
    };
    let ulysses = "plans do not split attention by heads (Ulysses)";
    words.only("parallelism_config.parallelism_config_sp_size", &["1"], ulysses)?;
    let strategy = "parallelism_config.parallelism_config_cp_comm_strategy";
    if width("cp")? > 1 {
        words.only(strategy, &["allgather"], "plans gather keys and values before attention")?;
    }
    let (tp, cp) = (width("tp")?, width("cp")?);
    Ok(Sharding { zero, hybrid, tp, cp, recompute, microbatches: None })
}

/// The ZeRO stage that a strategy is, by FSDP 1's name or number, or by whether parameters are freed after the
/// forward pass, as FSDP 2 has it; and whether it is within a machine.
fn stage_of(words: &Words, path: &str) -> Result<Option<(u8, bool)>, ExchangeError> {
    let Some(value) = words.get(path) else { return Ok(None) };
    let name = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match name.to_ascii_uppercase().as_str() {
        "FULL_SHARD" | "1" | "TRUE" => Ok(Some((3, false))),
        "SHARD_GRAD_OP" | "2" | "FALSE" => Ok(Some((2, false))),
        "NO_SHARD" | "3" => Ok(Some((0, false))),
        "HYBRID_SHARD" | "4" => Ok(Some((3, true))),
        "HYBRID_SHARD_ZERO2" | "5" => Ok(Some((2, true))),
        _ => {
            let rule = "there are FULL_SHARD (true), SHARD_GRAD_OP (false), NO_SHARD, HYBRID_SHARD and \
                        HYBRID_SHARD_ZERO2";
            words.error(path, name, rule)
        }
    }
}

fn sharding_of_deepspeed(words: &Words) -> Result<Sharding, ExchangeError> {
    if let Some(file) = words.text("deepspeed_config.deepspeed_config_file")? {
        let rule = "import that file: it says what Accelerate's does not";
        return words.error("deepspeed_config.deepspeed_config_file", file, rule);
    }
    for name in ["offload_optimizer_device", "offload_param_device"] {
        let path = format!("deepspeed_config.{name}");
        words.only(&path, &["none"], "plans keep weights and optimizer states on devices")?;
    }
    let zero = match words.real("deepspeed_config.zero_stage")?.unwrap_or(2.0) {
        0.0 => 0,
        1.0 => 1,
        2.0 => 2,
        3.0 => 3,
        other => return words.error("deepspeed_config.zero_stage", other, "a stage is 0 to 3"),
    };
    let microbatches = words.size("deepspeed_config.gradient_accumulation_steps")?;
    Ok(Sharding { zero, microbatches, ..Sharding::default() })
}
