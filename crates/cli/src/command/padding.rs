//! Padding of tables.

use clap::Args;
use shardloom::Model;

use crate::failure::Failure;
use crate::number::size;

/// How tables for a vocabulary, or for categories, are padded.
#[derive(Args, Clone, Copy, Debug)]
pub struct Padding {
    /// Pad the tables of a MODEL's vocabulary, or of a dlrm's categories, to a multiple of N rows, which --tp then
    /// divides. Losses and gradients are those without padding, and weights are read and written without it
    #[arg(long, value_name = "N", value_parser = size)]
    pad_vocabulary: Option<usize>,
}

impl Padding {
    /// The option, if it was given.
    pub fn given(self) -> Option<&'static str> {
        self.pad_vocabulary.map(|_| "--pad-vocabulary")
    }

    /// The model with such tables.
    ///
    /// # Errors
    /// If it has none, or they would be absurd.
    pub fn of(self, model: Model) -> Result<Model, Failure> {
        match self.pad_vocabulary {
            Some(multiple) => Ok(model.with_padding(multiple)?),
            None => Ok(model),
        }
    }
}
