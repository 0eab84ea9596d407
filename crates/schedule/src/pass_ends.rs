//! When passes have ended, by pass.

use super::{Pass, PassKind, StageMap};

/// The end of each pass that has run, in a table: orders are found by running thousands of passes.
pub(super) struct PassEnds {
    /// By pipeline the number of its first stage.
    first: Vec<usize>,
    microbatches: usize,
    /// Not a number where a pass has not run.
    ends: Vec<f64>,
}

const KINDS: usize = 4;

impl PassEnds {
    /// No pass of so many steps has run yet.
    pub fn new(map: &StageMap, steps: u32) -> PassEnds {
        let mut first = vec![];
        let mut stages = 0;
        for chain in map.chains() {
            first.push(stages);
            stages += chain.stages();
        }
        let microbatches = map.microbatches() as usize * steps as usize;
        let ends = vec![f64::NAN; stages * microbatches * KINDS];
        PassEnds { first, microbatches, ends }
    }

    fn place(&self, pass: Pass) -> usize {
        let kind = match pass.kind {
            PassKind::Forward => 0,
            PassKind::Backward => 1,
            PassKind::BackwardInput => 2,
            PassKind::BackwardWeight => 3,
        };
        let stage =
            self.first[usize::from(pass.instance.pipeline)] + usize::from(pass.instance.stage);
        (stage * self.microbatches + pass.microbatch as usize) * KINDS + kind
    }

    /// When `pass` ended; none if it has not.
    pub fn get(&self, pass: Pass) -> Option<f64> {
        self.ends.get(self.place(pass)).copied().filter(|end| !end.is_nan())
    }

    /// Notes when `pass` ended.
    pub fn insert(&mut self, pass: Pass, end: f64) {
        let place = self.place(pass);
        self.ends[place] = end;
    }
}
