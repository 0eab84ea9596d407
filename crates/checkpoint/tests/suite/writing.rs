//! What ranks write as a checkpoint: it is what was recorded, and nothing is left of what cannot be read back.

use std::fs;

use safetensors::SafeTensors;
use shardloom_checkpoint::{Checkpoint, CheckpointError, Piece, Writer};

use crate::small_checkpoint::{load, meta, names, save};

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
