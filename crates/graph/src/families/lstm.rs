//! A word-level language model of recurrent layers: an embedding, long short-term memories, and a softmax over
//! the vocabulary (Zaremba et al. 2014, arXiv 1409.2329; with projections Jozefowicz et al. 2016, arXiv
//! 1602.02410).

use serde::{Deserialize, Serialize};

use super::{require, require_dropout, require_layers, require_real, require_sizes};
use crate::{DimId, Graph, GraphBuilder, GraphError, Init, ValueId};

/// A language model of long short-term memories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmConfig {
    /// Recurrent layers.
    pub layers: usize,
    /// Cells of a layer.
    pub hidden: usize,
    /// Width of the embedding.
    pub embed: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Positions that gradients go back through; each sample begins with a state of zeros.
    pub seq: usize,
    /// Width to which each layer projects its result, which is also what recurs; as wide as its cells,
    /// and no product, if absent.
    #[serde(default)]
    pub projection: Option<usize>,
    /// Dropout probability on what goes between layers, which is not on what recurs (Zaremba et al. 2014,
    /// section 3).
    #[serde(default)]
    pub dropout: f32,
    /// Whether the head shares the embedding's weights; needs an embedding as wide as a layer's result.
    #[serde(default)]
    pub tied: bool,
    /// How many classes the loss draws in each step besides the targets (sampled softmax; Jean et al. 2015, arXiv
    /// 1412.2007), at most half of the vocabulary, whose words are in the order of their frequency; the loss is over
    /// all if absent. An evaluation is over all in either case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_softmax: Option<usize>,
    /// Added to forget gates before activation.
    #[serde(default = "default_forget_bias")]
    pub forget_bias: f32,
    /// Standard deviation of initial weights.
    #[serde(default = "default_init_std")]
    pub init_std: f32,
}

fn default_forget_bias() -> f32 {
    1.0
}

/// That of numbers evenly between -0.1 and 0.1, rounded.
fn default_init_std() -> f32 {
    0.06
}

impl LstmConfig {
    /// Width of a layer's result.
    pub fn units(&self) -> usize {
        self.projection.unwrap_or(self.hidden)
    }

    /// The model as a graph. An embedding as wide as the layers' results has their dimension, so that all
    /// layers are alike.
    ///
    /// # Errors
    /// If a size is zero or absurd, a number is not possible, or the head is to share an embedding of
    /// another width than the layers' results.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        require_layers(name, self.layers)?;
        let sizes = [
            ("hidden", self.hidden),
            ("embed", self.embed),
            ("vocab", self.vocab),
            ("seq", self.seq),
            ("projection", self.units()),
        ];
        require_sizes(name, &sizes)?;
        let units = self.units();
        require(
            !self.tied || self.embed == units,
            name,
            "tied",
            self.tied,
            &format!("the embedding has a width of {}, the layers' results of {units}", self.embed),
        )?;
        require_dropout(name, "dropout", self.dropout)?;
        require_real(name, "init_std", self.init_std)?;
        let mut net = GraphBuilder::new(name);
        let seq = net.dim("seq", self.seq)?;
        let vocab = net.dim("vocab", self.vocab)?;
        let model = net.dim("model", units)?;
        let embed = if self.embed == units { model } else { net.dim("embed", self.embed)? };
        let layer =
            Layer { gate: net.dim("gate", 4)?, hidden: net.dim("hidden", self.hidden)?, model };
        let normal = Init::Normal { std: self.init_std };

        net.block("embedding");
        let tokens = net.targets("tokens", &[seq])?;
        let targets = net.targets("targets", &[seq])?;
        let table = net.parameter("embedding.token", &[vocab, embed], 1, normal)?;
        let x = net.embed("embedding.tokens", tokens, table)?;
        let mut x = net.dropout("embedding.dropout", x, self.dropout)?;
        let mut width = embed;
        for index in 0..self.layers {
            let block = format!("layer.{index}");
            net.block(&block);
            x = self.layer(&mut net, &block, layer, x, width)?;
            width = model;
        }

        net.block("head");
        let w = match self.tied {
            true => table,
            false => net.parameter("head.weight", &[vocab, model], 1, normal)?,
        };
        let b = net.parameter("head.bias", &[vocab], 0, Init::Constant(0.0))?;
        if let Some(samples) = self.sampled_softmax {
            let samples = net.dim("samples", samples)?;
            let loss = net.sampled_cross_entropy("loss", x, targets, (w, b), samples)?;
            return net.finish(loss);
        }
        let logits = net.contract("head", x, w, Some(b))?;
        let loss = net.cross_entropy("loss", logits, targets)?;
        net.finish(loss)
    }

    /// A layer that reads `x [batch, seq, width]`.
    fn layer(
        &self,
        net: &mut GraphBuilder,
        block: &str,
        Layer { gate, hidden, model }: Layer,
        x: ValueId,
        width: DimId,
    ) -> Result<ValueId, GraphError> {
        let normal = Init::Normal { std: self.init_std };
        let at = |suffix: &str| format!("{block}.{suffix}");
        let w = net.parameter(&at("input.weight"), &[width, gate, hidden], 1, normal)?;
        let b = net.parameter(&at("input.bias"), &[gate, hidden], 0, Init::Constant(0.0))?;
        let gates = net.contract(&at("input"), x, w, Some(b))?;
        let w = net.parameter(&at("recurrent.weight"), &[model, gate, hidden], 1, normal)?;
        let projection = match self.projection {
            Some(_) => {
                Some(net.parameter(&at("projection.weight"), &[hidden, model], 1, normal)?)
            }
            None => None,
        };
        let y = net.lstm(&at("recurrence"), gates, w, projection, self.forget_bias)?;
        net.dropout(&at("dropout"), y, self.dropout)
    }
}

/// Dimensions of a layer.
#[derive(Clone, Copy)]
struct Layer {
    gate: DimId,
    hidden: DimId,
    model: DimId,
}
