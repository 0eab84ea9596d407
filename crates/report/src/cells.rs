//! A schedule as a table of cells: one row per device, one column per time slot.

use shardloom_program::timeline::Activity;

use crate::label::printable;
use crate::palette::{self, ACTIVITIES, Colour, IDLE, look};

/// Draws the cells of a schedule (`F3`, `I3`, `W3`, `B3@1`, `F3+B1<`, `.` for idle) in columns of
/// one width, each row headed by its position.
///
/// A cell takes the colour of the pass its first letter names; overlapped passes, joined by `+`,
/// each keep their own. What names no pass is shown uncoloured.
///
/// # Examples
///
/// ```
/// use shardloom_report::{Colour, cell_table};
///
/// let rows = [["F0", "F1", ".", "B0"], [".", "F0", "B0", "F1"]];
/// let rows: Vec<Vec<String>> =
///     rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
/// assert_eq!(cell_table(&rows, Colour::Plain), "0 │ F0 F1 ·  B0\n1 │ ·  F0 B0 F1\n");
/// ```
pub fn cell_table(rows: &[Vec<String>], colour: Colour) -> String {
    let cells = || rows.iter().flatten();
    let width = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let heading_width = rows.len().saturating_sub(1).to_string().len();
    let mut text = String::new();
    for (device, row) in rows.iter().enumerate() {
        let mut line = format!("{device:>heading_width$} │");
        for cell in row {
            line.push(' ');
            draw_cell(&printable(cell), width, colour, &mut line);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn draw_cell(cell: &str, width: usize, colour: Colour, into: &mut String) {
    let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
    if cell == "." {
        palette::dim(&IDLE.to_string(), colour, into);
        into.push_str(&padding);
        return;
    }
    for (position, pass) in cell.split('+').enumerate() {
        if position > 0 {
            into.push('+');
        }
        match activity(pass) {
            Some(activity) => look(activity).paint(pass, colour, into),
            None => into.push_str(pass),
        }
    }
    into.push_str(&padding);
}

/// The pass whose letter begins `cell`.
fn activity(cell: &str) -> Option<Activity> {
    let letter = cell.chars().next()?;
    ACTIVITIES.into_iter().find(|&activity| look(activity).letter == letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lines: &[&str]) -> Vec<Vec<String>> {
        lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }

    #[test]
    fn columns_align_whatever_the_cells_hold() {
        let rows = rows(&["F0 F1 . I0 W0 F10@1", ". F0< F3+B1< . W0 B10@1", ""]);
        insta::assert_snapshot!(cell_table(&rows, Colour::Plain), @r"
        0 │ F0     F1     ·      I0     W0     F10@1
        1 │ ·      F0<    F3+B1< ·      W0     B10@1
        2 │
        ");
    }

    #[test]
    fn each_pass_of_an_overlapped_cell_keeps_its_colour() {
        let text = cell_table(&rows(&["F3+B1< ."]), Colour::Ansi);
        let (forward, backward) = ("\x1b[38;5;16;48;5;74m", "\x1b[38;5;16;48;5;214m");
        let expected = format!("0 │ {forward}F3\x1b[0m+{backward}B1<\x1b[0m \x1b[2m·\x1b[0m\n");
        assert_eq!(text, expected);
    }

    #[test]
    fn headings_are_as_wide_as_the_last_device() {
        let text = cell_table(&vec![vec!["F0".to_owned()]; 11], Colour::Plain);
        assert_eq!(text.lines().next(), Some(" 0 │ F0"));
        assert_eq!(text.lines().last(), Some("10 │ F0"));
    }

    #[test]
    fn a_schedule_without_devices_is_empty_text() {
        assert_eq!(cell_table(&[], Colour::Ansi), "");
    }
}
