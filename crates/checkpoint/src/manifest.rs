//! Everything in a checkpoint that is not a tensor.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shardloom_document::{json_fault, read_document};

use crate::durable::write_new;
use crate::names::{MANIFEST, MANIFEST_DIGEST};
use crate::shard::ShardRecord;
use crate::{CheckpointError, Result};

/// The version of the checkpoint format that this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// What a run needs besides its tensors to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The position of the next sample.
    pub sample_position: u64,
    /// The seed of the run.
    pub seed: u64,
    /// Digest of the training data.
    pub corpus_digest: String,
    /// The model, in a form its reader can build it from.
    pub model: String,
    /// The plan it was trained under, as its TOML text.
    pub plan: String,
    /// The optimizer and its settings, as text.
    pub optimizer: String,
    /// Whatever else should be found again.
    pub extra: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format_version: u32,
    pub(crate) step: u64,
    pub(crate) meta: Meta,
    /// Ascending by rank.
    pub(crate) shards: Vec<ShardRecord>,
}

impl Manifest {
    /// Writes the manifest and its digest into a checkpoint's folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let mut json =
            serde_json::to_vec_pretty(self).map_err(|error| damaged(&path, error.to_string()))?;
        json.push(b'\n');
        write_new(&path, |output| {
            output.write_all(&json).map_err(CheckpointError::io("write", &path))
        })?;
        let path = folder.join(MANIFEST_DIGEST);
        let digest = digest_line(&json);
        write_new(&path, |output| {
            output.write_all(digest.as_bytes()).map_err(CheckpointError::io("write", &path))
        })
    }

    /// Reads the manifest of a checkpoint's folder if it is as it was written.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let json = read_document(&path).map_err(CheckpointError::io("read", &path))?;
        let digest_path = folder.join(MANIFEST_DIGEST);
        let digest =
            read_document(&digest_path).map_err(CheckpointError::io("read", &digest_path))?;
        if digest != digest_line(&json).as_bytes() {
            return Err(damaged(
                &path,
                format!("it does not have the digest in {MANIFEST_DIGEST}"),
            ));
        }
        require_version(&path, &json)?;
        let manifest: Self = serde_json::from_slice(&json)
            .map_err(|error| damaged(&path, json_fault(&error).to_string()))?;
        // A shard that is named again would be read again.
        let twice = manifest.shards.windows(2).find(|pair| pair[0].rank >= pair[1].rank);
        match twice {
            Some(pair) => Err(damaged(
                &path,
                format!("the shard of rank {} follows that of rank {}", pair[1].rank, pair[0].rank),
            )),
            None => Ok(manifest),
        }
    }
}

fn digest_line(json: &[u8]) -> String {
    format!("{}\n", blake3::hash(json).to_hex())
}

/// Errors unless a JSON object states the format version of this build. The
/// rest of it is not looked at: another version may have other keys.
pub(crate) fn require_version(path: &Path, json: &[u8]) -> Result<()> {
    #[derive(Deserialize)]
    struct Version {
        format_version: u32,
    }
    let version: Version = serde_json::from_slice(json)
        .map_err(|error| damaged(path, json_fault(&error).to_string()))?;
    if version.format_version == FORMAT_VERSION {
        return Ok(());
    }
    Err(CheckpointError::FormatVersion {
        path: path.to_path_buf(),
        found: version.format_version,
        supported: FORMAT_VERSION,
    })
}

fn damaged(path: &Path, reason: String) -> CheckpointError {
    CheckpointError::Damaged { path: path.to_path_buf(), reason }
}
