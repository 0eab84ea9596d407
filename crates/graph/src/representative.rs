//! A model cut down to one block of each kind.

use crate::block_kind::BlockKind;
use crate::{Block, BlockId, Graph, Op, OpId, Value, ValueId};

/// A graph of one block of each kind of a whole graph, in its order.
///
/// What one plan makes of a block of the representative model it makes of each block of that kind, so the costs of a
/// model of a hundred equal layers can be taken from one of them. Blocks are of one kind if they have
/// equal operators on equal operands and the blocks around them meet them with equal operators; the
/// first layer, which reads an embedding, and the last, which a head reads, are kinds of their own.
///
/// ```
/// use shardloom_graph::{Representative, ModelSpec};
/// let graph = ModelSpec::parse("gpt:layers=96,hidden=8,heads=2,seq=4,vocab=16")?.graph()?;
/// let representative = Representative::of(&graph);
/// // Embedding, first layer, one for all in between, last layer, head.
/// assert_eq!(representative.graph().blocks().len(), 5);
/// assert_eq!(representative.stand_in(50), representative.stand_in(51));
/// # Ok::<(), shardloom_graph::GraphError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Representative {
    graph: Graph,
    stand_ins: Vec<usize>,
    originals: Vec<ValueId>,
}

impl Representative {
    /// The representative model of `graph`.
    pub fn of(graph: &Graph) -> Representative {
        Representative::of_labelled(graph, &vec![(); graph.blocks().len()])
    }

    /// The same where blocks with different `labels`, one for each, are of different kinds whatever else they have in
    /// common.
    pub fn of_labelled<L: PartialEq>(graph: &Graph, labels: &[L]) -> Representative {
        let examples = examples(graph, labels);
        let mut taken = examples.clone();
        taken.sort_unstable();
        taken.dedup();
        let (smaller, originals) = loop {
            let (smaller, originals) = extract(graph, &examples, &taken);
            let Some(block) = missing(graph, &examples, &taken, &smaller) else {
                break (smaller, originals);
            };
            taken.insert(taken.partition_point(|&it| it < block), block);
        };
        let place = |block: &usize| taken.partition_point(|it| it < block);
        let stand_ins = examples.iter().map(place).collect();
        Representative { graph: smaller, stand_ins, originals }
    }

    /// The smaller graph. It has all dimensions of the whole one, under the same ids.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The block of the representative model that is of the kind of the whole graph's `block`.
    pub fn stand_in(&self, block: usize) -> usize {
        self.stand_ins[block]
    }

    /// [`Representative::stand_in`] of all blocks.
    pub fn stand_ins(&self) -> &[usize] {
        &self.stand_ins
    }

    /// The value of the whole graph that a value of the representative model was.
    pub fn original(&self, value: ValueId) -> ValueId {
        self.originals[value.index()]
    }
}

/// For each block the first one of its kind.
fn examples<L: PartialEq>(graph: &Graph, labels: &[L]) -> Vec<usize> {
    let mut kinds: Vec<((BlockKind<'_>, &L), usize)> = vec![];
    let mut examples = vec![];
    for (block, label) in labels.iter().enumerate() {
        let kind = (BlockKind::of(graph, BlockId(block as u32)), label);
        let known = kinds.iter().find(|(known, _)| *known == kind).map(|&(_, example)| example);
        examples.push(known.unwrap_or(block));
        if known.is_none() {
            kinds.push((kind, block));
        }
    }
    examples
}

/// The block of `taken` that stands for `block`: itself if it is among them.
fn taken_for(examples: &[usize], taken: &[usize], block: usize) -> usize {
    if taken.binary_search(&block).is_ok() { block } else { examples[block] }
}

/// A block without which some block of `smaller` is not of the kind that it was; none if all are.
///
/// A taken block may be read by fewer or more than it was, because a reader's example reads another
/// block that looks the same from where it is. The first is mended by taking a reader of its own, the
/// second by giving the other reader the block that it did read. With all blocks taken all is as it was.
fn missing(graph: &Graph, examples: &[usize], taken: &[usize], smaller: &Graph) -> Option<usize> {
    let changed = (0u32..).zip(taken).find(|&(place, &block)| {
        BlockKind::of(smaller, BlockId(place)) != BlockKind::of(graph, BlockId(block as u32))
    });
    let (_, &changed) = changed?;
    let operands = |block: usize| {
        let ops = graph.blocks()[block].ops.iter().map(|&op| graph.op(op));
        ops.flat_map(|op| op.inputs.iter().chain(&op.outputs)).map(|&value| graph.value(value))
    };
    let left_out = |op: &OpId| {
        let block = block_of(graph, *op);
        taken.binary_search(&block).is_err().then_some(block)
    };
    let made_or_shared = operands(changed).filter(|value| {
        value.parameter().is_some()
            || value.producer.is_some_and(|op| block_of(graph, op) == changed)
    });
    let mut readers = made_or_shared.flat_map(|value| &value.consumers).filter_map(left_out);
    let producers = taken.iter().flat_map(|&block| operands(block)).filter_map(|it| it.producer);
    let mut producers = producers.filter_map(|op| left_out(&op));
    readers
        .next()
        .or_else(|| producers.find(|&block| examples[block] == changed))
        .or_else(|| (0..examples.len()).find(|block| taken.binary_search(block).is_err()))
}

fn block_of(graph: &Graph, op: OpId) -> usize {
    graph.op(op).block.index()
}

/// The value that is read in place of `value`: that of the block taken for its producer's.
fn replaced(graph: &Graph, examples: &[usize], taken: &[usize], value: ValueId) -> ValueId {
    let Some(producer) = graph.value(value).producer else { return value };
    let block = block_of(graph, producer);
    let other = taken_for(examples, taken, block);
    if other == block {
        return value;
    }
    let ops = |block: usize| &graph.blocks()[block].ops;
    let equal = "blocks of one kind have the same operators in the same order";
    let index = ops(block).iter().position(|&op| op == producer).expect(equal);
    let output = graph.op(producer).outputs.iter().position(|&it| it == value).expect(equal);
    graph.op(ops(other)[index]).outputs[output]
}

/// The graph of the `taken` blocks, and for each of its values which one it was.
fn extract(graph: &Graph, examples: &[usize], taken: &[usize]) -> (Graph, Vec<ValueId>) {
    let ops: Vec<OpId> = taken.iter().flat_map(|&it| graph.blocks()[it].ops.clone()).collect();
    let inputs = |op: OpId| {
        let inputs = graph.op(op).inputs.iter();
        inputs.map(|&input| replaced(graph, examples, taken, input)).collect::<Vec<_>>()
    };
    let mut originals: Vec<ValueId> =
        ops.iter().flat_map(|&op| [inputs(op), graph.op(op).outputs.clone()].concat()).collect();
    originals.sort_unstable();
    originals.dedup();
    let new_value = |old: ValueId| ValueId(originals.partition_point(|&it| it < old) as u32);
    let new_op = |old: OpId| OpId(ops.partition_point(|&it| it < old) as u32);
    let new_values = |old: Vec<ValueId>| old.into_iter().map(new_value).collect::<Vec<_>>();
    let mut values: Vec<Value> = vec![];
    for &old in &originals {
        let value = graph.value(old).clone();
        let producer = value.producer.map(new_op);
        // Who reads rows reads their counts as well.
        let counts = value.counts.map(new_value);
        values.push(Value { producer, consumers: vec![], counts, ..value });
    }
    let mut extracted: Vec<Op> = vec![];
    for (&old, id) in ops.iter().zip(0u32..) {
        let op = graph.op(old).clone();
        let block = taken.partition_point(|&it| it < op.block.index());
        let (inputs, outputs) = (new_values(inputs(old)), new_values(op.outputs));
        for input in &inputs {
            let consumers = &mut values[input.index()].consumers;
            if consumers.last() != Some(&OpId(id)) {
                consumers.push(OpId(id));
            }
        }
        extracted.push(Op { inputs, outputs, block: BlockId(block as u32), ..op });
    }
    let blocks = taken.iter().map(|&block| {
        let Block { name, ops } = graph.blocks()[block].clone();
        Block { name, ops: ops.into_iter().map(new_op).collect() }
    });
    let smaller = Graph {
        name: graph.name.clone(),
        dims: graph.dims.clone(),
        values,
        ops: extracted,
        blocks: blocks.collect(),
        batch: graph.batch,
        loss: new_value(graph.loss),
    };
    (smaller, originals)
}
