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
use shardloom_plan::{Plan, Servers};
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
    pub(super) fn take_over(
        &self,
        (first_step, row): (u64, u32),
        reason: &str,
    ) -> Result<Option<TakenOver>> {
        let program = &self.shared.program;
        let (None, Some(servers)) = (&self.way, self.plan.sync.servers) else { return Ok(None) };
        if servers.replicas == 0 || matches!(self.connected, Connected::Over(_)) {
            return Ok(None);
        }
        let of_rank = |answer| match answer {
            Answer::RowEnd(end) => Some(end),
            _ => None,
        };
        let ends = self.ask_each(StateCommand::EndRow, of_rank);
        let is_lost = |class: ClassId| ends[program.class(class).first_rank.0 as usize].is_none();
        let lost: Vec<ClassId> =
            program.classes().map(|(id, _)| id).filter(|&id| is_lost(id)).collect();
        let are_servers = lost.iter().all(|&class| program.class(class).serves().is_some());
        let replicas = replicas(program, &lost).filter(|_| are_servers && !lost.is_empty());
        let Some(replicas) = replicas else { return Ok(None) };

        // How often every range was updated in the row.
        let updated = |(class, bucket): (ClassId, BucketId)| {
            let end = ends[program.class(class).first_rank.0 as usize].as_ref();
            end.map_or(0, |end: &RowEnd| end.updated[bucket.0 as usize])
        };
        let owned =
            program.classes().filter(|(id, class)| class.serves().is_some() && !is_lost(*id));
        let owned = owned.flat_map(|(id, class)| {
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
        let lacks = |place: &(ClassId, BucketId)| updated(*place) < steps;
        let behind = by_class(owned.iter().copied().filter(lacks));
        let lost_behind = replicas.iter().filter(|it| lacks(&it.holder)).map(|it| it.lost);
        let lost_behind = by_class(lost_behind);

        let mut gradients: Arc<Vec<Gradients>> = Arc::default();
        if !behind.is_empty() || !lost_behind.is_empty() {
            let of_rank = |answer| match answer {
                Answer::Gradients(gradients) => Some(gradients),
                _ => None,
            };
            let all = self.ask_each(StateCommand::BringGradients, of_rank);
            gradients = Arc::new(all.into_iter().flatten().collect());
        }
        let last = steps.saturating_sub(1);
        if !behind.is_empty() {
            let gradients = Arc::clone(&gradients);
            let of_rank = |answer| matches!(answer, Answer::Done).then_some(());
            let catch_up = StateCommand::CatchUp { step: last, buckets: behind, gradients };
            self.ask_each(catch_up, of_rank);
        }
        let mut snapshot = Snapshot::default();
        let held = by_class(replicas.iter().map(|it| it.holder));
        let bring = [StateCommand::BringAll, StateCommand::BringBuckets { of: held }];
        for command in bring {
            let of_rank = |answer| match answer {
                Answer::Pieces(pieces) => Some(pieces),
                _ => None,
            };
            let answers = self.ask_each(command, of_rank);
            // A rank that fails now may hold anything.
            if answers.iter().zip(&ends).any(|(answer, end)| answer.is_some() != end.is_some()) {
                return Ok(None);
            }
            for piece in answers.into_iter().flatten().flatten() {
                snapshot.add(&piece.piece())?;
            }
        }
        let before = ends.iter().flatten().flat_map(|end| end.updates_before.clone());
        let before: BTreeMap<String, u64> = before.collect();
        for (&class, buckets) in &lost_behind {
            let first_rank = program.class(ClassId(class)).first_rank;
            let mut rank = Rank::new(&self.shared, first_rank);
            rank.begin_steps(first_step, row);
            rank.set_updates(|name| before.get(name).copied().unwrap_or(0) + u64::from(last));
            rank.restore(&snapshot)?;
            rank.catch_up(last, buckets, &gradients)?;
            for piece in rank.bucket_pieces(buckets) {
                snapshot.add(&piece.piece())?;
            }
        }

        let outcomes = ends.iter().map(|end| {
            let known = end.as_ref().map_or(&[][..], |end| &end.outcomes[..]);
            let mut outcomes = known.to_vec();
            outcomes.resize(steps as usize, StepOutcome::default());
            outcomes
        });
        let step = first_step + u64::from(steps);
        let counts = before.into_iter().map(|(name, it)| (name, it + u64::from(steps)));
        let updates = Updates { of: counts.collect(), others: step };
        let mut next = self.without(servers, &lost)?;
        next.restore(SavedState::Memory(snapshot), updates, step)?;
        next.lost.clone_from(&self.lost);
        for &class in &lost {
            let number = |class: ClassId| program.class(class).replica;
            let own = replicas.iter().filter(|it| it.lost.0 == class);
            let taken_over_by: BTreeSet<u32> = own.filter_map(|it| number(it.holder.0)).collect();
            next.lost.push(LostServer {
                server: number(class).expect("servers have numbers"),
                step,
                taken_over_by: taken_over_by.into_iter().collect(),
                reason: reason.to_owned(),
            });
        }
        Ok(Some(TakenOver { steps, outcomes: outcomes.collect(), next }))
    }

    /// Ranks for the plan without some servers, with fresh weights.
    fn without(&self, servers: Servers, lost: &[ClassId]) -> Result<Trainer> {
        let numbers = lost.iter().filter_map(|&class| self.shared.program.class(class).replica);
        let lost = numbers.fold(servers.lost, |lost, number| {
            lost.with(number).expect("servers with replicas have small numbers")
        });
        let mut plan: Plan = self.plan.clone();
        plan.sync.servers = Some(Servers { lost, ..servers });
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
    let mut found = vec![];
    for &class in lost {
        let own = program.class(class).buckets().filter(|(_, bucket)| bucket.replica_of.is_none());
        for (bucket, _) in own {
            // In the order of the ring.
            let mut routes = program.routes.iter().filter(|route| {
                (route.from, route.carried) == (class, Carried::Aggregated(bucket))
            });
            let holder = routes.find(|route| !lost.contains(&route.to))?.to;
            // The holder's replicas of a server are in the order of that server's buckets.
            let earlier = program.routes.iter().filter(|route| {
                let is_earlier =
                    matches!(route.carried, Carried::Aggregated(other) if other < bucket);
                (route.from, route.to) == (class, holder) && is_earlier
            });
            let of_owner = program.class(holder).buckets();
            let mut of_owner = of_owner.filter(|(_, bucket)| bucket.replica_of == Some(class));
            let (replica, _) = of_owner.nth(earlier.count())?;
            found.push(Replica { lost: (class, bucket), holder: (holder, replica) });
        }
    }
    Some(found)
}
