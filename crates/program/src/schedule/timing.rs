//! How long a schedule takes when passes take given times and messages take none.

use std::collections::BTreeMap;

use super::{Cell, Pass};
use crate::ProgramError;

/// Durations of one micro-batch's passes on every stage, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Durations {
    /// A forward pass.
    pub forward: f64,
    /// A backward pass.
    pub backward: f64,
}

/// When everything happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Start of each cell, per stage in order of execution.
    pub starts: Vec<Vec<(Cell, f64)>>,
    /// First start to last end.
    pub makespan: f64,
    /// Share of `stages x makespan` in which stages stand idle.
    pub bubble_fraction: f64,
}

/// Times `orders`.
///
/// # Errors
/// If the orders deadlock.
pub fn time(orders: &[Vec<Cell>], durations: Durations) -> Result<Timing, ProgramError> {
    let stages = orders.len();
    let mut ends: BTreeMap<(usize, Cell), f64> = BTreeMap::new();
    let mut clocks = vec![0.0f64; stages];
    let mut starts: Vec<Vec<(Cell, f64)>> = vec![vec![]; stages];
    let mut moved = true;
    while moved {
        moved = false;
        for stage in 0..stages {
            while let Some(&cell) = orders[stage].get(starts[stage].len()) {
                let (source, duration) = match cell.pass {
                    Pass::Forward => (stage.checked_sub(1), durations.forward),
                    Pass::Backward => {
                        ((stage + 1 < stages).then_some(stage + 1), durations.backward)
                    }
                };
                let arrival = match source {
                    None => 0.0,
                    Some(source) => match ends.get(&(source, cell)) {
                        Some(&end) => end,
                        None => break,
                    },
                };
                let own = match cell.pass {
                    Pass::Forward => 0.0,
                    Pass::Backward => {
                        let forward = Cell { pass: Pass::Forward, ..cell };
                        match ends.get(&(stage, forward)) {
                            Some(&end) => end,
                            None => break,
                        }
                    }
                };
                let start = clocks[stage].max(arrival).max(own);
                clocks[stage] = start + duration;
                ends.insert((stage, cell), clocks[stage]);
                starts[stage].push((cell, start));
                moved = true;
            }
        }
    }
    if let Some(stage) = (0..stages).find(|&stage| starts[stage].len() < orders[stage].len()) {
        let cell = orders[stage][starts[stage].len()];
        return Err(ProgramError::Schedule(format!("deadlock: stage {stage} waits at {cell}")));
    }
    let makespan = clocks.iter().copied().fold(0.0, f64::max);
    let busy: f64 = orders
        .iter()
        .flatten()
        .map(|cell| match cell.pass {
            Pass::Forward => durations.forward,
            Pass::Backward => durations.backward,
        })
        .sum();
    let bubble_fraction =
        if makespan > 0.0 { 1.0 - busy / (stages as f64 * makespan) } else { 0.0 };
    Ok(Timing { starts, makespan, bubble_fraction })
}
