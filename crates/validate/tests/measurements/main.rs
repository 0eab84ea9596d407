//! Files of measurements: what is read of them, and what is refused.

mod files;
mod refusals;
mod schemas;
