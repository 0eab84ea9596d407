//! What a model's targets are called where they are counted.

use shardloom::Model;

/// `tokens`, or `samples` of a model with one target for each.
pub fn counted(model: &Model) -> &'static str {
    match model.graph().targets_per_sample() {
        1 => "samples",
        _ => "tokens",
    }
}

/// The name of the rate at which they are trained on.
pub fn per_second(model: &Model) -> &'static str {
    match model.graph().targets_per_sample() {
        1 => "Samples per second",
        _ => "Tokens per second",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_classifier_trains_on_samples_and_a_language_model_on_tokens() {
        let of = |text: &str| counted(&Model::load(text).expect("a model"));
        assert_eq!(of("mlp:inputs=4,hidden=8,layers=2,classes=2"), "samples");
        assert_eq!(of("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16"), "tokens");
    }
}
