//! What ranks fetched in a row of steps, for another row to repeat it.

use std::ops::Range;

use shardloom_program::{Action, Program, Rank};

use super::Answers;
use super::command::other_row;
use crate::Result;

/// What a rank does in a row that repeats another. Each of its fetches finds what it found then, since who publishes
/// waits before each publication until the one before has been fetched as often as then.
pub(super) struct RepeatedFetches {
    /// In which step the other had published what is fetched, fetch by fetch.
    pub fetched: Vec<u32>,
    /// How often what the rank publishes has been fetched in the row before it publishes in a step.
    pub before: Vec<u64>,
}

impl RepeatedFetches {
    /// Of `rank`, in a row of so many steps from `first_step` on in which all ranks fetch as `answers` says.
    ///
    /// # Errors
    /// If no row of such steps can have come to that.
    pub fn of(
        program: &Program,
        rank: Rank,
        (first_step, steps): (u64, u32),
        answers: &Answers,
    ) -> Result<RepeatedFetches> {
        let is_whole = |fetched: &Vec<u32>| {
            fetched.len() == steps as usize && fetched.iter().all(|&it| it < steps)
        };
        if answers.len() != program.ranks() || !answers.iter().all(is_whole) {
            return Err(other_row());
        }
        let partners = partners(program, first_step..first_step + u64::from(steps));
        let partners = partners.ok_or_else(other_row)?;
        let partner = |rank: usize, step: u32| partners[rank][step as usize];
        // By rank and step: how often what is published there is fetched.
        let mut times = vec![vec![0_u64; steps as usize]; answers.len()];
        for (rank, fetched) in answers.iter().enumerate() {
            for (step, &published) in (0..steps).zip(fetched) {
                times[partner(rank, step)][published as usize] += 1;
            }
        }
        let before = |times: &Vec<u64>| -> Vec<u64> {
            let sums =
                times.iter().scan(0, |sum, &times| Some(std::mem::replace(sum, *sum + times)));
            sums.collect()
        };
        let before: Vec<Vec<u64>> = times.iter().map(before).collect();
        // Each rank goes as far as it comes.
        let mut fetches = vec![0_u64; answers.len()];
        let mut at = vec![(0_u32, false); answers.len()];
        loop {
            let mut moved = false;
            for rank in 0..answers.len() {
                while at[rank].0 < steps {
                    let (step, has_published) = at[rank];
                    if !has_published {
                        if fetches[rank] < before[rank][step as usize] {
                            break;
                        }
                        at[rank].1 = true;
                    } else {
                        let from = partner(rank, step);
                        let (there, is_published) = at[from];
                        if answers[rank][step as usize] + u32::from(!is_published) > there {
                            break;
                        }
                        fetches[from] += 1;
                        at[rank] = (step + 1, false);
                    }
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        if at.iter().any(|&(step, _)| step < steps) {
            return Err(other_row());
        }
        let own = rank.0 as usize;
        Ok(RepeatedFetches { fetched: answers[own].clone(), before: before[own].clone() })
    }
}

/// By rank and step: whom it fetches from; none if some rank fetches nothing.
fn partners(program: &Program, steps: Range<u64>) -> Option<Vec<Vec<usize>>> {
    let mut all = vec![];
    for (id, class) in program.classes() {
        let group = class.instructions().find_map(|(_, _, it)| match &it.action {
            Action::Fetch { group } => Some(group),
            _ => None,
        })?;
        for position in 0..class.mesh.size() {
            let partner = |step| program.partner(id, position, group, step).0 as usize;
            all.push(steps.clone().map(partner).collect());
        }
    }
    Some(all)
}
