//! From files on disk to samples.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shardloom_data::DataError;
use shardloom_data::{Batches, Corpus, Field, Part, Reading, Source, Tokenizer};

fn write(root: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("has a parent")).expect("folder made");
    fs::write(&path, content).expect("file written");
    path
}

fn open(paths: &[PathBuf]) -> Result<Corpus, DataError> {
    Corpus::open(paths, &Tokenizer::bytes(), 0.0, &Reading::default())
}

fn text(corpus: &Corpus) -> String {
    Tokenizer::bytes().decode(&training(corpus)).expect("bytes")
}

fn training(corpus: &Corpus) -> Vec<u32> {
    tokens(corpus, 0..corpus.training_len())
}

fn validation(corpus: &Corpus) -> Vec<u32> {
    let start = corpus.training_len();
    tokens(corpus, start..start + corpus.validation_len())
}

fn tokens(corpus: &Corpus, range: Range<u64>) -> Vec<u32> {
    let mut tokens = vec![7; 3];
    corpus.read(range, &mut tokens).expect("tokens");
    tokens
}

/// The first input token of a sample, by which it is known.
fn first(batches: &Batches, position: u64) -> u32 {
    batches.sample(position, &mut vec![]).expect("a sample").inputs[0]
}

/// Windows can be told apart by their first token.
fn counting(tokens: u32, validation_fraction: f64) -> Corpus {
    Corpus::from_tokens((0..tokens).collect(), tokens as usize, validation_fraction)
        .expect("a corpus")
}

#[test]
fn folders_are_read_in_path_order_without_hidden_built_binary_and_linked_files() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let root = folder.path();
    write(root, "b/two.txt", "2");
    write(root, "a.txt", "1");
    write(root, "c.rs", "3é");
    write(root, ".hidden", "x");
    write(root, ".git/config", "x");
    write(root, "target/debug/x.d", "x");
    let late_zero = [vec![b'y'; 10_000], vec![0]].concat();
    let skipped = [
        write(root, "b/image.bin", b"PNG\0"),
        write(root, "b/late.bin", late_zero),
        write(root, "b/latin1.txt", b"caf\xe9"),
    ];
    #[cfg(unix)]
    std::os::unix::fs::symlink(root, root.join("loop")).expect("linked");

    let corpus = open(&[root.to_path_buf()]).expect("a corpus");
    assert_eq!(text(&corpus), "123é");
    assert_eq!(corpus.skipped(), skipped);
}

#[test]
fn named_paths_are_read_in_the_order_given_hidden_or_not() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let last = write(folder.path(), "z.txt", "first");
    let hidden = write(folder.path(), ".a.txt", "second");
    assert_eq!(text(&open(&[last, hidden]).expect("a corpus")), "firstsecond");
}

#[test]
fn a_named_file_that_is_not_text_needs_the_byte_tokenizer() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let binary = write(folder.path(), "data.raw", b"ab\xff\0");
    let corpus = open(std::slice::from_ref(&binary)).expect("a corpus");
    assert_eq!(training(&corpus), [97, 98, 255, 0]);

    let words = write(
        folder.path(),
        "tokenizer.json",
        r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"ab": 0, "?": 1}, "unk_token": "?"}}"#,
    );
    let words = Tokenizer::open(&words).expect("a tokenizer");
    let error = Corpus::open(&[binary], &words, 0.0, &Reading::default())
        .expect_err("not text")
        .to_string();
    assert!(error.contains("data.raw is not UTF-8 text at byte 2"), "{error}");
}

#[test]
fn a_tokenizer_puts_no_special_tokens_around_texts() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}},
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"ab": 0, "?": 1, "<s>": 2}, "unk_token": "?"}}"#;
    let tokenizer =
        Tokenizer::open(&write(folder.path(), "tokenizer.json", json)).expect("a tokenizer");
    // A corpus goes on from text to text, and is encoded in parts.
    assert_eq!(tokenizer.encode("ab c ab").expect("encodes"), [0, 1, 0]);
}

#[test]
fn missing_and_empty_data_are_refused_by_path() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let error = open(&[folder.path().join("absent.txt")]).expect_err("absent").to_string();
    assert!(error.contains("absent.txt"), "{error}");

    let empty = write(folder.path(), "empty.txt", "");
    let error = open(&[empty]).expect_err("empty").to_string();
    assert!(error.starts_with("no text in ") && error.ends_with("empty.txt"), "{error}");

    let error = open(&[folder.path().to_path_buf()]).expect_err("no text");
    assert!(matches!(error, DataError::EmptyCorpus { .. }), "{error}");
}

#[test]
fn fractions_and_tokens_out_of_range_are_refused() {
    for fraction in [-0.1, 1.0, f64::NAN] {
        let error = Corpus::from_tokens(vec![0; 9], 1, fraction).expect_err("not a fraction");
        assert!(matches!(error, DataError::ValidationFraction { .. }), "{error}");
    }
    let error = Corpus::from_tokens(vec![0, 4, 5], 5, 0.0).expect_err("too high").to_string();
    assert_eq!(error, "token 5 at position 2 is outside the vocabulary of 5");
}

#[test]
fn validation_is_the_last_part_rounded_up() {
    let corpus = counting(11, 0.25);
    assert_eq!(training(&corpus), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(validation(&corpus), [8, 9, 10]);
}

#[test]
fn too_short_parts_say_how_many_tokens_they_have_and_need() {
    let error = Batches::new(counting(8, 0.0), 8, 0).expect_err("too short").to_string();
    let wanted = "the training part of the corpus has 8 tokens, but one window of sequence \
                  length 8 needs 9;";
    assert!(error.starts_with(wanted), "{error}");
    assert_eq!(Batches::new(counting(9, 0.0), 8, 0).expect("one window").epoch_len(), 1);

    let error = Batches::new(counting(100, 0.01), 8, 0).expect_err("too short").to_string();
    assert!(error.starts_with("the validation part of the corpus has 1 tokens"), "{error}");

    let error = Batches::new(counting(9, 0.0), 0, 0).expect_err("no sequence");
    assert!(matches!(error, DataError::SequenceLength), "{error}");
    let error = Batches::new(counting(9, 0.0), usize::MAX, 0).expect_err("too short");
    assert!(matches!(error, DataError::CorpusTooShort { .. }), "{error}");
}

#[test]
fn validation_samples_are_in_order_and_end() {
    let batches = Batches::new(counting(30, 0.3), 4, 5).expect("batches");
    assert_eq!(batches.validation_len(), 2);
    let mut room = vec![];
    let first = batches.validation_sample(0, &mut room).expect("reads").expect("first");
    assert_eq!((first.inputs, first.targets), (&[21, 22, 23, 24][..], &[22, 23, 24, 25][..]));
    let second = batches.validation_sample(1, &mut room).expect("reads").expect("second");
    assert_eq!(second.inputs, [25, 26, 27, 28]);
    assert_eq!(batches.validation_sample(2, &mut room).expect("reads"), None);
    let all_training = Batches::new(counting(30, 0.0), 4, 5).expect("batches");
    assert_eq!(all_training.validation_len(), 0);
    assert_eq!(all_training.validation_sample(0, &mut room).expect("reads"), None);
}

#[test]
fn the_order_of_samples_stays_the_same_across_versions() {
    // A resumed run relies on this order: changing it needs a new checkpoint
    // format version.
    let batches = Batches::new(counting(9, 0.0), 1, 42).expect("batches");
    let starts: Vec<u32> = (0..16).map(|position| first(&batches, position)).collect();
    assert_eq!(starts, [2, 3, 7, 4, 6, 0, 1, 5, 6, 7, 5, 4, 1, 2, 0, 3]);
}

#[test]
fn the_digest_changes_with_any_token_and_nothing_else() {
    let tokens = vec![1, 2, 3];
    let corpus = Corpus::from_tokens(tokens.clone(), 10, 0.0).expect("a corpus");
    let same = Corpus::from_tokens(tokens, 20, 0.5).expect("a corpus");
    let other = Corpus::from_tokens(vec![1, 2, 4], 10, 0.0).expect("a corpus");
    let expected = blake3::hash(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]).to_hex();
    assert_eq!(corpus.digest(), expected.as_str());
    same.require_digest(corpus.digest()).expect("same tokens");
    let error = other.require_digest(corpus.digest()).expect_err("changed");
    assert!(matches!(error, DataError::CorpusChanged { .. }), "{error}");
}

#[test]
fn every_epoch_has_an_order_of_its_own() {
    let windows = 24;
    let batches = Batches::new(counting(2 * windows + 1, 0.0), 2, 3).expect("whole windows");
    assert_eq!(batches.epoch_len(), u64::from(windows));
    let order = |epoch: u64| -> Vec<u32> {
        let positions = epoch * u64::from(windows)..(epoch + 1) * u64::from(windows);
        positions.map(|position| first(&batches, position)).collect()
    };
    let epochs = (0..32).chain([1000, 1001, 1 << 32, (1 << 32) + 1]);
    let orders: BTreeSet<Vec<u32>> = epochs.clone().map(order).collect();
    assert_eq!(orders.len(), epochs.count());
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(4), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_epoch_covers_every_window_once(
        sequence_length in 1_usize..20,
        windows in 1_usize..60,
        rest in 0_usize..20,
        seed: u64,
        epoch in 0_u64..1_000_000,
    ) {
        let tokens = windows * sequence_length + 1 + rest % sequence_length;
        let corpus = counting(tokens as u32, 0.0);
        let batches = Batches::new(corpus, sequence_length, seed).expect("batches");
        prop_assert_eq!(batches.epoch_len(), windows as u64);
        let mut starts = BTreeSet::new();
        for index in 0..windows as u64 {
            let mut room = vec![];
            let sample = batches.sample(epoch * windows as u64 + index, &mut room).expect("reads");
            let start = sample.inputs[0];
            let inputs: Vec<u32> = (start..start + sequence_length as u32).collect();
            let targets: Vec<u32> = inputs.iter().map(|token| token + 1).collect();
            prop_assert_eq!(sample.inputs, inputs);
            prop_assert_eq!(sample.targets, targets);
            starts.insert(start);
        }
        let wanted: BTreeSet<u32> =
            (0..windows).map(|window| (window * sequence_length) as u32).collect();
        prop_assert_eq!(starts, wanted);
    }
}

#[test]
fn documents_begin_behind_the_token_that_ends_the_one_before() {
    let tokens = [5, 9, 1, 2, 9, 9, 3, 4, 6, 9, 7, 8, 1];
    let documents = |corpus: Corpus, part, position| {
        let batches = Batches::new(corpus, 6, 1).expect("two samples");
        let mut room = vec![7; 9];
        let field = batches.field(part, position, "documents", &mut room).expect("in memory");
        field.map(|field| match field {
            Field::Indices(starts) => starts.to_vec(),
            Field::Reals(_) => panic!("positions are whole numbers"),
        })
    };
    let corpus = || Corpus::from_tokens(tokens.to_vec(), 10, 0.0).expect("a corpus");
    let ended = || corpus().with_end_of_text(9);
    let of_epoch: BTreeSet<_> =
        [0, 1].into_iter().map(|position| documents(ended(), Part::Training, position)).collect();
    // The second sample begins within a document, whose first position there is that of the sample.
    let expected = [vec![0, 0, 2, 2, 2, 5], vec![0, 0, 0, 0, 4, 4]];
    assert_eq!(of_epoch, expected.map(Some).into());
    assert_eq!(documents(corpus(), Part::Training, 0), None);
    let validated = Corpus::from_tokens([&tokens[..], &tokens].concat(), 10, 0.5);
    let validated = validated.expect("a corpus").with_end_of_text(9);
    assert_eq!(documents(validated, Part::Validation, 0), Some(vec![0, 0, 2, 2, 2, 5]));
}

/// Of every window of both parts, and the same as in whole samples.
#[test]
fn targets_are_the_tokens_one_further_and_as_many() {
    let batches = Batches::new(counting(50, 0.4), 6, 3).expect("batches");
    let positions = (0..3 * batches.epoch_len()).map(|it| (Part::Training, it));
    let held = (0..=batches.validation_len()).map(|it| (Part::Validation, it));
    for (part, position) in positions.chain(held) {
        let field = |input: &str| {
            let mut room = vec![];
            match batches.field(part, position, input, &mut room).expect("read") {
                Some(Field::Indices(tokens)) => Some(tokens.to_vec()),
                None => None,
                other => panic!("{other:?}"),
            }
        };
        let mut room = vec![];
        let sample = match part {
            Part::Training => Some(batches.sample(position, &mut room).expect("a sample")),
            Part::Validation => batches.validation_sample(position, &mut room).expect("read"),
        };
        let Some(sample) = sample else {
            assert_eq!((field("tokens"), field("targets")), (None, None));
            continue;
        };
        let first = sample.inputs[0];
        let expected = |shift: u32| (first + shift..first + shift + 6).collect::<Vec<_>>();
        assert_eq!((sample.inputs, sample.targets), (&expected(0)[..], &expected(1)[..]));
        assert_eq!(field("tokens"), Some(expected(0)));
        assert_eq!(field("targets"), Some(expected(1)));
        assert_eq!((field("documents"), field("features")), (None, None));
    }
}

#[test]
fn any_range_over_several_files_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let parts = ["ab", "c", "defg", "hi"];
    let paths: Vec<PathBuf> =
        parts.iter().map(|it| write(folder.path(), &format!("{it}.txt"), it)).collect();
    let corpus = open(&paths).expect("a corpus");
    let whole = parts.concat().into_bytes();
    let end = whole.len() as u64;
    assert_eq!(corpus.training_len(), end);
    for (start, end) in (0..=end).flat_map(|start| (start..=end).map(move |end| (start, end))) {
        let expected = whole[start as usize..end as usize].iter().map(|&it| u32::from(it));
        assert_eq!(tokens(&corpus, start..end), expected.collect::<Vec<_>>(), "{start}..{end}");
    }
}
