//! Files of a checkpoint that are no longer what was written: they are refused, also where all digests are right.

use std::fs;

use shardloom_checkpoint::{Checkpoint, CheckpointError, FORMAT_VERSION};

use crate::small_checkpoint::{files, replace_manifest, replace_shard, save};

/// Opens a checkpoint with each of the changed contents of each file in turn.
fn assert_damaged(changed: impl Fn(&[u8]) -> Vec<Vec<u8>>) {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    for file in files(&folder) {
        let original = fs::read(&file).expect("read");
        for (number, bytes) in changed(&original).iter().enumerate() {
            fs::write(&file, bytes).expect("written");
            let error = Checkpoint::open(&folder).expect_err("altered");
            assert!(
                matches!(error, CheckpointError::Damaged { .. }),
                "change {number} of {}: {error}",
                file.display()
            );
        }
        fs::write(&file, &original).expect("written");
    }
    Checkpoint::open(&folder).expect("restored");
}

#[test]
fn flipping_any_one_byte_of_any_file_is_refused() {
    assert_damaged(|original| {
        let flipped = |at: usize| {
            let mut bytes = original.to_vec();
            bytes[at] ^= 1 << (at % 8);
            bytes
        };
        (0..original.len()).map(flipped).collect()
    });
}

#[test]
fn truncating_or_extending_any_file_is_refused() {
    assert_damaged(|original| {
        let resized = |length: usize| {
            let mut bytes = original.to_vec();
            bytes.resize(length, 0);
            bytes
        };
        (0..original.len()).chain([original.len() + 1]).map(resized).collect()
    });
}

#[test]
fn a_manifest_of_another_format_version_is_refused_with_both_versions() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 1.0, None);
    // What a later build would write: a sound digest, keys of its own.
    replace_manifest(&folder, |manifest| {
        manifest.replace("\"format_version\": 1", "\"format_version\": 2, \"new\": true")
    });
    let error = Checkpoint::open(&folder).expect_err("newer");
    assert_eq!(FORMAT_VERSION, 1);
    assert!(
        matches!(error, CheckpointError::FormatVersion { found: 2, supported: 1, .. }),
        "{error}"
    );
    let message = error.to_string();
    assert!(message.ends_with("format version 2, but this build reads version 1"), "{message}");
}

/// This build may not understand the pieces of a later one.
#[test]
fn a_shard_of_another_format_version_is_refused_with_both_versions() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    replace_shard(&folder, |bytes| {
        // The description is a string in the header.
        let version = br#"\"format_version\":1"#;
        let at = bytes.windows(version.len()).position(|part| part == version).expect("a version");
        bytes[at + version.len() - 1] = b'2';
    });
    let shard = folder.join("shard-00000.safetensors");
    let error = Checkpoint::open(&folder).expect_err("newer");
    assert!(
        matches!(&error, CheckpointError::FormatVersion { path, found: 2, supported: 1 } if *path == shard),
        "{error}"
    );
}

/// Else a small manifest could have a shard read any number of times.
#[test]
fn a_manifest_that_names_a_shard_twice_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 20, 0.5, None);
    replace_manifest(&folder, |manifest| manifest.replace("\"rank\": 1", "\"rank\": 0"));
    let error = Checkpoint::open(&folder).expect_err("refused").to_string();
    assert!(error.ends_with("the shard of rank 0 follows that of rank 0"), "{error}");
}

/// Values of another format, in a checkpoint whose digests are all right.
#[test]
fn values_that_are_not_float32_are_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    replace_shard(&folder, |bytes| {
        let at = bytes.windows(5).position(|part| part == b"\"F32\"").expect("a format");
        bytes[at + 1] = b'I';
    });
    let error = Checkpoint::open(&folder).expect_err("another format").to_string();
    assert!(error.contains("float32 values"), "{error}");
}

/// Fewer values than the piece that they are, in a checkpoint whose digests are all right.
#[test]
fn a_shard_with_fewer_values_than_its_description_says_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    let mut count = 0;
    replace_shard(&folder, |bytes| {
        // The length of the header, the header, the values.
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let mut header: serde_json::Value =
            serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
        let tensors = header.as_object_mut().expect("tensors by name");
        let (_, values) = tensors.iter_mut().find(|it| it.0 != "__metadata__").expect("a tensor");
        count = values["shape"][0].as_u64().expect("a size");
        assert!(count > 1);
        values["shape"] = serde_json::json!([count - 1]);
        values["data_offsets"] = serde_json::json!([0, 4 * (count - 1)]);
        let text = serde_json::to_vec(&header).expect("written");
        let mut shorter = (text.len() as u64).to_le_bytes().to_vec();
        shorter.extend(text);
        shorter.extend(&bytes[8 + length..bytes.len() - 4]);
        *bytes = shorter;
    });
    let error = Checkpoint::open(&folder).expect_err("a value is missing").to_string();
    assert!(error.contains(&format!("it lacks {count} float32 values")), "{error}");
}

#[test]
fn a_shard_that_goes_on_after_its_values_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    let mut ends = 0;
    replace_shard(&folder, |bytes| {
        ends = bytes.len();
        bytes.push(0);
    });
    let message = Checkpoint::open(&folder).expect_err("too long").to_string();
    let rule = format!("its values end at byte {ends}, but it has {} bytes", ends + 1);
    assert!(message.contains(&rule), "{message}");
}
