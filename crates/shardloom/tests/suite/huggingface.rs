//! Folders that Hugging Face's library saved, and folders for it. How `huggingface/` was made:
//! `benches/huggingface/make_golden.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use shardloom::checkpoint::{CheckpointError, Stored, Tensor, read_safetensors, write_safetensors};
use shardloom::plan::{AttentionKind, LayoutRules, Mesh, Optimizer, Plan, Uniform};
use shardloom::train::learning_rate::{Curve, LearningRate};
use shardloom::train::{OnNonFinite, RunClock, Settings};
use shardloom::{
    Data, Error, FolderForm, Model, ModelType, Sampling, Session, TextTokenizer, export_huggingface,
};

const FAMILIES: [&str; 12] = [
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "llama",
    "mistral",
    "mistral-window",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3-window",
];
const WHOLE: FolderForm =
    FolderForm { model_type: None, stored: Stored::F32, file_bytes: u64::MAX, force: false };

fn golden(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/huggingface").join(family)
}

fn recorded() -> serde_json::Value {
    serde_json::from_slice(&fs::read(golden("losses.json")).expect("recorded")).expect("JSON")
}

fn load(folder: &Path) -> Model {
    Model::load(folder.to_str().expect("a path in UTF-8")).expect("a model")
}

/// A session over all of the recorded text, which begins with the model's own weights.
fn session(model: &Model, folder: &Path, weights: &Path, tp: u32) -> Session {
    let mut session = start(model, folder, tp);
    session.load_weights(weights).expect("weights of the model");
    session
}

/// A session over all of the recorded text.
fn start(model: &Model, folder: &Path, tp: u32) -> Session {
    let text = folder.join("text.txt");
    fs::write(&text, recorded()["text"].as_str().expect("a text")).expect("written");
    let tokenizer = TextTokenizer::open("bytes").expect("a tokenizer");
    start_by(&plan(model, Mesh::of(1, 1, tp)), model, text, &tokenizer)
}

fn plan(model: &Model, mesh: Mesh) -> Plan {
    let sgd = Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0, reference_batch: None };
    let uniform = Uniform { mesh, global_batch: 4, optimizer: sgd, ..Uniform::default() };
    uniform.plan(model.graph(), &model.text(), "local")
}

/// A session over all of a text, which four samples are.
fn start_by(plan: &Plan, model: &Model, text: PathBuf, tokenizer: &TextTokenizer) -> Session {
    let sampling = Sampling { seed: 1, validation_fraction: 0.0 };
    let data = Data::open(model, &[text], tokenizer, sampling).expect("four samples");
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 0.1 }).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    Session::start(model, plan, data, settings).expect("a session")
}

fn tensors(folder: &Path) -> BTreeMap<String, Tensor> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            all.extend(read_safetensors(&path).expect("tensors"));
        }
    }
    all
}

#[test]
fn models_with_their_weights_lose_what_they_lose_there_and_train_alike_when_split() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for family in FAMILIES {
        let model = load(&golden(family));
        let weights = model.weights().expect("the folder has weights").to_path_buf();
        let expected = &recorded()["losses"][family];
        let expected = [0, 1, 2].map(|step| expected[step].as_f64().expect("a loss"));
        let losses = [1, 2].map(|tp| {
            let mut session = session(&model, folder.path(), &weights, tp);
            let losses = [(); 3].map(|()| session.step().expect("a step").loss);
            for (found, expected) in losses.iter().zip(expected) {
                let difference = (found - expected).abs() / expected;
                assert!(difference < 1e-6, "{family}, tp {tp}: {losses:?} instead of {expected}");
            }
            losses
        });
        assert!(losses[0][2] < losses[0][0], "{family} learns: {losses:?}");
        for (whole, split) in losses[0].iter().zip(losses[1]) {
            assert!((whole - split).abs() < 1e-5 * whole, "{family}: {losses:?}");
        }
    }
}

/// Three ranks do not divide a vocabulary of 256.
#[test]
fn a_padded_model_loses_with_its_weights_what_it_loses_there_and_is_written_without_padding() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for family in ["gpt2", "qwen2"] {
        let model = load(&golden(family));
        let padded = model.with_padding(96).expect("padding");
        assert_eq!((padded.vocabulary(), padded.head_size()), (Some(256), Some(256)));
        let weights = padded.weights().expect("the folder has weights").to_path_buf();
        let rules = LayoutRules::try_from("batch:dp, vocab:tp".to_owned()).expect("rules");
        let plan = Plan { layout: rules, ..plan(&padded, Mesh::of(1, 1, 3)) };
        let text = folder.path().join("text.txt");
        fs::write(&text, recorded()["text"].as_str().expect("a text")).expect("written");
        let tokenizer = TextTokenizer::open("bytes").expect("a tokenizer");
        let mut session = start_by(&plan, &padded, text, &tokenizer);
        session.load_weights(&weights).expect("weights of the model");
        for step in 0..3 {
            let expected = recorded()["losses"][family][step].as_f64().expect("a loss");
            let loss = session.step().expect("a step").loss;
            let difference = (loss - expected).abs() / expected;
            assert!(difference < 1e-6, "{family}, step {step}: {loss} instead of {expected}");
        }
        let exported = exported(&mut session, &folder.path().join(family));
        let shapes = |of: &BTreeMap<String, Tensor>| -> Vec<(String, Vec<usize>)> {
            of.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect()
        };
        assert_eq!(shapes(&exported), shapes(&tensors(&golden(family))), "{family}");
        let again = load(&folder.path().join(family).join("out"));
        assert_eq!(again.spec().network(), model.spec().network(), "{family}");
    }
}

/// The words of the recorded text as documents, and a tokenizer whose tokens are their bytes, and a space where one ends.
fn documents(folder: &Path) -> (PathBuf, TextTokenizer) {
    let recorded = recorded();
    let words = recorded["text"].as_str().expect("a text").split(' ');
    let lines: Vec<String> = words.map(|word| json!({ "text": word }).to_string()).collect();
    let text = folder.join("words.jsonl");
    fs::write(&text, lines.join("\n")).expect("written");
    let letters = (b'!'..=b'~').map(|letter| (char::from(letter).to_string(), letter.into()));
    let mut vocabulary: BTreeMap<String, u32> = letters.collect();
    vocabulary.insert("</s>".into(), b' '.into());
    vocabulary.insert("unknown".into(), 255);
    let tokenizer = json!({
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "unknown" },
        "pre_tokenizer": {
            "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false,
        },
    });
    let path = folder.join("letters.json");
    fs::write(&path, tokenizer.to_string()).expect("written");
    let tokenizer = TextTokenizer::open(path.to_str().expect("UTF-8")).expect("a tokenizer");
    (text, tokenizer)
}

#[test]
fn within_documents_models_lose_what_they_lose_there_under_a_mask() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (text, tokenizer) = documents(folder.path());
    let recorded = recorded();
    let within = recorded["losses_within_documents"].as_object().expect("some families");
    assert_eq!(within.len(), 3);
    for (family, within) in within {
        let model = load(&golden(family));
        let weights = model.weights().expect("the folder has weights");
        for (mask_documents, expected) in [(false, &recorded["losses"][family]), (true, within)] {
            for (mesh, attention) in [
                (Mesh::of(1, 1, 1), AttentionKind::Unfused),
                (Mesh::of(1, 2, 2), AttentionKind::Unfused),
                (Mesh::of(2, 1, 1), AttentionKind::Fused),
            ] {
                let plan = Plan { mask_documents, attention, ..plan(&model, mesh) };
                let mut session = start_by(&plan, &model, text.clone(), &tokenizer);
                session.load_weights(weights).expect("weights of the model");
                for step in 0..3 {
                    let loss = session.step().expect("a step").loss;
                    let expected = expected[step].as_f64().expect("a loss");
                    let difference = (loss - expected).abs() / expected;
                    assert!(difference < 1e-6, "{family}, {mesh}: {loss} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn trained_weights_go_there_and_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for family in FAMILIES {
        let model = load(&golden(family));
        let at = |name: &str| folder.path().join(family).join(name);
        let weights = model.weights().expect("weights").to_path_buf();
        let mut first = session(&model, folder.path(), &weights, 1);
        first.save(&at("run"), None).expect("saved");
        // A Phi-3 is a Llama here, and is written as one unless it is asked for.
        let model_type = (family == "phi3").then_some(ModelType::Phi3);
        let whole = FolderForm { model_type, ..WHOLE };
        let untrained = export_huggingface(&at("run"), &at("untrained"), whole).expect("exported");
        let there = tensors(&golden(family));
        assert_eq!(tensors(&at("untrained")), there, "{family}: not a bit of a weight changes");
        assert_eq!(untrained.exported.tensors, there.len());
        let reason = untrained.no_tokenizer.expect("there is none of bytes");
        assert!(reason.contains("bytes"), "{reason}");

        first.step().expect("a step");
        first.save(&at("run"), None).expect("saved");
        let form = FolderForm { file_bytes: 16_384, ..whole };
        let exported = export_huggingface(&at("run"), &at("trained"), form).expect("exported");
        assert_eq!(exported.exported.step, 1);
        assert!(exported.files.len() > 3, "{family}: several files, {:?}", exported.files);
        let again = load(&at("trained"));
        assert_eq!(again.spec().network(), model.spec().network(), "{family}");
        let weights = again.weights().expect("weights").to_path_buf();
        let mut second = session(&again, folder.path(), &weights, 2);
        let [loss, expected] = [&mut second, &mut first].map(|it| it.step().expect("a step").loss);
        let difference = (loss - expected).abs() / expected;
        assert!(difference < 1e-6, "{family}: {loss} after the way back instead of {expected}");
    }
}

/// What a session has, under Hugging Face's names.
fn exported(session: &mut Session, folder: &Path) -> BTreeMap<String, Tensor> {
    session.save(&folder.join("run"), None).expect("saved");
    export_huggingface(&folder.join("run"), &folder.join("out"), WHOLE).expect("exported");
    tensors(&folder.join("out"))
}

/// With such weights every loss would be none, whatever the data.
#[test]
fn weights_that_are_no_numbers_are_refused_by_their_place() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = load(&golden("qwen2"));
    let mut there = tensors(&golden("qwen2"));
    let norm = there.get_mut("model.norm.weight").expect("every model of the kind has it");
    norm.values[3] = f32::NAN;
    let path = folder.path().join("model.safetensors");
    let shapes = there.iter().map(|(name, it)| (name.clone(), it.shape.clone())).collect();
    let values = |name: &str| Ok::<_, CheckpointError>(there[name].values.clone());
    write_safetensors(&path, Stored::F32, shapes, None, values).expect("written");
    let mut session = start(&model, folder.path(), 1);
    let error = session.load_weights(&path).expect_err("there is a NaN");
    assert!(matches!(error, Error::NonFiniteWeights { element: 3, .. }), "{error}");
}

#[test]
fn a_new_head_is_drawn_and_everything_else_loaded_whatever_the_plan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = load(&golden("qwen2"));
    let weights = golden("qwen2");
    let there = tensors(&weights);
    for (size, expected) in
        [(256, &["head.weight"][..]), (320, &["embedding.token", "head.weight"])]
    {
        let model = model.with_head(size).expect("another head");
        assert_eq!(model.head_size(), Some(size));
        let names = |name: &str| match name {
            "head.weight" => "lm_head.weight",
            _ => "model.embed_tokens.weight",
        };
        let anew: Vec<&str> = expected.iter().map(|name| names(name)).collect();
        let mut all = [1, 2].map(|tp| {
            let at = folder.path().join(format!("{size}-{tp}"));
            fs::create_dir(&at).expect("made");
            let mut session = start(&model, &at, tp);
            let drawn = exported(&mut session, &at.join("drawn"));
            let found = session.load_weights_without_head(&weights).expect("weights but a head");
            assert_eq!(found, expected, "{size}, tp {tp}");
            let mut loaded = exported(&mut session, &at.join("loaded"));
            for name in &anew {
                assert_eq!(loaded.remove(*name), drawn.get(*name).cloned(), "{name} is drawn");
            }
            let mut rest = there.clone();
            rest.retain(|name, _| !anew.contains(&name.as_str()));
            assert_eq!(loaded, rest, "{size}, tp {tp}: nothing else is");
            session.step().expect("a step").loss
        });
        all.sort_by(f64::total_cmp);
        assert!(all[1] - all[0] < 1e-5 * all[0], "{size}: {all:?}");
    }
    let mut whole = start(&model.with_head(320).expect("another head"), folder.path(), 1);
    let error = whole.load_weights(&weights).expect_err("its head has another size");
    assert!(error.to_string().contains("weight has shape [256, 16]"), "{error}");
}

#[test]
fn an_index_says_which_file_has_which_tensor_and_their_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = load(&golden("qwen3"));
    let at = |name: &str| folder.path().join(name);
    let weights = model.weights().expect("weights").to_path_buf();
    session(&model, folder.path(), &weights, 1).save(&at("run"), None).expect("saved");
    let form = FolderForm { stored: Stored::Bf16, file_bytes: 8192, ..WHOLE };
    export_huggingface(&at("run"), &at("out"), form).expect("exported");
    let read = |name: &str| fs::read(at("out").join(name)).expect("written");
    let index: serde_json::Value =
        serde_json::from_slice(&read("model.safetensors.index.json")).expect("JSON");
    let parameters = model.graph().parameter_count();
    assert_eq!(index["metadata"]["total_size"].as_u64(), Some(2 * parameters));
    let map = index["weight_map"].as_object().expect("an object");
    assert_eq!(map.len(), tensors(&golden("qwen3")).len());
    for (name, file) in map {
        let file = at("out").join(file.as_str().expect("a name"));
        let tensors = read_safetensors(&file).expect("tensors");
        assert!(tensors.contains_key(name), "{} has {name}", file.display());
        let bytes: usize = tensors.values().map(|tensor| 2 * tensor.values.len()).sum();
        assert!(bytes <= 8192 || tensors.len() == 1, "{}: {bytes}", file.display());
    }
    let config: serde_json::Value = serde_json::from_slice(&read("config.json")).expect("JSON");
    assert_eq!(config["dtype"], "bfloat16");
}

#[test]
fn nothing_is_overwritten_unless_asked_for_and_nothing_former_is_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = load(&golden("gpt2"));
    let at = |name: &str| folder.path().join(name);
    let weights = model.weights().expect("weights").to_path_buf();
    session(&model, folder.path(), &weights, 1).save(&at("run"), None).expect("saved");
    let small = FolderForm { file_bytes: 16_384, ..WHOLE };
    export_huggingface(&at("run"), &at("out"), small).expect("exported");
    match export_huggingface(&at("run"), &at("out"), WHOLE) {
        Err(Error::Exists { path }) => assert!(path.starts_with(at("out")), "{}", path.display()),
        other => panic!("{other:?}"),
    }
    for name in ["tokenizer.json", "generation_config.json", "special_tokens_map.json"] {
        fs::write(at("out").join(name), "{}").expect("of another model");
    }
    for name in ["notes.txt", "model-best.safetensors", "model-1-of-2.safetensors"] {
        fs::write(at("out").join(name), "mine").expect("of nobody's model");
    }
    let names = |paths: &[PathBuf]| -> BTreeSet<String> {
        paths.iter().map(|it| it.file_name().expect("a name").display().to_string()).collect()
    };
    let files = fs::read_dir(at("out")).expect("a folder").map(|it| it.expect("an entry").path());
    let before = names(&files.collect::<Vec<_>>());
    let whole = FolderForm { force: true, ..WHOLE };
    let exported = export_huggingface(&at("run"), &at("out"), whole).expect("overwritten");
    let left =
        fs::read_dir(at("out")).expect("a folder").map(|it| it.expect("an entry").file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    let mine = ["model-1-of-2.safetensors", "model-best.safetensors", "notes.txt"];
    let expected = [&["config.json"], &mine[..2], &["model.safetensors"], &mine[2..]].concat();
    assert_eq!(left, expected, "nothing of the former model, and all else");
    // All that is gone is named.
    let left: BTreeSet<String> = left.iter().map(|it| it.display().to_string()).collect();
    assert_eq!(names(&exported.deleted), &before - &left);
    assert!(exported.deleted.len() > 4, "there were several files of weights: {before:?}");
    assert_eq!(load(&at("out")).weights(), Some(at("out").as_path()));
}

#[test]
fn folders_without_readable_weights_are_refused_by_what_they_have() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::copy(golden("gpt2").join("config.json"), folder.path().join("config.json"))
        .expect("copied");
    let model = load(folder.path());
    assert_eq!(model.weights(), None, "a configuration alone is a model without weights");
    let weights = golden("gpt2");
    let mut session = session(&model, folder.path(), &weights, 1);
    let mut refused = |rule: &str| {
        let error = session.load_weights(folder.path()).expect_err("refused");
        assert_eq!(error.kind(), "weights", "{error}");
        assert!(error.to_string().contains(rule), "{rule:?} is not in {error}");
    };
    refused("no model.safetensors");
    fs::write(folder.path().join("pytorch_model.bin"), "").expect("written");
    refused("pytorch_model.bin is not read");
    // A run of the folder begins with its weights, and so not at all.
    assert_eq!(load(folder.path()).weights(), Some(folder.path()));
    let index = folder.path().join("model.safetensors.index.json");
    for (text, rule) in [
        ("{", "index.json:1: it is no JSON"),
        ("{}", "weight_map"),
        (r#"{"weight_map": {"wte.weight": "../elsewhere.safetensors"}}"#, "without folders"),
    ] {
        fs::write(&index, text).expect("written");
        refused(rule);
    }
    fs::copy(golden("gpt2").join("model.safetensors"), folder.path().join("part.safetensors"))
        .expect("copied");
    fs::write(&index, r#"{"weight_map": {"no.such": "part.safetensors"}}"#).expect("written");
    refused("no tensor no.such");
}
