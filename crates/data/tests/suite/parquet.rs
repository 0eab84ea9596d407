//! Documents in Parquet files, as PyArrow writes them (benches/golden/make_parquet.py).

use std::fs;
use std::path::{Path, PathBuf};

use shardloom_data::{Corpus, DataError, Reading, Tokenizer};

/// A file of `tests/parquet`, in a folder of its own, as tokens are kept beside it.
fn copied(folder: &Path, name: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet").join(name);
    let to = folder.join(name).with_extension("parquet");
    fs::copy(from.with_extension("golden"), &to).expect("a file of tests/parquet");
    to
}

fn bytes(path: &Path, field: &str) -> Result<Vec<u8>, DataError> {
    let reading = Reading { text_field: field.into(), ..Reading::default() };
    let corpus = Corpus::open(&[path.to_path_buf()], &Tokenizer::bytes(), 0.0, &reading)?;
    let mut tokens = vec![];
    corpus.read(0..corpus.training_len(), &mut tokens)?;
    Ok(tokens.into_iter().map(|token| token as u8).collect())
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_the_feature_a_parquet_file_is_refused_and_in_a_folder_no_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = copied(folder.path(), "plain.parquet");
    // Also in a folder that has nothing else.
    for path in [path.as_path(), folder.path()] {
        let error = bytes(path, "text").expect_err("no feature").to_string();
        assert!(error.contains("plain.parquet") && error.contains("--features parquet"), "{error}");
    }
    fs::write(folder.path().join("a.txt"), "ab").expect("a file");
    let paths = [folder.path().to_path_buf()];
    let corpus = Corpus::open(&paths, &Tokenizer::bytes(), 0.0, &Reading::default());
    let corpus = corpus.expect("a text");
    assert_eq!((corpus.training_len(), corpus.skipped()), (2, &[path][..]));
    assert!(!folder.path().join(".shardloom-cache").exists());
}

#[cfg(feature = "parquet")]
mod with_the_feature {
    use super::*;

    /// What make_parquet.py writes.
    fn texts() -> String {
        let many = (0..3000).map(|at| format!("text {} of many", at % 7));
        ["one\ntwo", "", "three é ₤ 🦀"].map(str::to_owned).into_iter().chain(many).collect()
    }

    fn refused(path: &Path, field: &str, parts: &[&str]) {
        let error = bytes(path, field).expect_err("no texts").to_string();
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn each_row_is_a_document_however_it_is_compressed_and_encoded() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["snappy.parquet", "zstd.parquet", "gzip.parquet"] {
            let path = copied(folder.path(), name);
            let read = bytes(&path, "text").expect("documents");
            assert_eq!(String::from_utf8(read).expect("text"), texts(), "{name}");
        }
    }

    #[test]
    fn the_end_of_text_stands_behind_each_and_a_folder_may_have_other_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tokenizer = folder.path().join("tokenizer.json");
        let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
            "decoder": null, "model": {"type": "WordLevel",
            "vocab": {"?": 0, "ab": 1, "c": 2, "</s>": 3}, "unk_token": "?"}}"#;
        fs::write(&tokenizer, json).expect("a tokenizer");
        let tokenizer = Tokenizer::open(&tokenizer).expect("a tokenizer");
        let all = folder.path().join("all");
        fs::create_dir(&all).expect("a folder");
        copied(&all, "plain.parquet");
        fs::write(all.join("a.jsonl"), "{\"text\": \"c\"}\n").expect("a file");
        let corpus = Corpus::open(&[all], &tokenizer, 0.0, &Reading::default()).expect("documents");
        let mut tokens = vec![];
        corpus.read(0..corpus.training_len(), &mut tokens).expect("tokens");
        assert_eq!(tokens, [2, 3, 1, 3, 2, 3]);
        assert!(corpus.skipped().is_empty());
    }

    #[test]
    fn what_has_no_text_is_named_by_its_row_or_column() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let null = copied(folder.path(), "null.parquet");
        refused(&null, "text", &["null.parquet, row 1501", "its \"text\" is null"]);
        let binary = copied(folder.path(), "binary.parquet");
        refused(&binary, "text", &["binary.parquet, row 2", "not UTF-8"]);
        refused(&binary, "body", &["no column \"body\", but id, text, tags", "--text-field"]);
        for field in ["id", "tags"] {
            refused(&binary, field, &[&format!("its column {field:?} is no text")]);
        }
        let other = folder.path().join("other.parquet");
        fs::write(&other, "no parquet").expect("a file");
        refused(&other, "text", &["other.parquet: it cannot be read as Parquet"]);
    }

    #[test]
    fn damaged_files_are_refused_or_read_and_never_a_panic() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["zstd.parquet", "gzip.parquet", "snappy.parquet"] {
            let path = copied(folder.path(), name);
            let sound = fs::read(&path).expect("a file");
            let mut refused = 0;
            let mut state = 7_u64;
            for _ in 0..150 {
                let mut damaged = sound.clone();
                for _ in 0..3 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Mostly in what says where texts are.
                    let place = damaged.len() - 1 - (state >> 33) as usize % 800;
                    damaged[place] ^= (state >> 24) as u8 | 1;
                }
                fs::write(&path, &damaged).expect("a file");
                refused += usize::from(bytes(&path, "text").is_err());
            }
            assert!((30..150).contains(&refused), "{name}: {refused} of 150 were refused");
        }
    }
}
