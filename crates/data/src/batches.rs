//! Which tokens each sample has.

use crate::corpus::Corpus;
use crate::permutation::Permutation;
use crate::source::{Field, Part, Source};
use crate::{DataError, Result};

/// One window of tokens: `targets[i]` is the token that follows `inputs[i]`.
/// Both are as long as the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// The tokens the model reads.
    pub inputs: &'a [u32],
    /// The tokens it should predict.
    pub targets: &'a [u32],
}

/// The samples of a training run, by position, without end.
///
/// The training part is cut into windows of `sequence_length + 1` tokens, one
/// `sequence_length` apart, so that neighbours share one token and every token
/// but the first is predicted once; what remains at the end is not used. Each
/// epoch visits every window once, in an order that depends on nothing but the
/// seed and the epoch.
#[derive(Debug)]
pub struct Batches {
    corpus: Corpus,
    sequence_length: usize,
    seed: u64,
    windows: u64,
    validation_windows: u64,
}

impl Batches {
    /// Cuts a corpus into windows.
    ///
    /// # Errors
    ///
    /// [`DataError::SequenceLength`] for a sequence length of 0,
    /// [`DataError::CorpusTooShort`] if the training part, or a validation part
    /// that was asked for, has no whole window.
    pub fn new(corpus: Corpus, sequence_length: usize, seed: u64) -> Result<Self> {
        if sequence_length == 0 {
            return Err(DataError::SequenceLength);
        }
        let windows = |part, tokens: &[u32]| match tokens.len().saturating_sub(1) / sequence_length
        {
            0 => Err(DataError::CorpusTooShort {
                part,
                tokens: tokens.len(),
                needed: sequence_length.saturating_add(1),
                sequence_length,
            }),
            windows => Ok(windows as u64),
        };
        let training_windows = windows("training", corpus.training())?;
        let validation_windows = match corpus.validation() {
            [] => 0,
            tokens => windows("validation", tokens)?,
        };
        Ok(Self { corpus, sequence_length, seed, windows: training_windows, validation_windows })
    }

    /// The corpus the samples come from.
    #[must_use]
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Input tokens of one sample.
    #[must_use]
    pub fn sequence_length(&self) -> usize {
        self.sequence_length
    }

    /// Samples of one epoch.
    #[must_use]
    pub fn epoch_len(&self) -> u64 {
        self.windows
    }

    /// The sample at a position of the run. Positions count from 0 over all
    /// epochs, so that epoch `position / epoch_len` is at its sample
    /// `position % epoch_len`.
    #[must_use]
    pub fn sample(&self, position: u64) -> Sample<'_> {
        let order = Permutation::new(self.windows, self.seed, position / self.windows);
        let window = order.image(position % self.windows);
        self.window(self.corpus.training(), window)
    }

    /// Samples of the validation part; 0 if there is none.
    #[must_use]
    pub fn validation_len(&self) -> u64 {
        self.validation_windows
    }

    /// Sample `index` of the validation part, in the order of the corpus;
    /// nothing at or past [`validation_len`](Self::validation_len).
    #[must_use]
    pub fn validation_sample(&self, index: u64) -> Option<Sample<'_>> {
        (index < self.validation_windows).then(|| self.window(self.corpus.validation(), index))
    }

    fn window<'a>(&self, tokens: &'a [u32], window: u64) -> Sample<'a> {
        let start = window as usize * self.sequence_length;
        let end = start + self.sequence_length;
        Sample { inputs: &tokens[start..end], targets: &tokens[start + 1..=end] }
    }
}

impl Source for Batches {
    fn field(&self, part: Part, position: u64, input: &str) -> Option<Field<'_>> {
        let sample = match part {
            Part::Training => self.sample(position),
            Part::Validation => self.validation_sample(position)?,
        };
        match input {
            "tokens" => Some(Field::Indices(sample.inputs)),
            "targets" => Some(Field::Indices(sample.targets)),
            _ => None,
        }
    }

    fn validation_len(&self) -> u64 {
        Batches::validation_len(self)
    }
}
