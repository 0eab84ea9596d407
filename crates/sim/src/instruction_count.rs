//! How many instructions a simulation follows, known before it begins.

use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_program::{Class, Program};

use crate::{Options, SimError};

/// The most instructions that are simulated, over all ranks and steps. As a measure: 22 million of them (10,000
/// blocks in 8 stages, 32 micro-batches) take 43 s of one core, lowering included, and 0.8 GB.
pub const MOST_INSTRUCTIONS: u64 = 30_000_000;

/// The instructions of all steps, of one rank of each class where these are folded.
pub fn instruction_count(program: &Program, options: Options) -> u64 {
    let of_class = |class: &Class| {
        let entries = class.entries();
        let step: u64 = entries.map(|it| class.body_of(it).instructions.len() as u64).sum();
        let ranks = if options.folded { 1 } else { class.mesh.size() as u64 };
        step.saturating_mul(ranks)
    };
    let step = program.classes.iter().map(of_class).fold(0, u64::saturating_add);
    step.saturating_mul(u64::from(options.steps))
}

/// Refuses plans that have more instructions than are simulated however they are lowered, before they are: each
/// micro-batch goes through all operators of `graph`.
///
/// # Errors
/// If it has.
pub fn require_few_in(graph: &Graph, plan: &Plan, options: Options) -> Result<(), SimError> {
    let of_a_pipeline = plan.microbatches / plan.pipeline.len().max(1);
    let step = (of_a_pipeline as u64).saturating_mul(graph.ops().len() as u64);
    at_most(MOST_INSTRUCTIONS, step.saturating_mul(u64::from(options.steps)), options)
}

/// Refuses a simulation of more instructions than `most`.
pub(crate) fn require_few(program: &Program, options: Options, most: u64) -> Result<(), SimError> {
    at_most(most, instruction_count(program, options), options)
}

fn at_most(most: u64, instructions: u64, options: Options) -> Result<(), SimError> {
    match instructions <= most {
        true => Ok(()),
        false => {
            let (steps, folded) = (options.steps, options.folded);
            Err(SimError::TooMany { instructions, most, steps, folded })
        }
    }
}
