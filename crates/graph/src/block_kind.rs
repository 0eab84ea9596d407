//! Kinds of blocks: equal operators on equal operands, with equal neighbours.

use std::collections::BTreeMap;

use crate::{BlockId, DType, Graph, OpId, OpKind, Signature, ValueId};

/// All that tells a block from others, of the same graph or a representative model of it. Blocks of one kind are
/// split, kept, timed and communicate alike under every plan.
#[derive(PartialEq)]
pub(crate) struct BlockKind<'g> {
    ops: Vec<OpShape<'g>>,
}

#[derive(PartialEq)]
struct OpShape<'g> {
    face: Face<'g>,
    inputs: Vec<Source<'g>>,
    /// For each output: who reads it outside of the block, as which operand.
    readers: Vec<Vec<(Face<'g>, usize)>>,
}

/// An operator as seen from outside.
#[derive(PartialEq)]
struct Face<'g> {
    kind: OpKind,
    signature: &'g Signature,
}

#[derive(PartialEq)]
enum Source<'g> {
    /// Made in the block.
    Inside { op: usize, output: usize },
    /// Made in another block.
    Outside { first_use: usize, dtype: DType, producer: Face<'g>, output: usize },
    /// A parameter; one that other blocks use too by its name.
    Parameter { first_use: usize, shared: Option<&'g str> },
    /// Data.
    Data { first_use: usize, dtype: DType },
}

impl<'g> BlockKind<'g> {
    /// The kind of one block.
    pub fn of(graph: &'g Graph, block: BlockId) -> BlockKind<'g> {
        let ops = &graph.blocks()[block.index()].ops;
        let place: BTreeMap<OpId, usize> =
            ops.iter().enumerate().map(|(index, &op)| (op, index)).collect();
        let mut met: Vec<ValueId> = vec![];
        let mut shapes = vec![];
        for &op in ops {
            let node = graph.op(op);
            let mut inputs = vec![];
            for &input in &node.inputs {
                let value = graph.value(input);
                let first_use = met.iter().position(|&it| it == input).unwrap_or_else(|| {
                    met.push(input);
                    met.len() - 1
                });
                inputs.push(match value.producer {
                    Some(producer) => {
                        let outputs = &graph.op(producer).outputs;
                        let output = outputs.iter().position(|&it| it == input).unwrap_or(0);
                        match place.get(&producer) {
                            Some(&op) => Source::Inside { op, output },
                            None => Source::Outside {
                                first_use,
                                dtype: value.dtype,
                                producer: face(graph, producer),
                                output,
                            },
                        }
                    }
                    None if value.parameter().is_some() => {
                        let outside = |&reader: &OpId| graph.op(reader).block != block;
                        let shared = value.consumers.iter().any(outside);
                        let shared = shared.then_some(value.name.as_str());
                        Source::Parameter { first_use, shared }
                    }
                    None => Source::Data { first_use, dtype: value.dtype },
                });
            }
            let readers = node.outputs.iter().map(|&output| outside_readers(graph, block, output));
            let readers = readers.map(|readers| {
                readers.map(|(reader, index)| (face(graph, reader), index)).collect()
            });
            shapes.push(OpShape { face: face(graph, op), inputs, readers: readers.collect() });
        }
        BlockKind { ops: shapes }
    }
}

fn face(graph: &Graph, op: OpId) -> Face<'_> {
    Face { kind: graph.op(op).kind, signature: &graph.op(op).signature }
}

/// The operators outside of `block` that read `value`, with the operand that it is to them.
fn outside_readers(
    graph: &Graph,
    block: BlockId,
    value: ValueId,
) -> impl Iterator<Item = (OpId, usize)> {
    let readers = graph.value(value).consumers.iter().copied();
    readers.filter(move |&reader| graph.op(reader).block != block).flat_map(move |reader| {
        let inputs = graph.op(reader).inputs.iter().enumerate();
        inputs.filter(move |&(_, &it)| it == value).map(move |(index, _)| (reader, index))
    })
}
