//! The series that rows belong to: their colours, their marks and the legend.

use maud::{Markup, html};
use shardloom_program::quantity::{counted, percent};

use super::ComparedRow;

/// Colours of series, told apart by people with any common colour blindness, on light and dark alike.
const COLOURS: [&str; 8] =
    ["#0f7fc4", "#d97706", "#12946a", "#b5529a", "#7c6ee6", "#c2410c", "#5b8c1f", "#64748b"];

/// Shapes of marks about (0, 0), for more series than colours.
const SHAPES: [&str; 4] = [
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
    "M-2.9-2.9h5.8v5.8h-5.8z",
    "M0-4.2L4 3H-4z",
    "M0-4.4L4.4 0L0 4.4L-4.4 0z",
];

struct Series {
    name: String,
    rows: usize,
    /// Mean of the absolute errors of times; none without a time.
    error: Option<f64>,
}

/// All series, those with the most rows first.
pub(super) struct SeriesList {
    series: Vec<Series>,
    /// Of each row.
    of_row: Vec<usize>,
}

impl SeriesList {
    pub fn of(rows: &[ComparedRow]) -> SeriesList {
        let mut series: Vec<Series> = vec![];
        let mut sums: Vec<(f64, usize)> = vec![];
        for row in rows {
            let index = series.iter().position(|it| it.name == row.series).unwrap_or_else(|| {
                series.push(Series { name: row.series.clone(), rows: 0, error: None });
                sums.push((0.0, 0));
                series.len() - 1
            });
            series[index].rows += 1;
            if let Some(step) = row.step.filter(|it| it.is_positive()) {
                sums[index].0 += step.error().abs();
                sums[index].1 += 1;
            }
        }
        for (series, (sum, count)) in series.iter_mut().zip(sums) {
            series.error = (count > 0).then(|| sum / count as f64);
        }
        series.sort_by(|one, other| (other.rows, &one.name).cmp(&(one.rows, &other.name)));
        let index = |row: &ComparedRow| {
            series
                .iter()
                .position(|it| it.name == row.series)
                .expect("every row's series is listed")
        };
        let of_row = rows.iter().map(index).collect();
        SeriesList { series, of_row }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.series.len()
    }

    /// The series of a row.
    pub fn of_row(&self, row: usize) -> usize {
        self.of_row[row]
    }

    pub fn colour(series: usize) -> &'static str {
        COLOURS[series % COLOURS.len()]
    }

    fn shape(series: usize) -> usize {
        series / COLOURS.len() % SHAPES.len()
    }

    /// What the marks of a series refer to.
    pub fn reference(series: usize) -> String {
        format!("#mark-{}", SeriesList::shape(series))
    }

    /// The shapes, drawn nowhere.
    pub fn definitions(&self) -> Markup {
        html! {
            svg width="0" height="0" aria-hidden="true" style="position:absolute" {
                defs {
                    @for (index, shape) in SHAPES.iter().enumerate() {
                        path id={ "mark-" (index) } d=(shape) {}
                    }
                }
            }
        }
    }

    /// The names, each with a box that shows or hides its marks.
    pub fn legend(&self) -> Markup {
        html! {
            ul.legend.series aria-label="Series" {
                @for (index, series) in self.series.iter().enumerate() {
                    li {
                        label {
                            input type="checkbox" checked data-series=(index);
                            svg.sample viewBox="-6 -6 12 12" aria-hidden="true" {
                                path d=(SHAPES[SeriesList::shape(index)]) fill=(SeriesList::colour(index)) {}
                            }
                            span {
                                (series.name)
                                span.count {
                                    " (" (counted(series.rows, "row"))
                                    @if let Some(error) = series.error { ", error " (percent(error)) }
                                    ")"
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::validation::Compared;

    #[test]
    fn as_many_series_look_different_as_there_are_colours_times_shapes() {
        let look = |series| (SeriesList::colour(series), SeriesList::reference(series));
        let all: BTreeSet<_> = (0..32).map(look).collect();
        assert_eq!(all.len(), COLOURS.len() * SHAPES.len());
        // All colours of one shape first.
        for series in 0..32 {
            assert_eq!(look(series), (COLOURS[series % 8], format!("#mark-{}", series / 8)));
        }
        assert_eq!(look(32), look(0));
    }

    #[test]
    fn series_with_the_most_rows_come_first_and_equal_ones_by_name() {
        let row = |series: &str, step| ComparedRow {
            series: series.into(),
            step,
            ..ComparedRow::default()
        };
        let step = |predicted| Some(Compared { measured: 1.0, predicted });
        let rows = [
            row("c", step(1.5)),
            row("b", None),
            row("a", step(2.0)),
            row("b", step(f64::NAN)),
            row("c", step(0.9)),
            row("c", None),
            row("b", None),
        ];
        let list = SeriesList::of(&rows);
        let found: Vec<_> =
            list.series.iter().map(|it| (it.name.as_str(), it.rows, it.error)).collect();
        let mean = (0.5 + (1.0 - 0.9)) / 2.0;
        assert_eq!(found[0].0, "b");
        assert_eq!((found[0].1, found[0].2), (3, None), "no time of it can be compared");
        assert_eq!((found[1].0, found[1].1), ("c", 3));
        assert!((found[1].2.expect("an error") - mean).abs() < 1e-12);
        assert_eq!(found[2], ("a", 1, Some(1.0)));
        let of_rows: Vec<usize> = (0..rows.len()).map(|row| list.of_row(row)).collect();
        assert_eq!((of_rows, list.count()), (vec![1, 0, 2, 0, 1, 1, 0], 3));
    }
}
