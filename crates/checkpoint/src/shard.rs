//! One rank's file of pieces.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use shardloom_document::json_fault;

use crate::durable::write_new;
use crate::index::{Index, StoredPiece};
use crate::manifest::{FORMAT_VERSION, require_version};
use crate::piece::{Piece, Region};
use crate::safetensors_file::{Stored, header, read_header, write_values};
use crate::{CheckpointError, Result};

/// The key under which a shard's header describes its pieces.
const DESCRIPTION: &str = "shardloom";

/// A shard file as the manifest knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRecord {
    /// The rank that wrote it, which names the file.
    pub(crate) rank: u32,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its digest in hexadecimal digits.
    pub(crate) blake3: String,
}

#[derive(Serialize, Deserialize)]
struct Description {
    format_version: u32,
    pieces: Vec<PieceRecord>,
}

#[derive(Serialize, Deserialize)]
struct PieceRecord {
    /// The key of its values in the file.
    key: String,
    /// The global tensor.
    name: String,
    global_shape: Vec<usize>,
    start: Vec<usize>,
    extent: Vec<usize>,
    /// First element in the box, and the one after the last.
    range: (usize, usize),
}

/// Writes the pieces of a rank into a new file, and adds them to the index.
pub(crate) fn write(
    path: &Path,
    rank: u32,
    pieces: &[Piece<'_>],
    index: &mut Index,
) -> Result<ShardRecord> {
    let mut records = Vec::with_capacity(pieces.len());
    let mut regions = Vec::with_capacity(pieces.len());
    let mut tensors = Vec::with_capacity(pieces.len());
    for (number, piece) in pieces.iter().enumerate() {
        let Piece { name, global_shape, start, extent, range, data } = piece;
        let region = Region::new(name, global_shape, start, extent, range.clone())?;
        if region.len() != data.len() {
            return Err(CheckpointError::Piece {
                name: name.clone(),
                reason: format!(
                    "the range {range:?} has {} elements, but there are {} values",
                    region.len(),
                    data.len()
                ),
            });
        }
        // A rank may hold several pieces of a tensor, and keys must differ.
        let key = format!("{name}#{number}");
        tensors.push((key.clone(), vec![data.len()]));
        records.push(PieceRecord {
            key,
            name: name.clone(),
            global_shape: global_shape.clone(),
            start: start.clone(),
            extent: extent.clone(),
            range: (range.start, range.end),
        });
        regions.push(region);
    }
    let description = Description { format_version: FORMAT_VERSION, pieces: records };
    let description =
        serde_json::to_string(&description).map_err(|error| damaged(path, error.to_string()))?;
    let metadata = HashMap::from([(DESCRIPTION.to_owned(), description)]);
    let header = header(path, Stored::F32, tensors, Some(metadata))?;

    let mut offset_bytes = header.len() as u64;
    for (piece, region) in pieces.iter().zip(regions) {
        index.insert(
            &piece.name,
            &piece.global_shape,
            StoredPiece { region, rank, offset_bytes },
        )?;
        offset_bytes += size_of_val(piece.data) as u64;
    }
    let blake3 = write_new(path, |output| {
        let mut output = Hashing { output, hasher: blake3::Hasher::new() };
        output.write_all(&header).map_err(CheckpointError::io("write", path))?;
        for piece in pieces {
            write_values(path, &mut output, piece.data)?;
        }
        Ok(output.hasher.finalize().to_hex().to_string())
    })?;
    Ok(ShardRecord { rank, bytes: offset_bytes, blake3 })
}

/// Errors unless a file is as its record says.
pub(crate) fn verify(path: &Path, record: &ShardRecord) -> Result<()> {
    let file = File::open(path).map_err(CheckpointError::io("open", path))?;
    let bytes = file.metadata().map_err(CheckpointError::io("look at", path))?.len();
    if bytes != record.bytes {
        return Err(damaged(path, format!("it has {bytes} bytes instead of {}", record.bytes)));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file).map_err(CheckpointError::io("read", path))?;
    let found = hasher.finalize().to_hex();
    if found.as_str() != record.blake3 {
        return Err(damaged(path, format!("its digest is {found} instead of {}", record.blake3)));
    }
    Ok(())
}

/// Adds the pieces of a rank's file to the index.
pub(crate) fn read(path: &Path, rank: u32, index: &mut Index) -> Result<()> {
    let (header, values_start) = read_header(path)?;
    let description = header.metadata().as_ref().and_then(|entries| entries.get(DESCRIPTION));
    let description = description
        .ok_or_else(|| damaged(path, format!("its header has no `{DESCRIPTION}` entry")))?;
    require_version(path, description.as_bytes())?;
    let description: Description = serde_json::from_str(description)
        .map_err(|error| damaged(path, json_fault(&error).to_string()))?;
    for piece in description.pieces {
        let (first, end) = piece.range;
        let region =
            Region::new(&piece.name, &piece.global_shape, &piece.start, &piece.extent, first..end)
                .map_err(|error| damaged(path, error.to_string()))?;
        let values = header.info(&piece.key).filter(|values| {
            values.dtype == Dtype::F32 && values.shape.iter().product::<usize>() == region.len()
        });
        let values = values.ok_or_else(|| {
            damaged(path, format!("it lacks {} float32 values `{}`", region.len(), piece.key))
        })?;
        let offset_bytes = values_start + values.data_offsets.0 as u64;
        let stored = StoredPiece { region, rank, offset_bytes };
        index.insert(&piece.name, &piece.global_shape, stored)?;
    }
    Ok(())
}

fn damaged(path: &Path, reason: String) -> CheckpointError {
    CheckpointError::Damaged { path: path.to_path_buf(), reason }
}

/// Takes the digest of what is written, so that the file need not be read again.
struct Hashing<'a> {
    output: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
