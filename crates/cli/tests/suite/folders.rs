//! Models in folders, as Hugging Face's library saves them.

use std::fs;
use std::path::Path;

use crate::invocation::{Outcome, Place, named_tensors};

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
    let command = format!("train model {LENGTH} --tokenizer bytes --steps 1");
    let said = place.run(&command).succeeds();
    let places = [&said.stdout, &said.stderr].map(|it| it.matches("those in model").count());
    said.check(places == [1, 0] && !said.stderr.contains("starting"), "it is not said once");
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
    let forced = place.run("export run --huggingface out --force --json").succeeds();
    let deleted = forced.object()["deleted"].clone();
    let deleted = deleted.as_array().expect("a list").iter().filter_map(|it| it.as_str());
    forced.check(deleted.count() == files - 1, "not all that is gone is named");
}

#[test]
fn a_new_head_starts_anew_and_says_so_and_a_plan_has_it_already() {
    let place = place();
    let run =
        |what: &str| format!("train {what} --data text.txt --tokenizer bytes --steps 1 --json");
    let shape = "--seq 8 --global-batch 4";
    let anew = |command: String, names: &str| {
        let outcome = place.run(&command).succeeds();
        let said = format!("weights in model, but for what starts anew: {names}\"}}");
        outcome.check(outcome.stderr.contains(&said), "it does not say what starts anew");
    };
    anew(format!("{} {shape} --new-head 256", run("model")), "head.weight");
    let both = "embedding.token, head.weight";
    anew(format!("{} {shape} --new-head 300 --tp 2 --pp 2", run("model")), both);

    let drawn = format!("{} {shape} --new-head 300", run("model/config.json"));
    place.run(&drawn).refuses("usage", "--weights");
    let few = format!("{} {shape} --new-head 7", run("model"));
    place.run(&few).refuses(
        "usage",
        "--new-head 7: there are 256 tokens of the tokenizer bytes; give --new-head 256",
    );
    place
        .run(&format!("plan model/config.json --cluster h100-80g:1 {shape} -o plan.toml"))
        .succeeds();
    anew(format!("{} --weights model --new-head 256", run("plan.toml")), "head.weight");
    let other = format!("{} --weights model --new-head 300", run("plan.toml"));
    place.run(&other).refuses("usage", "a head of 256");
}

#[test]
fn a_padded_vocabulary_is_split_begins_with_the_weights_and_is_written_without_padding() {
    let place = place();
    let run = |more: &str| {
        let train = format!("train model {LENGTH} --tokenizer bytes --steps 3 --json");
        place.run(&format!("{train} {more}"))
    };
    run("--new-head 257 --tp 2").refuses("plan", "--pad-vocabulary");
    let mlp = "simulate mlp:inputs=4,hidden=8,layers=1,classes=4 --cluster h100-80g:2";
    place.run(&format!("{mlp} --pad-vocabulary 8 --json")).refuses(
        "model",
        "padding = 8 is not possible: only a gpt, llama, u-transformer or dlrm has padding",
    );
    let plain = run("").succeeds();
    let padded = run("--pad-vocabulary 10 --tp 2 --checkpoint run").succeeds();
    let losses = |of: &Outcome| -> Vec<f64> {
        let numbers = of.losses().into_iter().map(|(_, loss)| loss.parse());
        numbers.collect::<Result<_, _>>().expect("numbers")
    };
    let mut pairs = losses(&padded).into_iter().zip(losses(&plain));
    padded.check(
        pairs.all(|(one, other)| (one - other).abs() < 1e-4 * other),
        "padding changes the loss",
    );
    place.run("export run --huggingface out").succeeds();
    let shapes = |folder: &str| {
        let tensors = named_tensors(&place.path(folder).join("model.safetensors"));
        Vec::from_iter(tensors.into_iter().map(|(name, bytes)| (name, bytes.len())))
    };
    assert_eq!(shapes("out"), shapes("model"));
    place
        .run("plan model --seq 8 --global-batch 4 --pad-vocabulary 10 --cluster h100-80g:1 -o plan.toml")
        .succeeds();
    let text = fs::read_to_string(place.path("plan.toml")).expect("a plan");
    assert!(text.contains("vocab=256,padded_vocab=260"), "{text}");
    place
        .run(
            "train plan.toml --data text.txt --tokenizer bytes --steps 1 --pad-vocabulary 4 --json",
        )
        .refuses("usage", "--pad-vocabulary");
}

#[test]
fn a_frozen_trunk_stays_as_it_was_loaded_and_the_new_head_trains() {
    let place = place();
    let data = "--data text.txt --tokenizer bytes --seq 8 --global-batch 4 --no-clip --json";
    let run = |what: &str, more: &str| format!("train {what} {data} --steps 3 {more}");
    let serial = place.run(&run("model", "--new-head 256 --freeze trunk --checkpoint run"));
    let serial = serial.succeeds();
    serial.check(serial.stderr.contains("parameters are frozen\""), "it does not say that much is");
    let losses = |of: &Outcome| -> Vec<f64> {
        let numbers = of.losses().into_iter().map(|(_, loss)| loss.parse());
        numbers.collect::<Result<_, _>>().expect("numbers")
    };
    let learnt = losses(&serial);
    serial.check(learnt[2] < learnt[0], "the head does not learn");
    let split = "--new-head 256 --freeze trunk --tp 2 --pp 2 --microbatches 2";
    let split = place.run(&run("model", split)).succeeds();
    let mut pairs = losses(&split).into_iter().zip(&learnt);
    let close = pairs.all(|(one, other)| (one - other).abs() < 1e-4 * other);
    split.check(close, "another split loses otherwise");
    place.run("export run --huggingface out").succeeds();
    let tensors = |folder: &str| named_tensors(&place.path(folder).join("model.safetensors"));
    let (before, after) = (tensors("model"), tensors("out"));
    assert_eq!(before.len(), after.len());
    for (name, bytes) in &after {
        assert_eq!(*bytes == before[name], name != "lm_head.weight", "{name}");
    }

    for (what, more, kind, says) in [
        ("model", "--freeze attention", "usage", "names are embedding.token"),
        ("model", "--freeze [", "usage", "--freeze [: it is no pattern of names: unclosed"),
        ("model", "--freeze embedding.* --freeze blok.*", "usage", "--freeze blok.*: no parameter"),
        ("model", "--freeze *", "plan", "nothing to train"),
        ("model", "--freeze trunk --servers 1", "plan", "no groups"),
        (
            "model",
            "--freeze trunk --new-head 300",
            "weights",
            "embedding.token is frozen and starts",
        ),
    ] {
        place.run(&run(what, more)).refuses(kind, says);
    }
    place.pretend_measured();
    let found = place.run(&run("model", "--freeze trunk --ranks 2")).succeeds();
    found.check(found.stderr.contains("some parameters frozen"), "the plan trains everything");
    let resumed =
        place.run(&format!("{} --resume --checkpoint run", run("model", "--freeze trunk")));
    let resumed = resumed.succeeds();
    resumed.check(resumed.stderr.contains("are frozen\""), "it does not say that much is");
    let rounded = place.run(&run("model", "--freeze trunk --precision bf16")).succeeds();
    rounded.check(rounded.stderr.contains("are frozen, held in bf16"), "it says nothing of bits");
    let of_model = "--seq 8 --global-batch 4 --cluster h100-80g:1 --freeze trunk";
    let program = place.run(&format!("program model {of_model} --rank 0")).succeeds();
    program.check(program.stdout.contains(", frozen: "), "a bucket is not said to be frozen");
    place
        .run("program model --seq 8 --json")
        .refuses("usage", "--cluster is needed to make a plan");
    let simulated = place.run(&format!("simulate model {of_model}")).succeeds();
    simulated.check(simulated.stdout.contains("Frozen: "), "it does not say how much is");
    let dlrm = "dlrm:dense=4,rows=8-9,embed=4,bottom=4,top=4";
    let headless = format!("simulate {dlrm} --cluster h100-80g:1 --freeze trunk --json");
    place.run(&headless).refuses("usage", "no head");
    let drawn = place.run(&run("model/config.json", "--freeze trunk")).succeeds();
    drawn.check(drawn.stderr.contains("as they were drawn"), "it says nothing of drawn weights");
}

#[test]
fn a_folder_is_written_as_the_type_of_model_that_is_asked_for() {
    let place = place();
    let train = format!("train model {LENGTH} --tokenizer bytes --steps 1 --checkpoint run");
    place.run(&train).succeeds();
    let other = place.run("export run --huggingface out --model-type phi3 --json");
    other.refuses("model", "it can be as qwen3");
    other.check(!place.path("out").exists(), "there is a folder all the same");
    place
        .run("export run --huggingface out --model-type bert --json")
        .refuses("usage", "gemma, gemma2, gemma3_text, gpt2");
    place.run("export run --huggingface out --model-type qwen3").succeeds();
}

/// The bytes of each tensor of each file of weights that `export` wrote into `out`.
fn tensors(place: &Place, exported: &Outcome) -> Vec<Vec<u64>> {
    let files = exported.object()["files"].clone();
    let names = files.as_array().into_iter().flatten().filter_map(|it| it.as_str());
    let of_file = |name: &str| {
        let tensors = named_tensors(&place.path("out").join(Path::new(name).file_name()?));
        Some(tensors.into_values().map(|bytes| bytes.len() as u64).collect())
    };
    names.filter(|it| it.ends_with(".safetensors")).filter_map(of_file).collect()
}

/// A gigabyte is 10^9 bytes, as in the library whose files these are.
#[test]
fn a_file_of_weights_is_as_large_as_said_and_no_larger() {
    let place = place();
    place
        .run(&format!("train model {LENGTH} --tokenizer bytes --steps 1 --checkpoint run"))
        .succeeds();
    let export = |bytes: u64| {
        let gigabytes = bytes as f64 / 1e9;
        let command = "export run --huggingface out --force --json --shard-gigabytes";
        let exported = place.run(&format!("{command} {gigabytes:.12}")).succeeds();
        let tensors = tensors(&place, &exported);
        (exported, tensors)
    };
    let (exported, one) = export(1_000_000_000);
    exported.check(one.len() == 1, "not one file");
    let all: u64 = one[0].iter().sum();
    for bytes in [all + 1, all - 1, all / 2, all / 3, all / 5] {
        let (exported, files) = export(bytes);
        exported.check(files.concat().len() == one[0].len(), "tensors are lost");
        let sizes: Vec<u64> = files.iter().map(|it| it.iter().sum()).collect();
        let fits = files.iter().zip(&sizes).all(|(file, &size)| size <= bytes || file.len() == 1);
        let is_full =
            sizes.iter().zip(files.iter().skip(1)).all(|(size, next)| size + next[0] > bytes);
        exported.check(fits && is_full, &format!("at most {bytes}: {files:?}"));
    }
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

/// A script for bash offers the names that an option may have, files where it takes one, and else nothing.
fn completes_what_options_take(script: &Outcome) {
    let offers = |command: &str, option: &str| {
        let (_, of) =
            script.stdout.split_once(&format!("shardloom__subcmd__{command})")).expect(command);
        let of = of.split_once(&format!(" {option})\n")).expect(option).1;
        of.split_once("return 0").expect("the end of a case").0.to_owned()
    };
    let named = [
        ("plan", "--recompute", "none selective full block"),
        ("simulate", "--recompute", "none selective full block stage"),
        ("simulate", "--precision", "fp32 bf16 fp16"),
        ("plan", "--optimizer", "sgd adamw lamb adafactor"),
        ("train", "--zero", "0 1 2 3"),
        ("simulate", "--versions", "stash vertical-sync double-buffer newest"),
        ("train", "--attention", "unfused fused"),
    ];
    for (command, option, names) in named {
        let offered = offers(command, option);
        script.check(offered.contains(&format!("-W \"{names}\"")), &offered);
    }
    for (option, takes_file) in [("--tp", false), ("--data", true), ("--tokenizer", true)] {
        let offered = offers("train", option);
        script.check(offered.contains("compgen -f") == takes_file, &offered);
    }
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
        let names =
            ["zb-2p", "pipedream-2bw", "torchtitan", "megatron-2021", "a100-40g", "llama-3-70b"];
        for word in commands.iter().chain(&["microbatches", "huggingface"]).chain(&names) {
            script
                .check(script.stdout.contains(word), &format!("{shell} does not complete {word}"));
        }
    }
    completes_what_options_take(&place.run("completions bash").succeeds());
    place.run("manual -o pages").succeeds();
    let own = commands.iter().filter(|&&command| command != "help");
    for page in own.map(|command| format!("shardloom-{command}.1")).chain(["shardloom.1".into()]) {
        let text = fs::read_to_string(place.path("pages").join(&page)).expect(&page);
        assert!(text.starts_with(".ie") || text.contains(".TH"), "{page} is a manual page");
    }
    let text = fs::read_to_string(place.path("pages/shardloom-export.1")).expect("a page");
    assert!(text.contains("huggingface"), "options are in the page");
    let page = fs::read_to_string(place.path("pages/shardloom-plan.1")).expect("a page");
    let synopsis = page.split(".SH ").find(|part| part.starts_with("SYNOPSIS")).expect("one");
    let plain = synopsis.replace('\\', "");
    for part in ["shardloom", "--cluster <CLUSTER>", "--global-batch <N>", "<MODEL>"] {
        assert!(plain.contains(part), "no {part} in {synopsis}");
    }
    place.run("manual -o pages --json").refuses("file", "--force");
    place.run("completions cmd --json").refuses("usage", "bash");
}
