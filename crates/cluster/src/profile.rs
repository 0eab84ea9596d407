use serde::{Deserialize, Serialize};
use shardloom_document::toml_fault;

use crate::{ClusterError, DeviceKind, NodeKind};

/// What one kind of machine can do: its device and the node around it.
///
/// Read from TOML, every number is checked. Values set in code are taken as they
/// are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Where the numbers come from, and which of them are estimates.
    pub source: String,
    /// The measurements that its efficiencies were fitted to; none if they are estimates beside a data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated_on: Option<String>,
    /// The name of the software stack that training on it usually runs under, where nobody says another; without
    /// one, this program's own trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// The device; its name is the profile's.
    pub device: DeviceKind,
    /// The node.
    pub node: NodeKind,
    /// On what it was measured; absent in a profile that was written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<MeasuredOn>,
}

/// All that a measurement depends on: it holds for a machine only where all of this is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOn {
    /// The processor's name.
    pub processor: String,
    /// Cores that the measuring program could use.
    pub cores: u32,
    /// Instructions that its kernels used.
    pub kernels: String,
    /// The program's version.
    pub version: String,
    /// Of the processors' time what other programs took meanwhile, in percent; absent where it is too little to
    /// matter. Then all that was measured may be too slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others_percent: u32,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl MeasuredOn {
    /// What differs from `other`, in words: `processor A, not B`. Empty if nothing does.
    pub fn differences(&self, other: &MeasuredOn) -> Vec<String> {
        let [cores, other_cores] = [self, other].map(|it| it.cores.to_string());
        let pairs = [
            ("processor", &self.processor, &other.processor),
            ("cores", &cores, &other_cores),
            ("kernels", &self.kernels, &other.kernels),
            ("version", &self.version, &other.version),
        ];
        let differing = pairs.into_iter().filter(|(_, own, other)| own != other);
        differing.map(|(what, own, other)| format!("{what} {own}, not {other}")).collect()
    }
}

/// Names and texts of the preset files.
const PRESETS: [(&str, &str); 20] = [
    ("v100-16g", include_str!("../presets/v100-16g.toml")),
    ("v100-32g", include_str!("../presets/v100-32g.toml")),
    ("a100-40g", include_str!("../presets/a100-40g.toml")),
    ("a100-80g", include_str!("../presets/a100-80g.toml")),
    ("h100-80g", include_str!("../presets/h100-80g.toml")),
    ("h200", include_str!("../presets/h200.toml")),
    ("gh200", include_str!("../presets/gh200.toml")),
    ("b200", include_str!("../presets/b200.toml")),
    ("gb200", include_str!("../presets/gb200.toml")),
    ("l40s", include_str!("../presets/l40s.toml")),
    ("gtx-1080-ti", include_str!("../presets/gtx-1080-ti.toml")),
    ("titan-rtx", include_str!("../presets/titan-rtx.toml")),
    ("rtx-2080", include_str!("../presets/rtx-2080.toml")),
    ("rtx-3090", include_str!("../presets/rtx-3090.toml")),
    ("mi300x", include_str!("../presets/mi300x.toml")),
    ("mi355x", include_str!("../presets/mi355x.toml")),
    ("tpu-v3", include_str!("../presets/tpu-v3.toml")),
    ("tpu-v4", include_str!("../presets/tpu-v4.toml")),
    ("tpu-v5p", include_str!("../presets/tpu-v5p.toml")),
    ("tpu-v6e", include_str!("../presets/tpu-v6e.toml")),
];

impl Profile {
    /// Names of all presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|&(name, _)| name)
    }

    /// The preset of that name.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnknownMachine`] with the most similar name.
    pub fn preset(name: &str) -> Result<Self, ClusterError> {
        match PRESETS.iter().find(|&&(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, text)) => Self::from_toml(text),
            None => Err(unknown_machine(name, &Self::preset_names().collect::<Vec<_>>(), None)),
        }
    }

    /// Its name, and what its numbers rest on: `mi300x, data sheet only`.
    pub fn described(&self) -> String {
        let name = &self.device.name;
        match (&self.calibrated_on, &self.measured_on) {
            (Some(data), _) => format!("{name}, calibrated on {data}"),
            (None, Some(machine)) => format!("{name}, measured on {}", machine.processor),
            (None, None) => format!("{name}, data sheet only"),
        }
    }

    /// Whether two profiles are the same machine on networks that may differ in what a node sends out.
    pub(crate) fn is_same_machine(&self, other: &Profile) -> bool {
        let mut one = self.clone();
        one.node.uplink_bytes_per_second = other.node.uplink_bytes_per_second;
        one.node.inter.bytes_per_second = other.node.inter.bytes_per_second;
        one == *other
    }

    /// Reads a profile.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Text`] naming line and key of what is malformed, unknown,
    /// missing or out of range.
    pub fn from_toml(text: &str) -> Result<Self, ClusterError> {
        Self::read(text, "machine profile")
    }

    /// Likewise, of a document that errors call `place`.
    ///
    /// # Errors
    ///
    /// As [`Profile::from_toml`].
    pub fn read(text: &str, place: &str) -> Result<Self, ClusterError> {
        toml::from_str(text)
            .map_err(|error| ClusterError::in_document(place, toml_fault(text, &error)))
    }

    /// Writes what [`Profile::from_toml`] reads.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Write`] for values TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, ClusterError> {
        Ok(toml::to_string_pretty(self)?)
    }
}

pub(crate) fn unknown_machine(name: &str, known: &[&str], place: Option<String>) -> ClusterError {
    ClusterError::UnknownMachine {
        place,
        name: name.to_owned(),
        nearest: nearest(name, known),
        known: known.join(", "),
    }
}

/// The known name that is most similar to `name`, if any is similar, whatever the case of letters. Those
/// that `name` begins, or that begin it, come before others: `h100` is rather `h100-80g` than `h200`.
pub(crate) fn nearest(name: &str, known: &[&str]) -> Option<String> {
    let name = name.to_lowercase();
    let rank = |other: &&str| {
        let edits = strsim::damerau_levenshtein(&name, other);
        let begins = !name.is_empty() && (other.starts_with(&name) || name.starts_with(other));
        (!begins, edits, other.len().max(name.len()))
    };
    let similar = |(begins_not, edits, longer): (bool, usize, usize)| {
        !begins_not || edits < longer.div_ceil(2)
    };
    let near = known.iter().filter(|other| similar(rank(other)));
    near.min_by_key(|other| (rank(other), **other)).map(|&other| other.to_owned())
}
