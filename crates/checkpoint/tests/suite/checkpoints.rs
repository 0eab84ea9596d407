//! Checkpoints on disk: any sharding in, any sharding out, and nothing that is
//! not exactly what was written.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use safetensors::SafeTensors;
use shardloom_checkpoint::CheckpointError;
use shardloom_checkpoint::{
    Checkpoint, FORMAT_VERSION, Meta, Piece, Saved, Snapshot, Store, Writer, read_safetensors,
};

fn meta() -> Meta {
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
fn save(root: &Path, step: u64, value: f32, keep: Option<usize>) -> PathBuf {
    let writer = Writer::create(root, step).expect("created");
    fill(&writer, value);
    writer.finish(meta(), keep.and_then(NonZeroUsize::new)).expect("finished")
}

fn fill(writer: &Writer, value: f32) {
    let half = [value; 4];
    writer.shard(0, [Piece::block("w", &[2, 4], &[0, 0], &[1, 4], &half)]).expect("written");
    let bias = Piece::whole("bias", &[3], &[1.0, -0.0, f32::NAN]);
    let rest = Piece::block("w", &[2, 4], &[1, 0], &[1, 4], &half);
    writer.shard(1, [bias, rest]).expect("written");
}

fn load(root: &Path) -> Checkpoint {
    let (checkpoint, refused) =
        Store::open(root).expect("opened").load_latest().expect("a checkpoint");
    assert_eq!(refused, []);
    checkpoint
}

fn value(checkpoint: &Checkpoint) -> f32 {
    let values = checkpoint.read_whole("w").expect("read");
    assert!(values.iter().all(|&value| value == values[0]), "{values:?}");
    values[0]
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).expect("listed").map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    files
}

fn names(folder: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().expect("named").to_string_lossy().into_owned();
    files(folder).iter().map(name).collect()
}

#[test]
fn a_checkpoint_gives_back_what_was_recorded() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 20, 0.5, None);
    assert_eq!(folder, root.path().join("step-00000020"));
    assert_eq!(
        names(&folder),
        ["manifest.blake3", "manifest.json", "shard-00000.safetensors", "shard-00001.safetensors"]
    );
    let checkpoint = Checkpoint::open(&folder).expect("opened");
    assert_eq!((checkpoint.step(), checkpoint.path()), (20, folder.as_path()));
    assert_eq!(*checkpoint.meta(), meta());
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["bias", "w"]);
    assert_eq!(checkpoint.global_shape("w"), Some(&[2, 4][..]));
    assert_eq!(checkpoint.global_shape("v"), None);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let bias = checkpoint.read_whole("bias").expect("read");
    assert_eq!(bits(bias), bits(vec![1.0, -0.0, f32::NAN]), "every bit survives");
}

#[test]
fn a_shard_is_a_safetensors_file_others_can_read() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    let bytes = fs::read(folder.join("shard-00001.safetensors")).expect("read");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(names, ["bias#0", "w#1"]);
    assert_eq!(file.tensor("w#1").expect("there").data(), [0, 0, 0, 63].repeat(4));
}

#[test]
fn ranks_write_from_their_own_threads() {
    const RANKS: u32 = 8;
    let root = tempfile::tempdir().expect("temporary folder");
    let writer = Writer::create(root.path(), 3).expect("created");
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let writer = &writer;
            scope.spawn(move || {
                let row = [rank as f32; 5];
                let start = [rank as usize, 0];
                writer
                    .shard(rank, [Piece::block("w", &[RANKS as usize, 5], &start, &[1, 5], &row)])
                    .expect("written");
            });
        }
    });
    writer.finish(meta(), None).expect("finished");
    let column = load(root.path()).read("w", &[0, 2], &[8, 1]).expect("read");
    assert_eq!(column, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[test]
fn what_cannot_be_read_back_is_not_written() {
    let root = tempfile::tempdir().expect("temporary folder");
    let begin = || Writer::create(root.path(), 1).expect("created");

    let writer = begin();
    let error = writer.shard(0, [Piece::flat("w", &[2, 2], &[0, 0], &[2, 2], 3, &[0.0; 2])]);
    let message = error.expect_err("too many").to_string();
    assert!(message.contains("the range 3..5 is not inside the 4 elements"), "{message}");

    let writer = begin();
    let mut piece = Piece::whole("w", &[2], &[0.0; 2]);
    piece.data = &[0.0; 3];
    let message = writer.shard(0, [piece]).expect_err("too many").to_string();
    assert!(message.contains("has 2 elements, but there are 3 values"), "{message}");

    let writer = begin();
    writer.shard(0, [Piece::whole("w", &[2], &[0.0; 2])]).expect("written");
    let error = writer.shard(0, [Piece::whole("v", &[2], &[0.0; 2])]).expect_err("twice");
    assert!(matches!(error, CheckpointError::ShardTwice { rank: 0, .. }), "{error}");
    let error = writer.shard(1, [Piece::whole("w", &[1, 2], &[0.0; 2])]).expect_err("conflict");
    assert_eq!(error.to_string(), "tensor `w` has shape [2] in one piece and [1, 2] in another");

    let writer = begin();
    writer.shard(0, [Piece::flat("w", &[3, 4], &[1, 0], &[2, 2], 1, &[0.0; 3])]).expect("written");
    assert_eq!(
        writer.finish(meta(), None).expect_err("gaps").to_string(),
        "tensor `w`: 9 of 12 elements are in no piece, the first at [0, 0]"
    );

    let error = begin().finish(meta(), None).expect_err("nothing");
    assert!(matches!(error, CheckpointError::NoTensors { step: 1 }), "{error}");

    assert_eq!(names(root.path()), [""; 0], "failed writers leave nothing behind");
}

#[test]
fn a_snapshot_gives_back_any_part_of_any_box() {
    let element = |row: usize, column: usize| (4 * row + column) as f32;
    let block = |rows: Range<usize>, columns: Range<usize>| -> Vec<f32> {
        rows.flat_map(|row| columns.clone().map(move |column| element(row, column))).collect()
    };
    let mut snapshot = Snapshot::default();
    for first in [2, 0] {
        let half = block(0..3, first..first + 2);
        let piece = Piece::block("w", &[3, 4], &[0, first], &[3, 2], &half);
        snapshot.add(&piece).expect("it fits");
    }
    assert_eq!(snapshot.global_shape("w"), Some(&[3, 4][..]));
    assert_eq!(snapshot.read_whole("w").expect("it is there"), block(0..3, 0..4));
    for (rows, columns) in [(0..3, 1..3), (1..3, 0..4), (2..3, 3..4), (0..2, 2..4)] {
        let whole = block(rows.clone(), columns.clone());
        let (start, extent) = ([rows.start, columns.start], [rows.len(), columns.len()]);
        for first in 0..whole.len() {
            for end in first + 1..=whole.len() {
                let found = snapshot.read_flat("w", &start, &extent, first..end).expect("inside");
                assert_eq!(found, whole[first..end], "{first}..{end} of {rows:?} x {columns:?}");
            }
        }
    }
    let error = snapshot.read_whole("v").expect_err("it was not added");
    assert_eq!(error.to_string(), "no tensor `v` in the state of the run");
}

#[test]
fn reading_what_is_not_there_says_what_is() {
    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 1, 0.5, None);
    let checkpoint = load(root.path());
    let message = checkpoint.read_whole("v").expect_err("unknown").to_string();
    assert!(message.starts_with("no tensor `v` in ") && message.ends_with("it holds `bias`, `w`"));
    for (start, extent) in
        [(vec![0], vec![2]), (vec![1, 0], vec![2, 4]), (vec![0, 0], vec![2, usize::MAX])]
    {
        let error = checkpoint.read("w", &start, &extent).expect_err("outside");
        assert!(matches!(error, CheckpointError::Piece { .. }), "{error}");
    }
    let error = checkpoint.read_flat("w", &[0, 0], &[2, 2], 3..5).expect_err("outside");
    assert!(matches!(error, CheckpointError::Piece { .. }), "{error}");
}

#[test]
fn of_many_tensors_the_first_eight_are_named_and_the_others_counted() {
    let message = |tensors: u32| {
        let root = tempfile::tempdir().expect("temporary folder");
        let writer = Writer::create(root.path(), 1).expect("created");
        let names: Vec<String> = (0..tensors).map(|number| format!("w{number}")).collect();
        writer
            .shard(0, names.iter().map(|name| Piece::whole(name, &[1], &[0.0])))
            .expect("written");
        writer.finish(meta(), None).expect("finished");
        load(root.path()).read_whole("v").expect_err("unknown").to_string()
    };
    let all = "it holds `w0`, `w1`, `w2`, `w3`, `w4`, `w5`, `w6`, `w7`";
    for (tensors, rest) in [(8, ""), (9, " and 1 more"), (10, " and 2 more")] {
        let found = message(tensors);
        // Names are in their order as text.
        assert!(found.ends_with(&format!("{all}{rest}")), "{found}");
    }
}

#[test]
fn the_last_ones_are_kept_and_later_steps_left_alone() {
    let root = tempfile::tempdir().expect("temporary folder");
    for step in [1, 2, 30] {
        save(root.path(), step, step as f32, None);
    }
    save(root.path(), 3, 3.0, Some(2));
    assert_eq!(names(root.path()), ["step-00000002", "step-00000003", "step-00000030"]);
    save(root.path(), 40, 40.0, Some(1));
    assert_eq!(names(root.path()), ["step-00000040"]);
}

#[test]
fn a_step_written_again_replaces_the_former_one() {
    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 5, 1.0, None);
    save(root.path(), 5, 2.0, Some(1));
    assert_eq!(names(root.path()), ["step-00000005"]);
    assert_eq!(value(&load(root.path())), 2.0);
}

#[test]
fn a_crash_while_writing_leaves_the_former_checkpoint() {
    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 5, 1.0, None);
    let writer = Writer::create(root.path(), 6).expect("created");
    fill(&writer, 2.0);
    std::mem::forget(writer);
    assert_eq!(names(root.path()), [".writing-step-00000006", "step-00000005"]);
    assert_eq!(value(&load(root.path())), 1.0);
    assert_eq!(names(root.path()).len(), 2, "reading changes nothing");

    save(root.path(), 6, 3.0, None);
    assert_eq!(names(root.path()), ["step-00000005", "step-00000006"]);
    assert_eq!(value(&load(root.path())), 3.0);
}

#[test]
fn a_crash_while_replacing_leaves_the_former_or_the_new_checkpoint() {
    let root = tempfile::tempdir().expect("temporary folder");
    let (visible, former) =
        (root.path().join("step-00000005"), root.path().join(".replaced-step-00000005"));

    // Before the new one got its name.
    save(root.path(), 5, 1.0, None);
    fs::rename(&visible, &former).expect("renamed");
    assert_eq!(value(&load(root.path())), 1.0);
    drop(Writer::create(root.path(), 6).expect("created"));
    assert_eq!(names(root.path()), ["step-00000005"]);

    // After that, before the former one was deleted.
    fs::rename(&visible, &former).expect("renamed");
    let other = tempfile::tempdir().expect("temporary folder");
    fs::rename(save(other.path(), 5, 2.0, None), &visible).expect("renamed");
    assert_eq!(value(&load(root.path())), 2.0);
    drop(Writer::create(root.path(), 6).expect("created"));
    assert_eq!(names(root.path()), ["step-00000005"]);
    assert_eq!(value(&load(root.path())), 2.0);
}

#[test]
fn only_its_own_leftovers_are_cleared() {
    let root = tempfile::tempdir().expect("temporary folder");
    for name in [".writing-notes", ".deleting-step-00000001", ".git", "step-1", "log"] {
        fs::create_dir(root.path().join(name)).expect("made");
    }
    save(root.path(), 2, 1.0, Some(1));
    assert_eq!(names(root.path()), [".git", ".writing-notes", "log", "step-00000002", "step-1"]);
}

#[test]
fn a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used() {
    let root = tempfile::tempdir().expect("temporary folder");
    for step in 1..=4 {
        save(root.path(), step, step as f32, None);
    }
    let step = |step: u64| root.path().join(format!("step-{step:08}"));
    fs::remove_file(step(4).join("manifest.json")).expect("removed");
    fs::write(step(3).join("shard-00001.safetensors"), b"short").expect("written");
    let (checkpoint, refused) =
        Store::open(root.path()).expect("opened").load_latest().expect("a checkpoint");
    assert_eq!(checkpoint.step(), 2);
    assert_eq!(
        refused.iter().map(|refused| &refused.path).collect::<Vec<_>>(),
        [&step(4), &step(3)]
    );
    assert!(refused[0].reason.contains("manifest.json"), "{}", refused[0]);
    assert!(refused[1].reason.contains("shard-00001.safetensors is damaged: it has 5 bytes"));
}

#[test]
fn no_usable_checkpoint_is_an_error_that_lists_all() {
    let root = tempfile::tempdir().expect("temporary folder");
    let store = Store::open(root.path()).expect("opened");
    let message = store.load_latest().expect_err("empty").to_string();
    assert_eq!(message, format!("no usable checkpoint in {}", root.path().display()));

    for step in [1, 2] {
        let folder = save(root.path(), step, 1.0, None);
        fs::remove_file(folder.join("shard-00000.safetensors")).expect("removed");
    }
    let message = store.load_latest().expect_err("damaged").to_string();
    assert_eq!(message.lines().count(), 3);
    assert!(message.lines().nth(1).expect("newest first").contains("step-00000002"), "{message}");

    let error = Store::open(&root.path().join("absent")).expect_err("absent").to_string();
    assert!(error.starts_with("there is no folder") && error.contains("absent"), "{error}");
}

#[test]
fn a_renamed_checkpoint_is_not_taken_for_a_newer_one() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 1.0, None);
    let renamed = root.path().join("step-00000009");
    fs::rename(folder, &renamed).expect("renamed");
    let message = Store::open(root.path()).expect("opened").load_latest().expect_err("renamed");
    assert!(message.to_string().contains("its manifest is of step 1"), "{message}");
    assert_eq!(Checkpoint::open(&renamed).expect("named by hand").step(), 1);
}

#[test]
fn another_format_version_is_refused_with_both_versions() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 1.0, None);
    let manifest = folder.join("manifest.json");
    let text = fs::read_to_string(&manifest).expect("read");
    // What a later build would write: a sound digest, keys of its own.
    let text = text.replace("\"format_version\": 1", "\"format_version\": 2, \"new\": true");
    fs::write(&manifest, &text).expect("written");
    let digest = format!("{}\n", blake3::hash(text.as_bytes()).to_hex());
    fs::write(folder.join("manifest.blake3"), digest).expect("written");
    let error = Checkpoint::open(&folder).expect_err("newer");
    assert_eq!(FORMAT_VERSION, 1);
    assert!(
        matches!(error, CheckpointError::FormatVersion { found: 2, supported: 1, .. }),
        "{error}"
    );
    let message = error.to_string();
    assert!(message.ends_with("format version 2, but this build reads version 1"), "{message}");
}

/// Replaces the first shard of a checkpoint, and makes all its digests and sizes right again.
fn replace_shard(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) {
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
fn replace_manifest(folder: &Path, change: impl FnOnce(&str) -> String) {
    let manifest = fs::read_to_string(folder.join("manifest.json")).expect("read");
    let manifest = change(&manifest);
    fs::write(folder.join("manifest.json"), &manifest).expect("written");
    let of_manifest = format!("{}\n", digest(manifest.as_bytes()));
    fs::write(folder.join("manifest.blake3"), of_manifest).expect("written");
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
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

#[test]
fn export_writes_whole_tensors_of_the_chosen_names() {
    let root = tempfile::tempdir().expect("temporary folder");
    let writer = Writer::create(root.path(), 1).expect("created");
    let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
    writer
        .shard(0, [Piece::flat("w", &[3, 4], &[0, 0], &[3, 4], 0, &values[..5])])
        .expect("written");
    let scalar = Piece::whole("scale", &[], &[0.25]);
    let moment = Piece::whole("adam.m", &[1], &[1.0]);
    let rest = Piece::flat("w", &[3, 4], &[0, 0], &[3, 4], 5, &values[5..]);
    writer.shard(1, [scalar, moment, rest]).expect("written");
    writer.finish(meta(), None).expect("finished");

    let checkpoint = load(root.path());
    let path = root.path().join("weights.safetensors");
    fs::write(root.path().join("weights.safetensors.writing"), "left by a crash").expect("written");
    for _ in 0..2 {
        checkpoint
            .export_safetensors(&path, |name| !name.starts_with("adam."))
            .expect("exported, and replaced");
    }
    let tensors = read_safetensors(&path).expect("read");
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["scale", "w"]);
    assert_eq!((&tensors["w"].shape[..], &tensors["w"].values), (&[3, 4][..], &values));
    assert_eq!((&tensors["scale"].shape[..], &tensors["scale"].values[..]), (&[][..], &[0.25][..]));
    assert_eq!(names(root.path()), ["step-00000001", "weights.safetensors"]);
    let error = checkpoint.export_safetensors(&path, |_| false).expect_err("nothing chosen");
    assert!(matches!(error, CheckpointError::NoTensors { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn export_writes_into_a_pipe_what_it_writes_into_a_file_and_leaves_it_a_pipe() {
    use std::os::unix::fs::FileTypeExt;

    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 1, 0.5, None);
    let checkpoint = load(root.path());
    let [pipe, file] = ["pipe", "weights.safetensors"].map(|name| root.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs");
    assert!(made.success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe)
    });
    checkpoint.export_safetensors(&pipe, |name| name == "w").expect("exported");
    assert!(fs::metadata(&pipe).expect("it is there").file_type().is_fifo());
    checkpoint.export_safetensors(&file, |name| name == "w").expect("exported");
    let read = reader.join().expect("it reads").expect("bytes");
    assert_eq!(read, fs::read(&file).expect("bytes"));
}

/// The length of the header comes first, in 8 bytes; spaces fill the header up so that values are aligned
/// (safetensors' format).
#[test]
fn values_begin_at_a_multiple_of_eight_bytes() {
    let root = tempfile::tempdir().expect("temporary folder");
    for length in 1..=9 {
        let name = "w".repeat(length);
        let writer = Writer::create(root.path(), length as u64).expect("created");
        writer.shard(0, [Piece::whole(&name, &[1], &[0.5])]).expect("written");
        let folder = writer.finish(meta(), None).expect("finished");
        let exported = root.path().join("weights.safetensors");
        let checkpoint = Checkpoint::open(&folder).expect("read back");
        checkpoint.export_safetensors(&exported, |_| true).expect("exported");
        for file in [folder.join("shard-00000.safetensors"), exported] {
            let bytes = fs::read(&file).expect("read");
            let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            assert!(header.is_multiple_of(8), "a header of {header} bytes in {}", file.display());
            assert_eq!(bytes.len() as u64, 8 + header + 4);
        }
    }
}

/// As the command line is asked to, in the folder where it runs.
#[test]
fn weights_are_written_to_a_name_without_a_folder() {
    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 1, 0.5, None);
    let here = tempfile::NamedTempFile::new_in(".").expect("a file here");
    let name = Path::new(here.path().file_name().expect("a name"));
    load(root.path()).export_safetensors(name, |name| name == "w").expect("exported");
    assert_eq!(read_safetensors(here.path()).expect("read")["w"].values, [0.5; 8]);
}

/// A shard that the manifest does not list, as another program could write it.
#[test]
fn elements_that_no_shard_has_are_missing_where_they_are_read() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    let path = folder.join("manifest.json");
    let mut manifest: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("read")).expect("JSON");
    let shards = manifest["shards"].as_array_mut().expect("a list");
    shards.remove(1);
    let text = serde_json::to_string_pretty(&manifest).expect("JSON");
    fs::write(&path, &text).expect("written");
    let digest = format!("{}\n", blake3::hash(text.as_bytes()).to_hex());
    fs::write(folder.join("manifest.blake3"), digest).expect("written");
    let checkpoint = Checkpoint::open(&folder).expect("all that is listed is sound");
    assert_eq!(checkpoint.read("w", &[0, 0], &[1, 4]).expect("there"), [0.5; 4]);
    let error = checkpoint.read_whole("w").expect_err("half of it is not there");
    let CheckpointError::MissingElements { name, missing, elements, first } = &error else {
        panic!("{error}");
    };
    assert_eq!((name.as_str(), *missing, *elements, &first[..]), ("w", 4, 8, &[1, 0][..]));
}

/// A random cut of a tensor: boxes, some of them cut again into flat ranges.
/// Every element is in exactly one part.
type Part = (Vec<usize>, Vec<usize>, Range<usize>);

fn cut(shape: &[usize], choices: &mut impl FnMut(usize) -> usize) -> Vec<Part> {
    let mut boxes = vec![(vec![0; shape.len()], shape.to_vec())];
    let cuts = if shape.is_empty() { 0 } else { choices(5) };
    for _ in 0..cuts {
        let (mut start, mut extent) = boxes.swap_remove(choices(boxes.len()));
        let axis = choices(shape.len());
        let at = choices(extent[axis] + 1);
        let mut upper = (start.clone(), extent.clone());
        upper.0[axis] += at;
        upper.1[axis] -= at;
        extent[axis] = at;
        boxes.push((std::mem::take(&mut start), extent));
        boxes.push(upper);
    }
    let mut parts = Vec::new();
    for (start, extent) in boxes {
        let elements = extent.iter().product();
        let mut ends: Vec<usize> = (0..choices(4)).map(|_| choices(elements + 1)).collect();
        ends.push(elements);
        ends.sort_unstable();
        let mut first = 0;
        for end in ends {
            parts.push((start.clone(), extent.clone(), first..end));
            first = end;
        }
    }
    parts
}

/// The elements of a part, one by one.
fn gather(shape: &[usize], values: &[f32], (start, extent, range): &Part) -> Vec<f32> {
    let element = |mut at: usize| {
        let (mut offset, mut stride) = (0, 1);
        for axis in (0..shape.len()).rev() {
            offset += (start[axis] + at % extent[axis]) * stride;
            at /= extent[axis];
            stride *= shape[axis];
        }
        values[offset]
    };
    range.clone().map(element).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_is_read_back_under_any_other(
        shapes in prop::collection::vec(prop::collection::vec(0_usize..7, 0..4), 1..4),
        random in prop::collection::vec(any::<usize>(), 300),
    ) {
        let mut random = random.into_iter().cycle();
        let mut choices = |below: usize| random.next().expect("endless") % below;
        let tensors: Vec<Vec<f32>> = shapes
            .iter()
            .map(|shape| (0..shape.iter().product::<usize>()).map(|at| at as f32 + 0.5).collect())
            .collect();

        let root = tempfile::tempdir().expect("temporary folder");
        let writer = Writer::create(root.path(), 1).expect("created");
        let mut ranks = vec![Vec::new(); 3];
        for (number, (shape, values)) in shapes.iter().zip(&tensors).enumerate() {
            for part in cut(shape, &mut choices) {
                let data = gather(shape, values, &part);
                ranks[choices(3)].push((format!("t{number}"), shape, part, data));
            }
        }
        for (rank, pieces) in ranks.iter().enumerate() {
            let pieces = pieces.iter().map(|(name, shape, (start, extent, range), data)| {
                Piece::flat(name, shape, start, extent, range.start, data)
            });
            writer.shard(rank as u32, pieces).expect("written");
        }
        writer.finish(meta(), None).expect("finished");

        let checkpoint = load(root.path());
        prop_assert_eq!(checkpoint.names().len(), shapes.len());
        for (number, (shape, values)) in shapes.iter().zip(&tensors).enumerate() {
            let name = format!("t{number}");
            prop_assert_eq!(checkpoint.global_shape(&name), Some(&shape[..]));
            prop_assert_eq!(&checkpoint.read_whole(&name).expect("read"), values);
            for part in cut(shape, &mut choices) {
                let wanted = gather(shape, values, &part);
                let (start, extent, range) = part;
                let found = checkpoint.read_flat(&name, &start, &extent, range).expect("read");
                prop_assert_eq!(found, wanted);
            }
        }
    }
}

#[test]
fn flipping_any_one_byte_of_any_file_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    for file in files(&folder) {
        let original = fs::read(&file).expect("read");
        for at in 0..original.len() {
            let mut flipped = original.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&file, &flipped).expect("written");
            let error = Checkpoint::open(&folder).expect_err("altered");
            assert!(
                matches!(error, CheckpointError::Damaged { .. }),
                "byte {at} of {}: {error}",
                file.display()
            );
        }
        fs::write(&file, &original).expect("written");
    }
    Checkpoint::open(&folder).expect("restored");
}

#[test]
fn truncating_or_extending_any_file_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    for file in files(&folder) {
        let original = fs::read(&file).expect("read");
        for length in (0..original.len()).chain([original.len() + 1]) {
            let mut changed = original.clone();
            changed.resize(length, 0);
            fs::write(&file, &changed).expect("written");
            let error = Checkpoint::open(&folder).expect_err("altered");
            assert!(
                matches!(error, CheckpointError::Damaged { .. }),
                "{length} of {}: {error}",
                file.display()
            );
        }
        fs::write(&file, &original).expect("written");
    }
    Checkpoint::open(&folder).expect("restored");
}

/// Values of another format, in a checkpoint whose digests are all right.
#[test]
fn values_that_are_not_float32_are_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    let shard = folder.join("shard-00000.safetensors");
    let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let mut bytes = fs::read(&shard).expect("read");
    let before = digest(&bytes);
    let at = bytes.windows(5).position(|part| part == b"\"F32\"").expect("a format");
    bytes[at + 1] = b'I';
    fs::write(&shard, &bytes).expect("written");
    let manifest = fs::read_to_string(folder.join("manifest.json")).expect("read");
    assert!(manifest.contains(&before));
    let manifest = manifest.replace(&before, &digest(&bytes));
    fs::write(folder.join("manifest.json"), &manifest).expect("written");
    let of_manifest = format!("{}\n", digest(manifest.as_bytes()));
    fs::write(folder.join("manifest.blake3"), of_manifest).expect("written");
    let error = Checkpoint::open(&folder).expect_err("another format").to_string();
    assert!(error.contains("float32 values"), "{error}");
}

/// Fewer values than the piece that they are, in a checkpoint whose digests are all right.
#[test]
fn a_shard_with_fewer_values_than_its_description_says_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    let shard = folder.join("shard-00000.safetensors");
    let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let bytes = fs::read(&shard).expect("read");
    let before = digest(&bytes);
    // The length of the header, the header, the values.
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let mut header: serde_json::Value =
        serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let tensors = header.as_object_mut().expect("tensors by name");
    let (_, values) = tensors.iter_mut().find(|it| it.0 != "__metadata__").expect("a tensor");
    let count = values["shape"][0].as_u64().expect("a size");
    assert!(count > 1);
    values["shape"] = serde_json::json!([count - 1]);
    values["data_offsets"] = serde_json::json!([0, 4 * (count - 1)]);
    let text = serde_json::to_vec(&header).expect("written");
    let mut shorter = (text.len() as u64).to_le_bytes().to_vec();
    shorter.extend(text);
    shorter.extend(&bytes[8 + length..bytes.len() - 4]);
    fs::write(&shard, &shorter).expect("written");
    let manifest = fs::read_to_string(folder.join("manifest.json")).expect("read");
    let sizes = [bytes.len(), shorter.len()].map(|it| format!("\"bytes\": {it}"));
    assert!(manifest.contains(&before) && manifest.contains(&sizes[0]), "{manifest}");
    let manifest = manifest.replace(&before, &digest(&shorter)).replace(&sizes[0], &sizes[1]);
    fs::write(folder.join("manifest.json"), &manifest).expect("written");
    let of_manifest = format!("{}\n", digest(manifest.as_bytes()));
    fs::write(folder.join("manifest.blake3"), of_manifest).expect("written");
    let error = Checkpoint::open(&folder).expect_err("a value is missing").to_string();
    assert!(error.contains(&format!("it lacks {count} float32 values")), "{error}");
}
