//! Runs from given weights.

use std::collections::BTreeMap;

use shardloom_plan::{Plan, Updates};
use shardloom_train::Trainer;
use shardloom_train::learning_rate::Curve;

use super::data::Data;
use super::words::{Combination, combinations, serial_plan};
use crate::support::{losses, trainer};

/// Largest relative difference to the loss of the serial run in the same formats: in 16 bits other splits round
/// otherwise.
fn tolerance(format: usize) -> f64 {
    if format == 0 { 1e-5 } else { 2_f64.powi(-10) }
}

/// A rate at which no weight moves.
const STILL: Curve = Curve::Constant { peak: 1e-30 };

/// Steps before weights are given for the second time.
const BEFORE: u32 = 2;

type Weights = BTreeMap<String, Vec<f32>>;

/// Weights that are nobody's first, and with them the serial run's losses of the first step and of that
/// after [`BEFORE`] steps.
struct Given {
    weights: Weights,
    expected: [f64; 2],
}

impl Given {
    fn of(combination: &Combination<'_>) -> Given {
        let graph = combination.graph;
        let precision = combination.plan.precision;
        let plan = Plan { precision, ..serial_plan(graph) };
        let start = || trainer(graph, &plan, Data::new(graph, false), 1e-2);
        let mut trained = start();
        let own = losses(&mut trained, 6)[0];
        let weights = trained.weights().unwrap_or_else(|error| panic!("{error}"));
        let mut serial = start();
        let expected = [0, BEFORE as usize].map(|before| {
            let trained = serial.next_step() as usize;
            losses(&mut serial, before - trained);
            give(&mut serial, &weights);
            losses(&mut serial, 1)[0]
        });
        let apart = (own - expected[0]).abs() / own;
        let least = 4.0 * tolerance(combination.format());
        assert!(apart > least.max(1e-3), "{apart} tells no weights apart");
        Given { weights, expected }
    }
}

fn give(trainer: &mut Trainer, weights: &Weights) {
    trainer.set_weights(weights.clone()).unwrap_or_else(|error| panic!("{error}"));
}

fn check(combination: &Combination<'_>, given: &Given) {
    // Within a step of several updates only the first passes run with what was given.
    let mut run = match combination.plan.updates {
        Updates::Step => combination.start(),
        Updates::Round => combination.start_with(STILL),
    };
    let mut first_loss = |steps: u32| {
        give(&mut run, &given.weights);
        let trained = run.train_steps(steps);
        trained.unwrap_or_else(|error| panic!("{error} in {combination}"))[0].loss
    };
    let found = [first_loss(BEFORE), first_loss(1)];
    for (loss, expected) in found.into_iter().zip(given.expected) {
        let apart = (loss - expected).abs() / expected;
        assert!(
            apart < tolerance(combination.format()),
            "{loss} instead of {expected}, off by {apart:e} in {combination}"
        );
    }
}

#[test]
fn given_weights_lose_under_every_two_words_what_they_lose_serially() {
    let mut given: BTreeMap<(&str, usize), Given> = BTreeMap::new();
    for combination in combinations() {
        let of = (combination.graph.name(), combination.format());
        let given = given.entry(of).or_insert_with(|| Given::of(combination));
        check(combination, given);
    }
}
