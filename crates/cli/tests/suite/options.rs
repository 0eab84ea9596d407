//! Options: what they are called elsewhere, what is said where they cannot be, and what they leave out.

use std::fs::{self, File};
use std::io::Write;

use crate::invocation::{Place, TINY};

/// The message of an error in JSON.
fn error_of(place: &Place, command: &str) -> String {
    let outcome = place.run(&format!("{command} --json"));
    let line: serde_json::Value =
        serde_json::from_str(outcome.stderr.trim()).expect("an error in one line");
    line["error"]["message"].as_str().expect("a message").to_owned()
}

#[test]
fn names_that_other_programs_have_for_options_lead_to_those_here() {
    let place = Place::new();
    for (command, given, own) in [
        ("train", "--lr", "--learning-rate"),
        ("train", "--batch-size", "--global-batch"),
        ("train", "--train_batch_size=8", "--global-batch"),
        ("train", "--max-steps", "--steps"),
        ("train", "--gpus", "--ranks"),
        ("plan", "--gpus", "--cluster"),
        ("plan", "--nnodes", "--cluster"),
        ("plan", "--micro-batch-size", "--micro-batch"),
        ("simulate", "--micro-batch-size", "--microbatches"),
        ("simulate", "--tensor-model-parallel-size", "--tp"),
        ("simulate", "--pipeline-model-parallel-size", "--pp"),
        ("simulate", "--clip-grad", "--clip-norm"),
        ("plan", "--seq-length", "--seq"),
    ] {
        let said = error_of(&place, &format!("{command} gpt-2 {given}"));
        assert!(said.contains(&format!("a similar argument exists: '{own}'")), "{given}: {said}");
        assert!(!said.contains("as a value"), "{given}: {said}");
    }
    // What a command has not is not suggested, and what nobody has not either.
    for command in ["methods --gpus 8", "train gpt-2 --no-such-thing"] {
        let said = error_of(&place, command);
        assert!(!said.contains("--cluster") && !said.contains("--steps'"), "{said}");
    }
}

/// Arguments are bytes, whatever they mean.
#[cfg(unix)]
#[test]
fn arguments_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;

    let place = Place::new();
    let bytes = std::ffi::OsStr::from_bytes(b"gpt-\xff");
    for rest in ["--gpus 8", "--cluster h100-80g:8 --global-batch 8"] {
        let mut command = place.command("plan");
        let output = command.arg(bytes).args(rest.split(' ')).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && !said.contains("panicked"), "{said}");
    }
}

#[test]
fn what_cannot_be_is_said_in_the_words_of_options() {
    let place = Place::new();
    let simulate = "simulate gpt-2 --cluster h100-80g:8";
    let plan = "plan gpt-2 --cluster h100-80g:8 --global-batch 64";
    for (command, said) in [
        (format!("{simulate} --pp 2 --versions stash"), "--versions stash: 1f1b has a flush"),
        (
            format!("{simulate} --precision fp32 --stochastic-rounding"),
            "--stochastic-rounding: of weights in bf16 without an fp32 copy",
        ),
        (
            format!("{simulate} --dp 2 --average-every 2 --servers 1"),
            "--servers 1: with sync.averaging",
        ),
        (format!("{simulate} --dp 2 --clip-norm 3 --servers 2"), "--clip-norm 3: with servers"),
        (format!("{plan} --recompute stage"), "--recompute stage: recomputation by stage"),
        (format!("{plan} --tp 0"), "at least 1 is needed"),
        (format!("{plan} --micro-batch 0"), "at least 1 is needed"),
        (format!("{simulate} --sequence-parallel"), "there is no --tp"),
        (format!("{plan} -o -"), "/dev/stdout"),
        (
            format!("{plan} --tokens 1e19"),
            "'1e19' for '--tokens <TOKENS>': a number above 0 and at most 1e18",
        ),
        (format!("{plan} --tokens 0"), "'0' for '--tokens <TOKENS>': a number above 0"),
        (
            "export text.txt --weights w.safetensors".into(),
            "text.txt is a file; checkpoints go in a folder",
        ),
    ] {
        let message = error_of(&place, &command);
        assert!(message.contains(said), "{command}: {message}");
    }
}

/// Behind what there is, and before what is printed afterwards.
#[cfg(target_os = "linux")]
#[test]
fn a_file_may_be_standard_output_wherever_that_goes() {
    let place = Place::new();
    let path = place.path("log");
    for file in [File::create(&path), File::options().append(true).open(&path)] {
        let mut file = file.expect("a file");
        file.write_all(b"before\n").expect("written");
        let small = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=128";
        let plan = format!("plan {small} --cluster h100-80g:2 --global-batch 8 -o /dev/stdout");
        let status = place.command(&plan).stdout(file).status().expect("it runs");
        assert!(status.success());
        let text = fs::read_to_string(&path).expect("text");
        let runs: Vec<&str> = text.split("before\n").skip(1).collect();
        for run in &runs {
            assert!(run.contains("[[pipeline") && run.contains("Software: "), "{text}");
        }
        assert!(text.starts_with("before\n") && !runs.is_empty(), "{text}");
    }
}

#[test]
fn a_folder_of_checkpoints_is_no_model_and_has_no_weights_as_such() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 1 --checkpoint run")).succeeds();
    let train = "--data text.txt --steps 1";
    for (command, export) in [
        (format!("train run {train}"), "export run --huggingface DIR"),
        (format!("train {TINY} --weights run --steps 1"), "export run --weights FILE"),
    ] {
        let message = error_of(&place, &command);
        let model = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";
        let resume = format!("train {model} --checkpoint run --resume");
        assert!(message.contains(&format!("`{resume}` goes on with them")), "{message}");
        place.run(&format!("{resume} --data text.txt --global-batch 4 --steps 2")).succeeds();
        assert!(message.contains(export), "{message}");
    }
}

#[test]
fn files_are_named_where_they_say_two_things_or_what_cannot_be() {
    let place = Place::new();
    let config = "{\"model_type\": \"gpt2\",\n \"n_layer\": 2, \"n_head\": 2,\n \"n_layer\": 3, \"n_embd\": 8}";
    place.write("config.json", config);
    let message = error_of(&place, "plan config.json --cluster h100-80g:8 --global-batch 8");
    assert!(message.starts_with("config.json:3: the key \"n_layer\" is given twice"), "{message}");
    let cluster = "[[group]]\nmachine = \"h100-80g\"\nnodes = 2\nuplink_bytes_per_second = 400\n";
    place.write("slow.toml", cluster);
    let message = error_of(&place, "plan gpt-2 --cluster slow.toml --global-batch 8");
    assert!(message.starts_with("slow.toml:4: "), "{message}");
    assert!(message.contains("from 1e3 to 1e15, got 400"), "{message}");
}

#[test]
fn devices_that_do_nothing_are_named_with_why() {
    let place = Place::new();
    let small = "gpt:layers=4,hidden=64,heads=4,seq=32,vocab=128";
    let plan = format!(
        "plan {small} --cluster h100-80g:2x8 --global-batch 64 --tp 2 --pp 2 --dp 2 --cp 1"
    );
    let answer = place.run(&format!("{plan} --json")).succeeds();
    let notes = answer.object()["notes"].to_string();
    let said =
        "8 of 16 devices are left out: of plans with tp 2, pp 2, dp 2, cp 1, as was asked for";
    answer.check(notes.contains(said), "no reason");
    place.run(&format!("{plan} -o plan.toml")).succeeds();
    let idle = "the plan has 8 of the 16, and the others are idle";
    for (command, is_idle) in [
        ("simulate plan.toml".to_owned(), true),
        ("explain plan.toml".to_owned(), true),
        (format!("simulate {small} --cluster h100-80g:2 --dp 2"), false),
    ] {
        let outcome = place.run(&command).succeeds();
        outcome.check(outcome.stdout.contains(idle) == is_idle, "idle devices");
    }
    place
        .run(&format!("plan {small} --cluster h100-80g:8 --global-batch 64 -o one.toml"))
        .succeeds();
    let explained = place.run("explain one.toml").succeeds();
    explained.check(!explained.stdout.contains("links between nodes, or"), "there is one node");
}

#[test]
fn samples_are_as_long_as_a_configuration_has_positions_and_that_is_said() {
    let place = Place::new();
    let golden =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../shardloom/tests/huggingface/qwen3/config.json");
    let said = "--seq gives them another length";
    for (command, is_said) in [
        (format!("plan {golden} --cluster h100-80g:1 --global-batch 8"), true),
        (format!("simulate {golden} --cluster h100-80g:1"), true),
        (format!("simulate {golden} --cluster h100-80g:1 --seq 16"), false),
        ("simulate gpt-2 --cluster h100-80g:1".to_owned(), false),
    ] {
        let outcome = place.run(&command).succeeds();
        outcome.check(outcome.stderr.contains(said) == is_said, "the length of samples");
    }
}

/// What people use without a search is possible whatever is asked of one.
#[test]
fn a_schedule_that_is_asked_for_makes_no_other_plan_impossible() {
    let place = Place::new();
    let command = "plan gpt-2 --cluster h100-80g:8 --global-batch 64 --schedule zb-v";
    let found = place.run(command).succeeds();
    found.check(found.stdout.contains("data parallel"), "no other plan");
    found.check(!found.stdout.contains("not possible"), "another plan is not possible");
}

/// A table of learned positions grows silently nowhere: weights do not fit what is longer.
#[test]
fn more_positions_than_were_learned_are_said_to_be_another_models() {
    let place = Place::new();
    let said = |model: &str, seq: usize| {
        let command = format!("simulate {model} --seq {seq} --cluster h100-80g:1");
        let outcome = place.run(&command).succeeds();
        outcome.stderr.contains("positions of gpt-2 are learned, and there are 1024")
    };
    assert!(said("gpt-2", 2048) && !said("gpt-2", 1024) && !said("gpt-2", 512));
    // Positions of a Llama are not learned, and those of a model in a line are as many as it says.
    assert!(!said("llama-3-8b", 16384));
    assert!(!said("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=257", 16));
}

#[test]
fn what_is_noted_is_a_line_for_people_and_an_object_for_programs() {
    let place = Place::new();
    let train = format!("train {TINY} --steps 1 --checkpoint run");
    place.run(&train).succeeds();
    for command in
        ["simulate gpt-2 --seq 2048 --cluster h100-80g:1".to_owned(), format!("{train} --resume")]
    {
        let for_people = place.run(&command).succeeds();
        let for_programs = place.run(&format!("{command} --json")).succeeds();
        let noted = for_programs.stderr.lines().map(|line| {
            let object: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            for_programs
                .check(object.as_object().is_some_and(|it| it.len() == 1), "more than a note");
            object["note"].as_str().expect("a note").to_owned()
        });
        let noted: Vec<String> = noted.collect();
        for_people.check(!noted.is_empty(), "nothing is noted");
        for_people.check(for_people.stderr.lines().eq(&noted), "people read something else");
    }
}
