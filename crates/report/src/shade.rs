//! How passes of several chunks, and of pipelines in both directions, differ in colour.
//!
//! The hue says what is done, as everywhere. Later chunks of a device are paler; what belongs to a
//! pipeline that runs the reverse way is dark, with light text. So both are seen without reading labels,
//! in grey too, and labels say them again.

use std::fmt::Write;

use serde::Serialize;
use shardloom_program::timeline::{Activity, Interval, Timeline};

use crate::palette::{Colour, look};

/// Which part of the model a pass works on, where a device holds several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// The device's chunk.
    pub(crate) chunk: Option<u32>,
    /// Whether its pipeline runs the reverse way.
    pub(crate) reverse: bool,
}

impl Part {
    /// The part that `interval` works on; the direction is in the labels of passes alone.
    pub(crate) fn of(interval: &Interval) -> Part {
        let reverse = is_pass(interval.activity) && interval.label.ends_with('<');
        Part { chunk: interval.chunk, reverse }
    }

    /// The part in a pass of a schedule: `F3@1<`.
    pub(crate) fn of_pass(pass: &str) -> Part {
        let reverse = pass.ends_with('<');
        let chunk = pass.trim_end_matches('<').split_once('@');
        Part { chunk: chunk.and_then(|(_, chunk)| chunk.parse().ok()), reverse }
    }
}

/// Whether the activity is a pass of a stage.
pub(crate) fn is_pass(activity: Activity) -> bool {
    matches!(
        activity,
        Activity::Forward | Activity::Backward | Activity::BackwardInput | Activity::BackwardWeight
    )
}

/// The most chunks that get a shade of their own; further ones begin again.
pub(crate) const MOST_SHADES: u32 = 8;

/// The parts that a picture has to tell apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Parts {
    /// Shades for chunks; none where no device holds several.
    pub(crate) chunks: u32,
    /// Whether anything runs the reverse way.
    pub(crate) reverse: bool,
}

impl Parts {
    /// All parts that occur.
    pub(crate) fn among(parts: impl Iterator<Item = Part>) -> Parts {
        parts.fold(Parts::default(), |all, part| Parts {
            chunks: all.chunks.max(part.chunk.map_or(0, |chunk| chunk.min(MOST_SHADES - 1) + 1)),
            reverse: all.reverse || part.reverse,
        })
    }

    /// All parts that occur in timelines.
    pub(crate) fn of<'t>(timelines: impl Iterator<Item = &'t Timeline>) -> Parts {
        let tracks = timelines.flat_map(|timeline| &timeline.tracks);
        Parts::among(tracks.flat_map(|track| &track.intervals).map(Part::of))
    }

    /// The colours of `activity` on `part`.
    pub(crate) fn shade(self, activity: Activity, part: Part) -> Shade {
        let look = look(activity);
        let base = Rgb::parse(look.hex);
        let chunk = part.chunk.unwrap_or(0) % MOST_SHADES;
        let step = f64::from(chunk) / f64::from(self.chunks.max(2) - 1);
        let background = match part.reverse {
            false => base.mixed(WHITE, PALEST * step),
            true => Rgb::parse(look.dark).mixed(base, LEAST_DARK * step),
        };
        let plain = chunk == 0 && !part.reverse;
        Shade {
            background,
            ink: background.ink(),
            ansi: if plain { look.ansi } else { background.ansi() },
        }
    }
}

/// How far the last chunk goes towards white.
const PALEST: f64 = 0.66;
/// How far the last chunk of the reverse way goes from dark towards the usual colour.
const LEAST_DARK: f64 = 0.35;

const WHITE: Rgb = Rgb([255, 255, 255]);
const BLACK: Rgb = Rgb([0, 0, 0]);

/// The colours of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shade {
    /// What is behind the text.
    pub(crate) background: Rgb,
    /// The text.
    pub(crate) ink: Rgb,
    /// The background in the terminal's 256-colour palette.
    ansi: u8,
}

impl Shade {
    /// Appends `text` in these colours.
    pub(crate) fn paint(self, text: &str, colour: Colour, into: &mut String) {
        match colour {
            Colour::Plain => into.push_str(text),
            Colour::Ansi => {
                let ink = if self.ink == WHITE { 231 } else { 16 };
                write!(into, "\x1b[38;5;{ink};48;5;{}m{text}\x1b[0m", self.ansi)
                    .expect("writing to a String cannot fail");
            }
        }
    }
}

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rgb([u8; 3]);

impl Rgb {
    fn parse(hex: &str) -> Rgb {
        let channel = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16);
        Rgb([1, 3, 5].map(|at| channel(at).expect("palettes are written as #rrggbb")))
    }

    /// `#rrggbb`.
    pub(crate) fn hex(self) -> String {
        let [red, green, blue] = self.0;
        format!("#{red:02x}{green:02x}{blue:02x}")
    }

    fn mixed(self, other: Rgb, share: f64) -> Rgb {
        let mix = |at: usize| {
            let (from, to) = (f64::from(self.0[at]), f64::from(other.0[at]));
            (from + (to - from) * share).round() as u8
        };
        Rgb([0, 1, 2].map(mix))
    }

    /// Black or white, whichever is read more easily on this.
    fn ink(self) -> Rgb {
        if self.contrast(BLACK) >= self.contrast(WHITE) { BLACK } else { WHITE }
    }

    /// The nearest colour of the 6 x 6 x 6 cube in the terminal's palette.
    fn ansi(self) -> u8 {
        const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
        let nearest = |channel: u8| {
            let apart = |&level: &usize| LEVELS[level].abs_diff(channel);
            (0..LEVELS.len()).min_by_key(apart).unwrap_or(0) as u8
        };
        let [red, green, blue] = self.0.map(nearest);
        16 + 36 * red + 6 * green + blue
    }

    /// WCAG 2.1, contrast ratio.
    fn contrast(self, other: Rgb) -> f64 {
        let (one, other) = (self.luminance() + 0.05, other.luminance() + 0.05);
        one.max(other) / one.min(other)
    }

    fn luminance(self) -> f64 {
        let [red, green, blue] = self.0.map(|byte| {
            let value = f64::from(byte) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::ACTIVITIES;

    const TWO: Parts = Parts { chunks: 2, reverse: true };

    fn parts(chunks: u32) -> impl Iterator<Item = Part> {
        (0..chunks)
            .flat_map(|chunk| [false, true].map(|reverse| Part { chunk: Some(chunk), reverse }))
    }

    /// WCAG 2.1, 1.4.3: body text needs a contrast of 4.5 to its background.
    #[test]
    fn text_is_readable_on_every_shade() {
        for chunks in 1..=MOST_SHADES {
            for part in parts(chunks) {
                for activity in ACTIVITIES {
                    let shade = Parts { chunks, reverse: true }.shade(activity, part);
                    let contrast = shade.background.contrast(shade.ink);
                    assert!(contrast >= 4.5, "{activity:?} {part:?}: contrast {contrast:.2}");
                }
            }
        }
    }

    #[test]
    fn chunks_go_in_equal_steps_from_the_colour_itself_to_the_palest_and_on_to_the_first_again() {
        for activity in ACTIVITIES.into_iter().filter(|&activity| is_pass(activity)) {
            for reverse in [false, true] {
                let background = |chunks, chunk| {
                    let part = Part { chunk: Some(chunk), reverse };
                    Parts { chunks, reverse }.shade(activity, part).background
                };
                let ends = [background(2, 0), background(2, 1)];
                // The reverse way from a dark colour towards the usual one, and not beyond it.
                let usual = Rgb::parse(look(activity).hex);
                let is_between = |at: usize| (ends[0].0[at]..=usual.0[at]).contains(&ends[1].0[at]);
                assert!(!reverse || (0..3).all(is_between), "{activity:?}: {ends:?}");
                for chunks in 2..=MOST_SHADES {
                    for chunk in 0..chunks {
                        let step = f64::from(chunk) / f64::from(chunks - 1);
                        let between = ends[0].mixed(ends[1], step);
                        let found = background(chunks, chunk);
                        // Both are rounded.
                        let near = |at: usize| found.0[at].abs_diff(between.0[at]) <= 1;
                        assert!((0..3).all(near), "{found:?} and {between:?}");
                    }
                    assert_eq!(background(chunks, MOST_SHADES), ends[0]);
                }
            }
        }
    }

    #[test]
    fn passes_chunks_and_directions_differ_in_page_and_terminal() {
        let passes = ACTIVITIES.into_iter().filter(|&activity| is_pass(activity));
        let shades: Vec<Shade> =
            passes.flat_map(|pass| parts(2).map(move |part| TWO.shade(pass, part))).collect();
        assert_eq!(shades.len(), 16);
        for (index, one) in shades.iter().enumerate() {
            for other in &shades[..index] {
                assert_ne!(one.background, other.background);
                assert_ne!(one.ansi, other.ansi, "{one:?} and {other:?}");
            }
        }
    }

    /// A ratio of 1.5 is about two steps of a scale of ten greys.
    #[test]
    fn directions_and_two_chunks_differ_in_grey_too() {
        for pass in ACTIVITIES.into_iter().filter(|&activity| is_pass(activity)) {
            let shade =
                |chunk, reverse| TWO.shade(pass, Part { chunk: Some(chunk), reverse }).background;
            let apart = |one: Rgb, other: Rgb| one.contrast(other);
            assert!(apart(shade(0, false), shade(0, true)) > 3.0, "{pass:?}: directions");
            assert!(apart(shade(0, true), shade(1, true)) > 1.5, "{pass:?}: chunks in reverse");
            // Yellow is nearly as light as white; its chunks differ in how strong it is.
            if pass != Activity::BackwardInput {
                assert!(apart(shade(0, false), shade(1, false)) > 1.3, "{pass:?}: chunks");
            }
        }
    }

    #[test]
    fn passes_and_intervals_say_their_part() {
        let part = |chunk, reverse| Part { chunk, reverse };
        assert_eq!(Part::of_pass("F3"), part(None, false));
        assert_eq!(Part::of_pass("W12@1"), part(Some(1), false));
        assert_eq!(Part::of_pass("B0@2<"), part(Some(2), true));
        assert_eq!(Part::of_pass("@<"), part(None, true));
        let parts = ["F0@3", "B1<"].map(Part::of_pass);
        assert_eq!(Parts::among(parts.into_iter()), Parts { chunks: 4, reverse: true });
        assert_eq!(Parts::among([Part::default()].into_iter()), Parts::default());
    }

    #[test]
    fn chunks_have_shades_up_to_eight_and_further_ones_none_of_their_own() {
        for chunk in 0..20 {
            let parts = Parts::among([Part { chunk: Some(chunk), reverse: false }].into_iter());
            assert_eq!(parts.chunks, (chunk + 1).min(8), "{chunk}");
        }
    }

    /// A message may be of a pass whose name ends so.
    #[test]
    fn only_passes_have_a_direction_and_everything_may_have_a_chunk() {
        let passes = [
            Activity::Forward,
            Activity::Backward,
            Activity::BackwardInput,
            Activity::BackwardWeight,
        ];
        for activity in ACTIVITIES {
            for label in ["F0@1<", "F0@1", "<F0"] {
                let mut interval = crate::visible::tests::interval(activity, label, 0, 1);
                interval.chunk = Some(1);
                let reverse = passes.contains(&activity) && label.ends_with('<');
                assert_eq!(Part::of(&interval), Part { chunk: Some(1), reverse }, "{activity:?}");
            }
            assert_eq!(is_pass(activity), passes.contains(&activity));
        }
    }

    #[test]
    fn mixed_colours_are_rounded_to_the_nearest() {
        let mixed = |share| Rgb([0, 10, 255]).mixed(Rgb([255, 13, 0]), share).0;
        assert_eq!(mixed(0.0), [0, 10, 255]);
        assert_eq!(mixed(1.0), [255, 13, 0]);
        // 127.5, 11.5 and 127.5; 63.75, 10.75 and 191.25.
        assert_eq!(mixed(0.5), [128, 12, 128]);
        assert_eq!(mixed(0.25), [64, 11, 191]);
        assert_eq!(mixed(0.001), [0, 10, 255]);
    }

    /// WCAG 2.1: black and white are 21 apart, and a colour is 1 apart from itself.
    #[test]
    fn contrasts_are_those_of_the_definition() {
        assert!((BLACK.contrast(WHITE) - 21.0).abs() < 1e-9);
        assert_eq!(WHITE.contrast(BLACK), BLACK.contrast(WHITE));
        for grey in [0, 10, 11, 128, 255] {
            assert_eq!(Rgb([grey; 3]).contrast(Rgb([grey; 3])), 1.0);
        }
        // Luminance of pure colours (IEC 61966-2-1): 0.2126, 0.7152 and 0.0722.
        for (colour, luminance) in
            [(Rgb([255, 0, 0]), 0.2126), (Rgb([0, 255, 0]), 0.7152), (Rgb([0, 0, 255]), 0.0722)]
        {
            assert!((colour.luminance() - luminance).abs() < 1e-9, "{colour:?}");
        }
        // Of 10 / 255 on the straight part of the curve, of 128 / 255 on the other.
        assert!((Rgb([10; 3]).luminance() - 10.0 / 255.0 / 12.92).abs() < 1e-9);
        let half = ((128.0 / 255.0 + 0.055) / 1.055f64).powf(2.4);
        assert!((Rgb([128; 3]).luminance() - half).abs() < 1e-9);
        assert_eq!((WHITE.ink(), BLACK.ink()), (BLACK, WHITE));
    }

    /// The cube begins at 16; its levels are 0, 95, 135, 175, 215 and 255.
    #[test]
    fn terminals_get_the_nearest_colour_of_their_cube() {
        for (colour, number) in [
            ([0, 0, 0], 16),
            ([255, 255, 255], 231),
            ([255, 0, 0], 16 + 36 * 5),
            ([0, 255, 0], 16 + 6 * 5),
            ([0, 0, 255], 16 + 5),
            ([47, 48, 100], 16 + 6 + 1),
            ([114, 116, 160], 16 + 36 + 6 * 2 + 3),
        ] {
            assert_eq!(Rgb(colour).ansi(), number, "{colour:?}");
        }
    }
}
