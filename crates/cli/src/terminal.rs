//! What commands say, and where.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use shardloom_report::Colour;

use crate::failure::Failure;

/// Columns of output that is no terminal.
const PLAIN_WIDTH: usize = 100;

/// Whether what is written to a terminal may have colours: neither `NO_COLOR` nor `TERM=dumb` asks for none.
fn colour_is_wanted() -> bool {
    let asked_not = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    !asked_not && !dumb
}

/// Whether errors may have colours: standard error is a terminal, and nothing asks for none.
pub fn errors_have_colour() -> bool {
    io::stderr().is_terminal() && colour_is_wanted()
}

/// Standard output and standard error, for people or for programs.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    json: bool,
}

impl Terminal {
    /// With `json`, everything said is one JSON object per line.
    pub fn new(json: bool) -> Terminal {
        Terminal { json }
    }

    /// Whether a program reads.
    pub fn json(self) -> bool {
        self.json
    }

    /// Prints a result for people, a line feed after it.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn line(self, text: impl Display) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        Ok(out.flush()?)
    }

    /// Prints a result for people as it is.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn text(self, text: impl Display) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        write!(out, "{text}")?;
        Ok(out.flush()?)
    }

    /// Prints a result for programs.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn object(self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(io::Error::from)?;
        self.line(text)
    }

    /// Says on standard error what is not a result but should be known.
    pub fn note(self, text: impl Display) {
        #[derive(Serialize)]
        struct Note {
            note: String,
        }
        let text = text.to_string();
        match serde_json::to_string(&Note { note: text.clone() }) {
            Ok(line) if self.json => eprintln!("{line}"),
            _ => eprintln!("{text}"),
        }
    }

    /// Whether results may have colours: standard output is a terminal, and neither `NO_COLOR` nor
    /// `TERM=dumb` asks for none.
    pub fn colour(self) -> Colour {
        match io::stdout().is_terminal() && colour_is_wanted() {
            true => Colour::Ansi,
            false => Colour::Plain,
        }
    }

    /// Columns of a line of results.
    pub fn width(self) -> usize {
        self.columns().unwrap_or(PLAIN_WIDTH)
    }

    /// Columns of the terminal that results go to; none if they go elsewhere.
    pub fn columns(self) -> Option<usize> {
        Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
    }

    /// Progress through `steps` equal steps on standard error; invisible unless that is a terminal.
    pub fn progress(self, steps: u64) -> ProgressBar {
        self.bar(steps, "{bar:30} {pos}/{len} {wide_msg} {eta}")
    }

    /// Progress of work that takes a known share of time; invisible unless on a terminal.
    pub fn share(self) -> ProgressBar {
        self.bar(1000, "{bar:30} {percent:>3}% {wide_msg}")
    }

    /// A sign of life while work of unknown length goes on. Where there is no terminal, a line says now and then for how
    /// long it has, unless a program reads.
    pub fn spinner(self, message: &str) -> Spinner {
        let bar = self.bar(0, "{spinner} {wide_msg} {elapsed}");
        bar.set_message(message.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        let (is_over, over) = mpsc::channel();
        if bar.is_hidden() && !self.json {
            let message = message.to_owned();
            std::thread::spawn(move || {
                note_until(&over, NOTED_EVERY, |elapsed| {
                    self.note(format_args!("{message}: {} s so far", elapsed.as_secs()));
                });
            });
        }
        Spinner { bar, _is_over: is_over }
    }

    fn bar(self, length: u64, template: &str) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template).expect("the templates above are valid");
        ProgressBar::new(length).with_style(style)
    }
}

/// How often a line says how far something is, where there is no bar to be seen.
pub const NOTED_EVERY: Duration = Duration::from_secs(10);

/// A sign of life on a terminal, and lines elsewhere, until it is dropped.
pub struct Spinner {
    bar: ProgressBar,
    /// What waits for the end hears of it when this is dropped.
    _is_over: Sender<()>,
}

impl Spinner {
    /// Says what goes on.
    pub fn set_message(&self, message: String) {
        self.bar.set_message(message);
    }

    /// Ends it, and leaves nothing behind.
    pub fn finish_and_clear(self) {
        self.bar.finish_and_clear();
    }
}

/// Calls `note` each time that so much has passed, with how much in all, until the other end of the channel is gone.
fn note_until(over: &Receiver<()>, every: Duration, mut note: impl FnMut(Duration)) {
    let begin = Instant::now();
    while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        note(begin.elapsed());
    }
}

/// Tells when to say again how far something is, where there is no bar to be seen.
pub struct Reminder {
    every: Duration,
    begin: Instant,
    /// Seconds after the begin at which it was said last.
    said: AtomicU64,
}

impl Reminder {
    /// One that is due each time that so much has passed, whole seconds, from now on.
    pub fn new(every: Duration) -> Reminder {
        Reminder { every, begin: Instant::now(), said: AtomicU64::new(0) }
    }

    /// Whether it is due; to one of those that ask.
    pub fn is_due(&self) -> bool {
        self.is_due_after(self.begin.elapsed())
    }

    fn is_due_after(&self, elapsed: Duration) -> bool {
        let (said, now) = (self.said.load(Ordering::Relaxed), elapsed.as_secs());
        let is_due = now >= said + self.every.as_secs();
        is_due
            && self.said.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_noted_until_it_is_over() {
        let (is_over, over) = mpsc::channel();
        let mut is_over = Some(is_over);
        let mut noted = vec![];
        note_until(&over, Duration::from_millis(1), |elapsed| {
            noted.push(elapsed);
            if noted.len() == 3 {
                is_over = None;
            }
        });
        assert!(noted.len() == 3 && noted.is_sorted() && noted[0] >= Duration::from_millis(1));
    }

    #[test]
    fn a_reminder_is_due_once_in_its_time() {
        let reminder = Reminder::new(Duration::from_secs(10));
        let due = [0, 9, 10, 11, 19, 20, 45, 54, 55]
            .map(|seconds| reminder.is_due_after(Duration::from_secs(seconds)));
        assert_eq!(due, [false, false, true, false, false, true, true, false, true]);
    }
}
