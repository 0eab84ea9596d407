//! Runs that begin again with the processes that are left.

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::process::{Command, ExitStatus, Stdio};

use super::hosts::Hosts;
use crate::failure::Failure;
use crate::interrupt;
use crate::terminal::Terminal;

/// What has train go on after a failure: from its checkpoints, under a plan for the processes there are.
const GOING_ON: [&str; 2] = ["--resume", "--replan"];

/// What Open MPI said of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lost {
    /// A process of this machine was ended by a signal.
    Process { host: String },
    /// This machine answers no more.
    Host { host: String },
}

impl Lost {
    /// What a line of Open MPI's (4.1) says.
    fn said(line: &str) -> Option<Lost> {
        let host = |rest: &str| rest.split_whitespace().next().map(str::to_owned);
        if line.contains("exited on signal") {
            let (_, rest) = line.split_once(" on node ")?;
            return Some(Lost::Process { host: host(rest)? });
        }
        if line.trim_start().starts_with("Remote daemon:") {
            let (_, rest) = line.split_once(" on node ")?;
            return Some(Lost::Host { host: host(rest)? });
        }
        None
    }
}

/// Runs what `line` says of machines, and again with those processes that are left, at most `restarts` times more,
/// as long as processes are lost.
///
/// # Errors
/// If the first machine's launcher does not start; otherwise with its exit status, or if nothing is left.
pub fn run(
    hosts: &Hosts,
    restarts: u32,
    command: &[String],
    line: impl Fn(&Hosts, &[String]) -> Vec<String>,
    terminal: Terminal,
) -> Result<(), Failure> {
    // Who stops this stops what it runs, and hears what that says.
    interrupt::listen()?;
    let (mut hosts, mut command) = (hosts.clone(), command.to_vec());
    for left in (0..=restarts).rev() {
        let (status, lost) = once(&line(&hosts, &command))?;
        if status.success() {
            return Ok(());
        }
        let Some(lost) = lost.filter(|_| left > 0 && !interrupt::asked()) else {
            return Err(Failure::Said(exit_status(status)));
        };
        let Some(rest) = without(&hosts, &lost) else {
            terminal.note("no process is left to go on with");
            return Err(Failure::Said(exit_status(status)));
        };
        terminal.note(format_args!(
            "{}; going on with {} processes on {rest}, {} restarts left",
            described(&lost),
            rest.processes(),
            left - 1
        ));
        hosts = rest;
        let missing = GOING_ON.into_iter().filter(|option| !command.iter().any(|it| it == option));
        let missing: Vec<String> = missing.map(str::to_owned).collect();
        command.extend(missing);
    }
    unreachable!("the last run returns")
}

/// Runs a line to its end, with its errors passed on as they come.
fn once(line: &[String]) -> Result<(ExitStatus, Option<Lost>), Failure> {
    let (program, arguments) = line.split_first().expect("the line has a program");
    let failed = |error| {
        let message = format!("cannot run {program}: {error}; install Open MPI, or see --print");
        Failure::usage("launch", message)
    };
    let mut child =
        Command::new(program).args(arguments).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut lost = None;
    let errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    for line in errors.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        // The first is the cause: Open MPI ends all others.
        lost = lost.or_else(|| Lost::said(&line));
    }
    Ok((child.wait().map_err(failed)?, lost))
}

fn described(lost: &Lost) -> String {
    match lost {
        Lost::Process { host } => format!("a process on {host} was lost"),
        Lost::Host { host } => format!("{host} was lost"),
    }
}

/// The machines with one process less, or without one of them; nothing if none is left.
fn without(hosts: &Hosts, lost: &Lost) -> Option<Hosts> {
    let (Lost::Process { host } | Lost::Host { host }) = lost;
    // Machines may call themselves by the first part of their names, and one alone may be `localhost`.
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let at = hosts.0.iter().position(|(name, _)| name == host);
    let at = at.or_else(|| hosts.0.iter().position(|(name, _)| short(name) == short(host)));
    let at = at.or((hosts.0.len() == 1).then_some(0));
    let mut rest = hosts.0.clone();
    if let Some(at) = at {
        let fewer = match lost {
            Lost::Process { .. } => NonZeroU32::new(rest[at].1.get() - 1),
            Lost::Host { .. } => None,
        };
        match fewer {
            Some(fewer) => rest[at].1 = fewer,
            None => drop(rest.remove(at)),
        }
    }
    (!rest.is_empty()).then_some(Hosts(rest))
}

/// As shells have it: 128 and the number of the signal where there was one.
fn exit_status(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return 128 + signal as u8;
    }
    status.code().map_or(1, |code| code as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Hosts {
        text.parse().expect("machines")
    }

    #[test]
    fn what_open_mpi_says_of_a_failure_is_understood() {
        let killed =
            "mpirun noticed that process rank 1 with PID 0 on node b exited on signal 9 (Killed).";
        assert_eq!(Lost::said(killed), Some(Lost::Process { host: "b".to_owned() }));
        let gone = "  Remote daemon: [[35137,0],1] on node c.example";
        assert_eq!(Lost::said(gone), Some(Lost::Host { host: "c.example".to_owned() }));
        let own = "  HNP daemon   : [[35137,0],0] on node a";
        assert_eq!(Lost::said(own), None);
        assert_eq!(Lost::said("error: the loss is not a number on node a"), None);
    }

    #[test]
    fn a_lost_process_leaves_the_others_and_a_lost_machine_the_other_machines() {
        let process = |host: &str| Lost::Process { host: host.to_owned() };
        let rest = |of: &str, lost: &Lost| without(&hosts(of), lost).map(|it| it.to_string());
        assert_eq!(rest("a:2,b:2", &process("b")).as_deref(), Some("a:2,b:1"));
        assert_eq!(rest("a:2,b:1", &process("b")).as_deref(), Some("a:2"));
        assert_eq!(rest("a.x:2,b.x:2", &process("a")).as_deref(), Some("a.x:1,b.x:2"));
        assert_eq!(rest("localhost:2", &process("vm")).as_deref(), Some("localhost:1"));
        assert_eq!(rest("a:1", &process("a")), None);
        let lost = Lost::Host { host: "b".to_owned() };
        assert_eq!(rest("a:2,b:8,c:1", &lost).as_deref(), Some("a:2,c:1"));
    }
}
