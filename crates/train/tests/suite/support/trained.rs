//! What training comes to, and how far two runs are apart.

use std::collections::BTreeMap;

use shardloom_train::Trainer;

/// What rounding of weights around 1 makes of the distance that a parameter moves.
const ROUNDING: f64 = 2e-6;

pub struct Trained {
    pub losses: Vec<f64>,
    /// How far each parameter moved, by name.
    pub moved: BTreeMap<String, Vec<f32>>,
}

impl Trained {
    /// Trains in rows of so many steps, each from an empty pipeline to an empty one.
    pub fn in_rows(trainer: &mut Trainer, rows: &[u32]) -> Trained {
        let initial = trainer.weights().unwrap_or_else(|error| panic!("{error}"));
        let row = |&row: &u32| {
            trainer.train_steps(row).unwrap_or_else(|error| panic!("{error}")).into_iter()
        };
        let losses = rows.iter().flat_map(row).map(|step| step.loss).collect();
        let last = trainer.weights().unwrap_or_else(|error| panic!("{error}"));
        Trained { losses, moved: movement(&initial, last) }
    }

    /// How far all parameters together moved.
    pub fn distance(&self) -> f64 {
        norm(self.moved.values().flatten().copied())
    }

    /// Checks that losses differ by less than a share of themselves.
    pub fn assert_losses(&self, expected: &Trained, tolerance: f64, of: &str) {
        assert_eq!(self.losses.len(), expected.losses.len());
        for (step, (loss, expected)) in self.losses.iter().zip(&expected.losses).enumerate() {
            let apart = (loss - expected).abs() / expected;
            assert!(
                apart < tolerance,
                "step {step}: {loss} instead of {expected}, off by {apart:e}\n{of}"
            );
        }
    }

    /// Checks that every parameter moved alike, to a share of how far it did.
    pub fn assert_moved(&self, expected: &Trained, tolerance: f64, of: &str) {
        assert_eq!(self.moved.len(), expected.moved.len());
        for (name, expected) in &expected.moved {
            let pairs = self.moved[name].iter().zip(expected);
            let apart = norm(pairs.map(|(moved, expected)| moved - expected));
            let most = tolerance * norm(expected.iter().copied()) + ROUNDING;
            assert!(apart < most, "{name} is {apart:e} apart, at most {most:e}\n{of}");
        }
    }
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|it| f64::from(it).powi(2)).sum::<f64>().sqrt()
}

pub fn movement(
    from: &BTreeMap<String, Vec<f32>>,
    mut to: BTreeMap<String, Vec<f32>>,
) -> BTreeMap<String, Vec<f32>> {
    for (name, weights) in &mut to {
        weights.iter_mut().zip(&from[name]).for_each(|(to, from)| *to -= from);
    }
    to
}
