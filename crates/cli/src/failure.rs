//! How a command ends when it does not succeed.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use shardloom::place_in_plan;

use crate::snippet::{is_located, said};
use crate::terminal::errors_have_colour;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// Something is wrong, and a message says what, where, and what would be right.
    Message(Message),
    /// Whoever read standard output has seen enough.
    OutputClosed,
    /// The user asked to stop, by this signal; everything has been said.
    Interrupted(i32),
    /// Another process says why.
    SaidElsewhere,
    /// It has been said; this is the exit status.
    Said(u8),
}

/// What went wrong.
#[derive(Debug, Serialize)]
pub struct Message {
    kind: &'static str,
    message: String,
    #[serde(rename = "where")]
    place: Option<String>,
    #[serde(skip)]
    status: u8,
}

#[derive(Serialize)]
struct Line<'a> {
    error: &'a Message,
}

/// Exit status for input that cannot be used.
const INPUT: u8 = 2;
/// Exit status for a run that began and failed.
const RUN: u8 = 1;
/// Exit status after a signal: 128 and its number, as shells have it.
pub fn after_signal(signal: i32) -> u8 {
    128 + signal as u8
}

impl Failure {
    /// Arguments that do not fit together; `place` is the one to change.
    pub fn usage(place: &str, message: impl Into<String>) -> Failure {
        Failure::Message(Message {
            kind: "usage",
            message: message.into(),
            place: Some(place.into()),
            status: INPUT,
        })
    }

    /// An option that makes a plan which cannot be.
    pub fn option(option: &str, message: impl Into<String>) -> Failure {
        Failure::Message(Message {
            kind: "plan",
            message: message.into(),
            place: Some(option.into()),
            status: INPUT,
        })
    }

    /// Arguments that the parser refuses.
    pub fn arguments(error: &clap::Error) -> Failure {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        // Usage and where to read more are for people.
        let telling = text.split("\n\n").take_while(|paragraph| !paragraph.starts_with("Usage:"));
        let words = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = telling.map(words).collect::<Vec<_>>().join("; ");
        let place = error.get(clap::error::ContextKind::InvalidArg).map(ToString::to_string);
        Failure::Message(Message { kind: "usage", message, place, status: INPUT })
    }

    /// A file that is not to be overwritten, or cannot be written.
    pub fn file(path: &Path, message: impl Into<String>) -> Failure {
        Failure::Message(Message {
            kind: "file",
            message: message.into(),
            place: Some(path.display().to_string()),
            status: INPUT,
        })
    }

    /// A file that could not be written in the end, as on a full disk.
    pub fn unwritten(path: &Path, error: &io::Error) -> Failure {
        Failure::Message(Message {
            kind: "file",
            message: format!("cannot write {}: {error}", path.display()),
            place: Some(path.display().to_string()),
            status: RUN,
        })
    }

    /// Likewise, with where a plan's file says what it is about, unless it is about a line of another file. That is the
    /// value of `key`, or of the key that it names.
    pub fn in_plan(self, plan: Option<&Path>, key: Option<&str>) -> Failure {
        // Without a file options have said it.
        let Some(plan) = plan else { return self.in_option("sync.algorithm", "--algorithm") };
        let Failure::Message(message) = &self else { return self };
        let text = message.message.trim_end();
        let of_plan = matches!(message.kind, "plan" | "cluster");
        if !of_plan || is_located(text) {
            return self;
        }
        let named = message.place.as_deref().or_else(|| text.split(':').next());
        let place = place_in_plan(plan, key.or(named).unwrap_or_default());
        Failure::Message(Message {
            kind: message.kind,
            message: format!("{place}: {text}"),
            place: Some(place),
            status: message.status,
        })
    }

    /// Likewise, in the words of the command line where it is about a key that an option says; of `table.*` about any
    /// key of the table, which the option says as `--option *`.
    pub fn in_option(self, key: &str, option: &str) -> Failure {
        let Failure::Message(message) = &self else { return self };
        // Where nothing is named, the message begins with it.
        let first = || message.message.split_once(" = ").map(|(key, _)| key);
        let place = message.place.as_deref().or_else(first).unwrap_or_default();
        let said = match key.strip_suffix('*') {
            Some(table) => {
                place.strip_prefix(table).map(|key| option.replace('*', &format!("{key} =")))
            }
            None => (place == key).then(|| option.to_owned()),
        };
        let Some(said) = said else { return self };
        let text = message.message.replacen(&format!("{place} = "), &format!("{said} "), 1);
        let (kind, status) = (message.kind, message.status);
        let place = said.split(' ').next().map(str::to_owned);
        Failure::Message(Message { kind, message: text, place, status })
    }

    /// Why, in a sentence.
    pub fn text(&self) -> &str {
        match self {
            Failure::Message(message) => message.message.trim_end(),
            Failure::OutputClosed => "its output was closed",
            Failure::Interrupted(_) => "it was interrupted",
            Failure::SaidElsewhere | Failure::Said(_) => "another process failed",
        }
    }

    /// What is wrong with the input, if that is why.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Failure::Message(message) if message.status == INPUT => {
                Some(message.message.trim_end())
            }
            _ => None,
        }
    }

    /// Why a search has no answer, if that is it.
    pub fn unanswered(&self) -> Option<&str> {
        match self {
            Failure::Message(message) if message.kind == "search" => {
                Some(message.message.trim_end())
            }
            _ => None,
        }
    }

    /// Says now why the command ends, so that nothing is left to be said but its exit status.
    pub fn said(self, json: bool) -> Failure {
        match &self {
            Failure::Message(message) => {
                let status = message.status;
                self.report(json);
                Failure::Said(status)
            }
            _ => self,
        }
    }

    /// Says on standard error why the command ends, and gives its exit status.
    pub fn report(&self, json: bool) -> ExitCode {
        match self {
            Failure::OutputClosed => ExitCode::SUCCESS,
            Failure::Interrupted(signal) => ExitCode::from(after_signal(*signal)),
            Failure::SaidElsewhere => ExitCode::from(RUN),
            Failure::Said(status) => ExitCode::from(*status),
            Failure::Message(message) => {
                let text = in_plain_words(message.message.trim_end());
                let message = Message { message: text, place: message.place.clone(), ..*message };
                let line = match serde_json::to_string(&Line { error: &message }) {
                    Ok(line) if json => line,
                    _ => said(&message.message, errors_have_colour()),
                };
                // Where nobody hears it the exit status has to do.
                let _ = writeln!(io::stderr(), "{line}");
                ExitCode::from(message.status)
            }
        }
    }
}

/// A message without the number that Rust's library puts behind the system's words: `No such file or directory (os error 2)`.
fn without_numbers_of_errors(message: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut text = String::new();
    let mut rest = message;
    while let Some(start) = rest.find(BEFORE) {
        let behind = &rest[start + BEFORE.len()..];
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        match behind[digits..].strip_prefix(')') {
            Some(after) if digits > 0 => {
                text += &rest[..start];
                rest = after;
            }
            _ => {
                text += &rest[..start + BEFORE.len()];
                rest = behind;
            }
        }
    }
    text + rest
}

/// A message as people can read it, whatever is quoted in it.
fn in_plain_words(message: &str) -> String {
    let text = message.replace("stream did not contain valid UTF-8", "it is no text in UTF-8");
    let text = without_numbers_of_errors(&text);
    // What would move the cursor of a terminal is not passed on.
    let plain = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    shortened(&text.chars().map(plain).collect::<String>())
}

/// A message whose long words, and numbers of very many digits, as of 1e300, are given by their beginning and how long
/// they are.
pub fn shortened(message: &str) -> String {
    const MOST: usize = 300;
    let short = |word: &str| match word.trim_end().chars().count() {
        length if length > MOST => {
            let begin: String = word.chars().take(MOST / 5).collect();
            let end = if word.ends_with(char::is_whitespace) { " " } else { "" };
            format!("{begin}... ({length} characters){end}")
        }
        _ => with_short_numbers(word),
    };
    message.split_inclusive(char::is_whitespace).map(short).collect()
}

/// A text whose numbers of very many digits are given by the first of these and how many there are.
fn with_short_numbers(message: &str) -> String {
    const MOST: usize = 40;
    let mut text = String::new();
    let mut rest = message;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let digits = rest[start..].bytes().take_while(u8::is_ascii_digit).count();
        let shown = if digits > MOST { 6 } else { digits };
        text += &rest[..start + shown];
        if shown < digits {
            text += &format!("... ({digits} digits)");
        }
        rest = &rest[start + digits..];
    }
    text + rest
}

impl From<shardloom::Error> for Failure {
    fn from(error: shardloom::Error) -> Failure {
        let mut message = error.to_string();
        if error.is_not_finite() {
            message += " (--on-nan)";
        }
        Failure::Message(Message {
            kind: error.kind(),
            message,
            place: error.place(),
            status: if error.is_input() { INPUT } else { RUN },
        })
    }
}

/// Writing to standard output failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        Failure::Message(Message {
            kind: "file",
            message: format!("cannot write to standard output: {error}"),
            place: Some("standard output".into()),
            status: RUN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_quoted_without_numbers() {
        let text = |message| without_numbers_of_errors(message);
        assert_eq!(
            text("cannot read a: No such file (os error 2) or b: x (os error 13)"),
            "cannot read a: No such file or b: x"
        );
        for other in ["a (os error ", "a (os error x)", "(os error 2)", "a (os error 2"] {
            assert_eq!(text(other), other);
        }
    }

    #[test]
    fn numbers_of_very_many_digits_are_shortened() {
        let long = "7".repeat(41);
        assert_eq!(
            shortened(&format!("a = -{long}.5, b = 4294967295")),
            "a = -777777... (41 digits).5, b = 4294967295"
        );
        assert_eq!(shortened("none"), "none");
    }

    #[test]
    fn long_words_and_what_is_no_text_are_not_passed_on() {
        let long = format!("cluster {}: no", "a".repeat(5000));
        assert_eq!(
            in_plain_words(&long),
            format!("cluster {}... (5001 characters) no", "a".repeat(60))
        );
        assert_eq!(in_plain_words("a\u{1b}[2J\nb"), "a\u{fffd}[2J\nb");
        let read = "cannot read a: stream did not contain valid UTF-8";
        assert_eq!(in_plain_words(read), "cannot read a: it is no text in UTF-8");
    }
}
