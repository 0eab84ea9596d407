//! What can go wrong, in words a person can act on.

mod kind;
mod place;

use std::io;
use std::path::{Path, PathBuf};

use shardloom_checkpoint::CheckpointError;
use shardloom_cluster::ClusterError;
use shardloom_data::DataError;
use shardloom_exchange::{ExchangeError, Project};
use shardloom_graph::GraphError;
use shardloom_interop::InteropError;
use shardloom_methods::MethodError;
use shardloom_plan::PlanError;
use shardloom_profile::ProfileError;
use shardloom_program::ProgramError;
use shardloom_program::quantity::bytes;
use shardloom_search::SearchError;
use shardloom_sim::SimError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be done. Every message says what is wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model description is wrong.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Another tool's model or weights cannot be taken over.
    #[error(transparent)]
    Interop(#[from] InteropError),
    /// A plan cannot go to another project, or its configuration cannot become a plan.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A plan cannot go to another project, to which others of the same model can.
    #[error("{source}; the fastest plan that {project} runs is found by {command}")]
    Unexportable {
        /// Why it cannot.
        source: Box<ExchangeError>,
        /// Where it was to go.
        project: Project,
        /// What finds one that can.
        command: String,
    },
    /// A description of machines is wrong.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A plan is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan has no program.
    #[error(transparent)]
    Program(ProgramError),
    /// A program has no simulation.
    #[error(transparent)]
    Sim(SimError),
    /// A search has no answer.
    #[error(transparent)]
    Search(SearchError),
    /// A published system has no plan, or there is no such system.
    #[error(transparent)]
    Method(MethodError),
    /// What is to be trained on cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint or a file of weights cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// This machine cannot be measured.
    #[error(transparent)]
    Measuring(#[from] ProfileError),
    /// A training run went wrong.
    #[error(transparent)]
    Train(shardloom_train::Error),

    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// A folder of checkpoints where another is needed.
    #[error(
        "{} has checkpoints: `train {model} --checkpoint {} --resume` goes on with them, and `export {} {export}",
        folder.display(), folder.display(), folder.display()
    )]
    Checkpoints {
        /// The folder.
        folder: PathBuf,
        /// The model of the newest.
        model: String,
        /// The options with which they are exported, and what comes of it.
        export: &'static str,
    },
    /// A folder without weights.
    #[error(
        "{} has no model.safetensors and no model.safetensors.index.json{}",
        folder.display(),
        found.map(|it| format!("; {it} is not read: save it as safetensors")).unwrap_or_default()
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// A file with weights in another format.
        found: Option<&'static str>,
    },
    /// A parameter that is frozen and for which there are no weights.
    #[error(
        "{parameter} is frozen and starts anew, so that it would stay as it was drawn: leave it out of what is frozen"
    )]
    FrozenAnew {
        /// The parameter.
        parameter: String,
    },
    /// An index of files of weights that cannot be used.
    #[error("{place}: {rule}")]
    WeightIndex {
        /// The index, and the line where one is known.
        place: String,
        /// What is wrong.
        rule: String,
    },
    /// Weights that are not those of the model.
    #[error(
        "{}: {source}{}",
        path.display(),
        index.as_ref().map_or(String::new(), |it| format!("; all files together are {}", it.display()))
    )]
    Weights {
        /// The file, or the folder with several.
        path: PathBuf,
        /// The index of several files among which it is one.
        index: Option<PathBuf>,
        /// Why they are not.
        source: Box<InteropError>,
    },
    /// A file that is not to be overwritten.
    #[error("{} exists", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// An ONNX file as a model.
    #[error(
        "{}: ONNX files are not read yet; give a Hugging Face config.json, a model TOML, a preset or \
         a family with parameters",
        path.display()
    )]
    Onnx {
        /// The file.
        path: PathBuf,
    },
    /// A file that is named as a model and whose name says no kind of model.
    #[error(
        "{} is neither a plan nor a model: plans and models of this program end in .toml, those of Hugging Face's \
         library are folders or files that end in .json",
        path.display()
    )]
    NoModelFile {
        /// The file.
        path: PathBuf,
    },
    /// A plan with numbers that no machine could hold.
    #[error("{key} = {value}: {rule}")]
    PlanSize {
        /// What is too large.
        key: &'static str,
        /// Its value.
        value: u128,
        /// What would be right.
        rule: String,
    },
    /// A rank that a program does not have.
    #[error("rank {rank}: the plan has {}", ranks_text(*ranks))]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        ranks: usize,
    },
    /// A text that names no optimizer.
    #[error("optimizer {text:?}: {rule}")]
    Optimizer {
        /// The text.
        text: String,
        /// What would be right.
        rule: String,
    },
    /// A model that does not go on with texts.
    #[error("{model} cannot go on with a text: {reason}")]
    NoSampling {
        /// The model.
        model: String,
        /// What would be right.
        reason: String,
    },
    /// A model that gives no class to rows.
    #[error("{model} gives rows no class: {reason}")]
    NoClasses {
        /// The model.
        model: String,
        /// What would be right.
        reason: String,
    },
    /// Tokens cannot be drawn this way.
    #[error("{key} = {value}: {rule}")]
    Drawing {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        rule: &'static str,
    },
    /// There is no place for the profile of this machine.
    #[error(
        "no place for this machine's profile: set SHARDLOOM_PROFILE to a file, or HOME or \
         XDG_CACHE_HOME to a folder"
    )]
    NoProfilePlace,
    /// A file with a profile is wrong.
    #[error("{source}; measure the machine again with `shardloom profile`")]
    Profile {
        /// What is wrong, with the file.
        source: Box<ClusterError>,
    },
    /// Another file where a profile is to be written.
    #[error(
        "{} is no profile, and would be overwritten by one; name another file, or delete it",
        path.display()
    )]
    ProfileOverOther {
        /// The file.
        path: PathBuf,
    },
    /// A cluster file where a profile was asked for.
    #[error(
        "{} is a cluster file, as `shardloom profile -o` writes; give it to --cluster, and to --profile what \
         `shardloom profile --profile FILE` writes",
        path.display()
    )]
    ProfileOfCluster {
        /// The file.
        path: PathBuf,
    },
    /// A profile that was measured under other conditions than these.
    #[error(
        "{} was measured on another machine, or on this one as it was then: {}; measure again with \
         `shardloom profile`, or name another file",
        path.display(), differences.join(", ")
    )]
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// What differs, with what is here second.
        differences: Vec<String>,
    },
    /// The model reads what neither text nor a table gives.
    #[error(
        "{model} reads `{input}` [{axes}], but text gives `tokens` and `targets` [batch, seq], and a \
         table `features`, `category.0` and on, and `targets`; train a model that reads those, such as \
         gpt:layers=2,hidden=128,heads=4"
    )]
    ModelInput {
        /// The model.
        model: String,
        /// Its input.
        input: String,
        /// The input's axes.
        axes: String,
    },
    /// A plan masks documents, of which the data does not say where they end.
    #[error(
        "the plan has attention within documents (mask_documents), but {}; leave it out, or name a tokenizer whose \
         vocabulary has an end of text, such as <|endoftext|> or </s>",
        match tokenizer {
            Some(name) => format!("the tokenizer {name} has no token that ends one"),
            None => "rows of a table are none".into(),
        }
    )]
    Documents {
        /// The tokenizer's name; none of a table.
        tokenizer: Option<String>,
    },
    /// A tokenizer's file that is not what a model was trained with.
    #[error(
        "the tokenizer {} has changed since the model was trained with it; put it back, or name a copy of it",
        path.display()
    )]
    TokenizerChanged {
        /// The file.
        path: PathBuf,
    },
    /// Weights to start from that are no numbers.
    #[error("{}: {parameter} has {value} at element {element}; every weight must be finite", path.display())]
    NonFiniteWeights {
        /// The file or folder.
        path: PathBuf,
        /// The first parameter that has one.
        parameter: String,
        /// Which of its elements, row by row.
        element: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A file where checkpoints should go.
    #[error("{} is a file; checkpoints go in a folder, which is made if it does not exist", path.display())]
    NotFolder {
        /// The file.
        path: PathBuf,
    },
    /// A checkpoint has something else than a list of names where its classes are named.
    #[error("{}: class-names is not possible: a sorted list of names in JSON is needed", path.display())]
    ClassNames {
        /// The checkpoint's folder.
        path: PathBuf,
    },
    /// The model knows fewer tokens or classes than the data has.
    #[error(
        "{model} tells {found} tokens or classes apart, but there are {needed} {what}; give the model \
         {needed} or more (vocab={needed} of a language model, classes={needed} of an mlp)"
    )]
    Vocabulary {
        /// The model.
        model: String,
        /// What it knows.
        found: usize,
        /// Of what there are more.
        what: String,
        /// How many there are.
        needed: usize,
    },
    /// The rows of a table are not as long as the model reads them.
    #[error(
        "{}: rows have {found} features before the class, but {model} reads {needed}; give the model \
         inputs={found}, or other data",
        path.display()
    )]
    Features {
        /// The table.
        path: PathBuf,
        /// Features of its rows.
        found: usize,
        /// The model.
        model: String,
        /// Features that it reads.
        needed: usize,
    },
    /// Categories that are not numbered from 0 on.
    #[error(
        "{model} has inputs category.N but none called {missing}; they are numbered from 0, as the columns \
         of a table are"
    )]
    Category {
        /// The model.
        model: String,
        /// The input that there is not.
        missing: String,
    },
    /// Several files for a model that learns from one table.
    #[error(
        "{model} learns from the rows of one table, but {found} files or folders are given; name one file of comma-separated values"
    )]
    Tables {
        /// The model.
        model: String,
        /// Files and folders given.
        found: usize,
    },
    /// More ranks than can be threads of one process.
    #[error(
        "{ranks} ranks: every rank is a thread of this machine, and at most {most} are run; take fewer \
         pipeline stages, replicas or tensor-parallel ranks, or simulate the plan instead"
    )]
    Ranks {
        /// How many.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
    /// The ranks together need more memory than this machine has.
    #[error(
        "training needs {} on {}, but this machine has {} available{}; take a smaller model, \
         batch or sequence, more micro-batches, ZeRO or recomputation",
        bytes(*needed_bytes),
        together(*ranks),
        bytes(*available_bytes),
        besides_data(*data_bytes)
    )]
    Memory {
        /// What all ranks hold at their peaks.
        needed_bytes: u64,
        /// How many ranks.
        ranks: usize,
        /// What the data take, which are in memory already.
        data_bytes: u64,
        /// What there is besides.
        available_bytes: u64,
    },
    /// Processes that a launcher started, and that do not find each other.
    #[error("{started} processes were started ({variable}), {reason}")]
    Launched {
        /// Where the launcher says how many.
        variable: String,
        /// How many.
        started: u32,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// Ranks that processes cannot share equally.
    #[error(
        "{ranks} ranks do not spread evenly over {processes} processes; start as many processes as the plan \
         has ranks, or a number that divides it"
    )]
    Uneven {
        /// Ranks of the plan.
        ranks: usize,
        /// Processes that were started.
        processes: u32,
    },
    /// A folder that not all processes of a run see.
    #[error(
        "process {process} does not see {}; checkpoints go to a folder that all processes share",
        folder.display()
    )]
    FolderUnseen {
        /// The folder.
        folder: PathBuf,
        /// The process.
        process: u32,
    },
    /// A process of a run has another part of what all share.
    #[error("{what} of process {process} differs from that of process 0; all read the same files")]
    OtherProcess {
        /// The process.
        process: u32,
        /// What differs.
        what: &'static str,
    },
    /// A checkpoint is of something else.
    #[error("{}: the checkpoint was written with {what} {recorded}, but this run has {found}; {rule}", path.display())]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// As the checkpoint has it.
        recorded: String,
        /// As this run has it.
        found: String,
        /// What would be right.
        rule: &'static str,
    },
    /// A disk is too full for a checkpoint.
    #[error(
        "{} has no room for a checkpoint, of {} or more",
        folder.display(),
        shardloom_program::quantity::bytes(*bytes)
    )]
    NoRoom {
        /// Where it would be.
        folder: PathBuf,
        /// At least so many bytes.
        bytes: u64,
    },
    /// A folder already holds a run's checkpoints.
    #[error(
        "{} already holds checkpoints, the latest of step {step}; go on from it, choose another \
         folder, or have them deleted",
        folder.display()
    )]
    CheckpointsExist {
        /// The folder.
        folder: PathBuf,
        /// The step of the latest.
        step: u64,
    },
}

impl Error {
    /// An [`Error::Io`] for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_path_buf(), source }
    }
}

/// Errors of a plan keep their place whichever crate found them.
impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        match error {
            ProgramError::Plan(error) => Error::Plan(error),
            other => Error::Program(other),
        }
    }
}

impl From<SimError> for Error {
    fn from(error: SimError) -> Error {
        match error {
            SimError::Cluster(error) => Error::Cluster(error),
            other => Error::Sim(other),
        }
    }
}

impl From<SearchError> for Error {
    fn from(error: SearchError) -> Error {
        match error {
            SearchError::Program(error) => error.into(),
            SearchError::Sim(error) => error.into(),
            SearchError::Cluster(error) => Error::Cluster(error),
            other => Error::Search(other),
        }
    }
}

impl From<MethodError> for Error {
    fn from(error: MethodError) -> Error {
        match error {
            MethodError::Search(error) => error.into(),
            MethodError::Program(error) => error.into(),
            MethodError::Sim(error) => error.into(),
            MethodError::Plan(error) => Error::Plan(error),
            MethodError::Cluster(error) => Error::Cluster(error),
            other => Error::Method(other),
        }
    }
}

impl From<shardloom_train::Error> for Error {
    fn from(error: shardloom_train::Error) -> Error {
        match error {
            shardloom_train::Error::Program(error) => error.into(),
            shardloom_train::Error::Checkpoint(error) => Error::Checkpoint(error),
            shardloom_train::Error::Data(error) => Error::Data(error),
            other => Error::Train(other),
        }
    }
}

/// Ranks that hold something together.
fn together(ranks: usize) -> String {
    match ranks {
        1 => "1 rank".into(),
        _ => format!("{ranks} ranks together"),
    }
}

/// Bytes of data that are there already, in words.
fn besides_data(held: u64) -> String {
    match held {
        0 => String::new(),
        _ => format!(" besides {} of data", bytes(held)),
    }
}

/// The ranks that there are, in words.
fn ranks_text(ranks: usize) -> String {
    match ranks {
        1 => "rank 0 alone".into(),
        _ => format!("ranks 0 to {}", ranks - 1),
    }
}
