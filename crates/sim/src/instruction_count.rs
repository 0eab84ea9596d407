//! How many instructions a simulation follows, known before it begins.

use shardloom_graph::Graph;
use shardloom_plan::{Arrangement, Plan, ScheduleKind};
use shardloom_program::{Class, Program, lower};

use crate::{Options, SimError};

/// The most instructions that are simulated, over all ranks and steps. As a measure: 22 million of them (10,000
/// blocks in 8 stages, 32 micro-batches) take 43 s of one core, lowering included, and 0.8 GB.
pub const MOST_INSTRUCTIONS: u64 = 30_000_000;

/// Micro-batches that show what one takes where orders may have any number of them.
const FEW: usize = 4;

/// More instructions than an operator has, but for few.
const MOST_FOR_AN_OPERATOR: u64 = 8;

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

/// Refuses plans that have more instructions than are simulated, before all their micro-batches are lowered: each
/// goes through all operators of `graph`, and through as many instructions as in the same plan with few of them.
///
/// # Errors
/// If it has.
pub fn require_few_in(graph: &Graph, plan: &Plan, options: Options) -> Result<(), SimError> {
    let of_a_pipeline = plan.microbatches / plan.pipeline.len().max(1);
    let operators = (of_a_pipeline as u64).saturating_mul(graph.ops().len() as u64);
    let operators = operators.saturating_mul(u64::from(options.steps));
    at_most(MOST_INSTRUCTIONS, operators, options)?;
    if operators < MOST_INSTRUCTIONS / MOST_FOR_AN_OPERATOR {
        return Ok(());
    }
    let of_microbatch = of_microbatch(graph, plan, options.folded).unwrap_or(0);
    let step = of_microbatch.saturating_mul(plan.microbatches as u64);
    at_most(MOST_INSTRUCTIONS, step.saturating_mul(u64::from(options.steps)), options)
}

/// The instructions of the micro-batch that has the fewest, in the same plan with so few of them that lowering takes
/// little; none where there are few enough already, or the plan is not one for fewer.
fn of_microbatch(graph: &Graph, plan: &Plan, folded: bool) -> Option<u64> {
    // Enough to fill every pipeline, and as many as orders that go round the stages ask for.
    let filling = 4 * plan.stages().count();
    let is_chain = plan.pipeline.len() == 1
        && plan.schedule.flushes()
        && plan.schedule.arrangement() == Some(Arrangement::Chain);
    let (microbatches, schedule) = match plan.microbatches {
        many if many > 4 * filling => (filling, plan.schedule),
        // In whatever order they come, passes of one stage on each device have the same instructions.
        some if some > 4 * FEW && is_chain && plan.schedule.halves() => {
            (FEW, ScheduleKind::ZeroBubbleH1)
        }
        some if some > 4 * FEW && is_chain => (FEW, ScheduleKind::OneForwardOneBackward),
        _ => return None,
    };
    if !plan.global_batch.is_multiple_of(plan.microbatches) {
        return None;
    }
    let global_batch = plan.global_batch / plan.microbatches * microbatches;
    let fewer = Plan { microbatches, global_batch, schedule, ..plan.clone() };
    let program = lower(graph, &fewer, plan.least_devices()).ok()?;
    let mut instructions = vec![0_u64; microbatches];
    for class in &program.classes {
        let ranks = if folded { 1 } else { class.mesh.size() as u64 };
        for entry in class.entries() {
            let Some(microbatch) = entry.microbatch else { continue };
            let of_entry = class.body_of(entry).instructions.len() as u64 * ranks;
            instructions[microbatch as usize] += of_entry;
        }
    }
    instructions.into_iter().min()
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
