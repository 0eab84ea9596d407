//! The options that say what nodes send out.

use clap::Args;
use shardloom::cluster::{ClusterError, Uplink};

use crate::failure::Failure;

/// What each node of a cluster sends to the network, where it is not what its machines usually have.
#[derive(Debug, Args)]
pub struct Network {
    /// What each node sends out to the network, such as 800Gbps or 100GB/s, in place of what the
    /// cluster says; a plan keeps it in the text of its cluster (h100-80g:8x8,uplink=800Gbps)
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    uplink: Option<String>,

    /// The network cards of each node and what one of them sends, such as 8x100Gbps
    #[arg(long, value_name = "NxRATE", conflicts_with = "uplink", allow_hyphen_values = true)]
    cards: Option<String>,
}

impl Network {
    /// The option that was given, and its value.
    fn option(&self) -> Option<(&'static str, &str)> {
        let uplink = self.uplink.as_deref().map(|rate| ("uplink", rate));
        uplink.or(self.cards.as_deref().map(|cards| ("cards", cards)))
    }

    /// The text of a cluster with what was asked for.
    ///
    /// # Errors
    /// If that is no rate, or cannot be said of this cluster.
    pub fn of(&self, cluster: &str) -> Result<String, Failure> {
        let Some((option, value)) = self.option() else { return Ok(cluster.to_owned()) };
        let uplink = Uplink::parse(&format!("{option}={}", value.trim()));
        let text = uplink.and_then(|uplink| uplink.of(cluster));
        text.map_err(|error| {
            let why = match error {
                ClusterError::Uplink { why, .. } => why,
                other => other.to_string(),
            };
            Failure::usage(&format!("--{option}"), format!("--{option} {value}: {why}"))
        })
    }

    /// Refuses the options where there is no cluster that they could be about.
    ///
    /// # Errors
    /// If one was given.
    pub fn refuse_without_cluster(&self) -> Result<(), Failure> {
        let Some((option, _)) = self.option() else { return Ok(()) };
        let message =
            format!("--{option} says what nodes of a cluster send out: give --cluster, too");
        Err(Failure::usage(&format!("--{option}"), message))
    }
}
