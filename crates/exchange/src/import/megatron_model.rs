//! The model that Megatron-LM's arguments describe.

use super::arguments::Arguments;
use crate::ExchangeError;
use crate::transformer::{Kind, RotaryScaling, Transformer};

/// The model that the arguments describe, with its vocabulary padded for tensor parallelism of width `tp`.
pub(super) fn described(arguments: &Arguments, tp: usize) -> Result<Transformer, ExchangeError> {
    let needed = |name: &str| match arguments.size(name)? {
        Some(size) => Ok(size),
        None => arguments.missing(name, "a number from 1 up is needed, or --model"),
    };
    let real =
        |name: &str, usual: f32| Ok::<f32, ExchangeError>(arguments.number(name)?.unwrap_or(usual));
    // What is there and wrong comes before what is not there.
    for name in ["num-layers", "hidden-size", "num-attention-heads", "seq-length"] {
        arguments.size(name)?;
    }
    let layers = needed("num-layers")?;
    let (hidden, heads) = (needed("hidden-size")?, needed("num-attention-heads")?);
    let gated = arguments.has("swiglu");
    let ffn = match arguments.size("ffn-hidden-size")? {
        Some(ffn) => ffn,
        // Two thirds of four times the width, in steps of 64.
        None if gated => (hidden.saturating_mul(8) / 3 / 64) * 64,
        None => hidden.saturating_mul(4),
    };
    let group = arguments.has("group-query-attention");
    let kv_heads = arguments.size("num-query-groups")?.filter(|_| group).unwrap_or(heads);
    let head_dim = arguments.size("kv-channels")?.unwrap_or(hidden / heads);
    Ok(Transformer {
        kind: kind(arguments, gated)?,
        changes: vec![],
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn,
        seq: needed("seq-length")?,
        vocab: vocabulary(arguments, tp)?,
        padding: 0,
        tied: !arguments.has("untie-embeddings-and-output-weights"),
        norm_epsilon: real("norm-epsilon", 1e-5)?,
        init_std: real("init-method-std", 0.02)?,
    })
}

/// What a Llama may have besides, as those of Qwen do: biases of queries, keys and values, and norms of queries and
/// keys.
const QWEN: [&str; 2] = ["add-qkv-bias", "qk-layernorm"];

fn kind(arguments: &Arguments, gated: bool) -> Result<Kind, ExchangeError> {
    let real =
        |name: &str, usual: f32| Ok::<f32, ExchangeError>(arguments.number(name)?.unwrap_or(usual));
    let dropouts = [real("attention-dropout", 0.1)?, real("hidden-dropout", 0.1)?];
    let positions = arguments.text("position-embedding-type")?.unwrap_or("learned_absolute");
    let rotary = positions == "rope" || arguments.has("use-rotary-position-embeddings");
    let root = arguments.text("normalization")? == Some("RMSNorm");
    let unbiased = arguments.has("disable-bias-linear");
    let positions_max = arguments.size("max-position-embeddings")?;
    if arguments.number::<f64>("rotary-percent")?.is_some_and(|share| share != 1.0) {
        let rule = "all of a head is rotated: 1";
        return arguments.error("rotary-percent", "another share", rule);
    }
    match [rotary, root, gated, unbiased] {
        [true, true, true, true] => {
            if dropouts != [0.0; 2] {
                let given = ["attention-dropout", "hidden-dropout"].into_iter().zip(dropouts);
                let (name, value) = given.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
                let usual = if arguments.has(name) {
                    ""
                } else {
                    ", as it is where the script does not say it"
                };
                let value = format!("{value}{usual}");
                let rule = "a Llama has no dropout: --attention-dropout 0 --hidden-dropout 0";
                return arguments.error(name, value, rule);
            }
            let factor = real("rope-scaling-factor", 8.0)?;
            let usual = RotaryScaling { factor, low: 1.0, high: 4.0, original: 8192 };
            let scaling = arguments.has("use-rope-scaling").then_some(usual);
            let theta = real("rotary-base", 10_000.0)?;
            let [qkv_bias, qk_norm] = QWEN.map(|name| arguments.has(name));
            Ok(Kind::Llama { theta, scaling, qkv_bias, qk_norm })
        }
        [false, false, false, false] if positions == "learned_absolute" => {
            if let Some(name) = QWEN.into_iter().find(|name| arguments.has(name)) {
                return arguments.error(name, "given", "a Llama may have that, a GPT not");
            }
            if dropouts[0] != dropouts[1] {
                let rule = "--attention-dropout and --hidden-dropout are one here";
                return arguments.error("hidden-dropout", format!("{dropouts:?}"), rule);
            }
            if let Some(positions) = positions_max
                && arguments.size("seq-length")?.is_some_and(|seq| seq != positions)
            {
                let rule = "there are as many learned positions as --seq-length";
                return arguments.error("max-position-embeddings", positions, rule);
            }
            Ok(Kind::Gpt { dropout: dropouts[0] })
        }
        _ => {
            let rule = "a GPT (learned positions, LayerNorm, GELU, biases) and a Llama (rope, RMSNorm, \
                        --swiglu, --disable-bias-linear) are known, not a mixture; or name a --model";
            let value = format!(
                "{positions}, {}, {}, {}",
                if root { "RMSNorm" } else { "LayerNorm" },
                if gated { "swiglu" } else { "gelu" },
                if unbiased { "no biases" } else { "biases" }
            );
            arguments.error("position-embedding-type", value, rule)
        }
    }
}

/// The padded vocabulary.
fn vocabulary(arguments: &Arguments, tp: usize) -> Result<usize, ExchangeError> {
    if let Some(padded) = arguments.size("padded-vocab-size")? {
        return Ok(padded);
    }
    let step = arguments.size("make-vocab-size-divisible-by")?.unwrap_or(128).saturating_mul(tp);
    match arguments.size("vocab-size")? {
        Some(size) => Ok(size.div_ceil(step).saturating_mul(step)),
        None => {
            let rule = "the tokenizer knows it, and not this file: add --vocab-size there, or name a --model";
            arguments.error("vocab-size", "nothing", rule)
        }
    }
}

/// Holds what is said of the sizes of a model to those of the one that was named.
pub(super) fn require_sizes_of(
    arguments: &Arguments,
    model: &Transformer,
) -> Result<(), ExchangeError> {
    for (name, size) in [
        ("num-layers", model.layers),
        ("hidden-size", model.hidden),
        ("num-attention-heads", model.heads),
        ("ffn-hidden-size", model.ffn),
        ("seq-length", model.seq),
    ] {
        if let Some(other) = arguments.size(name)?.filter(|&other| other != size) {
            let cure = match name {
                "seq-length" => format!("; with --seq {other} it has as many"),
                _ => String::new(),
            };
            let rule = format!("the model of --model has {size}{cure}");
            return arguments.error(name, other, rule);
        }
    }
    if let Kind::Llama { qkv_bias, qk_norm, .. } = model.kind {
        for (name, has) in QWEN.into_iter().zip([qkv_bias, qk_norm]) {
            match (arguments.has(name), has) {
                (true, false) => {
                    return arguments.error(name, "given", "the model of --model has none");
                }
                (false, true) => return arguments.missing(name, "the model of --model has it"),
                _ => {}
            }
        }
    }
    // It is padded as the named model has it.
    for read in ["vocab-size", "padded-vocab-size", "make-vocab-size-divisible-by"] {
        arguments.has(read);
    }
    Ok(())
}
