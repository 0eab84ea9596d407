//! U-shaped transformer: the blocks of a [`GptConfig`], with long skips from its first half to its
//! second (Bao et al. 2023, "All are Worth Words: A ViT Backbone for Diffusion Models", arXiv
//! 2209.12152, section 3). There it denoises images; here it is a causal language model.

use serde::{Deserialize, Serialize};

use super::{GptConfig, require};
use crate::{Graph, GraphError, Init};

/// A U-shaped transformer.
///
/// Of `layers` blocks, at least 3, the first `(layers - 1) / 2` are encoders and as many at the end
/// decoders; between them is one block if `layers` is odd, and two if it is even. The output of block
/// `i` of the encoders and that of the block before are what block `layers - 1 - i`, a decoder, reads:
/// joined to twice the width and projected back, with a bias.
///
/// ```
/// use shardloom_graph::ModelSpec;
/// let spec = ModelSpec::parse("u-transformer:layers=5,hidden=8,heads=2,seq=4,vocab=10")?;
/// let graph = spec.graph()?;
/// let joins = graph.ops().filter(|(_, op)| op.kind.name() == "concat");
/// let names: Vec<&str> = joins.map(|(_, op)| op.name.as_str()).collect();
/// assert_eq!(names, ["block.3.skip.joined", "block.4.skip.joined"]);
/// # Ok::<(), shardloom_graph::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UTransformerConfig(
    /// What it shares with a GPT: all sizes, and everything within a block.
    pub GptConfig,
);

impl UTransformerConfig {
    /// The decoder that reads the output of block `encoder` besides that of the block before it; none
    /// if `encoder` is no encoder.
    pub fn decoder_of(&self, encoder: usize) -> Option<usize> {
        let decoder = self.0.layers.checked_sub(encoder + 1)?;
        (encoder < self.skips()).then_some(decoder)
    }

    /// How many encoders there are, and so long skips, and decoders.
    pub fn skips(&self) -> usize {
        self.0.layers.saturating_sub(1) / 2
    }

    /// The model as a graph.
    ///
    /// # Errors
    /// If there are fewer than 3 layers, a size is zero or absurd, heads do not divide the width, or
    /// the dropout is no probability.
    pub fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        let UTransformerConfig(gpt) = self;
        let rule = "an encoder, a block in the middle and a decoder make 3";
        require(gpt.layers >= 3, name, "layers", gpt.layers, rule)?;
        let mut joined = None;
        // What each block reads: the output of block i stands at i + 1.
        let mut entered = vec![];
        gpt.stack(name, |net, layer, model, x| {
            entered.push(x);
            let encoder = gpt.layers - 1 - layer;
            if self.decoder_of(encoder).is_none() {
                return Ok(x);
            }
            let skip = entered[encoder + 1];
            let joined = match joined {
                Some(dim) => dim,
                None => *joined.insert(net.dim("model.2", 2 * gpt.hidden)?),
            };
            let at = |suffix: &str| format!("block.{layer}.skip{suffix}");
            let pair = net.concat(&at(".joined"), &[x, skip], 2, joined)?;
            let normal = Init::Normal { std: gpt.init_std };
            let w = net.parameter(&at(".weight"), &[joined, model], 1, normal)?;
            let b = net.parameter(&at(".bias"), &[model], 0, Init::Constant(0.0))?;
            // Apart from the product, the bias lets a plan split `model.2`.
            let projected = net.contract(&at(".projection"), pair, w, None)?;
            net.add(&at(""), projected, b)
        })
    }
}
