//! What a model is trained on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardloom_data::{Batches, Corpus, Reading, Records, Source, Table, Tokenizer};
use shardloom_graph::{Extents, Value};
use shardloom_plan::Plan;

use crate::{Error, Model, Result};

/// A tokenizer and the name under which it is found again.
pub struct TextTokenizer {
    name: String,
    tokenizer: Tokenizer,
}

impl TextTokenizer {
    /// The tokenizer of this name: `bytes`, or the path of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// If the file cannot be read or is no tokenizer.
    pub fn open(name: &str) -> Result<TextTokenizer> {
        if name == "bytes" {
            return Ok(TextTokenizer { name: name.into(), tokenizer: Tokenizer::bytes() });
        }
        let path = Path::new(name);
        // Checkpoints hold the path, and are read from other folders.
        let path = fs::canonicalize(path).map_err(Error::io("read", path))?;
        let tokenizer = Tokenizer::open(&path)?;
        Ok(TextTokenizer { name: path.display().to_string(), tokenizer })
    }

    /// `bytes`, or the full path of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// By what it is known again.
    pub(crate) fn mark(&self) -> TokenizerMark {
        TokenizerMark {
            name: self.name.clone(),
            digest: self.tokenizer.digest().to_hex().to_string(),
        }
    }
}

/// By what a tokenizer is known again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenizerMark {
    /// `bytes`, or the full path of its file.
    pub name: String,
    /// The digest of that file.
    pub digest: String,
}

/// How data becomes samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Seed of the order of samples.
    pub seed: u64,
    /// The share of the data that is kept for validation, from its end.
    pub validation_fraction: f64,
}

/// Data cut into samples for one model.
pub struct Data {
    pub(crate) source: Box<dyn Source + Send>,
    pub(crate) digest: String,
    /// None for a table.
    pub(crate) tokenizer: Option<TokenizerMark>,
    /// What the classes of a table are called; empty where they are numbers, or there are none.
    pub(crate) class_names: Vec<String>,
    training_samples: u64,
    memory_bytes: u64,
    ends_documents: bool,
}

impl Data {
    /// Reads what `model` is trained on: for a language model text, from files and from folders with all
    /// text below them; for a classifier of features one file of comma-separated values whose last
    /// column is the class, a number or a name; for a recommendation model one of numbers, then categories,
    /// then a label of 0 or 1.
    ///
    /// # Errors
    /// If a path cannot be read or is not of that kind, there is too little data, or the model knows
    /// fewer tokens, classes or features than the data has.
    pub fn open(
        model: &Model,
        paths: &[PathBuf],
        tokenizer: &TextTokenizer,
        sampling: Sampling,
    ) -> Result<Data> {
        Data::open_with(model, paths, tokenizer, sampling, &Reading::default())
    }

    /// The same, with a place for encoded text and somebody who hears how far reading is.
    ///
    /// # Errors
    /// As [`Data::open`]; if encoded text cannot be kept.
    pub fn open_with(
        model: &Model,
        paths: &[PathBuf],
        tokenizer: &TextTokenizer,
        sampling: Sampling,
        reading: &Reading<'_>,
    ) -> Result<Data> {
        let inputs: Vec<&Value> = model.graph().inputs().map(|(_, value)| value).collect();
        let reads = |name: &str| inputs.iter().find(|input| input.name == name);
        match reads("features") {
            Some(features) if inputs.iter().any(|it| it.name.starts_with(CATEGORY)) => {
                Data::records(model, features, paths, sampling)
            }
            Some(features) => Data::table(model, features, paths, sampling),
            None => Data::text(model, &inputs, paths, tokenizer, (sampling, reading)),
        }
    }

    /// Samples of one epoch.
    pub fn training_samples(&self) -> u64 {
        self.training_samples
    }

    /// `bytes` or the full path of the tokenizer that text became tokens by; none for a table.
    pub fn tokenizer(&self) -> Option<&str> {
        self.tokenizer.as_ref().map(|mark| mark.name.as_str())
    }

    /// Bytes that are in memory all the time; tokens that are read from files where they are wanted are not.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Samples that are kept for validation.
    pub fn validation_samples(&self) -> u64 {
        self.source.validation_len()
    }

    /// Makes sure that documents have ends where `plan` masks them.
    pub(crate) fn require_documents(&self, plan: &Plan) -> Result<()> {
        match plan.mask_documents && !self.ends_documents {
            true => Err(Error::Documents { tokenizer: self.tokenizer().map(str::to_owned) }),
            false => Ok(()),
        }
    }

    fn text(
        model: &Model,
        inputs: &[&Value],
        paths: &[PathBuf],
        tokenizer: &TextTokenizer,
        (sampling, reading): (Sampling, &Reading<'_>),
    ) -> Result<Data> {
        let graph = model.graph();
        let sequence = graph.dim_named("seq");
        for input in inputs {
            let fits = ["tokens", "targets"].contains(&input.name.as_str())
                && sequence.is_some_and(|sequence| input.axes == [graph.batch(), sequence]);
            if !fits {
                return Err(Error::ModelInput {
                    model: model.spec().name().into(),
                    input: input.name.clone(),
                    axes: graph.axes_text(&input.axes),
                });
            }
        }
        require_vocabulary(model, tokenizer.tokenizer.vocabulary_size(), || {
            format!("tokens of the tokenizer {}", tokenizer.name)
        })?;
        let corpus =
            Corpus::open(paths, &tokenizer.tokenizer, sampling.validation_fraction, reading)?;
        let digest = corpus.digest().to_owned();
        let memory_bytes = corpus.held_bytes();
        let ends_documents = corpus.end_of_text().is_some();
        let batches = Batches::new(corpus, model.spec().seq(), sampling.seed)?;
        let tokenizer = Some(tokenizer.mark());
        let training_samples = batches.epoch_len();
        let source = Box::new(batches);
        Ok(Data {
            source,
            digest,
            tokenizer,
            class_names: vec![],
            training_samples,
            memory_bytes,
            ends_documents,
        })
    }

    /// Rows of numbers, and a category for each input `category.0`, `category.1`, ... that looks it up.
    fn records(
        model: &Model,
        features: &Value,
        paths: &[PathBuf],
        sampling: Sampling,
    ) -> Result<Data> {
        let path = only_file(model, paths)?;
        let TableColumns { numbers, categories } = table_columns(model, features)?;
        require_classes(model, 2, || format!("labels of {}", path.display()))?;
        let Sampling { seed, validation_fraction } = sampling;
        let records = Records::open(path, numbers, &categories, validation_fraction, seed)?;
        let sizes = (records.training_len(), records.held_bytes());
        Ok(Data::of_rows(records.digest(), sizes, Box::new(records)))
    }

    fn table(
        model: &Model,
        features: &Value,
        paths: &[PathBuf],
        sampling: Sampling,
    ) -> Result<Data> {
        let path = only_file(model, paths)?;
        let table = Table::open(path, sampling.validation_fraction, sampling.seed)?;
        let needed = Extents::global(model.graph(), 1).elements(&features.axes);
        if needed != table.columns() {
            return Err(Error::Features {
                path: path.clone(),
                found: table.columns(),
                model: model.spec().name().into(),
                needed,
            });
        }
        if let Some(known) = model.classes() {
            table.require_classes(path, model.spec().name(), known)?;
        }
        let sizes = (table.training_len(), table.held_bytes());
        let class_names = table.class_names().to_vec();
        Ok(Data { class_names, ..Data::of_rows(table.digest(), sizes, Box::new(table)) })
    }

    /// Data that is no text, with so many samples to train on and bytes in memory.
    fn of_rows(
        digest: String,
        (training_samples, memory_bytes): (u64, u64),
        source: Box<dyn Source + Send>,
    ) -> Data {
        Data {
            source,
            digest,
            tokenizer: None,
            class_names: vec![],
            training_samples,
            memory_bytes,
            ends_documents: false,
        }
    }
}

/// What a model reads of a row of a table.
pub(crate) struct TableColumns {
    /// How many numbers come first.
    pub numbers: usize,
    /// Below what the category of each feature that has one is.
    pub categories: Vec<usize>,
}

/// What a model with the input `features` reads of a row: these, and a category for each input `category.0`,
/// `category.1`, ... that looks it up.
pub(crate) fn table_columns(model: &Model, features: &Value) -> Result<TableColumns> {
    let graph = model.graph();
    let unfit = |input: &Value| Error::ModelInput {
        model: model.spec().name().into(),
        input: input.name.clone(),
        axes: graph.axes_text(&input.axes),
    };
    let mut rows = BTreeMap::new();
    for (_, input) in graph.inputs().filter(|(_, it)| it.name.starts_with(CATEGORY)) {
        let number = input.name.strip_prefix(CATEGORY).and_then(|it| it.parse::<usize>().ok());
        let tables = input.consumers.iter().map(|&op| graph.op(op));
        let below = tables.filter_map(|op| {
            let loops = &op.signature.loops;
            op.index_loop().map(|each| graph.dim(loops[each].dim).size)
        });
        match (number, below.min()) {
            (Some(number), Some(below)) if input.axes == [graph.batch()] => {
                // Rows of padding are no categories.
                rows.insert(number, model.spec().categories(number).unwrap_or(below));
            }
            _ => return Err(unfit(input)),
        }
    }
    // Numbered from 0 without gaps, which the file's columns are.
    if let Some((at, _)) = rows.keys().enumerate().find(|&(at, &number)| at != number) {
        let missing = format!("{CATEGORY}{at}");
        return Err(Error::Category { model: model.spec().name().into(), missing });
    }
    let targets = graph.value(graph.targets());
    if Extents::global(graph, 1).elements(&targets.axes) != 1 {
        return Err(unfit(targets));
    }
    let known = |it: &Value| ["features", "targets"].contains(&it.name.as_str());
    let is_known = |it: &Value| known(it) || it.name.starts_with(CATEGORY);
    if let Some((_, other)) = graph.inputs().find(|(_, it)| !is_known(it)) {
        return Err(unfit(other));
    }
    let numbers = Extents::global(graph, 1).elements(&features.axes);
    Ok(TableColumns { numbers, categories: rows.into_values().collect() })
}

/// Before its number, the name of an input that is a category.
const CATEGORY: &str = "category.";

fn only_file<'a>(model: &Model, paths: &'a [PathBuf]) -> Result<&'a PathBuf> {
    match paths {
        [path] => Ok(path),
        _ => Err(Error::Tables { model: model.spec().name().into(), found: paths.len() }),
    }
}

/// Makes sure that the model knows all tokens, as what it reads and as what it predicts.
pub(crate) fn require_vocabulary(
    model: &Model,
    needed: usize,
    what: impl Fn() -> String,
) -> Result<()> {
    require_known(model, model.vocabulary(), needed, &what)?;
    require_classes(model, needed, what)
}

fn require_classes(model: &Model, needed: usize, what: impl FnOnce() -> String) -> Result<()> {
    require_known(model, model.classes(), needed, what)
}

fn require_known(
    model: &Model,
    known: Option<usize>,
    needed: usize,
    what: impl FnOnce() -> String,
) -> Result<()> {
    match known {
        Some(found) if found < needed => Err(Error::Vocabulary {
            model: model.spec().name().into(),
            found,
            what: what(),
            needed,
        }),
        _ => Ok(()),
    }
}
