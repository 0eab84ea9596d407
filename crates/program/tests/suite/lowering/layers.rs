//! Which changes of layout a layer needs, and over how many elements.

use shardloom_collectives::Kind;
use shardloom_graph::Reduction;
use shardloom_plan::Uniform;
use shardloom_program::{BodyKind, Collective};

use super::model::{
    GATHER, LAYERS, SAMPLES, SCATTER, SEQ, SUM, body, changes, count, gpt, llama, mesh, program,
    single,
};

#[test]
fn tensor_parallel_layers_all_reduce_twice_forward_and_twice_backward() {
    for tp in [2, 4] {
        let program = program(&gpt(false), &Uniform { mesh: mesh(1, 1, tp), ..single() });
        let class = &program.classes[0];
        for layer in 0..LAYERS {
            let block = format!("block.{layer}.");
            assert_eq!(changes(class, BodyKind::Forward, &block), [SUM, SUM]);
            assert_eq!(changes(class, BodyKind::Backward, &block), [SUM, SUM]);
        }
        // The embedding's lookup; backward, the head's share of its input's gradient.
        assert_eq!(changes(class, BodyKind::Forward, "embedding"), [SUM]);
        assert!(changes(class, BodyKind::Backward, "embedding").is_empty());
        assert_eq!(changes(class, BodyKind::Backward, "final_norm"), [SUM]);
        let all = changes(class, BodyKind::Backward, "");
        assert_eq!(all.len(), 2 * LAYERS + 1);
    }
}

#[test]
fn grouped_queries_need_no_more_all_reduces() {
    let program = program(&llama(), &Uniform { mesh: mesh(1, 1, 4), ..single() });
    let class = &program.classes[0];
    assert_eq!(changes(class, BodyKind::Forward, "block.1."), [SUM, SUM]);
    assert_eq!(changes(class, BodyKind::Backward, "block.1."), [SUM, SUM]);
}

#[test]
fn sequence_parallel_layers_scatter_and_gather_and_gather_again_what_was_not_kept() {
    let uniform = Uniform { mesh: mesh(1, 1, 2), sequence_parallel: true, ..single() };
    let program = program(&gpt(false), &uniform);
    let class = &program.classes[0];
    for layer in 0..LAYERS {
        let block = format!("block.{layer}.");
        let forward = changes(class, BodyKind::Forward, &block);
        assert_eq!(forward, [GATHER, SCATTER, GATHER, SCATTER]);
        // Backward the two swap roles; and the norms' results, kept in shards, are gathered once more
        // for the weight gradients of the projections that read them.
        let backward = changes(class, BodyKind::Backward, &block);
        assert_eq!(count(&backward, |&change| change == SCATTER), 2);
        assert_eq!(count(&backward, |&change| change == GATHER), 2 + 2);
        assert_eq!(backward.len(), 6);
    }
    assert_eq!(changes(class, BodyKind::Forward, "embedding"), [SCATTER]);
    assert_eq!(changes(class, BodyKind::Backward, "embedding"), [GATHER]);
    assert_eq!(changes(class, BodyKind::Forward, "final_norm"), [GATHER]);
    let head = changes(class, BodyKind::Backward, "final_norm");
    assert_eq!(count(&head, |&change| change == SCATTER), 1);
    assert_eq!(count(&head, |&change| change == GATHER), 1);
    assert_eq!(head.len(), 2);
}

#[test]
fn a_split_vocabulary_costs_three_numbers_per_token_and_not_the_logits() {
    let program = program(&gpt(true), &Uniform { mesh: mesh(1, 1, 4), ..single() });
    let class = &program.classes[0];
    let max = Collective::AllReduce(Reduction::Max);
    assert_eq!(changes(class, BodyKind::Forward, "loss.max"), [max]);
    assert_eq!(changes(class, BodyKind::Forward, "loss.sum"), [SUM, SUM]);
    assert!(changes(class, BodyKind::Forward, "head").is_empty());
    assert!(changes(class, BodyKind::Backward, "head").is_empty());
    let statistics: Vec<_> = body(class, BodyKind::Forward)
        .iter()
        .filter(|it| it.reads.len() == 1)
        .filter(|it| class.tensor(it.reads[0].tensor).name.starts_with("loss."))
        .filter_map(|it| program.exchange(class, 0, it))
        .collect();
    assert_eq!(statistics.len(), 3);
    for exchange in statistics {
        assert_eq!(exchange.kind, Kind::AllReduce);
        assert_eq!((exchange.elements, exchange.element_bytes), (SAMPLES * SEQ, 4));
    }
}

#[test]
fn context_parallelism_gathers_keys_and_values_and_scatters_their_gradients() {
    let program = program(&gpt(false), &Uniform { mesh: mesh(1, 2, 1), ..single() });
    let class = &program.classes[0];
    let block = |kind| changes(class, kind, "block.1.");
    assert_eq!(block(BodyKind::Forward), [GATHER, GATHER]);
    let backward = block(BodyKind::Backward);
    assert_eq!(count(&backward, |&change| change == SCATTER), 2);
    // Keys and values are kept in shards.
    assert_eq!(count(&backward, |&change| change == GATHER), 2);
    assert_eq!(backward.len(), 4);
}
