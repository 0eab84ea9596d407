//! Accelerate: the YAML file of `accelerate launch`.

use shardloom_plan::{LossScale, Number, Recompute};

use super::{Exported, File};
use crate::ExchangeError;
use crate::recipe::{Leaving, SCORES};

pub(super) fn export(mut leaving: Leaving<'_>) -> Result<Exported, ExchangeError> {
    leaving.require_no_pipeline("there are no stages; Megatron-LM and torchtitan take them")?;
    leaving.require_accumulation()?;
    leaving.require_no_ep("experts are on all ranks; Megatron-LM and DeepSpeed deal them")?;
    if leaving.recipe.sequence_parallel {
        let reason = "tensor parallelism leaves norms and residuals whole: leave out \"seq:tp\"";
        return leaving.refuse("layout", "\"seq:tp\"", reason);
    }
    let precision = precision(&mut leaving)?;
    let eight_bits = match leaving.recipe.precision.fp8_products {
        true => {
            "fp8_config:\n  fp8_backend: AO\n  fp8_enable_fsdp_float8_all_gather: false\n  \
             fp8_pad_inner_dim: true\n"
        }
        false => "",
    };
    let way = replicas(&mut leaving)?;
    left_to_the_script(&mut leaving);
    let machines = leaving.machines;
    if machines.nodes > 1 {
        let reason = "give each machine its --machine_rank, and all --main_process_ip and --main_process_port of \
                      machine 0, at `accelerate launch`";
        leaving.leave_out("cluster", format!("{} nodes", machines.nodes), reason);
    }
    let text = format!(
        "{comments}\
         compute_environment: LOCAL_MACHINE\ndebug: false\n{way}{eight_bits}\
         downcast_bf16: 'no'\nenable_cpu_affinity: false\nmachine_rank: 0\nmain_training_function: main\n\
         mixed_precision: '{precision}'\nnum_machines: {nodes}\nnum_processes: {processes}\n\
         rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\n\
         tpu_use_sudo: false\nuse_cpu: false\n",
        comments = leaving.comments(),
        nodes = machines.nodes,
        processes = machines.nodes * machines.devices,
    );
    Ok(Exported { files: vec![File { name: "accelerate.yaml", text }], unsaid: leaving.unsaid })
}

fn precision(leaving: &mut Leaving<'_>) -> Result<&'static str, ExchangeError> {
    let precision = leaving.recipe.precision;
    if (precision.compute != Number::Fp32) != precision.master {
        let reason = "the script's weights are in fp32, and 16-bit ones in use are made of them";
        return leaving.refuse("precision.master", precision.master, reason);
    }
    if precision.gradients != Number::Fp32 {
        let reason = "gradients are accumulated in fp32";
        return leaving.refuse("precision.gradients", precision.gradients.name(), reason);
    }
    if precision.fp8_products {
        if precision.compute != Number::Bf16 {
            let reason = "products in 8 bits go with bf16";
            return leaving.refuse("precision.compute", precision.compute.name(), reason);
        }
        let reason = "the first product is in bf16 there as well as the last, unless the training script passes \
                      an AORecipeKwargs with a module_filter_func";
        leaving.leave_out("precision.fp8_products", "the first", reason);
        return Ok("fp8");
    }
    Ok(match precision.compute {
        Number::Fp32 => "no",
        Number::Bf16 => "bf16",
        Number::Fp16 => "fp16",
    })
}

/// How replicas stay equal, and widths.
fn replicas(leaving: &mut Leaving<'_>) -> Result<String, ExchangeError> {
    let recipe = &leaving.recipe;
    let recomputes = matches!(recipe.recompute, Recompute::Full | Recompute::Block);
    if recipe.recompute == Recompute::Stage {
        let reason = "what is computed twice is computed twice layer by layer: \"block\"";
        return leaving.refuse("recompute", "stage", reason);
    }
    let reshard = match recipe.zero {
        0 if recipe.tp * recipe.cp == 1 => {
            let way = if recipe.devices() > 1 { "MULTI_GPU" } else { "'NO'" };
            if recomputes {
                let (key, value) = ("recompute", recipe.recompute.name());
                let reason = "switch checkpointing of layers on in the training script";
                leaving.leave_out(key, value, reason);
            }
            return Ok(format!("distributed_type: {way}\n"));
        }
        2 => false,
        3 => true,
        stage => {
            let reason = "parameters are replicated (0), or sharded by FSDP and kept between forward and \
                          backward pass (2) or not (3); beside tensor or context parallelism they are \
                          sharded. DeepSpeed has stage 1";
            return leaving.refuse("sync.zero", stage, reason);
        }
    };
    if recipe.groups > 1 && recipe.sharers() == 1 {
        let reason = "two replicas or more share (dp_shard_size)";
        return leaving.refuse("sync.shard_over", "[cp]", reason);
    }
    let mut text = format!(
        "distributed_type: FSDP\n\
         fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: {reshard}\n  \
         fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_activation_checkpointing: {recomputes}\n  \
         fsdp_cpu_ram_efficient_loading: true\n  fsdp_offload_params: false\n  \
         fsdp_state_dict_type: SHARDED_STATE_DICT\n"
    );
    let with_context = match recipe.cp {
        1 => "",
        _ => "  parallelism_config_cp_comm_strategy: allgather\n",
    };
    text += &format!(
        "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n  \
         parallelism_config_dp_shard_size: {}\n  parallelism_config_tp_size: {}\n  \
         parallelism_config_cp_size: {}\n{with_context}",
        recipe.groups,
        recipe.sharers(),
        recipe.tp,
        recipe.cp
    );
    let (recompute, compute) = (recipe.recompute, recipe.precision.compute);
    if compute != Number::Fp32 {
        let reason = "FSDP reduces gradients in the format of the weights in use, unless the training script \
                      gives it a mixed_precision_policy with reduce_dtype=torch.float32";
        leaving.leave_out("precision.gradients", "fp32", reason);
    }
    if recompute == Recompute::Full {
        let reason = "whole layers are computed twice, also what no gradient needs (\"block\")";
        leaving.leave_out("recompute", "full", reason);
    }
    Ok(text)
}

/// What the training script says, and not Accelerate's configuration.
fn left_to_the_script(leaving: &mut Leaving<'_>) {
    let recipe = leaving.recipe.clone();
    let batch = format!(
        "give the training script {} a device and a micro-batch and \
         Accelerator(gradient_accumulation_steps={})",
        recipe.microbatch(),
        recipe.microbatches
    );
    leaving.leave_out("global_batch", recipe.global_batch, batch);
    let clip = recipe.clip_norm.map_or_else(|| "none".into(), |norm| norm.to_string());
    leaving.leave_out("clip_norm", clip, "the training script calls clip_grad_norm_");
    leaving.leave_out("optimizer", recipe.optimizer.name(), "the training script makes it");
    if let Some(scale) = recipe.loss_scale.filter(|&scale| scale != LossScale::dynamic()) {
        let reason = "PyTorch's usual one, unless the training script passes a GradScalerKwargs";
        leaving.leave_out("loss_scale", scale.initial(), reason);
    }
    if recipe.dp * recipe.cp > 1 {
        let reason =
            "the training script says how large buckets are (DDP), or they are layers (FSDP)";
        leaving.leave_out("sync.bucket_bytes", recipe.bucket_bytes, reason);
    }
    let layers = format!("{} layers", recipe.model.layers);
    let is_selective = recipe.recompute == Recompute::Selective;
    leaving.leave_out_attention();
    if is_selective {
        leaving.leave_out("recompute", "selective", SCORES);
    }
    leaving.leave_out("model", layers, "the training script builds it");
}
