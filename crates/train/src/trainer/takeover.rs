//! Going on without a server that was lost, where others have replicas of its ranges (Li et al. 2014, OSDI, section
//! 4.4).
//!
//! A loss breaks a row of steps off: whoever waits for the lost rank stops, and keeps what it holds. Ranges have had as
//! many updates of the row then as the one with the most, or one less, since no worker goes on before all servers, and
//! all replicas, have updated. So a range lacks an update at most, and the workers still have their gradients for it:
//! the update is made with these, in the same order. Then all ranges are those after a whole step, and ranks are
//! started for the plan without the lost server, under which those that follow it on the ring own its ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardloom_checkpoint::Snapshot;
use shardloom_program::{BucketId, Carried, ClassId, Program};

use super::Trainer;
use crate::Result;
use crate::blueprint::{Blueprint, Connected};
use crate::executor::{Answer, Command, RunningRanks, SavedState, StateCommand, Updates};
use crate::rank::{Gradients, Rank, RowEnd, StepOutcome};

/// A parameter server that was lost, and who has its ranges now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostServer {
    /// Its number.
    pub server: u32,
    /// How many steps had been trained: training went on from there.
    pub step: u64,
    /// The servers that own its ranges now, ascending.
    pub taken_over_by: Vec<u32>,
    /// What happened, as was reported first.
    pub reason: String,
}

/// What training goes on with.
pub(super) struct TakenOver {
    /// How many steps of the row are finished, and what they came to, by rank.
    pub steps: u32,
    pub outcomes: Vec<Vec<StepOutcome>>,
    /// All ranks but the lost ones.
    pub next: Trainer,
}

/// A range of a lost server: its bucket there, and who has the replica that counts now, as which bucket.
#[derive(Clone, Copy)]
struct Replica {
    lost: (ClassId, BucketId),
    holder: (ClassId, BucketId),
}

/// How far all have come when servers are lost.
struct Loss {
    /// Of the ranks that are left.
    ends: Vec<Option<RowEnd>>,
    /// The servers' classes.
    classes: Vec<ClassId>,
    /// Of their ranges.
    replicas: Vec<Replica>,
    /// How many steps of the row some range has had the updates of.
    steps: u32,
    /// What lacks the last of these updates of what others own, and of the lost servers' ranges.
    behind: Buckets,
    lost_behind: Buckets,
}

impl Loss {
    /// How many updates parameters had had before the row, by name.
    fn updates_before(&self) -> impl Iterator<Item = (String, u64)> {
        self.ends.iter().flatten().flat_map(|end| end.updates_before.clone())
    }
}

/// Buckets by class.
type Buckets = BTreeMap<u32, Vec<u32>>;

impl Trainer {
    /// The parameter servers that were lost while training went on with replicas of their ranges, in order.
    pub fn lost_servers(&self) -> &[LostServer] {
        &self.lost
    }

    /// Goes on without the servers that were lost in a row of so many steps from `first_step` on, for this reason;
    /// none if that cannot be, since others were lost or ranges of them have no replica that is left.
    ///
    /// # Errors
    /// If another rank fails meanwhile, or ranks cannot be started anew.
    pub(super) fn take_over(&self, row: (u64, u32), reason: &str) -> Result<Option<TakenOver>> {
        let program = &self.shared.program;
        let can_lose_some = self.way.is_none() && program.has_replicas();
        if !can_lose_some || matches!(self.connected, Connected::Over(_)) {
            return Ok(None);
        }
        let Some(loss) = self.loss() else { return Ok(None) };
        let Some(snapshot) = self.caught_up(&loss, row)? else { return Ok(None) };
        let step = row.0 + u64::from(loss.steps);
        let counts =
            loss.updates_before().map(|(name, it)| (name, it + u64::from(loss.steps))).collect();
        let updates = Updates { of: counts, others: step };
        let mut next = self.without(&loss.classes)?;
        next.restore(SavedState::Memory(snapshot), updates, step)?;
        next.lost.clone_from(&self.lost);
        let number = |class: ClassId| program.class(class).replica;
        next.lost.extend(loss.classes.iter().map(|&class| {
            let own = loss.replicas.iter().filter(|it| it.lost.0 == class);
            let taken_over_by: BTreeSet<u32> = own.filter_map(|it| number(it.holder.0)).collect();
            LostServer {
                server: number(class).expect("servers have numbers"),
                step,
                taken_over_by: taken_over_by.into_iter().collect(),
                reason: reason.to_owned(),
            }
        }));
        let outcomes = loss.ends.iter().map(|end| {
            let mut outcomes = end.as_ref().map_or(vec![], |end| end.outcomes.clone());
            outcomes.resize(loss.steps as usize, StepOutcome::default());
            outcomes
        });
        Ok(Some(TakenOver { steps: loss.steps, outcomes: outcomes.collect(), next }))
    }

    /// Which servers were lost, and how far those that are left have come; none if others were lost, too, or a range
    /// has no replica that is left.
    fn loss(&self) -> Option<Loss> {
        let program = &self.shared.program;
        let of_rank = |answer| match answer {
            Answer::RowEnd(end) => Some(end),
            _ => None,
        };
        let ends = self.ask_each(StateCommand::EndRow, of_rank);
        let end_of = |class: ClassId| -> &Option<RowEnd> {
            &ends[program.class(class).first_rank.0 as usize]
        };
        let classes: Vec<ClassId> =
            program.classes().map(|(id, _)| id).filter(|&id| end_of(id).is_none()).collect();
        let are_servers = classes.iter().all(|&class| program.class(class).serves().is_some());
        if classes.is_empty() || !are_servers {
            return None;
        }
        let replicas = replicas(program, &classes)?;
        let updated = |(class, bucket): (ClassId, BucketId)| {
            end_of(class).as_ref().map_or(0, |end| end.updated[bucket.0 as usize])
        };
        let left = program
            .classes()
            .filter(|&(id, class)| class.serves().is_some() && end_of(id).is_some());
        let owned = left.flat_map(|(id, class)| {
            let own = class.buckets().filter(|(_, bucket)| bucket.replica_of.is_none());
            own.map(move |(bucket, _)| (id, bucket))
        });
        let owned: Vec<(ClassId, BucketId)> = owned.collect();
        let all = owned.iter().copied().chain(replicas.iter().map(|it| it.holder));
        let steps = all.clone().map(updated).max().unwrap_or(0);
        assert!(
            all.map(updated).all(|it| it + 1 >= steps),
            "nobody goes on before all have updated"
        );
        let lacks = |place: (ClassId, BucketId)| updated(place) < steps;
        let behind = by_class(owned.iter().copied().filter(|&place| lacks(place)));
        let lost = replicas.iter().filter(|it| lacks(it.holder)).map(|it| it.lost);
        let lost_behind = by_class(lost);
        Some(Loss { ends, classes, replicas, steps, behind, lost_behind })
    }

    /// The weights and the state of all ranges after the last step that any has finished, in which those that lack
    /// its update make it; none if a rank fails meanwhile, which may then hold anything.
    ///
    /// # Errors
    /// If parts of parameters do not come together, or an update fails.
    fn caught_up(&self, loss: &Loss, (first_step, row): (u64, u32)) -> Result<Option<Snapshot>> {
        let last = loss.steps.saturating_sub(1);
        let mut gradients: Arc<Vec<Gradients>> = Arc::default();
        if !loss.behind.is_empty() || !loss.lost_behind.is_empty() {
            let of_rank = |answer| match answer {
                Answer::Gradients(gradients) => Some(gradients),
                _ => None,
            };
            let all = self.ask_each(StateCommand::BringGradients, of_rank);
            gradients = Arc::new(all.into_iter().flatten().collect());
        }
        if !loss.behind.is_empty() {
            let (buckets, gradients) = (loss.behind.clone(), Arc::clone(&gradients));
            // Who fails in it does not answer what is asked next.
            self.ask_each(StateCommand::CatchUp { step: last, buckets, gradients }, Some);
        }
        let mut snapshot = Snapshot::default();
        let held = by_class(loss.replicas.iter().map(|it| it.holder));
        for command in [StateCommand::BringAll, StateCommand::BringBuckets { of: held }] {
            let of_rank = |answer| match answer {
                Answer::Pieces(pieces) => Some(pieces),
                _ => None,
            };
            let answers = self.ask_each(command, of_rank);
            if answers.iter().zip(&loss.ends).any(|(answer, end)| answer.is_some() != end.is_some())
            {
                return Ok(None);
            }
            for piece in answers.into_iter().flatten().flatten() {
                snapshot.add(&piece.piece())?;
            }
        }
        // What the lost server would have done, by a rank of its class with the state of the replicas.
        let before: BTreeMap<String, u64> = loss.updates_before().collect();
        for (&class, buckets) in &loss.lost_behind {
            let first_rank = self.shared.program.class(ClassId(class)).first_rank;
            let mut rank = Rank::new(&self.shared, first_rank);
            rank.begin_steps(first_step, row, self.loss_scale.now());
            let counted = before.iter().map(|(name, it)| (name.clone(), it + u64::from(last)));
            let updates = Updates { of: counted.collect(), others: u64::from(last) };
            rank.set_updates(|name| updates.of(name));
            rank.restore(&snapshot, &updates)?;
            rank.catch_up(last, buckets, &gradients)?;
            for piece in rank.bucket_pieces(buckets) {
                snapshot.add(&piece.piece())?;
            }
        }
        Ok(Some(snapshot))
    }

    /// Ranks for the plan without some servers, with fresh weights.
    fn without(&self, lost: &[ClassId]) -> Result<Trainer> {
        let numbers = lost.iter().filter_map(|&class| self.shared.program.class(class).replica);
        let plan = self.plan.without_servers(numbers);
        let plan = plan.expect("servers with replicas have small numbers");
        let (graph, settings) = (self.shared.graph.clone(), self.settings.clone());
        let mut blueprint = Blueprint::lowered(graph, &plan, self.devices, settings, None)?
            .on(Arc::clone(&self.shared.device));
        blueprint.connected = self.connected.clone();
        Trainer::started(blueprint, Arc::clone(&self.shared.source))
    }

    /// Has all ranks that are left carry out a command about their state: the answers of each, none of those that
    /// are lost.
    fn ask_each<T>(
        &self,
        command: StateCommand,
        of_rank: impl Fn(Answer) -> Option<T>,
    ) -> Vec<Option<T>> {
        let ranks = self.shared.program.ranks();
        let RunningRanks::Threads(threads) = &self.running else {
            return (0..ranks).map(|_| None).collect();
        };
        let done = threads.run_each(&Command::State(command)).into_iter();
        done.map(|done| done.and_then(|done| done.answer).and_then(&of_rank)).collect()
    }
}

fn by_class(places: impl Iterator<Item = (ClassId, BucketId)>) -> Buckets {
    let mut by_class = Buckets::new();
    for (class, bucket) in places {
        by_class.entry(class.0).or_default().push(bucket.0);
    }
    by_class
}

/// For each range of the lost servers the replica of the first that follows and is left; none if there is a range
/// without.
fn replicas(program: &Program, lost: &[ClassId]) -> Option<Vec<Replica>> {
    let own = lost.iter().flat_map(|&class| {
        let own = program.class(class).buckets().filter(|(_, bucket)| bucket.replica_of.is_none());
        own.map(move |(bucket, _)| (class, bucket))
    });
    let replica = |lost_range: (ClassId, BucketId)| {
        // In the order of the ring.
        let mut routes = program.routes.iter().filter(|route| {
            (route.from, route.carried) == (lost_range.0, Carried::Aggregated(lost_range.1))
        });
        let holder = routes.find(|route| !lost.contains(&route.to))?.to;
        let mut held = program.class(holder).buckets();
        let (bucket, _) = held.find(|(_, bucket)| bucket.replica_of == Some(lost_range))?;
        Some(Replica { lost: lost_range, holder: (holder, bucket) })
    };
    own.map(replica).collect()
}
