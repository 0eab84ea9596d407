//! What each word of a project's configuration becomes of a plan: one word is changed at a time.

mod accelerate;
mod deepspeed;
mod megatron;
mod nanotron;
mod torchtitan;

use shardloom_exchange::{ExchangeError, Given, Imported, import, project_of};
use shardloom_graph::ModelSpec;
use shardloom_plan::{Axis, Optimizer, Plan};

use crate::plans::LLAMA;

/// What a text says, what it says instead, and what is then so of the plan, and was not so before.
type Word = (&'static str, &'static str, fn(&Plan) -> bool);
/// What a text says, what it says instead, and what the refusal says.
type Wrong = (&'static str, &'static str, &'static str);

/// A configuration and what it does not say.
struct Base<'a> {
    place: &'a str,
    text: &'a str,
    given: Given<'a>,
}

impl Base<'_> {
    fn read(&self, from: &str, to: &str) -> Result<Imported, ExchangeError> {
        assert!(self.text.contains(from), "{from:?} is not there");
        let text = self.text.replacen(from, to, 1);
        import(project_of(self.place, &text)?, &text, self.place, &self.given)
    }

    fn check(&self, words: &[Word], wrong: &[Wrong]) {
        let base = self.read("", "").unwrap_or_else(|error| panic!("{error}")).plan;
        for (index, &(from, to, is_so)) in words.iter().enumerate() {
            let name = format!("{index}: {from:?} -> {to:?}");
            let found = self.read(from, to).unwrap_or_else(|error| panic!("{name}: {error}")).plan;
            assert!(!is_so(&base), "{name}: it was so before");
            assert!(is_so(&found), "{name}:\n{}", found.to_toml());
        }
        for &(from, to, message) in wrong {
            let error = self.read(from, to).err();
            let error = error.unwrap_or_else(|| panic!("{from:?} -> {to:?} is taken"));
            assert!(error.to_string().contains(message), "{from:?} -> {to:?}: {error}");
        }
    }
}

fn given(devices: usize) -> Given<'static> {
    Given {
        model: None,
        cluster: "h100-80g:1024",
        devices,
        global_batch: None,
        microbatches: None,
        table: None,
    }
}

/// Whatever the project, and with all that it leaves to others given.
#[test]
fn a_document_that_says_nothing_of_training_is_no_configuration() {
    let spec = ModelSpec::parse(LLAMA).expect("a model");
    let given = Given { model: Some(&spec), global_batch: Some(64), ..given(16) };
    for (place, text, said) in [
        ("Cargo.toml", "[package]\nname = 'a'\n", "nothing in it says how torchtitan trains"),
        ("empty.toml", "", "nothing in it says how torchtitan trains"),
        ("empty.json", "{}", "nothing in it says how DeepSpeed trains"),
        (
            "config.json",
            "{\"model_type\": \"llama\", \"hidden_size\": 64}",
            "DeepSpeed trains; it is the configuration of a model, which --model takes",
        ),
    ] {
        let project = project_of(place, text).expect("a project");
        let error = import(project, text, place, &given).expect_err("nothing is known");
        let error = error.to_string();
        assert!(error.starts_with(&format!("{place}:1: ")) && error.contains(said), "{error}");
    }
}

/// Blocks of the stages.
fn blocks(plan: &Plan) -> Vec<(usize, usize)> {
    plan.pipeline[0].stage.iter().map(|stage| stage.blocks).collect()
}

fn width(plan: &Plan, axis: Axis) -> usize {
    plan.pipeline[0].stage[0].mesh.width(axis)
}

fn is_adamw(plan: &Plan, of: [f64; 4]) -> bool {
    let [beta1, beta2, epsilon, weight_decay] = of;
    plan.optimizer == Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }
}

fn is_sgd(plan: &Plan, of: [f64; 2]) -> bool {
    let [momentum, weight_decay] = of;
    plan.optimizer == Optimizer::Sgd { momentum, weight_decay, reference_batch: None }
}

/// Whether so many groups of replicas shard among themselves, and how many there are in each.
fn is_hybrid(plan: &Plan, zero: u8, groups: usize, sharers: usize) -> bool {
    let over = plan.sync.shard_over.is_some_and(|over| over.iter().any(|axis| axis == Axis::DP));
    plan.sync.zero == zero
        && over
        && (width(plan, Axis::REPLICA), width(plan, Axis::DP)) == (groups, sharers)
}
