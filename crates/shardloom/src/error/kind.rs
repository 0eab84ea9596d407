//! What kind of thing an error is about, in one word.

use shardloom_checkpoint::CheckpointError;
use shardloom_data::DataError;
use shardloom_profile::ProfileError;
use shardloom_train::Error as Train;

use super::Error;

impl Error {
    /// What kind of thing is wrong, in one word: `model`, `exchange`, `cluster`, `plan`, `search`, `method`,
    /// `simulation`, `profile`, `kernels`, `optimizer`, `learning-rate`, `data`, `weights`, `checkpoint`, `memory`,
    /// `processes`, `file`, `usage` or `training`.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Graph(_)
            | Error::Interop(_)
            | Error::Weights { .. }
            | Error::Onnx { .. }
            | Error::NoModelFile { .. }
            | Error::NoSampling { .. }
            | Error::NoClasses { .. } => "model",
            Error::Exchange(_) | Error::Unexportable { .. } => "exchange",
            Error::Cluster(_) => "cluster",
            Error::Plan(_) | Error::Program(_) | Error::PlanSize { .. } | Error::Ranks { .. } => {
                "plan"
            }
            Error::Sim(_) => "simulation",
            Error::Search(_) => "search",
            Error::Method(_) => "method",
            Error::NoProfilePlace
            | Error::Profile { .. }
            | Error::ProfileOfCluster { .. }
            | Error::ProfileOverOther { .. }
            | Error::OtherMachine { .. } => "profile",
            Error::Io { .. }
            | Error::Exists { .. }
            | Error::NotFolder { .. }
            | Error::Checkpoints { .. } => "file",
            Error::NoWeights { .. }
            | Error::FrozenAnew { .. }
            | Error::WeightIndex { .. }
            | Error::NonFiniteWeights { .. } => "weights",
            Error::ModelInput { .. }
            | Error::Documents { .. }
            | Error::TokenizerChanged { .. }
            | Error::Vocabulary { .. }
            | Error::Features { .. }
            | Error::Category { .. }
            | Error::Tables { .. } => "data",
            Error::ClassNames { .. } => "checkpoint",
            Error::Optimizer { .. } => "optimizer",
            Error::Drawing { .. } | Error::NoSuchRank { .. } => "usage",
            Error::Memory { .. } => "memory",
            Error::Launched { .. }
            | Error::OtherProcess { .. }
            | Error::Uneven { .. }
            | Error::FolderUnseen { .. } => "processes",
            Error::OtherRun { .. } | Error::NoRoom { .. } | Error::CheckpointsExist { .. } => {
                "checkpoint"
            }
            Error::Train(error) => match error {
                Train::Program(_)
                | Train::Unsupported { .. }
                | Train::TooManyRanks { .. }
                | Train::Thread { .. } => "plan",
                Train::Kernels(_) => "kernels",
                Train::Memory { .. } => "memory",
                Train::Sampling { .. } | Train::Classes { .. } => "model",
                Train::MissingWeight { .. } | Train::Shape { .. } => "weights",
                Train::LearningRate { .. } => "learning-rate",
                Train::Input { .. } => "data",
                _ => "training",
            },
            Error::Data(error) => match error {
                DataError::Io { .. } | DataError::Cache { .. } => "file",
                DataError::CorpusChanged { .. } => "checkpoint",
                _ => "data",
            },
            Error::Checkpoint(error) => checkpoint_kind(error),
            Error::Measuring(error) => match error {
                ProfileError::Kernels(_) => "kernels",
                _ => "profile",
            },
        }
    }

    /// Whether a loss, gradients or weights were no numbers any more, for which
    /// [`OnNonFinite`](shardloom_train::OnNonFinite) says what is to be done.
    pub fn is_not_finite(&self) -> bool {
        matches!(
            self,
            Error::Train(
                Train::NonFiniteLoss { .. }
                    | Train::NonFiniteGradient { .. }
                    | Train::NonFiniteWeights { .. }
            )
        )
    }

    /// Whether what was asked for was at fault; otherwise a run that began well went wrong.
    pub fn is_input(&self) -> bool {
        self.kind() != "training"
    }
}

/// Files of weights are not checkpoints.
fn checkpoint_kind(error: &CheckpointError) -> &'static str {
    match error {
        CheckpointError::Io { .. } | CheckpointError::NoFolder { .. } => "file",
        CheckpointError::Safetensors { .. } | CheckpointError::UnsupportedDtype { .. } => "weights",
        _ => "checkpoint",
    }
}
