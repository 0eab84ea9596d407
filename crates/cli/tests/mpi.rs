//! Training in the processes that `mpirun` starts.
#![cfg(feature = "mpi")]

#[path = "suite/invocation/mod.rs"]
#[allow(dead_code, reason = "these tests use a part")]
mod invocation;
#[path = "suite/invocation/mpirun.rs"]
mod mpirun;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio, id};

use invocation::{Outcome, Place, TINY};
use mpirun::OF_MPIRUN;

/// What a program of a place is told, and `mpirun`.
fn variables(alone: &Command) -> Vec<(OsString, OsString)> {
    let own = alone.get_envs().filter_map(|(name, value)| Some((name.into(), value?.into())));
    own.chain(OF_MPIRUN.map(|(name, value)| (name.into(), value.into()))).collect()
}

/// `mpirun` with `first`, about to run the program in so many processes.
fn mpirun_with(place: &Place, processes: u32, first: &[&str], arguments: &str) -> Command {
    let alone = place.command(arguments);
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string()]).args(first);
    command.arg(alone.get_program()).args(alone.get_args());
    command.current_dir(place.path("")).envs(variables(&alone)).stdin(Stdio::null());
    command
}

/// The program, about to run here in so many processes.
fn mpirun(place: &Place, processes: u32, arguments: &str) -> Command {
    mpirun_with(place, processes, &[], arguments)
}

/// The program itself, which launches others.
fn launch(place: &Place, arguments: &str) -> Command {
    let mut command = place.command(arguments);
    let variables = variables(&command);
    command.envs(variables);
    command
}

fn run(place: &Place, processes: u32, arguments: &str) -> Outcome {
    let output = mpirun(place, processes, arguments).output().expect("mpirun is installed");
    let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    place.outcome(arguments, output.status.code(), stdout, stderr)
}

fn digest(outcome: &Outcome) -> String {
    outcome.summary()["weights_digest"].to_string()
}

/// What the summary of a run says besides weights, which follows from plan and steps.
const FIGURES: [&str; 3] = ["sent_bytes_per_rank", "peak_bytes_per_rank", "final_validation_loss"];

/// Holds a run in processes to the same in one: losses, weights and bytes, to the bit.
fn assert_as_in_one_process(processes: u32, shape: &str) {
    let train = format!("{TINY} {shape} --steps 4 --validate-every 2");
    assert_alike(&Place::new(), processes, &train, &FIGURES);
}

/// Likewise, of the words for `train`, and of these figures.
fn assert_alike(place: &Place, processes: u32, words: &str, figures: &[&str]) {
    let arguments = format!("train {words} --json");
    let one = place.run(&arguments).succeeds();
    let several = run(place, processes, &arguments).succeeds();
    several.check(several.losses() == one.losses(), &format!("other losses: {:?}", one.losses()));
    several.check(digest(&several) == digest(&one), "other weights");
    for key in figures {
        let (found, expected) = (&several.summary()[key], &one.summary()[key]);
        several.check(found == expected, &format!("{key} is {expected} in one process"));
    }
}

#[test]
fn two_processes_come_to_what_two_threads_come_to() {
    for shape in [
        "--dp 2",
        "--dp 2 --zero 3",
        "--tp 2 --sequence-parallel",
        "--cp 2",
        "--pp 2 --microbatches 4",
        "--pp 2 --microbatches 4 --schedule zb-h1",
        "--pp 2 --microbatches 4 --schedule pipedream",
    ] {
        assert_as_in_one_process(2, shape);
    }
}

#[test]
fn four_processes_come_to_what_four_threads_come_to() {
    for shape in ["--dp 2 --tp 2 --zero 1", "--pp 2 --dp 2 --microbatches 2", "--dp 4"] {
        assert_as_in_one_process(4, shape);
    }
}

/// Twenty steps of each way of keeping replicas equal, and of those in which they are not.
fn assert_methods_alike(processes: u32, shapes: &[&str]) {
    for shape in shapes {
        // How often replicas tell each other what is ready depends on time.
        let figures = if shape.contains("--negotiate") { &FIGURES[1..] } else { &FIGURES };
        assert_alike(&Place::new(), processes, &format!("{TINY} {shape} --steps 20"), figures);
    }
}

#[test]
fn every_method_of_two_processes_comes_to_what_threads_come_to() {
    assert_methods_alike(
        2,
        &[
            "--dp 2 --zero 1",
            "--dp 2 --zero 2 --optimizer sgd",
            "--dp 2 --zero 3 --optimizer sgd",
            "--dp 2 --algorithm ring",
            "--dp 2 --algorithm halving-doubling",
            "--dp 2 --algorithm binary-tree",
            "--dp 2 --algorithm double-binary-tree",
            "--dp 2 --algorithm star",
            "--dp 2 --negotiate",
            "--dp 2 --communication-thread --optimizer sgd",
            "--dp 2 --compression fp16-feedback",
            "--dp 2 --compression power-sgd:2",
            "--dp 2 --compression one-bit",
            "--dp 2 --compression top-k:10",
            "--dp 2 --sparse",
            "--dp 2 --average-every 2",
            "--dp 2 --average-every 1 --average-rate 0.1 --average-before-update",
            "--dp 1 --servers 1",
            "--dp 1 --summation-servers 1",
            "--dp 2 --summation-servers 0 --colocated-servers",
            "--dp 2 --summation-servers 0 --colocated-servers --summation-order next-use --no-clip",
            "--dp 2 --servers 0 --colocated-servers --push deltas",
        ],
    );
}

#[test]
fn every_method_of_four_processes_comes_to_what_threads_come_to() {
    assert_methods_alike(
        4,
        &[
            "--dp 2 --tp 2 --negotiate",
            "--dp 2 --pp 2 --microbatches 2 --negotiate --optimizer sgd",
            "--dp 2 --servers 2",
            "--dp 2 --servers 2 --optimizer sgd",
            "--dp 2 --servers 2 --push deltas",
            "--dp 2 --summation-servers 2",
            "--dp 2 --summation-servers 2 --summation-ranges equal --optimizer sgd",
            "--dp 2 --summation-servers 2 --summation-share balanced",
            "--dp 2 --summation-servers 2 --summation-order next-use --no-clip",
            "--dp 2 --summation-servers 2 --summation-order next-use --summation-credits 1",
            "--dp 2 --summation-servers 2 --summation-share 0.5 --colocated-servers",
            "--dp 4 --zero 1 --shard-within 2",
            "--dp 4 --zero 3 --shard-within 2 --optimizer sgd",
            "--dp 4 --algorithm hierarchical:2",
            "--dp 4 --algorithm multi-star:2",
            "--dp 4 --algorithm multi-binary-tree-star:2 --optimizer sgd",
            "--dp 4 --sparse",
        ],
    );
}

#[test]
fn tables_on_servers_in_four_processes_come_to_what_threads_come_to() {
    let place = Place::new();
    let model = "gpt:layers=2,hidden=16,heads=2,vocab=512 --seq 8 --global-batch 4";
    let made = "--method parallax --cluster h100-80g:1x4 --precision fp32 -o plan.toml";
    place.run(&format!("plan {model} {made}")).succeeds();
    let plan = std::fs::read_to_string(place.path("plan.toml")).expect("a plan");
    assert!(plan.contains("sparse = true"), "{plan}");
    assert_alike(&place, 4, "plan.toml --data text.txt --steps 20", &FIGURES);
}

/// All schedules, with one rank in each process.
#[test]
fn every_schedule_in_two_processes_comes_to_what_threads_come_to() {
    for schedule in [
        "afab",
        "interleaved",
        "hanayo",
        "chimera",
        "chimera-doubling",
        "zb-h2",
        "zb-1p",
        "zb-2p",
        "zb-v",
        "v-half",
        "v-min",
        "dualpipe",
        "dualpipev",
        "pipedream --versions vertical-sync",
        "pipedream-2bw",
        "pipemare",
    ] {
        assert_as_in_one_process(2, &format!("--pp 2 --microbatches 4 --schedule {schedule}"));
    }
}

/// What the plans of one process are combined of: stages, each kind of mesh, ZeRO, recomputation.
#[test]
fn plans_of_every_kind_in_four_and_eight_processes_come_to_what_threads_come_to() {
    for (processes, shape) in [
        (4, "--pp 4 --microbatches 4 --recompute full"),
        (4, "--pp 4 --microbatches 4 --schedule chimera"),
        (4, "--pp 2 --tp 2 --sequence-parallel --microbatches 2"),
        (4, "--pp 2 --cp 2 --microbatches 2"),
        (4, "--cp 2 --tp 2"),
        (4, "--dp 2 --cp 2 --zero 3 --recompute selective"),
        (4, "--pp 2 --dp 2 --microbatches 2 --zero 3 --schedule afab"),
        (8, "--pp 2 --dp 2 --tp 2 --zero 2 --microbatches 2 --recompute stage"),
    ] {
        assert_as_in_one_process(processes, shape);
    }
}

#[test]
fn a_process_may_have_several_ranks() {
    assert_as_in_one_process(2, "--dp 2 --pp 2 --microbatches 2");
}

/// Ranks are started anew where averages end.
#[test]
fn averages_end_in_processes_as_in_threads() {
    assert_as_in_one_process(2, "--dp 2 --average-every 1 --average-until 2");
}

#[test]
fn a_bound_on_staleness_follows_how_far_apart_processes_are() {
    let place = Place::new();
    let shape = "--dp 2 --servers 1 --staleness 1 --staleness-within 1:3 --drain-every 4 --json";
    let arguments =
        format!("train {TINY} {shape} --steps 12 --checkpoint run --checkpoint-every 4");
    let outcome = run(&place, 3, &arguments).succeeds();
    outcome.check(outcome.losses().len() == 12, "not twelve steps");
}

#[test]
fn what_processes_saved_one_goes_on_from_and_back() {
    for shape in [
        "--dp 2 --zero 1",
        "--pp 2 --microbatches 4 --schedule chimera",
        // It fills and drains where the others end.
        "--pp 2 --microbatches 4 --schedule pipedream --drain-every 2",
    ] {
        let place = Place::new();
        let whole = place.run(&format!("train {TINY} {shape} --json --steps 6")).succeeds();
        let part = |steps: u32| {
            format!("train {TINY} {shape} --json --steps {steps} --checkpoint run --resume")
        };
        run(&place, 2, &part(2)).succeeds();
        place.run(&part(4)).succeeds();
        let last = run(&place, 2, &part(6)).succeeds();
        let expected = &whole.losses()[4..];
        last.check(last.losses() == *expected, &format!("not as in {:?}", whole.losses()));
        last.check(digest(&last) == digest(&whole), "other weights");
    }
}

#[test]
fn ranks_that_processes_cannot_share_equally_are_refused_with_both_numbers() {
    let refused = run(&Place::new(), 3, &format!("train {TINY} --dp 4 --steps 2"));
    let text = "4 ranks do not spread evenly over 3 processes";
    refused.check(refused.status != Some(0), "it went on");
    refused.check(refused.stderr.matches(text).count() == 1, &format!("not once: {text}"));
}

#[test]
fn a_process_that_has_other_data_is_named() {
    let place = Place::new();
    let tiny = TINY.replace("text.txt", "part");
    let script = "mkdir -p $OMPI_COMM_WORLD_RANK && cd $OMPI_COMM_WORLD_RANK && \
                  echo \"The data of process $OMPI_COMM_WORLD_RANK, long enough to train on.\" > part && \
                  exec \"$0\" \"$@\"";
    let arguments = format!("train {tiny} --dp 2 --steps 2");
    let mut command = mpirun_with(&place, 2, &["sh", "-c", script], &arguments);
    let output = command.output().expect("mpirun is installed");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    let expected = "the data of process 1 differs from that of process 0";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn of_a_process_that_is_killed_the_run_ends_and_its_checkpoints_are_gone_on_from() {
    let place = Place::new();
    let options = "--dp 2 --checkpoint run --checkpoint-every 2 --keep 2 --resume --json";
    let arguments = format!("train {TINY} {options} --steps 1000000");
    let mut command = mpirun(&place, 2, &arguments);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    for _ in 0..7 {
        reader.read_line(&mut line).expect("a line");
    }
    // Not the one that leads: it was started first.
    let killed =
        Command::new("pkill").args(["-KILL", "-n", "-P", &child.id().to_string()]).status();
    assert!(killed.expect("pkill starts").success(), "nobody is there: {line}");
    reader.read_to_string(&mut line).expect("UTF-8");
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
    assert!(!child.wait().expect("mpirun ends").success(), "{stderr}");
    assert!(stderr.contains("process rank 1"), "{stderr}");
    let done = line.lines().filter(|line| line.contains("\"loss\"")).count();
    let whole = place.run(&format!("train {TINY} --dp 2 --steps {} --json", done + 4)).succeeds();
    let rest = place.run(&format!("train {TINY} {options} --steps {}", done + 4)).succeeds();
    let from = rest.losses()[0].0 as usize;
    rest.check(from >= 6, &format!("it went on from step {from}"));
    rest.check(rest.losses() == whole.losses()[from..], "other losses");
}

#[test]
fn the_virtual_clock_is_one_processs() {
    let arguments = format!("train {TINY} --dp 2 --steps 2 --clock virtual --cluster h100:2");
    let refused = run(&Place::new(), 2, &arguments);
    refused.check(refused.stderr.contains("--clock virtual"), "it does not say why");
}

#[test]
fn launch_starts_the_processes() {
    let place = Place::new();
    let train = format!("train {TINY} --dp 2 --steps 3 --json");
    let one = place.run(&train).succeeds();
    let arguments = format!("launch --hosts localhost:2 -- {train}");
    let output = launch(&place, &arguments).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    let launched = place.outcome(&arguments, output.status.code(), stdout, stderr).succeeds();
    launched.check(digest(&launched) == digest(&one), "other weights");
}

#[test]
fn processes_in_other_folders_save_where_the_first_is() {
    let place = Place::new();
    let tiny = TINY.replace("text.txt", "../text.txt");
    let arguments = format!("train {tiny} --dp 2 --zero 1 --steps 2 --checkpoint run --json");
    let script = "mkdir $OMPI_COMM_WORLD_RANK && cd $OMPI_COMM_WORLD_RANK && exec \"$0\" \"$@\"";
    let mut command = mpirun_with(&place, 2, &["sh", "-c", script], &arguments);
    let output = command.output().expect("mpirun is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let saved: Vec<_> = std::fs::read_dir(place.path("0/run"))
        .expect("checkpoints")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    assert_eq!(saved.iter().filter(|name| name.starts_with("step-")).count(), 1, "{saved:?}");
    assert!(!saved.iter().any(|name| name.contains("seen")), "{saved:?}");
    assert!(!place.path("1/run").exists());
}

#[test]
fn a_search_for_one_machine_is_refused() {
    let refused = run(&Place::new(), 2, &format!("train {TINY} --ranks 2 --steps 2"));
    refused.check(refused.stderr.matches("--ranks: finds a plan").count() == 1, "not once");
}

/// A run of two processes of which the one that was started first or last, as `pkill` says it, is killed.
fn assert_goes_on_after_a_loss(which: &str) {
    let place = Place::new();
    // What processes are found by.
    let seed = format!("--seed {}", u64::from(id()) * 2 + u64::from(which == "--oldest"));
    let options = format!("{seed} --dp 2 --checkpoint run --checkpoint-every 2 --keep 2");
    let train = format!("train {TINY} {options} --json --steps");
    let arguments = format!("launch --hosts localhost:2 --restarts 1 -- {train} 2000");
    let mut command = launch(&place, &arguments);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut stdout = String::new();
    for _ in 0..7 {
        reader.read_line(&mut stdout).expect("a line");
    }
    // Not those that launch, whose lines end alike.
    let pattern = format!("^[^ ]*/shardloom train .*{seed} ");
    let killed = Command::new("pkill").args(["-KILL", which, "-f", &pattern]).status();
    assert!(killed.expect("pkill starts").success(), "nobody is there: {stdout}");
    reader.read_to_string(&mut stdout).expect("UTF-8");
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
    let status = child.wait().expect("it ends").code();
    let outcome = place.outcome(&arguments, status, stdout, stderr).succeeds();
    outcome.check(outcome.stderr.contains("going on with localhost:1,"), "it does not say so");
    let lost = format!("process rank {} ", u32::from(which == "--newest"));
    outcome.check(outcome.stderr.contains(&lost), &format!("it does not name {lost}"));
    // Only steps since the last checkpoint were done twice.
    let steps: Vec<u64> = outcome.losses().iter().map(|&(step, _)| step).collect();
    let back = steps.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect::<Vec<_>>();
    let few = back.len() <= 1 && back.iter().all(|pair| (pair[0] + 1 - pair[1]) <= 3);
    outcome.check(few && steps.last() == Some(&1999), &format!("{back:?}"));
    let whole = place.run(&format!("train {TINY} {seed} --dp 2 --steps 2000 --json"));
    outcome.check(digest(&outcome) == digest(&whole.succeeds()), "other weights");
}

#[test]
fn a_run_that_loses_a_process_goes_on_with_those_that_are_left() {
    assert_goes_on_after_a_loss("--newest");
}

#[test]
fn a_run_that_loses_the_process_that_leads_goes_on_with_another() {
    assert_goes_on_after_a_loss("--oldest");
}
