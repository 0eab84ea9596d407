//! What each kind of operator reads and which keys it takes.

use super::OpConfig;

/// A kind of operator in a network written as data.
pub(super) struct Kind {
    /// Its word.
    pub name: &'static str,
    /// What its inputs are, in order.
    pub inputs: &'static [&'static str],
    /// Whether more inputs like the last may follow.
    pub any_more: bool,
    /// The keys it takes besides `name`, `kind` and `inputs`.
    pub keys: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    inputs: &'static [&'static str],
    keys: &'static [&'static str],
) -> Kind {
    Kind { name, inputs, any_more: false, keys }
}

/// All kinds.
pub(super) const KINDS: &[Kind] = &[
    kind("embed", &["tokens"], &["table"]),
    kind("contract", &["x"], &["weight", "bias"]),
    kind("add", &["a", "b"], &[]),
    Kind { any_more: true, ..kind("concat", &["a", "b"], &["axis", "joined"]) },
    kind("add-bias", &["x"], &["bias"]),
    kind("dropout", &["x"], &["probability"]),
    kind("bias-dropout-add", &["x", "residual"], &["bias", "probability"]),
    kind("layer-norm", &["x"], &["gain", "bias", "epsilon"]),
    kind("rms-norm", &["x"], &["gain", "epsilon", "offset"]),
    kind("gelu", &["x"], &[]),
    kind("relu", &["x"], &[]),
    kind("swiglu", &["gate", "up"], &[]),
    kind("geglu", &["gate", "up"], &[]),
    kind("scale", &["x"], &["factor"]),
    kind("soft-cap", &["x"], &["cap"]),
    kind("rotary", &["x"], &["theta", "scaling", "width"]),
    kind(
        "attention",
        &["q", "k", "v"],
        &["keys", "causal", "window", "scale", "cap", "probability"],
    ),
    kind("route", &["logits"], &["experts", "slots", "overflow"]),
    kind("dispatch", &["x", "route"], &[]),
    kind("expert-contract", &["x"], &["weight"]),
    kind("combine", &["y", "route"], &[]),
    kind("lstm", &["gates"], &["weight", "projection", "forget-bias"]),
    Kind { any_more: true, ..kind("dot-interaction", &["a", "b"], &["pairs", "diagonal"]) },
    kind("cross-entropy", &["logits", "targets"], &[]),
    kind("sampled-cross-entropy", &["x", "targets"], &["weight", "bias", "samples"]),
    kind("sigmoid-cross-entropy", &["logits", "targets"], &[]),
];

impl OpConfig {
    /// The keys that are given, besides `name`, `kind` and `inputs`.
    pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
        [
            ("table", self.table.is_some()),
            ("weight", self.weight.is_some()),
            ("projection", self.projection.is_some()),
            ("forget-bias", self.forget_bias.is_some()),
            ("pairs", self.pairs.is_some()),
            ("diagonal", self.diagonal.is_some()),
            ("bias", self.bias.is_some()),
            ("gain", self.gain.is_some()),
            ("probability", self.probability.is_some()),
            ("epsilon", self.epsilon.is_some()),
            ("offset", self.offset.is_some()),
            ("factor", self.factor.is_some()),
            ("theta", self.theta.is_some()),
            ("scaling", self.scaling.is_some()),
            ("width", self.width.is_some()),
            ("axis", self.axis.is_some()),
            ("joined", self.joined.is_some()),
            ("keys", self.keys.is_some()),
            ("causal", self.causal.is_some()),
            ("window", self.window.is_some()),
            ("scale", self.scale.is_some()),
            ("cap", self.cap.is_some()),
            ("experts", self.experts.is_some()),
            ("slots", self.slots.is_some()),
            ("samples", self.samples.is_some()),
            ("overflow", self.overflow.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
    }
}
