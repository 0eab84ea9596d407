//! Which tokens each sample has.

use std::ops::Range;

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
        let windows = |part, tokens: u64| match tokens.saturating_sub(1) / sequence_length as u64 {
            0 => Err(DataError::CorpusTooShort {
                part,
                tokens,
                needed: (sequence_length as u64).saturating_add(1),
                sequence_length,
            }),
            windows => Ok(windows),
        };
        let training_windows = windows("training", corpus.training_len())?;
        let validation_windows = match corpus.validation_len() {
            0 => 0,
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

    /// The sample at a position of the run, which is written into `room`. Positions count from 0 over all
    /// epochs, so that epoch `position / epoch_len` is at its sample
    /// `position % epoch_len`.
    ///
    /// # Errors
    ///
    /// If the corpus cannot be read.
    pub fn sample<'a>(&self, position: u64, room: &'a mut Vec<u32>) -> Result<Sample<'a>> {
        self.corpus.read(self.whole(self.training_start(position)), room)?;
        Ok(self.cut(room))
    }

    /// Samples of the validation part; 0 if there is none.
    #[must_use]
    pub fn validation_len(&self) -> u64 {
        self.validation_windows
    }

    /// Sample `index` of the validation part, in the order of the corpus, which is written into `room`;
    /// nothing at or past [`validation_len`](Self::validation_len).
    ///
    /// # Errors
    ///
    /// If the corpus cannot be read.
    pub fn validation_sample<'a>(
        &self,
        index: u64,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Sample<'a>>> {
        let Some(start) = self.validation_start(index) else { return Ok(None) };
        self.corpus.read(self.whole(start), room)?;
        Ok(Some(self.cut(room)))
    }

    /// Where the window of a position begins.
    fn training_start(&self, position: u64) -> u64 {
        let order = Permutation::new(self.windows, self.seed, position / self.windows);
        order.image(position % self.windows) * self.sequence_length as u64
    }

    fn validation_start(&self, index: u64) -> Option<u64> {
        (index < self.validation_windows)
            .then(|| self.corpus.training_len() + index * self.sequence_length as u64)
    }

    /// The tokens of a window: a sequence and one more.
    fn whole(&self, start: u64) -> Range<u64> {
        start..start + self.sequence_length as u64 + 1
    }

    fn cut<'a>(&self, window: &'a [u32]) -> Sample<'a> {
        Sample { inputs: &window[..self.sequence_length], targets: &window[1..] }
    }
}

impl Source for Batches {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>> {
        let start = match part {
            Part::Training => Some(self.training_start(position)),
            Part::Validation => self.validation_start(position),
        };
        let Some(start) = start else { return Ok(None) };
        let tokens = |shift: u64| start + shift..start + shift + self.sequence_length as u64;
        match (input, self.corpus.end_of_text()) {
            ("tokens", _) => self.corpus.read(tokens(0), room)?,
            ("targets", _) => self.corpus.read(tokens(1), room)?,
            ("documents", Some(end)) => {
                self.corpus.read(tokens(0), room)?;
                document_starts(room, end);
            }
            _ => return Ok(None),
        }
        Ok(Some(Field::Indices(room)))
    }

    fn validation_len(&self) -> u64 {
        Batches::validation_len(self)
    }
}

/// Of tokens the first position of the document that each is of, in their place. The token that ends a document is its
/// last; the first document may have begun before.
fn document_starts(tokens: &mut [u32], end_of_text: u32) {
    let mut start = 0;
    for (position, token) in (0..).zip(tokens) {
        let ends = *token == end_of_text;
        *token = start;
        if ends {
            start = position + 1;
        }
    }
}
