//! Llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases (Touvron et al. 2023,
//! arXiv 2302.13971, section 2.2; Grattafiori et al. 2024, arXiv 2407.21783, section 3.2). With biases of
//! queries, keys and values it is a Qwen2 (Yang et al. 2024, arXiv 2407.10671, section 2.2), with norms of
//! queries and keys a Qwen3 (Yang et al. 2025, arXiv 2505.09388, section 2), with GeGLU, scaled embeddings
//! and gains around zero a Gemma (Gemma Team 2024, arXiv 2403.08295, section 2).

use serde::{Deserialize, Serialize};

use super::{
    default_epsilon, default_init_std, require, require_layers, require_real, require_sizes,
};
use crate::op::{Gate, RotaryScaling};
use crate::{Graph, GraphBuilder, GraphError, Init};

/// A Llama.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Model width.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`. As many as `heads` if absent.
    #[serde(default)]
    pub kv_heads: Option<usize>,
    /// Width of one head; `hidden / heads` if absent.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Sequence length.
    pub seq: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Base of the rotary frequencies.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// Long-context scaling of the rotary frequencies: factor, low and high frequency factor, and the
    /// original number of positions.
    #[serde(default)]
    pub rope_scaling: Option<(f32, f32, f32, u32)>,
    /// Added to the mean square in norms.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// Whether the head shares the token embedding's weights.
    #[serde(default)]
    pub tied: bool,
    /// Whether the loss is a block of its own behind the head, so that a stage may hold nothing else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub separate_loss: bool,
    /// Whether queries, keys and values have a bias.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qkv_bias: bool,
    /// Whether each head of the queries and of the keys is normalised, by root mean square with a gain that
    /// all heads share, before it is rotated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub qk_norm: bool,
    /// Whether the gate of the feed-forward layer is activated by GELU, and not by SiLU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub geglu: bool,
    /// Whether what is read of the token embedding is multiplied by the square root of the width.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled_embedding: bool,
    /// Whether norms multiply by 1 + gain, so that gains begin with, and decay to, zero.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero_centered_gain: bool,
    /// Standard deviation of initial weights; residual projections have less with depth.
    #[serde(default = "default_init_std")]
    pub init_std: f32,
}

fn default_theta() -> f32 {
    10_000.0
}

impl LlamaConfig {
    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden / self.heads.max(1))
    }

    /// Whether it is the Llama of its papers, without what other models have changed in it.
    pub fn is_plain(&self) -> bool {
        let LlamaConfig { qkv_bias, qk_norm, geglu, scaled_embedding, zero_centered_gain, .. } =
            *self;
        !(qkv_bias || qk_norm || geglu || scaled_embedding || zero_centered_gain)
    }

    /// The model as a graph. Query weights are `[model, heads, group, head_dim]` where `heads` counts
    /// key-value heads and `group` the queries that share one, so that splitting `heads` splits both.
    ///
    /// # Errors
    /// If a size is zero or absurd, heads do not divide, a head is odd, or a real number is not above 0.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        let kv_heads = self.kv_heads();
        require_layers(name, self.layers)?;
        require_sizes(
            name,
            &[
                ("hidden", self.hidden),
                ("heads", self.heads),
                ("kv_heads", kv_heads),
                ("ffn", self.ffn),
                ("seq", self.seq),
                ("vocab", self.vocab),
            ],
        )?;
        require(
            self.heads.is_multiple_of(kv_heads),
            name,
            "kv_heads",
            kv_heads,
            &format!("key-value heads must divide heads = {}", self.heads),
        )?;
        require(
            self.head_dim.is_some() || self.hidden.is_multiple_of(self.heads),
            name,
            "heads",
            self.heads,
            &format!("heads must divide hidden = {} unless head_dim is given", self.hidden),
        )?;
        let head_size = self.head_dim();
        require(
            head_size > 0 && head_size.is_multiple_of(2),
            name,
            "head_dim",
            head_size,
            "rotary positions rotate pairs, so the width of a head is even",
        )?;
        require_real(name, "rope_theta", self.rope_theta)?;
        require_real(name, "norm_epsilon", self.norm_epsilon)?;
        require_real(name, "init_std", self.init_std)?;
        let scaling = self.rope_scaling.map(|(factor, low, high, original)| RotaryScaling {
            factor,
            low_frequency_factor: low,
            high_frequency_factor: high,
            original_positions: original,
        });
        if let Some((factor, low, high, original)) = self.rope_scaling {
            require(
                scaling.is_some_and(|scaling| scaling.is_possible()),
                name,
                "rope_scaling",
                format!("[{factor}, {low}, {high}, {original}]"),
                RotaryScaling::RULE,
            )?;
        }
        let mut net = GraphBuilder::new(name);
        let seq = net.dim("seq", self.seq)?;
        let keys = net.dim("keys", self.seq)?;
        let model = net.dim("model", self.hidden)?;
        let heads = net.dim("heads", kv_heads)?;
        let group = match self.heads / kv_heads {
            1 => None,
            queries => Some(net.dim("group", queries)?),
        };
        let head_dim = net.dim("head_dim", head_size)?;
        let ffn = net.dim("ffn", self.ffn)?;
        let vocab = net.dim("vocab", self.vocab)?;
        let normal = Init::Normal { std: self.init_std };
        let residual = Init::Normal { std: self.init_std / (2.0 * self.layers as f32).sqrt() };
        let zeros = Init::Constant(0.0);
        let epsilon = self.norm_epsilon;
        let offset = if self.zero_centered_gain { 1.0 } else { 0.0 };
        let gains = Init::Constant(1.0 - offset);
        net.block("embedding");
        let tokens = net.targets("tokens", &[seq])?;
        let targets = net.targets("targets", &[seq])?;
        let table = net.parameter("embedding.token", &[vocab, model], 1, normal)?;
        let mut x = net.embed("embedding.tokens", tokens, table)?;
        if self.scaled_embedding {
            x = net.scale("embedding.scaled", x, (self.hidden as f64).sqrt() as f32)?;
        }

        for layer in 0..self.layers {
            let block = format!("block.{layer}");
            net.block(&block);
            let at = |suffix: &str| format!("{block}.{suffix}");

            let gain = net.parameter(&at("attention_norm.gain"), &[model], 0, gains)?;
            let normed = net.rms_norm(&at("attention_norm"), x, gain, offset, epsilon)?;
            let key_axes = vec![model, heads, head_dim];
            let query_axes: Vec<_> =
                [model, heads].into_iter().chain(group).chain([head_dim]).collect();
            let mut project = |which: &str, axes: &[_]| {
                let name = at(&format!("attention.{which}"));
                let w = net.parameter(&format!("{name}.weight"), axes, 1, normal)?;
                let bias = match self.qkv_bias {
                    true => Some(net.parameter(&format!("{name}.bias"), &axes[1..], 0, zeros)?),
                    false => None,
                };
                net.contract(&name, normed, w, bias)
            };
            let mut q = project("query", &query_axes)?;
            let mut k = project("key", &key_axes)?;
            let v = project("value", &key_axes)?;
            if self.qk_norm {
                for (which, heads) in [("query", &mut q), ("key", &mut k)] {
                    let name = at(&format!("attention.{which}_norm"));
                    let gain = net.parameter(&format!("{name}.gain"), &[head_dim], 0, gains)?;
                    *heads = net.rms_norm(&name, *heads, gain, offset, epsilon)?;
                }
            }
            let q = net.rotary(&at("attention.query.rotary"), q, self.rope_theta, scaling)?;
            let k = net.rotary(&at("attention.key.rotary"), k, self.rope_theta, scaling)?;
            let context = net.attention(&at("attention"), q, k, v, keys, true, 0.0)?;
            let axes: Vec<_> = query_axes[1..].iter().copied().chain([model]).collect();
            let name = at("attention.output");
            let w = net.parameter(&format!("{name}.weight"), &axes, axes.len() - 1, residual)?;
            let out = net.contract(&name, context, w, None)?;
            x = net.add(&at("attention.residual"), x, out)?;

            let gain = net.parameter(&at("ffn_norm.gain"), &[model], 0, gains)?;
            let normed = net.rms_norm(&at("ffn_norm"), x, gain, offset, epsilon)?;
            let mut widen = |which: &str| {
                let name = at(&format!("ffn.{which}"));
                let w = net.parameter(&format!("{name}.weight"), &[model, ffn], 1, normal)?;
                net.contract(&name, normed, w, None)
            };
            let (gate, up) = (widen("gate")?, widen("up")?);
            let (name, f) = match self.geglu {
                true => ("ffn.geglu", Gate::Gelu),
                false => ("ffn.swiglu", Gate::Silu),
            };
            let activated = net.glu(&at(name), f, gate, up)?;
            let w = net.parameter(&at("ffn.down.weight"), &[ffn, model], 1, residual)?;
            let down = net.contract(&at("ffn.down"), activated, w, None)?;
            x = net.add(&at("ffn.residual"), x, down)?;
        }

        net.block("head");
        let gain = net.parameter("final_norm.gain", &[model], 0, gains)?;
        let normed = net.rms_norm("final_norm", x, gain, offset, epsilon)?;
        let w = match self.tied {
            true => table,
            false => net.parameter("head.weight", &[vocab, model], 1, normal)?,
        };
        let logits = net.contract("head", normed, w, None)?;
        if self.separate_loss {
            net.block("loss");
        }
        let loss = net.cross_entropy("loss", logits, targets)?;
        net.finish(loss)
    }
}
