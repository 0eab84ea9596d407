//! Into how many pieces tables are cut (Kim et al. 2019, section 3.4; `common/partitions.py` of snuspl/parallax): more
//! share a server's work, and each costs something. A few numbers are tried, and a model of the time is fitted to them.

/// What numbers of pieces were tried, each with the time of a step.
pub(super) type Tried = Vec<(usize, f64)>;

/// The model of the time of a step with so many pieces: `b / pieces + a (pieces - 1) + c`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    a: f64,
    b: f64,
    c: f64,
}

/// Tries numbers of pieces from `first` on: twice as many as long as that takes less time, and after the first that
/// takes more, half of the fewest as long as that takes less than the one before. None has more than `most`.
///
/// # Errors
/// The first of `time`.
pub(super) fn search<E>(
    first: usize,
    most: usize,
    mut time: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Tried, E> {
    let mut tried: Tried = vec![];
    let mut pieces = first.clamp(1, most.max(1));
    loop {
        let seconds = time(pieces)?;
        let last = tried.last().copied();
        tried.push((pieces, seconds));
        let fewest = tried.iter().map(|it| it.0).min().unwrap_or(pieces);
        pieces = match last {
            None => 2 * pieces,
            Some((before, then)) if then < seconds && before > pieces => return Ok(tried),
            Some((_, then)) if then < seconds => fewest / 2,
            Some((before, _)) if before < pieces => 2 * pieces,
            Some(_) => pieces / 2,
        };
        if pieces > most {
            pieces = fewest / 2;
        }
        // With no more to try upwards the search may come back to where it began.
        if pieces == 0 || tried.iter().any(|it| it.0 == pieces) {
            return Ok(tried);
        }
    }
}

impl Model {
    /// The one that is nearest to what was tried, times as shares of the longest; none of fewer than three numbers.
    pub fn fitted(tried: &[(usize, f64)]) -> Option<Model> {
        let longest = tried.iter().map(|it| it.1).fold(0.0, f64::max);
        if tried.len() < 3 || longest <= 0.0 {
            return None;
        }
        let terms = |pieces: usize| [pieces as f64 - 1.0, 1.0 / pieces as f64, 1.0];
        // The normal equations of three unknowns, with the right side behind them.
        let mut rows = [[0.0; 4]; 3];
        for &(pieces, seconds) in tried {
            let terms = terms(pieces);
            for (row, &term) in rows.iter_mut().zip(&terms) {
                row[..3].iter_mut().zip(&terms).for_each(|(sum, other)| *sum += term * other);
                row[3] += term * seconds / longest;
            }
        }
        let [a, b, c] = solved(rows)?;
        Some(Model { a, b, c })
    }

    /// Its time, in shares of the longest that was tried.
    pub fn time(self, pieces: usize) -> f64 {
        self.b / pieces as f64 + self.a * (pieces as f64 - 1.0) + self.c
    }
}

/// The number of pieces that the model has as the fastest between those that were tried, or the fastest of these if
/// they are too few for it.
pub(super) fn best(tried: &[(usize, f64)]) -> Option<usize> {
    let pieces = || tried.iter().map(|it| it.0);
    match Model::fitted(tried) {
        Some(model) => {
            let all = pieces().min()?..=pieces().max()?;
            all.min_by(|&one, &other| model.time(one).total_cmp(&model.time(other)))
        }
        None => tried.iter().min_by(|one, other| one.1.total_cmp(&other.1)).map(|it| it.0),
    }
}

/// What solves three equations, by elimination; none if they are not independent.
fn solved(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for at in 0..3 {
        let size = |row: &usize| rows[*row][at].abs();
        let pivot = (at..3).max_by(|one, other| size(one).total_cmp(&size(other)))?;
        rows.swap(at, pivot);
        let row = rows[at];
        if row[at].abs() < 1e-12 {
            return None;
        }
        for (_, other) in rows.iter_mut().enumerate().filter(|(number, _)| *number != at) {
            let factor = other[at] / row[at];
            other.iter_mut().zip(&row).for_each(|(value, own)| *value -= factor * own);
        }
    }
    Some([0, 1, 2].map(|at| rows[at][3] / rows[at][at]))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn search_of(first: usize, most: usize, time: impl Fn(f64) -> f64) -> Tried {
        search(first, most, |pieces| Ok::<_, Infallible>(time(pieces as f64))).expect("infallible")
    }

    fn numbers(tried: &Tried) -> Vec<usize> {
        tried.iter().map(|it| it.0).collect()
    }

    /// The published optimum of the model is at the root of b / a.
    #[test]
    fn the_optimum_of_an_exact_model_is_found_wherever_the_search_begins() {
        for (a, b) in [(0.1, 40.0), (1.0, 3.0), (0.01, 9.0), (2.0, 0.5)] {
            let time = |pieces: f64| b / pieces + a * (pieces - 1.0) + 5.0;
            let all =
                (1..=64).min_by(|&one, &other| time(one as f64).total_cmp(&time(other as f64)));
            for first in [1, 2, 4, 8, 16] {
                let tried = search_of(first, 64, time);
                let range = numbers(&tried);
                let (least, most) = (range.iter().min(), range.iter().max());
                let all = all.expect("numbers");
                let within = least <= Some(&all) && Some(&all) <= most;
                assert!(within, "{range:?} around {all}");
                if tried.len() >= 3 {
                    assert_eq!(best(&tried), Some(all), "{a}, {b}, from {first}: {range:?}");
                    let root = (b / a).sqrt().clamp(1.0, 64.0);
                    assert!((all as f64 - root).abs() <= 1.0, "{all} for {root}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_doubled_while_time_falls_and_halved_from_the_fewest_after_it_rises() {
        let best_at = |at: f64| move |pieces: f64| (pieces / at).ln().abs();
        assert_eq!(numbers(&search_of(4, 64, best_at(16.0))), [4, 8, 16, 32, 2]);
        assert_eq!(numbers(&search_of(8, 64, best_at(2.0))), [8, 16, 4, 2, 1]);
        // Nothing is tried beyond the most, and the fewest is one.
        assert_eq!(numbers(&search_of(4, 8, best_at(100.0))), [4, 8, 2]);
        assert_eq!(numbers(&search_of(1, 64, best_at(0.5))), [1, 2]);
        assert_eq!(best(&search_of(1, 64, best_at(0.5))), Some(1));
    }

    #[test]
    fn a_fit_of_times_that_are_not_the_models_is_the_nearest() {
        let tried = vec![(1, 10.0), (2, 7.0), (4, 6.5), (8, 9.0)];
        let model = Model::fitted(&tried).expect("four numbers");
        let error = |model: Model| -> f64 {
            tried.iter().map(|&(pieces, time)| (model.time(pieces) - time / 10.0).powi(2)).sum()
        };
        let least = error(model);
        for step in [-1e-3, 1e-3] {
            assert!(error(Model { a: model.a + step, ..model }) > least);
            assert!(error(Model { b: model.b + step, ..model }) > least);
            assert!(error(Model { c: model.c + step, ..model }) > least);
        }
    }

    /// The least of the model may be at either end of what was tried, or between two of them.
    #[test]
    fn the_best_number_is_the_least_of_the_model_within_what_was_tried() {
        let time =
            |a: f64, b: f64, pieces: usize| b / pieces as f64 + a * (pieces as f64 - 1.0) + 2.0;
        let mut ends = [0; 3];
        for (a, b) in [(0.001, 50.0), (0.1, 4.0), (0.3, 20.0), (1.0, 31.0), (5.0, 0.5), (0.02, 1.3)]
        {
            for tried in [[1, 2, 4], [4, 8, 2], [8, 16, 4], [3, 6, 12], [1, 9, 3]] {
                let (least, most) =
                    (tried.iter().min().expect("three"), tried.iter().max().expect("three"));
                let mut expected = *least;
                for pieces in *least..=*most {
                    if time(a, b, pieces) < time(a, b, expected) {
                        expected = pieces;
                    }
                }
                let known = tried.map(|pieces| (pieces, time(a, b, pieces)));
                assert_eq!(best(&known), Some(expected), "{a}, {b}, {tried:?}");
                let place = if expected == *least {
                    0
                } else if expected == *most {
                    2
                } else {
                    1
                };
                ends[place] += 1;
            }
        }
        assert!(ends.iter().all(|count| *count > 2), "{ends:?}");
        // Two are too few for a model, and the faster one is taken.
        assert_eq!(best(&[(2, 3.0), (8, 2.0)]), Some(8));
        assert_eq!(best(&[]), None);
    }
}
