//! Initial weights from safetensors files of others.

use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use shardloom_checkpoint::CheckpointError;
use shardloom_checkpoint::read_safetensors;

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
