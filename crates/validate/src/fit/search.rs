//! A search for the least error of predictions over some constants, without derivatives: pattern search (Hooke and
//! Jeeves 1961) on a grid of equal ratios, so that points are met again and need not be computed twice.

/// How far from its present value a constant is searched, either way.
pub(crate) const RANGE: f64 = 4.0;

/// How many steps of the grid that is.
const STEPS: i32 = 128;

/// The first step tried: a factor of about 1.4. Every further one is half of the one before, to a factor of 1.01.
const FIRST: i32 = 32;

/// A point of the grid: for each constant, how many steps it is above its present value.
pub(crate) type Point = Vec<i32>;

/// What a constant is multiplied with at so many steps.
pub(crate) fn factor(steps: i32) -> f64 {
    RANGE.powf(f64::from(steps) / f64::from(STEPS))
}

/// Whether a constant is at an end of the range.
pub(crate) fn is_at_end(steps: i32) -> bool {
    steps.abs() == STEPS
}

/// What a point is worth.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    /// The mean of absolute errors, which is to be the least.
    pub error: f64,
    /// The error of each row.
    pub errors: Vec<f64>,
}

impl Value {
    /// Of a point at which a constant cannot be.
    pub const IMPOSSIBLE: Value = Value { error: f64::INFINITY, errors: vec![] };

    /// Of a point at which rows have these errors.
    pub fn of(errors: Vec<f64>) -> Value {
        let all: f64 = errors.iter().map(|error| error.abs()).sum();
        Value { error: all / errors.len().max(1) as f64, errors }
    }
}

/// The point of the least error near the present one, for `count` constants, and that error. Of equal errors
/// that found first stays, so the present point where nothing is better.
pub(crate) fn least<E>(
    count: usize,
    mut value: impl FnMut(&Point) -> Result<Value, E>,
) -> Result<(Point, f64), E> {
    let mut best = vec![0; count];
    let mut least = value(&best)?;
    let mut step = FIRST;
    while step > 0 {
        let before = least.error;
        for constant in 0..count {
            for by in [step, -step] {
                follow(&mut best, &mut least, &along(count, &[(constant, by)]), &mut value)?;
            }
        }
        if least.error == before {
            for direction in level(&best, &least, step, &mut value)? {
                follow(&mut best, &mut least, &direction, &mut value)?;
            }
        }
        if least.error == before {
            step /= 2;
        }
    }
    Ok((best, least.error))
}

/// Goes on in a direction as long as errors get less.
fn follow<E>(
    best: &mut Point,
    least: &mut Value,
    direction: &Point,
    value: &mut impl FnMut(&Point) -> Result<Value, E>,
) -> Result<(), E> {
    loop {
        let next: Point = best.iter().zip(direction).map(|(at, by)| at + by).collect();
        if next == *best || next.iter().any(|it| it.abs() > STEPS) {
            return Ok(());
        }
        let found = value(&next)?;
        if found.error >= least.error {
            return Ok(());
        }
        (*best, *least) = (next, found);
    }
}

/// Directions along two constants at once in which the mean of errors stays about the same, or the error of one of the
/// rows that have the least, as many as there are constants. Absolute errors have creases where a row has none, at which
/// no single constant leads down, and these lead along them.
fn level<E>(
    best: &Point,
    least: &Value,
    step: i32,
    value: &mut impl FnMut(&Point) -> Result<Value, E>,
) -> Result<Vec<Point>, E> {
    let count = best.len();
    // By constant, how each row's error changes with a step of the grid.
    let mut slopes = vec![vec![0.0; least.errors.len()]; count];
    for (constant, slopes) in slopes.iter_mut().enumerate() {
        for by in [step, -step] {
            let mut next = best.clone();
            next[constant] += by;
            if next[constant].abs() > STEPS || slopes.iter().any(|slope| *slope != 0.0) {
                continue;
            }
            let found = value(&next)?.errors;
            let rows = slopes.iter_mut().zip(&found).zip(&least.errors);
            rows.for_each(|((slope, found), least)| *slope = (found - least) / f64::from(by));
        }
    }
    let mut rows: Vec<usize> = (0..least.errors.len()).collect();
    rows.sort_by(|one, other| least.errors[*one].abs().total_cmp(&least.errors[*other].abs()));
    rows.truncate(count);
    let all = slopes.iter().map(|slopes| slopes.iter().sum()).collect();
    let of_row = |row: usize| slopes.iter().map(|slopes| slopes[row]).collect();
    let mut kept: Vec<Vec<f64>> = vec![all];
    kept.extend(rows.into_iter().map(of_row));
    let mut found = vec![];
    for slopes in kept {
        pairs(&slopes, step, &mut found);
    }
    Ok(found)
}

/// Adds the directions along two constants at once in which something stays that changes so with each of them.
fn pairs(slopes: &[f64], step: i32, found: &mut Vec<Point>) {
    let count = slopes.len();
    for one in 0..count {
        for other in one + 1..count {
            let ratio = -slopes[one] / slopes[other];
            if !ratio.is_finite() || ratio == 0.0 {
                continue;
            }
            // The smaller of the two moves by at least a step of the grid.
            let size = f64::from(step) / ratio.abs().max(1.0);
            let size = size.max((1.0 / ratio.abs().min(1.0)).min(f64::from(STEPS)));
            let [by, other_by] = [size, size * ratio].map(|it| it.round() as i32);
            for turn in [1, -1] {
                found.push(along(count, &[(one, turn * by), (other, turn * other_by)]));
            }
        }
    }
}

fn along(count: usize, moves: &[(usize, i32)]) -> Point {
    let mut direction = vec![0; count];
    for &(constant, by) in moves {
        direction[constant] = by;
    }
    direction
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    use super::*;

    fn least_of(count: usize, value: impl Fn(&[f64]) -> Value) -> (Vec<f64>, usize) {
        let mut asked = BTreeSet::new();
        let Ok((point, _)) = least(count, |point| {
            asked.insert(point.clone());
            let factors: Vec<f64> = point.iter().map(|it| factor(*it)).collect();
            Ok::<Value, Infallible>(value(&factors))
        });
        (point.into_iter().map(factor).collect(), asked.len())
    }

    /// Errors as they are of rows with these relative errors.
    fn of_rows(errors: &[f64]) -> Value {
        Value::of(errors.to_vec())
    }

    #[test]
    fn the_least_is_found_to_a_step_of_the_grid() {
        for right in [0.3f64, 0.77, 1.0, 1.9, 3.4] {
            let (found, asked) = least_of(1, |x| of_rows(&[x[0] / right - 1.0]));
            let found = found[0];
            assert!((found / right).ln().abs() < 0.011, "{found}, not {right}");
            assert!(asked < 30, "{asked} points");
        }
    }

    #[test]
    fn creases_of_absolute_errors_are_followed() {
        // Rows that depend on both constants nearly alike.
        let shares = [0.1, 0.15, 0.2, 0.25];
        let value = |x: &[f64]| {
            let time = |share: f64, x: &[f64]| (1.0 - share) * x[0] + share * x[1];
            let errors = shares.map(|share| time(share, x) / time(share, &[1.25, 0.75]) - 1.0);
            of_rows(&errors)
        };
        let (found, asked) = least_of(2, value);
        assert!(
            (found[0] / 1.25 - 1.0).abs() < 0.03 && (found[1] / 0.75 - 1.0).abs() < 0.12,
            "{found:?}"
        );
        assert!(value(&found).error < 0.01, "{:?}", value(&found));
        assert!(asked < 160, "{asked} points");
    }

    #[test]
    fn ends_of_the_range_and_of_what_can_be_are_kept() {
        let falling = |x: &[f64]| of_rows(&[1.0 / x[0]]);
        let (found, _) = least_of(1, falling);
        assert!((found[0] - RANGE).abs() < 1e-12 && is_at_end(STEPS));
        let (found, _) = least_of(1, |x| if x[0] > 1.5 { Value::IMPOSSIBLE } else { falling(x) });
        assert!(found[0] <= 1.5 && found[0] > 1.48, "{found:?}");
        assert_eq!(least_of(2, |_| of_rows(&[7.0])).0, [1.0, 1.0]);
    }

    /// Rows whose times are of two constants, beside the best of all points of the grid: also where that is at an end of
    /// the range.
    #[test]
    fn of_two_constants_what_is_found_is_nearly_the_best_of_the_grid() {
        let shares = [0.1, 0.4, 0.55, 0.9];
        for right in [[1.3, 0.7], [4.0, 0.8], [0.25, 1.5], [6.0, 2.0], [0.6, 5.0], [6.0, 0.2]] {
            let value = |x: &[f64]| {
                let time = |share: f64, x: &[f64]| (1.0 - share) * x[0] + share * x[1];
                of_rows(&shares.map(|share| time(share, x) / time(share, &right) - 1.0))
            };
            let mut best = f64::INFINITY;
            for one in -STEPS..=STEPS {
                for other in -STEPS..=STEPS {
                    best = best.min(value(&[factor(one), factor(other)]).error);
                }
            }
            let found = value(&least_of(2, value).0).error;
            assert!(found < best + 0.005, "{found} for {best} of {right:?}");
        }
    }
}
