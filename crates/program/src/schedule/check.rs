//! The checker: proves of given orders what every schedule promises.

use std::collections::BTreeSet;

use super::{Cell, Pass};
use crate::ProgramError;

/// Checks that each stage runs each pass of each micro-batch exactly once, that dependencies can be met
/// with at most `buffers` messages waiting between neighbours (no deadlock), and returns the most
/// micro-batches in flight on each stage.
///
/// A send blocks while its `buffers` are full. Executing greedily is conclusive: running a stage that
/// can run never takes away another's ability to run, so if greedy execution stops, every execution
/// does.
///
/// # Errors
/// The first promise that is broken, with stage and cell.
pub fn check(
    orders: &[Vec<Cell>],
    microbatches: usize,
    buffers: usize,
) -> Result<Vec<usize>, ProgramError> {
    let stages = orders.len();
    let expected: BTreeSet<Cell> = [Pass::Forward, Pass::Backward]
        .into_iter()
        .flat_map(|pass| super::cells(pass, 0..microbatches))
        .collect();
    for (stage, order) in orders.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for cell in order {
            if !expected.contains(cell) || !seen.insert(*cell) {
                let message = format!("stage {stage} runs {cell} twice or beyond the step");
                return Err(ProgramError::Schedule(message));
            }
        }
        if let Some(missing) = expected.difference(&seen).next() {
            let message = format!("stage {stage} never runs {missing}");
            return Err(ProgramError::Schedule(message));
        }
    }

    let mut next = vec![0; stages];
    let mut done: Vec<BTreeSet<Cell>> = vec![BTreeSet::new(); stages];
    // Messages sent and not yet received, downwards (after each stage) and upwards (before it).
    let mut down: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); stages];
    let mut up: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); stages];
    let mut in_flight = vec![0usize; stages];
    let mut peak = vec![0usize; stages];
    loop {
        let mut moved = false;
        for stage in 0..stages {
            while let Some(&cell) = orders[stage].get(next[stage]) {
                let last = stage + 1 == stages;
                let microbatch = cell.microbatch;
                let ready = match cell.pass {
                    Pass::Forward => {
                        (stage == 0 || down[stage - 1].contains(&microbatch))
                            && (last || down[stage].len() < buffers)
                    }
                    Pass::Backward => {
                        let forward = Cell { pass: Pass::Forward, microbatch };
                        done[stage].contains(&forward)
                            && (last || up[stage + 1].contains(&microbatch))
                            && (stage == 0 || up[stage].len() < buffers)
                    }
                };
                if !ready {
                    break;
                }
                match cell.pass {
                    Pass::Forward => {
                        if stage > 0 {
                            down[stage - 1].remove(&microbatch);
                        }
                        if !last {
                            down[stage].insert(microbatch);
                        }
                        in_flight[stage] += 1;
                        peak[stage] = peak[stage].max(in_flight[stage]);
                    }
                    Pass::Backward => {
                        if !last {
                            up[stage + 1].remove(&microbatch);
                        }
                        if stage > 0 {
                            up[stage].insert(microbatch);
                        }
                        in_flight[stage] -= 1;
                    }
                }
                done[stage].insert(cell);
                next[stage] += 1;
                moved = true;
            }
        }
        if (0..stages).all(|stage| next[stage] == orders[stage].len()) {
            return Ok(peak);
        }
        if !moved {
            let stuck = |stage: usize| {
                let cell = orders[stage].get(next[stage])?;
                Some(format!("stage {stage} at {cell}"))
            };
            let stuck: Vec<String> = (0..stages).filter_map(stuck).collect();
            let message = format!("deadlock with {buffers} buffers: {}", stuck.join(", "));
            return Err(ProgramError::Schedule(message));
        }
    }
}
