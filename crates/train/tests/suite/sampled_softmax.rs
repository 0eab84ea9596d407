//! A loss over drawn classes: every plan draws the same, gradients of its weights may be rows and values, and
//! evaluations and what a model says of a text are over all classes.

use shardloom_graph::Graph;
use shardloom_plan::{
    Axis, Number, Optimizer, ParameterGroup, Plan, Precision, Summation, Sync, Uniform,
};
use shardloom_program::Rank;
use shardloom_train::Sampler;
use shardloom_train::learning_rate::Curve;

use crate::sparse::{
    HIDDEN, SEQ, VOCAB, assert_goes_on, assert_same, both, kinds, optimizers, sparsely, trained,
    trainer, uniform,
};
use crate::support::trained::Trained;
use crate::support::{Samples, graph, mesh, settings, trainer_with};

const DRAWN: usize = 12;

/// A model with a head of its own, and one whose head shares the embedding.
fn models() -> [Graph; 2] {
    [false, true].map(|tied| {
        graph(&format!(
            "lstm:layers=2,hidden={HIDDEN},embed={HIDDEN},seq={SEQ},vocab={VOCAB},tied={tied},\
             init_std=0.2,sampled_softmax={DRAWN}"
        ))
    })
}

/// The same model with a loss over all classes.
fn over_all(graph: &Graph) -> Graph {
    graph.with_full_softmax().expect("names that are free").into_owned()
}

#[test]
fn replicas_that_exchange_rows_train_the_weights_of_dense_gradients_bit_for_bit() {
    for graph in models() {
        for optimizer in optimizers() {
            for replicas in [1, 2, 3, 4, 8] {
                let uniform = Uniform { mesh: mesh(replicas, 1, 1), optimizer, ..uniform() };
                let [dense, sparse] = both(&graph, &uniform);
                let what = format!("{} at {replicas} replicas", optimizer.name());
                assert_same(&trained(&graph, &sparse), &trained(&graph, &dense), &what);
            }
        }
    }
}

/// But where tensor-parallel devices have parts of the sequence, whose gradients are added up in another order.
#[test]
fn plans_of_every_kind_train_the_weights_of_dense_gradients_bit_for_bit() {
    let [graph, _] = models();
    for (what, plan) in kinds(&graph) {
        let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01, reference_batch: None };
        let plan = Plan { optimizer, ..plan };
        let sparse = sparsely(&plan, true);
        if plan.layout.0.iter().any(|it| it.dim == "seq" && it.axis == Axis::TP) {
            let of = |plan: &Plan| Trained::in_rows(&mut trainer(&graph, plan), &[4]);
            of(&sparse).assert_moved(&of(&plan), 1e-5, &what);
        } else {
            assert_same(&trained(&graph, &sparse), &trained(&graph, &plan), &what);
        }
    }
}

/// Every replica reads the rows of its targets and of all drawn classes.
#[test]
fn replicas_hold_and_send_rows_of_targets_and_drawn_classes() {
    let [graph, _] = models();
    for (replicas, microbatches) in [(1, 1), (2, 1), (2, 3), (4, 2)] {
        let uniform = Uniform { mesh: mesh(replicas, 1, 1), microbatches, ..uniform() };
        let sent = both(&graph, &uniform).map(|plan| {
            let mut trainer = trainer(&graph, &plan);
            trainer.train_steps(2).expect("steps");
            let program = trainer.program();
            for (rank, &peak) in (0..).map(Rank).zip(trainer.peak_bytes_per_rank()) {
                let (class, position) = program.locate(rank);
                let expected = program.class(class).memory_use(program, position).peak_bytes;
                assert_eq!(peak, expected, "{replicas} replicas, {microbatches} micro-batches");
            }
            for (rank, &sent) in (0..).map(Rank).zip(trainer.sent_bytes_per_rank()) {
                let (class, position) = program.locate(rank);
                assert_eq!(sent, 2 * program.sent_bytes(class, position));
            }
            trainer.sent_bytes_per_rank().iter().sum::<u64>() as usize / 2
        });
        let n = replicas as usize;
        let looked_up = 24 / n * SEQ;
        let read = looked_up + microbatches * DRAWN;
        let rows = (looked_up + read) * (4 + 4 * HIDDEN);
        let tables = 4 * VOCAB * 2 * HIDDEN;
        assert_eq!(sent[0] - 2 * (n - 1) * tables, sent[1] - n * (n - 1) * rows, "{n} replicas");
    }
}

#[test]
fn an_evaluation_is_over_all_classes_and_its_loss_falls() {
    for graph in models() {
        let full = over_all(&graph);
        let fast = |graph: &Graph, mesh| {
            let uniform = Uniform { mesh, global_batch: 8, ..uniform() };
            let samples = Samples::patterned(64, SEQ, VOCAB as u32);
            let plan = uniform.plan(graph, "model", "local");
            trainer_with(graph, &plan, samples, settings(Curve::Constant { peak: 0.03 }))
        };
        let mut drawing = fast(&graph, mesh(2, 1, 1));
        let loss = |of: &mut shardloom_train::Trainer| {
            of.validate(4).expect("an evaluation").expect("there are samples")
        };
        let first = loss(&mut drawing);
        let mut losses = vec![];
        for _ in 0..3 {
            drawing.train_steps(60).expect("steps");
            let weights = drawing.weights().expect("weights");
            let found = loss(&mut drawing);
            let mut other = fast(&full, mesh(1, 1, 1));
            other.set_weights(weights).expect("the same parameters");
            let expected = loss(&mut other);
            assert!((found - expected).abs() < 1e-5 * expected, "{found} for {expected}");
            losses.push(found);
        }
        assert!(losses[2] < 0.9 * first, "{losses:?} after {first}");
    }
}

#[test]
fn what_it_says_of_a_text_is_of_all_classes() {
    for graph in models() {
        let weights = trained(&graph, &both(&graph, &uniform())[1]);
        let of = |graph: Graph| {
            let mut sampler = Sampler::new(graph, &weights, None).expect("a sampler");
            sampler.logits(&[3, 1, 4]).expect("logits")
        };
        let logits = of(graph.clone());
        assert_eq!(logits.len(), VOCAB);
        assert_eq!(logits, of(over_all(&graph)));
    }
}

#[test]
fn a_run_goes_on_with_dense_gradients_and_under_another_mesh() {
    let [graph, _] = models();
    assert_goes_on(&graph, mesh(2, 1, 1), mesh(4, 1, 1));
}

#[test]
fn formats_of_16_bits_are_near_fp32() {
    let [graph, _] = models();
    let precision = Precision { compute: Number::Bf16, master: true, ..Precision::MIXED };
    for gradients in [Number::Fp32, Number::Bf16] {
        let precision = Precision { gradients, ..precision };
        let base = Uniform { mesh: mesh(2, 1, 1), optimizer: Optimizer::sgd(0.9), ..uniform() };
        let [wide, narrow] = [base.clone(), Uniform { precision, ..base }].map(|uniform| {
            let [_, sparse] = both(&graph, &uniform);
            Trained::in_rows(&mut trainer(&graph, &sparse), &[4])
        });
        narrow.assert_losses(&wide, 2e-2, "bf16");
    }
}

#[test]
fn weights_that_an_evaluation_reads_whole_lie_on_no_servers() {
    let [graph, _] = models();
    let base = Uniform { pp: 1, mesh: mesh(2, 1, 1), ..uniform() };
    let base = base.plan(&graph, "model", "local");
    let on_servers = |names: &str| ParameterGroup {
        sparse: Some(true),
        servers: Some(vec![0]),
        ..ParameterGroup::named(names)
    };
    let others = ParameterGroup { servers: Some(vec![]), ..ParameterGroup::named("*") };
    let sync = Sync { summation: Some(Summation::of(1)), ..base.sync };
    let plan = |names: &str| {
        let parameters = vec![on_servers(names), others.clone()];
        Plan { sync, parameters, ..base.clone() }
    };
    let refused = plan("head.weight").validate(&graph, 3).expect_err("refused").to_string();
    assert!(refused.contains("an evaluation reads all rows of head.weight"), "{refused}");
}
