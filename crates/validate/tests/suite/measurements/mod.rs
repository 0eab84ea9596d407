//! Files of measurements: what is read of them, and what is refused.

mod cases;
mod cells;
mod files;
mod fits;
mod intervals;
mod logs;
mod operators;
mod refusals;
mod reports;
mod schemas;
