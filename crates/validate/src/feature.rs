//! What a row's plan and model are in numbers and words, by which errors can be told apart.

use shardloom_plan::{Number, Recompute};

use crate::{Case, Prediction};

/// A property of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feature {
    /// What it is.
    pub name: &'static str,
    /// What it is for this row.
    pub value: FeatureValue,
}

/// What a property can be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeatureValue {
    /// A number above 0.
    Number(f64),
    /// One of a few words.
    Word(&'static str),
}

/// The properties of a row that was predicted so, always in the same order.
pub fn features(case: &Case, prediction: &Prediction) -> Vec<Feature> {
    let split = &case.split;
    let number = |name, value: usize| Feature { name, value: FeatureValue::Number(value as f64) };
    let word = |name, value| Feature { name, value: FeatureValue::Word(value) };
    let replicas = split.dp as usize;
    let samples = replicas.saturating_mul(prediction.micro_batch).max(1);
    vec![
        number("devices", case.hardware.gpus as usize),
        Feature { name: "parameters", value: FeatureValue::Number(case.shape.parameters()) },
        number("sequence length", case.shape.seq),
        number("global batch", case.global_batch),
        number("micro-batch", prediction.micro_batch),
        number("micro-batches of a replica", case.global_batch / samples),
        number("data-parallel replicas", replicas),
        number("tensor-parallel degree", split.tp as usize),
        number("pipeline stages", split.pp as usize * split.chunks.max(1) as usize),
        number("context-parallel degree", split.cp as usize),
        word(
            "ZeRO stage",
            ["0", "1", "2", "3"].get(usize::from(split.zero)).copied().unwrap_or("?"),
        ),
        word("recomputation", split.recompute.map_or("not stated", Recompute::name)),
        word(
            "products in",
            match (case.fp8_products, case.compute) {
                (true, _) => "fp8",
                (false, Number::Bf16) => "bf16",
                (false, Number::Fp16) => "fp16",
                (false, _) => "fp32",
            },
        ),
    ]
}
