//! One's own network, written as data: dimensions, inputs, and blocks of operators.

mod build;
mod kind;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::RopeScaling;
use crate::op::Overflow;

/// A network written as data.
///
/// An operator's result is called `block.op`, or just `block` where the operator has no name, and its
/// parameters `block.op.weight` and so on. Names are looked up in the own block first. A block may
/// repeat: in every repetition `{i}` in a name stands for its number, and the name `input` stands for
/// the result of the repetition (or block) before it.
///
/// ```
/// let text = r#"
///     [model]
///     name = "classifier"
///
///     [dims]
///     pixels = 784
///     hidden = 100
///     classes = 10
///
///     [[input]]
///     name = "features"
///     kind = "real"
///     axes = ["pixels"]
///
///     [[input]]
///     name = "targets"
///     kind = "index"
///     axes = []
///
///     [[block]]
///     name = "first"
///
///     [[block.op]]
///     name = "product"
///     kind = "contract"
///     inputs = ["features"]
///     weight = { axes = ["pixels", "hidden"], init = { normal = 0.05 } }
///
///     [[block.op]]
///     name = "relu"
///     kind = "relu"
///     inputs = ["product"]
///
///     [[block]]
///     name = "head"
///
///     [[block.op]]
///     kind = "contract"
///     inputs = ["input"]
///     weight = { axes = ["hidden", "classes"], init = { normal = 0.1 } }
///
///     [[block.op]]
///     name = "loss"
///     kind = "cross-entropy"
///     inputs = ["head", "targets"]
/// "#;
/// let spec = shardloom_graph::ModelSpec::from_toml(text, "classifier.toml")?;
/// assert_eq!(spec.graph()?.parameter_count(), 784 * 100 + 100 * 10);
/// # Ok::<(), shardloom_graph::GraphError>(())
/// ```
///
/// | kind | inputs | keys |
/// |---|---|---|
/// | `embed` | tokens | `table` |
/// | `contract` | x | `weight`, `bias` (optional) |
/// | `add` | a, b | |
/// | `concat` | a, b, any more | `axis` (of a, by name), `joined` (its dimension in the result) |
/// | `add-bias` | x | `bias` |
/// | `dropout` | x | `probability` |
/// | `bias-dropout-add` | x, residual | `bias`, `probability` |
/// | `layer-norm` | x | `gain`, `bias`, `epsilon` |
/// | `rms-norm` | x | `gain`, `epsilon`, `offset` (of the gain, 0 if absent) |
/// | `gelu`, `relu` | x | |
/// | `swiglu`, `geglu` | gate, up | |
/// | `scale` | x | `factor` |
/// | `soft-cap` | x | `cap` |
/// | `rotary` | x | `theta`, `scaling`, `width` (all of a head if absent) |
/// | `attention` | q, k, v | `keys`, `causal`, `window`, `scale`, `cap`, `probability` |
/// | `route` | logits | `experts`, `slots` (of an expert for the rows of one sample), `overflow` |
/// | `dispatch` | x, route | |
/// | `expert-contract` | x | `weight` (a matrix for each expert) |
/// | `combine` | y, route | |
/// | `lstm` | gates | `weight`, `projection` (optional), `forget-bias` (0 if absent) |
/// | `dot-interaction` | a, b, any more | `pairs` (its dimension), `diagonal` |
/// | `cross-entropy` | logits, targets | |
/// | `sigmoid-cross-entropy` | logits, targets | |
///
/// Rows that were dispatched to experts are as many as turn out while running; besides `expert-contract`
/// and `combine`, `gelu` and `relu` take them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomConfig {
    /// Extent of every named dimension except `batch`. The one called `seq`, if any, is the sequence
    /// length.
    pub dims: BTreeMap<String, usize>,
    /// What a sample brings.
    pub input: Vec<InputConfig>,
    /// The operators, in an order in which they can run.
    pub block: Vec<BlockConfig>,
}

/// An input of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputConfig {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub kind: InputKind,
    /// Its dimensions, without `batch`, which comes first.
    pub axes: Vec<String>,
}

/// What the elements of an input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputKind {
    /// Real numbers.
    Real,
    /// Tokens or classes.
    Index,
}

/// Operators that belong together, perhaps repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// Its name; contains `{i}` if the block repeats.
    pub name: String,
    /// How often it occurs.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub repeat: usize,
    /// What `input` means in the first repetition; the result of the block before if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The operator whose result is the block's; the last one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Its operators.
    pub op: Vec<OpConfig>,
}

fn once() -> usize {
    1
}

fn is_once(repeat: &usize) -> bool {
    *repeat == 1
}

/// An operator. Which keys apply depends on the kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpConfig {
    /// Its name within the block; that of the block if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it computes.
    pub kind: String,
    /// The data it reads, by name.
    pub inputs: Vec<String>,
    /// Rows of an embedding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<ParameterConfig>,
    /// Matrix of a contraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<ParameterConfig>,
    /// What makes a recurrence's result narrower than its cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projection: Option<ParameterConfig>,
    /// Added to a recurrence's forget gates before activation.
    #[serde(default, rename = "forget-bias", skip_serializing_if = "Option::is_none")]
    pub forget_bias: Option<f32>,
    /// The dimension of an interaction's products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<String>,
    /// Whether an interaction also has the products of its inputs with themselves; false if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagonal: Option<bool>,
    /// What is added: by a contraction, an addition or a layer norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<ParameterConfig>,
    /// Factor of a norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<ParameterConfig>,
    /// Dropout probability; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f32>,
    /// Added to the variance or mean square of a norm; 1e-5 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f32>,
    /// Added to the gain of a root-mean-square norm; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<f32>,
    /// What a scale multiplies by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f32>,
    /// Base of rotary frequencies; 10000 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theta: Option<f32>,
    /// Scaling of rotary frequencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RopeScaling>,
    /// How many elements of a head are rotated, the first ones; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// The dimension of the first input along which a concatenation joins; the last one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<String>,
    /// The dimension of a concatenation's result along that axis, as long as its inputs together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<String>,
    /// The dimension of an attention's key positions, as long as that of its queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// Whether an attention sees only earlier keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causal: Option<bool>,
    /// How many of the earlier keys an attention sees, the query's own position among them; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// What an attention multiplies its scores by; one over the root of the width of a head if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// What values, or an attention's scores, are bounded by: c tanh(x / c) takes the place of x.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<f32>,
    /// The dimension of a routing's experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<String>,
    /// The dimension of the slots that one expert of a routing has for the rows of one sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<String>,
    /// The dimension of the classes that a loss draws in each step, at most half of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<String>,
    /// What becomes of rows that find no slot: `"drop"` or `"stop"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
}

/// A parameter: a new one with `axes` and `init`, or one that exists already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterConfig {
    /// Its dimensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axes: Option<Vec<String>>,
    /// How it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<InitConfig>,
    /// How many leading axes are the rows when it is seen as a matrix; if absent, 1 of a parameter
    /// with several axes and 0 of one with a single axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    /// The name of the parameter to share instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same: Option<String>,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitConfig {
    /// Normal around zero with this standard deviation.
    Normal(f32),
    /// All elements equal.
    Constant(f32),
}

impl CustomConfig {
    /// The same network at another sequence length: the dimension `seq` and those of attention keys.
    /// None if there is no dimension `seq`.
    pub(crate) fn with_seq(&self, seq: usize) -> Option<CustomConfig> {
        let mut changed = self.clone();
        *changed.dims.get_mut("seq")? = seq;
        for op in self.block.iter().flat_map(|block| &block.op) {
            if let Some(keys) = op.keys.as_ref().and_then(|keys| changed.dims.get_mut(keys)) {
                *keys = seq;
            }
        }
        Some(changed)
    }
}
