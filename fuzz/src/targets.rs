//! What reads files and words of users, each as a function of any bytes that must return: with a value or an
//! error, never by a panic. What can be printed is printed and read again.
//!
//! The fuzzer calls them with inputs of its own, and a test of the workspace with those in `corpus`.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use shardloom_checkpoint::{Checkpoint, FORMAT_VERSION, read_safetensors, replica_of};
use shardloom_cluster::{Cluster, Hosts, Profile, Stack, Uplink};
use shardloom_data::{Columns, Corpus, Reading, Records, Rows, Table, Tokenizer};
use shardloom_exchange::{Given, Project, import, project_of};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{
    Axis, Compression, DeviceList, LayoutRules, Plan, Ranges, Share, Staleness, StalenessLimits,
};
use shardloom_schedule::StageMap;
use tempfile::TempDir;

/// What is given any bytes.
pub type Target = fn(&[u8]);

/// All targets, by the names of their folders in `corpus`.
pub const TARGETS: [(&str, Target); 28] = [
    ("plan", plan),
    ("model_words", model_words),
    ("model_toml", model_toml),
    ("cluster_words", cluster_words),
    ("cluster_toml", cluster_toml),
    ("stack_toml", stack_toml),
    ("profile_toml", profile_toml),
    ("words", words),
    ("actions", actions),
    ("huggingface_config", huggingface_config),
    ("megatron", megatron),
    ("deepspeed", deepspeed),
    ("torchtitan", torchtitan),
    ("torchtitan_table", torchtitan_table),
    ("nanotron", nanotron),
    ("accelerate", accelerate),
    ("measurements", measurements),
    ("log", log),
    ("tables", tables),
    ("documents", documents),
    ("parquet", parquet),
    ("tokens", tokens),
    ("token_cache", token_cache),
    ("tokenizer", tokenizer),
    ("safetensors", safetensors),
    ("weight_index", weight_index),
    ("trials", trials),
    ("checkpoint", checkpoint),
];

/// A model as small as one with two blocks of each kind can be.
static MODEL: LazyLock<(ModelSpec, Graph)> = LazyLock::new(|| {
    let spec = ModelSpec::parse("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32").expect("a model");
    let graph = spec.graph().expect("its graph");
    (spec, graph)
});

/// The devices that plans and configurations of others are for.
const DEVICES: usize = 8;

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// A folder of this call's own with these files.
fn folder(files: &[(&str, &[u8])]) -> (TempDir, Vec<PathBuf>) {
    let folder = TempDir::new().expect("a folder for the input");
    let paths = (files.iter())
        .map(|(name, bytes)| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("the input is written");
            path
        })
        .collect();
    (folder, paths)
}

/// A plan that is printed reads as the same plan.
fn reads_back(plan: &Plan) {
    let printed = plan.to_toml();
    let again = Plan::from_toml(&printed, "printed").expect("a printed plan can be read");
    assert_eq!(again.to_toml(), printed);
}

/// Plans, which are also validated and lowered where they are small.
pub fn plan(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match Plan::from_toml(text, "plan.toml") {
        Err(error) => drop(error.to_string()),
        Ok(plan) => {
            reads_back(&plan);
            let (_, graph) = &*MODEL;
            if let Err(error) = plan.validate(graph, DEVICES) {
                let _ = Plan::place_error(text, "plan.toml", error).to_string();
            } else if plan.global_batch <= 64 {
                let graph = plan.graph_of(graph);
                if let Ok(program) = shardloom_program::lower(&graph, &plan, DEVICES) {
                    assert!(!program.classes.is_empty(), "a program has classes");
                }
            }
        }
    }
}

fn same_model(spec: &ModelSpec) {
    let printed = spec.to_toml();
    let again = ModelSpec::from_toml(&printed, "printed").expect("a printed model can be read");
    assert_eq!(&again, spec, "{printed}");
}

/// Models in one line.
pub fn model_words(data: &[u8]) {
    match text(data).map(ModelSpec::parse) {
        Some(Ok(spec)) => same_model(&spec),
        Some(Err(error)) => drop(error.to_string()),
        None => {}
    }
}

/// Models as files.
pub fn model_toml(data: &[u8]) {
    match text(data).map(|text| ModelSpec::from_toml(text, "model.toml")) {
        Some(Ok(spec)) => same_model(&spec),
        Some(Err(error)) => drop(error.to_string()),
        None => {}
    }
}

fn same_cluster(cluster: &Cluster) {
    let Ok(printed) = cluster.to_toml() else { return };
    let again = Cluster::from_toml(&printed).expect("a printed cluster can be read");
    assert_eq!(&again, cluster, "{printed}");
}

/// Clusters in one line.
pub fn cluster_words(data: &[u8]) {
    match text(data).map(Cluster::parse) {
        Some(Ok(cluster)) => same_cluster(&cluster),
        Some(Err(error)) => drop(error.to_string()),
        None => {}
    }
}

/// Clusters as files.
pub fn cluster_toml(data: &[u8]) {
    match text(data).map(Cluster::from_toml) {
        Some(Ok(cluster)) => same_cluster(&cluster),
        Some(Err(error)) => drop(error.to_string()),
        None => {}
    }
}

/// Software stacks as files.
pub fn stack_toml(data: &[u8]) {
    match text(data).map(Stack::from_toml) {
        Some(Ok(stack)) => drop(stack.described()),
        Some(Err(error)) => drop(error.to_string()),
        None => {}
    }
}

/// Profiles as files.
pub fn profile_toml(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match Profile::from_toml(text) {
        Ok(profile) => {
            let _ = profile.described();
            if let Ok(printed) = profile.to_toml() {
                let again = Profile::from_toml(&printed).expect("a printed profile can be read");
                assert_eq!(again, profile, "{printed}");
            }
        }
        Err(error) => drop(error.to_string()),
    }
}

/// A word that is printed reads as the same word.
fn same_word<T: FromStr + ToString + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(word) = text.parse::<T>() {
        let printed = word.to_string();
        assert!(printed.parse::<T>().is_ok_and(|again| again == word), "{printed:?}");
    }
}

/// The same of words that settings of plans are.
fn same_setting<T>(text: &str)
where
    T: TryFrom<String> + Into<String> + Clone + PartialEq,
{
    if let Ok(word) = T::try_from(text.to_owned()) {
        let printed: String = word.clone().into();
        assert!(T::try_from(printed.clone()).is_ok_and(|again| again == word), "{printed:?}");
    }
}

/// What is written as one word or a short list.
pub fn words(data: &[u8]) {
    let Some(text) = text(data) else { return };
    same_word::<shardloom_collectives::Algorithm>(text);
    same_word::<shardloom_collectives::Kind>(text);
    same_word::<Compression>(text);
    same_word::<Ranges>(text);
    same_word::<Share>(text);
    same_word::<Staleness>(text);
    same_word::<StalenessLimits>(text);
    same_word::<Hosts>(text);
    same_setting::<DeviceList>(text);
    same_setting::<LayoutRules>(text);
    same_setting::<Axis>(text);
    if let Ok(uplink) = Uplink::parse(text) {
        let printed = uplink.to_string();
        assert!(Uplink::parse(&printed).is_ok(), "{printed:?}");
        let _ = uplink.of("h100-80g:2x8");
    }
    if let Err(error) = Stack::parse(text) {
        let _ = error.to_string();
    }
}

/// Orders of actions: a line is a device's, as in plans.
pub fn actions(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let places = [
        vec![vec![0, 1]],
        vec![vec![0, 1, 0, 1]],
        vec![vec![0, 1, 1, 0]],
        vec![vec![0, 1], vec![1, 0]],
    ];
    for places in places {
        let map = StageMap::new(places, 4).expect("a map of stages");
        for (line, device) in text.lines().zip([0, 1]) {
            for word in line.split_whitespace() {
                if let Ok(action) = map.parse(device, word) {
                    let printed = map.text(device, action);
                    assert_eq!(map.parse(device, &printed).ok(), Some(action), "{printed:?}");
                }
            }
        }
    }
}

/// Configurations of Hugging Face models.
pub fn huggingface_config(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for seq in [None, Some(8)] {
        match shardloom_interop::huggingface::read_config(text, "config.json", seq) {
            Ok(spec) => same_model(&spec),
            Err(error) => drop(error.to_string()),
        }
    }
}

/// A configuration of a project, with and without what it may leave open.
fn imported(project: Project, data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (spec, _) = &*MODEL;
    for given in [None, Some(spec)] {
        let given = Given {
            model: given,
            cluster: "h100-80g:1x8",
            devices: DEVICES,
            global_batch: given.map(|_| 16),
            microbatches: None,
            table: None,
        };
        match import(project, text, "configuration", &given) {
            Ok(imported) => reads_back(&imported.plan),
            Err(error) => drop(error.to_string()),
        }
    }
    let _ = project_of("configuration", text);
}

/// Command lines of Megatron-LM.
pub fn megatron(data: &[u8]) {
    imported(Project::Megatron, data);
}

/// JSON of DeepSpeed.
pub fn deepspeed(data: &[u8]) {
    imported(Project::DeepSpeed, data);
}

/// TOML, JSON and Python of torchtitan.
pub fn torchtitan(data: &[u8]) {
    imported(Project::Torchtitan, data);
}

/// A configuration of torchtitan with four stages, which names the table.
const TORCHTITAN: &str =
    include_str!("../../crates/exchange/tests/suite/torchtitan/uneven-stages.json");

/// PyTorch's tables of actions.
pub fn torchtitan_table(data: &[u8]) {
    let Some(table) = text(data) else { return };
    let none = "\"pipeline_parallel_schedule_csv\": \"\"";
    let named = TORCHTITAN.replacen(none, "\"pipeline_parallel_schedule_csv\": \"a.csv\"", 1);
    let given = Given {
        model: None,
        cluster: "h100-80g:4",
        devices: 4,
        global_batch: None,
        microbatches: None,
        table: Some(("a.csv", table)),
    };
    match import(Project::Torchtitan, &named, "plan.json", &given) {
        Ok(imported) => reads_back(&imported.plan),
        Err(error) => drop(error.to_string()),
    }
}

/// YAML of nanotron.
pub fn nanotron(data: &[u8]) {
    imported(Project::Nanotron, data);
}

/// YAML of Accelerate.
pub fn accelerate(data: &[u8]) {
    imported(Project::Accelerate, data);
}

/// Tables of measurements.
pub fn measurements(data: &[u8]) {
    let (_folder, paths) = folder(&[("rows.csv", data)]);
    if let Err(error) = shardloom_validate::read(&paths[0]) {
        let _ = error.to_string();
    }
}

/// Logs of training.
pub fn log(data: &[u8]) {
    let (_folder, paths) = folder(&[("train.log", data)]);
    if let Err(error) = shardloom_validate::read_log(&paths[0]) {
        let _ = error.to_string();
    }
}

/// Comma-separated rows of training data.
pub fn tables(data: &[u8]) {
    let (_folder, paths) = folder(&[("rows.csv", data)]);
    let path = &paths[0];
    let columns = Columns { numbers: 2, categories: &[4], classes: 2, names: &[] };
    drop(Table::open(path, 0.25, 1).map_err(|error| error.to_string()));
    drop(Records::open(path, 2, &[4, 100], 0.25, 1).map_err(|error| error.to_string()));
    drop(Rows::open(path, columns).map_err(|error| error.to_string()));
}

fn corpus(paths: &[PathBuf]) {
    match Corpus::open(paths, &Tokenizer::bytes(), 0.25, &Reading::default()) {
        Ok(corpus) => {
            let mut read = vec![];
            let _ = corpus.read(0..corpus.training_len().min(64), &mut read);
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Documents in JSON, one a line.
pub fn documents(data: &[u8]) {
    let (_folder, paths) = folder(&[("documents.jsonl", data)]);
    corpus(&paths);
}

/// Documents in Parquet, where that is built in; the fuzzer has it.
pub fn parquet(data: &[u8]) {
    let (_folder, paths) = folder(&[("documents.parquet", data)]);
    corpus(&paths);
}

/// Files of tokens. The first byte says of whose and how long the index of Megatron-LM is.
pub fn tokens(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    if first == 0 {
        let (_folder, paths) = folder(&[("tokens.ds", rest)]);
        corpus(&paths);
    } else {
        let (index, tokens) = rest.split_at(usize::from(first).min(rest.len()));
        let (_folder, paths) = folder(&[("tokens.bin", tokens), ("tokens.idx", index)]);
        corpus(&paths[..1]);
    }
}

/// What encoded text is kept in, where Parquet is built in, whose text is kept however little it is: what is damaged is
/// made anew.
pub fn token_cache(data: &[u8]) {
    const TEXT: &[u8] = include_bytes!("../corpus/parquet/plain.golden");
    const WORDS: &[u8] =
        br#"{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1}}}"#;
    let (folder, paths) = folder(&[("text.parquet", TEXT), ("tokenizer.json", WORDS)]);
    let tokenizer = Tokenizer::open(&paths[1]).expect("a tokenizer of two words");
    let read = || {
        let corpus = Corpus::open(&paths[..1], &tokenizer, 0.0, &Reading::default()).ok()?;
        let mut tokens = vec![];
        corpus.read(0..corpus.training_len(), &mut tokens).expect("they are there");
        Some(tokens)
    };
    let Some(tokens) = read() else { return };
    let kept = std::fs::read_dir(folder.path().join(".shardloom-cache")).expect("a cache");
    for file in kept {
        std::fs::write(file.expect("a file").path(), data).expect("the input is written");
    }
    assert_eq!(read(), Some(tokens), "the tokens of the text");
}

/// Files of tokenizers.
pub fn tokenizer(data: &[u8]) {
    let (_folder, paths) = folder(&[("tokenizer.json", data)]);
    match Tokenizer::open(&paths[0]) {
        Ok(tokenizer) => {
            if let Ok(tokens) = tokenizer.encode("A b, c.\n12") {
                let _ = tokenizer.decode(&tokens);
            }
            let _ = tokenizer.vocabulary_size();
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Files of weights.
pub fn safetensors(data: &[u8]) {
    let (_folder, paths) = folder(&[("weights.safetensors", data)]);
    if let Err(error) = read_safetensors(&paths[0]) {
        let _ = error.to_string();
    }
}

/// Indexes of weights in several files.
pub fn weight_index(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Ok(files) = shardloom_interop::weights::files_of_index(text) {
        assert!(files.values().all(|tensors| !tensors.is_empty()), "a file has a tensor");
    }
}

/// AutoSync's files of trials.
pub fn trials(data: &[u8]) {
    let (_folder, paths) = folder(&[("trials.json", data)]);
    if let Err(error) = shardloom_methods::trials_in(&paths[0]) {
        let _ = error.to_string();
    }
}

/// Checkpoints: a manifest, or else a shard, with the digests that belong to it.
pub fn checkpoint(data: &[u8]) {
    let shard = serde_json::json!({
        "rank": 0, "bytes": data.len(), "blake3": blake3::hash(data).to_hex().as_str(),
    });
    let manifest = serde_json::json!({
        "format_version": FORMAT_VERSION, "step": 1, "shards": [shard],
        "meta": {
            "sample_position": 0, "seed": 0, "corpus_digest": "", "model": "", "plan": "",
            "optimizer": "", "extra": {},
        },
    });
    let manifest = match data.first() {
        Some(b'{') => data.to_vec(),
        _ => manifest.to_string().into_bytes(),
    };
    let digest = format!("{}\n", blake3::hash(&manifest).to_hex());
    let (folder, _) = folder(&[
        ("manifest.json", &manifest),
        ("manifest.blake3", digest.as_bytes()),
        ("shard-00000.safetensors", data),
    ]);
    match Checkpoint::open(folder.path()) {
        Ok(checkpoint) => {
            // What is not stored whole is refused, whatever size is claimed for it.
            let plain = |name| replica_of(name).map_or(name, |(_, plain)| plain);
            for name in checkpoint.names().map(plain) {
                match checkpoint.read_whole(name) {
                    Ok(values) => {
                        let shape = checkpoint.global_shape(name).expect("a tensor has a shape");
                        assert_eq!(values.len(), shape.iter().product::<usize>());
                    }
                    Err(error) => drop(error.to_string()),
                }
            }
        }
        Err(error) => drop(error.to_string()),
    }
}
