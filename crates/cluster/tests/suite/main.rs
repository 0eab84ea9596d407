//! Tests of the whole crate, as one program.

mod collective_time;
mod constant;
mod device_rates;
mod parsing;
mod presets;
mod stack;
mod uplink;
