//! Names that come from elsewhere, made fit to show: harmless to a terminal, and no longer than there
//! is room for.

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
