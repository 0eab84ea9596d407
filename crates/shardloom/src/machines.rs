//! Clusters by the text that names them.

use shardloom_cluster::{Cluster, ClusterError, Profile};
use shardloom_profile::Options;

use crate::{LocalProfile, Result};

/// The cluster that `text` names: presets with sizes (`h100-80g:8`, `a100-80g:4x8+h100-80g:2x8`), the
/// path of a cluster TOML, or this machine: `local` for all its cores, `local:2` for some. Its software is what
/// such machines [usually](Cluster::usual_stack) run under, so that what is predicted is what people measure;
/// [`Cluster::under`] says another.
///
/// Only where the text says `local` is this machine's profile needed; it is measured if it never was,
/// of which `progress` hears as in [`LocalProfile::load_or_measure`].
///
/// ```
/// use shardloom::{LocalProfile, load_cluster};
///
/// let local = LocalProfile::at("profile.toml".as_ref());
/// let cluster = load_cluster("h100-80g:2x8", &local, &mut |_, _| {})?;
/// assert_eq!(cluster.device_count(), 16);
/// assert_eq!(cluster.stack().name, "megatron");
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If the text or file is wrong, or the profile cannot be had.
pub fn load_cluster(
    text: &str,
    local: &LocalProfile,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Cluster> {
    if !names_local(text) {
        match Cluster::parse(text) {
            // A cluster file may name this machine, too.
            Err(ClusterError::NoLocalProfile) => {}
            other => return with_usual_stack(other?),
        }
    }
    // What is wrong with the text is said before a measurement, which takes minutes.
    cluster_with(text, &stand_in()?)?;
    let profile = local.load_or_measure(Options::default(), progress)?;
    cluster_with(text, &profile)
}

/// A machine of as many devices as this one, to read texts with.
fn stand_in() -> Result<Profile> {
    let mut profile = Profile::preset("gtx-1080-ti")?;
    profile.device.name = "local".into();
    profile.node.devices = std::thread::available_parallelism().map_or(1, |it| it.get() as u32);
    Ok(profile)
}

/// The cluster that `text` names, with `profile` for `local`.
///
/// # Errors
/// If the text or file is wrong.
pub(crate) fn cluster_with(text: &str, profile: &Profile) -> Result<Cluster> {
    let sized = text.split('+').map(|part| {
        let part = part.trim();
        match part.strip_prefix("local") {
            Some(rest) if rest.is_empty() || rest.starts_with(',') => {
                format!("local:{}{rest}", profile.node.devices)
            }
            _ => part.to_owned(),
        }
    });
    let text = sized.collect::<Vec<_>>().join("+");
    with_usual_stack(Cluster::parse_with(&text, Some(profile))?)
}

fn with_usual_stack(cluster: Cluster) -> Result<Cluster> {
    let stack = cluster.usual_stack()?;
    Ok(cluster.under(stack))
}

/// Whether the text of a cluster names this machine and no other.
pub fn names_only_this_machine(text: &str) -> bool {
    names_local(text) && !text.contains('+')
}

/// Whether the text itself names this machine.
fn names_local(text: &str) -> bool {
    text.split('+').any(|part| part.trim().split([':', ',']).next() == Some("local"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_is_recognised_as_a_machine_and_not_as_part_of_a_name() {
        assert!(names_only_this_machine("local:2") && !names_only_this_machine("local+h100-80g:8"));
        for text in ["local", "local:2", "h100-80g:8+local:1", " local ", "local,uplink=1Gbps"] {
            assert!(names_local(text), "{text}");
        }
        for text in ["localhost:2", "my-local.toml", "local.toml", ""] {
            assert!(!names_local(text), "{text}");
        }
    }

    #[test]
    fn local_without_a_size_is_the_whole_node() {
        let mut profile = Profile::preset("h100-80g").expect("a preset");
        profile.device.name = "local".into();
        profile.node.devices = 6;
        let devices = |text| cluster_with(text, &profile).expect("a cluster").device_count();
        assert_eq!(
            (devices("local"), devices("local:4"), devices("local+h100-80g:2x8")),
            (6, 4, 22)
        );
        assert_eq!(devices("local,uplink=1Gbps+local:4,uplink=1Gbps"), 10);
    }
}
