//! A model by description: a preset, a family with parameters, or a network written as data.

mod document;
mod one_line;
mod preset;
mod suggest;

pub(crate) use suggest::did_you_mean;

use crate::families::{
    CustomConfig, DlrmConfig, GptConfig, LlamaConfig, LstmConfig, MlpConfig, UTransformerConfig,
};
use crate::{Graph, GraphError};

/// A model that can be built.
///
/// Its [`Display`](std::fmt::Display) text is one line that [`ModelSpec::parse`] turns back into an
/// equal model, whatever happens to presets and files in between.
///
/// ```
/// use shardloom_graph::ModelSpec;
/// let spec = ModelSpec::parse("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=100")?;
/// assert_eq!(spec.graph()?.name(), "gpt");
/// assert_eq!(spec.to_string(), "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=100");
/// assert_eq!(ModelSpec::parse("llama-3-405b:seq=4096")?.seq(), 4096);
/// # Ok::<(), shardloom_graph::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    name: String,
    network: Network,
}

/// What a model is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Network {
    /// A GPT.
    Gpt(GptConfig),
    /// A Llama.
    Llama(LlamaConfig),
    /// A multi-layer perceptron.
    Mlp(MlpConfig),
    /// A U-shaped transformer.
    UTransformer(UTransformerConfig),
    /// A language model of long short-term memories.
    Lstm(LstmConfig),
    /// A deep learning recommendation model.
    Dlrm(DlrmConfig),
    /// A network written as data.
    Custom(CustomConfig),
}

impl ModelSpec {
    /// A model of this name. Options that say what holds without them are dropped, so that equal
    /// models have equal texts.
    ///
    /// # Errors
    /// If the name is not 1 to 100 letters, digits, `.`, `_` and `-`, or the graph cannot be built.
    pub fn new(name: &str, mut network: Network) -> Result<ModelSpec, GraphError> {
        let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !(1..=100).contains(&name.len()) || !name.chars().all(letter) {
            let rule = "a name has 1 to 100 letters, digits, '.', '_' and '-'".into();
            return Err(GraphError::Name { what: "model", name: name.into(), rule });
        }
        network.graph(name)?;
        match &mut network {
            Network::Gpt(gpt) | Network::UTransformer(UTransformerConfig(gpt)) => {
                let usual = GptConfig { ffn: None, ..gpt.clone() }.ffn();
                gpt.ffn = gpt.ffn.filter(|&ffn| ffn != usual);
                let dropout = gpt.dropout;
                for other in [&mut gpt.attention_dropout, &mut gpt.embedding_dropout] {
                    *other = other.filter(|&it| it != dropout);
                }
                gpt.rope_theta = gpt.rope_theta.filter(|&theta| theta != 10_000.0);
            }
            Network::Llama(llama) => {
                let usual = LlamaConfig { head_dim: None, ..llama.clone() }.head_dim();
                let implied = llama.hidden.is_multiple_of(llama.heads);
                llama.head_dim = llama.head_dim.filter(|&width| !implied || width != usual);
                llama.kv_heads = llama.kv_heads.filter(|&heads| heads != llama.heads);
                llama.windows = llama.shortest_windows();
                let usual = llama.head_dim();
                llama.attention_scalar = llama.attention_scalar.filter(|&scalar| scalar != usual);
            }
            Network::Mlp(_) | Network::Lstm(_) | Network::Dlrm(_) | Network::Custom(_) => {}
        }
        Ok(ModelSpec { name: name.into(), network })
    }

    /// Reads one line: a preset (`llama-3-8b`), a preset with changes (`llama-3-8b:seq=4096`), a
    /// family with parameters (`gpt:layers=24,hidden=2048,heads=16,seq=2048,vocab=51200`), or the text
    /// that [`Display`](std::fmt::Display) gives, which for a network written as data is
    /// `custom:{...}`.
    ///
    /// # Errors
    /// If the preset, family or a key is unknown, a value is not of its key's kind, a key is missing
    /// or given twice, or the graph cannot be built.
    pub fn parse(text: &str) -> Result<ModelSpec, GraphError> {
        one_line::parse(text)
    }

    /// A published model.
    ///
    /// # Errors
    /// If there is none of this name; the message lists them.
    pub fn preset(name: &str) -> Result<ModelSpec, GraphError> {
        preset::preset(name)
    }

    /// The names of all presets.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        preset::names()
    }

    /// Reads a TOML description: `[model]` with a `name`, and then `[gpt]`, `[llama]`, `[mlp]`,
    /// `[u-transformer]`, `[lstm]` or `[dlrm]` with the keys of its configuration, or `[dims]`, `[[input]]` and `[[block]]`
    /// of a [network written as data](crate::families::CustomConfig). `place` is the file's name, for
    /// messages.
    ///
    /// # Errors
    /// If it is not TOML, a key is unknown or missing, a value is of the wrong type (with line), or the
    /// graph cannot be built.
    pub fn from_toml(text: &str, place: &str) -> Result<ModelSpec, GraphError> {
        document::read(text, place)
    }

    /// A TOML description that [`ModelSpec::from_toml`] turns back into an equal model.
    pub fn to_toml(&self) -> String {
        document::write(self)
    }

    /// The same model at another sequence length. A GPT's learned positions are as many as its
    /// sequence is long, so its parameters change with it.
    ///
    /// # Errors
    /// If the length is zero or absurd, or the model has no sequence.
    pub fn with_seq(&self, seq: usize) -> Result<ModelSpec, GraphError> {
        let mut network = self.network.clone();
        let changed = match &mut network {
            Network::Gpt(gpt) | Network::UTransformer(UTransformerConfig(gpt)) => {
                Some(&mut gpt.seq).map(|each| *each = seq)
            }
            Network::Llama(llama) => Some(&mut llama.seq).map(|each| *each = seq),
            Network::Lstm(lstm) => Some(&mut lstm.seq).map(|each| *each = seq),
            Network::Mlp(_) | Network::Dlrm(_) => None,
            Network::Custom(custom) => custom.with_seq(seq).map(|changed| *custom = changed),
        };
        if changed.is_none() {
            return Err(GraphError::Parameter {
                model: self.name.clone(),
                key: "seq".into(),
                value: seq.to_string(),
                rule: "this model has no sequence (no dimension named seq)".into(),
            });
        }
        ModelSpec::new(&self.name, network)
    }

    /// The same language model with another vocabulary, without padding.
    ///
    /// # Errors
    /// If the size is zero or absurd, or the model is no GPT, U-shaped transformer, Llama or LSTM.
    pub fn with_vocab(&self, vocab: usize) -> Result<ModelSpec, GraphError> {
        let mut network = self.network.clone();
        match &mut network {
            Network::Gpt(gpt) | Network::UTransformer(UTransformerConfig(gpt)) => {
                (gpt.vocab, gpt.padded_vocab) = (vocab, None);
            }
            Network::Llama(llama) => (llama.vocab, llama.padded_vocab) = (vocab, None),
            Network::Lstm(lstm) => lstm.vocab = vocab,
            Network::Mlp(_) | Network::Dlrm(_) | Network::Custom(_) => {
                return Err(GraphError::Parameter {
                    model: self.name.clone(),
                    key: "vocab".into(),
                    value: vocab.to_string(),
                    rule: "only a language model by its sizes has a vocabulary to change".into(),
                });
            }
        }
        ModelSpec::new(&self.name, network)
    }

    /// The same model with the rows of its tables padded to a multiple of so many: those for a vocabulary, and of a
    /// DLRM those for categories. None: without padding.
    ///
    /// # Errors
    /// If there would be absurdly many rows, or the model is no GPT, U-shaped transformer, Llama or DLRM.
    pub fn with_padding(&self, multiple: Option<usize>) -> Result<ModelSpec, GraphError> {
        let mut network = self.network.clone();
        let padded = |vocab: usize| {
            let rows = |multiple| vocab.checked_next_multiple_of(multiple).unwrap_or(usize::MAX);
            multiple.map(rows).filter(|&rows| rows != vocab)
        };
        match &mut network {
            Network::Gpt(gpt) | Network::UTransformer(UTransformerConfig(gpt)) => {
                gpt.padded_vocab = padded(gpt.vocab);
            }
            Network::Llama(llama) => llama.padded_vocab = padded(llama.vocab),
            Network::Dlrm(dlrm) => dlrm.row_multiple = multiple,
            Network::Lstm(_) | Network::Mlp(_) | Network::Custom(_) => {
                return Err(GraphError::Parameter {
                    model: self.name.clone(),
                    key: "padding".into(),
                    value: multiple.map_or_else(|| "none".into(), |multiple| multiple.to_string()),
                    rule: "only a gpt, llama, u-transformer or dlrm has padding".into(),
                });
            }
        }
        ModelSpec::new(&self.name, network)
    }

    /// How many categories a DLRM's input tells apart by its number, which may be fewer than its table has rows.
    pub fn categories(&self, input: usize) -> Option<usize> {
        match &self.network {
            Network::Dlrm(dlrm) => dlrm.rows.get(input).copied(),
            _ => None,
        }
    }

    /// The same model with a head of another size: so many classes, or tokens of a vocabulary.
    ///
    /// # Errors
    /// If the size is zero or absurd, or the model has no classes or is written as data.
    pub fn with_head(&self, classes: usize) -> Result<ModelSpec, GraphError> {
        match self.network() {
            Network::Mlp(mlp) => {
                ModelSpec::new(&self.name, Network::Mlp(MlpConfig { classes, ..mlp.clone() }))
            }
            Network::Dlrm(_) | Network::Custom(_) => Err(GraphError::Parameter {
                model: self.name.clone(),
                key: "head".into(),
                value: classes.to_string(),
                rule: "a head is given to a gpt, llama, u-transformer, lstm or mlp".into(),
            }),
            _ => self.with_vocab(classes),
        }
    }

    /// The model as a graph.
    ///
    /// # Errors
    /// None for a spec that exists: it was built once to check it.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        self.network.graph(&self.name)
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the model is made of.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Positions in a sample: the sequence length, or 1 of a model without sequences.
    pub fn seq(&self) -> usize {
        match &self.network {
            Network::Gpt(gpt) | Network::UTransformer(UTransformerConfig(gpt)) => gpt.seq,
            Network::Llama(llama) => llama.seq,
            Network::Lstm(lstm) => lstm.seq,
            Network::Mlp(_) | Network::Dlrm(_) => 1,
            Network::Custom(custom) => custom.dims.get("seq").copied().unwrap_or(1),
        }
    }
}

impl Network {
    fn graph(&self, name: &str) -> Result<Graph, GraphError> {
        match self {
            Network::Gpt(gpt) => gpt.graph(name),
            Network::Llama(llama) => llama.graph(name),
            Network::Mlp(mlp) => mlp.graph(name),
            Network::UTransformer(transformer) => transformer.graph(name),
            Network::Lstm(lstm) => lstm.graph(name),
            Network::Dlrm(dlrm) => dlrm.graph(name),
            Network::Custom(custom) => custom.graph(name),
        }
    }
}
