//! What a program costs on a cluster, and when everything in it happens.
//!
//! [`CostModel`] gives the seconds of single instructions, collectives and messages. [`run`] is the
//! discrete-event engine: it follows the control of a [`Program`](shardloom_program::Program) and asks
//! a [`Driver`] for every duration. [`Modelled`] answers from the cost model, [`Recorded`] from an
//! earlier run; an executor that runs real kernels under virtual time is a third. [`simulate`] does all
//! of it in one call.
//!
//! ```
//! use shardloom_cluster::Cluster;
//! use shardloom_graph::families::GptConfig;
//! use shardloom_plan::Plan;
//! use shardloom_sim::{Options, simulate};
//!
//! let gpt = r#"{"layers": 4, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128}"#;
//! let graph = serde_json::from_str::<GptConfig>(gpt)?.graph("gpt")?;
//! let plan = Plan::from_toml(
//!     r#"
//!     format = 1
//!     model = "gpt"
//!     cluster = "h100-80g:2"
//!     global_batch = 8
//!     microbatches = 4
//!     schedule = "1f1b"
//!     recompute = "none"
//!     layout = "batch:dp, heads:tp, ffn:tp, vocab:tp"
//!     sync = { algorithm = "ring", zero = 0, bucket_bytes = 25000000 }
//!     precision = { compute = "bf16", gradients = "fp32", master = true }
//!     optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//!     [[pipeline]]
//!     stage = [
//!         { blocks = [0, 3], mesh = {}, devices = "0" },
//!         { blocks = [3, 6], mesh = {}, devices = "1" },
//!     ]
//!     "#,
//!     "plan.toml",
//! )?;
//! let cluster = Cluster::parse(&plan.cluster)?;
//! let program = shardloom_program::lower(&graph, &plan, cluster.device_count() as usize)?;
//! let found = simulate(&graph, &cluster, &program, Options::default())?;
//! // The bubble of two stages and four micro-batches alone is a fifth.
//! assert!(found.summary().bubble_fraction > 0.2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod estimate;

mod actor;
mod at_once;
mod choices;
mod contention;
mod cost;
mod driver;
mod engine;
mod error;
mod held;
mod host;
mod instruction_count;
mod late_gradients;
mod lookups;
mod memory_changes;
mod modelled;
mod negotiation;
mod node_patterns;
mod priority;
mod rate;
mod recording;
mod rendezvous;
mod row_counts;
mod run;
mod runnable;
mod script;
mod shared_way;
mod shares;
mod simulate;
mod slowing;
mod step_kind;
mod summary;
mod track_writer;
mod transfers;

pub use at_once::on_all_cores;
pub use cost::{CostModel, matmul_precision};
pub use driver::{Actor, Call, Driver};
pub use error::SimError;
pub use held::ExtraBytes;
pub use instruction_count::{MOST_INSTRUCTIONS, instruction_count, require_few_in};
pub use modelled::Modelled;
pub use rate::{collective_rate_name, rate_name};
pub use recording::{Recorded, Recorder, Recording};
pub use row_counts::RowCounts;
pub use run::{Options, run, run_for_figures};
pub use shares::StepShares;
pub use simulate::{Simulation, simulate, simulate_figures, simulate_rows};
pub use step_kind::step_kind;
pub use summary::{Fit, MemoryFit, RankSummary, Summary};
