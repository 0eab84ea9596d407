//! What nodes of a cluster send out, where it is not what their preset has: clusters of the same devices
//! differ in their network cards.

use std::fmt;

use crate::{ClusterError, NodeKind, spec};

/// What one node sends to the network, as a cluster specification says it behind the size of a group:
/// `uplink=800Gbps`, or by its cards, `cards=8x100Gbps`.
///
/// ```
/// use shardloom_cluster::{Cluster, Uplink};
///
/// let uplink = Uplink::parse("uplink=800Gbps")?;
/// let text = uplink.of("a100-80g:64x8")?;
/// assert_eq!(text, "a100-80g:64x8,uplink=800Gbps");
/// let cluster = Cluster::parse(&text)?;
/// assert_eq!(cluster.groups()[0].profile.node.uplink_bytes_per_second, 100e9);
/// # Ok::<(), shardloom_cluster::ClusterError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Uplink {
    /// What was written, without spaces around it.
    text: String,
    sent: Sent,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sent {
    /// By all devices of a node together.
    Together { bytes_per_second: f64 },
    /// By cards of this speed each.
    ByCards { cards: u32, bytes_per_second: f64 },
}

/// Units of a rate, in bytes a second.
const UNITS: [(&str, f64); 9] = [
    ("Mbps", 1e6 / 8.0),
    ("Gbps", 1e9 / 8.0),
    ("Tbps", 1e12 / 8.0),
    ("Mb/s", 1e6 / 8.0),
    ("Gb/s", 1e9 / 8.0),
    ("Tb/s", 1e12 / 8.0),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
];

/// The most that a node is believed to send out, in bytes a second: a petabyte.
const MOST: f64 = 1e15;

impl Uplink {
    /// Reads `uplink=RATE` or `cards=NxRATE`. A rate is a number above 0 and its unit: `Mbps`, `Gbps` or
    /// `Tbps` (also `Gb/s`) for bits a second, `MB/s`, `GB/s` or `TB/s` for bytes.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Uplink`] with what is wrong.
    pub fn parse(text: &str) -> Result<Uplink, ClusterError> {
        let text = text.trim();
        let wrong = |why: String| ClusterError::Uplink { text: text.to_owned(), why };
        let sent = match text.split_once('=') {
            Some(("uplink", rate)) => {
                Sent::Together { bytes_per_second: bytes_per_second(rate).map_err(wrong)? }
            }
            Some(("cards", cards)) => {
                let Some((count, rate)) = cards.split_once('x') else {
                    return Err(wrong("write cards and the rate of one, such as 8x100Gbps".into()));
                };
                let cards = spec::count(count.trim()).filter(|&cards| cards > 0);
                let Some(cards) = cards else {
                    return Err(wrong(format!("`{count}` is not a number of cards above 0")));
                };
                let bytes_per_second = bytes_per_second(rate).map_err(wrong)?;
                if f64::from(cards) * bytes_per_second > MOST {
                    return Err(wrong("a node cannot send more than 1000 TB/s".into()));
                }
                Sent::ByCards { cards, bytes_per_second }
            }
            _ => {
                let known = "there are uplink=RATE and cards=NxRATE, such as uplink=800Gbps";
                return Err(wrong(known.into()));
            }
        };
        Ok(Uplink { text: text.to_owned(), sent })
    }

    /// The specification `cluster` with this for all its groups, in place of what it says of theirs.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Uplink`] if it is the path of a file, which says this itself, or says something else of
    /// its nodes.
    pub fn of(&self, cluster: &str) -> Result<String, ClusterError> {
        if cluster.ends_with(".toml") {
            let why = format!(
                "it cannot be given with the file {cluster}; write uplink_bytes_per_second in its \
                 groups"
            );
            return Err(ClusterError::Uplink { text: self.text.clone(), why });
        }
        let group = |part: &str| {
            let mut words = part.split(',');
            let machines = words.next().unwrap_or(part).trim();
            words.try_for_each(|replaced| Uplink::parse(replaced).map(drop))?;
            Ok(format!("{machines},{}", self.text))
        };
        Ok(cluster.split('+').map(group).collect::<Result<Vec<_>, ClusterError>>()?.join("+"))
    }

    /// Changes what nodes of a kind send out. Of cards a device uses one, or equal shares where there are
    /// more cards than devices.
    pub(crate) fn apply(&self, node: &mut NodeKind) {
        match self.sent {
            Sent::Together { bytes_per_second } => node.send_out(bytes_per_second),
            Sent::ByCards { cards, bytes_per_second } => {
                let all = f64::from(cards) * bytes_per_second;
                node.uplink_bytes_per_second = all;
                node.inter.bytes_per_second = bytes_per_second.max(all / f64::from(node.devices));
            }
        }
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The number and the prefix of a rate whose unit is written in another way than those that are known (`800GBps`).
fn without_kind(rate: &str) -> Option<(&str, char)> {
    let end = rate.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = (rate[..end].trim(), &rate[end..]);
    let prefix = unit.chars().next()?.to_ascii_uppercase();
    number.parse::<f64>().ok()?;
    (matches!(prefix, 'M' | 'G' | 'T') && unit.len() > 1).then_some((number, prefix))
}

/// Reads a rate.
fn bytes_per_second(rate: &str) -> Result<f64, String> {
    let rate = rate.trim();
    if rate.contains('+') {
        return Err(format!(
            "the rate `{rate}` has a `+`, which joins machines: write all its digits"
        ));
    }
    let unit = UNITS.iter().find_map(|&(name, size)| Some((rate.strip_suffix(name)?.trim(), size)));
    let Some((number, size)) = unit else {
        if let Some((number, prefix)) = without_kind(rate) {
            return Err(format!(
                "the rate `{rate}` has no unit that is known: write {number}{prefix}B/s for bytes a second, \
                 {number}{prefix}bps for bits"
            ));
        }
        return Err(format!(
            "the rate `{rate}` needs a unit: 800Gbps are bits a second, 100GB/s bytes (also with M \
             and T)"
        ));
    };
    match number.parse::<f64>().map(|number| number * size) {
        Ok(rate) if rate > MOST => Err("a node cannot send more than 1000 TB/s".into()),
        Ok(rate) if rate >= 1.0 => Ok(rate),
        Ok(rate) if rate > 0.0 => Err("a node must send at least a byte a second".into()),
        Ok(_) => Err(format!("a rate must be above 0, not {number}")),
        Err(_) => Err(format!("`{number}` is not a number")),
    }
}
