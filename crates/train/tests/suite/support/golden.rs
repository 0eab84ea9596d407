//! What PyTorch came to; how the files were made: `benches/golden`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardloom_checkpoint::read_safetensors;

use super::Samples;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a golden file");
    serde_json::from_str(&text).expect("golden files are JSON")
}

/// The tokens of all golden runs.
pub fn tokens() -> Samples {
    let file = json(&folder().join("tokens.json"));
    let rows = |key: &str| -> Vec<Vec<u32>> {
        let batches = file[key].as_array().expect("steps").iter();
        let rows = batches.flat_map(|batch| batch.as_array().expect("samples"));
        let row = |row: &Value| {
            let tokens = row.as_array().expect("tokens").iter();
            tokens.map(|token| token.as_u64().expect("a token") as u32).collect()
        };
        rows.map(row).collect()
    };
    Samples { inputs: rows("inputs"), targets: rows("targets") }
}

/// What a run on a model came to.
pub fn losses_of(run: &str) -> Value {
    json(&folder().join(run).join("losses.json"))
}

/// The weights that a model's runs begin with.
pub fn initial(model: &str) -> BTreeMap<String, Vec<f32>> {
    let read = read_safetensors(&folder().join(model).join("initial.safetensors"));
    let read = read.expect("golden weights").into_iter();
    read.map(|(name, tensor)| (name, tensor.values)).collect()
}
