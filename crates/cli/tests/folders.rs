//! Models in folders, as Hugging Face's library saves them.

mod invocation;

use std::fs;
use std::path::Path;

use invocation::Place;

const LENGTH: &str = "--seq 8 --data text.txt --global-batch 4";

/// A place with a folder `model` that transformers saved.
fn place() -> Place {
    let place = Place::new();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../shardloom/tests/huggingface/qwen3");
    fs::create_dir(place.path("model")).expect("made");
    for entry in fs::read_dir(golden).expect("the golden folder") {
        let from = entry.expect("an entry").path();
        let to = place.path("model").join(from.file_name().expect("a name"));
        fs::copy(&from, to).expect("copied");
    }
    place
}

#[test]
fn a_folder_is_trained_from_its_weights_and_says_so_and_its_configuration_is_not() {
    let place = place();
    let run = |what: &str, steps: u64, more: &str| {
        let command = format!("train {what} {LENGTH} --tokenizer bytes --steps {steps} --json");
        place.run(&format!("{command} {more}")).succeeds()
    };
    place
        .run(&format!("train model {LENGTH} --steps 1 --json"))
        .refuses("usage", "--tokenizer bytes");
    place
        .run(&format!("train model/config.json --weights model {LENGTH} --steps 1 --json"))
        .refuses("usage", "--tokenizer bytes");
    let folder = run("model", 2, "--checkpoint run");
    folder.check(folder.stderr.contains("weights in model"), "it does not say where it starts");
    let drawn = run("model/config.json", 2, "");
    drawn.check(!drawn.stderr.contains("weights in"), "a configuration has no weights");
    drawn.check(drawn.losses()[0] != folder.losses()[0], "the same first loss");
    let given = run("model/config.json", 2, "--weights model");
    given.check(given.losses() == folder.losses(), "--weights of the folder start otherwise");

    let out = place.run("export run --huggingface out --shard-gigabytes 0.00001 --json").succeeds();
    let files = out.object()["files"].as_array().map_or(0, Vec::len);
    out.check(files > 3, "there are not several files");
    let [there, here] = [("out", ""), ("model/config.json", "--weights weights.safetensors")];
    place.run("export run --weights weights.safetensors").succeeds();
    let [there, here] = [there, here].map(|(what, more)| run(what, 2, more));
    there.check(there.losses() == here.losses(), "other weights than those of one file");
    let again = place.run("export run --huggingface out --json");
    again.refuses("file", "--force");
}

#[test]
fn the_tokenizer_of_a_folder_is_its_models_unless_another_is_named() {
    let place = place();
    let words = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "is": 1, "the": 2, "square": 3, "of": 4, ".": 5}}}"#;
    place.write("model/tokenizer.json", words);
    let run =
        |more: &str| place.run(&format!("train model {LENGTH} --steps 1 --json {more}")).succeeds();
    let [own, bytes] = [run("--checkpoint run"), run("--tokenizer bytes")];
    own.check(own.losses() != bytes.losses(), "the folder's tokenizer makes no difference");
    let with_weights = format!("train model/config.json --weights model {LENGTH} --steps 1 --json");
    let with_weights = place.run(&with_weights).succeeds();
    with_weights.check(with_weights.losses() == own.losses(), "weights have another tokenizer");
    place.run("export run --huggingface out").succeeds();
    let written = fs::read_to_string(place.path("out/tokenizer.json")).expect("written");
    assert_eq!(written, words, "the tokenizer goes along");
    assert!(Path::new(&place.path("out/tokenizer_config.json")).is_file());
}

#[test]
fn shells_and_man_know_every_command() {
    let place = Place::new();
    let help = place.run("--help").succeeds();
    let (_, commands) = help.stdout.split_once("Commands:\n").expect("it lists commands");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    // Longer descriptions go on in lines that are further in.
    let commands = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands: Vec<&str> = commands.filter(|command| !command.is_empty()).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = place.run(&format!("completions {shell}")).succeeds();
        for word in commands.iter().chain(&["microbatches", "huggingface"]) {
            script
                .check(script.stdout.contains(word), &format!("{shell} does not complete {word}"));
        }
    }
    place.run("manual -o pages").succeeds();
    let own = commands.iter().filter(|&&command| command != "help");
    for page in own.map(|command| format!("shardloom-{command}.1")).chain(["shardloom.1".into()]) {
        let text = fs::read_to_string(place.path("pages").join(&page)).expect(&page);
        assert!(text.starts_with(".ie") || text.contains(".TH"), "{page} is a manual page");
    }
    let text = fs::read_to_string(place.path("pages/shardloom-export.1")).expect("a page");
    assert!(text.contains("huggingface"), "options are in the page");
    place.run("manual -o pages --json").refuses("file", "--force");
    place.run("completions cmd --json").refuses("usage", "bash");
}
