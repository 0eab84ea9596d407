//! What takes time on a device, by name, where a software stack says what that is cut into.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::profile::nearest;

/// Operators of models, as graphs name them, which this crate does not know: a test beside the simulator's names
/// of rates holds the two to each other.
pub const OPERATORS: [&str; 29] = [
    "add",
    "attention-context",
    "attention-probs",
    "bias-dropout-add",
    "combine",
    "concat",
    "contract",
    "cross-entropy",
    "dispatch",
    "dot-interaction",
    "dropout",
    "embed",
    "expert-contract",
    "fused-attention",
    "geglu",
    "gelu",
    "layer-norm",
    "logit-max",
    "logit-sum",
    "lstm",
    "relu",
    "rms-norm",
    "rotary",
    "route",
    "sampled-cross-entropy",
    "scale",
    "sigmoid-cross-entropy",
    "soft-cap",
    "swiglu",
];

/// Passes of an operator.
pub const PASSES: [&str; 3] = ["forward", "input", "weight"];

/// What a rank does besides passes: sums and copies, the norm of gradients, statistics of whole parameters and updates.
pub const BESIDES_PASSES: [&str; 9] = [
    "add",
    "copy",
    "norm",
    "statistics.adafactor",
    "statistics.lamb",
    "update.adafactor",
    "update.adamw",
    "update.lamb",
    "update.sgd",
];

/// The name of one of these: `layer-norm.forward`, `update.adamw`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RateClass(String);

impl<'de> Deserialize<'de> for RateClass {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<RateClass, D::Error> {
        let name = String::deserialize(input)?;
        let passes =
            OPERATORS.iter().flat_map(|operator| PASSES.map(|it| format!("{operator}.{it}")));
        let known: Vec<String> = passes.chain(BESIDES_PASSES.map(str::to_owned)).collect();
        if known.contains(&name) {
            return Ok(RateClass(name));
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let meant = nearest(&name, &known).map(|near| format!(", did you mean `{near}`?"));
        Err(D::Error::custom(format_args!(
            "unknown operator `{name}`{}; an operator and its pass are needed, as in layer-norm.forward, or one of {}",
            meant.unwrap_or_default(),
            BESIDES_PASSES.join(", ")
        )))
    }
}

/// Values by such a name.
pub(crate) fn by_class<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    input: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let values = BTreeMap::<RateClass, T>::deserialize(input)?;
    Ok(values.into_iter().map(|(RateClass(name), value)| (name, value)).collect())
}
