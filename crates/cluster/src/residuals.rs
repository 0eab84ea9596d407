//! How far measured step times were from what is predicted under a software stack, as data.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::checked;

/// What decides which of a stack's published rows a step is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepKind {
    /// Whether its devices are in several nodes.
    pub several_nodes: bool,
    /// The names of their kinds.
    pub devices: BTreeSet<String>,
}

/// A group of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepGroup {
    /// All steps.
    All,
    /// Those whose devices are in one node.
    OneNode,
    /// Those whose devices are in several nodes.
    SeveralNodes,
}

impl StepGroup {
    /// Whether `step` belongs to it.
    pub fn includes(self, step: &StepKind) -> bool {
        match self {
            StepGroup::All => true,
            StepGroup::OneNode => !step.several_nodes,
            StepGroup::SeveralNodes => step.several_nodes,
        }
    }

    /// The group of all steps that are not in it; none for all steps.
    fn rest(self) -> Option<StepGroup> {
        match self {
            StepGroup::All => None,
            StepGroup::OneNode => Some(StepGroup::SeveralNodes),
            StepGroup::SeveralNodes => Some(StepGroup::OneNode),
        }
    }

    /// What its steps have in common, to stand after "steps"; empty for all steps.
    pub fn described(self) -> &'static str {
        match self {
            StepGroup::All => "",
            StepGroup::OneNode => " on one node",
            StepGroup::SeveralNodes => " on several nodes",
        }
    }
}

impl fmt::Display for StepGroup {
    /// As stack files have it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StepGroup::All => "all",
            StepGroup::OneNode => "one-node",
            StepGroup::SeveralNodes => "several-nodes",
        })
    }
}

/// The 10th and the 90th percentile of measured over predicted step times, over the published rows of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residuals {
    /// The group.
    pub of: StepGroup,
    /// The kinds of device that these rows have: steps on others are not like them.
    #[serde(deserialize_with = "named")]
    pub devices: BTreeSet<String>,
    /// How many rows there were.
    pub rows: u32,
    /// The 10th percentile.
    #[serde(deserialize_with = "checked::positive")]
    pub low: f64,
    /// The 90th percentile.
    #[serde(deserialize_with = "checked::positive")]
    pub high: f64,
}

impl Residuals {
    /// The least rows whose quantiles are taken: of fewer, two or three decide the outer tenths.
    pub const LEAST_ROWS: u32 = 15;

    /// Whether `step` is like its rows.
    pub fn include(&self, step: &StepKind) -> bool {
        self.of.includes(step) && step.devices.is_subset(&self.devices)
    }

    /// Between which times four of five of the rows were measured, where `seconds` are predicted.
    pub fn interval(&self, seconds: f64) -> [f64; 2] {
        [self.low * seconds, self.high * seconds]
    }
}

/// At least one name.
fn named<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeSet<String>, D::Error> {
    let names: BTreeSet<String> = BTreeSet::deserialize(input)?;
    match names.is_empty() {
        true => Err(D::Error::custom("must name at least one kind of device")),
        false => Ok(names),
    }
}

/// Groups of which no step is in two, each with enough rows and its quantiles in order.
pub(crate) fn disjoint<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Residuals>, D::Error> {
    let groups: Vec<Residuals> = Vec::deserialize(input)?;
    for (index, Residuals { of, rows, low, high, .. }) in groups.iter().enumerate() {
        if *rows < Residuals::LEAST_ROWS {
            let least = Residuals::LEAST_ROWS;
            let text = format!("of {of}: rows must be at least {least}, got {rows}");
            return Err(D::Error::custom(text));
        }
        if low > high {
            let text = format!("of {of}: high must be at least low ({low}), got {high}");
            return Err(D::Error::custom(text));
        }
        if let Some(other) = groups[..index].iter().find(|other| of.rest() != Some(other.of)) {
            let text = format!(
                "of {of}: a step can be in this group and in {}; right are all by itself, or one-node and \
                 several-nodes",
                other.of
            );
            return Err(D::Error::custom(text));
        }
    }
    Ok(groups)
}
