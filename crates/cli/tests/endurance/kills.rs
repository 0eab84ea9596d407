//! Runs that are killed at random moments lose nothing but the steps since their last checkpoint, and go on bit
//! for bit as a run that nobody has stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::invocation::{Outcome, Place};
use crate::mpirun::OF_MPIRUN;
use crate::mutation::Random;

/// A model whose checkpoints, of 0.8 MB, take about as long to write as its steps take.
const MODEL: &str = "gpt:layers=4,hidden=64,heads=4 --seq 32 --data text.txt --global-batch 4";

/// Who runs, and who of them is killed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "processes need MPI"))]
enum Killed {
    /// The program, without `mpirun`.
    Itself,
    /// All of so many processes at once: `mpirun`, which passes on what they have printed, ends after them.
    All(u32),
    /// One of so many: `mpirun` says which, and ends the others.
    One(u32),
}

impl Killed {
    fn processes(self) -> Option<u32> {
        match self {
            Killed::Itself => None,
            Killed::All(processes) | Killed::One(processes) => Some(processes),
        }
    }
}

/// How long `mpirun` may take to end all where one was killed: now and then it never does where that one is lost
/// while it starts (Open MPI 4.1.4), which `launch` ends likewise.
const ENDING: Duration = Duration::from_secs(30);

/// Kills a run of this plan, with a checkpoint after every so many steps, so many times, and lets the next one go on.
fn killed(options: &str, every: usize, who: Killed, kills: usize) {
    let place = Place::new();
    let saved = format!("--checkpoint run --checkpoint-every {every} --keep 3");
    let mut random = Random::new(every as u64);
    let mut losses: Vec<Option<String>> = vec![];
    let mut lost = BTreeMap::new();
    for kill in 0..kills {
        // Those of a pipeline without flush drain it, and so have to be the same in all runs.
        let arguments = format!("train {MODEL} {options} --steps 1000000 {saved} --resume --json");
        let wait = Duration::from_millis(random.below(1500) as u64);
        let outcome = run_and_kill(&place, &arguments, who, wait, &mut random);
        let done = outcome.losses();
        if who.processes().is_some() {
            *lost.entry(named_process(&outcome)).or_insert(0) += 1;
        }
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
    assert!(losses.len() > every, "{options} {who:?}: no kill met a run with a checkpoint");
    let steps = losses.len() + 3;
    let rest = format!("train {MODEL} {options} --steps {steps} {saved} --resume --json");
    let last = to_the_end(&place, &rest, who);
    let saved = saved.replace("run", "whole");
    let whole = format!("train {MODEL} {options} --steps {steps} {saved} --json");
    let whole = to_the_end(&place, &whole, who);
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
    println!("{options} {who:?}: {kills} kills within {} steps", losses.len());
    if !lost.is_empty() {
        println!("lost, by number: {lost:?}");
    }
}

/// The process that `mpirun` says it has lost; none where that had not begun yet, or `mpirun` had to be ended too.
fn named_process(outcome: &Outcome) -> Option<u32> {
    let (_, named) = outcome.stderr.split_once("noticed that process rank ")?;
    named.split(' ').next()?.parse().ok()
}

/// The program, or `mpirun` with so many processes of it.
fn command(place: &Place, arguments: &str, who: Killed) -> Command {
    let alone = place.command(arguments);
    let Some(processes) = who.processes() else { return alone };
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string()]).arg(alone.get_program()).args(alone.get_args());
    command.envs(alone.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.envs(OF_MPIRUN).current_dir(place.path("")).stdin(Stdio::null());
    command
}

fn to_the_end(place: &Place, arguments: &str, who: Killed) -> Outcome {
    let output = command(place, arguments, who).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    place
        .outcome(arguments, output.status.code(), text(output.stdout), text(output.stderr))
        .succeeds()
}

/// Runs so long, and then kills who is to be.
fn run_and_kill(
    place: &Place,
    arguments: &str,
    who: Killed,
    wait: Duration,
    random: &mut Random,
) -> Outcome {
    let mut command = command(place, arguments, who);
    // A group of its own, which can be ended where mpirun does not end.
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
    let victims = match who {
        Killed::Itself => vec![child.id().to_string()],
        Killed::All(_) => its_processes(child.id()),
        Killed::One(_) => {
            let mut all = its_processes(child.id());
            vec![all.swap_remove(random.below(all.len()))]
        }
    };
    assert!(kill(&victims), "the program is gone: {:?}", reading.join());
    let (start, mut is_ended_here) = (Instant::now(), false);
    let status = loop {
        match child.try_wait().expect("it can be waited for") {
            Some(status) => break status,
            None if start.elapsed() > ENDING => {
                println!("mpirun goes on {ENDING:?} after {victims:?} were killed");
                is_ended_here = kill(&[format!("-{}", child.id())]);
                break child.wait().expect("it ends");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut stdout = reading.join().expect("it reads");
    // A killed program may leave half a line.
    stdout.truncate(stdout.rfind('\n').map_or(0, |end| end + 1));
    let stderr = errors.join().expect("it reads");
    let outcome = place.outcome(arguments, status.code(), stdout, stderr);
    if who.processes().is_some() && !is_ended_here {
        outcome.check(outcome.status == Some(137), "mpirun does not say that one was killed");
    }
    outcome
}

/// Sends processes, or groups of them, the signal that none survives; whether all are there.
pub fn kill(processes: &[String]) -> bool {
    let sent = Command::new("kill").args(["-KILL", "--"]).args(processes).status();
    sent.expect("kill starts").success()
}

/// Those that `mpirun` has started, or the first that it starts.
fn its_processes(mpirun: u32) -> Vec<String> {
    for _ in 0..10_000 {
        let found = Command::new("pgrep").args(["-P", &mpirun.to_string()]).output();
        let found = String::from_utf8(found.expect("pgrep starts").stdout).expect("numbers");
        let all: Vec<String> = found.lines().map(str::to_owned).collect();
        if !all.is_empty() {
            return all;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("mpirun has started no process");
}

#[test]
#[ignore = "takes minutes"]
fn killed_runs_of_one_rank_go_on() {
    killed("", 2, Killed::Itself, 30);
}

#[test]
#[ignore = "takes minutes"]
fn killed_runs_of_a_pipeline_with_replicas_go_on() {
    killed("--pp 2 --dp 2 --zero 1 --microbatches 2", 3, Killed::Itself, 30);
}

#[test]
#[ignore = "takes minutes"]
fn killed_runs_without_flush_go_on() {
    killed("--pp 2 --schedule pipedream --microbatches 2", 1, Killed::Itself, 20);
}

#[test]
#[cfg(feature = "mpi")]
#[ignore = "takes minutes"]
fn killed_runs_of_two_processes_go_on() {
    killed("--dp 2 --zero 3", 2, Killed::All(2), 20);
}

#[test]
#[cfg(feature = "mpi")]
#[ignore = "takes minutes"]
fn runs_of_four_processes_of_which_one_is_killed_go_on() {
    killed("--pp 2 --dp 2 --zero 1 --microbatches 2", 2, Killed::One(4), 30);
}
