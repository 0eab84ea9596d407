//! Why a row is not predicted.

/// Why a row is not predicted. Its text says what of the row it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The file says that what was measured is good for nothing, for this reason.
    #[error("{0}")]
    LeftOut(String),
    /// The source does not say all of a plan, or its batch does not divide.
    #[error("the file marks the row as incomplete")]
    Incomplete,
    /// A cell that a plan follows from is empty.
    #[error("{0} is not given")]
    NotGiven(&'static str),
    /// Neither a time nor a memory that may be compared.
    #[error("no measurement of it is used")]
    NothingMeasured,
    /// Rows that choose experts: the source does not say how evenly.
    #[error("{0} experts")]
    Experts(u32),
    /// Numbers that plans do not have.
    #[error("precision {0:?}")]
    Precision(String),
    /// No preset describes the device.
    #[error("hardware {0}")]
    Hardware(String),
    /// State that is sharded in words that are not known, or among a number that does not divide the replicas.
    #[error("sharding {0:?}")]
    Sharding(String),
    /// Recomputation that is not stated, or in words that are not known.
    #[error("recomputation {0:?}")]
    Recompute(String),
    /// The blocks of the model cannot be cut as the source cuts them.
    #[error("{0}")]
    Cut(String),
    /// Tensor parallelism does not divide what it splits.
    #[error("tp = {tp} does not divide {what} = {value}")]
    Split {
        /// Width of tensor parallelism.
        tp: u32,
        /// What is split.
        what: &'static str,
        /// Its number.
        value: usize,
    },
    /// Numbers of the row contradict each other, or are beyond any machine.
    #[error("{0}")]
    Numbers(String),
    /// The model, the plan, the cluster or the simulation does not exist.
    #[error("{0}")]
    Plan(String),
}

impl Refusal {
    /// What rows that are refused alike are counted under.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::LeftOut(_) => "left out by the file",
            Refusal::Incomplete => "incomplete",
            Refusal::NotGiven(_) => "a needed value is not given",
            Refusal::NothingMeasured => "no measurement to compare with",
            Refusal::Experts(_) => "experts",
            Refusal::Precision(_) => "precision unknown or below 8 bits",
            Refusal::Hardware(_) => "no preset of the hardware",
            Refusal::Sharding(_) => "sharding unknown",
            Refusal::Recompute(_) => "recomputation unknown",
            Refusal::Cut(_) => "layers cannot be cut",
            Refusal::Split { .. } => "tensor parallelism does not divide",
            Refusal::Numbers(_) => "numbers do not fit together",
            Refusal::Plan(_) => "no such plan",
        }
    }
}
