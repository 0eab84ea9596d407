//! Numbers behind words in lines of text.

/// Text without the codes that colour it in terminals (ECMA-48: an escape, a bracket, and all up to a letter).
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..at]);
        let code = &rest[at + 2..];
        let end = code.find(|c: char| c.is_ascii_alphabetic()).map_or(code.len(), |end| end + 1);
        rest = &code[end..];
    }
    plain.push_str(rest);
    plain
}

/// The number behind the first `key` of a line, spaces between them; with commas between thousands or
/// without, and `K`, `M`, `B`, `T` for powers of a thousand.
pub(super) fn after(line: &str, key: &str) -> Option<f64> {
    number(line.split_once(key)?.1)
}

/// The numbers behind every `key`.
pub(super) fn all_after<'l>(line: &'l str, key: &'l str) -> impl Iterator<Item = f64> + use<'l> {
    line.split(key).skip(1).filter_map(number)
}

/// The number that a text begins with.
fn number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let belongs = |c: char| c.is_ascii_digit() || ".,eE+-".contains(c);
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    let mut digits = text[..end].replace(',', "");
    // A number at the end of a sentence, or before a list's next one.
    while digits.ends_with(['.', 'e', 'E', '+', '-']) {
        digits.pop();
    }
    let value: f64 = digits.parse().ok()?;
    let unit = match text[end..].chars().next() {
        Some('K') => 1e3,
        Some('M') if !text[end..].starts_with("MiB") && !text[end..].starts_with("MB") => 1e6,
        Some('B') => 1e9,
        Some('T') => 1e12,
        _ => 1.0,
    };
    Some(value * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_every_way_that_logs_write_them() {
        for (text, right) in [
            ("x: 1234.5 |", Some(1234.5)),
            ("x:    10/ 500 |", Some(10.0)),
            ("x: 5,812  tflops", Some(5812.0)),
            ("x: 1.2E-05 |", Some(1.2e-5)),
            ("x: 5.1K |", Some(5100.0)),
            ("x: 1.05M", Some(1.05e6)),
            ("x: 512MiB.", Some(512.0)),
            ("x: 512MB,", Some(512.0)),
            ("x: 2.5B|", Some(2.5e9)),
            ("x: 3T", Some(3e12)),
            ("x: 1e+3 ", Some(1000.0)),
            ("x: 7 x: 8", Some(7.0)),
            ("x: 12- and", Some(12.0)),
            ("x: 7e", Some(7.0)),
            ("x: 1.36GB", Some(1.36)),
            ("x: 3.", Some(3.0)),
            ("x: nan", None),
            ("x:", None),
            ("y: 1", None),
        ] {
            assert_eq!(after(text, "x:"), right, "{text}");
        }
        assert_eq!(all_after("a: 1 | a: 2.5 b a: c", "a:").collect::<Vec<_>>(), [1.0, 2.5]);
        assert_eq!(all_after("9 a: 1", "a:").collect::<Vec<_>>(), [1.0]);
    }

    #[test]
    fn colours_are_left_out() {
        assert_eq!(plain("\u{1b}[31mstep: \u{1b}[1;32m5\u{1b}[39m."), "step: 5.");
        assert_eq!(plain("open \u{1b}[3"), "open ");
    }
}
