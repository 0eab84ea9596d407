//! What errors may depend on, and where its values stand on an axis.

use std::collections::BTreeSet;

/// The value of a property of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Property {
    /// A number above 0.
    Number(f64),
    /// A word.
    Word(&'static str),
}

/// A mark on an axis.
pub(super) struct Mark {
    /// From 0 at the left end to 1 at the right.
    pub place: f64,
    pub label: String,
}

/// An axis for the values of one property.
pub(super) enum PropertyAxis {
    /// Logarithmic, from one power of two to another.
    Numbers { least: f64, most: f64 },
    /// A column for each word.
    Words(Vec<&'static str>),
}

impl PropertyAxis {
    /// An axis for these values; none where they are all the same, or of two kinds.
    pub fn of<'v>(values: impl Iterator<Item = &'v Property> + Clone) -> Option<PropertyAxis> {
        let words: BTreeSet<&'static str> = values.clone().filter_map(word).collect();
        let numbers = values.filter_map(number);
        let [least, most] = numbers
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[least, most], it| {
                [least.min(it.log2()), most.max(it.log2())]
            });
        match (words.len(), most > least) {
            (0, true) => Some(PropertyAxis::Numbers { least: least - 0.5, most: most + 0.5 }),
            (2.., false) => Some(PropertyAxis::Words(words.into_iter().collect())),
            _ => None,
        }
    }

    /// Where a value stands, and in which column values near it are counted together; none of what is no
    /// value of this axis.
    pub fn place(&self, value: &Property) -> Option<(f64, usize)> {
        match (self, value) {
            (PropertyAxis::Numbers { least, most }, value) => {
                let power = number(value)?.log2();
                let column = (power.round() - least.floor()).max(0.0) as usize;
                Some(((power - least) / (most - least), column))
            }
            (PropertyAxis::Words(words), Property::Word(word)) => {
                let column = words.iter().position(|it| it == word)?;
                Some(((column as f64 + 0.5) / words.len() as f64, column))
            }
            (PropertyAxis::Words(_), Property::Number(_)) => None,
        }
    }

    /// The width of a column, and where its middle is.
    pub fn column(&self, column: usize) -> (f64, f64) {
        match self {
            PropertyAxis::Numbers { least, most } => {
                let width = 1.0 / (most - least);
                ((column as f64 + least.floor() - least) * width, width)
            }
            PropertyAxis::Words(words) => {
                let width = 1.0 / words.len() as f64;
                ((column as f64 + 0.5) * width, width)
            }
        }
    }

    /// What is written along it, `most` marks or one more.
    pub fn marks(&self, most_marks: usize) -> Vec<Mark> {
        match self {
            PropertyAxis::Words(words) => {
                let mark = |(column, word): (usize, &&'static str)| Mark {
                    place: self.column(column).0,
                    label: (*word).to_owned(),
                };
                words.iter().enumerate().map(mark).collect()
            }
            PropertyAxis::Numbers { least, most } if *most > 20.0 => {
                // Such as of parameters: powers of ten read better.
                let tens = |power: f64| power / 10f64.log2();
                let (first, last) = (tens(*least).ceil() as i32, tens(*most).floor() as i32);
                let value = |power: i32| 10f64.powi(power);
                let at = |value: f64| (value.log2() - least) / (most - least);
                let mark = |value: f64| Mark { place: at(value), label: decimal(value) };
                let halves =
                    (first - 1..=last).flat_map(|power| [1.0, 3.0].map(|it| it * value(power)));
                halves.filter(|it| (0.0..=1.0).contains(&at(*it))).map(mark).collect()
            }
            PropertyAxis::Numbers { least, most } => {
                let (first, last) = (least.ceil() as i32, most.floor() as i32);
                let every = ((last - first).max(0) as usize / most_marks.max(1) + 1) as i32;
                let powers = (first..=last).filter(|power| (power - first) % every == 0);
                let mark = |power: i32| Mark {
                    place: (f64::from(power) - least) / (most - least),
                    label: format!("{}", f64::from(power).exp2()),
                };
                powers.map(mark).collect()
            }
        }
    }
}

fn number(value: &Property) -> Option<f64> {
    match value {
        Property::Number(number) if number.is_finite() && *number > 0.0 => Some(*number),
        _ => None,
    }
}

fn word(value: &Property) -> Option<&'static str> {
    match value {
        Property::Word(word) => Some(word),
        Property::Number(_) => None,
    }
}

/// Such as `300M`.
fn decimal(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")];
    match units.into_iter().find(|(size, _)| value >= size * 0.999) {
        Some((size, unit)) => format!("{:.0}{unit}", value / size),
        None => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_by_their_logarithm_and_in_the_column_of_the_nearest_power() {
        let values = [1.0, 3.0, 64.0].map(Property::Number);
        let axis = PropertyAxis::of(values.iter()).expect("they differ");
        let places: Vec<(f64, usize)> = values.iter().filter_map(|it| axis.place(it)).collect();
        // From 2^-0.5 to 2^6.5.
        assert_eq!(places[0].0, 0.5 / 7.0);
        assert_eq!(places[2].0, 6.5 / 7.0);
        assert_eq!(places[1].1 - places[0].1, 2, "3 is nearer to 4 than to 2");
        let (middle, width) = axis.column(places[0].1);
        assert!((middle - places[0].0).abs() < 1e-12 && (width - 1.0 / 7.0).abs() < 1e-12);
        let labels: Vec<String> = axis.marks(7).into_iter().map(|it| it.label).collect();
        assert_eq!(labels, ["1", "2", "4", "8", "16", "32", "64"]);
        // Also where numbers begin later, which is 2^0.5 then.
        let later = [2.0, 8.0].map(Property::Number);
        let axis = PropertyAxis::of(later.iter()).expect("they differ");
        for value in &later {
            let (place, column) = axis.place(value).expect("a number");
            assert!((axis.column(column).0 - place).abs() < 1e-12, "{value:?}");
        }
    }

    #[test]
    fn numbers_below_1_have_an_axis_that_ends_behind_the_greatest_of_them() {
        let values = [0.125, 0.5].map(Property::Number);
        let axis = PropertyAxis::of(values.iter()).expect("they differ");
        // From 2^-3.5 to 2^-0.5.
        let place = |value: &Property| axis.place(value).expect("a number").0;
        assert_eq!([place(&values[0]), place(&values[1])], [0.5 / 3.0, 2.5 / 3.0]);
        let labels: Vec<String> = axis.marks(7).into_iter().map(|it| it.label).collect();
        assert_eq!(labels, ["0.125", "0.25", "0.5"]);
    }

    #[test]
    fn large_numbers_are_labelled_by_powers_of_ten() {
        let values = [1.2e8, 2e11].map(Property::Number);
        let axis = PropertyAxis::of(values.iter()).expect("they differ");
        let labels: Vec<String> = axis.marks(7).into_iter().map(|it| it.label).collect();
        assert_eq!(labels, ["100M", "300M", "1B", "3B", "10B", "30B", "100B"]);
    }

    #[test]
    fn what_is_always_the_same_has_no_axis() {
        let same = [Property::Number(8.0), Property::Number(8.0)];
        assert!(PropertyAxis::of(same.iter()).is_none());
        let small = [Property::Number(0.25), Property::Number(0.25)];
        assert!(PropertyAxis::of(small.iter()).is_none());
        assert!(PropertyAxis::of([Property::Word("a")].iter()).is_none());
        assert!(
            PropertyAxis::of([Property::Number(-1.0), Property::Number(f64::NAN)].iter()).is_none()
        );
        assert!(PropertyAxis::of([Property::Word("a"), Property::Word("b")].iter()).is_some());
    }

    #[test]
    fn words_stand_in_the_middle_of_columns_of_one_width_in_the_order_of_letters() {
        let words = ["d", "a", "c", "b", "a"].map(Property::Word);
        let axis = PropertyAxis::of(words.iter()).expect("they differ");
        for (column, word) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let middle = (column as f64 + 0.5) / 4.0;
            assert_eq!(axis.place(&Property::Word(word)), Some((middle, column)));
            assert_eq!(axis.column(column), (middle, 0.25));
            let mark = &axis.marks(1)[column];
            assert_eq!((mark.place, mark.label.as_str()), (middle, word));
        }
        assert_eq!(axis.place(&Property::Word("e")), None);
        assert_eq!(axis.place(&Property::Number(1.0)), None);
    }

    #[test]
    fn numbers_are_counted_in_the_column_whose_middle_is_nearest() {
        for (least, most) in [(1.0, 64.0), (3.0, 50.0), (0.125, 7.0), (6.0, 7.0)] {
            let ends = [least, most].map(Property::Number);
            let axis = PropertyAxis::of(ends.iter()).expect("they differ");
            let steps = (0..=50).map(|it| least * (most / least).powf(f64::from(it) / 50.0));
            for value in steps {
                let (place, column) = axis.place(&Property::Number(value)).expect("a number");
                let (middle, width) = axis.column(column);
                assert!((0.0..=1.0).contains(&place));
                assert!((place - middle).abs() <= 0.5 * width + 1e-9, "{value} of {least}..{most}");
            }
        }
    }

    #[test]
    fn marks_of_many_powers_are_told_apart_by_equal_steps() {
        let ends = [1.0, 65_536.0].map(Property::Number);
        let axis = PropertyAxis::of(ends.iter()).expect("they differ");
        let labels =
            |most| axis.marks(most).into_iter().map(|it| it.label).collect::<Vec<String>>();
        assert_eq!(labels(17).len(), 17);
        assert_eq!(labels(16), ["1", "4", "16", "64", "256", "1024", "4096", "16384", "65536"]);
        assert_eq!(labels(7), ["1", "8", "64", "512", "4096", "32768"]);
        assert_eq!(labels(0), ["1"]);
        for mark in axis.marks(7) {
            let value: f64 = mark.label.parse().expect("a number");
            assert_eq!(Some(mark.place), axis.place(&Property::Number(value)).map(|it| it.0));
        }
        // Powers of ten stand where their values do, too.
        let large = [1.2e8, 2e11].map(Property::Number);
        let axis = PropertyAxis::of(large.iter()).expect("they differ");
        for (mark, value) in axis.marks(7).iter().zip([1e8, 3e8, 1e9, 3e9, 1e10, 3e10, 1e11]) {
            let (place, _) = axis.place(&Property::Number(value)).expect("a number");
            assert!((mark.place - place).abs() < 1e-12, "{}", mark.label);
        }
        assert_eq!(
            [1.0, 999.0, 1e3, 3e5, 1e6, 1e9, 3e12].map(decimal),
            ["1", "1K", "1K", "300K", "1M", "1B", "3T"]
        );
    }
}
