//! The sampler looks back on as many tokens as the model does, and refuses a model that it cannot feed.

use crate::support::{Samples, gpt, llama, serial, trainer};
use shardloom_graph::{Graph, GraphBuilder, GraphError, Init};
use shardloom_train::{Error, Sampler};

const SEQ: usize = 4;

/// A network of one embedding and its transpose over tokens of these dimensions, and if asked over a
/// second input.
fn network(position: &str, second_input: bool) -> Result<Graph, GraphError> {
    let mut net = GraphBuilder::new("network");
    let position = net.dim(position, SEQ)?;
    let model = net.dim("model", 8)?;
    let vocab = net.dim("vocab", 16)?;
    let tokens = net.targets("tokens", &[position])?;
    let targets = net.targets("targets", &[position])?;
    net.block("all");
    let table = net.parameter("table", &[vocab, model], 1, Init::Normal { std: 0.02 })?;
    let mut x = net.embed("embed", tokens, table)?;
    if second_input {
        let kinds = net.targets("kinds", &[position])?;
        let kinds = net.embed("embed.kinds", kinds, table)?;
        x = net.add("sum", x, kinds)?;
    }
    let logits = net.contract("head", x, table, None)?;
    let loss = net.cross_entropy("loss", logits, targets)?;
    net.finish(loss)
}

/// Why a model cannot be sampled from; `None` if it can.
fn refusal(graph: Graph) -> Option<String> {
    let plan = serial().plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(8, SEQ, 16), 1e-3);
    let weights = trainer.weights().expect("weights");
    Sampler::new(graph, &weights, None).err().map(|error| error.to_string())
}

#[test]
fn a_model_that_cannot_be_fed_is_refused_with_the_reason() {
    assert_eq!(refusal(network("seq", false).expect("a network")), None);
    let reason = refusal(network("seq", true).expect("a network")).expect("refused");
    assert!(reason.ends_with("the model also reads `kinds`"), "{reason}");
    let reason = refusal(network("place", false).expect("a network")).expect("refused");
    assert!(reason.contains("over a dimension `seq`"), "{reason}");
}

/// Weights may be small and sequences long.
#[test]
fn a_model_that_needs_more_memory_than_is_there_is_refused() {
    let graph = llama();
    let plan = serial().plan(&graph, "model", "local");
    let mut trainer = trainer(&graph, &plan, Samples::patterned(8, 16, 64), 1e-3);
    let weights = trainer.weights().expect("weights");
    let made = |available| Sampler::new(graph.clone(), &weights, Some(available));
    let Err(Error::Memory { needed_bytes, available_bytes: 0 }) = made(0) else {
        panic!("refused");
    };
    assert!(needed_bytes > 4 * graph.parameter_count(), "{needed_bytes}");
    assert!(made(needed_bytes).is_ok());
    assert!(matches!(made(needed_bytes - 1), Err(Error::Memory { .. })));
}

#[test]
fn only_the_last_context_of_tokens_counts() {
    for graph in [gpt(), llama()] {
        let plan = serial().plan(&graph, "model", "local");
        let mut trainer = trainer(&graph, &plan, Samples::patterned(8, 16, 64), 1e-3);
        let weights = trainer.weights().expect("weights");
        let mut sampler = Sampler::new(graph, &weights, None).expect("a language model");
        let tokens: Vec<u32> = (0..40).map(|index| index * 7 % 64).collect();
        let mut logits = |tokens: &[u32]| sampler.logits(tokens).expect("logits");
        let all = logits(&tokens);
        assert_eq!(all.len(), 64);
        assert_eq!(all, logits(&tokens[40 - 16..]));
        assert_ne!(all, logits(&tokens[40 - 15..]));
        sampler.logits(&[]).expect_err("nothing to go on from");
    }
}
