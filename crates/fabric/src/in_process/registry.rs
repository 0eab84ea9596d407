use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    rendezvous::{Participant, rendezvous},
    roster::Roster,
};
use crate::{channel::Channels, contents::Storage};

/// Matches the members of a group up, however far apart in time they build it.
#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<Lists>);

/// By list of members: a group in which every position has been taken is forgotten,
/// only how often each position was taken stays.
type Lists = HashMap<Box<[u32]>, List>;

#[derive(Debug)]
struct List {
    /// Groups of this list each member has built, by position.
    built: Vec<u64>,
    /// Groups some member has yet to build, by their number.
    open: HashMap<u64, Vec<Option<Membership>>>,
}

/// One member's part of a group.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) participant: Participant,
    /// Messages of collectives, between positions.
    pub(super) channels: Arc<Channels<Storage>>,
    /// What they were in, on its way back from who received them.
    pub(super) empties: Arc<Channels<Storage>>,
}

impl Registry {
    /// The place of `members[position]` in the next group of this list it builds.
    pub(super) fn membership(
        &self,
        roster: &Arc<Roster>,
        members: &[u32],
        position: usize,
    ) -> Membership {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = lists
            .entry(members.into())
            .or_insert_with(|| List { built: vec![0; members.len()], open: HashMap::new() });
        let number = list.built[position];
        list.built[position] += 1;
        let memberships = list.open.entry(number).or_insert_with(|| memberships(roster, members));
        let membership =
            memberships[position].take().expect("a position takes part in each group once");
        if memberships.iter().all(Option::is_none) {
            list.open.remove(&number);
        }
        membership
    }
}

fn memberships(roster: &Arc<Roster>, members: &[u32]) -> Vec<Option<Membership>> {
    let [channels, empties] = [(), ()].map(|()| Arc::new(Channels::new(members.len())));
    let membership = |participant| {
        let (channels, empties) = (Arc::clone(&channels), Arc::clone(&empties));
        Some(Membership { participant, channels, empties })
    };
    rendezvous(roster, members).into_iter().map(membership).collect()
}
