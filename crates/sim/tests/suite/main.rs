//! Tests of the whole crate, as one program.

mod averaging;
mod bounds;
mod communication_thread;
mod costs;
mod cuts;
mod defaults;
mod eager;
mod estimate;
mod failures;
mod folding;
mod negotiation;
mod overlap;
mod pair_averaging;
mod post_validation;
mod published;
mod reference;
mod routing;
mod run_ahead;
mod scenario;
mod schedules;
mod servers;
mod stack;
mod step_kind;
mod summing;
mod taking_turns;
