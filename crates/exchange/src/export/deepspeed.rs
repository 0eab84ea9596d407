//! DeepSpeed: its JSON file.

use serde_json::{Map, Value, json};
use shardloom_plan::{LossScale, Number, Optimizer, Recompute};

use super::{Exported, File};
use crate::ExchangeError;
use crate::recipe::{Leaving, Recipe, SCORES};

pub(super) fn export(mut leaving: Leaving<'_>) -> Result<Exported, ExchangeError> {
    leaving.require_no_pipeline(
        "stages are built in the training script (PipelineModule), not configured; Megatron-LM and \
         torchtitan take them",
    )?;
    leaving.require_accumulation()?;
    if leaving.recipe.cp > 1 {
        let reason =
            "sequences are split for other operators than attention, which splits heads (Ulysses)";
        return leaving.refuse("pipeline.stage.mesh.cp", leaving.recipe.cp, reason);
    }
    if leaving.recipe.sequence_parallel {
        let reason = "tensor parallelism leaves norms and residuals whole: leave out \"seq:tp\"";
        return leaving.refuse("layout", "\"seq:tp\"", reason);
    }
    if leaving.recipe.tp > 1 && leaving.recipe.zero == 3 {
        let reason = "automatic tensor parallelism goes with ZeRO stages 0 to 2";
        return leaving.refuse("sync.zero", 3, reason);
    }
    leaving.require_one_group(
        "ZeRO shards over all replicas, since MiCS was removed; Megatron-LM, torchtitan and Accelerate shard over some",
    )?;
    leaving.require_no_fp8(
        "products are in 16 or 32 bits; Megatron-LM and torchtitan have some in 8 bits",
    )?;
    let mut settings = Map::new();
    batch(&leaving, &mut settings);
    zero(&leaving, &mut settings);
    precision(&mut leaving, &mut settings)?;
    optimizer(&mut leaving, &mut settings)?;
    recompute(&mut leaving);
    leaving.leave_out(
        "model",
        format!("{} layers", leaving.recipe.model.layers),
        "the training script builds it",
    );
    settings.insert("_comment".into(), json!(leaving.heading()));
    let mut text = serde_json::to_string_pretty(&Value::Object(settings))
        .expect("a map of strings and numbers is JSON");
    text.push('\n');
    Ok(Exported { files: vec![File { name: "deepspeed.json", text }], unsaid: leaving.unsaid })
}

fn batch(leaving: &Leaving<'_>, settings: &mut Map<String, Value>) {
    let recipe = &leaving.recipe;
    let numbers = [
        ("train_batch_size", recipe.global_batch),
        ("train_micro_batch_size_per_gpu", recipe.microbatch()),
        ("gradient_accumulation_steps", recipe.microbatches),
    ];
    settings.extend(numbers.map(|(key, value)| (key.into(), json!(value))));
    // 0 is no clipping.
    settings.insert("gradient_clipping".into(), json!(recipe.clip_norm.unwrap_or(0.0)));
    if recipe.ep > 1 {
        // AutoEP replaces the experts of the training script's model.
        let dealt = json!({ "enabled": true, "autoep_size": recipe.ep });
        settings.insert("expert_parallel".into(), dealt);
    }
    if recipe.tp > 1 {
        settings.insert("tensor_parallel".into(), json!({ "autotp_size": recipe.tp }));
    }
}

fn zero(leaving: &Leaving<'_>, settings: &mut Map<String, Value>) {
    let recipe = &leaving.recipe;
    let Recipe { zero: stage, precision, .. } = *recipe;
    // With one replica nothing is sharded by stage 1, which accumulates in another format than that of the weights.
    let stage = if precision.gradients == precision.compute { stage } else { stage.max(1) };
    let mut zero = json!({
        "stage": stage,
        "overlap_comm": true,
        "contiguous_gradients": true,
        // In elements.
        "reduce_bucket_size": recipe.bucket_elements(),
    });
    if recipe.zero == 3 {
        // Small parameters are sharded as well.
        zero["stage3_param_persistence_threshold"] = json!(0);
    }
    if let Some(sharers) = recipe.second_copy {
        zero["zero_hpz_partition_size"] = json!(sharers);
    }
    settings.insert("zero_optimization".into(), zero);
}

fn precision(
    leaving: &mut Leaving<'_>,
    settings: &mut Map<String, Value>,
) -> Result<(), ExchangeError> {
    let precision = leaving.recipe.precision;
    let narrow = precision.compute != Number::Fp32;
    if narrow != precision.master {
        let reason = "the optimizer has an fp32 copy of 16-bit weights, and none of fp32 ones";
        return leaving.refuse("precision.master", precision.master, reason);
    }
    if leaving.recipe.zero == 0 && leaving.recipe.dp > 1 && precision.gradients != precision.compute
    {
        let reason = "without ZeRO gradients are accumulated in the format of the weights in use; ZeRO \
                      stage 1 accumulates them in fp32";
        return leaving.refuse("precision.gradients", name(precision.gradients), reason);
    }
    match precision.compute {
        Number::Fp32 => {}
        Number::Bf16 => {
            settings.insert("bf16".into(), json!({ "enabled": true }));
        }
        Number::Fp16 => {
            settings.insert("fp16".into(), fp16(leaving)?);
        }
    }
    let accumulated = name(precision.gradients);
    settings.insert("data_types".into(), json!({ "grad_accum_dtype": accumulated }));
    settings.insert("communication_data_type".into(), json!(accumulated));
    Ok(())
}

/// fp16 with its scale of the loss, of which 0 is one that changes.
fn fp16(leaving: &Leaving<'_>) -> Result<Value, ExchangeError> {
    Ok(match leaving.recipe.loss_scale {
        None => json!({ "enabled": true }),
        Some(LossScale::Constant { scale }) => json!({ "enabled": true, "loss_scale": scale }),
        Some(LossScale::Dynamic { initial, growth_interval }) => {
            let power = initial.log2().round();
            if power.exp2() != initial {
                let reason = "a scale begins as a power of two";
                return leaving.refuse("loss_scale.initial", initial, reason);
            }
            json!({
                "enabled": true,
                "loss_scale": 0,
                "initial_scale_power": power as u64,
                "loss_scale_window": growth_interval,
                "hysteresis": 1,
                "min_loss_scale": 1,
            })
        }
    })
}

/// A format as DeepSpeed writes it.
fn name(number: Number) -> &'static str {
    match number {
        Number::Fp32 => "fp32",
        Number::Bf16 => "bf16",
        Number::Fp16 => "fp16",
    }
}

fn optimizer(
    leaving: &mut Leaving<'_>,
    settings: &mut Map<String, Value>,
) -> Result<(), ExchangeError> {
    // The learning rate is not the plan's.
    let lr = 1e-4;
    let optimizer = match leaving.recipe.optimizer {
        Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } => json!({
            "type": "AdamW",
            "params": { "lr": lr, "betas": [beta1, beta2], "eps": epsilon, "weight_decay": weight_decay },
        }),
        Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } => json!({
            "type": "Lamb",
            "params": { "lr": lr, "betas": [beta1, beta2], "eps": epsilon, "weight_decay": weight_decay },
        }),
        Optimizer::Sgd { momentum, weight_decay, reference_batch: None } => json!({
            "type": "SGD",
            "params": { "lr": lr, "momentum": momentum, "weight_decay": weight_decay },
        }),
        other => {
            let reason = "of this program's optimizers there are adamw, lamb, and sgd without a reference \
                          batch";
            return leaving.refuse("optimizer.kind", other.name(), reason);
        }
    };
    let decay = optimizer["params"]["weight_decay"].as_f64().unwrap_or(0.0);
    if decay != 0.0 {
        let reason = "there it is of all parameters that the training script passes to deepspeed.initialize, and in a plan \
                      not of biases and of gains of norms: pass these as a group whose weight_decay is 0";
        leaving.leave_out("optimizer.weight_decay", decay, reason);
    }
    settings.insert("optimizer".into(), optimizer);
    Ok(())
}

fn recompute(leaving: &mut Leaving<'_>) {
    leaving.leave_out_attention();
    let name = leaving.recipe.recompute.name();
    let reason = match leaving.recipe.recompute {
        Recompute::None => return,
        Recompute::Selective => SCORES,
        Recompute::Full | Recompute::Block | Recompute::Stage => {
            "switch checkpointing of layers on in the training script \
             (model.gradient_checkpointing_enable() of a Hugging Face model)"
        }
    };
    leaving.leave_out("recompute", name, reason);
}
