//! Models elsewhere: what is said of them, what is left to training scripts, and what a named one has to be.

use crate::from_elsewhere::{NOTHING, read};
use crate::plans::{Case, GPT, LLAMA, numbers, plan};
use shardloom_exchange::{Given, Project, export};
use shardloom_graph::ModelSpec;
use shardloom_plan::{Mesh, Sync, Uniform};

/// A model that is named beside a configuration that describes one is the same, as far as that can be compared.
#[test]
fn a_named_model_is_held_to_the_one_that_is_described() {
    for (project, place) in
        [(Project::Nanotron, "nanotron.yaml"), (Project::Torchtitan, "shardloom_plan.py")]
    {
        let uniform = Uniform { mesh: Mesh::of(4, 1, 1), ..numbers() };
        let case = Case::of(place, plan(LLAMA, &uniform, 1));
        let written = export(project, &case.plan, &case.spec, &case.graph, case.machines());
        let files = written.expect("it is written").files;
        let text = &files.iter().find(|it| it.name == place).expect("a configuration").text;
        let named = |model: &str| {
            let model = ModelSpec::parse(model).expect("a model");
            let given = Given { model: Some(&model), cluster: "h100-80g:4", devices: 4, ..NOTHING };
            read(place, text, &given)
        };
        assert!(named(LLAMA).is_ok(), "{project}");
        for key in ["layers", "hidden", "heads", "kv_heads", "seq", "ffn"] {
            let other = doubled(LLAMA, key);
            let error = named(&other).expect_err(&other).to_string();
            assert!(
                error.contains("describes another model than --model llama"),
                "{project}: {error}"
            );
        }
    }
}

/// A description of a model with one of its numbers doubled.
fn doubled(model: &str, key: &str) -> String {
    let double = |pair: &str| match pair.split_once('=') {
        Some((name, number)) if name.trim_start_matches("llama:") == key => {
            format!("{name}={}", 2 * number.parse::<usize>().expect("a number"))
        }
        _ => pair.to_owned(),
    };
    model.split(',').map(double).collect::<Vec<_>>().join(",")
}

/// Where the configuration describes the model it would say the Llama without them. Where the training script builds
/// the model, a plan for any is written, which says so.
#[test]
fn what_other_families_have_changed_is_refused_where_the_model_is_described() {
    let of = |model: &str, word: &str| {
        let sync = Sync { zero: 2, ..numbers().sync };
        let uniform = Uniform { mesh: Mesh::of(2, 1, 1), sync, ..numbers() };
        Case::of(word, plan(&format!("{model},{word}"), &uniform, 1))
    };
    let llama = [
        "qkv_bias=true",
        "qk_norm=true",
        "geglu=true",
        "scaled_embedding=true",
        "zero_centered_gain=true",
        "post_norms=true",
        "windows=2",
        "attention_scalar=3",
        "attention_cap=5",
        "logit_cap=3",
        "rope_scaling=[2]",
    ];
    let gpt = [
        "attention_dropout=0.2",
        "embedding_dropout=0.2",
        "rotary=4",
        "parallel=true",
        "head_bias=true",
    ];
    let words = llama.map(|word| (LLAMA, word)).into_iter().chain(gpt.map(|word| (GPT, word)));
    for (model, word) in words {
        let case = of(model, word);
        let key = word.split('=').next().expect("a key");
        for project in Project::ALL {
            let written = export(project, &case.plan, &case.spec, &case.graph, case.machines());
            let is_written = match project {
                Project::DeepSpeed | Project::Accelerate => true,
                Project::Megatron => ["qkv_bias", "qk_norm"].contains(&key),
                Project::Torchtitan | Project::Nanotron => false,
            };
            match written {
                Ok(found) => {
                    assert!(is_written, "{project} takes {word}");
                    let is_left_out = found.unsaid.iter().any(|it| it.key == "model");
                    assert_eq!(is_left_out, project != Project::Megatron, "{project}: {word}");
                }
                Err(error) => {
                    let refused = format!("{project} has no word for model = {key}");
                    assert!(!is_written && error.to_string().starts_with(&refused), "{error}");
                }
            }
        }
    }
    let case = of(LLAMA, "separate_loss=true");
    for project in Project::ALL {
        let written = export(project, &case.plan, &case.spec, &case.graph, case.machines());
        let error = written.expect_err("a block of its own").to_string();
        assert!(error.contains("their loss in one block with the head"), "{error}");
    }
}

/// Qwen 2 has biases of queries, keys and values, and Qwen 3 norms of queries and keys.
#[test]
fn what_qwens_have_is_said_and_read_for_megatron() {
    for (word, option) in [("qkv_bias=true", "--add-qkv-bias"), ("qk_norm=true", "--qk-layernorm")]
    {
        let uniform = Uniform { pp: 2, mesh: Mesh::of(2, 1, 1), ..numbers() };
        let case = Case::of(word, plan(&format!("{LLAMA},{word}"), &uniform, 1));
        let found = export(Project::Megatron, &case.plan, &case.spec, &case.graph, case.machines())
            .expect("it is written");
        let text = &found.files[0].text;
        assert!(text.contains(&format!("  {option}\n")), "{text}");
        let given = Given { cluster: "h100-80g:4", devices: 4, ..NOTHING };
        let imported = read("train.sh", text, &given).expect("a plan");
        assert_eq!(imported.spec.network(), case.spec.network());
        // A named model has the same, or is another.
        let plain = ModelSpec::parse(LLAMA).expect("a model");
        let named = |model| read("train.sh", text, &Given { model: Some(model), ..given });
        assert!(named(&case.spec).is_ok());
        let error = named(&plain).expect_err("another model").to_string();
        let said = format!("{option} = given: the model of --model has none");
        assert!(error.contains(&said), "{error}");
        let text = text.replace(&format!("  {option}\n"), "");
        let error = read("train.sh", &text, &Given { model: Some(&case.spec), ..given });
        let error = error.expect_err("another model").to_string();
        assert!(error.contains(option) && error.contains("--model has it"), "{error}");
    }
}
