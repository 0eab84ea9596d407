//! Megatron-LM: its arguments, in a script or on a command line.

use shardloom_plan::{
    AttentionKind, LossScale, Number, Optimizer, Precision, Recompute, ScheduleKind, Sync,
};

use super::arguments::Arguments;
use super::megatron_layout::cuts_of_layout;
use super::megatron_model::{described, require_sizes_of};
use super::{Given, Imported, halving_note, replicas, unread_note};
use crate::recipe::{ONE_BUCKET, model_of};
use crate::transformer::{Kind, Transformer};
use crate::{ExchangeError, RankOrder, Recipe};

pub(super) fn import(
    text: &str,
    place: &str,
    given: &Given<'_>,
) -> Result<Imported, ExchangeError> {
    let arguments = Arguments::of(text, place)?;
    refuse_what_plans_have_not(&arguments)?;
    let width = |name| Ok::<usize, ExchangeError>(arguments.size(name)?.unwrap_or(1));
    let tp = width("tensor-model-parallel-size")?;
    let pp = width("pipeline-model-parallel-size")?;
    let cp = width("context-parallel-size")?;
    if let (Some(nodes), Some(devices)) =
        (arguments.size("nnodes")?, arguments.size("nproc-per-node")?)
        && nodes.saturating_mul(devices) != given.devices
    {
        let rule = format!("--cluster {} has {} devices", given.cluster, given.devices);
        return arguments.error("nproc-per-node", format!("{devices} on {nodes} nodes"), rule);
    }
    let each = tp.saturating_mul(pp).saturating_mul(cp);
    let widths = [
        (tp, "tensor-model-parallel-size"),
        (pp, "pipeline-model-parallel-size"),
        (cp, "context-parallel-size"),
    ];
    let widest = widths.iter().find(|(width, _)| *width > 1).map_or(widths[0].1, |it| it.1);
    let of = "tensor x pipeline x context parallel size";
    let dp = replicas(&arguments.at(widest), of, each, given)?;
    let described = match given.model {
        // Only what can be compared with the given one.
        Some(_) => None,
        None if arguments.has("num-experts") => {
            let rule = "a model with experts is described in TOML, not by a command line: name it with --model";
            return arguments.error("num-experts", "given", rule);
        }
        None => Some(described(&arguments, tp)?),
    };
    let (spec, model) = model_of(given.model, described, place)?;
    if given.model.is_some() {
        require_sizes_of(&arguments, &model)?;
    }
    let masks_documents = masks_documents(&arguments, &model)?;
    let Some(microbatch) = arguments.size("micro-batch-size")? else {
        return arguments.missing("micro-batch-size", "a number from 1 up is needed");
    };
    let global_batch =
        arguments.size("global-batch-size")?.unwrap_or(microbatch.saturating_mul(dp));
    if !global_batch.is_multiple_of(microbatch.saturating_mul(dp)) {
        let rule = format!(
            "it is no multiple of {dp} replicas times micro-batches of {microbatch}, which is {}",
            microbatch.saturating_mul(dp)
        );
        return arguments.error("global-batch-size", global_batch, rule);
    }
    let precision = precision(&arguments)?;
    let (zero, bucket_bytes) = replication(&arguments, dp * cp, tp, precision)?;
    let groups = groups(&arguments, dp, zero)?;
    let ep = ep(&arguments, &model, dp)?;
    let mut recipe = Recipe {
        model,
        pp,
        dp,
        groups,
        second_copy: None,
        ep,
        cp,
        tp,
        sequence_parallel: arguments.has("sequence-parallel") && tp > 1,
        keeps_gathered: false,
        stages: vec![],
        rank_order: match arguments.has("use-tp-pp-dp-mapping") && pp * dp > 1 {
            true => RankOrder::DataSlowest,
            false => RankOrder::PipelineSlowest,
        },
        global_batch,
        microbatches: global_batch / microbatch / dp,
        schedule: ScheduleKind::OneForwardOneBackward,
        recompute: Recompute::None,
        attention: attention(&arguments)?,
        zero,
        bucket_bytes,
        precision,
        optimizer: optimizer(&arguments)?,
        clip_norm: clip_norm(&arguments)?,
        loss_scale: loss_scale(&arguments, precision)?,
    };
    let cuts = cuts(&arguments, &recipe)?;
    let in_turn = "microbatch-group-size-per-virtual-pipeline-stage";
    let in_turn = (in_turn, arguments.size(in_turn)?);
    if cuts.len() - 1 > pp {
        recipe.schedule = ScheduleKind::Interleaved;
        if let (name, Some(size)) = in_turn
            && size != pp
        {
            let rule = format!(
                "stages take micro-batches in groups of {pp}, one for each group of devices"
            );
            return arguments.error(name, size, rule);
        }
    }
    let Some(stages) = recipe.stages_at(&cuts) else {
        let rule = format!("{} stages on {pp} groups of devices: as many on each", cuts.len() - 1);
        return arguments.error("pipeline-model-parallel-size", pp, rule);
    };
    recipe.stages = stages;
    recipe.recompute = recompute(&arguments, &recipe)?;
    // What a plan's arguments have that nothing depends on here.
    for read in ["no-gradient-accumulation-fusion", "ckpt-format"] {
        arguments.has(read);
    }
    let mut notes = vec![];
    if matches!(recipe.loss_scale, Some(LossScale::Dynamic { .. })) {
        let overflows = arguments.size("hysteresis")?.unwrap_or(2);
        let least = arguments.number("min-loss-scale")?.unwrap_or(1.0);
        notes.extend(halving_note("--hysteresis", overflows, "--min-loss-scale", least));
    }
    notes.extend(scales(&arguments)?);
    notes.extend(sharding_note(&arguments)?);
    notes.extend(gathers_note(&arguments, recipe.zero)?);
    notes.extend(context(&arguments, cp)?);
    notes.extend(unread_note(&arguments.unread()?));
    notes.extend(arguments.commands_note());
    notes.extend(arguments.branches_note());
    let mut imported = recipe.plan(spec, given.cluster, given.devices, place, notes)?;
    imported.plan.mask_documents = masks_documents;
    Ok(imported)
}

/// By how much the loss is scaled: in fp16 only.
fn loss_scale(
    arguments: &Arguments,
    precision: Precision,
) -> Result<Option<LossScale>, ExchangeError> {
    if precision.compute != Number::Fp16 {
        return Ok(None);
    }
    if let Some(scale) = arguments.number("loss-scale")? {
        return Ok(Some(LossScale::Constant { scale }));
    }
    Ok(Some(LossScale::Dynamic {
        initial: arguments.number("initial-loss-scale")?.unwrap_or(4_294_967_296.0),
        growth_interval: arguments.number("loss-scale-window")?.unwrap_or(1_000),
    }))
}

/// The norm to which gradients are clipped; 0 is none.
fn clip_norm(arguments: &Arguments) -> Result<Option<f64>, ExchangeError> {
    match arguments.number("clip-grad")?.unwrap_or(1.0) {
        norm if norm > 0.0 => Ok(Some(norm)),
        0.0 => Ok(None),
        norm => arguments.error("clip-grad", norm, "a norm from 0 up is needed"),
    }
}

/// A note where keys and values go from rank to rank, which is the default; the plan gathers them.
fn context(arguments: &Arguments, cp: usize) -> Result<Option<String>, ExchangeError> {
    let ways = arguments.text("cp-comm-type")?.unwrap_or("p2p");
    match ways {
        _ if cp == 1 => Ok(None),
        "all_gather" | "allgather" => Ok(None),
        "p2p" => Ok(Some(
            "keys and values go from rank to rank there (--cp-comm-type p2p), and are gathered in the plan"
                .into(),
        )),
        other => arguments.error("cp-comm-type", other, "plans gather keys and values: all_gather"),
    }
}

fn refuse_what_plans_have_not(arguments: &Arguments) -> Result<(), ExchangeError> {
    let refused = [
        ("moe-expert-capacity-factor", "no row is left out of an expert"),
        ("moe-shared-expert-intermediate-size", "all experts are chosen from"),
        ("moe-layer-freq", "all layers have experts"),
        ("moe-z-loss-coeff", "the loss is that of predictions alone"),
        ("optimizer-cpu-offload", "plans keep optimizer states on devices"),
        ("cpu-offloading", "plans keep activations on devices"),
        ("use-cpu-offload", "plans keep optimizer states on devices"),
        ("fp8-param-gather", "plans gather weights in the format of computation"),
        ("fp8-output-proj", "plans compute the last product in the other format"),
        ("fp8-dot-product-attention", "plans compute attention in the other format"),
        ("fp8-multi-head-attention", "plans compute attention in the other format"),
        ("first-last-layers-bf16", "plans compute all layers alike"),
        ("fp4-format", "plans compute in fp32, bf16 or fp16"),
        ("squared-relu", "a GPT's activation is GELU, a Llama's SwiGLU"),
        ("window-size", "attention sees all positions before"),
        ("hybrid-layer-pattern", "models have one kind of layer"),
        ("rampup-batch-size", "a plan has one global batch"),
        ("step-batch-size-schedule", "a plan has one global batch"),
        ("decrease-batch-size-if-needed", "a plan has one global batch"),
        ("delay-wgrad-compute", "the schedule says which backward passes are in halves"),
        (
            "apply-layernorm-1p",
            "gains of norms around 0 (zero_centered_gain of a llama) are not read yet",
        ),
        ("mtp-num-layers", "models predict one token"),
        ("yaml-cfg", "arguments are read from the command line"),
        ("multi-latent-attention", "attention has keys and values by head"),
        ("account-for-embedding-in-pipeline-split", "write --pipeline-model-parallel-layout"),
        ("account-for-loss-in-pipeline-split", "write --pipeline-model-parallel-layout"),
    ];
    // Whoever asks is told of all at once.
    let mut given = refused.into_iter().filter(|(name, _)| arguments.has(name));
    if let Some((name, rule)) = given.next() {
        let others: String =
            given.map(|(name, rule)| format!("; nor is --{name} taken: {rule}")).collect();
        return arguments.error(name, "given", format!("{rule}{others}"));
    }
    for name in ["exp-avg-dtype", "exp-avg-sq-dtype", "main-params-dtype", "main-grads-dtype"] {
        if let Some(format) = arguments.text(name)?.filter(|&format| format != "fp32") {
            let rule = "plans keep master weights, their gradients and optimizer states in fp32";
            return arguments.error(name, format, rule);
        }
    }
    Ok(())
}

/// Whether attention is within documents. Positions then begin anew with each, if they are to, which rotary ones need not.
fn masks_documents(arguments: &Arguments, model: &Transformer) -> Result<bool, ExchangeError> {
    let name = "reset-position-ids";
    if arguments.has(name) && matches!(model.kind, Kind::Gpt { .. }) {
        return arguments.error(name, "given", "learned positions go on through a sample");
    }
    Ok(arguments.has("reset-attention-mask"))
}

/// Ranks among which the experts of a model are dealt.
fn ep(arguments: &Arguments, model: &Transformer, dp: usize) -> Result<usize, ExchangeError> {
    let name = "expert-model-parallel-size";
    let ep = arguments.size(name)?.unwrap_or(1);
    let experts = arguments.size("num-experts")?.unwrap_or(0);
    if experts != model.experts() {
        let rule = format!("the model of --model has {}", model.experts());
        return arguments.error("num-experts", experts, rule);
    }
    if experts == 0 {
        return match ep {
            1 => Ok(1),
            ep => arguments.error(name, ep, "the model has no experts"),
        };
    }
    let chosen = arguments.size("moe-router-topk")?.unwrap_or(2);
    if chosen != 1 {
        return arguments.error("moe-router-topk", chosen, "a row has one expert: 1");
    }
    if !arguments.has("moe-router-pre-softmax") {
        let rule = "what an expert gives is taken times its share of all: it is needed";
        return arguments.error("moe-router-pre-softmax", "nothing", rule);
    }
    if arguments.number::<f64>("moe-aux-loss-coeff")?.is_some_and(|share| share != 0.0) {
        let rule = "the loss is that of predictions alone: 0";
        return arguments.error("moe-aux-loss-coeff", "more", rule);
    }
    let split = "expert-tensor-parallel-size";
    if arguments.size(split)?.is_some_and(|width| width > 1) {
        return arguments.error(split, "several", "experts are not split");
    }
    for read in [
        "moe-ffn-hidden-size",
        "moe-grouped-gemm",
        "moe-token-dispatcher-type",
        "moe-router-load-balancing-type",
    ] {
        arguments.has(read);
    }
    match dp.is_multiple_of(ep) && experts.is_multiple_of(ep) {
        true => Ok(ep),
        false => {
            let rule = format!("it divides the {dp} replicas and the {experts} experts");
            arguments.error(name, ep, rule)
        }
    }
}

fn precision(arguments: &Arguments) -> Result<Precision, ExchangeError> {
    let (bf16, fp16) = (arguments.has("bf16"), arguments.has("fp16"));
    let wide = arguments.has("accumulate-allreduce-grads-in-fp32");
    let narrow = arguments.has("grad-reduce-in-bf16");
    let fp8_products = fp8(arguments)?;
    let precision = match (bf16, fp16) {
        (true, true) => return arguments.error("fp16", "given", "--bf16 is given, too"),
        // Without a word, gradients of bf16 weights are in fp32.
        (true, false) if narrow => Precision {
            compute: Number::Bf16,
            gradients: Number::Bf16,
            master: true,
            ..Precision::FP32
        },
        (true, false) => Precision {
            compute: Number::Bf16,
            gradients: Number::Fp32,
            master: true,
            ..Precision::FP32
        },
        (false, true) => {
            let gradients = if wide { Number::Fp32 } else { Number::Fp16 };
            Precision { compute: Number::Fp16, gradients, master: true, ..Precision::FP32 }
        }
        (false, false) => Precision::FP32,
    };
    Ok(Precision { fp8_products, ..precision })
}

/// ZeRO stage, and bytes of gradients that share a collective, on `replicas` replicas.
fn replication(
    arguments: &Arguments,
    replicas: usize,
    tp: usize,
    precision: Precision,
) -> Result<(u8, usize), ExchangeError> {
    let sharded = arguments.has("use-distributed-optimizer");
    let strategy = arguments.text("data-parallel-sharding-strategy")?;
    let zero = if arguments.has("use-megatron-fsdp") {
        match strategy.unwrap_or("optim_grads_params") {
            "no_shard" => 0,
            "optim" => 1,
            "optim_grads" => 2,
            "optim_grads_params" => 3,
            other => {
                let rule = "there are no_shard, optim, optim_grads and optim_grads_params";
                return arguments.error("data-parallel-sharding-strategy", other, rule);
            }
        }
    } else if arguments.has("use-torch-fsdp2") {
        if arguments.has("torch-fsdp2-no-reshard-after-forward") { 2 } else { 3 }
    } else {
        u8::from(sharded)
    };
    let overlaps = arguments.has("overlap-grad-reduce");
    let elements = arguments.size("ddp-bucket-size")?;
    let bucket_bytes = match overlaps {
        _ if replicas == 1 || zero > 1 => Sync::default().bucket_bytes,
        false => ONE_BUCKET,
        true => {
            let elements = elements.unwrap_or(40_000_000.max(1_000_000 * replicas));
            elements.saturating_mul(tp).saturating_mul(precision.gradients.bytes())
        }
    };
    Ok((zero, bucket_bytes))
}

/// What Megatron-FSDP shards where it is not told, which changed.
fn sharding_note(arguments: &Arguments) -> Result<Option<String>, ExchangeError> {
    let is_told = arguments.text("data-parallel-sharding-strategy")?.is_some();
    let is_usual = arguments.has("use-megatron-fsdp") && !is_told;
    Ok(is_usual.then(|| {
        "--use-megatron-fsdp without --data-parallel-sharding-strategy is optim_grads_params, ZeRO 3, as from \
         Megatron-LM core_v0.18.0 on; before that it was no_shard"
            .into()
    }))
}

/// Where weights are gathered beside the next step's forward passes, as they are in plans under ZeRO 3 only.
fn gathers_note(arguments: &Arguments, zero: u8) -> Result<Option<String>, ExchangeError> {
    let name = "overlap-param-gather";
    if !arguments.has(name) {
        return Ok(None);
    }
    let shards = ["use-distributed-optimizer", "use-megatron-fsdp"];
    let shards = shards.into_iter().filter(|it| arguments.has(it)).count() > 0;
    if !shards || !arguments.has("overlap-grad-reduce") {
        let rule = "Megatron-LM takes it with --use-distributed-optimizer or --use-megatron-fsdp, and with \
                    --overlap-grad-reduce";
        return arguments.error(name, "given", rule);
    }
    Ok((zero < 3).then(|| {
        format!(
            "weights are gathered beside the next step's forward passes there (--{name}), and behind the update in \
             the plan"
        )
    }))
}

/// Groups of replicas that shard among themselves.
fn groups(arguments: &Arguments, dp: usize, zero: u8) -> Result<usize, ExchangeError> {
    let name = "num-distributed-optimizer-instances";
    let groups = arguments.size(name)?.unwrap_or(1);
    if let Some(strategy) = arguments.text("outer-dp-sharding-strategy")?
        && strategy != "no_shard"
        && groups > 1
    {
        let rule = "instances are replicas of each other: no_shard";
        return arguments.error("outer-dp-sharding-strategy", strategy, rule);
    }
    match groups {
        _ if zero == 0 => Ok(1),
        groups if dp.is_multiple_of(groups) => Ok(groups),
        groups => arguments.error(name, groups, format!("it divides the {dp} replicas")),
    }
}

/// Whether products are in 8 bits.
fn fp8(arguments: &Arguments) -> Result<bool, ExchangeError> {
    arguments.text("fp8-recipe")?;
    match arguments.text("fp8-format")? {
        None => Ok(false),
        Some("hybrid" | "e4m3") => Ok(true),
        Some(other) => arguments.error("fp8-format", other, "there are hybrid and e4m3"),
    }
}

/// A note where numbers in 8 bits have other scales than in a plan.
fn scales(arguments: &Arguments) -> Result<Option<String>, ExchangeError> {
    let recipe = arguments.text("fp8-recipe")?.unwrap_or("delayed");
    match recipe {
        _ if !arguments.has("fp8-format") => Ok(None),
        "tensorwise" => Ok(None),
        "delayed" | "mxfp8" | "blockwise" => Ok(Some(format!(
            "scales of numbers in 8 bits are found otherwise there (--fp8-recipe {recipe}); in a plan they are \
             those of the tensor that is cast"
        ))),
        other => {
            let rule = "there are tensorwise, delayed, mxfp8 and blockwise";
            arguments.error("fp8-recipe", other, rule)
        }
    }
}

fn optimizer(arguments: &Arguments) -> Result<Optimizer, ExchangeError> {
    let real =
        |name: &str, usual: f64| Ok::<f64, ExchangeError>(arguments.number(name)?.unwrap_or(usual));
    let weight_decay = real("weight-decay", 0.01)?;
    match arguments.text("optimizer")?.unwrap_or("adam") {
        "adam" => Ok(Optimizer::Adamw {
            beta1: real("adam-beta1", 0.9)?,
            beta2: real("adam-beta2", 0.999)?,
            epsilon: real("adam-eps", 1e-8)?,
            weight_decay,
        }),
        "sgd" => {
            let momentum = real("sgd-momentum", 0.9)?;
            Ok(Optimizer::Sgd { momentum, weight_decay, reference_batch: None })
        }
        other => arguments.error("optimizer", other, "adam and sgd are known here"),
    }
}

/// The first block of each stage, then the number of blocks.
fn cuts(arguments: &Arguments, recipe: &Recipe) -> Result<Vec<usize>, ExchangeError> {
    let layers = recipe.model.layers;
    if let Some(layout) = arguments.text("pipeline-model-parallel-layout")? {
        return match cuts_of_layout(layout, layers) {
            Ok(cuts) => Ok(cuts),
            Err(rule) => arguments.error("pipeline-model-parallel-layout", layout, rule),
        };
    }
    let first = arguments.size("decoder-first-pipeline-num-layers")?;
    let last = arguments.size("decoder-last-pipeline-num-layers")?;
    let pp = recipe.pp;
    let named = usize::from(first.is_some()) + usize::from(last.is_some());
    let left = layers.checked_sub(first.unwrap_or(0).saturating_add(last.unwrap_or(0)));
    let others = pp.saturating_sub(named);
    let each = match left {
        Some(0) if others == 0 => 0,
        Some(left) if others > 0 && left.is_multiple_of(others) => left / others,
        _ => {
            let rule = format!("{layers} layers are cut evenly into what the stages left over get");
            return arguments.error("pipeline-model-parallel-size", pp, rule);
        }
    };
    let on_rank = |rank: usize| match rank {
        0 if first.is_some() => first.unwrap_or(each),
        rank if rank + 1 == pp && last.is_some() => last.unwrap_or(each),
        _ => each,
    };
    let chunks = match arguments.size("num-layers-per-virtual-pipeline-stage")? {
        Some(per) if each.is_multiple_of(per) && named == 0 => each / per,
        Some(per) => {
            let rule = format!("it divides the {each} layers of each rank");
            return arguments.error("num-layers-per-virtual-pipeline-stage", per, rule);
        }
        None => arguments.size("num-virtual-stages-per-pipeline-rank")?.unwrap_or(1),
    };
    if let Some(rank) = (0..pp).find(|&rank| !on_rank(rank).is_multiple_of(chunks)) {
        let rule = format!("rank {rank} has {} layers, which it divides", on_rank(rank));
        return arguments.error("num-virtual-stages-per-pipeline-rank", chunks, rule);
    }
    let mut cuts = vec![0];
    let mut next = 1;
    for stage in 0..pp * chunks {
        next += on_rank(stage % pp) / chunks;
        cuts.push(next);
    }
    // The last stage has the head, too.
    if let Some(end) = cuts.last_mut() {
        *end += 1;
    }
    Ok(cuts)
}

/// Without a word of it Transformer Engine takes the fastest kernel that it has, and Megatron's own modules
/// separate ones.
fn attention(arguments: &Arguments) -> Result<AttentionKind, ExchangeError> {
    let flash = arguments.has("use-flash-attn");
    let own = arguments.text("transformer-impl")? == Some("local");
    match arguments.text("attention-backend")? {
        Some("flash" | "fused") => Ok(AttentionKind::Fused),
        Some("unfused" | "local") => Ok(AttentionKind::Unfused),
        None | Some("auto") if own && !flash => Ok(AttentionKind::Unfused),
        None | Some("auto") => Ok(AttentionKind::Fused),
        Some(other) => {
            let rule = "there are flash, fused, unfused, local and auto";
            arguments.error("attention-backend", other, rule)
        }
    }
}

fn recompute(arguments: &Arguments, recipe: &Recipe) -> Result<Recompute, ExchangeError> {
    let granularity = arguments.text("recompute-granularity")?;
    let selective = arguments.has("recompute-activations") || granularity == Some("selective");
    if selective {
        return match arguments.text("recompute-modules")? {
            None | Some("core_attn") => Ok(Recompute::Selective),
            Some(other) => {
                let rule = "what plans compute twice selectively is core_attn";
                arguments.error("recompute-modules", other, rule)
            }
        };
    }
    match granularity {
        None => Ok(Recompute::None),
        Some("full") => {
            let method = arguments.text("recompute-method")?.unwrap_or("none");
            let run = arguments.size("recompute-num-layers")?.unwrap_or(1);
            let lengths = recipe.stages.iter().map(|stage| recipe.layers(stage).len());
            let whole_stages = lengths.into_iter().all(|length| length == run);
            match (method, run) {
                ("uniform", 1) => Ok(Recompute::Block),
                ("uniform", _) if whole_stages => Ok(Recompute::Stage),
                ("block", _) if recipe.stages.iter().all(|it| recipe.layers(it).len() <= run) => {
                    Ok(Recompute::Block)
                }
                _ => {
                    let rule = "plans compute all layers twice, each by itself (uniform, 1 layer) or a \
                                stage at a time";
                    let value = format!("{method} with {run} layers");
                    arguments.error("recompute-method", value, rule)
                }
            }
        }
        Some(other) => {
            arguments.error("recompute-granularity", other, "there are selective and full")
        }
    }
}
