//! Attention that sees a window of earlier positions.

use shardloom_graph::op::Visibility;
use shardloom_graph::work::{MatmulShape, Pass, work};
use shardloom_graph::{Extents, Graph, ModelSpec, Network, OpKind, Representative};

const LLAMA: &str = "llama:hidden=12,heads=3,ffn=11,vocab=7";

fn model(words: &str) -> Graph {
    ModelSpec::parse(&format!("{LLAMA},{words}")).and_then(|spec| spec.graph()).expect("a model")
}

fn visibilities(graph: &Graph) -> Vec<Visibility> {
    let probs = graph.ops().filter(|(_, op)| matches!(op.kind, OpKind::AttentionProbs { .. }));
    probs.filter_map(|(_, op)| op.kind.visibility()).collect()
}

#[test]
fn windows_go_through_the_layers_again_and_again() {
    let window = |positions| Visibility::Window { positions };
    let found = visibilities(&model("layers=5,seq=8,windows=3-0-2"));
    assert_eq!(found, [window(3), Visibility::Causal, window(2), window(3), Visibility::Causal]);
    // One that is as long as the sequence hides nothing.
    let found = visibilities(&model("layers=2,seq=8,windows=7-8"));
    assert_eq!(found, [window(7), Visibility::Causal]);
    // Of more than there are layers those that have none are left out.
    assert_eq!(visibilities(&model("layers=1,seq=8,windows=3-0")), [window(3)]);
}

#[test]
fn layers_with_a_window_have_a_base_of_their_own_whose_frequencies_are_not_scaled() {
    let rotations = |words: &str| -> Vec<(f32, bool)> {
        let graph = model(&format!("layers=3,seq=8,windows=3-0-2,rope_theta=50,{words}"));
        let of = |kind: OpKind| match kind {
            OpKind::Rotary { theta, scaling, .. } => Some((theta, scaling.is_some())),
            _ => None,
        };
        graph.ops().filter_map(|(_, op)| of(op.kind)).collect()
    };
    // Of the queries and the keys of each layer.
    let (window, full) = ([(10.0, false); 2], [(50.0, true); 2]);
    let found = rotations("window_rope_theta=10,rope_scaling=[8]");
    assert_eq!(found, [window, full, window].concat());
    // All have the same frequencies where there is one base.
    assert_eq!(rotations("rope_scaling=[8]"), [(50.0, true); 6]);
}

#[test]
fn equal_windows_are_written_equally() {
    let windows = |words: &str| {
        let spec = ModelSpec::parse(&format!("{LLAMA},seq=8,{words}")).expect("a model");
        let Network::Llama(llama) = spec.network() else { panic!("{spec}") };
        llama.windows.clone()
    };
    assert_eq!(windows("layers=4,windows=3-0-3-0"), [3, 0]);
    assert_eq!(windows("layers=3,windows=3-0-3"), [3, 0]);
    assert_eq!(windows("layers=4,windows=4x3"), [3]);
    assert_eq!(windows("layers=4,windows=2x0-2x3"), [0, 0, 3, 3]);
    assert!(windows("layers=2,windows=2x0").is_empty());
    assert!(windows("layers=2,windows=2x0-3").is_empty());
}

#[test]
fn a_base_for_windows_needs_a_layer_with_one() {
    let text = format!("{LLAMA},layers=2,seq=8,windows=2x0-3,window_rope_theta=10");
    let error = ModelSpec::parse(&text).unwrap_err().to_string();
    assert!(error.contains("window_rope_theta = 10"), "{error}");
    model("layers=3,seq=8,windows=2x0-3,window_rope_theta=10");
}

/// As many keys as the window has are counted for every query, by both ways of computing attention.
#[test]
fn only_the_keys_of_the_window_are_counted() {
    let shape = |m, n, k| MatmulShape { batch: 2 * 3, m, n, k };
    let products = |graph: &Graph, name: &str, pass| {
        let (op, _) = graph.ops().find(|(_, op)| op.name == name).expect("it is there");
        work(graph, op, pass, &Extents::global(graph, 2), 4).and_then(|it| it.matmul)
    };
    let graph = model("layers=1,seq=8,windows=3");
    let probs = "block.0.attention.probs";
    assert_eq!(products(&graph, probs, Pass::Forward), Some((shape(8, 3, 4), 1)));
    assert_eq!(products(&graph, probs, Pass::Input), Some((shape(8, 3, 4), 2)));
    let context = "block.0.attention.context";
    assert_eq!(products(&graph, context, Pass::Forward), Some((shape(8, 4, 3), 1)));
    let fused = graph.with_fused_attention();
    assert_eq!(products(&fused, context, Pass::Input), Some((shape(8, 3, 4), 5)));
    // What is bounded is computed again for its gradient, as fused attention does anyway.
    let capped = model("layers=1,seq=8,windows=3,attention_cap=2");
    assert_eq!(products(&capped, probs, Pass::Input), Some((shape(8, 3, 4), 3)));
}

/// By counting pairs: those on the diagonal are seen whole.
#[test]
fn queries_see_so_much_of_what_is_counted() {
    for (keys, positions) in [(64, 1), (64, 8), (64, 63), (1000, 300)] {
        let pairs: usize = (0..keys).map(|query| positions.min(query + 1)).sum();
        let counted = keys * Visibility::Window { positions }.most(keys);
        let seen = Visibility::Window { positions }.seen(keys) * counted as f64;
        assert_eq!(seen + 0.5 * positions as f64, pairs as f64, "{positions} of {keys}");
    }
    for positions in [64, 65, 1000] {
        let window = Visibility::Window { positions };
        assert_eq!((window.most(64), window.seen(64)), (64, Visibility::Causal.seen(64)));
    }
}

#[test]
fn layers_alternate_between_two_kinds_of_blocks() {
    let words = |layers| format!("layers={layers},seq=8,windows=5x4-0,window_rope_theta=10");
    let representative = Representative::of(&model(&words(62)));
    let blocks = |it: &Representative| it.graph().blocks().len();
    // Each kind reads, and is read by, what it was: no more blocks for that than a pattern has, and a few.
    assert_eq!(blocks(&representative), 10);
    assert_eq!(blocks(&Representative::of(&model(&words(122)))), 10);
    let stand_ins = representative.stand_ins();
    assert_eq!(stand_ins[6], stand_ins[12]);
    assert_eq!(stand_ins[2], stand_ins[7]);
    assert_ne!(stand_ins[6], stand_ins[7]);
}
