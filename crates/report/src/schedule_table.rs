//! A schedule as a table: one row per device, one column per time slot.

use std::collections::BTreeSet;

use shardloom_program::timeline::Activity;

use crate::label::printable;
use crate::legend::{Style, legend};
use crate::palette::{self, ACTIVITIES, Colour, IDLE, look};
use crate::shade::{Part, Parts};

/// Draws the actions of a schedule (`F3`, `I3`, `W3`, `B3@1`, `F3+B1<`, `.` for idle) in columns of
/// one width, each row headed by its position.
///
/// A pass takes the hue of the kind its first letter names, paler for later chunks and dark for the
/// reverse direction; overlapped passes, joined by `+`, each keep their own. What names no pass is shown
/// uncoloured. Equal neighbours are one action of several slots, and one block of colour.
///
/// # Examples
///
/// ```
/// use shardloom_report::{Colour, schedule_table};
///
/// let rows = [["F0", "F1", ".", "B0"], [".", "F0", "B0", "F1"]];
/// let rows: Vec<Vec<String>> =
///     rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
/// assert_eq!(schedule_table(&rows, Colour::Plain), "0 │ F0 F1 ·  B0\n1 │ ·  F0 B0 F1\n");
/// ```
pub fn schedule_table(rows: &[Vec<String>], colour: Colour) -> String {
    let parts = parts(rows);
    let width = rows.iter().flatten().map(|action| action.chars().count()).max().unwrap_or(0);
    let heading_width = rows.len().saturating_sub(1).to_string().len();
    let mut text = String::new();
    for (device, row) in rows.iter().enumerate() {
        let mut line = format!("{device:>heading_width$} │");
        for (column, action) in row.iter().enumerate() {
            let continues = column > 0 && row[column - 1] == *action;
            draw(&printable(action), (width, continues), parts, colour, &mut line);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// What letters, marks and colours of [`schedule_table`] mean, as far as they occur in `rows`.
///
/// ```
/// use shardloom_report::{Colour, schedule_legend};
///
/// let rows = [vec!["F0@1<".to_owned(), ".".to_owned()]];
/// let legend = "F forward  · idle\n@0 chunk 0  @1 chunk 1  < pipeline the reverse way\n";
/// assert_eq!(schedule_legend(&rows, Colour::Plain), legend);
/// ```
pub fn schedule_legend(rows: &[Vec<String>], colour: Colour) -> String {
    let occurring: BTreeSet<Activity> = passes(rows).filter_map(activity).collect();
    legend(|activity| occurring.contains(&activity), parts(rows), Style::Actions, colour)
}

/// All passes of all actions.
fn passes(rows: &[Vec<String>]) -> impl Iterator<Item = &str> {
    rows.iter().flatten().flat_map(|action| action.split('+'))
}

fn parts(rows: &[Vec<String>]) -> Parts {
    Parts::among(passes(rows).map(Part::of_pass))
}

/// Appends a space and an action in `width` columns; one that continues the action before it has no gap in
/// its colour.
fn draw(
    action: &str,
    (width, continues): (usize, bool),
    parts: Parts,
    colour: Colour,
    into: &mut String,
) {
    let padding = " ".repeat(width.saturating_sub(action.chars().count()));
    if action == "." {
        into.push(' ');
        palette::dim(&IDLE.to_string(), colour, into);
        into.push_str(&padding);
        return;
    }
    let last = action.split('+').count() - 1;
    for (position, pass) in action.split('+').enumerate() {
        let before = match (position, continues) {
            (0, false) => {
                into.push(' ');
                ""
            }
            (0, true) => " ",
            _ => {
                into.push('+');
                ""
            }
        };
        let after = if position == last { padding.as_str() } else { "" };
        let text = format!("{before}{pass}{after}");
        match activity(pass) {
            Some(activity) => {
                parts.shade(activity, Part::of_pass(pass)).paint(&text, colour, into);
            }
            None => into.push_str(&text),
        }
    }
}

/// The kind of pass whose letter begins `pass`.
fn activity(pass: &str) -> Option<Activity> {
    let letter = pass.chars().next()?;
    ACTIVITIES.into_iter().find(|&activity| look(activity).letter == letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lines: &[&str]) -> Vec<Vec<String>> {
        lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn columns_align_whatever_they_hold() {
        let rows = rows(&["F0 F1 . I0 W0 F10@1", ". F0< F3+B1< . W0 B10@1", ""]);
        insta::assert_snapshot!(schedule_table(&rows, Colour::Plain), @r"
        0 │ F0     F1     ·      I0     W0     F10@1
        1 │ ·      F0<    F3+B1< ·      W0     B10@1
        2 │
        ");
    }

    #[test]
    fn each_pass_of_an_overlapped_action_keeps_its_colour() {
        let text = schedule_table(&rows(&["F3+B1< ."]), Colour::Ansi);
        let (forward, backward) = ("\x1b[38;5;16;48;5;74m", "\x1b[38;5;231;48;5;94m");
        let expected = format!("0 │ {forward}F3\x1b[0m+{backward}B1<\x1b[0m \x1b[2m·\x1b[0m\n");
        assert_eq!(text, expected);
    }

    #[test]
    fn an_action_of_several_slots_is_one_block_of_colour() {
        let text = schedule_table(&rows(&["F0 B0 B0 B1"]), Colour::Ansi);
        let paint = |text: &str| format!("\x1b[38;5;16;48;5;214m{text}\x1b[0m");
        let tail = format!(" {}{} {}\n", paint("B0"), paint(" B0"), paint("B1"));
        assert!(text.ends_with(&tail), "{text:?}");
    }

    #[test]
    fn headings_are_as_wide_as_the_last_device() {
        let text = schedule_table(&vec![vec!["F0".to_owned()]; 11], Colour::Plain);
        assert_eq!(text.lines().next(), Some(" 0 │ F0"));
        assert_eq!(text.lines().last(), Some("10 │ F0"));
    }

    #[test]
    fn a_schedule_without_devices_is_empty_text() {
        assert_eq!(schedule_table(&[], Colour::Ansi), "");
    }

    #[test]
    fn overlapped_passes_stand_together_in_wider_columns() {
        let text = schedule_table(&rows(&["F3+B1 F10+B12<", "F3+B1+W2 ."]), Colour::Plain);
        assert_eq!(text, "0 │ F3+B1    F10+B12<\n1 │ F3+B1+W2 ·\n");
        let text = schedule_table(&rows(&["F3+B1 F10+B12<"]), Colour::Ansi);
        // The colour of the last reaches to the end of the column.
        let (forward, backward) = ("\x1b[38;5;16;48;5;74m", "\x1b[38;5;16;48;5;214m");
        let begin = format!("0 │ {forward}F3\x1b[0m+{backward}B1   \x1b[0m ");
        assert!(text.starts_with(&begin), "{text:?}");
    }
}
