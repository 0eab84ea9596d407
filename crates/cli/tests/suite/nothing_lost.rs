//! What a run came to is not lost to a full disk, a folder that cannot be written, or another run.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::invocation::{Outcome, Place, TINY};

/// A run that goes on until it is stopped, or its test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(name).arg(self.0.id().to_string()).status();
        assert!(sent.expect("kill starts").success(), "the program is gone");
    }
}

/// One after its first step.
fn running(place: &Place, options: &str) -> Running {
    let mut command = place.command(&format!("train {TINY} --steps 1000000 {options} --json"));
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut byte = [0];
    while byte != *b"\n" {
        stdout.read_exact(&mut byte).expect("a line");
    }
    child.stdout = Some(stdout);
    Running(child)
}

/// Runs the program where files cannot get longer than so many blocks of 512 bytes, as on a disk that is full then.
/// `output` is where the shell sends what it prints.
fn with_little_room(place: &Place, blocks: u32, arguments: &str, output: &str) -> Outcome {
    let own = place.command(arguments);
    let mut command = Command::new("sh");
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\" {output}");
    command.args(["-c", &script]).arg(own.get_program()).args(own.get_args());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let run = command.current_dir(place.path("")).output().expect("a shell");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    place.outcome(arguments, run.status.code(), text(run.stdout), text(run.stderr))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let names = entries.map(|entry| entry.file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn places_that_cannot_be_written_are_found_before_the_first_step() {
    let place = Place::new();
    // In /proc nobody can make files, root included.
    for option in ["--html /proc/x.html", "--trace /proc/x.json", "--checkpoint /proc/run"] {
        let outcome = place.run(&format!("train {TINY} --steps 3 {option} --json"));
        outcome.check(outcome.stdout.is_empty(), "it trained");
        outcome.refuses("file", "/proc");
    }
    let plan =
        "plan gpt:layers=2,hidden=16,heads=2,vocab=64 --seq 8 --global-batch 4 --cluster h100:2";
    place.run(&format!("{plan} -o /proc/plan.toml --json")).refuses("file", "/proc/plan.toml");
    // What is there stays until there is something to put in its place.
    place.write("plan.toml", "mine");
    place.run("plan nothing:x=1 --cluster h100:2 -o plan.toml --force --json");
    assert_eq!(fs::read_to_string(place.path("plan.toml")).expect("it is there"), "mine");
    assert_eq!(names(&place.path("")), ["plan.toml", "text.txt"], "nothing is left lying about");
}

#[test]
fn a_full_disk_leaves_no_part_of_a_file_and_what_was_there_before() {
    let place = Place::new();
    let train = format!("train {TINY} --steps 3 --html report.html --json");
    let outcome = with_little_room(&place, 8, &train, "");
    outcome.check(outcome.status == Some(1), "exit status is not 1");
    outcome.check(outcome.stderr.contains("write report.html: "), "the file is not named");
    outcome.check(!outcome.stderr.contains("at path"), "another file is named");
    outcome.check(outcome.losses().len() == 3, "it did not train");
    outcome.summary();
    assert_eq!(names(&place.path("")), ["text.txt"]);

    // Nor is it forgotten where nobody reads on, or nothing can be printed.
    for output in ["| true", "> /dev/full"] {
        let outcome = with_little_room(&place, 8, &train, output);
        outcome.check(outcome.stderr.contains("report.html"), "the file is not named");
    }

    place.run(&train).succeeds();
    let before = fs::read(place.path("report.html")).expect("a report");
    let outcome = with_little_room(&place, 8, &format!("{train} --force"), "");
    outcome.check(outcome.status == Some(1), "exit status is not 1");
    assert_eq!(fs::read(place.path("report.html")).expect("it is there"), before);

    let saved = format!("train {TINY} --steps 4 --checkpoint run --checkpoint-every 2 --json");
    let outcome = with_little_room(&place, 8, &saved, "");
    outcome.check(outcome.status == Some(1), "exit status is not 1");
    outcome.check(outcome.stderr.contains("run/"), "the file is not named");
    assert!(!place.path("run").exists(), "a part of a checkpoint is left");
}

#[test]
fn a_run_that_is_refused_leaves_no_folder_for_its_checkpoints() {
    let place = Place::new();
    for wrong in ["--dp 3 --global-batch 4", "--seq 100000", "--weights text.txt"] {
        let refused = place.run(&format!("train {TINY} --steps 1 --checkpoint runs/run {wrong}"));
        refused.check(refused.status == Some(2), "exit status is not 2");
        assert_eq!(names(&place.path("")), ["text.txt"], "{wrong}");
    }
}

#[test]
fn a_full_disk_leaves_no_folder_with_a_part_of_what_was_to_be_in_it() {
    let place = Place::new();
    let run = "--steps 1 --checkpoint run --json";
    let outcome = with_little_room(&place, 0, &format!("train {TINY} {run}"), "");
    outcome.check(outcome.status.is_some_and(|status| status > 0), "it found room");
    assert_eq!(names(&place.path("")), ["text.txt"], "a folder is left");

    place.run(&format!("train {TINY} {run}")).succeeds();
    let model = "llama:layers=2,hidden=16,heads=2,kv_heads=2,ffn=32,vocab=64";
    let plan = format!("plan {model} --seq 8 --global-batch 4 --cluster h100-80g:2");
    place.run(&format!("{plan} -o plan.toml --json")).succeeds();
    let there = ["plan.toml", "run", "text.txt"];
    let outcome = with_little_room(&place, 4, "export run --weights w.safetensors --json", "");
    outcome.check(outcome.stderr.contains("w.safetensors: "), "another file is named");
    for (blocks, command) in [
        (8, "export run --huggingface new/model --json"),
        (2, "export plan.toml --to torchtitan -o new/titan --json"),
        (2, "manual -o new/man --json"),
    ] {
        let outcome = with_little_room(&place, blocks, command, "");
        outcome.check(outcome.status.is_some_and(|status| status > 0), "it found room");
        outcome.check(outcome.stderr.contains("new/"), "the file is not named");
        assert_eq!(names(&place.path("")), there, "{command} leaves a folder");
    }
}

#[test]
fn what_is_no_plain_file_is_written_to_and_not_replaced() {
    let place = Place::new();
    place.run(&format!("train {TINY} --steps 1 --checkpoint run --json")).succeeds();
    place.run("export run --weights plain --json").succeeds();
    let plain = fs::read(place.path("plain")).expect("weights");

    let pipe = place.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts");
    assert!(made.success(), "there is no pipe");
    let reading = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).expect("what is written")
    });
    place.run("export run --weights pipe --force --json").succeeds();
    assert!(!fs::metadata(&pipe).expect("it is there").is_file(), "the pipe is replaced");
    assert!(reading.join().expect("it reads") == plain, "something else came through the pipe");

    place.write("aim", "mine");
    std::os::unix::fs::symlink("aim", place.path("link")).expect("a link");
    place.run("export run --weights link --force --json").succeeds();
    assert!(fs::symlink_metadata(place.path("link")).expect("it is there").is_symlink());
    assert!(fs::read(place.path("aim")).expect("weights") == plain, "the link leads elsewhere");
}

const HUGGING_FACE: &str = r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": 32}"#;

#[test]
fn what_a_command_reads_is_not_overwritten() {
    let place = Place::new();
    let text = fs::read(place.path("text.txt")).expect("text");
    for file in ["text.txt", "./text.txt"] {
        let train = format!("train {TINY} --steps 1 --html {file} --force --json");
        place.run(&train).refuses("file", "is named for something else");
    }
    let words = "vocabulary --data text.txt -o text.txt --size 8 --force --json";
    place.run(words).refuses("file", "is named for something else");
    assert_eq!(fs::read(place.path("text.txt")).expect("text"), text);

    let plan = "plan gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32 --cluster h100-80g:2 --global-batch 4 --for megatron";
    place.run(&format!("{plan} -o plan.toml")).succeeds();
    let found = fs::read(place.path("plan.toml")).expect("a plan");
    fs::create_dir(place.path("model")).expect("made");
    place.write("model/config.json", HUGGING_FACE);
    for command in [
        "simulate plan.toml --html plan.toml",
        "simulate plan.toml --trace=./plan.toml",
        "plan model --cluster h100-80g:2 --global-batch 4 -o model/config.json",
        "import model/config.json --from deepspeed --cluster h100-80g:2 -o model/config.json",
        "export train.sh --to megatron -o .",
    ] {
        fs::copy(place.path("plan.toml"), place.path("train.sh")).expect("copied");
        let command = format!("{command} --force --json");
        place.run(&command).refuses("file", "is named for something else");
    }
    assert_eq!(fs::read(place.path("plan.toml")).expect("a plan"), found);
    assert_eq!(fs::read(place.path("train.sh")).expect("a plan"), found);
    assert_eq!(fs::read(place.path("model/config.json")).expect("it"), HUGGING_FACE.as_bytes());
    // What a command wrote before it may write again.
    place.run(&format!("{plan} -o plan.toml --force")).succeeds();
}

#[test]
fn a_run_whose_output_has_no_room_goes_on_to_its_checkpoint() {
    let place = Place::new();
    for json in ["", "--json"] {
        let arguments = format!("train {TINY} --steps 5 --checkpoint run --force {json}");
        let full = File::options().write(true).open("/dev/full").expect("it is there");
        let output = place.command(&arguments).stdout(full).output().expect("it starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        let outcome = place.outcome(&arguments, output.status.code(), String::new(), stderr);
        outcome.check(outcome.status == Some(1), "exit status is not 1");
        outcome.check(outcome.stderr.contains("standard output"), "it does not say why");
        let resume = format!("train {TINY} --steps 5 --checkpoint run --resume --json");
        let done = place.run(&resume).succeeds();
        done.check(done.stderr.contains("all steps are done"), "the checkpoint is lost");
    }
}

#[test]
fn a_second_run_in_the_folder_of_one_that_goes_on_is_refused_by_name() {
    let place = Place::new();
    let mut first = running(&place, "--checkpoint run --checkpoint-every 1 --keep 2");
    let process = format!("process {}", first.0.id());
    for option in ["", "--resume", "--force"] {
        let second = format!("train {TINY} --steps 3 --checkpoint run {option} --json");
        place.run(&second).refuses("checkpoint", &process);
    }
    first.signal("-KILL");
    first.0.wait().expect("it ends");
    // Nobody has to clear anything away.
    place.run(&format!("train {TINY} --steps 3 --checkpoint run --force --json")).succeeds();
}

#[test]
fn what_is_no_checkpoint_is_not_deleted_with_those_of_another_run() {
    let place = Place::new();
    let saved = format!("train {TINY} --steps 3 --checkpoint run --checkpoint-every 1 --json");
    place.run(&saved).succeeds();
    place.write("run/step-00000002/notes.txt", "the best one");
    place.write("run/readme.txt", "runs");
    place.run(&format!("{saved} --force")).refuses("checkpoint", "notes.txt");
    let all = [".lock", "readme.txt", "step-00000001", "step-00000002", "step-00000003"];
    assert_eq!(names(&place.path("run")), all, "something was deleted");
    fs::remove_file(place.path("run/step-00000002/notes.txt")).expect("it is there");
    place.run(&format!("train {TINY} --steps 1 --checkpoint run --force --json")).succeeds();
    assert_eq!(names(&place.path("run")), [".lock", "readme.txt", "step-00000001"]);
}

#[test]
fn a_request_to_terminate_is_heeded_and_told_by_the_exit_status() {
    for (name, status) in [("-TERM", 143), ("-HUP", 129)] {
        let place = Place::new();
        let mut child = running(&place, "--checkpoint run");
        child.signal(name);
        let mut rest = String::new();
        let mut stdout = BufReader::new(child.0.stdout.take().expect("a pipe"));
        while stdout.read_line(&mut rest).expect("UTF-8") > 0 {}
        assert_eq!(child.0.wait().expect("it ends").code(), Some(status), "{name}");
        assert!(rest.contains("\"interrupted\":true"), "{rest}");
        assert_eq!(names(&place.path("run")).len(), 2, "there is no checkpoint");
    }
}

#[test]
fn checkpoints_are_not_deleted_for_a_run_that_cannot_begin_or_reads_them() {
    let place = Place::new();
    let train = |options: &str| format!("train {TINY} --steps 1 --checkpoint run {options} --json");
    place.run(&train("")).succeeds();
    let shard = "run/step-00000001/shard-00000.safetensors";
    let before = fs::read(place.path(shard)).expect("a checkpoint");
    place.write("damaged.safetensors", "{}");
    for (options, kind, words) in [
        ("--force --weights nothere", "file", "nothere"),
        ("--force --weights damaged.safetensors", "weights", "damaged.safetensors"),
        (&format!("--force --weights {shard}"), "usage", "this command reads"),
        ("--force --html run", "file", "run is a folder"),
    ] {
        place.run(&train(options)).refuses(kind, words);
        assert_eq!(fs::read(place.path(shard)).expect("it is there"), before, "{options}");
    }
    let of_itself = train("--force").replace("--data text.txt", "--data run");
    place.run(&of_itself).refuses("usage", "this command reads");
    for file in [shard, "run/step-00000001/manifest.json", "run/step-00000001/manifest.blake3"] {
        let export = format!("export run --weights {file} --force --json");
        place.run(&export).refuses("file", "is a file of a checkpoint");
    }
    assert_eq!(fs::read(place.path(shard)).expect("it is there"), before);
    place
        .run(&format!("train {TINY} --steps 1 --html there --checkpoint there --json"))
        .refuses("file", "folder of checkpoints");
    place.run(&train("--resume").replace("--steps 1", "--steps 2")).succeeds();
}
