//! What is in 8 bits where a plan computes products from operands of 8 bits, as NVIDIA's Transformer Engine has it
//! (read at d0067d0, `pytorch/module/layernorm_mlp.py`): norms' and activations' outputs are quantized, gathered
//! and saved so, what norms and activations read is saved as it is.

use shardloom_graph::gradient::{self, Operand};
use shardloom_graph::{DType, Graph, Op, OpId, OpKind, ValueId};
use shardloom_plan::Precision;

/// Whether the operands of `op` are cast to 8 bits: it is a product of activations and weights, and not the last
/// one before the loss.
pub fn multiplies_in_8_bits(graph: &Graph, precision: Precision, op: OpId) -> bool {
    let node = graph.op(op);
    let of_weights = matches!(node.kind, OpKind::Contract { .. });
    precision.fp8_products && of_weights && !feeds_loss(graph, node)
}

/// Whether the loss is of what `node` gives, bounded or not.
fn feeds_loss(graph: &Graph, node: &Op) -> bool {
    let readers = node.outputs.iter().flat_map(|&it| &graph.value(it).consumers);
    readers.map(|&reader| graph.op(reader)).any(|reader| {
        let caps = matches!(reader.kind, OpKind::SoftCap { .. });
        reader.kind.is_loss() || (caps && feeds_loss(graph, reader))
    })
}

/// Whether `value` is stored, and so kept and gathered, in 8 bits: products with such operands read it, and nothing
/// else does, in no pass. What attention computes is not, whose backward pass reads it as it was.
pub(crate) fn is_stored_in_8_bits(graph: &Graph, precision: Precision, value: ValueId) -> bool {
    let node = graph.value(value);
    let Some(producer) = node.producer.filter(|_| precision.fp8_products) else { return false };
    let made_by = graph.op(producer);
    let multiplied = |&op: &OpId| {
        let reader = graph.op(op);
        let reads = reader.inputs.iter().filter(|&&input| input == value).count();
        multiplies_in_8_bits(graph, precision, op)
            && reader.inputs[0] == value
            && reads == 1
            && reader.block == made_by.block
    };
    let rule = gradient::rule(graph, producer);
    let mut gradients = [rule.input, rule.weight].into_iter().flatten();
    let is_value =
        |read: &Operand| matches!(*read, Operand::Output(index) if made_by.outputs[index] == value);
    node.dtype == DType::Real
        && !node.consumers.is_empty()
        && node.consumers.iter().all(multiplied)
        && made_by.kind.causal().is_none()
        && !gradients.any(|it| it.reads.iter().any(is_value))
}
