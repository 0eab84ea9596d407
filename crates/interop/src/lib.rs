//! Models and weights of other tools.
//!
//! [`huggingface::read_config`] turns a Hugging Face `config.json` into a model, and [`weights`] turns
//! tensors under Hugging Face's names and layouts into this model's parameters, and back.

pub mod huggingface;
pub mod weights;

mod error;
mod model_type;

pub use error::InteropError;
pub use model_type::ModelType;
