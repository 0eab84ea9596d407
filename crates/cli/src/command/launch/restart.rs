//! Runs that begin again with the processes that are left.

use std::io::{self, BufRead, BufReader, Write};
use std::num::NonZeroU32;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shardloom::cluster::Hosts;

use crate::failure::{Failure, after_signal};
use crate::interrupt;
use crate::terminal::Terminal;

/// What has train go on after a failure: from its checkpoints, under a plan for the processes there are.
const GOING_ON: [&str; 2] = ["--resume", "--replan"];

/// What Open MPI said of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lost {
    /// The process of this number, on this machine, was ended by a signal.
    Process { rank: Option<u32>, host: String },
    /// This machine answers no more.
    Host { host: String },
}

impl Lost {
    /// What a line of Open MPI's (4.1) says.
    fn said(line: &str) -> Option<Lost> {
        let host = |rest: &str| rest.split_whitespace().next().map(str::to_owned);
        if line.contains("exited on signal") {
            let (_, rest) = line.split_once(" on node ")?;
            let number = line.split_once(" rank ").and_then(|(_, rest)| rest.split(' ').next());
            let rank = number.and_then(|number| number.parse().ok());
            return Some(Lost::Process { rank, host: host(rest)? });
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
    interrupt::listen()?;
    let (mut hosts, mut command) = (hosts.clone(), command.to_vec());
    for left in (0..=restarts).rev() {
        let (status, lost) = once(&line(&hosts, &command), PATIENCE)?;
        if status.success() {
            return Ok(());
        }
        let Some(lost) = lost.filter(|_| left > 0 && interrupt::asked().is_none()) else {
            return Err(Failure::Said(exit_status(status)));
        };
        hosts = match without(&hosts, &lost) {
            Ok(rest) => rest,
            Err(why) => {
                terminal.note(format_args!("{}; {why}", described(&lost)));
                return Err(Failure::Said(exit_status(status)));
            }
        };
        terminal.note(format_args!(
            "{}; going on with {hosts}, number of restarts left: {}",
            described(&lost),
            left - 1
        ));
        let missing = GOING_ON.into_iter().filter(|option| !command.iter().any(|it| it == option));
        let missing: Vec<String> = missing.map(str::to_owned).collect();
        command.extend(missing);
    }
    unreachable!("the last run returns")
}

/// How long Open MPI may take to end once it has said who is lost, which it says when the other processes have been
/// told to end. It (4.1.4) sometimes never does, where a process is lost while it starts: its `PMIx_server_finalize`
/// waits for a lock.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a line to its end, with its errors passed on as they come. If it has said who is lost, it is killed when it has
/// not ended after `patience`.
fn once(line: &[String], patience: Duration) -> Result<(ExitStatus, Option<Lost>), Failure> {
    let (program, arguments) = line.split_first().expect("the line has a program");
    let failed = |error| {
        let message = format!("cannot run {program}: {error}; install Open MPI, or see --print");
        Failure::usage("launch", message)
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    // A request to stop comes here alone, and is passed on once: Open MPI ends at once at a second.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(failed)?;
    let mut lost = None;
    let errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let (process, ended, is_lost) = (child.id(), AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| pass_on(process, &ended));
        scope.spawn(|| end_at_last(process, &ended, &is_lost, patience));
        for line in errors.split(b'\n').map_while(Result::ok) {
            // Whoever reads it may have stopped.
            let _ = io::stderr().write_all(&[&line[..], b"\n"].concat());
            // The first is the cause: Open MPI ends all others.
            lost = lost.take().or_else(|| Lost::said(&String::from_utf8_lossy(&line)));
            is_lost.store(lost.is_some(), Ordering::Release);
        }
        ended.store(true, Ordering::Release);
    });
    Ok((child.wait().map_err(failed)?, lost))
}

/// Passes a request to stop on to a process, until that has ended.
fn pass_on(process: u32, ended: &AtomicBool) {
    while interrupt::asked().is_none() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    #[cfg(unix)]
    if let Some(process) = rustix::process::Pid::from_raw(process as i32) {
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
    }
}

/// Kills a process and its group if it has not ended `patience` after somebody was lost.
fn end_at_last(process: u32, ended: &AtomicBool, is_lost: &AtomicBool, patience: Duration) {
    let mut since = None;
    while !ended.load(Ordering::Acquire) {
        if is_lost.load(Ordering::Acquire)
            && since.get_or_insert_with(Instant::now).elapsed() >= patience
        {
            #[cfg(unix)]
            if let Some(group) = rustix::process::Pid::from_raw(process as i32) {
                // It may have ended meanwhile.
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn described(lost: &Lost) -> String {
    match lost {
        Lost::Process { rank: Some(rank), host } => format!("process {rank} on {host} was lost"),
        Lost::Process { rank: None, host } => format!("a process on {host} was lost"),
        Lost::Host { host } => format!("{host} was lost"),
    }
}

/// The machines with one process less, or without one of them; why not.
fn without(hosts: &Hosts, lost: &Lost) -> Result<Hosts, String> {
    let (Lost::Process { host, .. } | Lost::Host { host }) = lost;
    let Some(at) = place(hosts, host) else {
        return Err(format!("cannot tell which of {hosts} that is"));
    };
    let mut rest = hosts.0.clone();
    let fewer = match lost {
        Lost::Process { .. } => NonZeroU32::new(rest[at].1.get() - 1),
        Lost::Host { .. } => None,
    };
    match fewer {
        Some(fewer) => rest[at].1 = fewer,
        None => drop(rest.remove(at)),
    }
    match rest.is_empty() {
        true => Err("no process is left to go on with".to_owned()),
        false => Ok(Hosts(rest)),
    }
}

/// The machine of this name. Machines may call themselves by the first part of their names, where that is no
/// address, and one alone may be `localhost`.
fn place(hosts: &Hosts, name: &str) -> Option<usize> {
    if hosts.0.len() == 1 {
        return Some(0);
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    let exactly = |&at: &usize| hosts.0[at].0 == name;
    let nearly = |&at: &usize| {
        let other = &hosts.0[at].0;
        !is_address(other) && !is_address(name) && short(other) == short(name)
    };
    let all = 0..hosts.0.len();
    let mut near = all.clone().filter(nearly);
    let only = near.next().filter(|_| near.next().is_none());
    all.clone().find(exactly).or(only)
}

/// As shells have it: 128 and the number of the signal where there was one.
fn exit_status(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return after_signal(signal);
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
        let process = Lost::Process { rank: Some(1), host: "b".to_owned() };
        assert_eq!(described(&process), "process 1 on b was lost");
        assert_eq!(Lost::said(killed), Some(process));
        let gone = "  Remote daemon: [[35137,0],1] on node c.example";
        assert_eq!(Lost::said(gone), Some(Lost::Host { host: "c.example".to_owned() }));
        let own = "  HNP daemon   : [[35137,0],0] on node a";
        assert_eq!(Lost::said(own), None);
        assert_eq!(Lost::said("error: the loss is not a number on node a"), None);
    }

    /// As Open MPI does where a process is lost while it starts.
    #[test]
    #[cfg(unix)]
    fn a_launcher_that_says_who_is_lost_and_never_ends_is_ended() {
        let script = "echo 'mpirun noticed that process rank 3 with PID 0 on node b exited on signal 9 (Killed).' >&2; \
                      sleep 60";
        let line = ["sh", "-c", script].map(str::to_owned);
        let (status, lost) = once(&line, Duration::ZERO).expect("it starts");
        assert!(!status.success(), "it was killed");
        assert_eq!(lost, Some(Lost::Process { rank: Some(3), host: "b".to_owned() }));
        // Of several that are lost the first is the cause.
        let one = |rank: u32, host: &str| {
            format!(
                "echo 'mpirun noticed that process rank {rank} with PID 0 on node {host} exited on signal 9 \
                 (Killed).' >&2; "
            )
        };
        let script = one(1, "b") + &one(0, "a") + "exit 1";
        let line = ["sh".to_owned(), "-c".to_owned(), script];
        let (_, lost) = once(&line, PATIENCE).expect("it starts");
        assert_eq!(lost, Some(Lost::Process { rank: Some(1), host: "b".to_owned() }));
        // One that says nothing of a loss has all the time it wants.
        let line = ["sh", "-c", "echo other >&2; exit 3"].map(str::to_owned);
        let (status, lost) = once(&line, Duration::ZERO).expect("it starts");
        assert_eq!((status.code(), lost), (Some(3), None));
    }

    #[test]
    fn a_lost_process_leaves_the_others_and_a_lost_machine_the_other_machines() {
        let process = |host: &str| Lost::Process { rank: None, host: host.to_owned() };
        let rest = |of: &str, lost: &Lost| without(&hosts(of), lost).ok().map(|it| it.to_string());
        assert_eq!(rest("a:2,b:2", &process("b")).as_deref(), Some("a:2,b:1"));
        assert_eq!(rest("a:2,b:1", &process("b")).as_deref(), Some("a:2"));
        assert_eq!(rest("a.x:2,b.x:2", &process("a")).as_deref(), Some("a.x:1,b.x:2"));
        assert_eq!(rest("localhost:2", &process("vm")).as_deref(), Some("localhost:1"));
        assert_eq!(rest("a:1", &process("a")), None);
        for (of, unclear) in
            [("a.x:2,a.y:2", "a"), ("10.0.0.1:2,10.0.0.2:2", "10.0.0.3"), ("a:1,b:1", "c")]
        {
            let why = without(&hosts(of), &process(unclear)).expect_err("it is unclear");
            assert!(why.contains(of), "{why}");
        }
        let lost = Lost::Host { host: "b".to_owned() };
        assert_eq!(rest("a:2,b:8,c:1", &lost).as_deref(), Some("a:2,c:1"));
    }
}
