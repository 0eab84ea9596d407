//! The graph itself: arenas of dimensions, values and operators, in blocks.

use crate::dim::Dims;
use crate::{DType, Dim, DimId, Extents, Op, OpId, Role, Value, ValueId};

/// Identifies a block of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Position in the graph's list of blocks.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A run of operators that belong together: a transformer layer, the embedding, the head. Pipeline
/// stages are cut between blocks, and full recomputation keeps a block's inputs.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its name, the prefix of its values' names.
    pub name: String,
    /// Its operators, in order.
    pub ops: Vec<OpId>,
}

/// A model: operators over named dimensions, in an order in which they can run.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) dims: Dims,
    pub(crate) values: Vec<Value>,
    pub(crate) ops: Vec<Op>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) batch: DimId,
    pub(crate) loss: ValueId,
}

impl Graph {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All named dimensions.
    pub fn dims(&self) -> &[Dim] {
        self.dims.all()
    }

    /// One dimension.
    pub fn dim(&self, id: DimId) -> &Dim {
        &self.dims.all()[id.index()]
    }

    /// The dimension of this name.
    pub fn dim_named(&self, name: &str) -> Option<DimId> {
        self.dims.named(name)
    }

    /// A dimension's name and size, as in `ffn = 4096`. Heads that several queries share are known by the number of
    /// queries: `heads = 8 (of keys and values; 32 of queries)`.
    pub fn dim_in_words(&self, id: DimId) -> String {
        let Dim { name, size } = self.dim(id);
        match self.dim_named("group").filter(|_| name == "heads") {
            Some(group) => {
                let queries = size * self.dim(group).size;
                format!("{name} = {size} (of keys and values; {queries} of queries)")
            }
            // A classifier's has the name that a language model's has.
            None if name == "vocab" && self.dim_named("seq").is_none() => {
                format!("classes = {size}")
            }
            None => format!("{name} = {size}"),
        }
    }

    /// The dimension over samples.
    pub fn batch(&self) -> DimId {
        self.batch
    }

    /// The scalar that training minimises: a sum over samples (and positions).
    pub fn loss(&self) -> ValueId {
        self.loss
    }

    /// One value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// All values.
    pub fn values(&self) -> impl ExactSizeIterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(index, value)| (ValueId(index as u32), value))
    }

    /// One operator.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// All operators, each after what it reads.
    pub fn ops(&self) -> impl ExactSizeIterator<Item = (OpId, &Op)> {
        self.ops.iter().enumerate().map(|(index, op)| (OpId(index as u32), op))
    }

    /// All blocks, in order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// All parameters.
    pub fn parameters(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values().filter(|(_, value)| value.parameter().is_some())
    }

    /// The data a sample brings.
    pub fn inputs(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values().filter(|(_, value)| value.role == Role::Input)
    }

    /// Number of elements of all parameters.
    pub fn parameter_count(&self) -> u64 {
        let extents = Extents::global(self, 1);
        self.parameters().map(|(_, value)| extents.elements(&value.axes) as u64).sum()
    }

    /// Number of loss terms per sample: the elements of the targets, e.g. the sequence length.
    pub fn targets_per_sample(&self) -> usize {
        Extents::global(self, 1).elements(&self.value(self.targets()).axes)
    }

    /// What the loss compares with: the classes, or the tokens that come next.
    pub fn targets(&self) -> ValueId {
        let inputs = self.value(self.loss).producer.map(|op| &self.op(op).inputs);
        let is_target = |value: &&ValueId| self.value(**value).dtype == DType::Index;
        let targets = inputs.and_then(|inputs| inputs.iter().find(is_target));
        *targets.expect("the loss is a cross-entropy, which has targets")
    }

    /// The axes of a value as text: `batch, seq, model`.
    pub fn axes_text(&self, axes: &[DimId]) -> String {
        axes.iter().map(|&dim| self.dim(dim).name.as_str()).collect::<Vec<_>>().join(", ")
    }
}
