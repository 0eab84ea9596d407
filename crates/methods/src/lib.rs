//! Published systems, each as a way of choosing a plan.
//!
//! A [`Method`] takes a model, a cluster and a [`Request`](shardloom_search::Request) and chooses a plan in
//! the plan's vocabulary: stages from its paper's partitioner where it has one, its schedule, its rule for
//! weight versions. What the paper leaves open, it settles by simulating a bounded set of
//! [configurations](configuration) and taking the fastest that fits in memory. Nothing that comes after a
//! plan knows which method chose it.
//!
//! ```
//! use shardloom_cluster::Cluster;
//! use shardloom_graph::ModelSpec;
//! use shardloom_search::Request;
//!
//! let model = "gpt:layers=6,hidden=256,heads=8,seq=128,vocab=1024";
//! let graph = ModelSpec::parse(model)?.graph()?;
//! let cluster = Cluster::parse("h100-80g:4")?;
//! let method = shardloom_methods::named("zb-h1")?;
//! let choice = method.choose(&graph, &cluster, &Request::new(model, "h100-80g:4", 32))?;
//! assert_eq!(choice.plan.schedule.name(), "zb-h1");
//! assert!(choice.judgement.fits(0.95));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod configuration;
pub mod partition;

mod baselines;
mod choice;
mod cut;
mod depth;
mod error;
mod interconnect;
mod layer_profile;
mod method;
mod pass_times;
mod registry;
mod selection;
mod system;

pub use baselines::baselines;
pub use choice::{Choice, Measure};
pub use error::MethodError;
pub use method::{Family, Method, Rules};
pub use pass_times::pass_times;
pub use registry::{all, named};
pub use system::autosync::trials_in;
