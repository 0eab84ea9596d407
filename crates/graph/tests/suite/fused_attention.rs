//! A model with fused attention beside the same without.

use shardloom_graph::work::{MatmulShape, Pass, work};
use shardloom_graph::{AttentionKind, Extents, Graph, ModelSpec, OpKind};

fn model(text: &str) -> Graph {
    ModelSpec::parse(text).and_then(|spec| spec.graph()).expect("a model")
}

fn names(graph: &Graph) -> Vec<String> {
    graph.values().map(|(_, value)| value.name.clone()).collect()
}

#[test]
fn only_probabilities_and_their_masks_go() {
    for (text, gone) in [
        ("gpt:layers=2,hidden=8,heads=2,seq=4,vocab=16,dropout=0.1", 4),
        ("llama:layers=2,hidden=8,heads=4,kv_heads=2,ffn=12,seq=4,vocab=16", 2),
        ("u-transformer:layers=3,hidden=8,heads=2,seq=4,vocab=16", 3),
    ] {
        let graph = model(text);
        let fused = graph.with_fused_attention();
        let left = names(&fused);
        let missing: Vec<String> =
            names(&graph).into_iter().filter(|it| !left.contains(it)).collect();
        assert_eq!(missing.len(), gone, "{missing:?}");
        let of_attention = |name: &String| {
            name.ends_with("attention.probs") || name.ends_with("attention.context.mask")
        };
        assert!(missing.iter().all(of_attention), "{missing:?}");
        assert_eq!(graph.parameter_count(), fused.parameter_count());
        assert_eq!(graph.value(graph.loss()).name, fused.value(fused.loss()).name);
        let readers = |graph: &Graph| graph.values().map(|(_, it)| it.consumers.len()).max();
        assert_eq!(readers(&graph), readers(&fused));
    }
}

#[test]
fn what_is_fused_already_stays_and_what_has_no_attention_too() {
    let gpt = model("gpt:layers=1,hidden=8,heads=2,seq=4,vocab=16");
    assert_eq!(gpt.attention(), Some(AttentionKind::Unfused));
    let fused = AttentionKind::Fused.of(&gpt).into_owned();
    assert_eq!(fused.attention(), Some(AttentionKind::Fused));
    assert_eq!(names(&AttentionKind::Fused.of(&fused)), names(&fused));
    let mlp = model("mlp:inputs=5,hidden=7,layers=2,classes=3");
    assert_eq!(mlp.attention(), None);
    assert_eq!(names(&AttentionKind::Fused.of(&mlp)), names(&mlp));
}

/// Two products forward; backward four, and the scores again.
#[test]
fn its_products_are_two_forward_and_five_backward() {
    let graph = model("gpt:layers=1,hidden=12,heads=3,seq=8,vocab=16").with_fused_attention();
    let is_fused = |kind: &OpKind| matches!(kind, OpKind::FusedAttention { .. });
    let (op, node) = graph.ops().find(|(_, op)| is_fused(&op.kind)).expect("it has attention");
    assert!(node.name.ends_with("attention.context"));
    let local = Extents::global(&graph, 2);
    for (pass, count) in [(Pass::Forward, 2), (Pass::Input, 5)] {
        let found = work(&graph, op, pass, &local, 4).expect("it has the pass");
        let shape = MatmulShape { batch: 2 * 3, m: 8, n: 8, k: 4 };
        assert_eq!(found.matmul, Some((shape, count)));
        assert_eq!(found.flops, (count * 2 * 6 * 8 * 8 * 4) as f64);
    }
}
