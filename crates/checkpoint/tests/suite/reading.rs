//! What is read back of a checkpoint or a snapshot: any part of a tensor, whatever parts it was written in.

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_checkpoint::{Checkpoint, CheckpointError, Piece, Saved, Snapshot, Writer};

use crate::small_checkpoint::{load, meta, replace_manifest, save};

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

/// A shard that the manifest does not list, as another program could write it.
#[test]
fn elements_that_no_shard_has_are_missing_where_they_are_read() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 0.5, None);
    replace_manifest(&folder, |manifest| {
        let mut manifest: serde_json::Value = serde_json::from_str(manifest).expect("JSON");
        manifest["shards"].as_array_mut().expect("a list").remove(1);
        serde_json::to_string_pretty(&manifest).expect("JSON")
    });
    let checkpoint = Checkpoint::open(&folder).expect("all that is listed is sound");
    assert_eq!(checkpoint.read("w", &[0, 0], &[1, 4]).expect("there"), [0.5; 4]);
    let error = checkpoint.read_whole("w").expect_err("half of it is not there");
    let CheckpointError::MissingElements { name, missing, elements, first } = &error else {
        panic!("{error}");
    };
    assert_eq!((name.as_str(), *missing, *elements, &first[..]), ("w", 4, 8, &[1, 0][..]));
}
