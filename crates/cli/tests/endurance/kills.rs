//! Runs that are killed at random moments lose nothing but the steps since their last checkpoint, and go on bit
//! for bit as a run that nobody has stopped.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::invocation::{Outcome, Place};
use crate::mutation::Random;

/// A model whose checkpoints, of 0.8 MB, take about as long to write as its steps take.
const MODEL: &str = "gpt:layers=4,hidden=64,heads=4 --seq 32 --data text.txt --global-batch 4";

/// Kills a run of this plan, with a checkpoint after every so many steps, so many times, and lets the next one go on.
fn killed(options: &str, every: usize, processes: Option<u32>, kills: usize) {
    let place = Place::new();
    let saved = format!("--checkpoint run --checkpoint-every {every} --keep 3");
    let mut random = Random::new(every as u64);
    let mut losses: Vec<Option<String>> = vec![];
    for kill in 0..kills {
        // Those of a pipeline without flush drain it, and so have to be the same in all runs.
        let arguments = format!("train {MODEL} {options} --steps 1000000 {saved} --resume --json");
        let wait = Duration::from_millis(random.below(1500) as u64);
        let outcome = run_and_kill(&place, &arguments, processes, wait);
        let done = outcome.losses();
        if let Some(&(first, _)) = done.first() {
            // A step is printed before its checkpoint is written, and after that of the step before it is.
            let sure = losses.len().saturating_sub(1) / every * every;
            let first = first as usize;
            outcome.check(first <= losses.len(), &format!("kill {kill}: steps are left out"));
            outcome.check(
                first >= sure,
                &format!(
                    "kill {kill}: it went back to step {first}, from a checkpoint before {sure}"
                ),
            );
        }
        for (step, loss) in &done {
            let step = *step as usize;
            if step == losses.len() {
                losses.push(Some(loss.clone()));
            }
            let before = losses[step].as_ref();
            outcome
                .check(before == Some(loss), &format!("kill {kill}: another loss at step {step}"));
        }
    }
    let steps = losses.len() + 3;
    let rest = format!("train {MODEL} {options} --steps {steps} {saved} --resume --json");
    let last = to_the_end(&place, &rest, processes);
    let saved = saved.replace("run", "whole");
    let whole = format!("train {MODEL} {options} --steps {steps} {saved} --json");
    let whole = to_the_end(&place, &whole, processes);
    let same: Vec<Option<String>> =
        whole.losses().into_iter().map(|(_, loss)| Some(loss)).collect();
    whole.check(same[..losses.len()] == losses[..], "the run that nobody stopped has other losses");
    let digest = |outcome: &Outcome| outcome.summary()["weights_digest"].clone();
    whole.check(digest(&whole) == digest(&last), "the run that nobody stopped has other weights");
    let folder = fs::read_dir(place.path("run")).expect("a folder");
    let names = folder.map(|entry| entry.expect("an entry").file_name().display().to_string());
    let odd: Vec<String> =
        names.filter(|name| name != ".lock" && !name.starts_with("step-")).collect();
    assert!(odd.is_empty(), "what killed runs have left is there still: {odd:?}");
    println!("{options} {processes:?}: {kills} kills within {} steps", losses.len());
}

/// The program, or `mpirun` with so many processes of it.
fn command(place: &Place, arguments: &str, processes: Option<u32>) -> Command {
    let alone = place.command(arguments);
    let Some(processes) = processes else { return alone };
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string()]).arg(alone.get_program()).args(alone.get_args());
    command.envs(alone.get_envs().filter_map(|(name, value)| Some((name, value?))));
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ] {
        command.env(name, value);
    }
    command.current_dir(place.path("")).stdin(Stdio::null());
    command
}

fn to_the_end(place: &Place, arguments: &str, processes: Option<u32>) -> Outcome {
    let output = command(place, arguments, processes).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    place
        .outcome(arguments, output.status.code(), text(output.stdout), text(output.stderr))
        .succeeds()
}

/// Runs so long, and then kills all processes.
fn run_and_kill(place: &Place, arguments: &str, processes: Option<u32>, wait: Duration) -> Outcome {
    let mut command = command(place, arguments, processes);
    // A group of its own, so that a signal reaches all processes at once.
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut errors = child.stderr.take().expect("a pipe");
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).expect("UTF-8");
        text
    });
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        while reader.read_line(&mut text).is_ok_and(|bytes| bytes > 0) {}
        text
    });
    // Some are killed while they start.
    std::thread::sleep(wait);
    let group = format!("-{}", child.id());
    let sent = Command::new("kill").args(["-KILL", "--", &group]).status();
    assert!(sent.expect("kill starts").success(), "the program is gone: {:?}", reading.join());
    let status = child.wait().expect("it ends");
    let mut stdout = reading.join().expect("it reads");
    // A killed program may leave half a line.
    stdout.truncate(stdout.rfind('\n').map_or(0, |end| end + 1));
    let stderr = errors.join().expect("it reads");
    place.outcome(arguments, status.code(), stdout, stderr)
}

#[test]
#[ignore = "takes minutes"]
fn killed_runs_of_one_rank_go_on() {
    killed("", 2, None, 30);
}

#[test]
#[ignore = "takes minutes"]
fn killed_runs_of_a_pipeline_with_replicas_go_on() {
    killed("--pp 2 --dp 2 --zero 1 --microbatches 2", 3, None, 30);
}

#[test]
#[ignore = "takes minutes"]
fn killed_runs_without_flush_go_on() {
    killed("--pp 2 --schedule pipedream --microbatches 2", 1, None, 20);
}

#[test]
#[cfg(feature = "mpi")]
#[ignore = "takes minutes"]
fn killed_runs_of_two_processes_go_on() {
    killed("--dp 2 --zero 3", 2, Some(2), 20);
}
