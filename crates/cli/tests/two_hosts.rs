//! Two hosts on one machine: network namespaces with names and shared memory of their own, joined by a link of
//! a limited rate. Making them takes root.
#![cfg(feature = "mpi")]

#[path = "suite/invocation/mod.rs"]
#[allow(dead_code, reason = "these tests use a part")]
mod invocation;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, id};
use std::sync::{Mutex, MutexGuard, PoisonError};

use invocation::{Outcome, Place};

/// What the link carries each way, headers included: 200 Mbit/s.
const BYTES_PER_SECOND: f64 = 25e6;

/// A model of 13 MB of gradients that computes for little of a step.
const MODEL: &str = "gpt:layers=4,hidden=256,heads=4 --seq 32 --data text.txt --global-batch 4";

/// Held by the test that has the hosts: one after another, so that times are their own.
static HOSTS: Mutex<()> = Mutex::new(());

struct TwoHosts {
    _only: MutexGuard<'static, ()>,
    place: Place,
    names: [String; 2],
    agent: PathBuf,
}

/// Runs a tool of the system to its end.
fn system(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Files of the system that a host has of its own.
fn own_files(host: &str) -> PathBuf {
    Path::new("/etc/netns").join(host)
}

impl TwoHosts {
    fn new() -> TwoHosts {
        let only = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Place::new();
        let names = ["a", "b"].map(|host| format!("sl{}{host}", id()));
        let agent = place.path("agent");
        let hosts = TwoHosts { _only: only, place, names, agent };
        let [a, b] = &hosts.names;
        let known = format!("127.0.0.1 localhost\n10.77.0.1 {a}\n10.77.0.2 {b}\n");
        for host in &hosts.names {
            system(&format!("ip netns add {host}"));
            fs::create_dir_all(own_files(host)).expect("root may");
            fs::write(own_files(host).join("hosts"), &known).expect("root may");
            system(&format!("ip -n {host} link set lo up"));
        }
        system(&format!("ip link add wire netns {a} type veth peer name wire netns {b}"));
        for (number, host) in [(1, a), (2, b)] {
            system(&format!("ip -n {host} addr add 10.77.0.{number}/24 dev wire"));
            system(&format!("ip -n {host} link set wire up"));
            let limit = "root tbf rate 200mbit burst 64kb latency 50ms";
            system(&format!("tc -n {host} qdisc add dev wire {limit}"));
        }
        // Runs a command on a host, as ssh does; each has a core of its own where there are two.
        let script = format!(
            "#!/bin/sh\nhost=$1; shift\ncore=0; [ $host = {b} ] && core=$(($(nproc --all) - 1))\n\
             exec taskset -c $core ip netns exec $host unshare --uts --ipc --mount sh -c \
             \"hostname $host; mount -t tmpfs none /dev/shm; $*\"\n"
        );
        fs::write(&hosts.agent, script).expect("written");
        fs::set_permissions(&hosts.agent, fs::Permissions::from_mode(0o755)).expect("allowed");
        hosts
    }

    /// `shardloom launch` on the first host, with two processes on each.
    fn launch(&self, arguments: &str) -> Outcome {
        self.launch_with("", arguments, |_| ())
    }

    /// The same with options for it, and with something done when three lines have been printed, or it is over.
    fn launch_with(&self, options: &str, arguments: &str, printed: impl FnOnce(&str)) -> Outcome {
        let [a, b] = &self.names;
        let arguments = format!("launch --hosts {a}:2,{b}:2 {options} -- {arguments}");
        let own = self.place.command(&arguments);
        let words = [own.get_program()].into_iter().chain(own.get_args());
        let line: Vec<&str> = words.map(|word| word.to_str().expect("UTF-8")).collect();
        let mut command = Command::new(&self.agent);
        command.arg(a).args(line).current_dir(self.place.path("")).stdin(Stdio::null());
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.envs([
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_MCA_plm_rsh_agent", self.agent.to_str().expect("UTF-8")),
        ]);
        // Errors are few enough to wait in a pipe.
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut stdout = String::new();
        for _ in 0..3 {
            reader.read_line(&mut stdout).expect("UTF-8");
        }
        printed(&stdout);
        reader.read_to_string(&mut stdout).expect("UTF-8");
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        self.place.outcome(&arguments, output.status.code(), stdout, stderr)
    }

    /// What the first host has sent over the link.
    fn sent_bytes(&self) -> f64 {
        let text = system(&format!("ip -n {} -s -j link show wire", self.names[0]));
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        read[0]["stats64"]["tx"]["bytes"].as_f64().expect("a counter")
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for host in &self.names {
            // What was never made need not go.
            let _ = Command::new("ip").args(["netns", "del", host]).output();
            let _ = fs::remove_dir_all(own_files(host));
        }
    }
}

#[test]
#[ignore = "needs root, and a system with network namespaces"]
fn two_hosts_over_a_slow_link_are_measured_planned_for_and_trained_on() {
    let hosts = TwoHosts::new();

    // The link is found as it is.
    let measured = hosts.launch("profile --json").succeeds();
    let machines = &measured.object()["machines"];
    let counts = (machines[0]["nodes"].as_u64(), machines[0]["devices_per_node"].as_u64());
    measured.check(counts == (Some(2), Some(2)), "not two machines with two ranks each");
    let node = &machines[0]["profile"]["node"];
    let inter = &node["inter"]["bytes_per_second"];
    for rate in [inter, &node["uplink_bytes_per_second"]] {
        let rate = rate.as_f64().expect("a rate");
        let share = rate / BYTES_PER_SECOND;
        measured.check((0.5..1.1).contains(&share), &format!("{rate} bytes/s"));
    }

    // Ring neighbours on other hosts send over it what ranks count, and little besides.
    let shape = "--dp 4 --algorithm ring --steps 5 --json";
    let train = format!("train {MODEL} {shape}");
    let before = hosts.sent_bytes();
    let trained = hosts.launch(&train).succeeds();
    let sent = hosts.sent_bytes() - before;
    let summary = trained.summary();
    let counted = summary["sent_bytes_per_rank"][1].as_f64().expect("bytes");
    let overhead = sent / counted;
    trained.check((1.0..1.15).contains(&overhead), &format!("{sent} bytes sent"));
    // As one process does it.
    let one = hosts.place.run(&train).succeeds();
    trained.check(trained.losses() == one.losses(), "other losses");
    let digest = |outcome: &Outcome| outcome.summary()["weights_digest"].clone();
    trained.check(digest(&trained) == digest(&one), "other weights");
    // A step takes what the link takes, and is predicted to. Other work on the machine only adds to it.
    let least = counted / 5.0 / BYTES_PER_SECOND;
    let [predicted, median] = ["predicted_step_seconds", "median_step_seconds"]
        .map(|key| summary[key].as_f64().expect("a time"));
    let of_link = predicted / least;
    trained.check((0.95..2.0).contains(&of_link), &format!("the link takes {least} s"));
    let error = predicted / median;
    trained.check(median > least && error > 0.3, &format!("{median} s, predicted {predicted}"));

    // A plan for these machines sends less over the link than replicas do.
    let before = hosts.sent_bytes();
    let planned = hosts.launch(&format!("train {MODEL} --steps 5 --json")).succeeds();
    planned.check(planned.stderr.contains("plan: "), "no plan was found");
    planned.check(planned.losses().len() == 5, "not five steps");
    planned.check(hosts.sent_bytes() - before < sent / 2.0, "the link was not spared");
    let found = planned.summary()["predicted_step_seconds"].as_f64().expect("a time");
    planned.check(found < predicted / 2.0, &format!("{found} s, replicas {predicted} s"));
}

#[test]
#[ignore = "needs root, and a system with network namespaces"]
fn a_run_that_loses_a_process_on_another_host_goes_on_under_a_plan_for_the_rest() {
    let hosts = TwoHosts::new();
    let options = format!("--seed {} --json", id());
    let saving = "--dp 4 --algorithm ring --checkpoint run --checkpoint-every 1";
    let train = format!("train {MODEL} {options} {saving} --steps 8");
    // The process that was started last is on the second host, or the first; either will do.
    let kill = |first: &str| {
        let pattern = format!("shardloom train .*--seed {}", id());
        let killed = Command::new("pkill").args(["-KILL", "-n", "-f", &pattern]).status();
        assert!(killed.expect("pkill starts").success(), "nobody is there: {first}");
    };
    let outcome = hosts.launch_with("--restarts 1", &train, kill).succeeds();
    outcome.check(outcome.stderr.contains("going on with sl"), "it does not say so");
    outcome.check(outcome.stderr.contains("plan: "), "no plan was found");
    // At most the step that was not saved is done twice.
    outcome.check(outcome.stderr.contains("going on from"), "not from a checkpoint");
    let found = outcome.losses();
    let twice = found.windows(2).filter(|pair| pair[1].0 <= pair[0].0).collect::<Vec<_>>();
    let is_one = twice.len() <= 1 && twice.iter().all(|pair| pair[0].0 - pair[1].0 <= 1);
    outcome.check(is_one, &format!("{twice:?}"));
    outcome.check(found.last().is_some_and(|&(step, _)| step == 7), "it did not end");
    let one = hosts.place.run(&format!("train {MODEL} {options} --steps 8")).succeeds();
    let number = |text: &str| text.parse::<f64>().expect("a loss");
    for (step, loss) in &found {
        let (loss, expected) = (number(loss), number(&one.losses()[*step as usize].1));
        outcome.check((loss / expected - 1.0).abs() < 1e-4, &format!("{expected} in step {step}"));
    }
}
