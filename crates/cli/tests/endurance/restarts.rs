//! Runs that are launched in several processes, of which one after another is killed at random moments, go on with
//! those that are left and lose nothing but the steps since their last checkpoint.
#![cfg(feature = "mpi")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio, id};
use std::time::Duration;

use crate::invocation::Place;
use crate::kills::kill;
use crate::mpirun::OF_MPIRUN;
use crate::mutation::Random;

/// A batch that four, three and two replicas share equally.
const MODEL: &str = "gpt:layers=2,hidden=64,heads=4 --seq 32 --data text.txt --global-batch 12";
const STEPS: usize = 60;
const EVERY: usize = 2;

/// Launches a run of four processes and kills one of those that are left three times. Says which numbers were lost.
fn launched_and_killed(seed: u64, random: &mut Random) -> Vec<u32> {
    let place = Place::new();
    let seed = format!("--seed {seed}");
    let saved = format!("--checkpoint run --checkpoint-every {EVERY} --keep 2");
    let train = format!("train {MODEL} {seed} --dp 4 {saved} --steps {STEPS} --json");
    let arguments = format!("launch --hosts localhost:4 --restarts 3 -- {train}");
    let mut command = place.command(&arguments);
    let mut child = command
        .envs(OF_MPIRUN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut errors = child.stderr.take().expect("a pipe");
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).expect("UTF-8");
        text
    });
    let (mut stdout, mut kills, mut steps_before) = (String::new(), 0, random.below(12));
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    while reader.read_line(&mut stdout).expect("a line") > 0 {
        let is_step = stdout.lines().last().is_some_and(|line| line.contains("\"loss\""));
        if kills == 3 || !is_step {
            continue;
        }
        if steps_before > 0 {
            steps_before -= 1;
            continue;
        }
        std::thread::sleep(Duration::from_millis(random.below(40) as u64));
        // Those that were started, not those that launch, whose lines end alike.
        let pattern = format!("^[^ ]*/shardloom train .*{seed} ");
        let found = Command::new("pgrep").args(["-f", &pattern]).output().expect("pgrep starts");
        let found = String::from_utf8(found.stdout).expect("numbers");
        let mut all: Vec<String> = found.lines().map(str::to_owned).collect();
        // Those of the run before, which is ended, may be found too.
        if all.len() == 4 - kills && kill(&[all.swap_remove(random.below(all.len()))]) {
            kills += 1;
            steps_before = 2 + random.below(8);
        }
    }
    let status = child.wait().expect("it ends").code();
    let stderr = errors.join().expect("it reads");
    let outcome = place.outcome(&arguments, status, stdout, stderr).succeeds();
    outcome.check(kills == 3, &format!("{kills} kills"));
    for left in ["localhost:3", "localhost:2", "localhost:1"] {
        let says = format!("going on with {left},");
        outcome.check(outcome.stderr.contains(&says), &format!("it does not say {says:?}"));
    }
    let losses = outcome.losses();
    outcome.check(losses.first().map(|it| it.0) == Some(0), "it does not begin at the first step");
    outcome.check(losses.last().map(|it| it.0 as usize) == Some(STEPS - 1), "steps are missing");
    for pair in losses.windows(2) {
        let (last, next) = (pair[0].0 as usize, pair[1].0 as usize);
        // A step is printed before its checkpoint is written, and after that of the step before it is.
        let sure = last / EVERY * EVERY;
        outcome.check(
            (sure..=last + 1).contains(&next),
            &format!("after step {last} comes {next}, and there is a checkpoint before {sure}"),
        );
    }
    let alone = format!("train {MODEL} {seed} --steps {STEPS} --json");
    let alone = place.run(&alone).succeeds().losses();
    for (step, loss) in &losses {
        let value = |text: &str| text.parse::<f64>().expect("a number");
        let (found, expected) = (value(loss), value(&alone[*step as usize].1));
        outcome.check(
            (found - expected).abs() < 1e-3 * expected,
            &format!("step {step} has a loss of {found}, and of {expected} in one process"),
        );
    }
    let named = outcome.stderr.split("noticed that process rank ").skip(1);
    named.filter_map(|it| it.split(' ').next()?.parse().ok()).collect()
}

#[test]
#[ignore = "takes minutes"]
fn launched_runs_that_lose_processes_go_on_with_those_that_are_left() {
    let mut random = Random::new(7);
    let mut lost = [0; 4];
    for run in 0..4 {
        for number in launched_and_killed(u64::from(id()) * 16 + run, &mut random) {
            lost[number as usize] += 1;
        }
    }
    println!("12 kills; lost, by number: {lost:?}");
    assert!(lost.iter().sum::<u32>() >= 8, "hardly any lost process was named: {lost:?}");
}
