//! Megatron-LM: a shell script with the arguments of `pretrain_gpt.py`.

use shardloom_plan::{AttentionKind, LossScale, Number, Optimizer, Recompute, ScheduleKind};

use super::{Exported, File, real, single};
use crate::ExchangeError;
use crate::recipe::{Leaving, ONE_BUCKET, RankOrder, Recipe, StagePlace};
use crate::transformer::{Kind, RotaryScaling};

/// An argument and its values.
type Argument = (&'static str, String);

pub(super) fn export(mut leaving: Leaving<'_>) -> Result<Exported, ExchangeError> {
    let mut arguments = model(&leaving)?;
    arguments.extend(parallelism(&mut leaving)?);
    arguments.extend(batch(&leaving));
    arguments.extend(precision(&leaving)?);
    arguments.extend(optimizer(&leaving)?);
    arguments.extend(recomputation_and_attention(&mut leaving)?);
    let text = script(&leaving, &arguments);
    Ok(Exported { files: vec![File { name: "train.sh", text }], unsaid: leaving.unsaid })
}

fn script(leaving: &Leaving<'_>, arguments: &[Argument]) -> String {
    let mut lines = String::new();
    for (name, value) in arguments {
        let value = match value.contains(['|', '*', ' ']) {
            true => format!(" '{value}'"),
            false if value.is_empty() => String::new(),
            false => format!(" {value}"),
        };
        lines += &format!("  {name}{value}\n");
    }
    let machines = leaving.machines;
    // Tensor and context parallelism overlap only if kernels are launched in one queue; sharded parameters
    // are gathered in another.
    let one_queue = leaving.recipe.tp * leaving.recipe.cp > 1 && leaving.recipe.zero < 2;
    let connections = if one_queue { "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" } else { "" };
    format!(
        "#!/usr/bin/env bash\n{comments}#\n\
         # Run it in a checkout of Megatron-LM, on each machine with its NODE_RANK.\n\
         set -euo pipefail\n\
         {connections}\n\
         PLAN=(\n{lines})\n\n\
         # What a plan does not say: data, learning rate, steps.\n\
         RUN=(\n  --mock-data\n  --tokenizer-type NullTokenizer\n  --lr 0.0001\n  --train-iters 100\n  \
         --eval-iters 0\n  --log-interval 1\n)\n\n\
         torchrun --nnodes {nodes} --nproc-per-node {devices} --node-rank \"${{NODE_RANK:-0}}\" \\\n  \
         --master-addr \"${{MASTER_ADDR:-localhost}}\" --master-port \"${{MASTER_PORT:-6000}}\" \\\n  \
         pretrain_gpt.py \"${{PLAN[@]}}\" \"${{RUN[@]}}\" \"$@\"\n",
        comments = leaving.comments(),
        nodes = machines.nodes,
        devices = machines.devices,
    )
}

fn flag(name: &'static str) -> Argument {
    (name, String::new())
}

fn number(name: &'static str, value: usize) -> Argument {
    (name, value.to_string())
}

fn model(leaving: &Leaving<'_>) -> Result<Vec<Argument>, ExchangeError> {
    let model = &leaving.recipe.model;
    let mut arguments = vec![
        number("--num-layers", model.layers),
        number("--hidden-size", model.hidden),
        number("--ffn-hidden-size", model.ffn),
        number("--num-attention-heads", model.heads),
        number("--seq-length", model.seq),
        number("--max-position-embeddings", model.seq),
        // The plan's vocabulary is padded already, and stays so whatever the tokenizer has.
        number("--vocab-size", model.vocab),
        number("--padded-vocab-size", model.vocab),
        ("--norm-epsilon", single(model.norm_epsilon)),
        ("--init-method-std", single(model.init_std)),
    ];
    if !model.tied {
        arguments.push(flag("--untie-embeddings-and-output-weights"));
    }
    match model.kind {
        Kind::Gpt { dropout } => {
            arguments.push(("--position-embedding-type", "learned_absolute".into()));
            arguments.push(("--attention-dropout", single(dropout)));
            arguments.push(("--hidden-dropout", single(dropout)));
        }
        Kind::Llama { theta, .. } | Kind::Experts { theta, .. } => {
            if theta.fract() != 0.0 {
                return leaving.refuse(
                    "model",
                    format!("rope_theta={theta}"),
                    "--rotary-base is whole",
                );
            }
            arguments.extend([
                ("--position-embedding-type", "rope".into()),
                ("--rotary-base", format!("{theta:.0}")),
                ("--normalization", "RMSNorm".into()),
                flag("--disable-bias-linear"),
                ("--attention-dropout", single(0.0)),
                ("--hidden-dropout", single(0.0)),
            ]);
            if matches!(model.kind, Kind::Llama { .. }) {
                arguments.push(flag("--swiglu"));
            }
            if let Kind::Llama { qkv_bias, qk_norm, .. } = model.kind {
                let own = [(qkv_bias, "--add-qkv-bias"), (qk_norm, "--qk-layernorm")];
                arguments.extend(own.into_iter().filter(|it| it.0).map(|it| flag(it.1)));
            }
            if let Kind::Llama { scaling: Some(it), .. } = model.kind {
                let usual =
                    RotaryScaling { factor: it.factor, low: 1.0, high: 4.0, original: 8192 };
                if it != usual {
                    let reason = "Llama 3's scaling is of frequencies between 1 and 4 periods in 8192 \
                                  positions";
                    return leaving.refuse("model", it.to_string(), reason);
                }
                arguments.push(flag("--use-rope-scaling"));
                arguments.push(("--rope-scaling-factor", single(it.factor)));
            }
        }
    }
    if let Kind::Experts { experts, .. } = model.kind {
        arguments.extend([
            number("--num-experts", experts),
            number("--moe-ffn-hidden-size", model.ffn),
            // A row has one expert, times the share of it in the softmax of all; none is left out.
            number("--moe-router-topk", 1),
            flag("--moe-router-pre-softmax"),
            ("--moe-router-load-balancing-type", "none".into()),
            ("--moe-token-dispatcher-type", "alltoall".into()),
            flag("--moe-grouped-gemm"),
        ]);
    }
    if model.kv_heads != model.heads {
        arguments.push(flag("--group-query-attention"));
        arguments.push(number("--num-query-groups", model.kv_heads));
    }
    if model.head_dim * model.heads != model.hidden {
        arguments.push(number("--kv-channels", model.head_dim));
    }
    Ok(arguments)
}

fn parallelism(leaving: &mut Leaving<'_>) -> Result<Vec<Argument>, ExchangeError> {
    let recipe = leaving.recipe.clone();
    let mut arguments = vec![
        number("--tensor-model-parallel-size", recipe.tp),
        number("--pipeline-model-parallel-size", recipe.pp),
        number("--context-parallel-size", recipe.cp),
    ];
    if recipe.ep > 1 {
        arguments.push(number("--expert-model-parallel-size", recipe.ep));
    }
    if recipe.model.experts() > 0 && recipe.zero > 1 {
        let reason = "experts' gradients and parameters are not sharded as others' are (0, 1)";
        return leaving.refuse("sync.zero", recipe.zero, reason);
    }
    if recipe.sequence_parallel {
        arguments.push(flag("--sequence-parallel"));
    }
    if recipe.cp > 1 {
        if !recipe.model.seq.is_multiple_of(2 * recipe.cp) {
            let reason = "a rank has a piece of the sequence from its head and one from its tail, so \
                          twice the width divides the sequence";
            return leaving.refuse("pipeline.stage.mesh.cp", recipe.cp, reason);
        }
        // Keys and values are gathered before attention.
        arguments.push(("--cp-comm-type", "all_gather".into()));
    }
    match recipe.schedule {
        _ if recipe.pp == 1 => leaving.require_accumulation()?,
        ScheduleKind::OneForwardOneBackward => {}
        ScheduleKind::Interleaved if !recipe.microbatches.is_multiple_of(recipe.pp) => {
            let reason = format!(
                "interleaved stages take micro-batches in groups of {}, one for each group of devices",
                recipe.pp
            );
            return leaving.refuse("microbatches", recipe.microbatches, reason);
        }
        ScheduleKind::Interleaved => {}
        other => {
            let reason =
                "pipelines run \"1f1b\" or \"interleaved\"; torchtitan runs any table of actions";
            return leaving.refuse("schedule", other.name(), reason);
        }
    }
    if recipe.stages.len() > 1 {
        arguments.push(("--pipeline-model-parallel-layout", layout(&recipe)));
    }
    if recipe.rank_order == RankOrder::DataSlowest {
        arguments.push(flag("--use-tp-pp-dp-mapping"));
    }
    match recipe.zero {
        0 => {}
        1 => arguments.push(flag("--use-distributed-optimizer")),
        stage => {
            let strategy = if stage == 2 { "optim_grads" } else { "optim_grads_params" };
            arguments.extend([
                flag("--use-megatron-fsdp"),
                flag("--use-distributed-optimizer"),
                ("--data-parallel-sharding-strategy", strategy.into()),
                ("--ckpt-format", "fsdp_dtensor".into()),
                flag("--no-gradient-accumulation-fusion"),
            ]);
        }
    }
    if recipe.groups > 1 {
        arguments.push(number("--num-distributed-optimizer-instances", recipe.groups));
    }
    if recipe.dp * recipe.cp > 1 && recipe.bucket_bytes < ONE_BUCKET {
        arguments.push(flag("--overlap-grad-reduce"));
        match recipe.zero {
            0 | 1 => arguments.push(number("--ddp-bucket-size", recipe.bucket_elements())),
            _ => {
                let (key, value) = ("sync.bucket_bytes", recipe.bucket_bytes);
                leaving.leave_out(key, value, "sharded gradients are reduced layer by layer");
            }
        }
    }
    Ok(arguments)
}

/// The layout string: stages in pipeline order, apart by `|`; `E` is the embedding, `t` a layer, `L` the head
/// with the loss.
pub(super) fn layout(recipe: &Recipe) -> String {
    let stage = |stage: &StagePlace| {
        let layers = match recipe.layers(stage).len() {
            0 => String::new(),
            1 => "t".into(),
            count => format!("t*{count}"),
        };
        let embedding = if recipe.embeds(stage) { "E" } else { "" };
        let loss = if recipe.has_loss(stage) { "L" } else { "" };
        format!("{embedding}{layers}{loss}")
    };
    recipe.stages.iter().map(stage).collect::<Vec<_>>().join("|")
}

fn batch(leaving: &Leaving<'_>) -> Vec<Argument> {
    vec![
        number("--micro-batch-size", leaving.recipe.microbatch()),
        number("--global-batch-size", leaving.recipe.global_batch),
    ]
}

fn precision(leaving: &Leaving<'_>) -> Result<Vec<Argument>, ExchangeError> {
    let precision = leaving.recipe.precision;
    let mut arguments = match precision.compute {
        Number::Fp32 => vec![],
        Number::Bf16 => vec![flag("--bf16")],
        Number::Fp16 => vec![flag("--fp16")],
    };
    let narrow = precision.compute != Number::Fp32;
    if narrow != precision.master {
        let reason = "the optimizer has an fp32 copy of 16-bit weights, and none of fp32 ones";
        return leaving.refuse("precision.master", precision.master, reason);
    }
    match precision.gradients {
        Number::Fp32 if narrow => arguments.push(flag("--accumulate-allreduce-grads-in-fp32")),
        Number::Fp32 => {}
        Number::Bf16 if precision.compute == Number::Bf16 => {
            arguments.push(flag("--grad-reduce-in-bf16"));
        }
        Number::Fp16 if precision.compute == Number::Fp16 => {}
        other => {
            let reason = "gradients are in fp32 or as the weights in use are";
            return leaving.refuse("precision.gradients", other.name(), reason);
        }
    }
    if precision.fp8_products {
        // Scales are those of the tensor that is cast; the head stays in the other format.
        arguments.push(("--fp8-format", "hybrid".into()));
        arguments.push(("--fp8-recipe", "tensorwise".into()));
    }
    match leaving.recipe.loss_scale {
        None => {}
        Some(LossScale::Constant { scale }) => arguments.push(("--loss-scale", real(scale))),
        Some(LossScale::Dynamic { initial, growth_interval }) => arguments.extend([
            ("--initial-loss-scale", real(initial)),
            ("--loss-scale-window", growth_interval.to_string()),
            // Each overflow halves it.
            number("--hysteresis", 1),
        ]),
    }
    Ok(arguments)
}

fn optimizer(leaving: &Leaving<'_>) -> Result<Vec<Argument>, ExchangeError> {
    let clip = leaving.recipe.clip_norm.unwrap_or(0.0);
    let mut arguments = vec![("--clip-grad", real(clip))];
    match leaving.recipe.optimizer {
        Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } => arguments.extend([
            ("--optimizer", "adam".into()),
            ("--adam-beta1", real(beta1)),
            ("--adam-beta2", real(beta2)),
            ("--adam-eps", real(epsilon)),
            ("--weight-decay", real(weight_decay)),
        ]),
        Optimizer::Sgd { momentum, weight_decay, reference_batch: None } => arguments.extend([
            ("--optimizer", "sgd".into()),
            ("--sgd-momentum", real(momentum)),
            ("--weight-decay", real(weight_decay)),
        ]),
        other => {
            let reason =
                "of this program's optimizers there are adamw, and sgd without a reference batch";
            return leaving.refuse("optimizer.kind", other.name(), reason);
        }
    }
    Ok(arguments)
}

fn recomputation_and_attention(leaving: &mut Leaving<'_>) -> Result<Vec<Argument>, ExchangeError> {
    let full = |layers: usize| {
        vec![
            ("--recompute-granularity", "full".into()),
            ("--recompute-method", "uniform".into()),
            number("--recompute-num-layers", layers),
        ]
    };
    let backend = match leaving.recipe.attention {
        AttentionKind::Fused => "fused",
        AttentionKind::Unfused => "unfused",
    };
    let mut arguments = vec![("--attention-backend", backend.into())];
    arguments.extend(match leaving.recipe.recompute {
        Recompute::None => vec![],
        Recompute::Selective => vec![("--recompute-granularity", "selective".into())],
        Recompute::Full => {
            let reason = "whole layers are computed twice, also what no gradient needs (\"block\")";
            leaving.leave_out("recompute", "full", reason);
            full(1)
        }
        Recompute::Block => full(1),
        Recompute::Stage => {
            let recipe = &leaving.recipe;
            let layers: Vec<usize> =
                recipe.stages.iter().map(|stage| recipe.layers(stage).len()).collect();
            if layers[0] == 0 || layers.iter().any(|&each| each != layers[0]) {
                let reason =
                    "layers are computed twice in runs of one length, so all stages have as many";
                return leaving.refuse("recompute", "stage", reason);
            }
            full(layers[0])
        }
    });
    Ok(arguments)
}
