//! How each activity looks, the same everywhere: its letter, its fill, its colours.
//!
//! The hues are those of Okabe and Ito ("Color Universal Design", 2008), which people with any
//! common colour blindness can tell apart; letters and fills carry the meaning where colour cannot.

use std::fmt::Write;

use shardloom_program::timeline::Activity;

/// Whether text carries ANSI colour sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Characters only, for files, pipes and terminals that asked for no colour.
    Plain,
    /// Backgrounds from the 256-colour palette.
    Ansi,
}

/// Every activity, in the order in which legends list them.
pub(crate) const ACTIVITIES: [Activity; 8] = [
    Activity::Forward,
    Activity::Backward,
    Activity::BackwardInput,
    Activity::BackwardWeight,
    Activity::Update,
    Activity::Collective,
    Activity::Receive,
    Activity::Send,
];

/// What a rank that does nothing is drawn with.
pub(crate) const IDLE: char = '·';

/// The look of one activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Its name in words.
    pub(crate) name: &'static str,
    /// What stands for it where there is room for one character.
    pub(crate) letter: char,
    /// What fills its block where there are no colours.
    pub(crate) fill: char,
    /// Its background in the terminal's 256-colour palette; text on it is black.
    pub(crate) ansi: u8,
    /// Its fill in the page, `#rrggbb`; text on it is black.
    pub(crate) hex: &'static str,
    /// Likewise where its pipeline runs the reverse way; text on it is white.
    pub(crate) dark: &'static str,
}

/// The look of `activity`.
pub(crate) fn look(activity: Activity) -> Look {
    let (name, letter, fill, ansi, hex, dark) = match activity {
        Activity::Forward => ("forward", 'F', '░', 74, "#56b4e9", "#1b4f91"),
        Activity::Backward => ("backward", 'B', '▓', 214, "#f0a30a", "#8a3b00"),
        Activity::BackwardInput => ("input gradient", 'I', '▒', 227, "#f0e442", "#6b6a00"),
        Activity::BackwardWeight => ("weight gradient", 'W', '▞', 36, "#2cb68b", "#06543d"),
        Activity::Update => ("update", 'U', '█', 175, "#d58cb4", "#7a2f59"),
        Activity::Collective => ("collective", '≈', '≈', 167, "#e8743b", "#7f2f0e"),
        Activity::Receive => ("receive", '←', '←', 68, "#7f9fe0", "#2c4684"),
        Activity::Send => ("send", '→', '→', 248, "#a9b0ba", "#4a515c"),
    };
    Look { name, letter, fill, ansi, hex, dark }
}

/// Appends `text` greyed: what matters less, or nothing being done.
pub(crate) fn dim(text: &str, colour: Colour, into: &mut String) {
    match colour {
        Colour::Plain => into.push_str(text),
        Colour::Ansi => {
            write!(into, "\x1b[2m{text}\x1b[0m").expect("writing to a String cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_activities_share_a_letter_a_fill_or_a_colour() {
        for (index, &one) in ACTIVITIES.iter().enumerate() {
            for &other in &ACTIVITIES[..index] {
                let (a, b) = (look(one), look(other));
                assert_ne!(a.letter, b.letter, "{one:?} and {other:?}");
                assert_ne!(a.fill, b.fill, "{one:?} and {other:?}");
                assert_ne!(a.ansi, b.ansi, "{one:?} and {other:?}");
                assert_ne!(a.hex, b.hex, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn plain_text_carries_no_escape_sequences() {
        let mut text = String::new();
        dim("idle", Colour::Plain, &mut text);
        assert_eq!(text, "idle");
    }
}
