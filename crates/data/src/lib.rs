//! What feeds training: text to tokens, tokens to an endless, resumable
//! sequence of samples.
//!
//! A [`Tokenizer`] turns files into a [`Corpus`], one stream of tokens cut into
//! a training and a validation part, which are read from files where they are wanted ([`Reading`] says where encoded
//! text is kept). [`Batches`] cuts the stream into windows
//! and gives every sample position, from 0 without end, its window. A [`Table`]
//! has a row of features for every position instead, [`Records`] one of numbers and categories; all are a
//! [`Source`], and so are [`Rows`], which a trained model is to classify. A
//! [`WordVocabulary`] makes a tokenizer of whole words. Nothing
//! here knows how many ranks there are: a global batch is a range of positions,
//! and who takes which of them is the program's business, so the order of
//! samples is the same for every plan and a position is all it takes to resume.

mod batches;
mod blocks;
mod cache;
mod character_map;
mod corpus;
mod documents;
mod encode;
mod error;
mod fields;
mod growth;
mod parts;
mod permutation;
mod reading;
mod records;
mod rows;
mod source;
mod stretch;
mod table;
mod text;
mod text_files;
mod token_files;
mod tokenizer;
mod vocabulary;
mod words;

pub use batches::{Batches, Sample};
pub use corpus::Corpus;
pub use error::{DataError, Result};
pub use reading::{Progress, Reading, Stage, TEXT_FIELD};
pub use records::Records;
pub use rows::{Columns, Rows};
pub use source::{Field, Part, Source};
pub use table::Table;
pub use tokenizer::Tokenizer;
pub use words::WordVocabulary;
