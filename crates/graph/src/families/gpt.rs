//! GPT: pre-norm decoder with learned positions (Radford et al. 2019, "Language Models are
//! Unsupervised Multitask Learners", section 2.3).

use serde::{Deserialize, Serialize};

use super::{
    default_epsilon, default_init_std, require, require_dropout, require_layers, require_real,
    require_sizes,
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
    /// Sequence length, and number of learned positions.
    pub seq: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Width of the feed-forward layer; four times `hidden` if absent.
    #[serde(default)]
    pub ffn: Option<usize>,
    /// Dropout probability, everywhere the original has dropout.
    #[serde(default)]
    pub dropout: f32,
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

    /// The model as a graph.
    ///
    /// # Errors
    /// If a size is zero or absurd, heads do not divide the width, or the dropout is no probability.
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
        require(
            self.hidden.is_multiple_of(self.heads),
            name,
            "heads",
            self.heads,
            &format!("heads must divide hidden = {}", self.hidden),
        )?;
        require_dropout(name, self.dropout)?;
        require_real(name, "norm_epsilon", self.norm_epsilon)?;
        require_real(name, "init_std", self.init_std)?;
        let mut net = GraphBuilder::new(name);
        let seq = net.dim("seq", self.seq)?;
        let keys = net.dim("keys", self.seq)?;
        let model = net.dim("model", self.hidden)?;
        let heads = net.dim("heads", self.heads)?;
        let head_dim = net.dim("head_dim", self.hidden / self.heads)?;
        let ffn = net.dim("ffn", self.ffn())?;
        let vocab = net.dim("vocab", self.vocab)?;
        let normal = Init::Normal { std: self.init_std };
        // Residual projections shrink with depth (section 2.3).
        let residual = Init::Normal { std: self.init_std / (2.0 * self.layers as f32).sqrt() };
        let (zeros, ones) = (Init::Constant(0.0), Init::Constant(1.0));
        let epsilon = self.norm_epsilon;

        net.block("embedding");
        let tokens = net.targets("tokens", &[seq])?;
        let targets = net.targets("targets", &[seq])?;
        let table = net.parameter("embedding.token", &[vocab, model], 1, normal)?;
        let positions = net.parameter("embedding.position", &[seq, model], 1, normal)?;
        let embedded = net.embed("embedding.tokens", tokens, table)?;
        let embedded = net.add("embedding.sum", embedded, positions)?;
        let mut x = net.dropout("embedding.dropout", embedded, self.dropout)?;

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
            let (q, k, v) = (project("query")?, project("key")?, project("value")?);
            let name = at("attention");
            let attention = Attention { dropout: self.dropout, ..Attention::CAUSAL };
            let context = net.attention(&name, q, k, v, keys, attention)?;
            let axes = [heads, head_dim, model];
            let w = net.parameter(&at("attention.output.weight"), &axes, 2, residual)?;
            let b = net.parameter(&at("attention.output.bias"), &[model], 0, zeros)?;
            let out = net.contract(&at("attention.output"), context, w, None)?;
            x = net.bias_dropout_add(&at("attention.residual"), out, b, x, self.dropout)?;

            let gain = net.parameter(&at("ffn_norm.gain"), &[model], 0, ones)?;
            let bias = net.parameter(&at("ffn_norm.bias"), &[model], 0, zeros)?;
            let normed = net.layer_norm(&at("ffn_norm"), x, gain, bias, epsilon)?;
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
        let logits = net.contract("head", normed, w, None)?;
        if self.separate_loss {
            net.block("loss");
        }
        let loss = net.cross_entropy("loss", logits, targets)?;
        net.finish(loss)
    }
}
