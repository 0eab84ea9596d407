//! What a model comes to on samples that it is not trained on.

use std::collections::BTreeMap;

use shardloom_data::{Field, Part};

use super::Trainer;
use crate::executor::{Command, Done};
use crate::rank::StepOutcome;
use crate::{Error, Result};

/// What a model comes to on validation samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss per target.
    pub loss: f64,
    /// Of a classifier of samples, the share of them whose class is their target: that of the largest logit, of
    /// equal ones the first, and where one logit is for two classes, the second if it is above 0. A sample with a
    /// logit that is no number has no class.
    pub accuracy: Option<f64>,
}

impl Trainer {
    /// Mean loss per target over the first validation samples, as [`Trainer::evaluate`].
    ///
    /// # Errors
    /// If a rank fails.
    pub fn validate(&mut self, most: u64) -> Result<Option<f64>> {
        Ok(self.evaluate(most)?.map(|evaluation| evaluation.loss))
    }

    /// How many of the first validation samples [`Trainer::evaluate`] takes: whole micro-batches, `most` at most.
    pub fn evaluated_samples(&self, most: u64) -> u64 {
        let samples = self.shared.program.microbatch_samples as u64;
        (self.shared.source.validation_len() / samples).min(most) * samples
    }

    /// What the model comes to on the first validation samples: as many whole micro-batches as there are, at
    /// most `most`. None if there are fewer samples than one micro-batch.
    ///
    /// # Errors
    /// If a rank fails, or data cannot be read.
    pub fn evaluate(&mut self, most: u64) -> Result<Option<Evaluation>> {
        let samples = self.shared.program.microbatch_samples as u64;
        let microbatches = self.evaluated_samples(most) / samples;
        if microbatches == 0 {
            return Ok(None);
        }
        let done = self.running.run(&Command::Evaluate { microbatches })?;
        self.note(&done);
        let targets = microbatches * samples * self.shared.graph.targets_per_sample() as u64;
        let outcomes: Vec<&[StepOutcome]> = done.iter().map(|done| &done.steps[..]).collect();
        let loss = self.loss_sum(&outcomes, 0) / targets as f64;
        let accuracy = match self.shared.graph.sample_classes() {
            Some(_) => Some(self.accuracy(&done, microbatches * samples)?),
            None => None,
        };
        Ok(Some(Evaluation { loss, accuracy }))
    }

    /// The share of so many validation samples whose class is their target. Ranks that have a part of the classes
    /// each say the first of theirs that has the largest logit, so the first of these is the class.
    fn accuracy(&self, done: &[Done], samples: u64) -> Result<f64> {
        let mut classes = BTreeMap::new();
        for &(sample, class) in done.iter().flat_map(|done| &done.classes) {
            let first = classes.entry(sample).or_insert(class);
            *first = class.min(*first);
        }
        let input = &self.shared.graph.value(self.shared.graph.targets()).name;
        let mut room = vec![];
        let mut right = 0_u64;
        for sample in 0..samples {
            let target = self.shared.source.field(Part::Validation, sample, input, &mut room)?;
            let Some(Field::Indices(&[target])) = target else {
                return Err(Error::Input { input: input.clone(), position: sample });
            };
            right += u64::from(classes.get(&sample) == Some(&target));
        }
        Ok(right as f64 / samples as f64)
    }
}
