//! Folders of checkpoints that are full, cannot be written, or that two runs want.

use std::process::{Command, Stdio};

use crate::invocation::{Outcome, Place, TINY};

/// Runs a shell script with the program as `$0`, where it may mount what nobody else sees. The place has a folder
/// `disk`.
fn script(place: &Place, script: &str) -> Outcome {
    std::fs::create_dir_all(place.path("disk")).expect("made");
    let own = place.command("");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(own.get_program());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let run = command.current_dir(place.path("")).output().expect("unshare starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    place.outcome(script, run.status.code(), text(run.stdout), text(run.stderr))
}

fn whole(place: &Place, steps: u64) -> Outcome {
    place.run(&format!("train {TINY} --steps {steps} --json")).succeeds()
}

#[test]
#[ignore = "mounts file systems"]
fn a_disk_that_is_full_at_any_checkpoint_loses_none_before_it() {
    let place = Place::new();
    let whole = whole(&place, 24);
    // Room for none up to eight checkpoints of 260 KiB, in steps that end anywhere in one.
    for kibibytes in (40..2200).step_by(135) {
        let train =
            format!("\"$0\" train {TINY} --checkpoint disk/run --checkpoint-every 2 --json");
        let outcome = script(
            &place,
            &format!(
                "mount -t tmpfs -o size={kibibytes}k none disk || exit 9
                 {train} --steps 20 > /dev/null; test $? = 1 || exit 8
                 ls disk/run >&2
                 mount -o remount,size=64m disk || exit 9
                 {train} --steps 24 --resume"
            ),
        );
        let outcome = outcome.succeeds();
        let losses = outcome.losses();
        let last = outcome.stderr.lines().filter_map(|line| line.strip_prefix("step-"));
        let last = last.filter_map(|step| step.parse::<usize>().ok()).max().unwrap_or(0);
        outcome.check(losses.first().is_some_and(|&(first, _)| first as usize == last), "lost");
        outcome.check(whole.losses()[last..] == losses, "other losses");
        outcome.check(!outcome.stderr.contains("refused"), "a part of a checkpoint was left");
        println!("{kibibytes} KiB: went on from step {last}");
    }
}

#[test]
#[ignore = "mounts file systems"]
fn what_is_on_a_disk_that_cannot_be_written_any_more_stays() {
    let place = Place::new();
    let whole = whole(&place, 6);
    let train = format!("\"$0\" train {TINY} --checkpoint disk/run --json");
    let outcome = script(
        &place,
        &format!(
            "mount -t tmpfs -o size=64m none disk || exit 9
             {train} --steps 4 > /dev/null || exit 8
             mount -o remount,ro disk || exit 9
             for more in --resume --force; do
               {train} --steps 6 $more > out; test $? = 2 || exit 7
               test -s out && exit 6
             done
             mount -o remount,rw disk || exit 9
             {train} --steps 6 --resume"
        ),
    );
    let outcome = outcome.succeeds();
    outcome.check(whole.losses()[4..] == outcome.losses(), "other losses");
}

#[test]
#[ignore = "takes minutes"]
fn of_two_runs_that_begin_at_once_in_one_folder_one_trains() {
    for round in 0..40 {
        let place = Place::new();
        let train = format!(
            "train {TINY} --steps 40 --checkpoint run --checkpoint-every 1 --resume --json"
        );
        let start = |_| {
            let mut command = place.command(&train);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let outcomes = [(); 2].map(start).map(|child| {
            let output = child.wait_with_output().expect("it ends");
            let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
            place.outcome(&train, output.status.code(), text(output.stdout), text(output.stderr))
        });
        // One may begin when the other has ended.
        let steps: usize = outcomes.iter().map(|outcome| outcome.losses().len()).sum();
        outcomes[0].check(steps == 40, &format!("round {round}: {steps} steps were done"));
        for outcome in &outcomes {
            let refused = outcome.status == Some(2) && outcome.stderr.contains("process");
            outcome.check(refused || outcome.status == Some(0), &format!("round {round}"));
        }
        let done = place.run(&train).succeeds();
        done.check(done.stderr.contains("all steps are done"), "the checkpoint is lost");
    }
}
