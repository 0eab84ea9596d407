//! One run of the program on an input that may be bad, within limits of time and memory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::invocation::Place;

/// Processor time that a run may take.
const SECONDS: u64 = 20;
/// Time after which a run that does not compute is taken for one that waits for ever.
const WAITING: Duration = Duration::from_secs(300);
/// Address space that a run may take, in KiB.
const KIBIBYTES: u64 = 4 << 20;

/// What came of a run.
pub struct Attacked {
    pub seconds: f64,
    /// Whether it took its input, or refused it.
    pub taken: bool,
    /// What must not be, if it was.
    pub fault: Option<String>,
}

/// Runs the program with these arguments.
pub fn attack(place: &Place, arguments: &[String]) -> Attacked {
    let own = place.command("");
    let script =
        format!("ulimit -c 0; ulimit -v {KIBIBYTES}; ulimit -t {SECONDS}; exec \"$0\" \"$@\"");
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| place.path(&format!("out/.{name}")));
    let to = |path| File::create(path).expect("a file for what is printed");
    let arguments = arguments.iter().map(OsString::from);
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .arg(own.get_program())
        .args(arguments)
        .current_dir(place.path(""));
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    let start = Instant::now();
    let mut child = command.stdout(to(&stdout)).stderr(to(&stderr)).spawn().expect("a shell");
    let mut waits = false;
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if start.elapsed() > WAITING {
            waits = true;
            child.kill().expect("it is there");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = start.elapsed().as_secs_f64();
    let printed =
        |path| String::from_utf8_lossy(&fs::read(path).expect("it is there")).into_owned();
    let [stdout, stderr] = [printed(&stdout), printed(&stderr)];
    // Training takes as long, and as much memory, as it has said before it began; so do measurements.
    let told = stdout.contains("\nSteps: ") || stderr.contains("measuring this machine");
    // Where the limit is hard, too, the process is killed at once.
    let long = matches!(status.signal(), Some(9 | 24));
    let fault = match (status.code(), status.signal()) {
        _ if stderr.contains("panicked") || stderr.contains("overflowed its stack") => {
            Some(stderr.clone())
        }
        _ if told && (waits || long || stderr.contains("memory allocation of")) => None,
        _ if waits => Some("it waits for ever".to_owned()),
        _ if long => Some(format!("more than {SECONDS} s of processor time")),
        (_, Some(signal)) => Some(format!("signal {signal}\n{stderr}")),
        (Some(0..=2), None) => None,
        (code, None) => Some(format!("exit status {code:?}\n{stderr}")),
    };
    let silent = status.code().is_some_and(|code| code > 0) && stderr.trim().is_empty();
    let fault = fault.or_else(|| silent.then(|| "it fails and says nothing".to_owned()));
    Attacked { seconds, taken: status.success(), fault }
}
