//! Layout rules: which named dimension is split over which mesh axis.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{Axis, PlanError};

/// One rule: split loops over `dim` along `axis`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutRule {
    /// The named dimension.
    pub dim: String,
    /// The mesh axis.
    pub axis: Axis,
}

/// Rules in order of precedence, as Mesh-TensorFlow writes them (Shazeer et al. 2018, section 3):
/// `batch:dp, heads:tp, ffn:tp`. For each operator a mesh axis goes to the first rule whose dimension
/// is one of its loops that may be split; so `seq:tp` after `heads:tp, ffn:tp, vocab:tp` is Megatron's
/// sequence parallelism, splitting just the operators that tensor parallelism leaves whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayoutRules(pub Vec<LayoutRule>);

impl LayoutRules {
    /// The mesh axes that split each dimension: models of many tables have thousands.
    pub fn axes_by_dim(&self) -> HashMap<&str, Vec<Axis>> {
        let mut axes: HashMap<&str, Vec<Axis>> = HashMap::new();
        for rule in &self.0 {
            axes.entry(&rule.dim).or_default().push(rule.axis);
        }
        axes
    }

    /// Whether some rule splits `dim` along `axis`.
    pub fn splits(&self, dim: &str, axis: Axis) -> bool {
        self.0.iter().any(|rule| rule.dim == dim && rule.axis == axis)
    }
}

impl TryFrom<String> for LayoutRules {
    type Error = PlanError;

    fn try_from(text: String) -> Result<LayoutRules, PlanError> {
        let rule = |part: &str| {
            let wrong = || {
                PlanError::field(
                    "layout",
                    format!("{part:?}"),
                    "rules are written dimension:axis, e.g. \"batch:dp, heads:tp\"",
                )
            };
            let (dim, axis) = part.split_once(':').ok_or_else(wrong)?;
            let axis = Axis::named(axis.trim());
            let dim = dim.trim();
            if dim.is_empty() || dim.contains(char::is_whitespace) {
                return Err(wrong());
            }
            Ok(LayoutRule { dim: dim.to_owned(), axis: axis.ok_or_else(wrong)? })
        };
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(rule)
            .collect::<Result<Vec<_>, _>>()
            .map(LayoutRules)
    }
}

impl From<LayoutRules> for String {
    fn from(rules: LayoutRules) -> String {
        let rules: Vec<String> =
            rules.0.iter().map(|rule| format!("{}:{}", rule.dim, rule.axis)).collect();
        rules.join(", ")
    }
}
