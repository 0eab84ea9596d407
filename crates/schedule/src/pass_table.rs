//! What is known of each pass, by pass.

use super::{Chain, Pass, PassKind, StageMap};

/// A value of each pass of some steps, in a table: orders are found by running millions of passes. A
/// micro-batch goes through one pipeline, so that its number and a stage's say which.
pub(super) struct PassTable<T> {
    microbatches: usize,
    values: Vec<T>,
}

const KINDS: usize = 4;

impl<T: Copy> PassTable<T> {
    /// The same value for every pass of so many steps.
    pub fn new(map: &StageMap, steps: u32, value: T) -> PassTable<T> {
        let stages = map.chains().iter().map(Chain::stages).max().unwrap_or(0);
        let microbatches = map.microbatches() as usize * steps as usize;
        PassTable { microbatches, values: vec![value; stages * microbatches * KINDS] }
    }

    fn place(&self, pass: Pass) -> usize {
        let kind = match pass.kind {
            PassKind::Forward => 0,
            PassKind::Backward => 1,
            PassKind::BackwardInput => 2,
            PassKind::BackwardWeight => 3,
        };
        let stage = usize::from(pass.instance.stage);
        (stage * self.microbatches + pass.microbatch as usize) * KINDS + kind
    }

    /// The value of `pass`; none where it is of no step of the table.
    pub fn get(&self, pass: Pass) -> Option<T> {
        let exists = (pass.microbatch as usize) < self.microbatches;
        if exists { self.values.get(self.place(pass)).copied() } else { None }
    }

    /// Gives `pass`, which is of one of the steps, a value.
    pub fn set(&mut self, pass: Pass, value: T) {
        let place = self.place(pass);
        self.values[place] = value;
    }
}

/// When passes have ended.
pub(super) struct PassEnds(
    /// Not a number where a pass has not run.
    PassTable<f64>,
);

impl PassEnds {
    /// No pass of so many steps has run yet.
    pub fn new(map: &StageMap, steps: u32) -> PassEnds {
        PassEnds(PassTable::new(map, steps, f64::NAN))
    }

    /// When `pass` ended; none if it has not.
    pub fn get(&self, pass: Pass) -> Option<f64> {
        self.0.get(pass).filter(|end| !end.is_nan())
    }

    /// Notes when `pass` ended.
    pub fn insert(&mut self, pass: Pass, end: f64) {
        self.0.set(pass, end);
    }
}

/// Passes that have run.
pub(super) struct PassSet(PassTable<bool>);

impl PassSet {
    /// None of so many steps.
    pub fn new(map: &StageMap, steps: u32) -> PassSet {
        PassSet(PassTable::new(map, steps, false))
    }

    /// Whether `pass` has run.
    pub fn contains(&self, pass: Pass) -> bool {
        self.0.get(pass).unwrap_or(false)
    }

    /// Notes that `pass`, which is of one of the steps, has run. Whether it had not.
    pub fn insert(&mut self, pass: Pass) -> bool {
        let is_new = !self.contains(pass);
        self.0.set(pass, true);
        is_new
    }
}
