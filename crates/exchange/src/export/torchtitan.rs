//! torchtitan: a Python function that returns its configuration, a table of actions, and a script to run it.
//!
//! torchtitan's configurations are Python since 0.3; its options on the command line are to disappear. The
//! table of actions is also what `torch.distributed.pipelining` reads by itself.

use shardloom_plan::{Number, Optimizer, Recompute, ScheduleKind};
use shardloom_schedule::{Schedule, StageMap};

use super::{Exported, File, real, single};
use crate::recipe::{Leaving, RankOrder, Recipe, StagePlace};
use crate::transformer::Kind;
use crate::{ExchangeError, actions};

pub(super) fn export(mut leaving: Leaving<'_>) -> Result<Exported, ExchangeError> {
    let model = model(&leaving)?;
    let optimizer = optimizer(&leaving)?;
    let training = training(&leaving)?;
    let recompute = recompute(&mut leaving)?;
    let (parallelism, table) = parallelism(&mut leaving)?;
    let (key, value) = ("model", format!("init_std={}", leaving.recipe.model.init_std));
    leaving.leave_out(key, value, "weights begin as torchtitan's do");
    let module = format!(
        "{comments}\
         from pathlib import Path\n\n\
         import torchtitan.models.llama3 as llama3\n\
         from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss\n\
         from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer\n\
         from torchtitan.components.optimizer import ParamGroupConfig\n{quantization}\
         from torchtitan.config import ParallelismConfig, TrainingConfig\n\
         from torchtitan.distributed.activation_checkpoint import FullAC\n\
         from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader\n\
         from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm\n\
         from torchtitan.models.common.config_utils import decoder_vocab_size\n\
         from torchtitan.protocols.model_spec import ModelSpec\n\
         from torchtitan.trainer import Trainer\n\n\n\
         {model}\n\n\
         def plan() -> Trainer.Config:\n    \
         spec = model()\n    \
         return Trainer.Config(\n        \
         model_spec=spec,\n        \
         loss=ChunkedLossWrapper.Config(\n            \
         loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))\n        \
         ),\n\
         {training}{parallelism}\
         \x20       activation_checkpoint={recompute},\n\
         {optimizer}        \
         # What a plan does not say.\n        \
         lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),\n        \
         dataloader=HuggingFaceTextDataLoader.Config(dataset=\"c4_test\"),\n        \
         hf_assets_path=\"./tests/assets/tokenizer\",\n    \
         )\n",
        comments = leaving.comments(),
        quantization = match leaving.recipe.precision.fp8_products {
            true => "from torchtitan.components.quantization import Float8LinearConverter\n",
            false => "",
        },
    );
    let mut files = vec![
        File { name: "train.sh", text: script(&leaving) },
        File { name: "shardloom_plan.py", text: module },
    ];
    files.extend(table.map(|text| File { name: "schedule.csv", text }));
    Ok(Exported { files, unsaid: leaving.unsaid })
}

fn script(leaving: &Leaving<'_>) -> String {
    let machines = leaving.machines;
    format!(
        "#!/usr/bin/env bash\n# For {version}; written by shardloom export.\n\
         # Run it on each machine; what it trains is in shardloom_plan.py beside it.\n\
         set -euo pipefail\n\
         export PYTHONPATH=\"$(cd \"$(dirname \"$0\")\" && pwd)${{PYTHONPATH:+:$PYTHONPATH}}\"\n\n\
         torchrun --nnodes {nodes} --nproc-per-node {devices} --rdzv-backend c10d \\\n  \
         --rdzv-endpoint \"${{MASTER_ADDR:-localhost}}:${{MASTER_PORT:-29500}}\" \\\n  \
         -m torchtitan.train --module shardloom_plan --config plan \"$@\"\n",
        version = leaving.project.version(),
        nodes = machines.nodes,
        devices = machines.devices,
    )
}

fn model(leaving: &Leaving<'_>) -> Result<String, ExchangeError> {
    let model = &leaving.recipe.model;
    let Kind::Llama { theta, scaling, .. } = model.kind else {
        let name = if model.experts() > 0 { "with experts" } else { "gpt" };
        return leaving.refuse("model", name, "of this program's models there is Llama");
    };
    if model.head_dim * model.heads != model.hidden {
        let reason = "a Llama's heads have the width / heads there";
        return leaving.refuse("model", format!("head_dim={}", model.head_dim), reason);
    }
    let rotary = match scaling {
        None => String::new(),
        Some(it) => format!(
            "                scaling=\"llama\",\n                scaling_factor={},\n                \
             low_freq_factor={},\n                high_freq_factor={},\n                \
             original_max_position_embeddings={},\n",
            single(it.factor),
            single(it.low),
            single(it.high),
            it.original
        ),
    };
    let convert = match leaving.recipe.precision.fp8_products {
        true => {
            "    # The head stays in the other format.\n    \
             config = Float8LinearConverter.Config(filter_fqns=[\"lm_head\"]).build().convert(config)\n"
        }
        false => "",
    };
    let (tying, embedding) = match model.tied {
        true => ("        enable_weight_tying=True,\n", "llama3._EMBEDDING_SKIP_INIT"),
        false => ("", "llama3._EMBEDDING_INIT"),
    };
    Ok(format!(
        "def model() -> ModelSpec:\n    \
         dim, vocabulary, epsilon = {hidden}, {vocab}, {epsilon}\n    \
         config = llama3.Llama3Model.Config(\n        \
         dim=dim,\n        \
         vocab_size=vocabulary,\n{tying}        \
         tok_embeddings=Embedding.Config(\n            \
         num_embeddings=vocabulary, embedding_dim=dim, param_init={embedding}\n        ),\n        \
         norm=RMSNorm.Config(\n            \
         normalized_shape=dim, eps=epsilon, param_init=llama3._NORM_INIT\n        ),\n        \
         lm_head=Linear.Config(\n            \
         in_features=dim,\n            \
         out_features=vocabulary,\n            \
         param_init=llama3._output_linear_init(dim),\n        ),\n        \
         layers=llama3._build_llama3_layers(\n            \
         n_layers={layers},\n            \
         dim=dim,\n            \
         n_heads={heads},\n            \
         n_kv_heads={kv_heads},\n            \
         hidden_dim={ffn},\n            \
         rope=ComplexRoPE.Config(\n                \
         dim={head_dim},\n                \
         max_seq_len={seq},\n                \
         theta={theta},\n{rotary}            ),\n            \
         attn_backend=\"flex\",\n        ),\n    )\n    \
         for _, norm, _, _ in config.traverse(RMSNorm.Config):\n        \
         norm.eps = epsilon\n{convert}    \
         return ModelSpec(\n        \
         name=\"llama3\",\n        \
         flavor=\"shardloom\",\n        \
         model=config,\n        \
         parallelize_fn=llama3.parallelize_llama,\n        \
         pipelining_fn=llama3.pipeline_llm,\n        \
         post_optimizer_build_fn=None,\n        \
         state_dict_adapter=llama3.Llama3StateDictAdapter,\n    )\n",
        hidden = model.hidden,
        vocab = model.vocab,
        layers = model.layers,
        heads = model.heads,
        kv_heads = model.kv_heads,
        ffn = model.ffn,
        head_dim = model.head_dim,
        seq = model.seq,
        theta = single(theta),
        epsilon = single(model.norm_epsilon),
    ))
}

fn training(leaving: &Leaving<'_>) -> Result<String, ExchangeError> {
    let recipe = &leaving.recipe;
    let precision = recipe.precision;
    let compute = match precision.compute {
        Number::Fp32 => "float32",
        Number::Bf16 => "bfloat16",
        Number::Fp16 => {
            return leaving.refuse(
                "precision.compute",
                "fp16",
                "weights in use are in bf16 or fp32",
            );
        }
    };
    if precision.gradients != Number::Fp32 {
        let reason = "gradients are reduced in fp32";
        return leaving.refuse("precision.gradients", precision.gradients.name(), reason);
    }
    if (precision.compute != Number::Fp32) != precision.master {
        let reason = "the optimizer's weights are in fp32, those in use are made of them";
        return leaving.refuse("precision.master", precision.master, reason);
    }
    // With a pipeline, what it takes at a time is cut into micro-batches; without, gradients of as many
    // micro-batches as are needed are summed up.
    let at_once = if recipe.pp > 1 { recipe.microbatches } else { 1 };
    let clip = match recipe.clip_norm {
        Some(norm) => real(norm),
        None => "float(\"inf\")".into(),
    };
    let graphs = match recipe.pp {
        1 => "",
        _ => "            # Pipelines are not captured.\n            disable_cuda_graphs=True,\n",
    };
    Ok(format!(
        "        training=TrainingConfig(\n            \
         seq_len={},\n            \
         local_batch_size={},\n            \
         global_batch_size={},\n            \
         mixed_precision_param=\"{compute}\",\n            \
         mixed_precision_reduce=\"float32\",\n            \
         max_norm={clip},\n{graphs}        ),\n",
        recipe.model.seq,
        recipe.microbatch() * at_once,
        recipe.global_batch,
    ))
}

fn parallelism(leaving: &mut Leaving<'_>) -> Result<(String, Option<String>), ExchangeError> {
    let recipe = leaving.recipe.clone();
    if recipe.rank_order != RankOrder::PipelineSlowest {
        let reason = "ranks are numbered with the pipeline outside of data parallelism";
        return leaving.refuse("pipeline.stage.devices", "another order", reason);
    }
    let (replicate, shard, reshard) = match recipe.zero {
        0 if recipe.cp > 1 => {
            let reason = "parameters are sharded over context-parallel ranks (ZeRO 2 or 3)";
            return leaving.refuse("sync.zero", 0, reason);
        }
        0 => (recipe.dp, 1, "never"),
        2 => (recipe.groups, recipe.sharers(), "never"),
        3 => (recipe.groups, recipe.sharers(), "always"),
        stage => {
            let reason = "parameters are replicated (0), or sharded and kept between forward and backward \
                          pass (2) or not (3)";
            return leaving.refuse("sync.zero", stage, reason);
        }
    };
    if recipe.dp * recipe.cp > 1 {
        let (key, value) = ("sync.bucket_bytes", recipe.bucket_bytes);
        leaving.leave_out(key, value, "gradients are reduced layer by layer");
    }
    let mut words = vec![
        format!("data_parallel_replicate_degree={replicate}"),
        format!("data_parallel_shard_degree={shard}"),
        format!("fsdp_reshard_after_forward=\"{reshard}\""),
        format!("tensor_parallel_degree={}", recipe.tp),
        format!("enable_sequence_parallel={}", python(recipe.sequence_parallel || recipe.tp == 1)),
        format!("context_parallel_degree={}", recipe.cp),
    ];
    if recipe.cp > 1 {
        // Each rank has a run of the sequence.
        words.push("context_parallel_load_balancer=None".into());
    }
    words.push(format!("pipeline_parallel_degree={}", recipe.pp));
    let mut table = None;
    if recipe.pp > 1 {
        let (name, needs_table) = schedule(leaving, &recipe)?;
        if recipe.model.tied {
            let reason = "an embedding that the head shares stays on one rank: a model without a pipeline, \
                          or without the sharing";
            return leaving.refuse("model", "tied=true", reason);
        }
        words.push(format!("pipeline_parallel_schedule=\"{name}\""));
        if needs_table && let Some(plan) = leaving.plan {
            let groups = recipe.stages.iter().map(|stage| stage.group).collect();
            let map = StageMap::new(vec![groups], recipe.microbatches)?;
            table = Some(actions::table(&Schedule::of(plan, map)?));
            let place = "str(Path(__file__).with_name(\"schedule.csv\"))";
            words.push(format!("pipeline_parallel_schedule_csv={place}"));
        }
        words.push(format!("pipeline_parallel_microbatch_size={}", recipe.microbatch()));
        let stages = recipe.stages.iter().map(|stage| modules(&recipe, stage));
        let lines: String = stages.map(|names| format!("                [{names}],\n")).collect();
        words.push(format!("module_fqns_per_model_part=[\n{lines}            ]"));
    } else {
        leaving.require_accumulation()?;
    }
    let lines: String = words.iter().map(|word| format!("            {word},\n")).collect();
    Ok((format!("        parallelism=ParallelismConfig(\n{lines}        ),\n"), table))
}

/// The name of a schedule that has the plan's places of stages, and whether a table says its order. Where
/// PyTorch's schedule of that name has the same order, no table is needed.
fn schedule(leaving: &Leaving<'_>, recipe: &Recipe) -> Result<(&'static str, bool), ExchangeError> {
    let groups: Vec<usize> = recipe.stages.iter().map(|stage| stage.group).collect();
    let (pp, chunks) = (recipe.pp, recipe.chunks());
    let looped = groups.iter().enumerate().all(|(stage, &group)| group == stage % pp);
    let back = |stage: usize| if stage < pp { stage } else { 2 * pp - 1 - stage };
    let to_and_fro =
        chunks == 2 && groups.iter().enumerate().all(|(stage, &group)| group == back(stage));
    Ok(match recipe.schedule {
        ScheduleKind::OneForwardOneBackward => ("1F1B", false),
        ScheduleKind::Afab if chunks == 1 => ("GPipe", false),
        _ if looped && chunks == 1 => ("1F1B", true),
        _ if looped => ("Interleaved1F1B", true),
        _ if to_and_fro => ("ZBVZeroBubble", true),
        other => {
            let reason = "a rank has every pp-th stage, or two stages of one pipeline down the ranks and \
                          back";
            return leaving.refuse("schedule", other.name(), reason);
        }
    })
}

fn modules(recipe: &Recipe, stage: &StagePlace) -> String {
    let mut names: Vec<String> = vec![];
    if recipe.embeds(stage) {
        names.push("\"tok_embeddings\"".into());
    }
    names.extend(recipe.layers(stage).map(|layer| format!("\"layers.{layer}\"")));
    if recipe.has_loss(stage) {
        names.extend(["\"norm\"".into(), "\"lm_head\"".into()]);
    }
    names.join(", ")
}

fn optimizer(leaving: &Leaving<'_>) -> Result<String, ExchangeError> {
    let Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } = leaving.recipe.optimizer else {
        let reason = "of this program's optimizers there is adamw";
        return leaving.refuse("optimizer.kind", leaving.recipe.optimizer.name(), reason);
    };
    let group = |pattern: &str, decay: f64| {
        format!(
            "                ParamGroupConfig(\n                    \
             pattern=r\"{pattern}\",\n                    \
             optimizer_name=\"AdamW\",\n                    \
             optimizer_kwargs={{\n                        \
             \"lr\": 0.0003,\n                        \
             \"betas\": ({}, {}),\n                        \
             \"eps\": {},\n                        \
             \"weight_decay\": {},\n                    }},\n                ),\n",
            real(beta1),
            real(beta2),
            real(epsilon),
            real(decay)
        )
    };
    // Gains of norms do not decay.
    Ok(format!(
        "        optimizer=OptimizersContainer.Config(\n            param_groups=[\n{}{}            ]\n        ),\n",
        group(".*norm.*", 0.0),
        group(".*", weight_decay)
    ))
}

fn recompute(leaving: &mut Leaving<'_>) -> Result<&'static str, ExchangeError> {
    leaving.leave_out_unfused();
    match leaving.recipe.recompute {
        Recompute::None | Recompute::Selective => Ok("None"),
        Recompute::Full => {
            let reason = "whole layers are computed twice, also what no gradient needs (\"block\")";
            leaving.leave_out("recompute", "full", reason);
            Ok("FullAC.Config()")
        }
        Recompute::Block => Ok("FullAC.Config()"),
        Recompute::Stage => {
            let reason = "what is computed twice is computed twice layer by layer: \"block\"";
            leaving.refuse("recompute", "stage", reason)
        }
    }
}

fn python(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}
