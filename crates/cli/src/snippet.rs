//! How an error is shown to people: what is wrong, and the line of the file that it is about.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use console::Style;

/// Characters of a line that are shown.
const WIDTH: usize = 100;

/// Bytes of a line of a file that are looked at: what has longer ones is no file that people write.
const LONGEST: u64 = 1 << 16;

/// An error as people see it, with the line of the file that `message` begins with (`plan.toml:4: ...`).
pub fn said(message: &str, colour: bool) -> String {
    let style = |style: Style| style.force_styling(colour);
    let error = style(Style::new().red().bold()).apply_to("error:").to_string();
    let located = located(message);
    let shown = match located {
        Some(place) => {
            let rest = &message[place.text.len()..];
            let place = style(Style::new().bold()).apply_to(place.text).to_string();
            format!("{place}{}", with_hints(rest, colour))
        }
        None => with_hints(message, colour),
    };
    let line =
        located.and_then(|place| line_of(place.file, place.line, &message[place.text.len()..]));
    let Some(line) = line else {
        return format!("{error} {shown}");
    };
    let number = located.map_or(0, |place| place.line).to_string();
    let gutter = style(Style::new().blue().bold());
    let bar = gutter.apply_to(format!("{} |", " ".repeat(number.len())));
    let begin = gutter.apply_to(format!("{number} |"));
    format!("{error} {shown}\n{bar}\n{begin} {line}\n{bar}")
}

/// A line of a file.
#[derive(Clone, Copy)]
struct Located<'a> {
    text: &'a str,
    file: &'a Path,
    line: usize,
}

/// Whether a message begins with a line of a file.
pub fn is_located(message: &str) -> bool {
    located(message).is_some()
}

/// The file and line that a message begins with.
fn located(message: &str) -> Option<Located<'_>> {
    // Names of files may have colons.
    message.match_indices(": ").find_map(|(end, _)| {
        let text = &message[..end];
        let (file, line) = text.rsplit_once(':')?;
        let line = line.parse().ok().filter(|&line| line > 0)?;
        let file = Path::new(file);
        file.is_file().then_some(Located { text, file, line })
    })
}

/// A line of a file; of a long one what is around the place that a message is about.
fn line_of(file: &Path, line: usize, message: &str) -> Option<String> {
    let mut reader = BufReader::new(File::open(file).ok()?);
    let mut read = vec![];
    for _ in 0..line {
        read.clear();
        let mut part = std::io::Read::take(&mut reader, LONGEST);
        if part.read_until(b'\n', &mut read).ok()? == 0 {
            return None;
        }
        if read.len() as u64 == LONGEST {
            return None;
        }
    }
    let text = std::str::from_utf8(&read).ok()?.trim_end();
    // What would move the cursor of a terminal is not passed on.
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let length = text.chars().count();
    // A third of what is shown stands before the place.
    let first = match place_in(text, message) {
        Some(place) if length > WIDTH && place > WIDTH / 2 => place - WIDTH / 3,
        _ => 0,
    };
    let shown: String = text.chars().skip(first).take(WIDTH).map(plain).collect();
    let before = if first > 0 { "..." } else { "" };
    let rest = if length > first + WIDTH { "..." } else { "" };
    (!shown.trim().is_empty()).then(|| format!("{before}{shown}{rest}"))
}

/// The place in a line that a message is about, in characters: the column that it names, or the first of its words that
/// stands there as a key or a text in quotes.
fn place_in(line: &str, message: &str) -> Option<usize> {
    let column = message
        .split_once("column ")
        .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    if let Some(column) = column.and_then(|it| it.parse::<usize>().ok()) {
        return Some(column.saturating_sub(1));
    }
    let words = message.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
    let mut places =
        words.filter(|word| !word.is_empty()).filter_map(|word| line.find(&format!("\"{word}\"")));
    places.next().map(|at| line[..at].chars().count())
}

/// A message with what it suggests in colour.
fn with_hints(message: &str, colour: bool) -> String {
    const ASKS: &str = "did you mean ";
    let suggested = Style::new().green().force_styling(colour);
    let mut shown = String::new();
    let mut rest = message;
    while let Some(at) = rest.find(ASKS) {
        let begin = at + ASKS.len();
        let end = rest[begin..].find('?').map_or(rest.len(), |length| begin + length);
        shown += &rest[..begin];
        shown += &suggested.apply_to(&rest[begin..end]).to_string();
        rest = &rest[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8]) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a: b.toml");
        std::fs::write(&path, text).expect("written");
        let name = path.display().to_string();
        (folder, name)
    }

    #[test]
    fn the_line_that_is_wrong_is_shown() {
        let (_folder, name) = file(b"a = 1\nb = 2\n");
        let wrong = format!("{name}:2: b: a list is needed, not 2");
        assert_eq!(said(&wrong, false), format!("error: {wrong}\n  |\n2 | b = 2\n  |"));
        let without =
            [format!("{name}: no"), format!("{name}:3: no"), "no.toml:1: no".into(), "no".into()];
        for without in without {
            assert_eq!(said(&without, false), format!("error: {without}"));
        }
    }

    #[test]
    fn lines_are_cut_and_cannot_move_the_cursor() {
        let (_folder, name) = file("x".repeat(200).as_bytes());
        let long = said(&format!("{name}:1: no"), false);
        assert!(long.contains(&format!("1 | {}...\n", "x".repeat(100))), "{long}");
        let mut json = "{".to_owned();
        (0..40).for_each(|index| json += &format!("\"key_{index}\": {index}, "));
        json += "}";
        let (_folder, name) = file(json.as_bytes());
        for (message, shown) in [
            ("a.key_30 = 30 is not possible", "\"key_30\": 30, "),
            ("it is no JSON: a value is needed here, at column 300", "\"key_21\": 21, "),
            ("key_0: a text is needed", "1 | {\"key_0\": 0, "),
            ("key_39 is too much", "\"key_39\": 39, }\n"),
        ] {
            let long = said(&format!("{name}:1: {message}"), false);
            assert!(long.contains(shown), "{long}");
            let line = long.lines().find_map(|line| line.strip_prefix("1 | ")).expect("a line");
            assert!(line.chars().count() <= WIDTH + 6, "{long}");
        }
        let (_folder, name) = file("\n\u{1b}[2J\t1".as_bytes());
        let control = said(&format!("{name}:2: no"), false);
        assert!(control.contains("2 |  [2J 1\n"), "{control}");
    }

    #[test]
    fn colours_are_those_of_the_parser_of_arguments() {
        let shown = said("unknown key `a`, did you mean `b`?; known: b", true);
        assert_eq!(
            shown,
            "\u{1b}[31m\u{1b}[1merror:\u{1b}[0m unknown key `a`, did you mean \u{1b}[32m`b`\u{1b}[0m?; known: b"
        );
    }

    /// Whether there is a line to show or not, and however much is suggested.
    #[test]
    fn colours_change_no_letter_and_every_suggestion_is_green() {
        let (_folder, name) = file(b"a = 1\nb = 2\n");
        for (suggested, rest) in [
            (vec![], "no such thing"),
            (vec!["`a`"], "unknown key, did you mean `a`?; known: a"),
            (vec!["`a`", "b"], "did you mean `a`? or did you mean b?"),
            (vec!["a, without an end"], "unknown: did you mean a, without an end"),
        ] {
            for place in [String::new(), format!("{name}:2: "), "none.toml:2: ".into()] {
                let message = format!("{place}{rest}");
                let shown = said(&message, true);
                assert_eq!(console::strip_ansi_codes(&shown), said(&message, false));
                let green = shown.split("\u{1b}[32m").skip(1);
                let green: Vec<&str> =
                    green.filter_map(|it| it.split_once("\u{1b}[0m")).map(|it| it.0).collect();
                assert_eq!(green, suggested, "{shown:?}");
                // The place of a line that can be shown is in bold letters.
                let bold = format!("\u{1b}[1m{name}:2\u{1b}[0m");
                assert_eq!(shown.contains(&bold), place.starts_with(&name), "{shown:?}");
            }
        }
    }
}
