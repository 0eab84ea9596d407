//! Llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases (Touvron et al. 2023,
//! arXiv 2302.13971, section 2.2; Grattafiori et al. 2024, arXiv 2407.21783, section 3.2). With biases of
//! queries, keys and values it is a Qwen2 (Yang et al. 2024, arXiv 2407.10671, section 2.2), with norms of
//! queries and keys a Qwen3 (Yang et al. 2025, arXiv 2505.09388, section 2), with windows of attention a
//! Mistral (Jiang et al. 2023, arXiv 2310.06825, section 2), with GeGLU, scaled embeddings and gains around zero
//! a Gemma (Gemma Team 2024, arXiv 2403.08295, section 2), with norms behind attention and feed-forward too and
//! windows in some layers a Gemma 2 or 3 (arXiv 2408.00118, section 2; arXiv 2503.19786, section 2).

use serde::{Deserialize, Serialize};

use super::RopeScaling;
use super::{
    default_epsilon, default_init_std, require, require_layers, require_padded, require_real,
    require_sizes,
};
use crate::builder::Attention;
use crate::op::{Gate, RotaryScaling, Visibility};
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
    /// How many rows tables for the vocabulary have, where that is more, so that more widths divide it. Those
    /// behind the vocabulary are of no token: loss and gradients are the same as without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padded_vocab: Option<usize>,
    /// Base of the rotary frequencies.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// Long-context scaling of the rotary frequencies.
    #[serde(default)]
    pub rope_scaling: Option<RopeScaling>,
    /// How many positions attention sees, its own among them, in the layers one after another and from the
    /// first again; 0 is all earlier ones. All layers see all earlier ones if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<usize>,
    /// Base of the rotary frequencies in layers with a window, where they are not scaled; as in the others if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_rope_theta: Option<f32>,
    /// What attention's scores are divided by the square root of; the width of a head if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_scalar: Option<usize>,
    /// What attention's scores are bounded by before the softmax: c tanh(s / c) takes the place of s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_cap: Option<f32>,
    /// What logits are bounded by in the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_cap: Option<f32>,
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
    /// Whether what attention and feed-forward give is normalised before it is added, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub post_norms: bool,
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

    /// How many positions attention sees in a layer; none where it sees all earlier ones.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let windows = self.windows.len().max(1);
        self.windows.get(layer % windows).copied().filter(|&window| window > 0)
    }

    /// The windows by which they are written: none where no layer has one, and the fewest that say the same of
    /// all layers.
    pub(crate) fn shortest_windows(&self) -> Vec<usize> {
        let all: Vec<usize> =
            (0..self.layers).map(|layer| self.window(layer).unwrap_or(0)).collect();
        if all.iter().all(|&window| window == 0) {
            return vec![];
        }
        let repeats = |&length: &usize| (length..all.len()).all(|it| all[it] == all[it - length]);
        let length = (1..=all.len()).find(repeats).unwrap_or(all.len());
        all[..length].to_vec()
    }

    /// The words by which it is no Llama of its papers, but what other models have changed in it.
    pub fn changes(&self) -> Vec<&'static str> {
        let LlamaConfig { qkv_bias, qk_norm, post_norms, .. } = *self;
        let LlamaConfig { geglu, scaled_embedding, zero_centered_gain, .. } = *self;
        let linear = matches!(self.rope_scaling, Some(RopeScaling::Linear(_)));
        let words = [
            ("rope_scaling=[factor]", linear),
            ("windows", !self.windows.is_empty()),
            ("window_rope_theta", self.window_rope_theta.is_some()),
            ("attention_scalar", self.attention_scalar.is_some()),
            ("attention_cap", self.attention_cap.is_some()),
            ("logit_cap", self.logit_cap.is_some()),
            ("qkv_bias", qkv_bias),
            ("qk_norm", qk_norm),
            ("post_norms", post_norms),
            ("geglu", geglu),
            ("scaled_embedding", scaled_embedding),
            ("zero_centered_gain", zero_centered_gain),
        ];
        words.into_iter().filter_map(|(word, is_so)| is_so.then_some(word)).collect()
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
        require_padded(name, self.vocab, self.padded_vocab)?;
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
        let scaling = self.rope_scaling.map(RotaryScaling::from);
        if let Some(given) = self.rope_scaling {
            require(
                scaling.is_some_and(|scaling| scaling.is_possible()),
                name,
                "rope_scaling",
                given,
                RotaryScaling::RULE,
            )?;
        }
        require(
            self.window_rope_theta.is_none()
                || (0..self.layers).any(|layer| self.window(layer).is_some()),
            name,
            "window_rope_theta",
            self.window_rope_theta.unwrap_or_default(),
            "it is of layers with a window, of which there are none",
        )?;
        for (key, value) in [
            ("window_rope_theta", self.window_rope_theta),
            ("attention_cap", self.attention_cap),
            ("logit_cap", self.logit_cap),
        ] {
            value.map_or(Ok(()), |value| require_real(name, key, value))?;
        }
        if let Some(scalar) = self.attention_scalar {
            require_sizes(name, &[("attention_scalar", scalar)])?;
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
        let vocab = net.dim("vocab", self.padded_vocab.unwrap_or(self.vocab))?;
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
            let window = self.window(layer);
            let (theta, scaling) = match (window, self.window_rope_theta) {
                (Some(_), Some(theta)) => (theta, None),
                _ => (self.rope_theta, scaling),
            };
            let q = net.rotary(&at("attention.query.rotary"), q, theta, scaling, None)?;
            let k = net.rotary(&at("attention.key.rotary"), k, theta, scaling, None)?;
            let attention = Attention {
                visibility: match window {
                    Some(positions) => Visibility::Window { positions },
                    None => Visibility::Causal,
                },
                scale: self.attention_scalar.map(|scalar| 1.0 / (scalar as f32).sqrt()),
                soft_cap: self.attention_cap,
                dropout: 0.0,
            };
            let context = net.attention(&at("attention"), q, k, v, keys, attention)?;
            let axes: Vec<_> = query_axes[1..].iter().copied().chain([model]).collect();
            let name = at("attention.output");
            let w = net.parameter(&format!("{name}.weight"), &axes, axes.len() - 1, residual)?;
            let mut out = net.contract(&name, context, w, None)?;
            if self.post_norms {
                let name = at("attention.post_norm");
                let gain = net.parameter(&format!("{name}.gain"), &[model], 0, gains)?;
                out = net.rms_norm(&name, out, gain, offset, epsilon)?;
            }
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
            let mut down = net.contract(&at("ffn.down"), activated, w, None)?;
            if self.post_norms {
                let name = at("ffn.post_norm");
                let gain = net.parameter(&format!("{name}.gain"), &[model], 0, gains)?;
                down = net.rms_norm(&name, down, gain, offset, epsilon)?;
            }
            x = net.add(&at("ffn.residual"), x, down)?;
        }

        net.block("head");
        let gain = net.parameter("final_norm.gain", &[model], 0, gains)?;
        let normed = net.rms_norm("final_norm", x, gain, offset, epsilon)?;
        let w = match self.tied {
            true => table,
            false => net.parameter("head.weight", &[vocab, model], 1, normal)?,
        };
        let mut logits = net.contract("head", normed, w, None)?;
        if let Some(cap) = self.logit_cap {
            logits = net.soft_cap("head.cap", logits, cap)?;
        }
        if self.separate_loss {
            net.block("loss");
        }
        let loss = net.padded_cross_entropy("loss", logits, targets, Some(self.vocab))?;
        net.finish(loss)
    }
}
