//! Numbers as people read them.

/// A time with three significant digits.
pub fn seconds(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        magnitude if magnitude >= 86_400.0 => (value / 86_400.0, "days"),
        magnitude if magnitude >= 0.9995 => (value, "s"),
        magnitude if magnitude >= 0.9995e-3 => (value * 1e3, "ms"),
        _ => (value * 1e6, "µs"),
    };
    format!("{} {unit}", digits(scaled))
}

/// A number with three significant digits, and no decimals from 100 up.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        magnitude if magnitude < 9.995 => 2,
        magnitude if magnitude < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    match text.split_once('.') {
        Some(_) => text,
        None => grouped(&text),
    }
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

/// Bytes in binary units.
pub fn bytes(value: u64) -> String {
    indicatif::BinaryBytes(value).to_string()
}

/// A fraction as a percentage.
pub fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_choose_their_unit() {
        let shown = [0.0, 2.5e-6, 0.0123, 0.9999, 59.96, 86_400.0, 1.0e9].map(seconds);
        let expected =
            ["0.00 µs", "2.50 µs", "12.3 ms", "1.00 s", "60.0 s", "1.00 days", "11,574 days"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn thousands_are_set_apart() {
        let shown = [999.6, 1234.0, -1234567.0, -123.0].map(digits);
        assert_eq!(shown, ["1,000", "1,234", "-1,234,567", "-123"]);
    }
}
