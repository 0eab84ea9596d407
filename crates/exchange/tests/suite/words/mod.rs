//! What each word of a project's configuration becomes of a plan: one word is changed at a time.

mod accelerate;
mod deepspeed;
mod megatron;
mod nanotron;
mod torchtitan;

use shardloom_exchange::{ExchangeError, Given, Imported, Project, import, project_of};
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
            let found = self.read(from, to).unwrap_or_else(|error| panic!("{name}: {error}"));
            let (found, notes) = (found.plan, found.notes);
            assert!(!is_so(&base), "{name}: it was so before");
            assert!(is_so(&found), "{name}:\n{}", found.to_toml());
            // What has made the difference is part of the plan.
            for unread in unread(&notes) {
                let own = unread.rsplit('.').next().unwrap_or_default();
                let is_said = names(to).any(|it| it == own) && !names(from).any(|it| it == own);
                assert!(!is_said, "{name}: {unread} is said to be no part of the plan");
            }
        }
        for &(from, to, message) in wrong {
            let error = self.read(from, to).err();
            let error = error.unwrap_or_else(|| panic!("{from:?} -> {to:?} is taken"));
            assert!(error.to_string().contains(message), "{from:?} -> {to:?}: {error}");
        }
    }

    /// Each of these says that a word, by its path, is the text at `@`: that a number or a list of texts stands there
    /// is refused.
    fn check_texts(&self, texts: &[(&str, &str, &str)]) {
        for &(from, to, path) in texts {
            for other in ["5", "[\"5\"]"] {
                let error = self.read(from, &to.replace('@', other)).err();
                let error = error.unwrap_or_else(|| panic!("{path} is {other}")).to_string();
                let said = error.contains(path) && error.ends_with("a string is needed");
                assert!(said, "{path} of {other}: {error}");
            }
        }
    }
}

/// Lists and single values are no configuration.
#[test]
fn a_file_is_a_table_of_words() {
    for (project, place, texts) in [
        (Project::DeepSpeed, "ds.json", ["[]", "[{\"train_batch_size\": 8}]", "8"]),
        (Project::Nanotron, "nanotron.yaml", ["[]", "- parallelism:\n    dp: 1", "8"]),
        (Project::Accelerate, "accelerate.yaml", ["[]", "- distributed_type: FSDP", "8"]),
    ] {
        for text in texts {
            let error = import(project, text, place, &given(8)).expect_err(text).to_string();
            assert!(error.ends_with("is not a table of words and values"), "{project}: {error}");
        }
    }
}

/// What notes say to be no part of the plan.
fn unread(notes: &[String]) -> impl Iterator<Item = &str> {
    let all = notes.iter().filter_map(|note| note.strip_prefix("not part of a plan: "));
    all.flat_map(|names| names.split(", "))
}

/// The names and values in a piece of a configuration.
fn names(piece: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    piece.split(move |letter| !is_of_name(letter)).filter(|it| !it.is_empty())
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
