//! Searches for the fastest plan that fits in memory, and says why it is the one.
//!
//! [`auto`] enumerates a [`Space`] of 3D plans, scores each with the analytic
//! [estimate](shardloom_sim::estimate), lowers and simulates the best, and gives the fastest simulated one
//! that is no slower than any [`Baseline`] that it is given. [`explain`] finds out by experiments in the
//! simulator what limits a plan and what would change that; [`step_parts`] and [`circumstances`] what would
//! make a step take as long as was measured. How published systems choose plans is not
//! known here.
//!
//! ```
//! use shardloom_cluster::Cluster;
//! use shardloom_graph::ModelSpec;
//! use shardloom_search::{Request, auto};
//!
//! let model = "gpt:layers=4,hidden=256,heads=8,seq=128,vocab=1024";
//! let graph = ModelSpec::parse(model)?.graph()?;
//! let cluster = Cluster::parse("h100-80g:4")?;
//! let outcome = auto(&graph, &cluster, &Request::new(model, "h100-80g:4", 32), |_, _| Ok(vec![]))?;
//! assert_eq!(outcome.plan.global_batch, 32);
//! let search = &outcome.search;
//! assert_eq!(search.space, search.evaluated + search.bounded_away);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod algorithms;
mod auto;
mod baseline;
mod bucket_size;
mod circumstance;
mod closest;
mod edits;
mod error;
mod experiment;
mod explain;
mod impossible;
mod judge;
mod kinds;
mod nearby;
mod only;
mod ranking;
mod reductions;
mod request;
mod reshaped;
mod runner;
mod scan;
mod search;
mod single_changes;
mod space;
mod step_part;
mod subset;
mod trials;
mod without_communication;

pub use algorithms::with_fastest_algorithms;
pub use auto::{Finalist, Outcome, SearchCounts, auto, single_device_seconds};
pub use baseline::Baseline;
pub use circumstance::{Circumstance, circumstances};
pub use error::SearchError;
pub use explain::{Explanation, Fact, Rival, Topic, explain};
pub use judge::{Judgement, judge};
pub use only::Only;
pub use reductions::{Faster, with_fastest_reductions};
pub use request::{Request, usual_precision};
pub use runner::Runner;
pub use space::{Space, divisors};
pub use step_part::{Needed, StepPart, step_parts};
pub use trials::Trials;
