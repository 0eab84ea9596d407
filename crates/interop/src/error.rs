//! What can be wrong with another tool's model.

use shardloom_graph::GraphError;

/// Why a model or its weights cannot be taken over.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InteropError {
    /// A configuration is not JSON, or not an object.
    #[error("{place}: {message}")]
    Json {
        /// The file.
        place: String,
        /// What is wrong, with line and column.
        message: String,
    },
    /// The kind of model is not supported.
    #[error("{place}: model_type {found:?} is not supported; supported are {supported}")]
    ModelType {
        /// The file.
        place: String,
        /// What it says.
        found: String,
        /// What it might say.
        supported: &'static str,
    },
    /// The kind of model has something that this program's models have not.
    #[error(
        "{place}: model_type {found:?} is not supported, as it has {what}; supported are {supported}"
    )]
    OtherModel {
        /// The file.
        place: String,
        /// What it says.
        found: String,
        /// What there is in it.
        what: &'static str,
        /// What it might say.
        supported: &'static str,
    },
    /// A key is missing.
    #[error("{place}: the key {key} is missing; {rule}")]
    MissingKey {
        /// The file, and the line that asks for the key.
        place: String,
        /// The key.
        key: String,
        /// What would be right.
        rule: String,
    },
    /// A key has a value that this program's models cannot follow exactly.
    #[error("{place}: {key} = {value} is not possible: {rule}")]
    Key {
        /// The file.
        place: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// The configuration describes a model that cannot be built.
    #[error("{place}: {source}")]
    Model {
        /// The file.
        place: String,
        /// Why not.
        source: Box<GraphError>,
    },
    /// There is no such model in Hugging Face's library.
    #[error("{model} cannot be written for Hugging Face: {reason}")]
    NoConfig {
        /// The model.
        model: String,
        /// What there is.
        reason: &'static str,
    },
    /// Models of this kind in Hugging Face's library compute something else.
    #[error(
        "{model} cannot be written as {wanted}, which computes something else; it can be as {possible}"
    )]
    NotOfType {
        /// The model.
        model: String,
        /// The kind that was asked for.
        wanted: &'static str,
        /// Those that compute what it does.
        possible: String,
    },
    /// There is no mapping of names for this family.
    #[error(
        "{model}: there are no Hugging Face names for this kind of model; its own names are {names}"
    )]
    NoMapping {
        /// The model.
        model: String,
        /// The first few names of its parameters.
        names: String,
    },
    /// Tensors that the model needs are missing.
    #[error("{model}: tensors are missing ({count}): {names}")]
    Missing {
        /// The model.
        model: String,
        /// How many.
        count: usize,
        /// The first few names.
        names: String,
    },
    /// Most tensors that the model needs are missing, and there are others.
    #[error(
        "{model}: the weights are of another model: {missing} of its tensors are missing, and there are {names}"
    )]
    OtherNames {
        /// The model.
        model: String,
        /// How many are missing.
        missing: usize,
        /// The first few names that there are.
        names: String,
    },
    /// There are tensors that the model has no place for.
    #[error("{model}: tensors have no place in the model ({count}): {names}")]
    Unexpected {
        /// The model.
        model: String,
        /// How many.
        count: usize,
        /// The first few names.
        names: String,
    },
    /// A tensor has the wrong shape.
    #[error("{model}: {tensor} has shape {found:?}, but {rule}")]
    Shape {
        /// The model.
        model: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// What would be right.
        rule: String,
    },
    /// A model with a shared embedding came with a head of its own.
    #[error("{model}: {tensor} differs from the embedding that it is tied to; use an untied model")]
    NotTied {
        /// The model.
        model: String,
        /// The head.
        tensor: String,
    },
}
