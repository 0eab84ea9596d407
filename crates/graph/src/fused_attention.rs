//! Attention as one operator in place of two.

use std::borrow::Cow;

use crate::{Block, Graph, Op, OpId, OpKind, Signature, Value, ValueId};

/// How a model's attention is computed. Its results are the same.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum AttentionKind {
    /// By two operators, of which the first gives the probabilities of all pairs of positions: they are kept for
    /// the backward pass, or computed again by it.
    #[default]
    Unfused,
    /// By one operator, whose backward pass computes the probabilities again, part by part, so that memory grows
    /// with the length of a sequence and not with its square (Dao et al. 2022, arXiv 2205.14135).
    Fused,
}

impl AttentionKind {
    /// Both.
    pub const ALL: [AttentionKind; 2] = [AttentionKind::Unfused, AttentionKind::Fused];

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            AttentionKind::Unfused => "unfused",
            AttentionKind::Fused => "fused",
        }
    }

    /// A model with attention computed so. Of a graph where it is fused already, fused is what it remains.
    pub fn of(self, graph: &Graph) -> Cow<'_, Graph> {
        match (self, graph.attention()) {
            (AttentionKind::Fused, Some(AttentionKind::Unfused)) => {
                Cow::Owned(graph.with_fused_attention())
            }
            _ => Cow::Borrowed(graph),
        }
    }
}

impl Graph {
    /// How attention is computed; none in a model that has none.
    pub fn attention(&self) -> Option<AttentionKind> {
        self.ops().find_map(|(_, op)| match op.kind {
            OpKind::AttentionProbs { .. } => Some(AttentionKind::Unfused),
            OpKind::FusedAttention { .. } => Some(AttentionKind::Fused),
            _ => None,
        })
    }

    /// The same model with fused attention. Operators and values that are left keep their names, and dimensions
    /// their ids.
    ///
    /// ```
    /// use shardloom_graph::{AttentionKind, ModelSpec};
    /// let graph = ModelSpec::parse("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16")?.graph()?;
    /// let fused = graph.with_fused_attention();
    /// assert_eq!(fused.attention(), Some(AttentionKind::Fused));
    /// assert_eq!(fused.ops().len(), graph.ops().len() - 2);
    /// # Ok::<(), shardloom_graph::GraphError>(())
    /// ```
    #[must_use]
    pub fn with_fused_attention(&self) -> Graph {
        let fused: Vec<Option<Op>> = self.ops().map(|(_, op)| self.fused(op)).collect();
        // What only the two operators had between them.
        let gone_op = |id: OpId| matches!(self.op(id).kind, OpKind::AttentionProbs { .. });
        let gone_value = |id: ValueId| match self.value(id).producer {
            Some(op) => {
                gone_op(op) || (fused[op.index()].is_some() && id != self.op(op).outputs[0])
            }
            None => false,
        };
        let ops: Vec<OpId> = self.ops().map(|(id, _)| id).filter(|&id| !gone_op(id)).collect();
        let kept: Vec<ValueId> =
            self.values().map(|(id, _)| id).filter(|&id| !gone_value(id)).collect();
        let new_op = |old: OpId| OpId(ops.partition_point(|&it| it < old) as u32);
        let new_value = |old: ValueId| ValueId(kept.partition_point(|&it| it < old) as u32);
        let new_values =
            |old: &[ValueId]| old.iter().copied().map(new_value).collect::<Vec<ValueId>>();

        let value = |&old: &ValueId| {
            let value = self.value(old).clone();
            let (producer, counts) = (value.producer.map(new_op), value.counts.map(new_value));
            Value { producer, consumers: vec![], counts, ..value }
        };
        let mut values: Vec<Value> = kept.iter().map(value).collect();
        let mut left = Vec::with_capacity(ops.len());
        for (&old, id) in ops.iter().zip(0u32..) {
            let op = fused[old.index()].as_ref().unwrap_or_else(|| self.op(old)).clone();
            let (inputs, outputs) = (new_values(&op.inputs), new_values(&op.outputs));
            for input in &inputs {
                let consumers = &mut values[input.index()].consumers;
                if consumers.last() != Some(&OpId(id)) {
                    consumers.push(OpId(id));
                }
            }
            left.push(Op { inputs, outputs, ..op });
        }
        let block = |block: &Block| {
            let ops = block.ops.iter().copied().filter(|&id| !gone_op(id)).map(new_op).collect();
            Block { name: block.name.clone(), ops }
        };
        Graph {
            name: self.name.clone(),
            dims: self.dims.clone(),
            values,
            ops: left,
            blocks: self.blocks.iter().map(block).collect(),
            batch: self.batch,
            loss: new_value(self.loss),
        }
    }

    /// What stands for `op`, where it is the second operator of attention.
    fn fused(&self, op: &Op) -> Option<Op> {
        let OpKind::AttentionContext { visibility, probability } = op.kind else { return None };
        let [probs, values] = op.inputs[..] else { return None };
        let first = self.op(self.value(probs).producer?);
        let OpKind::AttentionProbs { scale, soft_cap, .. } = first.kind else { return None };
        let axes = |loops: &[usize], of: &Op| {
            loops.iter().map(|&each| of.signature.loops[each].dim).collect::<Vec<_>>()
        };
        let queries = axes(&first.signature.inputs[0], first);
        let keys = axes(&first.signature.inputs[1], first);
        let documents: Vec<ValueId> = self.documents_of(first).into_iter().collect();
        let of_documents = documents.iter().map(|_| queries[..2].to_vec());
        let loops: Vec<_> = op.signature.loops.iter().map(|each| (each.dim, each.split)).collect();
        let inputs: Vec<_> =
            [queries.clone(), keys.clone(), keys].into_iter().chain(of_documents).collect();
        Some(Op {
            kind: OpKind::FusedAttention { visibility, scale, soft_cap, probability },
            inputs: [&first.inputs[..2], &[values], &documents].concat(),
            outputs: op.outputs[..1].to_vec(),
            signature: Signature::by_dim(&loops, &inputs, &[queries]),
            ..op.clone()
        })
    }
}
