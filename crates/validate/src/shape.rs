//! The model of a row.

use shardloom_graph::ModelSpec;

use crate::Refusal;
use crate::hardware::plan;

/// What the layers of a model are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layers {
    /// Those of GPT: two matrices in the feed-forward layer, learned positions.
    Gpt {
        /// Dropout probability.
        dropout: f32,
    },
    /// Those of Llama: three matrices in the feed-forward layer (SwiGLU), key-value heads.
    Llama,
    /// Key-value heads of Llama, but two matrices in the feed-forward layer. They are taken as Llama's of
    /// two thirds of the width: as many parameters, and as much arithmetic.
    GroupedTwoMatrix,
}

/// The sizes of a model, as the source gives them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// What the layers are.
    pub kind: Layers,
    /// How many.
    pub layers: usize,
    /// Model width.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Vocabulary, before padding.
    pub vocab: usize,
    /// Sequence length.
    pub seq: usize,
    /// Whether the head shares the weights of the embedding.
    pub tied: bool,
    /// Whether the vocabulary is padded to a multiple of 128 tp, as Megatron-LM does.
    pub padded: bool,
}

/// The sizes of a model, to find rows of the same one.
pub type ShapeKey = [usize; 7];

impl Shape {
    /// What models are told apart by.
    pub fn key(&self) -> ShapeKey {
        [self.layers, self.hidden, self.heads, self.kv_heads, self.ffn, self.vocab, self.seq]
    }

    /// Parameters of the matrices, the embedding counted once.
    pub fn parameters(&self) -> f64 {
        let [layers, hidden, heads, kv_heads, ffn, vocab] =
            [self.layers, self.hidden, self.heads, self.kv_heads, self.ffn, self.vocab]
                .map(|it| it as f64);
        let matrices = match self.kind {
            Layers::Gpt { .. } | Layers::GroupedTwoMatrix => 2.0,
            Layers::Llama => 3.0,
        };
        let attention = hidden * hidden * (2.0 + 2.0 * kv_heads / heads.max(1.0));
        layers * (attention + matrices * ffn * hidden) + vocab * hidden
    }

    /// The model for a width of tensor parallelism.
    ///
    /// # Errors
    /// If heads, feed-forward width or vocabulary are not a multiple of `tp`, or there is no such model.
    pub fn spec(&self, tp: u32) -> Result<ModelSpec, Refusal> {
        let wide = tp.max(1) as usize;
        let vocab = match self.padded {
            true => self.vocab.checked_next_multiple_of(128 * wide).unwrap_or(self.vocab),
            false => self.vocab,
        };
        let ffn = match self.kind {
            Layers::GroupedTwoMatrix => self.ffn / 3 * 2 + self.ffn % 3 * 2 / 3,
            Layers::Gpt { .. } | Layers::Llama => self.ffn,
        };
        let key_value = match self.kind {
            Layers::Gpt { .. } => self.heads,
            Layers::Llama | Layers::GroupedTwoMatrix => self.kv_heads,
        };
        let split = [("heads", self.heads), ("key-value heads", key_value), ("ffn", ffn)];
        for (what, value) in split.into_iter().chain([("the vocabulary", vocab)]) {
            if !value.is_multiple_of(wide) {
                return Err(Refusal::Split { tp, what, value });
            }
        }
        let Shape { layers, hidden, heads, seq, tied, .. } = self;
        let sizes = format!("layers={layers},hidden={hidden},heads={heads}");
        let rest = format!("ffn={ffn},seq={seq},vocab={vocab},tied={tied}");
        let text = match self.kind {
            Layers::Gpt { dropout } => format!("gpt:{sizes},{rest},dropout={dropout}"),
            Layers::Llama | Layers::GroupedTwoMatrix => {
                format!("llama:{sizes},kv_heads={key_value},{rest}")
            }
        };
        ModelSpec::parse(&text).map_err(|error| plan(&error))
    }
}
