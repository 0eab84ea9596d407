//! Attention within documents, where a sequence is packed of several.

use crate::{DType, Graph, Op, OpId, OpKind, Role, Signature, Value, ValueId};

impl Graph {
    /// In which models [documents are masked](Graph::with_document_mask).
    pub const DOCUMENT_MASK_RULE: &'static str = "documents are masked in models whose attention is causal and over one \
                                                  sequence of positions, and that have no recurrence";

    /// The input that says of each position of a sample which is the first of its document, counted from the first
    /// position of the sample.
    pub const DOCUMENTS: &'static str = "documents";

    /// Whether queries see no keys of other documents than their own.
    pub fn masks_documents(&self) -> bool {
        self.ops().any(|(_, op)| self.documents_of(op).is_some())
    }

    /// The same model, in whose attention queries see no keys of other documents: attention reads one more input,
    /// [`DOCUMENTS`](Graph::DOCUMENTS). Operators and values keep their names and ids.
    ///
    /// None where that would not keep documents apart, or has no meaning: in a model without attention, with
    /// attention to later positions or over several sequences of positions, or with a recurrence.
    ///
    /// ```
    /// use shardloom_graph::ModelSpec;
    /// let graph = ModelSpec::parse("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16")?.graph()?;
    /// let masked = graph.with_document_mask().expect("its attention is causal");
    /// assert!(masked.masks_documents() && !graph.masks_documents());
    /// assert_eq!(masked.inputs().count(), graph.inputs().count() + 1);
    /// # Ok::<(), shardloom_graph::GraphError>(())
    /// ```
    #[must_use]
    pub fn with_document_mask(&self) -> Option<Graph> {
        if self.masks_documents() {
            return Some(self.clone());
        }
        let reads = |op: &Op| {
            matches!(op.kind, OpKind::AttentionProbs { .. } | OpKind::FusedAttention { .. })
        };
        let readers: Vec<(OpId, &Op)> = self.ops().filter(|(_, op)| reads(op)).collect();
        // Queries are `[batch, seq, ...]`.
        let axes = |op: &Op| self.value(op.inputs[0]).axes[..2].to_vec();
        let positions = axes(readers.first()?.1);
        let apart =
            readers.iter().all(|&(_, op)| op.kind.causal() == Some(true) && axes(op) == positions)
                && !self.ops().any(|(_, op)| matches!(op.kind, OpKind::Lstm { .. }))
                && !self.values().any(|(_, value)| value.name == Graph::DOCUMENTS);
        if !apart {
            return None;
        }
        let mut masked = self.clone();
        let documents = ValueId(masked.values.len() as u32);
        masked.values.push(Value {
            name: Graph::DOCUMENTS.into(),
            axes: positions,
            dtype: DType::Index,
            role: Role::Input,
            producer: None,
            consumers: readers.iter().map(|&(id, _)| id).collect(),
            counts: None,
        });
        for (id, _) in readers {
            let op = &mut masked.ops[id.index()];
            op.inputs.push(documents);
            let Signature { inputs, .. } = &mut op.signature;
            let of_queries = inputs[0][..2].to_vec();
            inputs.push(of_queries);
        }
        Some(masked)
    }

    /// What an operator of attention reads of documents.
    pub(crate) fn documents_of(&self, op: &Op) -> Option<ValueId> {
        let at = match op.kind {
            OpKind::AttentionProbs { .. } => 2,
            OpKind::FusedAttention { .. } => 3,
            _ => return None,
        };
        op.inputs.get(at).copied()
    }
}
