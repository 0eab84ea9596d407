//! Errors of predicted times by the properties of rows, one small plot for each.

use std::collections::BTreeMap;

use maud::{Markup, html};
use shardloom_program::quantity::{counted, signed_percent};

use super::property::{Property, PropertyAxis};
use super::series::SeriesList;
use super::{Compared, ComparedRow};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 412.0;
const BOTTOM: f64 = 208.0;

/// Of so many rows in a column, the outer tenths are drawn.
const ENOUGH: usize = 8;

/// A row that has a value of the property.
struct Point {
    row: usize,
    /// From 0 at the left end to 1 at the right.
    place: f64,
    column: usize,
    error: f64,
}

/// Errors by each property by which rows differ.
pub(super) fn section(rows: &[ComparedRow], series: &SeriesList) -> Markup {
    let errors: Vec<(usize, f64)> = rows
        .iter()
        .enumerate()
        .filter_map(|(row, it)| Some((row, it.step.filter(Compared::is_positive)?.error())))
        .collect();
    let mut names: Vec<&'static str> = vec![];
    for (name, _) in errors.iter().flat_map(|(row, _)| &rows[*row].properties) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let range = shown(&errors);
    let beyond = errors.iter().filter(|(_, it)| *it < range[0] || *it > range[1]).count();
    let plots: Vec<Markup> =
        names.into_iter().filter_map(|name| plot(name, rows, &errors, range, series)).collect();
    html! {
        @if !plots.is_empty() {
            section {
                h2 { "Errors of the step time by what rows have" }
                div.plots.small { @for plot in &plots { (plot) } }
                p.help {
                    "Errors are predicted over measured time, less 1. Bars are the median of rows near a value; the \
                     shade is from their 10th to their 90th percentile. Marks of equal values are set apart sideways."
                    @if beyond > 0 { " The errors of " (counted(beyond, "row")) " are beyond the axis and stand at its end." }
                }
            }
        }
    }
}

/// From where to where errors are drawn: one of a hundred may lie beyond.
fn shown(errors: &[(usize, f64)]) -> [f64; 2] {
    let mut sizes: Vec<f64> = errors.iter().map(|(_, error)| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let most = if sizes.is_empty() { 0.0 } else { quantile(&sizes, 0.99) };
    let most = (1.1 * most).max(0.25);
    let least = errors.iter().map(|(_, error)| *error).fold(-0.25f64, f64::min);
    [least.max(-most) - 0.02, most + 0.02]
}

fn plot(
    name: &str,
    rows: &[ComparedRow],
    errors: &[(usize, f64)],
    range: [f64; 2],
    series: &SeriesList,
) -> Option<Markup> {
    let value = |row: usize| -> Option<&Property> {
        rows[row].properties.iter().find(|(it, _)| *it == name).map(|(_, value)| value)
    };
    let axis = PropertyAxis::of(errors.iter().filter_map(|(row, _)| value(*row)))?;
    let point = |&(row, error): &(usize, f64)| {
        let (place, column) = axis.place(value(row)?)?;
        // Spread evenly in the middle of the column, by the number of the row and the golden ratio.
        let apart = ((row as f64 * 0.618_033_988_75).fract() - 0.5) * 0.5 * axis.column(column).1;
        Some(Point { row, place: place + apart, column, error })
    };
    let points: Vec<Point> = errors.iter().filter_map(point).collect();
    let mut columns: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for it in &points {
        columns.entry(it.column).or_default().push(it.error);
    }
    let [least, most] = range;
    let x = |place: f64| LEFT + place * (RIGHT - LEFT);
    let y =
        |error: f64| BOTTOM - (error.clamp(least, most) - least) / (most - least) * (BOTTOM - TOP);
    let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0];
    let step = step.into_iter().find(|step| (most - least) / step <= 7.0).unwrap_or(1e3);
    let lines = (least / step).ceil() as i64..=(most / step).floor() as i64;
    let label =
        format!("Error of the step time by {name}: the median of each column is in its title");
    Some(html! {
        figure.plot {
            svg data-plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) {
                g.grid {
                    @for line in lines.clone() {
                        path class=[(line == 0).then_some("zero")] d=(format!("M{LEFT} {:.1}H{RIGHT}", y(line as f64 * step))) {}
                    }
                }
                g.axis {
                    @for line in lines {
                        text x=(LEFT - 8.0) y=(format!("{:.1}", y(line as f64 * step) + 4.0)) text-anchor="end" {
                            @if line == 0 { "0" } @else { (format!("{:+.0}%", line as f64 * step * 100.0)) }
                        }
                    }
                    @for mark in axis.marks(7) {
                        text x=(format!("{:.1}", x(mark.place))) y=(BOTTOM + 17.0) text-anchor="middle" { (mark.label) }
                    }
                    text.name x=((LEFT + RIGHT) / 2.0) y=(HEIGHT - 7.0) text-anchor="middle" { (name) }
                }
                @for index in 0..series.count() {
                    @let own: Vec<&Point> = points.iter().filter(|it| series.of_row(it.row) == index).collect();
                    @if !own.is_empty() {
                        g.marks data-series=(index) fill=(SeriesList::colour(index)) {
                            @for it in own {
                                use href=(SeriesList::reference(index)) x=(format!("{:.1}", x(it.place)))
                                    y=(format!("{:.1}", y(it.error))) data-row=(it.row) {}
                            }
                        }
                    }
                }
                @for (column, errors) in &columns {
                    (summary(&axis, *column, errors, &x, &y))
                }
            }
            figcaption { "by " (name) }
        }
    })
}

/// The median of a column, and the outer tenths where rows are enough.
fn summary(
    axis: &PropertyAxis,
    column: usize,
    errors: &[f64],
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) -> Markup {
    let (middle, width) = axis.column(column);
    let [left, right] =
        [middle - 0.38 * width, middle + 0.38 * width].map(|it| x(it.clamp(0.0, 1.0)));
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [low, median, high] = [0.1, 0.5, 0.9].map(|share| quantile(&sorted, share));
    html! {
        g.column {
            @if errors.len() >= ENOUGH {
                rect x=(format!("{left:.1}")) width=(format!("{:.1}", right - left)) y=(format!("{:.1}", y(high)))
                    height=(format!("{:.1}", y(low) - y(high))) {}
            }
            line x1=(format!("{left:.1}")) x2=(format!("{right:.1}")) y1=(format!("{:.1}", y(median))) y2=(format!("{:.1}", y(median))) {}
            title { (signed_percent(median)) " in the median of " (errors.len()) }
        }
    }
}

/// What a share of some sorted numbers is below, linear between neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_far_errors_do_not_stretch_the_axis() {
        let mut errors: Vec<(usize, f64)> =
            (0..1000).map(|it| (it, it as f64 / 5000.0 - 0.1)).collect();
        errors.extend([(1000, 4.0), (1001, 3.0)]);
        let [least, most] = shown(&errors);
        assert_eq!([least, most], [-0.27, 0.27]);
        assert_eq!(shown(&[(0, 4.0)])[1], 4.0 * 1.1 + 0.02);
        assert_eq!(shown(&[]), [-0.27, 0.27]);
    }

    #[test]
    fn an_error_beyond_the_axis_stands_at_its_end() {
        let row = |devices: f64| ComparedRow {
            properties: vec![("devices", Property::Number(devices))],
            ..ComparedRow::default()
        };
        let rows = [1.0, 2.0, 4.0].map(row);
        let errors = [(0, 0.0), (1, 8.0), (2, -0.9)];
        let plot = plot("devices", &rows, &errors, [-0.5, 0.5], &SeriesList::of(&rows));
        let text = plot.expect("they differ").into_string();
        for (row, y) in [(0, "109.0"), (1, "10.0"), (2, "208.0")] {
            assert!(text.contains(&format!("y=\"{y}\" data-row=\"{row}\"")), "{text}");
        }
    }

    #[test]
    fn the_outer_tenths_of_a_column_are_drawn_where_it_has_eight_rows() {
        let words = ["a", "b"].map(Property::Word);
        let axis = PropertyAxis::of(words.iter()).expect("they differ");
        // Errors of 0, 1, 2 and so on, ten high each.
        let drawn = |count: i32| {
            let errors: Vec<f64> = (0..count).map(f64::from).collect();
            let y = |error| 100.0 - 10.0 * error;
            summary(&axis, 0, &errors, &|place| 100.0 * place, &y).into_string()
        };
        // Of eight, from 0.7 to 6.3 around 3.5.
        let eight = drawn(8);
        assert!(eight.contains("y=\"37.0\" height=\"56.0\""), "{eight}");
        assert!(eight.contains("y1=\"65.0\" y2=\"65.0\""), "{eight}");
        assert!(!drawn(7).contains("<rect"));
    }

    /// The horizontal places of the marks, by row.
    fn places(markup: &str) -> Vec<f64> {
        let number = |text: &str| -> f64 {
            let rest = text.split(" x=\"").nth(1).expect("a coordinate");
            rest.split('"').next().expect("its end").parse().expect("a number")
        };
        markup.split("<use").skip(1).map(number).collect()
    }

    /// Of two columns each is half as wide as the plot, and marks keep to the middle half of theirs.
    #[test]
    fn marks_of_equal_values_stand_apart_within_the_middle_half_of_their_column() {
        let row = |word| ComparedRow {
            properties: vec![("kind", Property::Word(word))],
            ..ComparedRow::default()
        };
        let rows: Vec<ComparedRow> =
            (0..40).map(|it| row(if it < 20 { "a" } else { "b" })).collect();
        let errors: Vec<(usize, f64)> = (0..40).map(|row| (row, 0.1)).collect();
        let plot = plot("kind", &rows, &errors, [-0.5, 0.5], &SeriesList::of(&rows));
        let found = places(&plot.expect("they differ").into_string());
        assert_eq!(found.len(), 40);
        let width = (RIGHT - LEFT) / 2.0;
        for (column, found) in found.chunks(20).enumerate() {
            let middle = LEFT + (column as f64 + 0.5) * width;
            // Rounded to a tenth.
            let apart: Vec<f64> = found.iter().map(|x| (x - middle) / width).collect();
            assert!(apart.iter().all(|it| it.abs() <= 0.25 + 1e-3), "{apart:?}");
            let [least, most] = [f64::min, f64::max].map(|of| apart.iter().copied().fold(0.0, of));
            assert!(least < -0.2 && most > 0.2, "they fill it: {apart:?}");
            let mut sorted = apart;
            sorted.sort_by(f64::total_cmp);
            assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] > 0.005), "{sorted:?}");
        }
    }

    #[test]
    fn quantiles_are_linear_between_neighbours() {
        for (share, right) in
            [(0.0, 1.0), (0.25, 2.0), (0.3, 2.4), (0.5, 4.0), (0.75, 8.0), (0.9, 12.8), (1.0, 16.0)]
        {
            let found = quantile(&[1.0, 2.0, 4.0, 8.0, 16.0], share);
            assert!((found - right).abs() < 1e-12, "{share}: {found}");
        }
        assert_eq!(quantile(&[7.0], 0.9), 7.0);
    }

    /// Lines are at multiples of a round step, of which up to seven fit.
    #[test]
    fn lines_are_labelled_with_the_errors_that_they_are_at() {
        let rows = [1.0, 2.0].map(|devices| ComparedRow {
            properties: vec![("devices", Property::Number(devices))],
            ..ComparedRow::default()
        });
        for (range, labels) in [
            ([-0.27, 0.27], &["-20%", "-10%", "0", "+10%", "+20%"][..]),
            ([-0.35, 0.35], &["-30%", "-20%", "-10%", "0", "+10%", "+20%", "+30%"]),
            ([-0.4, 0.4], &["-40%", "-20%", "0", "+20%", "+40%"]),
            ([-0.5, 3.1], &["0", "+100%", "+200%", "+300%"]),
        ] {
            let errors = [(0, 0.0), (1, 0.1)];
            let plot = plot("devices", &rows, &errors, range, &SeriesList::of(&rows));
            let text = plot.expect("they differ").into_string();
            let ends = text.split("text-anchor=\"end\">").skip(1);
            let found: Vec<&str> = ends.filter_map(|it| it.split('<').next()).collect();
            assert_eq!(found, labels, "{range:?}");
            assert_eq!(text.matches("class=\"zero\"").count(), 1);
        }
    }
}
