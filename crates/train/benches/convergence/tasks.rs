//! What is learned: this repository's text, and handwritten digits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use shardloom_data::{Batches, Corpus, DataError, Field, Part, Reading, Source, Table, Tokenizer};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_train::Trainer;

/// A model, its data, and settings that are the same for all methods.
pub struct Task {
    pub name: String,
    pub model: &'static str,
    pub graph: Graph,
    /// Samples of one step.
    pub batch: usize,
    pub steps: u64,
    pub warmup_steps: u64,
    /// Learning rates at which every method runs.
    pub rates: [f64; 3],
    data: Data,
}

enum Data {
    Text { tokens: Vec<u32>, vocabulary: usize, sequence_length: usize },
    Digits { path: PathBuf, table: Table },
}

const VALIDATION_FRACTION: f64 = 0.2;

fn graph(model: &str) -> Graph {
    let spec = ModelSpec::parse(model).expect("a valid model");
    spec.graph().expect("a valid model")
}

/// A GPT on the bytes of this repository's sources.
pub fn text() -> Task {
    let model = "gpt:layers=6,hidden=32,heads=2,seq=32,vocab=256";
    let graph = graph(model);
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of crates");
    let tokenizer = Tokenizer::bytes();
    let corpus = Corpus::open(&[crates.into()], &tokenizer, 0.0, &Reading::default());
    let corpus = corpus.expect("readable sources");
    let mut tokens = vec![];
    corpus.read(0..corpus.training_len(), &mut tokens).expect("readable sources");
    Task {
        name: format!("GPT on {} bytes of source text", tokens.len()),
        model,
        graph,
        batch: 8,
        steps: 400,
        warmup_steps: 40,
        rates: [0.001, 0.01, 0.1],
        data: Data::Text { tokens, vocabulary: 256, sequence_length: 32 },
    }
}

/// A deep perceptron on the digits in `table`.
pub fn digits(path: &Path) -> Result<Task, DataError> {
    // The order of training rows is each run's own.
    let table = Table::open(path, VALIDATION_FRACTION, 0)?;
    let model = "mlp:inputs=64,hidden=64,layers=7,classes=10";
    Ok(Task {
        name: format!("MLP on digits, {} of them for validation", table.validation_len()),
        model,
        graph: graph(model),
        batch: 16,
        steps: 900,
        warmup_steps: 45,
        rates: [0.002, 0.005, 0.02],
        data: Data::Digits { path: path.into(), table },
    })
}

impl Task {
    /// The samples, in the same order for the same seed.
    pub fn source(&self, seed: u64) -> Box<dyn Source + Send> {
        match &self.data {
            Data::Text { tokens, vocabulary, sequence_length } => {
                let corpus = Corpus::from_tokens(tokens.clone(), *vocabulary, VALIDATION_FRACTION);
                let batches = Batches::new(corpus.expect("tokens"), *sequence_length, seed);
                Box::new(batches.expect("enough tokens"))
            }
            Data::Digits { path, .. } => {
                let table = Table::open(path, VALIDATION_FRACTION, seed);
                Box::new(table.expect("the table that was read before"))
            }
        }
    }

    /// Whether it is classification, so that there is an accuracy.
    pub fn has_classes(&self) -> bool {
        matches!(self.data, Data::Digits { .. })
    }

    /// The share of validation samples that are classified right, where there are classes.
    pub fn accuracy(&self, trainer: &mut Trainer) -> Option<f64> {
        let Data::Digits { table, .. } = &self.data else { return None };
        let weights = trainer.weights().expect("weights of a trained model");
        let right = |&row: &u64| {
            let (mut room, mut other) = (vec![], vec![]);
            let features = table.field(Part::Validation, row, "features", &mut room);
            let class = table.field(Part::Validation, row, "targets", &mut other);
            let (Ok(Some(Field::Reals(features))), Ok(Some(Field::Indices(&[class])))) =
                (features, class)
            else {
                panic!("a table has features and one class per row")
            };
            classify(&weights, features) == class as usize
        };
        let rows = table.validation_len();
        Some((0..rows).filter(right).count() as f64 / rows as f64)
    }
}

/// The class that a perceptron gives to a row of features.
fn classify(weights: &BTreeMap<String, Vec<f32>>, features: &[f32]) -> usize {
    let mut x = features.to_vec();
    for layer in 0.. {
        let named = |name: &str| weights.get(&format!("block.{layer}.{name}"));
        let (Some(weight), Some(bias)) = (named("weight"), named("bias")) else { break };
        let mut y = bias.clone();
        for (x, row) in x.iter().zip(weight.chunks(bias.len())) {
            for (y, weight) in y.iter_mut().zip(row) {
                *y += x * weight;
            }
        }
        x = y.into_iter().map(|y| y.max(0.0)).collect();
    }
    let logits = weights["head.weight"].chunks(x.len());
    let logits = logits.map(|row| row.iter().zip(&x).map(|(weight, x)| weight * x).sum());
    let logits: Vec<f32> = logits.collect();
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("classes")
}
