//! Plan, explain, simulate and train parallel plans in a few calls.
//!
//! A [`Model`] and a cluster are loaded from the same texts that the command line takes; a [`Plan`] says
//! how the one is trained on the other; [`simulate`] predicts a step of it; a [`Session`] really trains.
//!
//! ```
//! use shardloom::{LocalProfile, Model, explain, find_plan, load_cluster, simulate, usual_request};
//!
//! let model = Model::load("gpt-2-xl")?;
//! let cluster = load_cluster("a100-80g:8", &LocalProfile::of_user(), &mut |_, _| {})?;
//! let planned = find_plan(&model, &cluster, &usual_request(&model, &cluster, "a100-80g:8", 64))?;
//! let plan = &planned.outcome.plan;
//!
//! let prediction = simulate(&model, plan, &cluster, true)?;
//! assert_eq!(prediction.summary.step_seconds, planned.outcome.judgement.step_seconds);
//! for fact in explain(&model, &cluster, plan, &[])?.facts {
//!     println!("{}", fact.sentence);
//! }
//! # Ok::<(), shardloom::Error>(())
//! ```
//!
//! The modules [`plan`], [`cluster`], [`collectives`], [`program`], [`search`], [`methods`], [`sim`],
//! [`exchange`], [`data`], [`checkpoint`], [`profile`] and [`train`] hold the parts that these few calls are made of.

mod arithmetic;
mod buffers;
mod checkpoint_folder;
mod class_names;
mod classified;
mod confusion;
mod elsewhere;
mod error;
mod generator;
mod huggingface_folder;
mod local_profile;
mod lowering;
mod machines;
mod model;
mod optimizer;
mod planning;
mod prediction;
mod processes;
mod program_text;
mod run_memory;
mod saved;
mod session;
mod trained_tokenizer;
mod training_data;
mod unpredicted;

pub use buffers::{Buffers, RankBuffers};
pub use checkpoint_folder::CheckpointFolder;
pub use classified::{Classified, classify};
pub use confusion::Confusion;
pub use elsewhere::{export_plan, find_plan_for, import_plan, memory_of_plan, stack_of};
pub use error::{Error, Result};
pub use generator::{Drawing, Generator};
pub use huggingface_folder::{
    ExportedFolder, FolderForm, export_huggingface, folder_has_weights, tokenizer_of,
};
pub use local_profile::{LocalProfile, disturbed_percent};
pub use lowering::{
    lower, place_in_plan, read_plan, read_plan_and_model, uniform_plan, uniform_plan_in_chunks,
};
pub use machines::{load_cluster, names_only_this_machine};
pub use model::{Defaults, Model};
pub use optimizer::{optimizer_names, parse_optimizer};
pub use planning::{
    Planned, circumstances, explain, find_plan, measured_step_seconds, plan_by_measured_trials,
    plan_by_method, step_parts, usual_request,
};
pub use prediction::{Prediction, predict_here, predict_in_processes, simulate, simulate_rows};
pub use processes::{Launched, is_first_of_launched, launched};
pub use program_text::{RankText, program_text};
pub use run_memory::RunMemory;
pub use saved::{Exported, export_weights};
pub use session::{Resumed, Session, guarded};
pub use training_data::{Data, Sampling, TextTokenizer};
pub use unpredicted::Unpredicted;

pub use shardloom_document::{nearest, read_text};
pub use shardloom_interop::ModelType;
pub use shardloom_plan::Plan;

/// The vocabulary of plans.
pub use shardloom_plan as plan;

/// Collective algorithms.
pub use shardloom_collectives as collectives;

/// Communication between ranks: what an engine of one's own implements.
pub use shardloom_fabric as fabric;

/// Machines and what they can do.
pub use shardloom_cluster as cluster;

/// Plans as other projects' configuration.
pub use shardloom_exchange as exchange;

/// Programs, schedules and timelines.
pub use shardloom_program as program;
pub use shardloom_schedule as schedule;

/// Published systems as ways of choosing a plan.
pub use shardloom_methods as methods;

/// Searches for plans.
pub use shardloom_search as search;

/// The simulator.
pub use shardloom_sim as sim;

/// Checkpoints.
pub use shardloom_checkpoint as checkpoint;

/// Where samples come from.
pub use shardloom_data as data;

/// Measuring this machine.
pub use shardloom_profile as profile;

/// Training, and its learning rates.
pub use shardloom_train as train;
