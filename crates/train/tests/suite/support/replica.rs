//! A replica as a run of its own, which is what parallel runs are replayed with.

use std::collections::BTreeMap;

use shardloom_checkpoint::{Meta, Store};
use shardloom_train::Trainer;

use super::losses;

/// Numbers by the name of the parameter that they are of.
pub type Tensors = BTreeMap<String, Vec<f32>>;

/// One of several replicas: a run on one micro-batch a step by descent with momentum, whose velocity after a
/// first step is the gradient.
pub struct Replica {
    run: Trainer,
    /// How many replicas there are, a power of two.
    replicas: usize,
    pub weights: Tensors,
    /// Its parts of the means over all replicas, by step.
    pub gradients: Vec<Tensors>,
    pub losses: Vec<f64>,
}

impl Replica {
    pub fn new(mut run: Trainer, replicas: usize) -> Replica {
        assert!(replicas.is_power_of_two(), "it divides exactly");
        let weights = run.weights().expect("weights");
        Replica { run, replicas, weights, gradients: vec![], losses: vec![] }
    }

    /// Computes its part of the gradients of its next step, as the replica of this number.
    pub fn compute(&mut self, number: usize) {
        let position = self.gradients.len() * self.replicas + number;
        // The micro-batches before its own are those of others.
        let passed = position - self.run.next_step() as usize;
        losses(&mut self.run, passed);
        self.run.set_weights(self.weights.clone()).expect("weights");
        self.losses.push(losses(&mut self.run, 1)[0]);
        let folder = tempfile::tempdir().expect("a folder");
        self.run.save(folder.path(), Meta::default(), None).expect("saved");
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let checkpoint = latest.expect("the checkpoint").0;
        let gradient = |name: &String| {
            let mean = checkpoint.read_whole(&format!("optimizer.0/{name}")).expect("a velocity");
            (name.clone(), mean.iter().map(|it| it / self.replicas as f32).collect())
        };
        self.gradients.push(self.weights.keys().map(gradient).collect());
    }
}
