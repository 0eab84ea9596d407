//! Times, sizes and shares in words: what is said of programs reads the same in explanations, reports and
//! on the terminal.

/// A time with three significant digits in the largest unit that keeps it at least 1.
///
/// ```
/// assert_eq!(shardloom_program::quantity::seconds(0.0123), "12.3 ms");
/// ```
pub fn seconds(value: f64) -> String {
    let units =
        [(86_400.0, "days"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps")];
    match value {
        0.0 => "0 s".to_owned(),
        _ => scaled(value, &units),
    }
}

/// A size in binary units with three significant digits; whole below 1 KiB.
pub fn bytes(value: u64) -> String {
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

/// `1 stage`, `2 stages`.
pub fn counted(number: usize, what: &str) -> String {
    let ending = match (number, what.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {what}{ending}")
}

/// A fraction as a percentage with one decimal.
pub fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

/// A relative difference as a percentage with one decimal and its sign.
pub fn signed_percent(fraction: f64) -> String {
    format!("{:+.1}%", fraction * 100.0)
}

/// A number with three significant digits, and no decimals but commas between thousands from 100 up.
///
/// ```
/// assert_eq!(shardloom_program::quantity::digits(1234567.8), "1,234,568");
/// ```
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        magnitude if magnitude < 9.995 => 2,
        magnitude if magnitude < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    if decimals > 0 { text } else { grouped(&text) }
}

/// A whole number, thousands set apart by commas.
pub fn whole(value: u64) -> String {
    grouped(&value.to_string())
}

/// Thousands set apart by commas.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && text != "-" {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `units` from the largest down; a value below the smallest is shown in the smallest.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // 0.9995 of a unit already rounds to 1.00 of it.
    let unit = units.iter().find(|(size, _)| value.abs() >= size * 0.9995);
    let (size, name) = unit.copied().unwrap_or(units[units.len() - 1]);
    format!("{} {name}", digits(value / size))
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
    fn long_times_are_days() {
        let shown = [59.96, 80_000.0, 86_399.0, 1.0e9].map(seconds);
        assert_eq!(shown, ["60.0 s", "80,000 s", "1.00 days", "11,574 days"]);
    }

    #[test]
    fn thousands_are_set_apart() {
        let shown = [999.6, 1234.0, -1234567.0, -123.0].map(digits);
        assert_eq!(shown, ["1,000", "1,234", "-1,234,567", "-123"]);
        assert_eq!([7, 12_345].map(whole), ["7", "12,345"]);
    }

    #[test]
    fn shares_are_percentages_of_the_whole_with_one_decimal() {
        let shown = [0.0, 0.1234, 0.5, 1.0, 12.0].map(percent);
        assert_eq!(shown, ["0.0%", "12.3%", "50.0%", "100.0%", "1200.0%"]);
    }

    #[test]
    fn differences_carry_their_sign() {
        assert_eq!([0.25, -0.5].map(signed_percent), ["+25.0%", "-50.0%"]);
    }
}
