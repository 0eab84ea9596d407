//! Tensors of the graph: inputs, parameters and what operators produce.

use serde::{Deserialize, Serialize};

use crate::{DimId, OpId};

/// Identifies a value (a tensor) of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Position in the graph's list of values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What one element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// A real number in the plan's compute precision.
    Real,
    /// A real number that is 32-bit whatever the precision: statistics, losses.
    Float,
    /// A 32-bit index: a token, a class.
    Index,
    /// One byte: a dropout mask.
    Mask,
}

impl DType {
    /// Bytes of one element where a [`DType::Real`] takes `real` bytes.
    pub fn bytes(self, real: usize) -> usize {
        match self {
            DType::Real => real,
            DType::Float | DType::Index => 4,
            DType::Mask => 1,
        }
    }
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal around zero with this standard deviation.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// All elements equal.
    Constant(f32),
}

/// What a parameter has besides its tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// How it starts.
    pub init: Init,
    /// How many leading axes are the rows when it is seen as a matrix (factored optimizers).
    pub row_axes: usize,
    /// Whether weight decay applies: to matrices, not to biases and norm gains.
    pub decays: bool,
}

/// Why a value exists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Comes with the data.
    Input,
    /// Trained.
    Parameter(Parameter),
    /// Produced by an operator and differentiable.
    Activation,
    /// Produced by an operator for its gradient or a later phase: statistics and masks. Nothing
    /// differentiates through it.
    Auxiliary,
}

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub struct Value {
    /// Unique name; parameters keep it in checkpoints.
    pub name: String,
    /// One named dimension per axis, slowest first.
    pub axes: Vec<DimId>,
    /// What one element is.
    pub dtype: DType,
    /// Why it exists.
    pub role: Role,
    /// The operator that produces it; none for inputs and parameters.
    pub producer: Option<OpId>,
    /// The operators that read it, in order.
    pub consumers: Vec<OpId>,
    /// How many rows it has, where that is known only while running: the value that says for each index
    /// of the leading axes how many of the next axis are filled. What is filled lies side by side.
    pub counts: Option<ValueId>,
}

impl Value {
    /// What a parameter has besides its tensor; none for other roles.
    pub fn parameter(&self) -> Option<&Parameter> {
        match &self.role {
            Role::Parameter(parameter) => Some(parameter),
            _ => None,
        }
    }

    /// How many leading axes have a count of rows each, where the number of rows is known only while
    /// running: experts and samples.
    pub const COUNTED_AXES: usize = 2;

    /// Whether a gradient flows into it.
    pub fn differentiable(&self) -> bool {
        matches!(self.role, Role::Parameter(_) | Role::Activation)
    }
}
