//! Runs of the program in a folder of their own. Whatever a test finds wrong, it sees the command, both
//! streams and what lies in the folder.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use shardloom::cluster::Profile;
use tempfile::TempDir;

/// A folder with some text to train on, in which the program runs.
pub struct Place {
    folder: TempDir,
}

/// A model that trains in milliseconds, on the text of every [`Place`].
pub const TINY: &str = "gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4";

impl Place {
    pub fn new() -> Place {
        let place = Place { folder: TempDir::new().expect("temporary folder") };
        let lines = (0..400).map(|line| format!("{} is the square of {line}.\n", line * line));
        place.write("text.txt", lines.collect::<String>());
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.path(name), contents).expect("written");
    }

    /// Puts a profile of a machine of two devices where the program looks for that of this machine, which it measures
    /// otherwise: that takes a minute or more.
    pub fn pretend_measured(&self) {
        let mut profile = Profile::preset("v100-16g").expect("a preset");
        profile.device.name = "local".into();
        profile.device.lanes_overlap = false;
        profile.node.devices = 2;
        self.write("profile.toml", profile.to_toml().expect("TOML"));
    }

    /// The program, or another build of it that `SHARDLOOM_BINARY` names, about to run here with these arguments,
    /// separated by spaces. It sees no profile but one in this folder.
    pub fn command(&self, arguments: &str) -> Command {
        let program = env::var_os("SHARDLOOM_BINARY");
        let mut command =
            Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_shardloom").into()));
        command
            .args(arguments.split_whitespace())
            .current_dir(self.folder.path())
            .env("COLUMNS", "100")
            .env("SHARDLOOM_PROFILE", self.path("profile.toml"))
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &str) -> Outcome {
        let output = self.command(arguments).output().expect("the program starts");
        let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
        self.outcome(arguments, output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// What came of a run that a test steered itself.
    pub fn outcome(
        &self,
        arguments: &str,
        status: Option<i32>,
        stdout: String,
        stderr: String,
    ) -> Outcome {
        let mut listing = String::new();
        list(self.folder.path(), 1, &mut listing);
        let command = format!("shardloom {arguments}");
        let outcome = Outcome { command, status, stdout, stderr, listing };
        outcome.check(!outcome.stderr.contains("panicked"), "it panicked");
        outcome
    }
}

fn list(folder: &Path, depth: usize, listing: &mut String) {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().display();
        let bytes = fs::metadata(&path).map_or(0, |data| data.len());
        writeln!(listing, "{:indent$}{name} {bytes}", "", indent = 2 * depth).expect("memory");
        if path.is_dir() {
            list(&path, depth + 1, listing);
        }
    }
}

/// What came of a run.
pub struct Outcome {
    command: String,
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    listing: String,
}

impl Outcome {
    /// Fails the test, with all there is to see, unless `holds`.
    #[track_caller]
    pub fn check(&self, holds: bool, what: &str) {
        assert!(
            holds,
            "{what}\ncommand: {}\nstatus: {:?}\nstdout:\n{}\nstderr:\n{}\nfolder:\n{}",
            self.command, self.status, self.stdout, self.stderr, self.listing
        );
    }

    #[track_caller]
    pub fn succeeds(self) -> Outcome {
        self.check(self.status == Some(0), "it failed");
        self
    }

    /// Every line of standard output as JSON.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        let parse = |line: &str| {
            let value = serde_json::from_str(line);
            self.check(value.is_ok(), &format!("no JSON: {line}"));
            value.unwrap_or_default()
        };
        self.stdout.lines().map(parse).collect()
    }

    /// The only object of standard output.
    #[track_caller]
    pub fn object(&self) -> Value {
        let mut objects = self.objects();
        self.check(objects.len() == 1, "not one object");
        objects.remove(0)
    }

    /// The losses of a training run, exactly as printed, by step.
    #[track_caller]
    pub fn losses(&self) -> Vec<(u64, String)> {
        let objects = self.objects();
        let steps = objects.iter().filter(|object| object.get("step").is_some());
        steps
            .map(|object| (object["step"].as_u64().unwrap_or(u64::MAX), object["loss"].to_string()))
            .collect()
    }

    /// The summary of a training run.
    #[track_caller]
    pub fn summary(&self) -> Value {
        let last = self.objects().pop().unwrap_or_default();
        self.check(last.get("summary").is_some(), "no summary at the end");
        last["summary"].clone()
    }

    /// Checks that the program refused its input with one message of `kind` that contains `hint`, and
    /// printed nothing else.
    #[track_caller]
    pub fn refuses(&self, kind: &str, hint: &str) {
        self.check(self.status == Some(2), "exit status is not 2");
        self.check(self.stdout.is_empty(), "something was printed");
        let lines: Vec<&str> = self.stderr.lines().collect();
        self.check(lines.len() == 1, "not one line on standard error");
        let line: Value = serde_json::from_str(lines[0]).unwrap_or_default();
        let error = &line["error"];
        self.check(error["kind"] == kind, &format!("the kind is not {kind}"));
        let message = error["message"].as_str().unwrap_or_default();
        self.check(message.contains(hint), &format!("the message does not say {hint:?}"));
        self.check(error.get("where").is_some(), "there is no key `where`");
    }
}

/// The tensors of a safetensors file, by name.
pub fn named_tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).expect("a file");
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let tensors = header.as_object().expect("tensors by name").iter();
    let tensors = tensors.filter(|(name, _)| *name != "__metadata__");
    let data = |of: &Value| {
        let at = |end: usize| of["data_offsets"][end].as_u64().expect("an offset") as usize;
        bytes[8 + length + at(0)..8 + length + at(1)].to_vec()
    };
    tensors.map(|(name, of)| (name.clone(), data(of))).collect()
}
