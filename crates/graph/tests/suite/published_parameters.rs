//! Every preset has exactly the parameters of the published model.

use shardloom_graph::ModelSpec;

#[track_caller]
fn check(preset: &str, parameters: u64) {
    let graph = ModelSpec::preset(preset).and_then(|spec| spec.graph()).unwrap();
    assert_eq!(graph.parameter_count(), parameters, "{preset}");
}

#[test]
fn gpt_2_has_the_parameters_of_the_released_checkpoints() {
    check("gpt-2", 124_439_808);
    check("gpt-2-medium", 354_823_168);
    check("gpt-2-large", 774_030_080);
    check("gpt-2-xl", 1_557_611_200);
}

/// 12 l h^2 + 13 l h of the layers, (V + s) h of the embeddings and 2 h of the last norm.
#[test]
fn gpt_3_has_the_parameters_of_its_table() {
    check("gpt-3-175b", 174_604_259_328);
}

#[test]
fn llama_2_has_the_parameters_of_the_released_checkpoints() {
    check("llama-2-7b", 6_738_415_616);
    check("llama-2-13b", 13_015_864_320);
    check("llama-2-70b", 68_976_648_192);
}

#[test]
fn llama_3_has_the_parameters_of_the_released_checkpoints() {
    check("llama-3-8b", 8_030_261_248);
    check("llama-3-70b", 70_553_706_496);
    check("llama-3-405b", 405_853_388_800);
}

/// 1.3 and 2.7 billion, by their names.
#[test]
fn phi_1_5_and_2_have_the_parameters_of_the_released_checkpoints() {
    check("phi-1.5", 1_418_270_720);
    check("phi-2", 2_779_683_840);
}

#[test]
fn phi_3_has_the_parameters_of_the_released_checkpoint() {
    check("phi-3-mini", 3_821_079_552);
}

/// The embedding is the head, and is counted once.
#[test]
fn gemma_has_the_parameters_of_the_released_checkpoints() {
    check("gemma-2b", 2_506_172_416);
    check("gemma-7b", 8_537_680_896);
}

#[test]
fn gemma_2_has_the_parameters_of_the_released_checkpoints() {
    check("gemma-2-2b", 2_614_341_888);
    check("gemma-2-9b", 9_241_705_984);
    check("gemma-2-27b", 27_227_128_320);
}

/// The released checkpoints of all but the smallest have an encoder of images of 416,866,032 parameters besides,
/// and a norm of its width 1,152 and a projection of that to the model's.
#[test]
fn gemma_3_has_the_parameters_of_the_released_checkpoints_without_images() {
    check("gemma-3-1b", 999_885_952);
    let images = |hidden: u64| 416_866_032 + 1_152 + 1_152 * hidden;
    check("gemma-3-4b", 4_300_079_472 - images(2560));
    check("gemma-3-12b", 12_187_325_040 - images(3840));
    check("gemma-3-27b", 27_432_406_640 - images(5376));
}

/// 2 V h + V of embedding and softmax, 4 h (2 h + 1) of each layer: 20 and 66 million in Zaremba et al. 2014.
#[test]
fn the_regularized_lstms_have_the_parameters_of_their_paper() {
    check("ptb-lstm-medium", 19_775_200);
    check("ptb-lstm-large", 66_022_000);
}

/// 0.83 billion in table 1 of Jozefowicz et al. 2016: 2 x 793,471 x 512 of embedding and softmax, 793,471
/// biases, 1024 x 8192 + 8192 of the gates and 2048 x 512 of the projection.
#[test]
fn the_lstm_of_the_one_billion_word_benchmark_has_the_parameters_of_its_table() {
    check("lm1b-lstm-2048-512", 822_753_151);
}

/// 33,762,577 and 187,767,399 rows of 16 and 128, and the perceptrons.
#[test]
fn recommendation_models_have_the_parameters_of_their_tables_and_perceptrons() {
    check("dlrm-criteo-kaggle", 33_762_577 * 16 + 475_985);
    check("dlrm-criteo-terabyte", 187_767_399 * 128 + 2_368_897);
}

#[test]
fn every_preset_is_named_like_its_file_and_survives_both_texts() {
    for name in ModelSpec::presets() {
        let spec = ModelSpec::preset(name).unwrap();
        assert_eq!(spec.name(), name);
        assert_eq!(ModelSpec::parse(name).unwrap(), spec);
        assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec, "{spec}");
        assert_eq!(ModelSpec::from_toml(&spec.to_toml(), name).unwrap(), spec);
    }
}
