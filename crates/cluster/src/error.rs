use std::path::PathBuf;

use shardloom_collectives::CollectiveError;
use shardloom_document::Fault;

use crate::{Cluster, DeviceId, Precision};

/// What can be wrong with a description of machines, or with a question about them.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The text of a cluster specification does not parse.
    #[error(
        "cluster `{spec}`: `{part}` is not NAME:DEVICES or NAME:NODESxDEVICES, such as h100-80g:8 \
         or h100-80g:64x8 or h100-80g:64x8,uplink=800Gbps (several joined by +), nor a path ending in \
         .toml"
    )]
    Spec {
        /// The whole text.
        spec: String,
        /// The part that is wrong.
        part: String,
    },
    /// A size that no cluster of a specification has.
    #[error("cluster `{spec}`: {count} {what}: {rule}")]
    Size {
        /// The whole text.
        spec: String,
        /// The size, as it was written.
        count: String,
        /// Of what: nodes or devices.
        what: &'static str,
        /// What would be right.
        rule: String,
    },
    /// What a node is said to send out is no such thing.
    #[error("`{text}`: {why}")]
    Uplink {
        /// What was written.
        text: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// No profile of that name.
    #[error(
        "{}unknown machine `{name}`{}; known: {known}",
        .place.as_ref().map(|place| format!("{place}: machine: ")).unwrap_or_default(),
        .nearest.as_ref().map(|near| format!(", did you mean `{near}`?")).unwrap_or_default()
    )]
    UnknownMachine {
        /// The cluster file that asks for it and the line, if it came from one.
        place: Option<String>,
        /// The name asked for.
        name: String,
        /// The most similar known name, if any is similar.
        nearest: Option<String>,
        /// All known names.
        known: String,
    },
    /// No software stack of that name.
    #[error(
        "unknown stack `{name}`{}; known: {known}, or the path of a file ending in .toml",
        .nearest.as_ref().map(|near| format!(", did you mean `{near}`?")).unwrap_or_default()
    )]
    UnknownStack {
        /// The name asked for.
        name: String,
        /// The most similar known name, if any is similar.
        nearest: Option<String>,
        /// All known names.
        known: String,
    },
    /// A software stack has no constant of that name.
    #[error("no constant `{name}`; known: {known}")]
    Constant {
        /// The name asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// `local` was asked for, but this machine has not been measured.
    #[error(
        "`local` needs a measured profile of this machine: measure one with `shardloom profile`"
    )]
    NoLocalProfile,
    /// A cluster without devices.
    #[error("{what} must be at least 1")]
    Nothing {
        /// Which count is zero.
        what: String,
    },
    /// More devices than can be meant.
    #[error("a cluster of {devices} devices is over the limit of {limit}")]
    TooManyDevices {
        /// How many the description adds up to.
        devices: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// A node with more devices than its kind has.
    #[error(
        "a node of {name} has {available} devices, not {asked}{}",
        as_nodes(name, *available, u64::from(*nodes) * u64::from(*asked))
    )]
    NodeTooSmall {
        /// The profile.
        name: String,
        /// Devices its node has.
        available: u32,
        /// Devices asked for of each node.
        asked: u32,
        /// Nodes asked for.
        nodes: u32,
    },
    /// Two different profiles of one name.
    #[error("two different machines are called `{name}`: give one of them another name")]
    NameClash {
        /// The shared name.
        name: String,
    },
    /// A TOML document is malformed.
    #[error("{place}: {message}")]
    Text {
        /// The document, and the line where one is known: `cluster.toml:4`.
        place: String,
        /// What is wrong, with its key, and what would be right.
        message: String,
    },
    /// A description has a value TOML cannot hold.
    #[error("cannot write as TOML: {0}")]
    Write(#[from] toml::ser::Error),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Measured points that are no curve.
    #[error("measured points: {0}")]
    Points(String),
    /// The device has no rate for this precision.
    #[error(
        "{device} has no {precision} rate; it has {available}{}",
        if *is_measured && *precision == Precision::Fp16 { "; shardloom profile --fp16 measures it" } else { "" }
    )]
    NoPrecision {
        /// The device kind.
        device: String,
        /// What was asked for.
        precision: Precision,
        /// What there is.
        available: String,
        /// Whether that was measured, so that another could be.
        is_measured: bool,
    },
    /// A device id outside the cluster.
    #[error("device {} is not in this cluster of {devices} devices", .id.0)]
    UnknownDevice {
        /// The id.
        id: DeviceId,
        /// Size of the cluster.
        devices: u32,
    },
    /// One device twice in a group.
    #[error("device {} occurs more than once in a group", .0.0)]
    RepeatedDevice(DeviceId),
    /// The collective itself is impossible.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// How so many devices are written as nodes of a machine, but for the one at hand, of which there are no others, and for
/// more than there may be.
fn as_nodes(name: &str, available: u32, devices: u64) -> String {
    match name {
        "local" => String::new(),
        _ if devices > u64::from(Cluster::MAX_DEVICES) => String::new(),
        _ => {
            let nodes = devices.div_ceil(available.into());
            format!("; for {devices} devices write {name}:{nodes}x{available}")
        }
    }
}

impl ClusterError {
    /// What is wrong with the document of this name.
    pub(crate) fn in_document(document: &str, fault: Fault) -> ClusterError {
        ClusterError::Text { place: fault.place(document), message: fault.message }
    }
}
