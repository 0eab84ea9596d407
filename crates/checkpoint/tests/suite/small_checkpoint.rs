//! A small checkpoint for tests: written, read, and altered on disk.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use shardloom_checkpoint::{Checkpoint, Meta, Piece, Store, Writer};

pub(crate) fn meta() -> Meta {
    Meta {
        sample_position: u64::MAX,
        seed: 7,
        corpus_digest: "c0ffee".to_owned(),
        model: "gpt:layers=2".to_owned(),
        plan: "version = 1\n".to_owned(),
        optimizer: "adamw".to_owned(),
        extra: BTreeMap::from([("clock".to_owned(), "wall".to_owned())]),
    }
}

/// A small checkpoint of two tensors by two ranks; `w` is filled with `value`.
pub(crate) fn save(root: &Path, step: u64, value: f32, keep: Option<usize>) -> PathBuf {
    let writer = Writer::create(root, step).expect("created");
    fill(&writer, value);
    writer.finish(meta(), keep.and_then(NonZeroUsize::new)).expect("finished")
}

pub(crate) fn fill(writer: &Writer, value: f32) {
    let half = [value; 4];
    writer.shard(0, [Piece::block("w", &[2, 4], &[0, 0], &[1, 4], &half)]).expect("written");
    let bias = Piece::whole("bias", &[3], &[1.0, -0.0, f32::NAN]);
    let rest = Piece::block("w", &[2, 4], &[1, 0], &[1, 4], &half);
    writer.shard(1, [bias, rest]).expect("written");
}

pub(crate) fn load(root: &Path) -> Checkpoint {
    let (checkpoint, refused) =
        Store::open(root).expect("opened").load_latest().expect("a checkpoint");
    assert_eq!(refused, []);
    checkpoint
}

pub(crate) fn value(checkpoint: &Checkpoint) -> f32 {
    let values = checkpoint.read_whole("w").expect("read");
    assert!(values.iter().all(|&value| value == values[0]), "{values:?}");
    values[0]
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).expect("listed").map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    files
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().expect("named").to_string_lossy().into_owned();
    files(folder).iter().map(name).collect()
}

/// Replaces the first shard of a checkpoint, and makes all its digests and sizes right again.
pub(crate) fn replace_shard(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let shard = folder.join("shard-00000.safetensors");
    let before = fs::read(&shard).expect("read");
    let mut after = before.clone();
    change(&mut after);
    fs::write(&shard, &after).expect("written");
    let size = |bytes: &[u8]| format!("\"bytes\": {},", bytes.len());
    replace_manifest(folder, |manifest| {
        assert!(manifest.contains(&digest(&before)) && manifest.contains(&size(&before)));
        let manifest = manifest.replace(&digest(&before), &digest(&after));
        manifest.replacen(&size(&before), &size(&after), 1)
    });
}

/// Replaces the manifest of a checkpoint, and makes its digest right again.
pub(crate) fn replace_manifest(folder: &Path, change: impl FnOnce(&str) -> String) {
    let manifest = fs::read_to_string(folder.join("manifest.json")).expect("read");
    let manifest = change(&manifest);
    fs::write(folder.join("manifest.json"), &manifest).expect("written");
    let of_manifest = format!("{}\n", digest(manifest.as_bytes()));
    fs::write(folder.join("manifest.blake3"), of_manifest).expect("written");
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}
