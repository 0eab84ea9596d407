//! One self-contained web page of predictions beside measurements.

mod property;
mod residuals;
mod scale;
mod scatter;
mod series;

use maud::{Markup, html};

pub use property::Property;
use series::SeriesList;

use crate::html::{Table, figures};
use crate::page::{Page, script};
use crate::tables::table;

const OWN_STYLE: &str = include_str!("../../html/validation.css");
const SCRIPT: &str = include_str!("../../html/validation.js");

/// How many rows the table of the worst has.
const WORST: usize = 20;

/// A time or a size, predicted and measured; both above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// What was measured.
    pub measured: f64,
    /// What was predicted.
    pub predicted: f64,
}

impl Compared {
    /// Predicted over measured, less 1.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Whether both can stand on a logarithmic axis.
    fn is_positive(&self) -> bool {
        [self.measured, self.predicted].iter().all(|it| it.is_finite() && *it > 0.0)
    }
}

/// A row of measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComparedRow {
    /// What it has its colour by, such as its source and its hardware.
    pub series: String,
    /// What to say of it, in the order of [`ValidationPage::columns`].
    pub cells: Vec<String>,
    /// Seconds of a step.
    pub step: Option<Compared>,
    /// Bytes that the fullest device holds.
    pub memory: Option<Compared>,
    /// What errors may depend on: a name, the same in every row that has it, and a value.
    pub properties: Vec<(&'static str, Property)>,
}

/// What a page of predictions and measurements tells. Parts without rows are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationPage {
    /// The page's title.
    pub title: String,
    /// Names and values of the figures to show first.
    pub summary: Vec<(String, String)>,
    /// What the cells of rows are.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<ComparedRow>,
    /// Tables, such as of errors by file.
    pub tables: Vec<Table>,
}

impl ValidationPage {
    /// The page: one HTML document without references to anything outside itself. All text is escaped.
    pub fn html(&self) -> String {
        let series = SeriesList::of(&self.rows);
        let main = html! {
            noscript { p.notice { "Hovering needs JavaScript; the tables do not." } }
            (figures(&self.summary))
            (self.scatters(&series))
            (residuals::section(&self.rows, &series))
            @for it in &self.tables {
                section { h2 { (it.title) } (table(&it.title, &it.columns, &it.rows)) }
            }
            (self.worst())
            (self.all_rows())
        };
        let (styles, header) = (["", OWN_STYLE], html! {});
        Page { title: &self.title, styles, header, main, scripts: script(&[SCRIPT]) }.html()
    }

    fn scatters(&self, series: &SeriesList) -> Markup {
        let points = |of: fn(&ComparedRow) -> Option<Compared>| -> Vec<(usize, Compared)> {
            let compared =
                self.rows.iter().enumerate().filter_map(|(row, it)| Some((row, of(it)?)));
            compared.filter(|(_, compared)| compared.is_positive()).collect()
        };
        let (steps, memory) = (points(|it| it.step), points(|it| it.memory));
        html! {
            @if !steps.is_empty() || !memory.is_empty() {
                section {
                    (series.definitions())
                    h2 { "Predicted against measured" }
                    (series.legend())
                    div.plots {
                        @if !steps.is_empty() { (scatter::plot(&scatter::STEP_TIME, &steps, series)) }
                        @if !memory.is_empty() { (scatter::plot(&scatter::PEAK_MEMORY, &memory, series)) }
                    }
                    p.help {
                        "On the line a prediction is what was measured; between the dashed lines it is within 20%. \
                         Above the line too much is predicted. Pointing at a mark says what it is; a click leads to \
                         its row in the table of all rows."
                    }
                }
            }
        }
    }

    /// The rows whose times are predicted worst.
    fn worst(&self) -> Markup {
        let error = |row: &ComparedRow| row.step.map_or(0.0, |it| it.error().abs());
        let mut worst: Vec<&ComparedRow> =
            self.rows.iter().filter(|it| it.step.is_some()).collect();
        worst.sort_by(|one, other| error(other).total_cmp(&error(one)));
        worst.truncate(WORST);
        let cells: Vec<Vec<String>> = worst.iter().map(|it| it.cells.clone()).collect();
        html! {
            @if !cells.is_empty() {
                section.rows { h2 { "Worst rows" } (table("Worst rows", &self.columns, &cells)) }
            }
        }
    }

    /// Every row: what the plots say, for those who read, and what the script tells of a mark.
    fn all_rows(&self) -> Markup {
        html! {
            @if !self.rows.is_empty() {
                section.rows {
                    details #rows {
                        summary { h2 { "All rows" } }
                        div.scroll tabindex="0" role="region" aria-label="All rows" {
                            table {
                                thead { tr { @for name in &self.columns { th scope="col" { (name) } } } }
                                tbody {
                                    @for (index, row) in self.rows.iter().enumerate() {
                                        tr id={ "row-" (index) } tabindex="-1" {
                                            @for cell in &row.cells { td { (cell) } }
                                        }
                                    }
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
    use super::*;

    fn row(series: &str, measured: f64, predicted: f64, devices: f64) -> ComparedRow {
        ComparedRow {
            series: series.to_owned(),
            cells: vec![format!("{series} {devices}"), format!("{measured}")],
            step: Some(Compared { measured, predicted }),
            memory: None,
            properties: vec![
                ("devices", Property::Number(devices)),
                ("micro-batch", Property::Number(1.0)),
                ("ZeRO stage", Property::Word(if devices > 8.0 { "1" } else { "0" })),
            ],
        }
    }

    fn page(rows: Vec<ComparedRow>) -> ValidationPage {
        ValidationPage {
            title: "Predictions".to_owned(),
            summary: vec![("Rows".to_owned(), rows.len().to_string())],
            columns: vec!["Row".to_owned(), "Measured".to_owned()],
            rows,
            tables: vec![],
        }
    }

    fn count(text: &str, part: &str) -> usize {
        text.matches(part).count()
    }

    #[test]
    fn every_row_is_a_mark_in_each_plot_that_it_has_values_for() {
        let mut rows =
            vec![row("a", 1.0, 1.1, 8.0), row("a", 2.0, 1.9, 16.0), row("b", 4.0, 2.0, 8.0)];
        rows[2].memory = Some(Compared { measured: 1e9, predicted: 2e9 });
        let page = page(rows).html();
        // In the plot of times, and by devices and ZeRO stage; nothing is told apart by micro-batches of 1.
        assert_eq!(count(&page, "<svg data-plot"), 4);
        for (index, marks) in [(0, 3), (1, 3), (2, 4)] {
            assert_eq!(count(&page, &format!("data-row=\"{index}\"")), marks, "row {index}");
            assert_eq!(count(&page, &format!("<tr id=\"row-{index}\"")), 1);
        }
        assert!(!page.contains("by micro-batch"));
    }

    #[test]
    fn nothing_that_rows_say_becomes_markup() {
        let evil = "<script>alert(1)</script>\"'&";
        let mut evil_row = row(evil, 1.0, 1.0, 8.0);
        evil_row.cells = vec![evil.to_owned(); 2];
        let mut page = page(vec![evil_row, row("b", 1.0, 1.0, 16.0)]);
        page.title = evil.to_owned();
        page.tables = vec![Table {
            title: evil.into(),
            columns: vec![evil.into()],
            rows: vec![vec![evil.into()]],
        }];
        let text = page.html();
        assert!(!text.contains("<script>alert"));
        assert!(text.contains("&lt;script&gt;alert"));
    }

    #[test]
    fn the_page_refers_to_nothing_outside_itself() {
        let text = page(vec![row("a", 1.0, 1.0, 8.0), row("b", 1.0, 1.0, 16.0)]).html();
        for loads in
            ["://", "<link", "<img", "<iframe", " src=", "@import", "url(", "fetch(", "import("]
        {
            assert!(!text.contains(loads), "the page contains {loads}");
        }
    }

    #[test]
    fn times_that_have_no_logarithm_are_left_out() {
        let text = page(vec![row("a", 0.0, 1.0, 8.0), row("a", f64::NAN, 1.0, 16.0)]).html();
        assert_eq!(count(&text, "<svg data-plot"), 0);
        assert!(!text.contains("NaN,"), "a coordinate is no number");
    }

    #[test]
    fn rows_above_and_below_the_axis_are_counted() {
        let near = (0..400).map(|it| row("a", 1.0, 1.0, f64::from(1 + it % 16)));
        // One is predicted far too fast, the other far too slow.
        let far = [row("a", 1.0, 0.1, 3.0), row("a", 1.0, 9.0, 4.0)];
        let text = |far: &[ComparedRow]| page(near.clone().chain(far.to_vec()).collect()).html();
        for (far, said) in [(&far[..1], "1 row "), (&far[1..], "1 row "), (&far, "2 rows ")] {
            let sentence = format!("The errors of {said}are beyond the axis");
            assert!(text(far).contains(&sentence), "{said}");
        }
        assert!(!text(&[]).contains("beyond the axis"));
    }

    #[test]
    fn the_error_of_a_series_is_the_mean_of_absolute_ones() {
        let text = page(vec![row("a", 1.0, 1.5, 8.0), row("a", 1.0, 0.7, 16.0)]).html();
        assert!(text.contains(" (2 rows, error 40.0%)"), "{text}");
    }

    #[test]
    fn the_worst_rows_come_first() {
        let rows = (1..=30).map(|it| row("a", 1.0, 1.0 + f64::from(it) / 100.0, f64::from(it)));
        let text = page(rows.collect()).html();
        let worst = text.split("<h2>Worst rows</h2>").nth(1).expect("a table");
        let worst = worst.split("</section>").next().expect("its end");
        assert_eq!(count(worst, ">a "), WORST);
        assert!(worst.find("a 30<").expect("the worst") < worst.find("a 29<").expect("the next"));
        assert!(!worst.contains("a 10<"));
    }

    /// The axis ends at 0.27 where nearly all errors are small.
    #[test]
    fn an_error_a_little_beyond_the_axis_is_counted_and_one_within_it_is_not() {
        let near = (0..400).map(|it| row("a", 1.0, 1.0, f64::from(1 + it % 16)));
        let is_counted = |predicted: f64| {
            let all = near.clone().chain([row("a", 1.0, predicted, 3.0)]).collect();
            page(all).html().contains("The errors of 1 row are beyond the axis")
        };
        for (predicted, beyond) in
            [(1.26, false), (1.28, true), (1.5, true), (2.2, true), (0.74, false), (0.72, true)]
        {
            assert_eq!(is_counted(predicted), beyond, "{predicted}");
        }
    }
}
