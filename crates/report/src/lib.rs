//! Timelines made visible: in the terminal, as a web page, and as a Perfetto trace.
//!
//! Nearly everything here turns a [`Timeline`](shardloom_program::timeline::Timeline), predicted or
//! measured alike, into text or bytes; nothing is printed or written to disk, and nothing can fail.
//!
//! - [`swimlane`], [`schedule_table`] and [`schedule_legend`] give text for a terminal.
//! - [`Report::html`] gives one self-contained page that works from a file, without a network.
//! - [`ValidationPage::html`] gives one of predictions beside measurements.
//! - [`perfetto_trace`] gives bytes that <https://ui.perfetto.dev> and `trace_processor` open.

mod drawn;
mod html;
mod label;
mod legend;
mod page;
mod palette;
mod payload;
mod perfetto;
mod schedule_table;
mod shade;
mod stacking;
mod swimlane;
mod tables;
mod totals;
mod validation;
mod visible;

pub use html::{LossPoint, Report, Table};
pub use palette::Colour;
pub use perfetto::{PerfettoTrace, perfetto_trace};
pub use schedule_table::{schedule_legend, schedule_table};
pub use swimlane::swimlane;
pub use validation::{Compared, ComparedRow, Property, ValidationPage};
