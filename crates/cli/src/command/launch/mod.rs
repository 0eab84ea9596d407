//! `shardloom launch`: starts a command in processes on several machines.

mod manifest;
mod restart;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

use clap::Args;
use shardloom::CheckpointFolder;
use shardloom::cluster::Hosts;

use super::require_kept;
use crate::failure::Failure;
use crate::number::whole;
use crate::terminal::Terminal;

/// Train in processes on several machines: runs mpirun, or prints what Slurm or Kubernetes is to run
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom launch --hosts node1:8,node2:8 -- train plan.toml --data text.txt --steps 1000
  shardloom launch --hosts node1:8,node2:8 -- train gpt-2 --data text.txt --steps 1000
  shardloom launch --hosts node1:8,node2:8 -- profile -o machines.toml
  shardloom launch --hosts node1:8,node2:8 --restarts 5 -- \\
      train plan.toml --data text.txt --steps 1000 --checkpoint run --checkpoint-every 50
  shardloom launch --hosts node1:8,node2:8 --slurm -- train plan.toml --data text.txt --steps 1000 > job.sh
  shardloom launch --hosts a:4,b:4 --kubernetes registry/image:tag -- train plan.toml --data /data --steps 1000

Each process has as many of the plan's ranks as any other, or one or none. For a model without a plan, machines and links \
are measured and the fastest plan is found. The program, the plan and the data lie under the \
same paths on all machines, and checkpoints in a folder that all of them see.")]
pub struct Launch {
    /// Machines, each with the number of its processes
    #[arg(long, value_name = "HOST:N,...", required = true)]
    hosts: Hosts,

    /// Start again, at most so many times, with the processes that are left when some are lost: train goes on
    /// from its last checkpoint under a plan made for these
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    #[arg(conflicts_with_all = ["print", "slurm", "kubernetes"])]
    restarts: Option<u32>,

    /// Print the line instead of running it
    #[arg(long, conflicts_with_all = ["slurm", "kubernetes"])]
    print: bool,

    /// Print a batch script for Slurm's sbatch
    #[arg(long, conflicts_with = "kubernetes")]
    slurm: bool,

    /// Print a manifest for Kubernetes with the MPI operator (kubeflow.org/v2beta1), whose containers run
    /// this image; its machines are Kubernetes' choice
    #[arg(long, value_name = "IMAGE")]
    kubernetes: Option<String>,

    /// `train` or `profile` and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    command: Vec<OsString>,
}

impl Launch {
    /// Runs or prints.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let command = self.command()?;
        if let Some(image) = &self.kubernetes {
            return terminal.text(manifest::kubernetes(&self.hosts, image, &command)?);
        }
        if self.slurm {
            return terminal.text(manifest::slurm(&self.hosts, &command)?);
        }
        let program = env::current_exe().map_err(|error| {
            Failure::usage("program", format!("cannot find this program's own file: {error}"))
        })?;
        let program = program.to_string_lossy();
        let line = |hosts: &Hosts, command: &[String]| manifest::mpirun(hosts, &program, command);
        if self.print {
            return terminal.line(manifest::quoted(&line(&self.hosts, &command)));
        }
        require_mpi()?;
        match self.restarts {
            None => start(&line(&self.hosts, &command)),
            Some(restarts) => {
                require_checkpoints(&command)?;
                restart::run(&self.hosts, restarts, &command, line, terminal)
            }
        }
    }

    /// What each process runs, after the program's name.
    fn command(&self) -> Result<Vec<String>, Failure> {
        let text = |word: &OsString| {
            word.to_str().map(str::to_owned).ok_or_else(|| {
                let word = word.to_string_lossy();
                Failure::usage("COMMAND", format!("`{word}` is not UTF-8; rename that file"))
            })
        };
        let command: Vec<String> = self.command.iter().map(text).collect::<Result<_, _>>()?;
        match command.first().map(String::as_str) {
            Some("train" | "profile") => Ok(command),
            other => {
                let message = format!(
                    "`{}` runs in one process; after `--`, give `train` or `profile` and its arguments",
                    other.unwrap_or_default()
                );
                Err(Failure::usage("COMMAND", message))
            }
        }
    }
}

/// Without checkpoints there is nothing to go on from.
fn require_checkpoints(command: &[String]) -> Result<(), Failure> {
    let folder = value(command, "--checkpoint");
    let every = value(command, "--checkpoint-every");
    let Some((folder, _)) = folder.zip(every).filter(|_| command[0] == "train") else {
        let message = "--restarts: goes on from checkpoints; give train --checkpoint FOLDER and \
                       --checkpoint-every STEPS";
        return Err(Failure::usage("--restarts", message));
    };
    let is_given = |option: &str| command.iter().any(|word| word == option);
    if is_given("--resume") {
        return Ok(());
    }
    // What is there now is another run's, which must not be gone on from after a loss.
    let claimed = CheckpointFolder::claim(Path::new(folder))?;
    if is_given("--force") {
        require_kept(&claimed, paths(command))?;
        if let Some(weights) = value(command, "--weights").filter(|it| !Path::new(it).exists()) {
            let message = format!(
                "--weights {weights}: there is no such file, and --force would delete checkpoints"
            );
            return Err(Failure::usage("--weights", message));
        }
    }
    Ok(claimed.clear(is_given("--force"))?)
}

/// All of a command that may be a path, but for the folder of its checkpoints.
fn paths(command: &[String]) -> impl Iterator<Item = &Path> {
    let checkpoint = |word: &str| word == "--checkpoint" || word.starts_with("--checkpoint=");
    let before = std::iter::once("").chain(command.iter().map(String::as_str));
    before.zip(command).filter_map(move |(before, word)| {
        let is_folder = before == "--checkpoint" || checkpoint(word);
        let value = word.split_once('=').filter(|(option, _)| option.starts_with("--"));
        (!is_folder).then(|| Path::new(value.map_or(word.as_str(), |(_, value)| value)))
    })
}

/// What an option of a command is given as.
fn value<'a>(command: &'a [String], option: &str) -> Option<&'a str> {
    let at = command.iter().position(|word| {
        word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    match command[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => command.get(at + 1).map(String::as_str),
    }
}

fn require_mpi() -> Result<(), Failure> {
    if cfg!(feature = "mpi") {
        return Ok(());
    }
    let message = "this program was built without MPI, so its processes would not find each other; \
                   build it with --features mpi, or see --print";
    Err(Failure::usage("launch", message))
}

/// Becomes a line; it says itself what goes wrong there.
fn start(line: &[String]) -> Result<(), Failure> {
    let (program, arguments) = line.split_first().expect("the line has a program");
    let mut command = Command::new(program);
    let error = become_it(command.args(arguments))?;
    let message = format!("cannot run {program}: {error}; install Open MPI, or see --print");
    Err(Failure::usage("launch", message))
}

/// Becomes a command, so that signals and its exit status are its own; why it cannot.
#[cfg(unix)]
fn become_it(command: &mut Command) -> Result<io::Error, Failure> {
    use std::os::unix::process::CommandExt;
    Ok(command.exec())
}

#[cfg(not(unix))]
fn become_it(command: &mut Command) -> Result<io::Error, Failure> {
    match command.status() {
        Err(error) => Ok(error),
        Ok(ended) => std::process::exit(ended.code().unwrap_or(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program without MPI refuses to launch anything before it looks at checkpoints.
    #[test]
    fn checkpoints_of_an_earlier_run_are_deleted_with_force_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoint = folder.path().join("step-00000001");
        std::fs::create_dir(&checkpoint).expect("a folder");
        let path = folder.path().to_str().expect("UTF-8");
        let required = |option: Option<&str>| {
            let words = ["train", "p.toml", "--checkpoint", path, "--checkpoint-every", "1"];
            let command: Vec<String> = words.into_iter().chain(option).map(str::to_owned).collect();
            require_checkpoints(&command).is_ok()
        };
        assert!(!required(None));
        assert!(required(Some("--resume")));
        assert!(checkpoint.exists(), "it is deleted without --force");
        assert!(required(Some("--force")));
        assert!(!checkpoint.exists(), "it is not deleted");
    }

    /// In either form, and whichever comes first: one is how the other begins.
    #[test]
    fn an_option_has_its_own_value_beside_one_with_a_longer_name() {
        for (words, folder, every) in [
            ("train p --checkpoint-every 5 --checkpoint run", Some("run"), Some("5")),
            ("train p --checkpoint run --checkpoint-every 5", Some("run"), Some("5")),
            ("train p --checkpoint-every=5 --checkpoint=run", Some("run"), Some("5")),
            ("train p --checkpoint=a=b --checkpoint-every 5", Some("a=b"), Some("5")),
            ("train p --checkpoint-every 5", None, Some("5")),
            ("train p --checkpoint", None, None),
        ] {
            let command: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let found = ["--checkpoint", "--checkpoint-every"].map(|it| value(&command, it));
            assert_eq!(found, [folder, every], "{words}");
        }
    }
}
