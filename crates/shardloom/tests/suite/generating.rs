//! Text from a checkpoint, by the tokenizer that the model was trained with or by another.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardloom::checkpoint::{Checkpoint, Piece, Stored, Writer};
use shardloom::plan::Uniform;
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{
    Data, Drawing, Error, FolderForm, Generator, Model, Sampling, Session, TextTokenizer, classify,
    export_huggingface, export_weights,
};

const DRAWING: Drawing = Drawing { temperature: 0.0, top_k: None, seed: 1 };

/// Words, each a token.
fn words(folder: &Path, name: &str, words: &[&str]) -> String {
    let numbered = words.iter().enumerate().map(|(index, word)| format!("{word:?}: {index}"));
    let vocabulary = numbered.collect::<Vec<_>>().join(", ");
    let text = format!(
        r#"{{
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [],
            "normalizer": null,
            "pre_tokenizer": {{ "type": "Whitespace" }},
            "post_processor": null,
            "decoder": null,
            "model": {{ "type": "WordLevel", "vocab": {{ {vocabulary} }}, "unk_token": {:?} }}
        }}"#,
        words[0]
    );
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path.display().to_string()
}

/// Checkpoints of a model with a vocabulary of 8, after a step on three words.
fn trained(folder: &Path) -> PathBuf {
    let trained = words(folder, "trained.json", &["one", "two", "three"]);
    let model = Model::load("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=8").expect("a model");
    let plan = Uniform { global_batch: 2, ..Uniform::default() };
    let plan = plan.plan(model.graph(), &model.text(), "local");
    let text = folder.join("text.txt");
    fs::write(&text, "one two three two ".repeat(20)).expect("written");
    let tokenizer = TextTokenizer::open(&trained).expect("a tokenizer");
    let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
    let data = Data::open(&model, &[text], &tokenizer, sampling).expect("enough text");
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e-3 }).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    let mut session = Session::start(&model, &plan, data, settings).expect("a session");
    session.step().expect("a step");
    let checkpoints = folder.join("run");
    session.save(&checkpoints, None).expect("saved");
    checkpoints
}

#[test]
fn a_tokenizer_that_is_given_takes_the_place_of_the_one_the_model_was_trained_with() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = trained(folder.path());
    let other = words(folder.path(), "other.json", &["eins", "zwei"]);
    let vocabulary = |tokenizer: Option<&str>| {
        let generator = Generator::open(&checkpoints, tokenizer, DRAWING).expect("a generator");
        generator.tokenizer().vocabulary_size()
    };
    assert_eq!(vocabulary(None), 3);
    assert_eq!(vocabulary(Some(&other)), 2);
    // The model has 8.
    let refused = Generator::open(&checkpoints, Some("bytes"), DRAWING).err();
    let refused = refused.expect("the model knows no 256 tokens");
    assert!(matches!(refused, Error::Vocabulary { found: 8, needed: 256, .. }), "{refused}");
}

#[test]
fn only_tokens_that_have_a_text_are_drawn() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let drawing = Drawing { temperature: 1.0, ..DRAWING };
    let mut generator =
        Generator::open(&trained(folder.path()), None, drawing).expect("a generator");
    generator.prompt("one two").expect("known words");
    // After one step all 8 are about as likely.
    let drawn: Vec<u32> = (0..50).map(|_| generator.next_token().expect("a token")).collect();
    assert!(drawn.iter().all(|&token| token < 3), "{drawn:?}");
    assert_eq!(generator.text().expect("words").split_whitespace().count(), 52);
}

/// Sizes that a manifest claims are no sizes of what is stored.
#[test]
fn a_checkpoint_of_another_model_than_it_says_is_refused_before_anything_is_allocated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let step = trained(folder.path()).join("step-00000001");
    let checkpoint = Checkpoint::open(&step).expect("a checkpoint");
    let stored: Vec<(&str, Vec<usize>, Vec<f32>)> = (checkpoint.names())
        .map(|name| {
            let shape = checkpoint.global_shape(name).expect("a tensor").to_vec();
            (name, shape, checkpoint.read_whole(name).expect("whole"))
        })
        .collect();
    let sizes =
        [("hidden=8", "hidden=2000000"), ("seq=4", "seq=4000000"), ("vocab=8", "vocab=4000000000")];
    for (stored_size, claimed) in sizes {
        let forged = folder.path().join(claimed);
        let writer = Writer::create(&forged, 1).expect("a writer");
        let pieces = stored.iter().map(|(name, shape, values)| Piece::whole(*name, shape, values));
        writer.shard(0, pieces).expect("a shard");
        let mut meta = checkpoint.meta().clone();
        meta.model = meta.model.replace(stored_size, claimed);
        assert_ne!(meta.model, checkpoint.meta().model);
        writer.finish(meta, None).expect("a checkpoint");
        let error = Generator::open(&forged, None, DRAWING).err().expect("refused").to_string();
        assert!(error.contains("but the model needs"), "{error}");
        classify(&forged, &folder.path().join("rows.csv")).expect_err("refused");
        export_weights(&forged, &folder.path().join("weights")).expect_err("refused");
    }
}

/// Tokens would be other words than the model was trained on.
#[test]
fn a_tokenizer_whose_file_has_changed_since_is_not_taken() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = trained(folder.path());
    let export = |name: &str| {
        let (stored, file_bytes) = (Stored::F32, u64::MAX);
        let form = FolderForm { model_type: None, stored, file_bytes, force: false };
        export_huggingface(&checkpoints, &folder.path().join(name), form).expect("exported")
    };
    assert_eq!(export("before").no_tokenizer, None);
    let changed = words(folder.path(), "trained.json", &["three", "two", "one"]);
    let refused = Generator::open(&checkpoints, None, DRAWING).err().expect("other words");
    assert!(matches!(refused, Error::TokenizerChanged { .. }), "{refused}");
    assert!(Generator::open(&checkpoints, Some(&changed), DRAWING).is_ok());
    let after = export("after");
    let reason = after.no_tokenizer.expect("it is not the model's");
    assert!(reason.contains("has changed since the model was trained with it"), "{reason}");
    assert!(!folder.path().join("after/tokenizer.json").exists());
}
