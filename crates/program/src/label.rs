//! What instructions are called in timelines, and which resource they occupy.

use crate::timeline::{Activity, Lane};
use crate::{Action, Body, BodyKind, Change, Class, Instruction, Operand};

impl BodyKind {
    /// What its computation is in a timeline.
    pub fn activity(self) -> Activity {
        match self {
            BodyKind::Forward | BodyKind::Evaluation => Activity::Forward,
            BodyKind::Backward => Activity::Backward,
            BodyKind::BackwardInput => Activity::BackwardInput,
            BodyKind::BackwardWeight => Activity::BackwardWeight,
            BodyKind::Synchronisation => Activity::Collective,
            BodyKind::Epilogue | BodyKind::Validation | BodyKind::Amendment => Activity::Update,
        }
    }
}

impl Body {
    /// What its computation is called in a timeline: `F3`, `B0@1<`, `update`.
    pub fn label(&self, microbatch: Option<u32>) -> String {
        let letter = match self.kind {
            BodyKind::Forward => "F",
            BodyKind::Backward => "B",
            BodyKind::BackwardInput => "I",
            BodyKind::BackwardWeight => "W",
            BodyKind::Evaluation => "V",
            BodyKind::Synchronisation => "synchronise",
            BodyKind::Epilogue => "update",
            BodyKind::Validation => "validate",
            BodyKind::Amendment => "amend",
        };
        let mut label = letter.to_owned();
        if let Some(microbatch) = microbatch {
            label += &microbatch.to_string();
        }
        if let Some(chunk) = self.part.chunk {
            label += &format!("@{chunk}");
        }
        if self.part.reverse {
            label.push('<');
        }
        label
    }
}

impl Instruction {
    /// Whether other ranks take part.
    pub fn involves_others(&self) -> bool {
        self.lane() != Lane::Compute
    }

    /// The resource it occupies.
    pub fn lane(&self) -> Lane {
        match &self.action {
            Action::Redistribute { change: Change::Slice { .. }, .. } => Lane::Compute,
            Action::Redistribute { .. }
            | Action::Receive { .. }
            | Action::Gather { .. }
            | Action::Reduce { .. }
            | Action::Norm { .. }
            | Action::Statistics { .. } => Lane::CommunicationIn,
            Action::Send { .. } => Lane::CommunicationOut,
            Action::Load { .. }
            | Action::Compute { .. }
            | Action::Add
            | Action::Copy
            | Action::Loss
            | Action::Release { .. }
            | Action::Backup { .. }
            | Action::Validate
            | Action::Update { .. } => Lane::Compute,
        }
    }

    /// What it is, in a body of this kind.
    pub fn activity(&self, kind: BodyKind) -> Activity {
        match &self.action {
            Action::Send { .. } => Activity::Send,
            Action::Receive { .. } => Activity::Receive,
            _ if self.lane() == Lane::CommunicationIn => Activity::Collective,
            Action::Update { .. } => Activity::Update,
            _ => kind.activity(),
        }
    }

    /// Its name in a timeline: computation is called by its pass (`F3`), communication by what it does
    /// to what (`all-reduce block.2`). It stands in `body` of `class`.
    pub fn label(&self, class: &Class, body: &Body, microbatch: Option<u32>) -> String {
        let bucket = |bucket| &class.bucket(bucket).name;
        let slot = |operand: Option<&Operand>| match operand {
            Some(Operand::Slot(slot)) => class.slot(*slot).name.clone(),
            Some(Operand::Norm) => "gradient norm".into(),
            _ => String::new(),
        };
        match &self.action {
            Action::Redistribute { change, .. } => {
                let verb = match change {
                    Change::Slice { .. } => "slice",
                    Change::AllReduce(_) => "all-reduce",
                    Change::ReduceScatter { .. } => "reduce-scatter",
                    Change::AllGather { .. } => "all-gather",
                    Change::AllToAll { .. } => "all-to-all",
                };
                format!("{verb} {}", slot(self.reads.first()))
            }
            Action::Send { .. } => format!("send {}", slot(self.reads.first())),
            Action::Receive { .. } => {
                format!("receive {}", slot(self.writes.first().map(|write| &write.to)))
            }
            Action::Gather { bucket: id } => format!("all-gather {}", bucket(*id)),
            Action::Reduce { bucket: id, scatter: true, .. } => {
                format!("reduce-scatter {}", bucket(*id))
            }
            Action::Reduce { bucket: id, .. } => format!("all-reduce {}", bucket(*id)),
            Action::Norm { .. } => "gradient norm".into(),
            Action::Statistics { bucket: id, .. } => format!("statistics {}", bucket(*id)),
            _ => body.label(microbatch),
        }
    }
}
