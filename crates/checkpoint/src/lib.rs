//! Checkpoints: written in pieces by every rank, whole or not at all, checked
//! before use, and readable under any other sharding.
//!
//! A checkpoint is a folder `step-00000020` with one `shard-00000.safetensors`
//! per rank that wrote one, `manifest.json` with all that is not a tensor and
//! the length and BLAKE3 digest of every shard, and `manifest.blake3` with the
//! digest of the manifest. A shard holds [`Piece`]s: flat ranges of boxes of
//! global tensors, each described in the shard's header, so that tensor
//! parallel boxes, ZeRO's flat shards of them and whole replicas are all the
//! same thing. [`Checkpoint::read`] assembles any box from whatever pieces
//! there are. A [`Snapshot`] takes the same pieces and is read the same way
//! ([`Saved`]), but is in memory.
//!
//! # Never half a checkpoint
//!
//! A [`Writer`] works in a hidden folder, flushes every file and the folder to
//! the disk, and only then renames it. Where a checkpoint of the same step
//! exists, that one is first renamed to a hidden name under which a [`Store`]
//! still finds it as long as its own name is free. So whenever the machine
//! stops, the folder of checkpoints holds the old one or the new one, whole;
//! the next writer clears what is left over.
//!
//! # Nothing altered is used
//!
//! Opening a checkpoint compares every file with its recorded length and
//! digest. This finds accidents, not attacks: whoever can rewrite the files can
//! rewrite the digests.

mod durable;
mod error;
mod index;
mod lock;
mod manifest;
mod names;
mod overlap;
mod piece;
mod reader;
mod replicas;
mod safetensors_file;
mod shard;
mod snapshot;
mod store;
mod writer;

pub use error::{CheckpointError, Result};
pub use lock::Lock;
pub use manifest::{FORMAT_VERSION, Meta};
pub use piece::Piece;
pub use reader::Checkpoint;
pub use replicas::{Mean, replica_name, replica_of};
pub use safetensors_file::{Stored, Tensor, read_safetensors, write_safetensors};
pub use snapshot::{Saved, Snapshot};
pub use store::{Refused, Store};
pub use writer::{Shard, Shards, Writer};
