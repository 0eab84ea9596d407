//! torchtitan: the TOML file of versions up to 0.2, and of later versions the Python that makes their configuration, or
//! the JSON that they write of it (`--debug.save_config_file`).

use serde_json::Value;
use shardloom_graph::ModelSpec;
use shardloom_plan::{AttentionKind, Number, Optimizer, Precision, Recompute, ScheduleKind, Sync};

use super::python::{CALLEE, FIRST};
use super::table::Table;
use super::words::Words;
use super::{Given, Imported, replicas, unread_note};
use crate::recipe::{StagePlace, model_of, usual_groups};
use crate::transformer::{Kind, RotaryScaling, Transformer};
use crate::{ExchangeError, RankOrder, Recipe};

pub(super) fn import(words: &Words, given: &Given<'_>) -> Result<Imported, ExchangeError> {
    refuse_former_words(words)?;
    words.only("parallelism.expert_parallel_degree", &["1"], "the model has no experts")?;
    let on_devices = "plans keep weights and optimizer states on devices";
    words.only("training.enable_cpu_offload", &["false"], on_devices)?;
    words.only(
        "compile.enable_async_tensor_parallel",
        &["false"],
        "operators are not cut to overlap",
    )?;
    let width = |name: &str| {
        Ok::<usize, ExchangeError>(words.size(&format!("parallelism.{name}_degree"))?.unwrap_or(1))
    };
    let (tp, pp, cp) =
        (width("tensor_parallel")?, width("pipeline_parallel")?, width("context_parallel")?);
    let each = tp.saturating_mul(pp).saturating_mul(cp);
    let dp = replicas(
        &words.at("parallelism.tensor_parallel_degree"),
        "parallelism: tp x pp x cp",
        each,
        given,
    )?;
    let described = match given.model {
        // What cannot be read of it cannot be compared.
        Some(_) => described(words).ok().flatten(),
        None => described(words)?,
    };
    let named = match (given.model, &described) {
        (None, None) => Some(named(words)?),
        _ => None,
    };
    // Of version 0.3 on; TOML is of those before.
    let is_described = described.is_some();
    let (spec, model) = model_of(given.model.or(named.as_ref()), described, &words.place)?;
    let (global_batch, microbatches) = batch(words, dp, pp)?;
    let table = table(words, given)?;
    let schedule = match (pp, &table) {
        (1, _) => ScheduleKind::OneForwardOneBackward,
        (_, Some(_)) => ScheduleKind::Afab,
        (_, None) => schedule(words)?,
    };
    let norm = words.real("training.max_norm")?;
    let (zero, groups) = zero(words, dp, cp, pp)?;
    let mut notes = vec![];
    let fp8_products = eight_bits(words, &mut notes)?;
    let mut recipe = Recipe {
        model,
        pp,
        dp,
        groups,
        second_copy: None,
        ep: 1,
        cp,
        tp,
        sequence_parallel: sequence_parallel(words)? && tp > 1,
        keeps_gathered: false,
        stages: vec![],
        rank_order: RankOrder::PipelineSlowest,
        global_batch,
        microbatches,
        schedule,
        recompute: Recompute::None,
        attention: AttentionKind::Fused,
        zero,
        bucket_bytes: Sync::default().bucket_bytes,
        precision: Precision { fp8_products, ..precision(words)? },
        optimizer: optimizer(words)?,
        clip_norm: match words.get("training.max_norm") {
            // JSON has no infinity.
            Some(Value::String(_)) if norm.is_some_and(f64::is_infinite) => None,
            _ => Some(norm.unwrap_or(1.0)).filter(|&norm| norm > 0.0),
        },
        // Nothing is in fp16 there.
        loss_scale: None,
    };
    let cuts = cuts(words, &recipe)?;
    recipe.stages = match &table {
        Some(table) if pp > 1 => {
            let stages = cuts.windows(2).zip(&table.groups);
            let place =
                |(run, &group): (&[usize], &usize)| StagePlace { blocks: (run[0], run[1]), group };
            if table.groups.len() != cuts.len() - 1 || table.microbatches != microbatches {
                let rule = format!(
                    "there are {} stages and {microbatches} micro-batches, and in the table {} and {}",
                    cuts.len() - 1,
                    table.groups.len(),
                    table.microbatches
                );
                return words.error("parallelism.pipeline_parallel_schedule_csv", "a table", rule);
            }
            let kinds = [ScheduleKind::Afab, ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV];
            let arranged = kinds.map(|kind| {
                usual_groups(kind, pp, table.groups.len() / pp) == Some(table.groups.clone())
            });
            if !arranged.contains(&true) {
                let rule = "stages are on ranks 0, 1 and so on in rounds, or down and back up once";
                return words.error("parallelism.pipeline_parallel_schedule_csv", "a table", rule);
            }
            stages.map(place).collect()
        }
        _ => match recipe.stages_at(&cuts) {
            Some(stages) => stages,
            None => {
                let rule =
                    format!("{} stages are not as many on each of {pp} ranks", cuts.len() - 1);
                return words.error("parallelism.pipeline_parallel_degree", pp, rule);
            }
        },
    };
    recipe.recompute = recompute(words, &mut notes)?;
    for read in ["module_fqns_per_model_part", "context_parallel_load_balancer", "spmd_backend"] {
        words.get(&format!("parallelism.{read}"));
    }
    if is_described {
        notes.push(
            "attention is within documents there; in the plan it is over whole samples, unless mask_documents = true is \
             added"
                .into(),
        );
    }
    notes.extend(unread_note(&words.unread()?));
    let mut imported = recipe.plan(spec, given.cluster, given.devices, &words.place, notes)?;
    if let Some(table) = table.filter(|_| pp > 1) {
        table.apply(&mut imported.plan)?;
    }
    Ok(imported)
}

/// The model that the JSON or the Python describes in full.
fn described(words: &Words) -> Result<Option<Transformer>, ExchangeError> {
    if words.get("model_spec.model").is_none() {
        return Ok(None);
    }
    let at = |name: &str| format!("model_spec.model.{name}");
    let name = words.text("model_spec.name")?.unwrap_or("none");
    if name != "llama3" {
        return words.error("model_spec.name", name, "llama3 is known here; or name a --model");
    }
    let hidden = words.needed(&at("dim"))?;
    let layers = match words.get(&at("layers")) {
        Some(Value::Array(layers)) if !layers.is_empty() => layers,
        // What makes them all in Python.
        Some(made @ Value::Object(_)) => return built(words, made, hidden),
        _ => return words.missing(&at("layers"), "a list of layers is needed"),
    };
    let within = |path: &str| path.split('.').try_fold(&layers[0], |value, word| value.get(word));
    let size = |path: &str| match within(path).and_then(Value::as_u64) {
        Some(size) => Ok(size as usize),
        None => words.missing(&at(&format!("layers[0].{path}")), "a number is needed"),
    };
    let real =
        |path: &str, usual: f64| within(path).and_then(Value::as_f64).unwrap_or(usual) as f32;
    let heads = size("attention.n_heads")?;
    let rotary = |name: &str| format!("attention.rope.{name}");
    let scaling = match within(&rotary("scaling")).and_then(Value::as_str) {
        Some("llama") => Some(RotaryScaling {
            factor: real(&rotary("scaling_factor"), 8.0),
            low: real(&rotary("low_freq_factor"), 1.0),
            high: real(&rotary("high_freq_factor"), 4.0),
            original: match size(&rotary("original_max_position_embeddings"))?.try_into() {
                Ok(original) => original,
                Err(_) => {
                    let path = at("layers[0].attention.rope.original_max_position_embeddings");
                    return words.error(&path, "more", "a number of 32 bits is needed");
                }
            },
        }),
        _ => None,
    };
    let key_value_heads = within("attention.n_kv_heads").and_then(Value::as_u64);
    Ok(Some(Transformer {
        kind: llama(real(&rotary("theta"), 10_000.0), scaling),
        changes: vec![],
        layers: layers.len(),
        hidden,
        heads,
        kv_heads: key_value_heads.map_or(heads, |heads| heads as usize),
        head_dim: hidden / heads.max(1),
        ffn: size("feed_forward.w1.out_features")?,
        seq: words.needed("training.seq_len")?,
        vocab: words.needed(&at("vocab_size"))?,
        padding: 0,
        tied: words.flag(&at("enable_weight_tying"))?,
        norm_epsilon: words.real(&at("norm.eps"))?.map_or(1e-5, |epsilon| epsilon as f32),
        init_std: 0.02,
    }))
}

/// A Llama with such rotary positions.
fn llama(theta: f32, scaling: Option<RotaryScaling>) -> Kind {
    Kind::Llama { theta, scaling, qkv_bias: false, qk_norm: false }
}

/// The model whose layers Python makes by a call of `_build_llama3_layers`.
fn built(words: &Words, made: &Value, hidden: usize) -> Result<Option<Transformer>, ExchangeError> {
    let at = |name: &str| format!("model_spec.model.layers.{name}");
    let maker = made.get(CALLEE).and_then(Value::as_str).unwrap_or("a table");
    if !maker.ends_with("_build_llama3_layers") {
        let rule = "_build_llama3_layers is known here; or name a --model";
        return words.error("model_spec.model.layers", maker, rule);
    }
    let real = |name: &str, usual: f64| {
        let found = words.real(&at(&format!("rope.{name}")))?;
        Ok::<f32, ExchangeError>(found.unwrap_or(usual) as f32)
    };
    let scaling = match words.text(&at("rope.scaling"))?.unwrap_or("none") {
        "none" => None,
        "llama" => Some(RotaryScaling {
            factor: real("scaling_factor", 8.0)?,
            low: real("low_freq_factor", 1.0)?,
            high: real("high_freq_factor", 4.0)?,
            original: {
                let path = at("rope.original_max_position_embeddings");
                let original = words.size(&path)?.unwrap_or(8192);
                match original.try_into() {
                    Ok(original) => original,
                    Err(_) => return words.error(&path, original, "a number of 32 bits is needed"),
                }
            },
        }),
        other => return words.error(&at("rope.scaling"), other, "none and llama are known here"),
    };
    let heads = words.needed(&at("n_heads"))?;
    let epsilon = words.real("model_spec.model.norm.eps")?;
    Ok(Some(Transformer {
        kind: llama(real("theta", 10_000.0)?, scaling),
        changes: vec![],
        layers: words.needed(&at("n_layers"))?,
        hidden,
        heads,
        kv_heads: words.size(&at("n_kv_heads"))?.unwrap_or(heads),
        head_dim: hidden / heads,
        ffn: words.needed(&at("hidden_dim"))?,
        seq: words.needed("training.seq_len")?,
        vocab: words.needed("model_spec.model.vocab_size")?,
        padding: 0,
        tied: words.flag("model_spec.model.enable_weight_tying")?,
        norm_epsilon: epsilon.map_or(1e-5, |epsilon| epsilon as f32),
        init_std: 0.02,
    }))
}

/// The model that the TOML names, or Python asks a registry for.
fn named(words: &Words) -> Result<ModelSpec, ExchangeError> {
    let of_registry = |word: &str| words.text(&format!("model_spec.{word}"));
    let (name, flavor) = match of_registry(CALLEE)? {
        Some("torchtitan.models.llama3.model_registry") => ("llama3", of_registry(FIRST)?),
        Some(other) => {
            let rule =
                "torchtitan.models.llama3's model_registry is known here; name others with --model";
            return words.error("model_spec", other, rule);
        }
        None => (words.text("model.name")?.unwrap_or("none"), words.text("model.flavor")?),
    };
    let flavor = flavor.unwrap_or("none");
    let preset = match (name, flavor) {
        ("llama3", "8B") => "llama-3-8b",
        ("llama3", "70B") => "llama-3-70b",
        ("llama3", "405B") => "llama-3-405b",
        _ => {
            let rule = "of llama3 there are 8B, 70B and 405B; name others with --model";
            return words.error("model.flavor", format!("{flavor} of {name}"), rule);
        }
    };
    let in_model =
        |source| ExchangeError::Model { place: words.place.clone(), source: Box::new(source) };
    let seq = words.size("training.seq_len")?.unwrap_or(2048);
    ModelSpec::preset(preset).and_then(|spec| spec.with_seq(seq)).map_err(in_model)
}

/// What early versions had, and what says it now: until March 2025 there was no table `parallelism`, until June the
/// local batch was the batch, and until July pipelines were cut at points.
const FORMER_WORDS: [(&str, &str); 13] = [
    ("training.batch_size", "training.local_batch_size"),
    ("training.data_parallel_degree", "parallelism.data_parallel_shard_degree"),
    ("training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"),
    ("training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"),
    ("training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"),
    ("training.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"),
    ("experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"),
    ("experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule"),
    ("experimental.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"),
    (
        "experimental.pipeline_parallel_microbatches",
        "parallelism.pipeline_parallel_microbatch_size",
    ),
    ("experimental.context_parallel_degree", "parallelism.context_parallel_degree"),
    ("parallelism.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"),
    ("parallelism.pipeline_parallel_microbatches", "parallelism.pipeline_parallel_microbatch_size"),
];

/// Refuses a file of a version before those that are read.
fn refuse_former_words(words: &Words) -> Result<(), ExchangeError> {
    for (former, now) in FORMER_WORDS {
        let value =
            words.get(former).filter(|value| value.as_array().is_none_or(|it| !it.is_empty()));
        if let Some(value) = value {
            let rule =
                format!("a word of an early version, which is not read; {now} says that now");
            return words.error(former, value.to_string(), rule);
        }
    }
    Ok(())
}

fn batch(words: &Words, dp: usize, pp: usize) -> Result<(usize, usize), ExchangeError> {
    let local = words.size("training.local_batch_size")?.unwrap_or(8);
    let global = match words.real("training.global_batch_size")? {
        Some(global) if global > 0.0 => words.needed("training.global_batch_size")?,
        _ => local.saturating_mul(dp),
    };
    let micro = words.size("parallelism.pipeline_parallel_microbatch_size")?.unwrap_or(1);
    let of_pipeline = if pp > 1 { local / micro.max(1) } else { 1 };
    if pp > 1 && local.saturating_mul(dp) != global {
        let rule = format!(
            "several rounds of a pipeline in a step are not in plans: {local} samples on {dp} replicas are \
             one round"
        );
        return words.error("training.global_batch_size", global, rule);
    }
    if !global.is_multiple_of(local.saturating_mul(dp)) || (pp > 1 && !local.is_multiple_of(micro))
    {
        let rule = format!("{dp} replicas with {local} samples at a time divide it");
        return words.error("training.global_batch_size", global, rule);
    }
    let rounds = global / local / dp;
    Ok((global, if pp > 1 { of_pipeline } else { rounds }))
}

fn sequence_parallel(words: &Words) -> Result<bool, ExchangeError> {
    // Up to 0.2 it could be switched off, too.
    words.flag("parallelism.disable_loss_parallel")?;
    match words.get("parallelism.enable_sequence_parallel") {
        Some(_) => words.flag("parallelism.enable_sequence_parallel"),
        None => Ok(true),
    }
}

fn schedule(words: &Words) -> Result<ScheduleKind, ExchangeError> {
    let path = "parallelism.pipeline_parallel_schedule";
    let name = words.text(path)?.unwrap_or("1F1B");
    match name.to_ascii_lowercase().as_str() {
        "1f1b" => Ok(ScheduleKind::OneForwardOneBackward),
        "gpipe" => Ok(ScheduleKind::Afab),
        "interleaved1f1b" => Ok(ScheduleKind::Interleaved),
        "zbvzerobubble" => Ok(ScheduleKind::ZeroBubbleV),
        "dualpipev" => Ok(ScheduleKind::DualPipeV),
        _ => {
            let rule = "1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble and DualPipeV are known here; of others \
                        let PyTorch write the table (_dump_csv), and name it";
            words.error(path, name, rule)
        }
    }
}

fn table(words: &Words, given: &Given<'_>) -> Result<Option<Table>, ExchangeError> {
    let path = "parallelism.pipeline_parallel_schedule_csv";
    let named = words.text(path)?.filter(|file| !file.is_empty());
    match (named, given.table) {
        (None, None) => Ok(None),
        (Some(_), Some((place, text))) => Ok(Some(Table::of(text, place)?)),
        (Some(file), None) => words.error(path, file, "name that file after the configuration"),
        (None, Some((place, _))) => words.error(path, "nothing", format!("so {place} has no use")),
    }
}

/// The first block of each stage, then the number of blocks.
fn cuts(words: &Words, recipe: &Recipe) -> Result<Vec<usize>, ExchangeError> {
    let path = "parallelism.module_fqns_per_model_part";
    let layers = recipe.model.layers;
    if recipe.pp == 1 {
        return Ok(vec![0, recipe.model.blocks()]);
    }
    if let Some(parts) = words.get(path) {
        let refuse = |value: &Value| {
            let rule = "a list for each stage of tok_embeddings, layers.0 and on, norm and lm_head, in order";
            words.error(path, value, rule)
        };
        let mut names = vec![];
        let mut cuts = vec![];
        for part in parts.as_array().into_iter().flatten() {
            cuts.push(names.len());
            names.extend(part.as_array().into_iter().flatten().filter_map(Value::as_str));
        }
        let numbered = (0..layers).map(|layer| format!("layers.{layer}"));
        let wanted: Vec<String> =
            ["tok_embeddings".into()].into_iter().chain(numbered).chain(["norm".into()]).collect();
        // The norm and the head are one block; the head's name was another once.
        let (Some((head, others)), false) = (names.split_last(), cuts.contains(&(wanted.len())))
        else {
            return refuse(parts);
        };
        if !matches!(*head, "lm_head" | "output") || others != wanted {
            return refuse(parts);
        }
        cuts.push(recipe.model.blocks());
        return Ok(cuts);
    }
    let weight = |name: &str| match words.real(&format!("parallelism.pipeline_parallel_{name}"))? {
        None => Ok(1),
        // Of a number below 0 the cast makes 0.
        Some(weight) => Ok::<usize, ExchangeError>(weight as usize),
    };
    let first = weight("first_stage_less_layers")?;
    let last = weight("last_stage_less_layers")?;
    let sum = layers.saturating_add(first).saturating_add(last);
    let single = recipe.schedule.arrangement().is_none_or(|it| it.least_chunks() == 1);
    let stages = match words.size("parallelism.pipeline_parallel_layers_per_stage")? {
        Some(each) => sum.div_ceil(each),
        None => recipe.pp * if single { 1 } else { 2 },
    };
    let (each, longer) = (sum / stages, sum % stages);
    if each < first.max(last).max(1) {
        let rule = format!("{layers} layers leave a stage without one");
        return words.error("parallelism.pipeline_parallel_degree", recipe.pp, rule);
    }
    let mut cuts = vec![0];
    // Stages in layers, of which the first counts as some more and the last, too; longer stages first.
    let mut next = 1;
    for stage in 0..stages {
        let length = each + usize::from(stage < longer);
        next += length - if stage == 0 { first } else { 0 };
        cuts.push(next.min(layers + 1));
    }
    cuts[stages] = recipe.model.blocks();
    Ok(cuts)
}

/// ZeRO stage, and groups of replicas that shard among themselves.
fn zero(words: &Words, dp: usize, cp: usize, pp: usize) -> Result<(u8, usize), ExchangeError> {
    let at = |name: &str| format!("parallelism.data_parallel_{name}_degree");
    let replicate = words.size(&at("replicate"))?.unwrap_or(1);
    let shard = match words.real(&at("shard"))? {
        Some(shard) if shard > 0.0 => words.needed(&at("shard"))?,
        _ => dp / replicate.max(1),
    };
    if replicate.saturating_mul(shard) != dp {
        let rule = format!("with the other widths there are {dp} replicas");
        return words.error(&at("shard"), format!("{replicate} x {shard}"), rule);
    }
    let path = "parallelism.fsdp_reshard_after_forward";
    let reshards = match words.text(path)?.unwrap_or("default") {
        "always" => true,
        "never" => false,
        // Not in pipelines, which would gather parameters for every micro-batch.
        "default" => pp == 1,
        other => return words.error(path, other, "default, always or never"),
    };
    let sharded = if reshards { 3 } else { 2 };
    Ok(match (replicate, shard) {
        // Without replicas nothing is sharded; what is gathered is freed or not.
        (1, 1) if cp == 1 => (if reshards { 3 } else { 0 }, 1),
        (_, 1) if cp == 1 => (0, 1),
        (groups, _) => (sharded, groups),
    })
}

/// Whether products are in 8 bits: by the converters of the TOML, or of a model's linear layers in the JSON.
fn eight_bits(words: &Words, notes: &mut Vec<String>) -> Result<bool, ExchangeError> {
    let head = "the last product is in 8 bits there as well, in a plan it is not";
    let names = ["model.converters", "model_spec.converters", "model_spec.model.converters"];
    let names = names.iter().find_map(|path| words.get(path));
    let names: Vec<String> = match names {
        Some(Value::Array(names)) => names.iter().map(Value::to_string).collect(),
        _ => vec![],
    };
    let known =
        |name: &String| name.contains("quantize.linear.float8") || name.contains("Float8Linear");
    if let Some(other) = names.iter().find(|name| !known(name)) {
        let rule = "products in 8 bits are those of quantize.linear.float8";
        return words.error("model.converters", other, rule);
    }
    let layer = words.get("model_spec.model.layers").and_then(|layers| layers.get(0));
    let is_converted = |it: &Value| it.get("_torchao_config").is_some();
    let converted =
        layer.and_then(|layer| layer.get("feed_forward")?.get("w1")).is_some_and(is_converted);
    if names.is_empty() {
        if converted && words.get("model_spec.model.lm_head").is_some_and(is_converted) {
            notes.push(head.into());
        }
        return Ok(converted);
    }
    let at = |name: &str| format!("quantize.linear.float8.{name}");
    let gathered = at("enable_fsdp_float8_all_gather");
    let rule = "plans gather weights in the format of computation";
    words.only(&gathered, &["false"], rule)?;
    words.get(&at("recipe_name"));
    let filtered = words.get(&at("filter_fqns")).map(Value::to_string).unwrap_or_default();
    if !["output", "lm_head"]
        .iter()
        .any(|name| format!("{filtered}{}", names.concat()).contains(name))
    {
        notes.push(head.into());
    }
    Ok(true)
}

fn precision(words: &Words) -> Result<Precision, ExchangeError> {
    let compute = |path: &str, usual: &'static str| match words.text(path)?.unwrap_or(usual) {
        "bfloat16" => Ok(Number::Bf16),
        "float32" => Ok(Number::Fp32),
        other => words.error(path, other, "bfloat16 or float32"),
    };
    words.only("training.mixed_precision_reduce", &["float32"], "gradients are reduced in fp32")?;
    if compute("training.dtype", "float32")? == Number::Bf16 {
        return Ok(Precision {
            compute: Number::Bf16,
            gradients: Number::Bf16,
            master: false,
            ..Precision::FP32
        });
    }
    Ok(match compute("training.mixed_precision_param", "bfloat16")? {
        Number::Fp32 => Precision::FP32,
        _ => Precision::MIXED,
    })
}

fn optimizer(words: &Words) -> Result<Optimizer, ExchangeError> {
    if let Some(groups) = words.get("optimizer.param_groups") {
        // Groups of names that patterns tell apart; the last has all that is left.
        let last = groups.as_array().and_then(|groups| groups.last());
        let of = |name: &str| last.and_then(|group| group.get(name));
        if of("optimizer_name").and_then(Value::as_str) != Some("AdamW") {
            return words.error("optimizer.param_groups", groups, "AdamW is known here");
        }
        let settings = of("optimizer_kwargs");
        let real = |name: &str, usual: f64| {
            settings.and_then(|settings| settings.get(name)?.as_f64()).unwrap_or(usual)
        };
        let beta = |index: usize, usual: f64| {
            settings
                .and_then(|settings| settings.get("betas")?.get(index)?.as_f64())
                .unwrap_or(usual)
        };
        return Ok(Optimizer::Adamw {
            beta1: beta(0, 0.9),
            beta2: beta(1, 0.999),
            epsilon: real("eps", 1e-8),
            weight_decay: real("weight_decay", 0.01),
        });
    }
    let real = |name: &str, usual: f64| {
        Ok::<f64, ExchangeError>(words.real(&format!("optimizer.{name}"))?.unwrap_or(usual))
    };
    match words.text("optimizer.name")? {
        None | Some("AdamW") => Ok(Optimizer::Adamw {
            beta1: real("beta1", 0.9)?,
            beta2: real("beta2", 0.95)?,
            epsilon: real("eps", 1e-8)?,
            weight_decay: real("weight_decay", 0.1)?,
        }),
        Some(other) => words.error("optimizer.name", other, "AdamW is known here"),
    }
}

fn recompute(words: &Words, notes: &mut Vec<String>) -> Result<Recompute, ExchangeError> {
    let path = "activation_checkpoint";
    let operators =
        "activation_checkpoint: cheap operators are computed twice there, none here (\"none\")";
    let Some(found) = words.get(path) else { return Ok(Recompute::None) };
    match found.get(CALLEE).and_then(Value::as_str) {
        None => {}
        Some("FullAC.Config") => return Ok(Recompute::Block),
        Some("SelectiveAC.Config") => {
            notes.push(operators.into());
            return Ok(Recompute::None);
        }
        Some(other) => {
            return words.error(path, other, "FullAC.Config and SelectiveAC.Config are known here");
        }
    }
    if let Some(mode) = found.get("mode") {
        return match mode.as_str() {
            Some("none") => Ok(Recompute::None),
            Some("full") => Ok(Recompute::Block),
            Some("selective") => {
                notes.push(operators.into());
                Ok(Recompute::None)
            }
            _ => words.error("activation_checkpoint.mode", mode, "none, selective or full"),
        };
    }
    // The JSON does not name the class, but its settings are its own.
    if found.get("memory_budget").is_some() {
        let rule = "what a compiler chooses to compute twice is not known: none, selective or full";
        return words.error("activation_checkpoint.memory_budget", "given", rule);
    }
    if found.get("force_recompute_mm_shapes_by_fqns").is_some() {
        notes.push(operators.into());
        return Ok(Recompute::None);
    }
    Ok(Recompute::Block)
}
