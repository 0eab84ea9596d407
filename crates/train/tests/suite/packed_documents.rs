//! Samples that are packed of several documents train as the documents do by themselves.

use shardloom_data::{Batches, Corpus};
use shardloom_graph::Graph;
use shardloom_plan::{Plan, Precision, Recompute, Uniform};
use shardloom_program::{Rank, lower};
use shardloom_train::Trainer;

use crate::fused_attention::splits;
use crate::support::trained::Trained;
use crate::support::{Samples, gpt, graph, llama, losses, serial, trainer};

const STEPS: u32 = 4;

/// Ends a document.
const END: u32 = 63;

/// Tokens of documents of 8, of which an epoch has 16.
fn batches(sequence_length: usize) -> Batches {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 16) % END
    };
    let token = |position: u32| if position % 8 == 7 { END } else { next() };
    let corpus = Corpus::from_tokens((0..=16 * 8).map(token).collect(), 64, 0.0);
    let corpus = corpus.expect("tokens of the vocabulary").with_end_of_text(END);
    Batches::new(corpus, sequence_length, 3).expect("whole samples")
}

/// A model that knows no positions but those of a query relative to keys.
fn relative(seq: usize) -> Graph {
    graph(&format!("llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,seq={seq},vocab=64"))
}

fn trained(graph: &Graph, uniform: &Uniform) -> Trained {
    let plan = uniform.plan(graph, "model", "local");
    let seq = graph.dim(graph.dim_named("seq").expect("positions")).size;
    let mut trainer = trainer(graph, &plan, batches(seq), 3e-3);
    Trained::in_rows(&mut trainer, &[STEPS])
}

/// Each epoch is one step, so that the order of samples does not matter.
#[test]
fn two_documents_in_each_sample_train_as_twice_as_many_samples_of_one() {
    let alone = trained(&relative(8), &Uniform { global_batch: 16, ..serial() });
    let packed = relative(16);
    let masked = packed.with_document_mask().expect("its attention is causal");
    for graph in [masked.with_fused_attention(), masked] {
        for uniform in splits() {
            let found = trained(&graph, &uniform);
            found.assert_losses(&alone, 1e-6, &format!("{uniform:?}"));
            found.assert_moved(&alone, 1e-3, &format!("{uniform:?}"));
        }
    }
    let unmasked = trained(&packed, &splits()[0]);
    assert!(
        unmasked.losses.iter().zip(&alone.losses).all(|(one, other)| (one - other).abs() > 1e-4)
    );
}

/// Documents of all lengths, with dropout and learned positions.
fn with_samples(graph: &Graph, uniform: &Uniform) -> (Trainer, Vec<f64>) {
    let plan = uniform.plan(graph, "model", "local");
    let mut trainer = trainer(graph, &plan, Samples::patterned(64, 16, 64), 3e-3);
    let losses = losses(&mut trainer, STEPS as usize);
    (trainer, losses)
}

fn evaluated(trainer: &mut Trainer) -> f64 {
    trainer.evaluate(u64::MAX).expect("an evaluation").expect("there are samples").loss
}

#[test]
fn splits_and_fused_attention_train_as_one_device_does_and_take_what_their_programs_say() {
    for graph in [gpt(), llama()] {
        let masked = graph.with_document_mask().expect("its attention is causal");
        let (mut one, expected) = with_samples(&masked, &serial());
        let expected_later = evaluated(&mut one);
        assert_ne!(expected_later, evaluated(&mut with_samples(&graph, &serial()).0));
        let mixed = Uniform { precision: Precision::MIXED, ..serial() };
        let selective = Uniform { recompute: Recompute::Selective, ..serial() };
        let all = [splits(), vec![mixed, selective]].concat();
        for graph in [masked.with_fused_attention(), masked] {
            for uniform in all.clone() {
                let (mut trainer, found) = with_samples(&graph, &uniform);
                let tolerance = if uniform.precision == Precision::MIXED { 2e-3 } else { 2e-6 };
                let close = |one: f64, other: f64| (one - other).abs() < tolerance * other;
                let alike = found.iter().zip(&expected).all(|(&one, &other)| close(one, other));
                assert!(alike, "{found:?} instead of {expected:?} with {uniform:?}");
                let found = evaluated(&mut trainer);
                let alike = close(found, expected_later);
                assert!(alike, "{found} instead of {expected_later} with {uniform:?}");
                let program = trainer.program();
                for (&counted, rank) in trainer.peak_bytes_per_rank().iter().zip(0..) {
                    let (class, position) = program.locate(Rank(rank));
                    let planned = program.class(class).memory_use(program, position).peak_bytes;
                    assert_eq!(counted, planned, "rank {rank} with {uniform:?}");
                }
            }
        }
    }
}

#[test]
fn documents_are_masked_where_the_plan_says_so_and_the_model_can() {
    let refused = |graph: &Graph, plan: &Plan, why: &str| {
        let error = lower(graph, plan, 1).expect_err("it cannot be").to_string();
        assert!(error.contains(why), "{error}");
    };
    let (model, masked) = (gpt(), gpt().with_document_mask().expect("its attention is causal"));
    let plan = serial().plan(&masked, "model", "local");
    assert!(plan.mask_documents && plan.graph_of(&model).masks_documents());
    lower(&plan.graph_of(&model), &plan, 1).expect("the graph is the plan's");
    let fused = Plan {
        attention: model.with_fused_attention().attention().expect("it is"),
        ..plan.clone()
    };
    let graph = fused.graph_of(&model);
    assert!(graph.masks_documents());
    lower(&graph, &fused, 1).expect("the graph is the plan's");
    refused(&model, &plan, "mask_documents is true in the plan, and false in the graph");
    let unmasked = serial().plan(&model, "model", "local");
    refused(&masked, &unmasked, "mask_documents is false in the plan, and true in the graph");
    for text in [
        "mlp:inputs=8,hidden=12,layers=4,classes=4",
        "lstm:layers=1,hidden=16,embed=8,projection=8,seq=8,vocab=32",
    ] {
        let model = crate::support::graph(text);
        assert!(model.with_document_mask().is_none());
        let plan = Plan { mask_documents: true, ..serial().plan(&model, "model", "local") };
        refused(&plan.graph_of(&model), &plan, "causal");
    }
}
