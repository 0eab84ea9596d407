//! A U-shaped transformer is a GPT with long skips between blocks that stand equally far from the ends.

use shardloom_graph::families::{GptConfig, UTransformerConfig};
use shardloom_graph::{Graph, ModelSpec, Network, OpKind};

const HIDDEN: usize = 12;

fn config(layers: usize) -> UTransformerConfig {
    UTransformerConfig(GptConfig {
        layers,
        hidden: HIDDEN,
        heads: 3,
        seq: 5,
        vocab: 7,
        padded_vocab: None,
        ffn: None,
        dropout: 0.1,
        attention_dropout: None,
        embedding_dropout: None,
        rotary: None,
        rope_theta: None,
        parallel: false,
        head_bias: false,
        tied: false,
        separate_loss: false,
        norm_epsilon: 1e-5,
        init_std: 0.02,
    })
}

/// For each join, the blocks that make its two operands and the block that it is in.
fn joins(graph: &Graph) -> Vec<(String, String, String)> {
    let block = |op| graph.blocks()[graph.op(op).block.index()].name.clone();
    let is_join = |op: &&(_, &shardloom_graph::Op)| matches!(op.1.kind, OpKind::Concat { .. });
    let ops: Vec<_> = graph.ops().collect();
    let join = |&(id, op): &(_, &shardloom_graph::Op)| {
        let made_in = |input: usize| {
            let producer = graph.value(op.inputs[input]).producer;
            block(producer.expect("only results of operators are joined"))
        };
        (made_in(0), made_in(1), block(id))
    };
    ops.iter().filter(is_join).map(join).collect()
}

#[test]
fn each_decoder_reads_the_block_before_it_and_the_encoder_as_far_from_the_other_end() {
    for layers in 3..10 {
        let config = config(layers);
        let skips = (layers - 1) / 2;
        let expected: Vec<_> = (layers - skips..layers)
            .map(|decoder| {
                let [before, encoder] = [decoder - 1, layers - 1 - decoder];
                [before, encoder, decoder].map(|index| format!("block.{index}")).into()
            })
            .collect();
        assert_eq!(joins(&config.graph("net").unwrap()), expected, "{layers} layers");
        assert_eq!(config.skips(), skips);
        let pairs: Vec<_> = (0..layers).filter_map(|it| config.decoder_of(it)).collect();
        assert_eq!(pairs, (layers - skips..layers).rev().collect::<Vec<_>>());
    }
}

#[test]
fn a_skip_adds_a_projection_from_twice_the_width_to_a_gpt() {
    for layers in [3, 4, 9] {
        let UTransformerConfig(gpt) = config(layers);
        let more = (layers - 1) / 2 * (2 * HIDDEN * HIDDEN + HIDDEN);
        let count = gpt.graph("net").unwrap().parameter_count() + more as u64;
        assert_eq!(config(layers).graph("net").unwrap().parameter_count(), count);
    }
}

#[test]
fn fewer_blocks_than_have_a_skip_are_refused() {
    let text = |layers| format!("u-transformer:layers={layers},hidden=12,heads=3,seq=5,vocab=7");
    for layers in 0..3 {
        let message = ModelSpec::parse(&text(layers)).unwrap_err().to_string();
        assert!(message.contains(&format!("layers = {layers}")), "{message}");
        assert!(message.contains("a decoder make 3"), "{message}");
    }
    let spec = ModelSpec::parse(&text(3)).unwrap();
    assert_eq!(spec.to_string(), text(3));
    assert_eq!(spec.with_seq(9).unwrap().seq(), 9);
    assert!(matches!(spec.network(), Network::UTransformer(_)));
}
