//! What a device does at a time: an action, which is one pass, or two that overlap.

/// What kind of pass it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassKind {
    /// Forward.
    Forward,
    /// Backward, input and weight gradients together.
    Backward,
    /// Input gradients alone.
    BackwardInput,
    /// Weight gradients alone, after the input gradients of the same micro-batch.
    BackwardWeight,
}

impl PassKind {
    /// The letter that it is written with.
    pub fn letter(self) -> char {
        match self {
            PassKind::Forward => 'F',
            PassKind::Backward => 'B',
            PassKind::BackwardInput => 'I',
            PassKind::BackwardWeight => 'W',
        }
    }

    /// Whether it hands gradients to the stage before.
    pub fn hands_back(self) -> bool {
        matches!(self, PassKind::Backward | PassKind::BackwardInput)
    }

    /// Whether nothing of the micro-batch is left to do in the stage after it.
    pub fn ends(self) -> bool {
        matches!(self, PassKind::Backward | PassKind::BackwardWeight)
    }
}

/// A stage of a pipeline. Several may live on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The pipeline, from 0.
    pub pipeline: u16,
    /// The stage within it, from 0.
    pub stage: u16,
}

/// One pass of one stage on one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pass {
    /// Its kind.
    pub kind: PassKind,
    /// Of which stage.
    pub instance: Instance,
    /// The micro-batch, numbered from 0 over all pipelines. In a schedule without flush a number from
    /// the step's micro-batches on means one of a later step.
    pub microbatch: u32,
}

/// What a device does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// One pass.
    Alone(Pass),
    /// Two passes at once, the communication of each beside the computation of the other
    /// (DeepSeek-V3, arXiv 2412.19437, section 3.2.1).
    Overlapped(Pass, Pass),
}

impl Action {
    /// Its passes, in order.
    pub fn passes(self) -> impl Iterator<Item = Pass> {
        let (first, second) = match self {
            Action::Alone(pass) => (pass, None),
            Action::Overlapped(first, second) => (first, Some(second)),
        };
        std::iter::once(first).chain(second)
    }

    /// What is left of it when only passes that `keep` accepts are run.
    pub fn filtered(self, keep: impl Fn(&Pass) -> bool) -> Option<Action> {
        match self {
            Action::Overlapped(first, second) if keep(&first) && keep(&second) => Some(self),
            _ => self.passes().find(keep).map(Action::Alone),
        }
    }
}
