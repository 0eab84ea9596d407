//! A run on two ranks of this machine, as benches measure it.

use std::time::Duration;

use shardloom_data::{Batches, Corpus};
use shardloom_graph::Graph;
use shardloom_plan::Plan;
use shardloom_train::learning_rate::{Curve, LearningRate};
use shardloom_train::{OnNonFinite, RunClock, Settings, Trainer};

/// Two threads ready to train a language model on numbers that need no file.
pub fn trainer(graph: &Graph, plan: &Plan) -> Trainer {
    let dim = |name| graph.dim_named(name).map_or(1, |dim| graph.dim(dim).size);
    let (seq, vocab) = (dim("seq"), dim("vocab"));
    let tokens = (0..seq as u64 * 200).map(|at| (at * at % vocab as u64) as u32).collect();
    let corpus = Corpus::from_tokens(tokens, vocab, 0.0).expect("enough tokens");
    let batches = Batches::new(corpus, seq, 1).expect("enough tokens");
    let settings = Settings {
        seed: 1,
        learning_rate: LearningRate::new(Curve::Constant { peak: 1e-4 }).expect("a rate"),
        on_non_finite: OnNonFinite::Stop,
        timeout: Duration::from_secs(60),
        clock: RunClock::Wall,
    };
    Trainer::new(graph.clone(), plan, 2, Box::new(batches), settings).expect("a valid plan")
}
