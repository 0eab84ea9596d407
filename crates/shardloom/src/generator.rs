//! Text from a trained model.

use std::path::Path;

use shardloom_checkpoint::Refused;
use shardloom_data::Tokenizer;
use shardloom_train::Sampler;

use crate::saved::{available_bytes, model_of, open_checkpoint, weights_of};
use crate::trained_tokenizer::{other_tokenizer, trained_tokenizer};
use crate::training_data::require_vocabulary;
use crate::{Error, Result, TextTokenizer};

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawing {
    /// By what logits are divided; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are drawn from; all if absent.
    pub top_k: Option<usize>,
    /// Seed of the drawing.
    pub seed: u64,
}

/// A trained language model that goes on with a text.
pub struct Generator {
    model: String,
    sampler: Sampler,
    tokenizer: TextTokenizer,
    tokens: Vec<u32>,
    drawing: Drawing,
    random: SplitMix64,
    refused: Vec<Refused>,
    trained_with: Option<String>,
}

impl Generator {
    /// Opens a checkpoint, or the newest sound one of a folder of checkpoints. The tokenizer is the one
    /// that the model was trained with, unless another is given.
    ///
    /// # Errors
    /// If there is no sound checkpoint, the model is no causal language model, the tokenizer cannot be
    /// read or has more tokens than the model, or the drawing makes no sense.
    pub fn open(path: &Path, tokenizer: Option<&str>, drawing: Drawing) -> Result<Generator> {
        let Drawing { temperature, top_k, seed } = drawing;
        if !(temperature.is_finite() && temperature >= 0.0) {
            let rule = "a temperature is finite and at least 0";
            let value = temperature.to_string();
            return Err(Error::Drawing { key: "temperature", value, rule });
        }
        if top_k == Some(0) {
            let rule = "at least 1 token is needed to draw from";
            return Err(Error::Drawing { key: "top-k", value: "0".into(), rule });
        }
        let (checkpoint, refused) = open_checkpoint(path)?;
        let model = model_of(&checkpoint)?;
        let given = tokenizer;
        let tokenizer = match given {
            Some(name) => TextTokenizer::open(name)?,
            None => trained_tokenizer(&checkpoint)?,
        };
        let trained_with = given.and_then(|_| other_tokenizer(&checkpoint, &tokenizer));
        let weights = weights_of(&checkpoint, &model)?;
        let sampler =
            Sampler::new(model.graph().clone(), &weights, available_bytes()).map_err(|error| {
                match error {
                    shardloom_train::Error::Sampling { mut reason } => {
                        if model.graph().sample_classes().is_some() {
                            reason += "; `shardloom predict` gives rows of a table their class";
                        }
                        Error::NoSampling { model: model.spec().name().into(), reason }
                    }
                    other => other.into(),
                }
            })?;
        require_vocabulary(&model, tokenizer.tokenizer().vocabulary_size(), || {
            format!("tokens of the tokenizer {}", given.unwrap_or(tokenizer.name()))
        })?;
        let random = SplitMix64(seed);
        let model = model.spec().name().to_owned();
        let tokens = vec![];
        Ok(Generator { model, sampler, tokenizer, tokens, drawing, random, refused, trained_with })
    }

    /// The tokenizer that the model was trained with, if another was given, whose tokens mean something else.
    pub fn trained_with(&self) -> Option<&str> {
        self.trained_with.as_deref()
    }

    /// Newer checkpoints that were not used.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Adds a text to go on from.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn prompt(&mut self, text: &str) -> Result<()> {
        self.tokens.extend(self.tokenizer.tokenizer().encode(text)?);
        Ok(())
    }

    /// Draws the next token.
    ///
    /// # Errors
    /// If nothing was prompted, or the weights are such that a logit is no number.
    pub fn next_token(&mut self) -> Result<u32> {
        let mut logits = self.sampler.logits(&self.tokens)?;
        // Entries past the tokenizer's vocabulary only round the model's sizes; they have no text.
        logits.truncate(self.tokenizer.tokenizer().vocabulary_size());
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(Error::NoSampling {
                model: self.model.clone(),
                reason:
                    "its weights lead to logits that are no numbers, as after training on through \
                         losses that were not finite; take an earlier checkpoint"
                        .into(),
            });
        }
        let token = draw(&logits, self.drawing, &mut self.random);
        self.tokens.push(token);
        Ok(token)
    }

    /// Everything so far, prompt included.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn text(&self) -> Result<String> {
        Ok(self.tokenizer.tokenizer().decode(&self.tokens)?)
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.tokenizer.tokenizer()
    }
}

/// Draws an index with probability proportional to `exp(logit / temperature)` among the `top_k` largest;
/// of equal logits the first is the larger.
fn draw(logits: &[f32], drawing: Drawing, random: &mut SplitMix64) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let logit = |index: u32| f64::from(logits[index as usize]);
    order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)));
    order.truncate(drawing.top_k.unwrap_or(usize::MAX));
    let Some(&first) = order.first() else { return 0 };
    if drawing.temperature == 0.0 {
        return first;
    }
    let weight = |index: u32| ((logit(index) - logit(first)) / drawing.temperature).exp();
    let total: f64 = order.iter().map(|&index| weight(index)).sum();
    let mut left = random.next_fraction() * total;
    for &index in &order {
        left -= weight(index);
        if left < 0.0 {
            return index;
        }
    }
    // Rounding may leave a crumb of the total.
    order[order.len() - 1]
}

/// SplitMix64 (Steele, Lea and Flood 2014, figure 16).
struct SplitMix64(u64);

impl SplitMix64 {
    /// A number in `[0, 1)`.
    fn next_fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 * 2f64.powi(-53)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, -1.0, 1.0];

    fn counts(drawing: Drawing) -> [u32; 4] {
        let mut random = SplitMix64(drawing.seed);
        let mut counts = [0; 4];
        for _ in 0..20_000 {
            counts[draw(&LOGITS, drawing, &mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn temperature_zero_takes_the_likeliest() {
        assert_eq!(counts(Drawing { temperature: 0.0, top_k: None, seed: 3 }), [0, 20_000, 0, 0]);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let total: f64 = LOGITS.iter().map(|&logit| f64::from(logit).exp()).sum();
        for (count, logit) in
            counts(Drawing { temperature: 1.0, top_k: None, seed: 3 }).into_iter().zip(LOGITS)
        {
            let expected = f64::from(logit).exp() / total;
            assert!((f64::from(count) / 20_000.0 - expected).abs() < 0.015, "{count} {expected}");
        }
    }

    #[test]
    fn top_k_leaves_out_all_but_the_k_likeliest() {
        let counts = counts(Drawing { temperature: 5.0, top_k: Some(2), seed: 3 });
        assert_eq!((counts[0], counts[2]), (0, 0));
        assert!(counts[1] > counts[3] && counts[3] > 5_000, "{counts:?}");
    }

    #[test]
    fn split_mix_gives_the_published_sequence() {
        // First output for seed 1234567, as the reference implementation prints it.
        let bits = 6_457_827_717_110_365_317_u64;
        let expected = (bits >> 11) as f64 * 2f64.powi(-53);
        assert_eq!(SplitMix64(1_234_567).next_fraction(), expected);
    }
}
