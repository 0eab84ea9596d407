//! The classes that a trained classifier gives to samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardloom_data::{Field, Part, Source};
use shardloom_graph::{Graph, SampleClasses};

use crate::forward::{Forward, with_all_classes};
use crate::{Error, Result};

/// Samples that go through the model at once, at most.
const AT_ONCE: usize = 64;

/// The class of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classification {
    /// That of the largest logit, of equal ones the first; where one logit is for two classes, the second if it
    /// is above 0.
    pub class: u32,
    /// Its probability: the softmax of the logits, where there is one logit its sigmoid or what that leaves to 1.
    pub probability: f64,
}

/// A trained classifier, on one rank and in fp32.
pub struct Classifier {
    forward: Forward,
    classes: SampleClasses,
    samples: u64,
    at_once: u64,
}

impl Classifier {
    /// A classifier by `graph` with the given weights, whole tensors by parameter name, of the samples that
    /// `source` has for validation. Their targets are not asked for. `available_bytes` of memory are there for it,
    /// if the system says how many.
    ///
    /// # Errors
    /// If the model does not tell classes of samples apart; if it needs more memory than is there; if a weight is
    /// missing or has another size, or the environment asks for kernels that cannot be had.
    pub fn new(
        graph: Graph,
        weights: &BTreeMap<String, Vec<f32>>,
        source: Arc<dyn Source + Send>,
        available_bytes: Option<u64>,
    ) -> Result<Classifier> {
        let reason =
            "it has a target for each position of a sequence and not one class for each sample";
        let graph = with_all_classes(&graph)?;
        let classes =
            graph.sample_classes().ok_or_else(|| Error::Classes { reason: reason.into() })?;
        let samples = source.validation_len();
        let at_once = samples.clamp(1, AT_ONCE as u64);
        let source = Arc::new(Filled(source));
        let forward = Forward::new(graph, weights, source, at_once as usize, available_bytes)?;
        Ok(Classifier { forward, classes, samples, at_once })
    }

    /// The class of each sample, in order.
    ///
    /// # Errors
    /// If data cannot be read, or the weights are such that a logit is not finite.
    pub fn classify(&mut self) -> Result<Vec<Classification>> {
        let mut all = Vec::with_capacity(self.samples as usize);
        for first in (0..self.samples).step_by(self.at_once as usize) {
            let logits = self.forward.logits(first)?;
            let rows = logits.chunks(if self.classes.one_logit { 1 } else { self.classes.count });
            let is_there = (self.samples - first).min(self.at_once) as usize;
            for row in rows.take(is_there) {
                let reason = "its weights lead to logits that are not finite, as after training on through \
                              losses that were not finite; take an earlier checkpoint";
                let class = classified(row, self.classes.one_logit)
                    .ok_or_else(|| Error::Classes { reason: reason.into() })?;
                all.push(class);
            }
        }
        Ok(all)
    }
}

/// The class of a sample by its logits; none if one is not finite.
fn classified(logits: &[f32], one_logit: bool) -> Option<Classification> {
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    // One logit is how much larger that of the second class is.
    let pair = [0.0, logits.first().copied()?];
    let logits = if one_logit { &pair } else { logits };
    let larger = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    let class = (0..logits.len()).reduce(larger)?;
    let most = f64::from(logits[class]);
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    Some(Classification { class: class as u32, probability: 1.0 / total })
}

/// Samples, behind whose last that one is given again.
struct Filled(Arc<dyn Source + Send>);

impl Source for Filled {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> shardloom_data::Result<Option<Field<'a>>> {
        let last = self.0.validation_len().saturating_sub(1);
        self.0.field(part, position.min(last), input, room)
    }

    fn validation_len(&self) -> u64 {
        self.0.validation_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(logits: &[f32], one_logit: bool) -> (u32, f64) {
        let found = classified(logits, one_logit).expect("numbers");
        (found.class, found.probability)
    }

    #[test]
    fn the_first_of_the_largest_logits_is_the_class() {
        let near = |(class, probability): (u32, f64), expected: (u32, f64)| {
            assert_eq!(class, expected.0);
            assert!((probability - expected.1).abs() < 1e-12, "{probability} for {expected:?}");
        };
        // e^2 / (e^1 + e^2 + e^0)
        near(class(&[1.0, 2.0, 0.0], false), (1, 0.665_240_955_774_821_8));
        near(class(&[3.0, 5.0, 5.0], false), (1, 1.0 / (2.0 + (-2.0_f64).exp())));
        near(class(&[7.0, 7.0], false), (0, 0.5));
        near(class(&[1e30, -1e30], false), (0, 1.0));
        assert_eq!(classified(&[0.0, f32::NAN], false), None);
        assert_eq!(classified(&[0.0, f32::INFINITY], false), None);
    }

    #[test]
    fn one_logit_is_for_two_classes() {
        // The sigmoid of 1, and what that of -1 leaves.
        let likely = 0.731_058_578_630_004_9;
        for (logit, expected) in [(1.0, 1), (-1.0, 0)] {
            let (class, probability) = class(&[logit], true);
            assert_eq!(class, expected);
            assert!((probability - likely).abs() < 1e-12, "{probability}");
        }
        assert_eq!(class(&[0.0], true), (0, 0.5));
        // A single class has all of the probability.
        assert_eq!(class(&[-3.0], false), (0, 1.0));
    }
}
