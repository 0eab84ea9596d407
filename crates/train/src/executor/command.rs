//! What ranks are told and what they answer: data, which might as well come from another process and go
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use shardloom_fabric::FabricError;

use shardloom_checkpoint::{Checkpoint, Saved, Shard, Shards, Snapshot};

use super::waiting::Recorded;
use crate::Error;
use crate::rank::{Gradients, NotedRows, OwnedPiece, RowEnd, StepOutcome};

/// What all ranks are told to do, in the same order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Train steps in a row; record a timeline with times since an origin, if given as time since the run
    /// began. The virtual clock always records. The pipeline is empty before and after. Servers answer clients
    /// in the order in which they come, or as `answers` says. The loss is scaled by so much for backward passes.
    Train {
        first_step: u64,
        steps: u32,
        loss_scale: f64,
        record: Option<Duration>,
        #[serde(with = "shared_if_any")]
        answers: Option<Arc<Answers>>,
    },
    /// Evaluate some micro-batches of the validation part, from its first sample on.
    Evaluate { microbatches: u64 },
    /// Something that needs a rank's own state, and nobody else.
    State(StateCommand),
}

/// What a rank is to do with what it holds from step to step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum StateCommand {
    /// Name a tensor that the rank owns a part of and that has a number which is not finite.
    FindNonFinite,
    /// Say how many updates the parameters have had that the rank updates.
    ReportUpdates,
    /// Say how many rows went to which experts in the last step that was trained.
    ReportRows,
    /// Bring the weights that the rank owns, of one parameter if it is named.
    BringWeights { of: Option<String> },
    /// Bring all that the rank owns.
    BringAll,
    /// Write all that the rank owns where it belongs in a checkpoint.
    Save(Shards),
    /// Go on from where a run was saved.
    Restore {
        #[serde(with = "shared")]
        from: Arc<SavedState>,
        updates: Updates,
    },
    /// Say how far the rank has come in a row of steps that was broken off.
    EndRow,
    /// Bring the gradients that the rank sends to servers.
    BringGradients,
    /// Update these buckets, by class, in the n-th step of the row that was broken off, with these gradients of the
    /// workers.
    CatchUp {
        step: u32,
        buckets: BTreeMap<u32, Vec<u32>>,
        #[serde(with = "shared")]
        gradients: Arc<Vec<Gradients>>,
    },
    /// Bring all that the rank holds of these buckets, by class.
    BringBuckets { of: BTreeMap<u32, Vec<u32>> },
    /// Start from these weights, whole tensors by parameter name.
    SetWeights(#[serde(with = "shared")] Arc<BTreeMap<String, Vec<f32>>>),
}

/// What ranks go on from. Who holds a copy only reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SavedState {
    /// Files that all ranks can read.
    Files(Checkpoint),
    /// Whole tensors.
    Memory(Snapshot),
}

impl SavedState {
    pub fn saved(&self) -> &dyn Saved {
        match self {
            SavedState::Files(checkpoint) => checkpoint,
            SavedState::Memory(snapshot) => snapshot,
        }
    }
}

/// How many updates each parameter has had.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Updates {
    /// By name, where that is known of the one.
    pub of: BTreeMap<String, u64>,
    /// Of all others.
    pub others: u64,
}

impl Updates {
    pub fn of(&self, name: &str) -> u64 {
        self.of.get(name).copied().unwrap_or(self.others)
    }
}

/// By rank: the clients that a server has answered in a row of steps, in order, by their number among its
/// clients; of a rank that fetches in which step of the row the other had published that.
pub(crate) type Answers = Vec<Vec<u32>>;

/// What is wrong with answers that are not of this row.
pub(super) fn other_row() -> Error {
    let reason = "the answers to repeat are of another program, bound or number of steps".into();
    Error::Unsupported { reason }
}

/// What a command came to on one rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Of each step; of an evaluation as if it were one.
    pub steps: Vec<StepOutcome>,
    pub track: Option<Recorded>,
    /// Whom it has answered as a server, in order.
    pub answers: Vec<u32>,
    /// Of an evaluation of a classifier: samples of the validation part, each with the first of the rank's classes
    /// that has the largest logit of all.
    pub classes: Vec<(u64, u32)>,
    /// What was asked for of the rank's state.
    pub answer: Option<Answer>,
    /// What it took for its own part, waiting for others and communication left out; nothing under the
    /// virtual clock.
    pub computing: Duration,
    /// Bytes sent to other ranks since the start of the run.
    pub sent_bytes: u64,
    pub peak_bytes: u64,
    /// The most bytes of its messages that were under way at once, from when a buffer is lent to it until the
    /// receiver drops it.
    pub peak_under_way_bytes: u64,
    /// How often the system was asked for a buffer since the rank was built.
    pub system_allocations: usize,
}

/// What a rank answers about its state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// The name of a tensor with a number that is not finite, if there is one.
    NonFinite(Option<String>),
    /// How many updates parameters have had, by name.
    Updates(Vec<(String, u64)>),
    /// What it counted of rows that choose experts.
    Rows(Vec<NotedRows>),
    /// How far it has come in a row.
    RowEnd(RowEnd),
    /// What it sends to servers.
    Gradients(Gradients),
    /// What the rank owns, or holds.
    Pieces(Vec<OwnedPiece>),
    /// What it has written.
    Shard(Shard),
}

/// What a rank of a run reports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub rank: u32,
    /// What the command came to, or why the rank failed.
    pub outcome: Result<Done, RankFailure>,
}

/// Why a rank failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankFailure {
    pub reason: String,
    /// Whether only because another is gone.
    pub by_another: bool,
}

impl From<&Error> for RankFailure {
    fn from(error: &Error) -> RankFailure {
        let by_another = matches!(error, Error::Fabric(FabricError::PeerGone { .. }));
        RankFailure { reason: error.to_string(), by_another }
    }
}

/// Under what a run goes on with other ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NextRanks {
    /// The plan, as TOML.
    pub plan: String,
    pub devices: usize,
    /// Steps after which they are those of the plan.
    pub steps: u64,
}

/// What a process that leads tells one that follows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// What all ranks are to do; their reports are the answer.
    Carry(Command),
    /// Other ranks are to be there.
    GoOn(NextRanks),
    /// The run is over.
    End,
}

/// What ranks of one process read in one place is a copy of its own in another.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(
        shared: &Arc<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        T::serialize(shared, serializer)
    }

    pub fn deserialize<'a, T: Deserialize<'a>, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

/// The same for what there may be none of.
mod shared_if_any {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(
        shared: &Option<Arc<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        shared.as_deref().serialize(serializer)
    }

    pub fn deserialize<'a, T: Deserialize<'a>, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Option<Arc<T>>, D::Error> {
        Ok(Option::<T>::deserialize(deserializer)?.map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use shardloom_checkpoint::{Meta, Piece, Store, Writer};

    use super::*;
    use shardloom_program::timeline::Track;

    fn assert_crosses<T: Serialize + DeserializeOwned + Debug>(sent: &T) {
        let bytes = rmp_serde::to_vec_named(sent).expect("data");
        let received: T = rmp_serde::from_slice(&bytes).expect("the same data");
        assert_eq!(format!("{received:?}"), format!("{sent:?}"));
    }

    fn piece(data: &[f32]) -> Piece<'_> {
        Piece::flat("w", &[2, 3], &[0, 1], &[2, 2], 1, data)
    }

    #[test]
    fn commands_are_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = Writer::create(folder.path(), 3).expect("a writer");
        let shards = writer.shards();
        writer.shard(0, [Piece::whole("w", &[2], &[0.1, -2.5])]).expect("a shard");
        writer.finish(Meta::default(), None).expect("a checkpoint");
        let latest = Store::open(folder.path()).and_then(|store| store.load_latest());
        let checkpoint = latest.expect("the checkpoint").0;
        let mut snapshot = Snapshot::default();
        snapshot.add(&piece(&[0.1, 3e-39, 7.0])).expect("it fits");
        let updates = Updates { of: BTreeMap::from([("w".to_owned(), 4)]), others: 5 };
        let restore =
            |from| StateCommand::Restore { from: Arc::new(from), updates: updates.clone() };
        let weights = BTreeMap::from([("w".to_owned(), vec![1.0 / 3.0, 1e-20])]);
        let of_state = [
            StateCommand::FindNonFinite,
            StateCommand::ReportUpdates,
            StateCommand::ReportRows,
            StateCommand::BringWeights { of: Some("w".to_owned()) },
            StateCommand::BringAll,
            StateCommand::Save(shards),
            restore(SavedState::Files(checkpoint)),
            restore(SavedState::Memory(snapshot)),
            StateCommand::EndRow,
            StateCommand::BringGradients,
            StateCommand::CatchUp {
                step: 3,
                buckets: BTreeMap::from([(4, vec![0, 2])]),
                gradients: Arc::new(vec![Gradients::from([(7, vec![0.1, 3e-39])])]),
            },
            StateCommand::BringBuckets { of: BTreeMap::from([(4, vec![0, 2])]) },
            StateCommand::SetWeights(Arc::new(weights)),
        ];
        let record = Some(Duration::from_nanos(1_234_567_891));
        for answers in [None, Some(Arc::new(vec![vec![], vec![0, 1, 1, 0]]))] {
            let train =
                Command::Train { first_step: 7, steps: 3, loss_scale: 8.0, record, answers };
            assert_crosses(&train);
            assert_crosses(&Order::Carry(train));
        }
        assert_crosses(&Command::Evaluate { microbatches: 2 });
        for command in of_state {
            assert_crosses(&Command::State(command));
        }
    }

    #[test]
    fn reports_are_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = Writer::create(folder.path(), 3).expect("a writer");
        let shard = writer.shards().write(2, [piece(&[1.0, 2.0])]).expect("a shard");
        let owned = r#"{"name":"w","global_shape":[2,3],"start":[0,1],"extent":[2,2],"first":1,
            "values":[0.1,3e-39]}"#;
        let owned: OwnedPiece = serde_json::from_str(owned).expect("a piece");
        let counted = r#"[
            {"Routed":{"counts":3,"microbatch":1,"of":[2,2],"placement":{"start":[0,1],"extent":[2,1]},
                "rows":[5,0]}},
            {"LookedUp":{"worker":1,"bucket":2,"pieces":[7,0,9]}}]"#;
        let counted = serde_json::from_str(counted).expect("counts of rows");
        let answers = [
            None,
            Some(Answer::Done),
            Some(Answer::NonFinite(Some("w".to_owned()))),
            Some(Answer::Updates(vec![("w".to_owned(), 4)])),
            Some(Answer::Rows(counted)),
            Some(Answer::Pieces(vec![owned])),
            Some(Answer::Gradients(Gradients::from([(7, vec![0.1, 3e-39])]))),
            Some(Answer::RowEnd(RowEnd {
                updated: vec![1, 0],
                updates_before: BTreeMap::from([("w".to_owned(), 4)]),
                outcomes: vec![StepOutcome::default()],
            })),
            Some(Answer::Shard(shard)),
        ];
        for answer in answers {
            let step = StepOutcome { loss_sum: Some(0.1), gradient_norm: None, skipped: true };
            let done = Done {
                steps: vec![step],
                track: Some(Recorded { track: Track::default(), issued: vec![None] }),
                answers: vec![1, 0],
                classes: vec![(7, 2)],
                answer,
                computing: Duration::from_nanos(1_234_567),
                sent_bytes: 1,
                peak_bytes: 2,
                peak_under_way_bytes: 3,
                system_allocations: 4,
            };
            assert_crosses(&Report { rank: 1, outcome: Ok(done) });
        }
        let reason = "no tensor `w`".to_owned();
        let failure = RankFailure { reason, by_another: true };
        assert_crosses(&Report { rank: 1, outcome: Err(failure) });
    }
}
