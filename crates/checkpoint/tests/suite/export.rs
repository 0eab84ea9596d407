//! Tensors of a checkpoint as a safetensors file of their own.

use std::fs;
use std::path::Path;

use shardloom_checkpoint::{Checkpoint, CheckpointError, Piece, Writer, read_safetensors};

use crate::small_checkpoint::{load, meta, names, save};

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
    // Of a matrix so many first rows, however many are asked for; of what has none itself.
    for (rows, kept) in [(2, 8), (3, 12), (4, 12)] {
        let of = |name: &str| ["w", "scale"].contains(&name).then_some(rows);
        checkpoint.export_first_rows(&path, |name| name != "adam.m", of).expect("exported");
        let tensors = read_safetensors(&path).expect("read");
        assert_eq!(tensors["w"].shape, [rows.min(3), 4]);
        assert_eq!(tensors["w"].values, values[..kept]);
        assert_eq!(
            (&tensors["scale"].shape[..], &tensors["scale"].values[..]),
            (&[][..], &[0.25][..])
        );
    }
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
