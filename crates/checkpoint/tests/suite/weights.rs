//! Initial weights from safetensors files of others.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use shardloom_checkpoint::{CheckpointError, Stored, read_safetensors, write_safetensors};

fn write(folder: &Path, tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) -> PathBuf {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("a view"))
    });
    let path = folder.join("weights.safetensors");
    fs::write(&path, serialize(views, None).expect("serialized")).expect("written");
    path
}

#[test]
fn half_precision_weights_are_converted_exactly() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let values = [1.0_f32, -0.5, 65504.0, 0.0];
    let path = write(
        folder.path(),
        &[
            (
                "single",
                Dtype::F32,
                vec![2, 2],
                values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            ),
            (
                "half",
                Dtype::F16,
                vec![4],
                values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            ),
            ("brain", Dtype::BF16, vec![], bf16::from_f32(-3.0).to_le_bytes().to_vec()),
        ],
    );
    let tensors = read_safetensors(&path).expect("read");
    assert_eq!(tensors.len(), 3);
    assert_eq!(
        (&tensors["single"].shape[..], &tensors["single"].values[..]),
        (&[2, 2][..], &values[..])
    );
    assert_eq!((&tensors["half"].shape[..], &tensors["half"].values[..]), (&[4][..], &values[..]));
    assert_eq!((&tensors["brain"].shape[..], &tensors["brain"].values[..]), (&[][..], &[-3.0][..]));
}

/// Numbers as a file of ours stores them, in one tensor.
fn stored(stored: Stored, values: &[f32]) -> Vec<f32> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("weights.safetensors");
    let tensors = vec![("w".to_owned(), vec![values.len()])];
    let metadata = Some(HashMap::from([("format".to_owned(), "pt".to_owned())]));
    let written = write_safetensors(&path, stored, tensors, metadata, |name| {
        assert_eq!(name, "w");
        Ok::<_, CheckpointError>(values.to_vec())
    });
    written.expect("written");
    let header =
        fs::metadata(&path).expect("a file").len() - (values.len() * stored.bytes()) as u64;
    assert_eq!(header % 8, 0, "values are aligned");
    read_safetensors(&path).expect("read").remove("w").expect("the tensor").values
}

/// The nearest number of so few bits of mantissa, of two as near the one whose last bit is 0; `value` is far
/// from the ends of the format's range.
fn nearest(value: f32, mantissa: i32) -> f32 {
    let exact = f64::from(value);
    let unit = 2f64.powi(exact.abs().log2().floor() as i32 - mantissa);
    let below = (exact / unit).floor();
    let rest = exact / unit - below;
    let up = rest > 0.5 || (rest == 0.5 && below.rem_euclid(2.0) == 1.0);
    ((if up { below + 1.0 } else { below }) * unit) as f32
}

#[test]
fn weights_in_16_bits_are_rounded_to_the_nearest_and_halves_to_even() {
    for (format, mantissa) in [(Stored::Bf16, 7), (Stored::F16, 10)] {
        let mut values = vec![];
        let last_place = 2f32.powi(-mantissa);
        for step in 0..300 {
            // A number of the format, halfway to the next one, and a little to both sides of that.
            let whole = (1.0 + step as f32 % 100.0 * last_place) * 2f32.powi(step / 100 - 1);
            let half = whole + last_place * 2f32.powi(step / 100 - 2);
            let sides = [
                whole,
                half,
                f32::from_bits(half.to_bits() + 1),
                f32::from_bits(half.to_bits() - 1),
            ];
            values.extend(sides.into_iter().flat_map(|it| [it, -it]));
        }
        let expected: Vec<f32> = values.iter().map(|&value| nearest(value, mantissa)).collect();
        assert_eq!(stored(format, &values), expected, "{format:?}");
        assert_eq!(stored(format, &[0.0, 1.0, -3.5]), [0.0, 1.0, -3.5]);
    }
    let beyond = stored(Stored::F16, &[65519.0, 65520.0, -1e9]);
    assert_eq!(beyond, [65504.0, f32::INFINITY, f32::NEG_INFINITY]);
    assert!(stored(Stored::Bf16, &[f32::NAN, f32::INFINITY])[0].is_nan());
}

#[test]
fn a_tensor_of_many_values_is_written_whole() {
    // More than are turned into bytes at a time, and no multiple of that.
    let values: Vec<f32> = (0..150_001).map(|index| (index % 2048) as f32).collect();
    assert_eq!(stored(Stored::F32, &values), values);
    assert_eq!(stored(Stored::F16, &values), values);
}

#[test]
fn other_types_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = write(
        folder.path(),
        &[("ok", Dtype::F32, vec![1], vec![0; 4]), ("ids", Dtype::I64, vec![2], vec![0; 16])],
    );
    let message = read_safetensors(&path).expect_err("integers").to_string();
    assert!(
        message.starts_with("tensor `ids` in ") && message.contains("has type I64"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(6), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_truncated_file_is_an_error_with_its_path(kept in 0.0..1.0_f64) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = write(folder.path(), &[("w", Dtype::F32, vec![3], vec![1; 12])]);
        let mut bytes = fs::read(&path).expect("read");
        bytes.truncate((bytes.len() as f64 * kept) as usize);
        fs::write(&path, bytes).expect("written");
        let error = read_safetensors(&path).expect_err("truncated");
        let named = matches!(&error, CheckpointError::Safetensors { path: named, .. } if *named == path);
        prop_assert!(named, "{}", error);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), header in 0_u64..60) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("weights.safetensors");
        fs::write(&path, [&header.to_le_bytes()[..], &bytes[..]].concat()).expect("written");
        let error = read_safetensors(&path).expect_err("not safetensors");
        let refused = matches!(error, CheckpointError::Safetensors { .. });
        prop_assert!(refused, "{}", error);
    }
}

#[test]
fn a_header_that_cannot_be_names_the_tensor_that_is_wrong() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("w.safetensors");
    for (shape, offsets, said) in [
        (
            "[2, 2]",
            "[0, 99]",
            "tensor `b` of shape [2, 2] in F32 needs 16 bytes, and has 99, from 0 to 99",
        ),
        (
            "[2, 2]",
            "[9, 1]",
            "tensor `b` of shape [2, 2] in F32 ends at byte 1, before its begin at 9",
        ),
        ("[4294967296, 4294967296]", "[0, 16]", "in F32 has more bytes than can be counted"),
    ] {
        let header = format!(
            r#"{{"a": {{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}},
                "b": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#
        );
        let length = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&length, header.as_bytes(), &[0; 16]].concat()).expect("written");
        let error = read_safetensors(&path).expect_err(said).to_string();
        assert!(error.contains("w.safetensors") && error.contains(said), "{error}");
    }
}

/// Whatever number the file begins with.
#[test]
fn a_header_that_is_longer_than_its_file_is_refused_as_that() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = write(folder.path(), &[("w", Dtype::F32, vec![2], vec![0; 8])]);
    let sound = fs::read(&path).expect("a file");
    let bytes = sound.len() as u64;
    let header = u64::from_le_bytes(*sound.first_chunk().expect("a length"));
    for claimed in (0..=bytes + 9).chain([u64::MAX - 8, u64::MAX]) {
        let mut file = sound.clone();
        file[..8].copy_from_slice(&claimed.to_le_bytes());
        fs::write(&path, &file).expect("written");
        let found = read_safetensors(&path);
        assert_eq!(found.is_ok(), claimed == header, "{claimed}: {found:?}");
        let Err(error) = found else { continue };
        let part = format!("its header of {claimed} bytes reaches past its {bytes} bytes");
        assert_eq!(error.to_string().contains(&part), claimed > bytes - 8, "{claimed}: {error}");
    }
}

/// What stood at the path before stays, and nothing is left beside it.
#[test]
fn weights_that_cannot_be_had_leave_no_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("weights.safetensors");
    let tensors = || ["a", "b"].map(|name| (name.to_owned(), vec![2])).to_vec();
    let made = |fails: Option<&str>, value: f32| -> Result<(), CheckpointError> {
        write_safetensors(&path, Stored::F32, tensors(), None, |name| match fails {
            Some(wrong) if wrong == name => Err(CheckpointError::NoTensors { step: 1 }),
            _ => Ok(vec![value; 2]),
        })
    };
    let names = || {
        let entries = fs::read_dir(folder.path()).expect("a folder");
        entries.map(|it| it.expect("an entry").file_name()).collect::<Vec<_>>()
    };
    for fails in ["a", "b"] {
        made(Some(fails), 1.0).expect_err("there are no values");
        assert!(names().is_empty(), "{:?}", names());
    }
    made(None, 2.0).expect("written");
    for fails in ["a", "b"] {
        made(Some(fails), 3.0).expect_err("there are no values");
        assert_eq!(names(), ["weights.safetensors"]);
        let kept = read_safetensors(&path).expect("the former");
        assert!(kept.values().all(|tensor| tensor.values == [2.0; 2]));
    }
}
