//! What can be wrong with a model.

/// Why a model cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// A hyper-parameter has a value no model can have.
    #[error("{model}: {key} = {value} is not possible: {rule}")]
    Parameter {
        /// The model or family.
        model: String,
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What would be right.
        rule: String,
    },
    /// Two operands of an operator do not fit together.
    #[error("{op}: {operand} has axes [{axes}], but {rule}")]
    Axes {
        /// The operator.
        op: String,
        /// The operand.
        operand: String,
        /// Its axes.
        axes: String,
        /// What would be right.
        rule: String,
    },
    /// A name is taken or unknown.
    #[error("{what} {name:?}: {rule}")]
    Name {
        /// Kind of thing.
        what: &'static str,
        /// The name.
        name: String,
        /// What would be right.
        rule: String,
    },
    /// The text of a model description cannot be read.
    #[error("{place}: {message}")]
    Text {
        /// File, line or key.
        place: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// Something in a network written as data is not possible.
    #[error("{message}")]
    Element {
        /// Where it stands, as in `block[2].op[0].inputs`.
        key: String,
        /// What is wrong, of what by its name, and what would be right.
        message: String,
    },
}
