//! Tests of the whole crate, as one program.

mod baselines;
mod deepspeed;
mod layer_profile;
mod limits;
mod pass_times;
mod pipedream_partition;
mod plans;
mod requests;
mod servers;
mod two_bw;
mod zero_bubble;
