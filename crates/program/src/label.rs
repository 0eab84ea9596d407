//! What instructions are called in timelines, and which resource they occupy.

use crate::timeline::{Activity, Lane};
use crate::{Action, Body, BodyKind, Class, Collective, Content, Instruction, View};

impl BodyKind {
    /// What its computation is in a timeline.
    pub fn activity(self) -> Activity {
        match self {
            BodyKind::Forward | BodyKind::Evaluation => Activity::Forward,
            BodyKind::Backward => Activity::Backward,
            BodyKind::BackwardInput => Activity::BackwardInput,
            BodyKind::BackwardWeight => Activity::BackwardWeight,
            BodyKind::Synchronisation => Activity::Collective,
            BodyKind::Epilogue
            | BodyKind::PartOfUpdate
            | BodyKind::Averaging
            | BodyKind::Test
            | BodyKind::Release
            | BodyKind::Rollback
            | BodyKind::Redo => Activity::Update,
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
            BodyKind::Epilogue | BodyKind::PartOfUpdate => "update",
            BodyKind::Averaging => "averaging",
            BodyKind::Test => "test",
            BodyKind::Release => "release",
            BodyKind::Rollback => "roll back",
            BodyKind::Redo => "redo",
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
            Action::Collective { .. } | Action::Receive { .. } | Action::Fetch { .. } => {
                Lane::CommunicationIn
            }
            Action::Send { .. } => Lane::CommunicationOut,
            Action::Load { .. }
            | Action::LoadRows { .. }
            | Action::FindRows
            | Action::TakeRows
            | Action::Kernel { .. }
            | Action::Slice { .. }
            | Action::Add
            | Action::Difference
            | Action::Copy
            | Action::Publish { .. }
            | Action::Report
            | Action::Extrapolate { .. }
            | Action::Norm
            | Action::Statistics { .. }
            | Action::Optimizer
            | Action::Cast
            | Action::Compress { .. }
            | Action::Decompress { .. }
            | Action::SumRows
            | Action::Average { .. }
            | Action::Due { .. }
            | Action::Test
            | Action::Free => Lane::Compute,
        }
    }

    /// What it is, in a body of this kind.
    pub fn activity(&self, kind: BodyKind) -> Activity {
        match &self.action {
            Action::Send { .. } => Activity::Send,
            Action::Receive { .. } | Action::Fetch { .. } => Activity::Receive,
            Action::Collective { .. } => Activity::Collective,
            Action::Optimizer | Action::Cast => Activity::Update,
            _ => kind.activity(),
        }
    }

    /// Its name in a timeline: computation is called by its pass (`F3`), communication by what it does
    /// to what (`all-reduce block.2`). It stands in `body` of `class`.
    pub fn label(&self, class: &Class, body: &Body, microbatch: Option<u32>) -> String {
        let subject = |view: View| {
            let tensor = class.tensor(view.tensor);
            match (tensor.content, tensor.bucket) {
                // Rows and their values are two things that are gathered.
                (Content::Gradient, Some(_)) if !tensor.local_shape().is_empty() => &tensor.name,
                (Content::Weight | Content::Gradient | Content::Compressed, Some(bucket)) => {
                    &class.bucket(bucket).name
                }
                _ => &tensor.name,
            }
        };
        match &self.action {
            Action::Collective { kind, .. } => {
                let read = self.reads[0];
                let content = class.tensor(read.tensor).content;
                match (content, kind) {
                    (Content::Norm | Content::Statistics, _) => subject(read).clone(),
                    (_, Collective::AllReduce(_)) => format!("all-reduce {}", subject(read)),
                    (_, Collective::ReduceScatter { .. }) => {
                        format!("reduce-scatter {}", subject(read))
                    }
                    (_, Collective::AllGather { .. }) => format!("all-gather {}", subject(read)),
                    (_, Collective::AllToAll { .. }) if self.moves_rows(class) => {
                        format!("all-to-all-v {}", subject(read))
                    }
                    (_, Collective::AllToAll { .. }) => format!("all-to-all {}", subject(read)),
                }
            }
            Action::Send { .. } => format!("send {}", subject(self.reads[0])),
            Action::Receive { .. } => format!("receive {}", subject(self.writes[0].to)),
            Action::Fetch { .. } => "fetch published weights".into(),
            _ => body.label(microbatch),
        }
    }
}
