//! Where an error is: the file, key or setting that it is about.

use std::path::Path;

use shardloom_checkpoint::CheckpointError;
use shardloom_cluster::ClusterError;
use shardloom_data::DataError;
use shardloom_graph::GraphError;
use shardloom_interop::InteropError;
use shardloom_methods::MethodError;
use shardloom_plan::PlanError;
use shardloom_profile::ProfileError;
use shardloom_program::ProgramError;
use shardloom_search::SearchError;
use shardloom_train::Error as Train;

use super::Error;

impl Error {
    /// The file, key or setting that is wrong, where one is to be named.
    pub fn place(&self) -> Option<String> {
        let path = |path: &Path| Some(path.display().to_string());
        match self {
            Error::Graph(error) => graph_place(error),
            Error::Interop(error) => match error {
                InteropError::Json { place, .. }
                | InteropError::ModelType { place, .. }
                | InteropError::OtherModel { place, .. } => Some(place.clone()),
                InteropError::Key { place, key, .. }
                | InteropError::MissingKey { place, key, .. } => Some(format!("{place}: {key}")),
                InteropError::Model { place, source } => {
                    Some(graph_place(source).map_or(place.clone(), |at| format!("{place}: {at}")))
                }
                InteropError::Shape { tensor, .. } | InteropError::NotTied { tensor, .. } => {
                    Some(tensor.clone())
                }
                InteropError::NoConfig { model, .. }
                | InteropError::NotOfType { model, .. }
                | InteropError::NoMapping { model, .. }
                | InteropError::Missing { model, .. }
                | InteropError::OtherNames { model, .. }
                | InteropError::Unexpected { model, .. } => Some(model.clone()),
            },
            Error::Exchange(error) => error.place().map(str::to_owned),
            // The plan, and no line of it.
            Error::Unexportable { .. } => None,
            Error::Cluster(error) => cluster_place(error),
            Error::Profile { source } => cluster_place(source),
            Error::Plan(error) | Error::Program(ProgramError::Plan(error)) => plan_place(error),
            Error::Program(ProgramError::ParameterLayouts { name, .. })
            | Error::Program(ProgramError::Redistribution { name, .. })
            | Error::Program(ProgramError::SharedMeshes { name, .. }) => Some(name.clone()),
            Error::PlanSize { key, .. } | Error::Drawing { key, .. } => Some((*key).to_owned()),
            Error::NoSuchRank { rank, .. } => Some(format!("rank {rank}")),
            Error::Optimizer { text: place, .. } | Error::WeightIndex { place, .. } => {
                Some(place.clone())
            }
            Error::ModelInput { input, .. } => Some(input.clone()),
            Error::Documents { tokenizer } => tokenizer.clone(),
            Error::TokenizerChanged { path }
            | Error::ProfileOfCluster { path }
            | Error::ProfileOverOther { path }
            | Error::NonFiniteWeights { path, .. }
            | Error::ClassNames { path }
            | Error::NotFolder { path } => Some(path.display().to_string()),
            Error::FrozenAnew { parameter } => Some(parameter.clone()),
            Error::NoSampling { model, .. }
            | Error::NoClasses { model, .. }
            | Error::Vocabulary { model, .. }
            | Error::Category { model, .. }
            | Error::Tables { model, .. } => Some(model.clone()),
            Error::Io { path: at, .. }
            | Error::Checkpoints { folder: at, .. }
            | Error::NoWeights { folder: at, .. }
            | Error::Exists { path: at }
            | Error::Weights { path: at, .. }
            | Error::Onnx { path: at }
            | Error::NoModelFile { path: at }
            | Error::OtherMachine { path: at, .. }
            | Error::Features { path: at, .. }
            | Error::OtherRun { path: at, .. }
            | Error::FolderUnseen { folder: at, .. }
            | Error::NoRoom { folder: at, .. }
            | Error::CheckpointsExist { folder: at, .. } => path(at),
            Error::Train(error) => match error {
                Train::Program(ProgramError::Plan(error)) => plan_place(error),
                Train::MissingWeight { name } | Train::Shape { name, .. } => Some(name.clone()),
                Train::LearningRate { .. } => Some("learning rate".into()),
                Train::Kernels(_) => Some(shardloom_train::KERNELS_VARIABLE.into()),
                Train::Rank { rank, .. } | Train::RankPanicked { rank, .. } => {
                    Some(format!("rank {rank}"))
                }
                Train::NonFiniteLoss { step, .. }
                | Train::NonFiniteGradient { step }
                | Train::Overflow { step: Some(step), .. } => Some(format!("step {step}")),
                Train::Overflow { step: None, .. } => Some("validation".into()),
                _ => None,
            },
            Error::Data(error) => match error {
                DataError::Io { path: at, .. }
                | DataError::Tokenizer { path: at, .. }
                | DataError::NotText { path: at, .. }
                | DataError::NoCut { path: at, .. }
                | DataError::Cache { folder: at, .. }
                | DataError::TokenFile { path: at, .. }
                | DataError::Document { path: at, .. }
                | DataError::Changed { path: at }
                | DataError::NotAFile { path: at }
                | DataError::Column { path: at, .. }
                | DataError::Table { path: at, .. } => path(at),
                DataError::EmptyCorpus { paths } => paths.first().and_then(|first| path(first)),
                DataError::ValidationFraction { .. } => Some("validation fraction".into()),
                _ => None,
            },
            Error::Checkpoint(error) => checkpoint_place(error),
            Error::Measuring(error) => match error {
                ProfileError::Kernels(_) => Some(shardloom_train::KERNELS_VARIABLE.into()),
                ProfileError::Rank { rank, .. } | ProfileError::RankPanicked { rank, .. } => {
                    Some(format!("rank {rank}"))
                }
                _ => None,
            },
            Error::Ranks { .. } => Some("devices".into()),
            Error::Search(SearchError::Request { key, .. }) => Some((*key).to_owned()),
            Error::Method(MethodError::Unknown { name, .. }) => Some(name.clone()),
            Error::Method(MethodError::TrialsFile { path: at, .. }) => path(at),
            Error::Method(
                MethodError::Impossible { key, .. } | MethodError::Planner { key, .. },
            ) => Some((*key).to_owned()),
            Error::Search(_)
            | Error::Method(_)
            | Error::Program(_)
            | Error::Sim(_)
            | Error::NoProfilePlace
            | Error::Memory { .. }
            | Error::Launched { .. }
            | Error::OtherProcess { .. }
            | Error::Uneven { .. } => None,
        }
    }
}

fn graph_place(error: &GraphError) -> Option<String> {
    match error {
        GraphError::Parameter { model, key, .. } => Some(format!("{model}: {key}")),
        GraphError::Axes { op, .. } => Some(op.clone()),
        GraphError::Name { name, .. } => Some(name.clone()),
        GraphError::Text { place, .. } => Some(place.clone()),
        GraphError::Element { key, .. } => Some(key.clone()),
    }
}

fn checkpoint_place(error: &CheckpointError) -> Option<String> {
    match error {
        CheckpointError::Io { path, .. }
        | CheckpointError::ShardTwice { path, .. }
        | CheckpointError::UnknownTensor { path, .. }
        | CheckpointError::Damaged { path, .. }
        | CheckpointError::FormatVersion { path, .. }
        | CheckpointError::NoUsableCheckpoint { root: path, .. }
        | CheckpointError::NoFolder { root: path }
        | CheckpointError::InUse { root: path, .. }
        | CheckpointError::Foreign { path }
        | CheckpointError::Safetensors { path, .. }
        | CheckpointError::UnsupportedDtype { path, .. } => Some(path.display().to_string()),
        CheckpointError::Piece { name, .. }
        | CheckpointError::MissingElements { name, .. }
        | CheckpointError::ShapeConflict { name, .. }
        | CheckpointError::NotInSnapshot { name } => Some(name.clone()),
        CheckpointError::NoTensors { .. } => None,
    }
}

fn plan_place(error: &PlanError) -> Option<String> {
    match error {
        PlanError::Text { place, .. } => Some(place.clone()),
        PlanError::Field { key, .. } => Some(key.clone()),
    }
}

fn cluster_place(error: &ClusterError) -> Option<String> {
    match error {
        ClusterError::Spec { part, .. } => Some(part.clone()),
        ClusterError::Uplink { text, .. } => Some(text.clone()),
        ClusterError::UnknownMachine { name, .. }
        | ClusterError::NameClash { name }
        | ClusterError::NodeTooSmall { name, .. } => Some(name.clone()),
        ClusterError::Text { place, .. } => Some(place.clone()),
        ClusterError::Nothing { what } => Some(what.clone()),
        ClusterError::Read { path, .. } => Some(path.display().to_string()),
        ClusterError::NoPrecision { device, .. } => Some(device.clone()),
        ClusterError::NoLocalProfile => Some("local".into()),
        _ => None,
    }
}
