//! A contender on its way to numbers.

use shardloom::plan::Plan;

use super::row::Row;
use crate::failure::Failure;

/// A contender's row and its plan, unless it has none or was refused.
pub struct Entry {
    pub row: Row,
    pub plan: Option<Plan>,
}

/// Why contenders have no numbers.
#[derive(Default)]
pub struct Refusals(Vec<Failure>);

impl Refusals {
    /// Writes the reason into a contender's row.
    ///
    /// # Errors
    /// `failure` itself, if it is of more than this contender.
    pub fn add(&mut self, row: &mut Row, failure: Failure) -> Result<(), Failure> {
        let Some(reason) = failure.refusal() else { return Err(failure) };
        row.reason = Some(reason.to_owned());
        self.0.push(failure);
        Ok(())
    }

    /// What is wrong with all of `count` contenders is an error, and not a result.
    ///
    /// # Errors
    /// The first, if there are as many.
    pub fn unless_all(self, count: usize) -> Result<(), Failure> {
        let all = self.0.len() == count;
        self.0.into_iter().next().filter(|_| all).map_or(Ok(()), Err)
    }
}
