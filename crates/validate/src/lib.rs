//! Predictions of the simulator beside published measurements of real training.
//!
//! A file of measurements ([`read`]) holds [`Row`]s. What a row says was run is a [`Case`]: a model, a cluster
//! and a plan. [`predict`] lowers and simulates them, and a [`FileReport`] says how far the times and the peak
//! memory are from what was measured. Rows that cannot be told as a plan are refused, with a [`Refusal`].
//!
//! [`read_log`] reads the steps that a log of somebody's own run tells of, and [`Pace`] says how long they take.
//!
//! [`fit`] fits constants of a software stack anew to the rows that ran under it.
//!
//! What a source leaves unsaid for all of its rows (is the embedding tied, what leaves a node in a second) is
//! in `convention.rs`; the files that are part of the project, and where they are from, in `data/README.md`.
//!
//! ```
//! use shardloom_validate::{FileReport, predict, read};
//!
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/data/korthikanti22_table5.csv");
//! let mut measurements = read(file.as_ref())?;
//! // The first line of measurements has two: with full recomputation, and with selective.
//! measurements.rows.truncate(2);
//! let outcomes = predict(&measurements.rows, None, &|| {});
//! let report = FileReport::of(&measurements, &outcomes, false);
//! assert_eq!(report.all.step.map(|errors| errors.rows), Some(2));
//! # Ok::<(), shardloom_validate::ValidateError>(())
//! ```

mod case;
mod convention;
mod cut;
mod error;
mod feature;
mod fit;
mod hardware;
mod interval;
mod line;
mod log;
mod operator;
mod prediction;
mod prepared;
mod refusal;
mod report;
mod row;
mod run;
mod schema;
mod shape;
mod statistics;

pub use case::{Case, MemoryOf, MicroBatch, Split};
pub use cut::Cut;
pub use error::ValidateError;
pub use feature::{Feature, FeatureValue, features};
pub use fit::{FitError, Fitted, FittedConstant, HeldOutGroup, HeldOutGroups, constant_named, fit};
pub use hardware::{Hardware, cluster, preset_of};
pub use interval::{Coverage, GroupResiduals, HeldOut, residuals};
pub use log::{
    Argument, Batch, LogError, LogFormat, LoggedArgument, LoggedPeak, LoggedStep, Pace, Rate,
    StepSize, TrainingLog, read_log,
};
pub use operator::{OperatorFigures, OperatorKind, OperatorRow, OperatorShape};
pub use prediction::Prediction;
pub use refusal::Refusal;
pub use report::{Exceeding, Figures, FileReport, LineReport, Part, RefusedRows, WorstRow};
pub use row::{Measured, Row, Uses};
pub use run::{Outcome, predict};
pub use schema::{Measurements, read};
pub use shape::{Layers, Shape, ShapeKey};
pub use statistics::{Errors, Pair, Regret};
