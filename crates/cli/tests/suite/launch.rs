//! `shardloom launch`: what it prints for others to run.

use crate::invocation::Place;

#[test]
fn the_line_is_printed_as_a_shell_reads_it() {
    let printed = Place::new()
        .run("launch --hosts a:2,b:1 --print -- train plan.toml --data it's.txt --steps 3")
        .succeeds();
    let program = env!("CARGO_BIN_EXE_shardloom");
    let expected = format!(
        "mpirun --host 'a:2,b:1' -n 3 --bind-to none {program} train plan.toml --data \"it's.txt\" --steps 3\n"
    );
    printed.check(printed.stdout == expected, &format!("not {expected}"));
}

#[test]
fn a_batch_script_and_a_manifest_have_the_command() {
    let place = Place::new();
    let script = place.run("launch --hosts a:2,b:2 --slurm -- train p.toml --steps 3").succeeds();
    script.check(script.stdout.starts_with("#!/bin/bash\n#SBATCH"), "no batch script");
    script.check(script.stdout.ends_with("shardloom train p.toml --steps 3\n"), "no command");
    let manifest = place.run("launch --hosts a:2,b:2 --kubernetes reg/im:1 -- train p.toml");
    let manifest = manifest.succeeds();
    for part in
        ["kind: MPIJob", "slotsPerWorker: 2", "image: \"reg/im:1\"", "\"train\", \"p.toml\""]
    {
        manifest.check(manifest.stdout.contains(part), &format!("without {part}"));
    }
}

#[test]
fn what_cannot_be_launched_is_refused() {
    let place = Place::new();
    for (arguments, reason) in [
        ("--hosts a:2 -- plan gpt-2", "`plan` runs in one process"),
        ("--hosts a -- train p.toml", "`a` has no number of processes; write a:8"),
        ("--hosts a:1,a:2 -- train p.toml", "`a` is listed twice"),
        ("--hosts a:2,b:3 --slurm -- train p.toml", "--slurm: all machines need as many processes"),
        ("--hosts a:2,b:3 --kubernetes i -- train p.toml", "--kubernetes: all machines need"),
        ("--hosts a:2 --print --slurm -- train p.toml", "cannot be used with"),
        ("--hosts a:2", "<COMMAND>"),
    ] {
        let refused = place.run(&format!("launch {arguments}"));
        refused.check(refused.status == Some(2), "exit status is not 2");
        refused.check(refused.stderr.contains(reason), &format!("it does not say {reason}"));
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_program_without_mpi_says_so_instead_of_training_twice() {
    let place = Place::new();
    let refused = place.run("launch --hosts localhost:2 -- train p.toml --steps 3");
    refused.check(refused.status == Some(2), "exit status is not 2");
    refused.check(refused.stderr.contains("built without MPI"), "it does not say why");
    let mut command = place.command(&format!("train {} --steps 1", crate::invocation::TINY));
    let output = command.env("OMPI_COMM_WORLD_SIZE", "2").output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("2 processes were started"), "{stderr}");
}
