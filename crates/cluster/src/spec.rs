//! The short text form of a cluster: `h100-80g:64x8,uplink=800Gbps+a100-40g:2x8`.

use std::path::PathBuf;

use crate::{Cluster, ClusterError, Uplink};

/// What a specification asks for.
pub(crate) enum Spec<'a> {
    /// A TOML file.
    File(PathBuf),
    /// Groups of nodes, in order.
    Groups(Vec<GroupSpec<'a>>),
}

pub(crate) struct GroupSpec<'a> {
    pub(crate) machine: &'a str,
    pub(crate) nodes: u32,
    pub(crate) devices_per_node: u32,
    /// What a node sends out, where it is not the machine's.
    pub(crate) uplink: Option<Uplink>,
}

pub(crate) fn parse(spec: &str) -> Result<Spec<'_>, ClusterError> {
    if spec.ends_with(".toml") {
        return Ok(Spec::File(spec.into()));
    }
    let groups = spec.split('+').map(|part| {
        let mut words = part.trim().split(',');
        let machines = words.next().unwrap_or(part);
        let malformed = || ClusterError::Spec { spec: spec.to_owned(), part: part.to_owned() };
        let group = group(spec, machines).unwrap_or_else(|| Err(malformed()))?;
        let uplink = words.next().map(Uplink::parse).transpose()?;
        match (&uplink, words.next()) {
            (Some(uplink), Some(further)) => {
                let why = format!("`{}` is said of the same nodes", further.trim());
                Err(ClusterError::Uplink { text: uplink.to_string(), why })
            }
            _ => Ok(GroupSpec { uplink, ..group }),
        }
    });
    groups.collect::<Result<_, _>>().map(Spec::Groups)
}

/// `NAME:DEVICES` (one node) or `NAME:NODESxDEVICES`.
fn group<'a>(spec: &str, part: &'a str) -> Option<Result<GroupSpec<'a>, ClusterError>> {
    let (machine, size) = part.trim().split_once(':')?;
    let (nodes, devices) = size.split_once('x').unwrap_or(("1", size));
    let counts = [(nodes, "nodes", count(nodes)?), (devices, "devices", count(devices)?)];
    if machine.is_empty() {
        return None;
    }
    let most = Cluster::MAX_DEVICES;
    let impossible = counts.iter().find(|(.., count)| !(1..=most).contains(count));
    if let Some(&(count, what, _)) = impossible {
        let (spec, count) = (spec.to_owned(), count.to_owned());
        let rule = match count.trim_matches('0') {
            "" => "at least 1 is needed".to_owned(),
            _ => format!("over the limit of {most}"),
        };
        return Some(Err(ClusterError::Size { spec, count, what, rule }));
    }
    let [(.., nodes), (.., devices_per_node)] = counts;
    Some(Ok(GroupSpec { machine, nodes, devices_per_node, uplink: None }))
}

/// Digits only; what is too large to count is as large as can be, so that the size
/// limit can say so.
pub(crate) fn count(digits: &str) -> Option<u32> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().unwrap_or(u32::MAX))
}
