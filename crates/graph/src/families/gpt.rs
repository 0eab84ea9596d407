//! GPT: pre-norm decoder with learned positions (Radford et al. 2019, "Language Models are
//! Unsupervised Multitask Learners", section 2.3). With rotary positions of part of a head, attention and
//! feed-forward side by side and a head with a bias it is a Phi (Li et al. 2023, arXiv 2309.05463, section 2.3).

use serde::{Deserialize, Serialize};

use super::{
    default_epsilon, default_init_std, require, require_dropout, require_layers, require_padded,
    require_real, require_sizes,
};
use crate::builder::Attention;
use crate::op::Activation;
use crate::{DimId, Graph, GraphBuilder, GraphError, Init, ValueId};

/// A GPT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Model width.
    pub hidden: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
    /// Sequence length, and number of learned positions, if there are any.
    pub seq: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// How many rows tables for the vocabulary have, where that is more, so that more widths divide it. Those
    /// behind the vocabulary are of no token: loss and gradients are the same as without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padded_vocab: Option<usize>,
    /// Width of the feed-forward layer; four times `hidden` if absent.
    #[serde(default)]
    pub ffn: Option<usize>,
    /// Dropout probability, everywhere the original has dropout.
    #[serde(default)]
    pub dropout: f32,
    /// That of attention's probabilities, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_dropout: Option<f32>,
    /// That of embeddings, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_dropout: Option<f32>,
    /// How many elements of each head of queries and keys are rotated by position, the first ones, in place of
    /// learned positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary: Option<usize>,
    /// Base of the rotary frequencies, where it is not 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f32>,
    /// Whether feed-forward reads what attention reads, beside it, and not its result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
    /// Whether the head has a bias.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub head_bias: bool,
    /// Whether the head shares the token embedding's weights.
    #[serde(default)]
    pub tied: bool,
    /// Whether the loss is a block of its own behind the head, so that a stage may hold nothing else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub separate_loss: bool,
    /// Added to the variance in norms.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// Standard deviation of initial weights; residual projections have less with depth.
    #[serde(default = "default_init_std")]
    pub init_std: f32,
}

impl GptConfig {
    /// Width of the feed-forward layer.
    pub fn ffn(&self) -> usize {
        self.ffn.unwrap_or(self.hidden.saturating_mul(4))
    }

    /// Dropout probability of attention's probabilities.
    pub fn attention_dropout(&self) -> f32 {
        self.attention_dropout.unwrap_or(self.dropout)
    }

    /// Dropout probability of embeddings.
    pub fn embedding_dropout(&self) -> f32 {
        self.embedding_dropout.unwrap_or(self.dropout)
    }

    /// Base of the rotary frequencies.
    pub fn rope_theta(&self) -> f32 {
        self.rope_theta.unwrap_or(10_000.0)
    }

    /// The words by which it is no GPT of its paper, but what other models have changed in it.
    pub fn changes(&self) -> Vec<&'static str> {
        let words = [
            ("attention_dropout", self.attention_dropout.is_some()),
            ("embedding_dropout", self.embedding_dropout.is_some()),
            ("rotary", self.rotary.is_some()),
            ("parallel", self.parallel),
            ("head_bias", self.head_bias),
        ];
        words.into_iter().filter_map(|(word, is_so)| is_so.then_some(word)).collect()
    }

    /// The model as a graph.
    ///
    /// # Errors
    /// If a size is zero or absurd, heads do not divide the width, more of a head or an odd number of elements is
    /// to be rotated, or a dropout is no probability.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        self.stack(name, |_, _, _, x| Ok(x))
    }

    /// The model as a graph, in which each block reads what `enter` makes of the result of the one
    /// before; `enter` is called within the block, with its number and the dimension of the width.
    pub(super) fn stack(
        &self,
        name: &str,
        mut enter: impl FnMut(&mut GraphBuilder, usize, DimId, ValueId) -> Result<ValueId, GraphError>,
    ) -> Result<Graph, GraphError> {
        require_layers(name, self.layers)?;
        require_sizes(
            name,
            &[
                ("hidden", self.hidden),
                ("heads", self.heads),
                ("seq", self.seq),
                ("vocab", self.vocab),
                ("ffn", self.ffn()),
            ],
        )?;
        require_padded(name, self.vocab, self.padded_vocab)?;
        require(
            self.hidden.is_multiple_of(self.heads),
            name,
            "heads",
            self.heads,
            &format!("heads must divide hidden = {}", self.hidden),
        )?;
        for (key, dropout) in [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout()),
            ("embedding_dropout", self.embedding_dropout()),
        ] {
            require_dropout(name, key, dropout)?;
        }
        let head_size = self.hidden / self.heads;
        if let Some(width) = self.rotary {
            require(
                (2..=head_size).contains(&width) && width.is_multiple_of(2),
                name,
                "rotary",
                width,
                &format!("an even number from 2 to the {head_size} of a head is needed"),
            )?;
        }
        if let Some(theta) = self.rope_theta {
            require_real(name, "rope_theta", theta)?;
            let rule = "it is of rotary positions, so rotary is needed too";
            require(self.rotary.is_some(), name, "rope_theta", theta, rule)?;
        }
        require_real(name, "norm_epsilon", self.norm_epsilon)?;
        require_real(name, "init_std", self.init_std)?;
        let mut net = GraphBuilder::new(name);
        let seq = net.dim("seq", self.seq)?;
        let keys = net.dim("keys", self.seq)?;
        let model = net.dim("model", self.hidden)?;
        let heads = net.dim("heads", self.heads)?;
        let head_dim = net.dim("head_dim", head_size)?;
        let ffn = net.dim("ffn", self.ffn())?;
        let vocab = net.dim("vocab", self.padded_vocab.unwrap_or(self.vocab))?;
        let normal = Init::Normal { std: self.init_std };
        // Residual projections shrink with depth (section 2.3).
        let residual = Init::Normal { std: self.init_std / (2.0 * self.layers as f32).sqrt() };
        let (zeros, ones) = (Init::Constant(0.0), Init::Constant(1.0));
        let epsilon = self.norm_epsilon;

        net.block("embedding");
        let tokens = net.targets("tokens", &[seq])?;
        let targets = net.targets("targets", &[seq])?;
        let table = net.parameter("embedding.token", &[vocab, model], 1, normal)?;
        let positions = match self.rotary {
            None => Some(net.parameter("embedding.position", &[seq, model], 1, normal)?),
            Some(_) => None,
        };
        let mut embedded = net.embed("embedding.tokens", tokens, table)?;
        if let Some(positions) = positions {
            embedded = net.add("embedding.sum", embedded, positions)?;
        }
        let mut x = net.dropout("embedding.dropout", embedded, self.embedding_dropout())?;

        for layer in 0..self.layers {
            let block = format!("block.{layer}");
            net.block(&block);
            x = enter(&mut net, layer, model, x)?;
            let at = |suffix: &str| format!("{block}.{suffix}");

            let gain = net.parameter(&at("attention_norm.gain"), &[model], 0, ones)?;
            let bias = net.parameter(&at("attention_norm.bias"), &[model], 0, zeros)?;
            let normed = net.layer_norm(&at("attention_norm"), x, gain, bias, epsilon)?;
            let mut project = |which: &str| {
                let name = at(&format!("attention.{which}"));
                let axes = [model, heads, head_dim];
                let w = net.parameter(&format!("{name}.weight"), &axes, 1, normal)?;
                let b = net.parameter(&format!("{name}.bias"), &axes[1..], 0, zeros)?;
                net.contract(&name, normed, w, Some(b))
            };
            let (mut q, mut k, v) = (project("query")?, project("key")?, project("value")?);
            if self.rotary.is_some() {
                for (which, heads) in [("query", &mut q), ("key", &mut k)] {
                    let name = at(&format!("attention.{which}.rotary"));
                    *heads = net.rotary(&name, *heads, self.rope_theta(), None, self.rotary)?;
                }
            }
            let name = at("attention");
            let attention = Attention { dropout: self.attention_dropout(), ..Attention::CAUSAL };
            let context = net.attention(&name, q, k, v, keys, attention)?;
            let axes = [heads, head_dim, model];
            let w = net.parameter(&at("attention.output.weight"), &axes, 2, residual)?;
            let b = net.parameter(&at("attention.output.bias"), &[model], 0, zeros)?;
            let out = net.contract(&at("attention.output"), context, w, None)?;
            x = net.bias_dropout_add(&at("attention.residual"), out, b, x, self.dropout)?;

            let normed = match self.parallel {
                true => normed,
                false => {
                    let gain = net.parameter(&at("ffn_norm.gain"), &[model], 0, ones)?;
                    let bias = net.parameter(&at("ffn_norm.bias"), &[model], 0, zeros)?;
                    net.layer_norm(&at("ffn_norm"), x, gain, bias, epsilon)?
                }
            };
            let w = net.parameter(&at("ffn.up.weight"), &[model, ffn], 1, normal)?;
            let b = net.parameter(&at("ffn.up.bias"), &[ffn], 0, zeros)?;
            let up = net.contract(&at("ffn.up"), normed, w, Some(b))?;
            let activated = net.pointwise(&at("ffn.gelu"), up, Activation::Gelu)?;
            let w = net.parameter(&at("ffn.down.weight"), &[ffn, model], 1, residual)?;
            let b = net.parameter(&at("ffn.down.bias"), &[model], 0, zeros)?;
            let down = net.contract(&at("ffn.down"), activated, w, None)?;
            x = net.bias_dropout_add(&at("ffn.residual"), down, b, x, self.dropout)?;
        }

        net.block("head");
        let gain = net.parameter("final_norm.gain", &[model], 0, ones)?;
        let bias = net.parameter("final_norm.bias", &[model], 0, zeros)?;
        let normed = net.layer_norm("final_norm", x, gain, bias, epsilon)?;
        let w = match self.tied {
            true => table,
            false => net.parameter("head.weight", &[vocab, model], 1, normal)?,
        };
        let bias = match self.head_bias {
            true => Some(net.parameter("head.bias", &[vocab], 0, zeros)?),
            false => None,
        };
        let logits = net.contract("head", normed, w, bias)?;
        if self.separate_loss {
            net.block("loss");
        }
        let loss = net.padded_cross_entropy("loss", logits, targets, Some(self.vocab))?;
        net.finish(loss)
    }
}
