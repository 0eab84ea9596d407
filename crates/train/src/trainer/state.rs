//! What a run goes on from: saved, brought to another plan, given or read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardloom_checkpoint::{Checkpoint, Mean, Meta, Piece, Snapshot, Writer, replica_of};
use shardloom_plan::{Plan, Servers, Staleness, Sync};

use super::{OnNonFinite, Trainer};
use crate::blueprint::{Blueprint, Connected};
use crate::executor::{Answer, NextRanks, Order, SavedState, StateCommand, Updates};
use crate::rank::OwnedPiece;
use crate::{Error, Result};

impl Trainer {
    /// Writes a checkpoint under `root` and deletes all but the latest `keep`.
    ///
    /// # Errors
    /// If a file cannot be written, or weights or optimizer state are not finite and the setting is not to go on regardless.
    pub fn save(&mut self, root: &Path, meta: Meta, keep: Option<NonZeroUsize>) -> Result<PathBuf> {
        if self.on_non_finite != OnNonFinite::Continue {
            let of_rank = |answer| match answer {
                Answer::NonFinite(name) => Some(name),
                _ => None,
            };
            let found = self.ask(StateCommand::FindNonFinite, of_rank)?;
            if let Some(name) = found.into_iter().flatten().next() {
                return Err(Error::NonFiniteWeights { name });
            }
        }
        let updates = self.updates()?;
        let writer = Writer::create(root, self.next_step)?;
        let of_rank = |answer| match answer {
            Answer::Shard(shard) => Some(shard),
            _ => None,
        };
        for shard in self.ask(StateCommand::Save(writer.shards()), of_rank)? {
            writer.add(shard)?;
        }
        let mut meta = meta;
        note_updates(&mut meta, &updates);
        self.loss_scale.write(&mut meta);
        if let Some(delay_bound) = &self.delay_bound {
            delay_bound.write(&mut meta);
        }
        Ok(writer.finish(meta, keep)?)
    }

    /// Goes on from a checkpoint, which may have been written under another plan. Corrections of late
    /// gradients that it has no state of begin with its weights, as at the start of a run.
    ///
    /// # Errors
    /// If it does not hold this model.
    pub fn resume(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let step = checkpoint.step();
        let updates = noted_updates(checkpoint.meta(), step);
        if after(&self.plan, step).sync.averaging.is_some() != self.averages {
            let next = self.planned(&self.plan, self.devices, step)?;
            let plan = self.plan.clone();
            *self = Trainer { plan: plan.clone(), ..self.start_anew(next, &plan, step)? };
        }
        self.loss_scale.read(checkpoint.meta());
        if let Some(delay_bound) = &mut self.delay_bound {
            delay_bound.read(checkpoint.meta());
        }
        self.restore(SavedState::Files(checkpoint), updates, step)
    }

    /// Goes on under another plan, as if the run was saved and resumed under it, but without files: all
    /// state goes from its owners to the ranks of `plan`, each of which takes what its tensors are of it.
    /// Device, engine and a way of one's own of keeping replicas equal stay.
    /// Both plans' ranks and two copies of all state are there at once meanwhile. Bytes sent and held are
    /// counted anew.
    ///
    /// # Errors
    /// If the plan does not fit the model, or asks for number formats that are not trained in, or there are more
    /// ranks than the system has threads: the run is as before then. If a rank fails.
    pub fn replan(&mut self, plan: &Plan, devices: usize) -> Result<()> {
        let next = self.planned(plan, devices, self.next_step)?;
        self.hand_over(next, (plan.clone(), self.next_step), |piece| Some(piece))
    }

    /// Has the ranks be those of the step that comes next: where averages end with it, all of them go on from the
    /// weights and the optimizer state of the first replica.
    ///
    /// # Errors
    /// As [`Trainer::replan`].
    pub(super) fn end_averaging_if_due(&mut self) -> Result<()> {
        let step = self.next_step;
        if !self.averages || self.plan.averaging_ends().is_none_or(|end| step < end) {
            return Ok(());
        }
        let next = self.planned(&self.plan, self.devices, step + 1)?;
        let repeated = self.repeated.clone();
        self.hand_over(next, (self.plan.clone(), step + 1), |piece| {
            match replica_of(&piece.name) {
                Some((0, name)) => Some(Piece { name: name.to_owned(), ..piece }),
                Some(_) => None,
                None => Some(piece),
            }
        })?;
        self.repeated = repeated;
        Ok(())
    }

    /// Has the ranks keep the bound on staleness that follows how far apart workers were.
    ///
    /// # Errors
    /// As [`Trainer::replan`].
    pub(super) fn bound_as_said(&mut self) -> Result<()> {
        let Some((bound, servers)) = self.delay_bound.as_ref().zip(self.plan.sync.servers) else {
            return Ok(());
        };
        let staleness = Staleness::Within(bound.next());
        if servers.staleness == staleness {
            return Ok(());
        }
        let servers = Some(Servers { staleness, ..servers });
        let plan = Plan { sync: Sync { servers, ..self.plan.sync }, ..self.plan.clone() };
        let next = self.planned(&plan, self.devices, self.next_step)?;
        let (bound, changes) = (self.delay_bound.clone(), self.bound_changes.clone());
        let repeated = self.repeated.clone();
        self.hand_over(next, (plan, self.next_step), |piece| Some(piece))?;
        (self.delay_bound, self.bound_changes, self.repeated) = (bound, changes, repeated);
        Ok(())
    }

    /// What ranks of `plan` are after so many steps, with all else as in this run.
    fn planned(&self, plan: &Plan, devices: usize, steps: u64) -> Result<Blueprint> {
        let graph = self.shared.graph.clone();
        let (settings, way) = (self.settings.clone(), self.way.clone());
        let now = after(plan, steps);
        let mut blueprint = Blueprint::lowered(graph, &now, devices, settings, way)?
            .on(Arc::clone(&self.shared.device));
        blueprint.connected = self.connected.clone();
        Ok(blueprint)
    }

    /// The same, as the process that leads says.
    pub(super) fn planned_as_told(&self, next: &NextRanks) -> Result<Blueprint> {
        let plan = Plan::from_toml(&next.plan, "the plan to go on under").map_err(|error| {
            let reason = format!("the process that leads sent a plan that is none: {error}");
            Error::Processes { reason }
        })?;
        self.planned(&plan, next.devices, next.steps)
    }

    /// Starts the ranks of `next`, which are those of `plan` after so many steps, and has other processes do so too.
    /// These ranks are there meanwhile, and do nothing any more.
    fn start_anew(&mut self, next: Blueprint, plan: &Plan, steps: u64) -> Result<Trainer> {
        if let Connected::Over(processes) = &self.connected {
            let (plan, devices) = (plan.to_toml(), next.devices);
            processes.tell(&Order::GoOn(NextRanks { plan, devices, steps }))?;
            self.running.hand_on();
        }
        Trainer::started(next, Arc::clone(&self.shared.source))
    }

    /// Goes on with the ranks of `next`, which is of `plan` after so many steps, from the state that all ranks bring, as far as `of` takes
    /// it.
    fn hand_over(
        &mut self,
        next: Blueprint,
        (plan, steps): (Plan, u64),
        of: impl for<'p> Fn(Piece<'p>) -> Option<Piece<'p>>,
    ) -> Result<()> {
        let updates = self.updates()?;
        let mut snapshot = Snapshot::default();
        for piece in self.bring(StateCommand::BringAll)? {
            if let Some(piece) = of(piece.piece()) {
                snapshot.add(&piece)?;
            }
        }
        let mut next = self.start_anew(next, &plan, steps)?;
        next.plan = plan;
        let step = self.next_step;
        next.restore(SavedState::Memory(snapshot), Updates { of: updates, others: step }, step)?;
        next.lost = std::mem::take(&mut self.lost);
        next.loss_scale.go_on_from(&self.loss_scale);
        *self = next;
        Ok(())
    }

    pub(super) fn restore(&mut self, from: SavedState, updates: Updates, step: u64) -> Result<()> {
        self.tell(StateCommand::Restore { from: Arc::new(from), updates })?;
        self.next_step = step;
        Ok(())
    }

    /// How many updates each parameter has had.
    fn updates(&mut self) -> Result<BTreeMap<String, u64>> {
        let of_rank = |answer| match answer {
            Answer::Updates(updates) => Some(updates),
            _ => None,
        };
        Ok(self.ask(StateCommand::ReportUpdates, of_rank)?.into_iter().flatten().collect())
    }

    /// Starts from given weights, whole tensors by parameter name. The state of the optimizer and of
    /// corrections is as at the start of a run; the step that comes next stays the same.
    ///
    /// # Errors
    /// If one is missing or has another size.
    pub fn set_weights(&mut self, weights: BTreeMap<String, Vec<f32>>) -> Result<()> {
        self.tell(StateCommand::SetWeights(Arc::new(weights)))
    }

    /// All weights, whole, by parameter name; the mean over replicas that have their own.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn weights(&mut self) -> Result<BTreeMap<String, Vec<f32>>> {
        let mut replicas = self.weights_of(None)?;
        if replicas.len() == 1 {
            return Ok(replicas.remove(0));
        }
        let mut means: BTreeMap<String, Mean> = BTreeMap::new();
        for (name, values) in replicas.into_iter().flatten() {
            means.entry(name).or_default().add(&values);
        }
        Ok(means.into_iter().map(|(name, mean)| (name, mean.finish())).collect())
    }

    /// All weights of each replica that has its own, whole, by parameter name: one set if replicas are kept
    /// equal.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn weights_of_replicas(&mut self) -> Result<Vec<BTreeMap<String, Vec<f32>>>> {
        let mut replicas = self.weights_of(None)?;
        // What is frozen is saved once for all.
        if let Some((first, others)) = replicas.split_first_mut() {
            for (name, values) in first {
                for other in others.iter_mut().filter(|it| !it.contains_key(name)) {
                    other.insert(name.clone(), values.clone());
                }
            }
        }
        Ok(replicas)
    }

    /// A digest (BLAKE3) of all weights by name, those of all replicas that have their own, independent of how
    /// they are sharded. One parameter at a time is brought together for it.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn weights_digest(&mut self) -> Result<String> {
        let names = self.shared.graph.parameters().map(|(_, value)| value.name.clone());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        let mut digest = blake3::Hasher::new();
        for name in names {
            for (name, values) in self.weights_of(Some(name))?.into_iter().flatten() {
                digest.update(name.as_bytes());
                digest.update(&(values.len() as u64).to_le_bytes());
                for value in values {
                    digest.update(&value.to_le_bytes());
                }
            }
        }
        Ok(digest.finalize().to_hex().to_string())
    }

    /// The weights of one parameter, or of all, of each replica that has its own.
    fn weights_of(&mut self, of: Option<String>) -> Result<Vec<BTreeMap<String, Vec<f32>>>> {
        let mut replicas: Vec<BTreeMap<String, Vec<f32>>> = vec![BTreeMap::new()];
        for piece in self.bring(StateCommand::BringWeights { of })? {
            let piece = piece.piece();
            let elements = piece.global_shape.iter().product();
            let (replica, name) = replica_of(&piece.name).unwrap_or((0, &piece.name));
            if replicas.len() <= replica {
                replicas.resize(replica + 1, BTreeMap::new());
            }
            let tensor =
                replicas[replica].entry(name.to_owned()).or_insert_with(|| vec![0.0; elements]);
            piece.place(tensor)?;
        }
        Ok(replicas)
    }

    /// The pieces that all ranks bring.
    fn bring(&mut self, command: StateCommand) -> Result<impl Iterator<Item = OwnedPiece>> {
        let of_rank = |answer| match answer {
            Answer::Pieces(pieces) => Some(pieces),
            _ => None,
        };
        Ok(self.ask(command, of_rank)?.into_iter().flatten())
    }

    fn tell(&mut self, command: StateCommand) -> Result<()> {
        let of_rank = |answer| matches!(answer, Answer::Done).then_some(());
        self.ask(command, of_rank).map(|_| ())
    }
}

/// What a plan says after so many steps: the end of averages belongs to the step that begins with it.
fn after(plan: &Plan, steps: u64) -> Cow<'_, Plan> {
    plan.in_step(steps.saturating_sub(1))
}

/// Key of the number of updates in a checkpoint's extra entries; of a parameter that has had fewer than
/// others it is followed by a slash and the name.
const UPDATES: &str = "updates";

/// Notes how many updates each parameter has had. Most often all have had as many.
fn note_updates(meta: &mut Meta, updates: &BTreeMap<String, u64>) {
    let of_one = format!("{UPDATES}/");
    meta.extra.retain(|key, _| !key.starts_with(&of_one));
    let most = updates.values().copied().max().unwrap_or(0);
    meta.extra.insert(UPDATES.into(), most.to_string());
    for (name, updates) in updates.iter().filter(|&(_, updates)| *updates < most) {
        meta.extra.insert(format!("{of_one}{name}"), updates.to_string());
    }
}

/// How many updates each parameter had had, where that was noted; else as many as steps were trained.
fn noted_updates(meta: &Meta, steps: u64) -> Updates {
    let of_one = format!("{UPDATES}/");
    let number = |text: &String| text.parse().ok();
    let one = |(key, text): (&String, &String)| {
        Some((key.strip_prefix(&of_one)?.to_owned(), number(text)?))
    };
    let others = meta.extra.get(UPDATES).and_then(number).unwrap_or(steps);
    Updates { of: meta.extra.iter().filter_map(one).collect(), others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_updates_from_before_do_not_stay_where_all_have_had_as_many() {
        let of = |counts: [(&str, u64); 2]| counts.map(|(name, count)| (name.into(), count));
        let mut meta = Meta::default();
        note_updates(&mut meta, &of([("w", 3), ("x", 5)]).into());
        let noted = noted_updates(&meta, 9);
        assert_eq!((noted.of, noted.others), ([("w".into(), 3)].into(), 5));
        note_updates(&mut meta, &of([("w", 6), ("x", 6)]).into());
        let noted = noted_updates(&meta, 9);
        assert_eq!((noted.of, noted.others), ([].into(), 6));
    }
}
