//! What is stored in 8 bits where products are computed in them.

use std::collections::BTreeSet;

use shardloom_graph::{Graph, ModelSpec, OpKind};
use shardloom_plan::{Mesh, Precision, Uniform};
use shardloom_program::{
    Action, BodyKind, Class, Format, Program, Tensor, lower, multiplies_in_8_bits,
};

fn graph(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

fn program(graph: &Graph, tp: u32, fp8_products: bool) -> Program {
    let uniform = Uniform {
        mesh: Mesh::of(1, 1, tp),
        sequence_parallel: tp > 1,
        precision: Precision { fp8_products, ..Precision::MIXED },
        ..Uniform::default()
    };
    lower(graph, &uniform.plan(graph, "model", "cluster"), tp as usize).expect("the plan fits")
}

fn narrow(class: &Class) -> impl Iterator<Item = &Tensor> {
    class.tensors().map(|(_, tensor)| tensor).filter(|it| it.format == Format::F8)
}

/// The names of values of the first layer in 8 bits, whatever their layouts.
fn names(program: &Program) -> BTreeSet<&str> {
    let names = narrow(&program.classes[0]).map(|it| it.name.split('@').next().unwrap_or_default());
    names.filter(|name| name.starts_with("block.0.")).collect()
}

#[test]
fn activations_that_only_products_read_are_stored_in_8_bits() {
    // Not what attention computes, whose own backward pass reads it, nor the inputs of norms and activations.
    let gpt = graph("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=64");
    let gpt = program(&gpt, 1, true);
    assert_eq!(
        names(&gpt),
        ["block.0.attention_norm", "block.0.ffn.gelu", "block.0.ffn_norm"].into()
    );
    let llama = graph("llama:layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,seq=32,vocab=64");
    let llama = program(&llama, 1, true);
    assert_eq!(
        names(&llama),
        ["block.0.attention_norm", "block.0.ffn.swiglu", "block.0.ffn_norm"].into()
    );
    // The last product before the loss is not in 8 bits, so what it reads is not.
    assert!(narrow(&llama.classes[0]).all(|it| it.name.starts_with("block.")));
}

/// Bounded logits are those of the loss as much as others are.
#[test]
fn the_last_product_is_not_in_8_bits_where_logits_are_bounded_either() {
    for cap in ["", ",logit_cap=30"] {
        let graph = graph(&format!(
            "llama:layers=1,hidden=64,heads=4,kv_heads=2,ffn=128,seq=32,vocab=64{cap}"
        ));
        let precision = Precision { fp8_products: true, ..Precision::MIXED };
        let products = graph.ops().filter(|(_, node)| matches!(node.kind, OpKind::Contract { .. }));
        for (op, node) in products {
            let in_8_bits = multiplies_in_8_bits(&graph, precision, op);
            assert_eq!(in_8_bits, node.name != "head", "{} of a model with {cap:?}", node.name);
        }
        let program = program(&graph, 1, true);
        assert!(narrow(&program.classes[0]).all(|it| it.name.starts_with("block.")), "{cap:?}");
    }
}

#[test]
fn what_is_in_8_bits_is_gathered_so_and_gradients_are_not() {
    let graph = graph("gpt:layers=2,hidden=64,heads=4,seq=32,vocab=64");
    let program = program(&graph, 2, true);
    let class = &program.classes[0];
    assert!(narrow(class).all(|it| !it.name.contains("gradient")));
    let trained = class.bodies.iter().filter(|body| body.kind != BodyKind::Evaluation);
    let mut gathered = 0;
    for instruction in trained.flat_map(|body| &body.instructions) {
        if let Action::Collective { .. } = instruction.action {
            let [read, written] = [instruction.reads[0], instruction.writes[0].to]
                .map(|it| class.tensor(it.tensor).format);
            assert_eq!(read, written, "{instruction:?}");
            gathered += usize::from(read == Format::F8);
        }
    }
    // Both norms of both layers forward, and again for weight gradients.
    assert_eq!(gathered, 8);
}

#[test]
fn a_layer_keeps_as_many_bytes_less_as_it_stores_elements_in_8_bits() {
    let (hidden, seq) = (64, 32);
    let kept = |layers: usize, fp8_products: bool| {
        let text = format!("gpt:layers={layers},hidden={hidden},heads=4,seq={seq},vocab=64");
        let program = program(&graph(&text), 1, fp8_products);
        let found = program.classes[0].memory_use(&program, 0);
        found.peak_bytes - found.persistent.total()
    };
    let of_layer = |fp8_products: bool| kept(12, fp8_products) - kept(11, fp8_products);
    // Two norms of the hidden width and the activation of four times that, a byte less for each.
    assert_eq!(of_layer(false) - of_layer(true), (2 + 4) * hidden * seq);
}
