//! Where samples come from.

use crate::Result;

/// Which part of the data is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is trained on, in its shuffled, endless order.
    Training,
    /// What is only evaluated.
    Validation,
}

/// One input of one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// Tokens or classes.
    Indices(&'a [u32]),
    /// Features.
    Reals(&'a [f32]),
}

/// A source of samples. Sample `position` is the same whoever asks, so the data does not depend on how
/// a batch is split.
pub trait Source: Sync {
    /// The input called `input` of the sample at `position`; none if there is no such input. What a source does not
    /// have in memory it writes into `room`, which keeps its memory from sample to sample.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>>;

    /// How many samples there are to validate on.
    fn validation_len(&self) -> u64;
}
