//! What the files and folders of checkpoints are called.

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const MANIFEST_DIGEST: &str = "manifest.blake3";

/// A checkpoint being written; rubbish if its writer is gone.
pub(crate) const WRITING: &str = ".writing-";
/// The former checkpoint of a step whose new one is being put in its place.
pub(crate) const REPLACED: &str = ".replaced-";
/// A checkpoint being deleted.
pub(crate) const DELETING: &str = ".deleting-";

/// Which run has the folder of checkpoints.
pub(crate) const LOCK: &str = ".lock";

/// Whether a file of this name in a checkpoint's folder is the checkpoint's.
pub(crate) fn is_of_checkpoint(name: &str) -> bool {
    let rank = name.strip_prefix("shard-").and_then(|name| name.strip_suffix(".safetensors"));
    let is_shard = rank.and_then(|rank| rank.parse().ok()).is_some_and(|it| shard_file(it) == name);
    name == MANIFEST || name == MANIFEST_DIGEST || is_shard
}

pub(crate) fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step whose folder has this name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_folder(step) == name).then_some(step)
}

pub(crate) fn shard_file(rank: u32) -> String {
    format!("shard-{rank:05}.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_checkpoint_are_known_by_their_names() {
        for name in ["manifest.json", "manifest.blake3", "shard-00000.safetensors"] {
            assert!(is_of_checkpoint(name), "{name}");
        }
        for name in ["shard-0.safetensors", "shard-00000.safetensors.gz", "notes.txt", "manifest"] {
            assert!(!is_of_checkpoint(name), "{name}");
        }
        assert!(is_of_checkpoint(&shard_file(u32::MAX)));
    }

    #[test]
    fn only_the_canonical_name_of_a_step_is_its_folder() {
        for step in [0, 20, 99_999_999, 100_000_000, u64::MAX] {
            assert_eq!(step_of(&step_folder(step)), Some(step));
        }
        for name in ["step-20", "step-+0000020", "step-", "step-00000020.bak", ".step-00000020"] {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
