//! The devices that rows name, and the cluster of a row.

use shardloom_cluster::{Cluster, NodeGroup, Profile};

use crate::Refusal;

/// The devices of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// The preset that describes them.
    pub preset: String,
    /// How many.
    pub gpus: u32,
    /// What a node sends out, in bytes a second, where the source says it.
    pub uplink_bytes_per_second: Option<f64>,
    /// Time of a message between nodes however small it is, where it is not the preset's.
    pub network_latency_seconds: Option<f64>,
    /// The share of bandwidths between nodes that is reached, where it is not the preset's.
    pub network_reachable: Option<f64>,
}

/// The preset that describes what a source calls `name`.
///
/// # Errors
/// If there is none.
pub fn preset_of(name: &str) -> Result<String, Refusal> {
    let written = name.to_ascii_lowercase().replace('_', "-");
    let device =
        written.strip_suffix("-sxm4").or(written.strip_suffix("-sxm5")).unwrap_or(&written);
    let device = match device {
        "h100" => "h100-80g",
        // By the memory of its GPU.
        "gh-96" => "gh200",
        other => other.strip_suffix('b').filter(|it| it.ends_with("0g")).unwrap_or(other),
    };
    let known = Profile::preset_names().any(|preset| preset == device);
    known.then(|| device.to_owned()).ok_or_else(|| Refusal::Hardware(name.to_owned()))
}

/// The cluster of a row: as many whole nodes as its devices fill, or a part of one.
///
/// # Errors
/// If the devices do not fill nodes, or are none or too many.
pub fn cluster(hardware: &Hardware) -> Result<Cluster, Refusal> {
    let mut profile = Profile::preset(&hardware.preset).map_err(|error| plan(&error))?;
    if let Some(uplink) = hardware.uplink_bytes_per_second {
        profile.node.send_out(uplink);
    }
    if let Some(latency) = hardware.network_latency_seconds {
        profile.node.inter.latency_seconds = latency;
    }
    if let Some(reachable) = hardware.network_reachable {
        profile.node.inter.reachable = reachable;
    }
    let (gpus, of_node) = (hardware.gpus, profile.node.devices);
    if gpus > of_node && !gpus.is_multiple_of(of_node) {
        let preset = &hardware.preset;
        let text = format!("{gpus} devices do not fill nodes of {of_node} of {preset}");
        return Err(Refusal::Numbers(text));
    }
    let devices_per_node = gpus.min(of_node);
    let nodes = gpus / devices_per_node.max(1);
    Cluster::new(vec![NodeGroup { profile, nodes, devices_per_node }]).map_err(|error| plan(&error))
}

pub(crate) fn plan(error: &dyn std::error::Error) -> Refusal {
    Refusal::Plan(error.to_string())
}
