//! The safetensors format: 8 bytes of header length, a JSON header, values.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use shardloom_document::{json_fault_in, read_file};

use crate::durable::{rename, sync_folder, write_new_for};
use crate::piece::volume;
use crate::{CheckpointError, Result};

/// Values converted to bytes at a time.
const VALUES_PER_WRITE: usize = 1 << 16;

/// How a file stores numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16, rounded to nearest, ties to even.
    Bf16,
    /// 16-bit floating point, rounded likewise. What is beyond its range becomes infinite.
    F16,
}

impl Stored {
    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Stored::F32 => 4,
            Stored::Bf16 | Stored::F16 => 2,
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Stored::F32 => Dtype::F32,
            Stored::Bf16 => Dtype::BF16,
            Stored::F16 => Dtype::F16,
        }
    }
}

/// A tensor in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Elements along each axis; empty for a scalar.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Vec<f32>,
}

/// Reads every tensor of a safetensors file, for instance initial weights.
/// F16 and BF16 values are converted, which is exact.
///
/// # Errors
///
/// [`CheckpointError::Io`] if the file cannot be read, [`CheckpointError::Safetensors`] if it is
/// truncated or otherwise not in the format, [`CheckpointError::UnsupportedDtype`] for a
/// tensor of any other type.
pub fn read_safetensors(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let bytes = read_file(path).map_err(CheckpointError::io("read", path))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| {
        // It says nothing of where in the header something is wrong.
        let header = header_of(path, &bytes, bytes.len() as u64);
        header.err().unwrap_or_else(|| unreadable(path, error))
    })?;
    let convert = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let bytes = view.data();
        let values = match view.dtype() {
            Dtype::F32 => values_of(bytes, f32::from_le_bytes),
            Dtype::F16 => values_of(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => values_of(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            other => {
                return Err(CheckpointError::UnsupportedDtype {
                    name: name.to_owned(),
                    path: path.to_path_buf(),
                    dtype: other.to_string(),
                });
            }
        };
        Ok((name.to_owned(), Tensor { shape: view.shape().to_vec(), values }))
    };
    file.iter().map(convert).collect()
}

fn values_of<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| convert(bytes)).collect()
}

/// Copies little-endian bytes into values; as many of them as there are values.
pub(crate) fn decode_values(bytes: &[u8], values: &mut [f32]) {
    for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(bytes);
    }
}

/// Writes one plain safetensors file of tensors with these names and shapes, in this order. `values` is asked
/// for one tensor after another, so that no more than one is in memory. A file of that path is replaced at
/// once when the new one is complete; a device or a pipe is written to.
///
/// # Errors
///
/// What `values` says, and [`CheckpointError::Io`] if the file cannot be written.
///
/// # Panics
///
/// If `values` gives another number of values than the shape has.
pub fn write_safetensors<E: From<CheckpointError>>(
    path: &Path,
    stored: Stored,
    tensors: Vec<(String, Vec<usize>)>,
    metadata: Option<HashMap<String, String>>,
    mut values: impl FnMut(&str) -> Result<Vec<f32>, E>,
) -> Result<(), E> {
    let header = header(path, stored, tensors.clone(), metadata)?;
    let mut write = |output: &mut dyn Write| -> Result<(), E> {
        output.write_all(&header).map_err(CheckpointError::io("write", path))?;
        for (name, shape) in &tensors {
            let values = values(name)?;
            assert_eq!(values.len(), volume(shape), "{name} has as many values as its shape");
            write_stored(path, output, stored, &values)?;
        }
        Ok(())
    };
    if fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        // A device or a pipe takes what is written to it, and stays what it is.
        let file =
            File::options().write(true).open(path).map_err(CheckpointError::io("open", path))?;
        let mut output = io::BufWriter::with_capacity(1 << 20, file);
        write(&mut output)?;
        return Ok(output.flush().map_err(CheckpointError::io("write", path))?);
    }
    // What a link leads to is replaced, and not the link.
    let path = &*fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let unfinished = path.with_added_extension("writing");
    if unfinished.exists() {
        // Left by an export that was killed.
        fs::remove_file(&unfinished).map_err(CheckpointError::io("delete", &unfinished))?;
    }
    let written =
        write_new_for(&unfinished, path, &mut write).and_then(|()| Ok(rename(&unfinished, path)?));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder)?,
        _ => sync_folder(Path::new("."))?,
    }
    Ok(())
}

/// The header of a file of tensors with these names and shapes, laid out in this order, and the length
/// bytes before it.
pub(crate) fn header(
    path: &Path,
    stored: Stored,
    tensors: Vec<(String, Vec<usize>)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let mut offset = 0;
    let mut infos = Vec::with_capacity(tensors.len());
    for (name, shape) in tensors {
        let start = offset;
        offset += volume(&shape) * stored.bytes();
        let dtype = stored.dtype();
        infos.push((name, TensorInfo { dtype, shape, data_offsets: (start, offset) }));
    }
    let metadata = Metadata::new(metadata, infos).map_err(|error| unreadable(path, error))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| unreadable(path, error))?;
    // The format aligns the values to 8 bytes by spaces after the header.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// Writes values as little-endian bytes.
pub(crate) fn write_values(path: &Path, output: &mut dyn Write, values: &[f32]) -> Result<()> {
    write_as(path, output, values, f32::to_le_bytes)
}

/// Writes values as a file stores them.
fn write_stored(path: &Path, output: &mut dyn Write, stored: Stored, values: &[f32]) -> Result<()> {
    match stored {
        Stored::F32 => write_values(path, output, values),
        Stored::Bf16 => write_as(path, output, values, |it| bf16::from_f32(it).to_le_bytes()),
        Stored::F16 => write_as(path, output, values, |it| f16::from_f32(it).to_le_bytes()),
    }
}

fn write_as<const N: usize>(
    path: &Path,
    output: &mut dyn Write,
    values: &[f32],
    to_bytes: impl Fn(f32) -> [u8; N],
) -> Result<()> {
    let mut bytes = vec![0; VALUES_PER_WRITE.min(values.len()) * N];
    for values in values.chunks(VALUES_PER_WRITE) {
        let bytes = &mut bytes[..values.len() * N];
        for (bytes, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = to_bytes(value);
        }
        output.write_all(bytes).map_err(CheckpointError::io("write", path))?;
    }
    Ok(())
}

/// Reads the header of a file, and where its values begin. The values must
/// reach to the end of the file exactly.
pub(crate) fn read_header(path: &Path) -> Result<(Metadata, u64)> {
    let mut file = File::open(path).map_err(CheckpointError::io("open", path))?;
    let file_bytes = file.metadata().map_err(CheckpointError::io("look at", path))?.len();
    let mut begin = Vec::new();
    let length = (&mut file).take(LENGTH_BYTES).read_to_end(&mut begin);
    length.map_err(CheckpointError::io("read", path))?;
    let header_bytes = header_bytes(path, &begin, file_bytes)?;
    file.take(header_bytes).read_to_end(&mut begin).map_err(CheckpointError::io("read", path))?;
    header_of(path, &begin, file_bytes)
}

/// Bytes of the number that a file begins with, which says how long its header is.
const LENGTH_BYTES: u64 = 8;

/// How many bytes the header of a file of `file_bytes` that begins with `begin` has.
fn header_bytes(path: &Path, begin: &[u8], file_bytes: u64) -> Result<u64> {
    let Some(length) = begin.first_chunk() else {
        let has = format!(
            "it has {file_bytes} bytes, of which the first 8 must be the length of its header"
        );
        return Err(unreadable(path, has));
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > file_bytes - LENGTH_BYTES {
        return Err(unreadable(
            path,
            format!("its header of {header_bytes} bytes reaches past its {file_bytes} bytes"),
        ));
    }
    Ok(header_bytes)
}

/// The header of a file of `file_bytes` that begins with `begin`, and where its values begin. The values must reach
/// to the end of the file exactly.
fn header_of(path: &Path, begin: &[u8], file_bytes: u64) -> Result<(Metadata, u64)> {
    let values_start = LENGTH_BYTES + header_bytes(path, begin, file_bytes)?;
    let json = &begin[LENGTH_BYTES as usize..begin.len().min(values_start as usize)];
    let header: Metadata = serde_json::from_slice(json).map_err(|error| {
        let fault = json_fault_in(&String::from_utf8_lossy(json), &error);
        let reason = wrong_tensor(json).unwrap_or(fault.message);
        unreadable(path, format!("its header: {reason}"))
    })?;
    let values_end = values_start.saturating_add(header.data_len() as u64);
    if values_end != file_bytes {
        return Err(unreadable(
            path,
            format!("its values end at byte {values_end}, but it has {file_bytes} bytes"),
        ));
    }
    Ok((header, values_start))
}

/// The first tensor of a header whose values are not as many bytes as its shape and format say.
fn wrong_tensor(json: &[u8]) -> Option<String> {
    let entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(json).ok()?;
    let tensors = entries.into_iter().filter_map(|(name, entry)| {
        Some((name, serde_json::from_value::<TensorInfo>(entry).ok()?))
    });
    tensors.into_iter().find_map(|(name, TensorInfo { dtype, shape, data_offsets })| {
        let (start, end) = data_offsets;
        let sized = format!("tensor `{name}` of shape {shape:?} in {dtype:?}");
        let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &size| bits.checked_mul(size));
        match (bits.map(|bits| bits / 8), end.checked_sub(start)) {
            (None, _) => Some(format!("{sized} has more bytes than can be counted")),
            (Some(_), None) => {
                Some(format!("{sized} ends at byte {end}, before its begin at {start}"))
            }
            (Some(needed), Some(there)) => (needed != there).then(|| {
                format!("{sized} needs {needed} bytes, and has {there}, from {start} to {end}")
            }),
        }
    })
}

pub(crate) fn unreadable(path: &Path, reason: impl ToString) -> CheckpointError {
    CheckpointError::Safetensors { path: path.to_path_buf(), reason: reason.to_string() }
}
