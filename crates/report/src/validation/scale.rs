//! A logarithmic scale, and the numbers to write along it.

/// A logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LogScale {
    /// The least value on it.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl LogScale {
    /// A scale that holds these values, all above 0, with some room around them.
    pub fn around(values: impl Iterator<Item = f64>) -> LogScale {
        let [least, most] =
            values.fold([f64::INFINITY, 0.0f64], |[least, most], it| [least.min(it), most.max(it)]);
        let room = 1.1 * (most / least).powf(0.02);
        LogScale { least: least / room, most: most * room }
    }

    /// Where a value is: 0 at the least, 1 at the greatest.
    pub fn place(&self, value: f64) -> f64 {
        (value / self.least).ln() / (self.most / self.least).ln()
    }

    /// Round numbers along the scale: powers of ten, with 2 and 5 times these where there is room.
    pub fn tens(&self) -> Vec<f64> {
        let (first, last) = (self.least.log10().floor() as i32, self.most.log10().ceil() as i32);
        let multiples: &[f64] = if last - first > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let each = |power: i32| multiples.iter().map(move |it| it * 10f64.powi(power));
        self.within((first..=last).flat_map(each))
    }

    /// Powers of two along the scale, every second or third where they are many.
    pub fn twos(&self) -> Vec<f64> {
        let (first, last) = (self.least.log2().ceil() as i32, self.most.log2().floor() as i32);
        let every = ((last - first).max(0) / 8 + 1) as usize;
        self.within((first..=last).step_by(every).map(|power| f64::from(power).exp2()))
    }

    fn within(&self, values: impl Iterator<Item = f64>) -> Vec<f64> {
        values.filter(|it| (self.least..=self.most).contains(it)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_at_0_and_1_and_equal_ratios_are_equally_far() {
        let scale = LogScale { least: 0.01, most: 100.0 };
        let places = [0.01, 0.1, 1.0, 10.0, 100.0].map(|it| scale.place(it));
        for (found, right) in places.into_iter().zip([0.0, 0.25, 0.5, 0.75, 1.0]) {
            assert!((found - right).abs() < 1e-12, "{places:?}");
        }
        let one = LogScale::around([3.0].into_iter());
        assert!(one.place(3.0) > 0.4 && one.place(3.0) < 0.6);
    }

    #[test]
    fn ends_that_are_round_are_numbers_of_the_scale_and_up_to_four_powers_of_ten_have_two_and_five()
    {
        let four = LogScale { least: 0.01, most: 100.0 }.tens();
        let all = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
        assert_eq!(four.len(), all.len());
        assert!(four.iter().zip(all).all(|(found, right)| (found / right - 1.0).abs() < 1e-12));
        let five = LogScale { least: 1.0, most: 1e5 }.tens();
        assert_eq!(five, [1.0, 10.0, 100.0, 1000.0, 1e4, 1e5]);
    }

    #[test]
    fn round_numbers_are_few() {
        assert_eq!(LogScale { least: 0.04, most: 3.0 }.tens(), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert_eq!(LogScale { least: 0.009, most: 2e4 }.tens().len(), 7);
        assert_eq!(
            LogScale { least: 1e9, most: 5e9 }.twos(),
            [2f64.powi(30), 2f64.powi(31), 2f64.powi(32)]
        );
        assert!(LogScale { least: 1.0, most: 2f64.powi(40) }.twos().len() <= 10);
        let powers = [0, 6, 12, 18, 24, 30, 36].map(|power| 2f64.powi(power));
        assert_eq!(LogScale { least: 1.0, most: 2f64.powi(40) }.twos(), powers);
        let all = [0, 1, 2, 3, 4, 5, 6, 7].map(|power| 2f64.powi(power));
        assert_eq!(LogScale { least: 1.0, most: 128.0 }.twos(), all);
        assert_eq!(LogScale { least: 1.0, most: 256.0 }.twos(), [1.0, 4.0, 16.0, 64.0, 256.0]);
    }

    #[test]
    fn values_have_a_little_room_around_them_on_both_sides() {
        for ratio in [1.0, 2.0, 100.0, 1e6, 1e12] {
            let scale = LogScale::around([0.5 * ratio, 0.5, 0.5 * f64::sqrt(ratio)].into_iter());
            let [least, most] = [0.5, 0.5 * ratio].map(|it| scale.place(it));
            assert!((least + most - 1.0).abs() < 1e-9, "{ratio}: {least} and {most}");
            // A tenth of the value, and a fiftieth of what is between them.
            let room = 1.1 * ratio.powf(0.02);
            assert!((0.5 / scale.least - room).abs() < 1e-9 * room, "{ratio}");
            assert!(least > 0.01 && (ratio < 10.0 || least < 0.05), "{ratio}: {least}");
        }
    }
}
