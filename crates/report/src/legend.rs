//! What letters, fills and colours mean, in a line or two under a picture in the terminal.

use shardloom_program::timeline::Activity;

use crate::palette::{self, ACTIVITIES, Colour, IDLE, look};
use crate::shade::{Part, Parts};

/// How a picture writes a part where there is little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Blocks with fills, small letters for the reverse way and small figures for chunks: `f₁▒`.
    Blocks,
    /// Actions in full: `F3@1<`.
    Actions,
}

/// Explains the activities that `occur`, idling, and the parts that there are.
pub(crate) fn legend(
    occur: impl Fn(Activity) -> bool,
    parts: Parts,
    style: Style,
    colour: Colour,
) -> String {
    let mut text = String::new();
    for activity in ACTIVITIES.into_iter().filter(|&activity| occur(activity)) {
        let look = look(activity);
        let fill = match (style, colour) {
            (Style::Actions, _) => String::new(),
            (Style::Blocks, Colour::Ansi) => " ".to_owned(),
            (Style::Blocks, Colour::Plain) => look.fill.to_string(),
        };
        let sample = format!("{}{fill}", look.letter);
        parts.shade(activity, Part::default()).paint(&sample, colour, &mut text);
        text.push_str(&format!(" {}  ", look.name));
    }
    palette::dim(&IDLE.to_string(), colour, &mut text);
    text.push_str(" idle\n");
    let mut sample = |part: Part, sample: &str, name: &str| {
        let pass = if occur(Activity::Forward) { Activity::Forward } else { Activity::Backward };
        parts.shade(pass, part).paint(sample, colour, &mut text);
        text.push_str(&format!(" {name}  "));
    };
    for chunk in 0..parts.chunks {
        let mark = match style {
            Style::Blocks => format!("F{}", subscript(chunk)),
            Style::Actions => format!("@{chunk}"),
        };
        sample(Part { chunk: Some(chunk), reverse: false }, &mark, &format!("chunk {chunk}"));
    }
    if parts.reverse {
        let mark = match style {
            Style::Blocks => "F< f",
            Style::Actions => "<",
        };
        sample(Part { chunk: None, reverse: true }, mark, "pipeline the reverse way");
    }
    if parts != Parts::default() {
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// `number` in small figures below the line.
pub(crate) fn subscript(number: u32) -> String {
    let figure = |c: char| char::from_u32('₀' as u32 + (c as u32 - '0' as u32));
    number.to_string().chars().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_occurs_is_explained() {
        let forward = |activity| activity == Activity::Forward;
        let plain = |parts, style| legend(forward, parts, style, Colour::Plain);
        assert_eq!(plain(Parts::default(), Style::Actions), "F forward  · idle\n");
        let parts = Parts { chunks: 2, reverse: true };
        let blocks = "F░ forward  · idle\nF₀ chunk 0  F₁ chunk 1  F< f pipeline the reverse way\n";
        assert_eq!(plain(parts, Style::Blocks), blocks);
        let actions = "F forward  · idle\n@0 chunk 0  @1 chunk 1  < pipeline the reverse way\n";
        assert_eq!(plain(parts, Style::Actions), actions);
    }

    /// As in a picture of the end of a step.
    #[test]
    fn parts_have_the_colours_of_backward_passes_where_there_is_no_forward_pass() {
        let parts = Parts { chunks: 2, reverse: false };
        let explained = |activity| {
            let text = legend(|it| it == activity, parts, Style::Actions, Colour::Ansi);
            text.lines().last().expect("a line of chunks").to_owned()
        };
        let mut expected = String::new();
        for chunk in 0..2 {
            let part = Part { chunk: Some(chunk), reverse: false };
            parts.shade(Activity::Backward, part).paint(
                &format!("@{chunk}"),
                Colour::Ansi,
                &mut expected,
            );
            expected.push_str(&format!(" chunk {chunk}  "));
        }
        assert_eq!(explained(Activity::Backward), expected.trim_end());
        assert_ne!(explained(Activity::Forward), expected.trim_end());
    }

    #[test]
    fn small_figures_are_those_of_the_number() {
        assert_eq!(subscript(0), "₀");
        assert_eq!(subscript(1290), "₁₂₉₀");
    }

    #[test]
    fn a_picture_of_the_reverse_way_alone_has_a_whole_line_of_it() {
        let forward = |activity| activity == Activity::Forward;
        let lines = |chunks, reverse| {
            legend(forward, Parts { chunks, reverse }, Style::Actions, Colour::Plain)
        };
        assert_eq!(lines(0, true), "F forward  · idle\n< pipeline the reverse way\n");
        assert_eq!(lines(1, false), "F forward  · idle\n@0 chunk 0\n");
    }
}
