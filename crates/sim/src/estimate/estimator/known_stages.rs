//! Costs of stages that were added up before: candidates that differ in their schedule or their cuts have many alike.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::super::Candidate;
use super::super::stage::StageCost;

/// How many are remembered at most.
const MOST: usize = 1 << 17;

/// What the cost of a stage depends on besides its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StageKey {
    /// The table of blocks, and where passes that overlap are whole, that of these.
    tables: (usize, Option<usize>),
    dp: u32,
    zero: u8,
    sharing: u32,
}

impl StageKey {
    pub fn of(candidate: &Candidate, blocks: usize, whole: Option<usize>) -> StageKey {
        let Candidate { dp, zero, sharing, .. } = *candidate;
        StageKey { tables: (blocks, whole), dp, zero, sharing }
    }
}

/// The costs of stages by their first block and the one after the last.
pub(super) type StageCosts = BTreeMap<(usize, usize), Rc<StageCost>>;

/// The costs of stages that were added up before.
#[derive(Debug, Default)]
pub(super) struct KnownStages {
    by_key: HashMap<StageKey, StageCosts>,
    count: usize,
}

impl KnownStages {
    /// Takes those of `key` out.
    pub fn take(&mut self, key: StageKey) -> StageCosts {
        let taken = self.by_key.remove(&key).unwrap_or_default();
        self.count -= taken.len();
        taken
    }

    /// Puts them back, with what came to them.
    pub fn keep(&mut self, key: StageKey, costs: StageCosts) {
        if self.count + costs.len() > MOST {
            *self = KnownStages::default();
        }
        self.count += costs.len();
        self.by_key.insert(key, costs);
    }
}
