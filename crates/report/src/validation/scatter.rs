//! Predicted against measured, on logarithmic axes.

use maud::{Markup, html};
use shardloom_program::quantity::{bytes, seconds};

use super::Compared;
use super::scale::LogScale;
use super::series::SeriesList;

/// What a plot is of.
pub(super) struct Quantity {
    /// In words.
    name: &'static str,
    /// Values to write along its axes.
    marks: fn(&LogScale) -> Vec<f64>,
    /// What to write for one.
    label: fn(f64) -> String,
}

/// Seconds of a step.
pub(super) const STEP_TIME: Quantity =
    Quantity { name: "step time", marks: LogScale::tens, label: |value| short(&seconds(value)) };

/// Bytes of the fullest device.
pub(super) const PEAK_MEMORY: Quantity = Quantity {
    name: "peak memory",
    marks: LogScale::twos,
    label: |value| short(&bytes(value as u64)),
};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 628.0;
const BOTTOM: f64 = 464.0;

/// How far from the diagonal the dashed lines are.
const BAND: [f64; 2] = [0.8, 1.2];

/// The marks of rows, by their numbers.
pub(super) fn plot(of: &Quantity, points: &[(usize, Compared)], series: &SeriesList) -> Markup {
    let values = points.iter().flat_map(|(_, it)| [it.measured, it.predicted]);
    let scale = LogScale::around(values);
    let x = |value: f64| LEFT + scale.place(value) * (RIGHT - LEFT);
    let y = |value: f64| BOTTOM - scale.place(value) * (BOTTOM - TOP);
    // From where to where predicted is `ratio` times measured.
    let line = |ratio: f64| {
        let from = scale.least.max(scale.least / ratio);
        let to = scale.most.min(scale.most / ratio);
        [x(from), y(from * ratio), x(to), y(to * ratio)].map(|it| format!("{it:.1}"))
    };
    let marks = (of.marks)(&scale);
    let (name, count) = (of.name, points.len());
    let label = format!(
        "Predicted against measured {name} of {count} rows; the table of all rows has the numbers"
    );
    html! {
        figure.plot {
            svg data-plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) {
                g.grid {
                    @for &mark in &marks {
                        path d=(format!("M{0:.1} {TOP}V{BOTTOM}M{LEFT} {1:.1}H{RIGHT}", x(mark), y(mark))) {}
                    }
                }
                g.axis {
                    @for &mark in &marks {
                        text x=(format!("{:.1}", x(mark))) y=(BOTTOM + 18.0) text-anchor="middle" { ((of.label)(mark)) }
                        text x=(LEFT - 8.0) y=(format!("{:.1}", y(mark) + 4.0)) text-anchor="end" { ((of.label)(mark)) }
                    }
                    text.name x=((LEFT + RIGHT) / 2.0) y=(HEIGHT - 10.0) text-anchor="middle" { "measured " (name) }
                    text.name transform=(format!("translate(16 {}) rotate(-90)", (TOP + BOTTOM) / 2.0)) text-anchor="middle" {
                        "predicted " (name)
                    }
                }
                g.guides {
                    @for (ratio, class) in [(1.0, "equal"), (BAND[0], "band"), (BAND[1], "band")] {
                        @let [x1, y1, x2, y2] = line(ratio);
                        line class=(class) x1=(x1) y1=(y1) x2=(x2) y2=(y2) {}
                    }
                }
                @for index in 0..series.count() {
                    @let own: Vec<&(usize, Compared)> = points.iter().filter(|(row, _)| series.of_row(*row) == index).collect();
                    @if !own.is_empty() {
                        g.marks data-series=(index) fill=(SeriesList::colour(index)) {
                            @for (row, it) in own {
                                use href=(SeriesList::reference(index)) x=(format!("{:.1}", x(it.measured)))
                                    y=(format!("{:.1}", y(it.predicted))) data-row=(row) {}
                            }
                        }
                    }
                }
            }
            figcaption { (crate::tables::capitalised(name)) ", " (count) " rows" }
        }
    }
}

/// `1.00 s` as `1 s`: round numbers need no decimals.
fn short(text: &str) -> String {
    let Some((number, unit)) = text.split_once(' ') else { return text.to_owned() };
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::ComparedRow;

    #[test]
    fn round_numbers_have_no_decimals() {
        let shown = ["1.00 s", "50.0 ms", "1,000 s", "2.50 GiB", "100 ms"].map(short);
        assert_eq!(shown, ["1 s", "50 ms", "1,000 s", "2.5 GiB", "100 ms"]);
    }

    /// Coordinates of the marks, whatever else is drawn.
    fn marks(markup: &str) -> Vec<[f64; 2]> {
        let number = |text: &str, key: &str| -> f64 {
            let rest = text.split(&format!(" {key}=\"")).nth(1).expect("a coordinate");
            rest.split('"').next().expect("its end").parse().expect("a number")
        };
        markup.split("<use").skip(1).map(|it| [number(it, "x"), number(it, "y")]).collect()
    }

    #[test]
    fn a_prediction_that_is_right_lies_on_the_diagonal_and_a_higher_one_above() {
        let compared = |measured, predicted| Compared { measured, predicted };
        let points = [(0, compared(0.1, 0.1)), (1, compared(1.0, 1.2)), (2, compared(10.0, 10.0))];
        let rows = vec![ComparedRow::default(); 3];
        let markup = plot(&STEP_TIME, &points, &SeriesList::of(&rows)).into_string();
        let found = marks(&markup);
        let on_diagonal = |[x, y]: [f64; 2]| {
            ((x - LEFT) / (RIGHT - LEFT) - (BOTTOM - y) / (BOTTOM - TOP)).abs() < 1e-3
        };
        assert_eq!([0, 1, 2].map(|it| on_diagonal(found[it])), [true, false, true]);
        assert!(found[1][1] < (found[0][1] + found[2][1]) / 2.0, "not above");
        for [x, y] in found {
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y));
        }
    }

    /// Guides are where predicted is as much as measured, 0.8 and 1.2 times that, from one end of the plot to another.
    #[test]
    fn guides_are_at_their_ratios_and_reach_the_ends_of_the_plot() {
        let points = [(0, Compared { measured: 0.1, predicted: 30.0 })];
        let rows = vec![ComparedRow::default(); 1];
        let markup = plot(&STEP_TIME, &points, &SeriesList::of(&rows)).into_string();
        let scale = LogScale::around([0.1, 30.0].into_iter());
        let value = |share: f64| scale.least * (scale.most / scale.least).powf(share);
        let mut ratios = vec![];
        for line in markup.split("<line").skip(1) {
            let number = |key: &str| -> f64 {
                let rest = line.split(&format!(" {key}=\"")).nth(1).expect("a coordinate");
                rest.split('"').next().expect("its end").parse().expect("a number")
            };
            let ends = [["x1", "y1"], ["x2", "y2"]].map(|[x, y]| {
                [(number(x) - LEFT) / (RIGHT - LEFT), (BOTTOM - number(y)) / (BOTTOM - TOP)]
            });
            let found = ends.map(|[x, y]| value(y) / value(x));
            assert!((found[0] / found[1] - 1.0).abs() < 0.01, "{found:?}");
            ratios.push(found[0]);
            // Rounded to a tenth.
            assert!(ends.as_flattened().iter().all(|it| (-1e-3..=1.001).contains(it)), "{ends:?}");
            let near = |share: f64, end: f64| (share - end).abs() < 1e-3;
            assert!(ends[0].iter().any(|&it| near(it, 0.0)), "{ends:?}");
            assert!(ends[1].iter().any(|&it| near(it, 1.0)), "{ends:?}");
        }
        assert_eq!(ratios.len(), 3);
        for (found, right) in ratios.into_iter().zip([1.0, 0.8, 1.2]) {
            assert!((found / right - 1.0).abs() < 0.01, "{found}, not {right}");
        }
    }
}
