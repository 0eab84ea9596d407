//! Which passes may be computed in chunks, one after another, as a part of their result needs a part of what they read.

use shardloom_graph::OpKind;
use shardloom_graph::work::Pass;

/// How a pass is computed in chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunking {
    /// What a chunk has several of.
    pub of: Unit,
    /// Tensors read of which each chunk needs all.
    pub whole: &'static [usize],
    /// Whether each chunk adds to all of what is written, and does not write a part of it.
    pub sums: bool,
}

/// What tensors are divided into, of which a chunk has some that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Rows: all axes but the last of the first tensor that is not needed whole. Of every other tensor that is not, each
    /// row has as many elements.
    Rows,
    /// Samples: the first axis of each tensor.
    Samples,
}

/// How a pass that reads so many tensors of these shapes may be computed in chunks, if it may.
pub(crate) fn chunking<'a>(
    kind: &OpKind,
    pass: Pass,
    reads: usize,
    shape: impl Fn(usize) -> &'a [usize],
) -> Option<Chunking> {
    let rows = Chunking { of: Unit::Rows, whole: &[], sums: false };
    let samples = Chunking { of: Unit::Samples, ..rows };
    let sums = Chunking { sums: true, ..rows };
    let of_each = |whole| Chunking { whole, ..rows };
    match (kind, pass) {
        // Without counts of what experts have got.
        (OpKind::Pointwise(_), Pass::Forward) if reads == 1 => Some(rows),
        (OpKind::Pointwise(_), Pass::Input) if reads == 2 => Some(rows),
        (OpKind::Add, Pass::Forward) if shape(0) == shape(1) => Some(rows),
        (
            OpKind::Glu(_) | OpKind::Scale { .. } | OpKind::SoftCap { .. } | OpKind::Dropout { .. },
            Pass::Forward | Pass::Input,
        ) => Some(rows),
        (OpKind::BiasDropoutAdd { .. }, Pass::Forward) => Some(of_each(&[1])),
        (OpKind::BiasDropoutAdd { .. }, Pass::Input) => Some(rows),
        (OpKind::LayerNorm { .. }, Pass::Forward) => Some(of_each(&[1, 2])),
        (OpKind::RmsNorm { .. }, Pass::Forward) => Some(of_each(&[1])),
        (OpKind::LayerNorm { .. } | OpKind::RmsNorm { .. }, Pass::Input) => Some(of_each(&[1])),
        (
            OpKind::BiasDropoutAdd { .. } | OpKind::LayerNorm { .. } | OpKind::RmsNorm { .. },
            Pass::Weight,
        ) => Some(sums),
        (OpKind::LogitMax { .. } | OpKind::LogitSum { .. }, Pass::Forward) => Some(rows),
        (OpKind::CrossEntropy { .. }, Pass::Input) => Some(rows),
        (
            OpKind::Rotary { .. }
            | OpKind::AttentionProbs { .. }
            | OpKind::AttentionContext { .. }
            // Random numbers of what it drops are of where a sample lies.
            | OpKind::FusedAttention { probability: 0.0, .. },
            Pass::Forward | Pass::Input,
        ) => Some(samples),
        _ => None,
    }
}
