//! `shardloom predict`: the classes that a trained model gives to rows of a table.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::program::quantity::percent;
use shardloom::{Classified, Confusion, classify};

use crate::failure::Failure;
use crate::output_file::OutputFile;
use crate::table::table;
use crate::terminal::Terminal;

/// Say which class a trained classifier gives to each row of a table
///
/// Rows are comma-separated values: the columns that the model was trained on, in the same order, with or without
/// the class behind them, by number or by name as in training. Each gets the class with the largest logit, of equal
/// ones the first, and its probability by the softmax. Where rows have their class, it also says how many got it (the
/// accuracy), and how often rows of one class were taken for another (the confusion matrix).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom train mlp:inputs=4,hidden=32,layers=2,classes=3 --data flowers.csv --steps 500 \\
      --validate-every 100 --checkpoint run
  shardloom predict run --data new.csv
  shardloom predict run --data flowers.csv -o predictions.csv --confusion confusion.csv")]
pub struct Predict {
    /// A checkpoint, or a folder of checkpoints, of which the newest sound one is taken
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,

    /// The rows, as comma-separated values; a first row without a number is a header
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    /// The file for the predictions, as comma-separated values, a line for each row [default: they are
    /// printed]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// A file for the confusion matrix, as comma-separated values: a line for each class that rows are of, a
    /// column for each that they got
    #[arg(long, value_name = "FILE")]
    confusion: Option<PathBuf>,

    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
}

/// One row, for programs.
#[derive(Serialize)]
struct Row {
    /// Its number among the rows, from 1.
    row: usize,
    predicted: Class,
    probability: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Class>,
}

/// A class as the data that the model was trained on has it.
#[derive(Clone, Serialize)]
#[serde(untagged)]
enum Class {
    Number(u32),
    Name(String),
}

impl Class {
    fn of(class: u32, names: &[String]) -> Class {
        let name = names.get(class as usize).cloned();
        name.map_or(Class::Number(class), Class::Name)
    }

    /// As a field of comma-separated values.
    fn field(&self) -> String {
        match self {
            Class::Name(name) if name.contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", name.replace('"', "\"\""))
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Class::Number(number) => number.fmt(out),
            Class::Name(name) => name.fmt(out),
        }
    }
}

#[derive(Serialize)]
struct Line {
    summary: Summary,
}

#[derive(Serialize)]
struct Summary {
    checkpoint: String,
    step: u64,
    model: String,
    rows: usize,
    predictions: Option<String>,
    accuracy: Option<f64>,
    confusion: Option<Matrix>,
}

/// How often rows of one class were taken for another.
#[derive(Serialize)]
struct Matrix {
    classes: Vec<Class>,
    /// A list for each class that rows are of, in it a number for each that they got.
    counts: Vec<Vec<u64>>,
    /// By class; null where no row got it.
    precision: Vec<Option<f64>>,
    /// By class; null where no row is of it.
    recall: Vec<Option<f64>>,
}

impl Matrix {
    fn of(confusion: &Confusion, names: &[String]) -> Matrix {
        let all = 0..confusion.classes().len();
        Matrix {
            classes: classes(confusion, names),
            counts: confusion.counts().to_vec(),
            precision: all.clone().map(|at| confusion.precision(at)).collect(),
            recall: all.map(|at| confusion.recall(at)).collect(),
        }
    }
}

/// The most classes whose confusion matrix is printed for people.
const MOST_PRINTED: usize = 20;

impl Predict {
    /// Predicts.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let output = OutputFile::optional(self.output.as_ref(), self.force)?;
        let matrix = OutputFile::optional(self.confusion.as_ref(), self.force)?;
        OutputFile::require_distinct([&output, &matrix])?;
        let spinner = terminal.spinner("predicting");
        let classified = classify(&self.checkpoint, &self.data);
        spinner.finish_and_clear();
        let classified = classified?;
        for refused in &classified.refused {
            terminal.note(refused);
        }
        let (confusion, names) = (classified.confusion(), &classified.class_names[..]);
        match (&matrix, &confusion) {
            (Some(file), Some(confusion)) => file.write(matrix_text(confusion, names))?,
            (Some(_), None) => {
                let message = format!(
                    "--confusion: the rows of {} do not say which class they are of; give rows with it as \
                     their last column",
                    self.data.display()
                );
                return Err(Failure::usage("--confusion", message));
            }
            (None, _) => {}
        }
        match &output {
            Some(file) => file.write(predictions_text(&classified))?,
            None if terminal.json() => {
                rows(&classified).try_for_each(|row| terminal.object(&row))?
            }
            None => terminal.text(predictions_text(&classified))?,
        }
        let summary = Summary {
            checkpoint: classified.checkpoint.display().to_string(),
            step: classified.step,
            model: classified.model.clone(),
            rows: classified.rows.len(),
            predictions: output.as_ref().map(|file| file.path().display().to_string()),
            accuracy: confusion.as_ref().and_then(Confusion::accuracy),
            confusion: confusion.as_ref().map(|it| Matrix::of(it, names)),
        };
        if terminal.json() {
            return terminal.object(&Line { summary });
        }
        if let Some(path) = &summary.predictions {
            let Summary { rows, checkpoint, step, .. } = &summary;
            terminal.line(format_args!(
                "{rows} rows predicted by {checkpoint}, after {step} steps; written to {path}"
            ))?;
        }
        if let Some(confusion) = &confusion {
            if output.is_none() {
                terminal.line("")?;
            }
            terminal.text(for_people(confusion, names))?;
        }
        if let Some(file) = &matrix {
            terminal.line(format_args!("Confusion matrix: {}", file.path().display()))?;
        }
        Ok(())
    }
}

fn rows(classified: &Classified) -> impl Iterator<Item = Row> {
    classified.rows.iter().enumerate().map(|(at, found)| Row {
        row: at + 1,
        predicted: Class::of(found.class, &classified.class_names),
        probability: found.probability,
        target: (classified.targets.as_ref())
            .and_then(|targets| Some(Class::of(*targets.get(at)?, &classified.class_names))),
    })
}

fn predictions_text(classified: &Classified) -> String {
    let mut text = String::from("predicted,probability");
    text += if classified.targets.is_some() { ",target\n" } else { "\n" };
    for Row { predicted, probability, target, .. } in rows(classified) {
        text += &format!("{},{probability:.6}", predicted.field());
        if let Some(target) = target {
            text += &format!(",{}", target.field());
        }
        text.push('\n');
    }
    text
}

/// The classes of a matrix.
fn classes(confusion: &Confusion, names: &[String]) -> Vec<Class> {
    confusion.classes().iter().map(|&class| Class::of(class, names)).collect()
}

fn matrix_text(confusion: &Confusion, names: &[String]) -> String {
    let line = |first: String, cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> = std::iter::once(first).chain(cells).collect();
        cells.join(",") + "\n"
    };
    let classes = classes(confusion, names);
    let mut text = line("class".into(), &mut classes.iter().map(Class::field));
    for (class, counts) in classes.iter().zip(confusion.counts()) {
        text += &line(class.field(), &mut counts.iter().map(u64::to_string));
    }
    text
}

fn for_people(confusion: &Confusion, names: &[String]) -> String {
    let (right, of, classes) = (confusion.right(), confusion.rows(), classes(confusion, names));
    let accuracy = confusion.accuracy().map_or("-".to_owned(), percent);
    let mut text = format!("Accuracy: {accuracy}, {right} of {of} rows\n");
    if classes.len() > MOST_PRINTED {
        let count = classes.len();
        text += &format!(
            "The confusion matrix of {count} classes is printed with --json, and written with --confusion FILE.\n"
        );
        return text;
    }
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let names: Vec<String> = classes.iter().map(Class::to_string).collect();
    let mut heading = vec!["class \\ predicted"];
    heading.extend(names.iter().map(String::as_str));
    heading.push("recall");
    let row = |at: usize| {
        let counts = confusion.counts()[at].iter().map(u64::to_string);
        let name = std::iter::once(names[at].clone());
        name.chain(counts).chain([share(confusion.recall(at))]).collect()
    };
    let mut rows: Vec<Vec<String>> = (0..classes.len()).map(row).collect();
    let precision = (0..classes.len()).map(|at| share(confusion.precision(at)));
    rows.push(std::iter::once("precision".to_owned()).chain(precision).collect());
    text.push('\n');
    text + &table(&heading, &rows)
}
