//! The sizes of a transformer, as configurations have them.

use std::fmt;

use crate::experts;
use shardloom_graph::families::{GptConfig, LlamaConfig, RopeScaling};
use shardloom_graph::{GraphError, ModelSpec, Network};

/// Llama 3's scaling of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryScaling {
    /// By which low frequencies are divided.
    pub factor: f32,
    /// Below this many periods in the original positions a frequency is low.
    pub low: f32,
    /// Above this many it is high, and stays as it is.
    pub high: f32,
    /// The original number of positions.
    pub original: u32,
}

impl fmt::Display for RotaryScaling {
    /// As the words of a model have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RotaryScaling { factor, low, high, original } = self;
        write!(f, "rope_scaling=[{factor},{low},{high},{original}]")
    }
}

/// What positions a transformer knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Learned positions, layer norms with biases, GELU: a GPT.
    Gpt {
        /// Dropout probability.
        dropout: f32,
    },
    /// Rotary positions, RMSNorm, SwiGLU, no biases: a Llama.
    Llama {
        /// Base of the rotary frequencies.
        theta: f32,
        /// Their scaling.
        scaling: Option<RotaryScaling>,
        /// Whether queries, keys and values have biases, as a Qwen 2's.
        qkv_bias: bool,
        /// Whether each head of queries and keys is normalised, as a Qwen 3's.
        qk_norm: bool,
    },
    /// Rotary positions, RMSNorm, no biases, and of several feed-forward layers with GELU the one that a router
    /// chooses, each with room for all rows: `examples/models/transformer-with-experts.toml`.
    Experts {
        /// Base of the rotary frequencies.
        theta: f32,
        /// How many there are.
        experts: usize,
    },
}

/// A transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// Which family it is of.
    pub kind: Kind,
    /// What it has that `kind` does not say, in the words of models here. Projects whose training scripts build the model
    /// take plans of any.
    pub changes: Vec<&'static str>,
    /// Transformer blocks.
    pub layers: usize,
    /// Width.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Sequence length.
    pub seq: usize,
    /// Vocabulary size, padding included.
    pub vocab: usize,
    /// How many of them are no tokens, and have no part in the loss.
    pub padding: usize,
    /// Whether the head shares the embedding's weights.
    pub tied: bool,
    /// Added to what norms divide by.
    pub norm_epsilon: f32,
    /// Standard deviation of initial weights.
    pub init_std: f32,
}

impl Transformer {
    /// The sizes of a model, if it is a GPT or a Llama with its loss in one block with the head, or the one with
    /// experts.
    pub fn of(spec: &ModelSpec) -> Option<Transformer> {
        match spec.network() {
            Network::Gpt(gpt) if !gpt.separate_loss => Some(Transformer {
                kind: Kind::Gpt { dropout: gpt.dropout },
                changes: gpt.changes(),
                layers: gpt.layers,
                hidden: gpt.hidden,
                heads: gpt.heads,
                kv_heads: gpt.heads,
                head_dim: gpt.hidden / gpt.heads,
                ffn: gpt.ffn(),
                seq: gpt.seq,
                vocab: gpt.padded_vocab.unwrap_or(gpt.vocab),
                padding: gpt.padded_vocab.map_or(0, |rows| rows - gpt.vocab),
                tied: gpt.tied,
                norm_epsilon: gpt.norm_epsilon,
                init_std: gpt.init_std,
            }),
            Network::Llama(llama) if !llama.separate_loss => {
                let mut changes = llama.changes();
                changes.retain(|word| !["qkv_bias", "qk_norm"].contains(word));
                Some(Transformer {
                    kind: Kind::Llama {
                        theta: llama.rope_theta,
                        scaling: match llama.rope_scaling {
                            Some(RopeScaling::ByWavelength(factor, low, high, original)) => {
                                Some(RotaryScaling { factor, low, high, original })
                            }
                            // A change of a Llama.
                            Some(RopeScaling::Linear(_)) | None => None,
                        },
                        qkv_bias: llama.qkv_bias,
                        qk_norm: llama.qk_norm,
                    },
                    changes,
                    layers: llama.layers,
                    hidden: llama.hidden,
                    heads: llama.heads,
                    kv_heads: llama.kv_heads(),
                    head_dim: llama.head_dim(),
                    ffn: llama.ffn,
                    seq: llama.seq,
                    vocab: llama.padded_vocab.unwrap_or(llama.vocab),
                    padding: llama.padded_vocab.map_or(0, |rows| rows - llama.vocab),
                    tied: llama.tied,
                    norm_epsilon: llama.norm_epsilon,
                    init_std: llama.init_std,
                })
            }
            Network::Gpt(_)
            | Network::Llama(_)
            | Network::Mlp(_)
            | Network::UTransformer(_)
            | Network::Lstm(_)
            | Network::Dlrm(_) => None,
            Network::Custom(network) => experts::transformer_of(network),
        }
    }

    /// How many experts there are, of which a row has one; 0 without any.
    pub fn experts(&self) -> usize {
        match self.kind {
            Kind::Experts { experts, .. } => experts,
            Kind::Gpt { .. } | Kind::Llama { .. } => 0,
        }
    }

    /// The model of these sizes, if it is no network written as data and has no further changes.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn spec(&self) -> Result<ModelSpec, GraphError> {
        match self.kind {
            Kind::Experts { .. } => Err(GraphError::Text {
                place: "a model with experts".into(),
                message: "is described in TOML: name it with --model".into(),
            }),
            Kind::Gpt { dropout } => {
                let config = GptConfig {
                    layers: self.layers,
                    hidden: self.hidden,
                    heads: self.heads,
                    seq: self.seq,
                    vocab: self.vocab - self.padding,
                    padded_vocab: (self.padding > 0).then_some(self.vocab),
                    ffn: Some(self.ffn),
                    dropout,
                    attention_dropout: None,
                    embedding_dropout: None,
                    rotary: None,
                    rope_theta: None,
                    parallel: false,
                    head_bias: false,
                    tied: self.tied,
                    separate_loss: false,
                    norm_epsilon: self.norm_epsilon,
                    init_std: self.init_std,
                };
                ModelSpec::new("gpt", Network::Gpt(config))
            }
            Kind::Llama { theta, scaling, qkv_bias, qk_norm } => {
                let config = LlamaConfig {
                    layers: self.layers,
                    hidden: self.hidden,
                    heads: self.heads,
                    kv_heads: Some(self.kv_heads),
                    head_dim: Some(self.head_dim),
                    ffn: self.ffn,
                    seq: self.seq,
                    vocab: self.vocab - self.padding,
                    padded_vocab: (self.padding > 0).then_some(self.vocab),
                    rope_theta: theta,
                    rope_scaling: scaling.map(|it| {
                        RopeScaling::ByWavelength(it.factor, it.low, it.high, it.original)
                    }),
                    windows: vec![],
                    window_rope_theta: None,
                    attention_scalar: None,
                    attention_cap: None,
                    logit_cap: None,
                    norm_epsilon: self.norm_epsilon,
                    tied: self.tied,
                    separate_loss: false,
                    qkv_bias,
                    qk_norm,
                    post_norms: false,
                    geglu: false,
                    scaled_embedding: false,
                    zero_centered_gain: false,
                    init_std: self.init_std,
                };
                ModelSpec::new("llama", Network::Llama(config))
            }
        }
    }

    /// Blocks of the model: the embedding, the layers, and the head.
    pub fn blocks(&self) -> usize {
        self.layers + 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what no other family has.
    #[test]
    fn models_have_the_sizes_that_make_them_again() {
        for text in [
            "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,dropout=0.25,tied=true,ffn=100",
            "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=96,tied=false,norm_epsilon=0.125,init_std=0.5",
            "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=95,padded_vocab=96",
            "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=94,padded_vocab=96",
            "llama:layers=3,hidden=64,heads=4,kv_heads=2,head_dim=8,ffn=100,seq=32,vocab=96,rope_theta=500",
            "llama:layers=3,hidden=64,heads=4,ffn=100,seq=32,vocab=95,padded_vocab=96,tied=true",
        ] {
            let spec = ModelSpec::parse(text).expect("a model");
            let sizes = Transformer::of(&spec).expect("it is one of these");
            let again = sizes.spec().expect("it can be built");
            let graphs = [&spec, &again].map(|it| it.graph().expect("a graph"));
            assert_eq!(graphs[0].parameter_count(), graphs[1].parameter_count(), "{text}");
            assert_eq!(Transformer::of(&again), Some(sizes.clone()), "{text}");
            assert_eq!((sizes.blocks(), sizes.experts()), (graphs[0].blocks().len(), 0));
            assert_eq!(
                sizes.padding,
                if text.contains("=95") {
                    1
                } else if text.contains("=94") {
                    2
                } else {
                    0
                }
            );
        }
    }
}
