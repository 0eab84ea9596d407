//! Times, sizes and shares as people read them, and text made safe to show.

/// A time with three significant digits in the largest unit that keeps it at least 1.
pub(crate) fn seconds(value: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps")];
    scaled(value, &units)
}

/// A size in binary units with three significant digits; whole below 1 KiB.
pub(crate) fn bytes(value: u64) -> String {
    if value < 1024 {
        return format!("{value} B");
    }
    let units = [
        (f64::exp2(60.0), "EiB"),
        (f64::exp2(50.0), "PiB"),
        (f64::exp2(40.0), "TiB"),
        (f64::exp2(30.0), "GiB"),
        (f64::exp2(20.0), "MiB"),
        (f64::exp2(10.0), "KiB"),
    ];
    scaled(value as f64, &units)
}

/// A fraction as a percentage with one decimal.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

/// The relative change from `from` to `to`, signed; `None` where `from` is zero.
pub(crate) fn change(from: f64, to: f64) -> Option<String> {
    (from != 0.0).then(|| format!("{:+.1}%", (to / from - 1.0) * 100.0))
}

/// `units` from the largest down; a value below the smallest is shown in the smallest.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    if value == 0.0 {
        return format!("0 {}", units[0].1);
    }
    // 0.9995 of a unit already rounds to 1.00 of it.
    let unit = units.iter().find(|(size, _)| value.abs() >= size * 0.9995);
    let (size, name) = unit.copied().unwrap_or(units[units.len() - 1]);
    let number = value / size;
    let decimals = match number.abs() {
        magnitude if magnitude < 9.995 => 2,
        magnitude if magnitude < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$} {name}")
}

/// `text` with control characters replaced, so that a name cannot move the cursor or recolour.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// `text` in at most `width` characters, its end replaced by an ellipsis where it is longer.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.extend((width > 0).then_some('…'));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_choose_the_unit_and_keep_three_digits() {
        let shown: Vec<String> =
            [0.0, 12.3456, 0.01234, 0.9999, 4.5e-6, 7.0e-9, 3e-12].map(seconds).into();
        assert_eq!(shown, ["0 s", "12.3 s", "12.3 ms", "1.00 s", "4.50 µs", "7.00 ns", "3.00 ps"]);
    }

    #[test]
    fn bytes_are_binary() {
        let shown: Vec<String> = [0, 1023, 1024, 1_572_864, 85_899_345_920].map(bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "1.50 MiB", "80.0 GiB"]);
    }

    #[test]
    fn change_is_signed_and_undefined_from_zero() {
        assert_eq!(change(2.0, 2.5).as_deref(), Some("+25.0%"));
        assert_eq!(change(2.0, 1.0).as_deref(), Some("-50.0%"));
        assert_eq!(change(0.0, 1.0), None);
    }

    #[test]
    fn long_text_ends_in_an_ellipsis_within_the_width() {
        assert_eq!(shortened("stage 12", 8), "stage 12");
        assert_eq!(shortened("stage 12", 6), "stage…");
        assert_eq!(shortened("stage", 0), "");
    }

    #[test]
    fn escape_sequences_in_names_are_disarmed() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
