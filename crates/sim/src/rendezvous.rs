//! Where the members of a collective meet.

use std::collections::BTreeMap;

use shardloom_program::timeline::Picos;
use shardloom_program::{ClassId, Group, Program};

use crate::Call;
use crate::script::Script;

/// The members of one group, and those that wait in it.
///
/// A member does nothing else until the collective has run, and all members run their collectives in
/// the same order, so one group has at most one collective under way.
pub(crate) struct Rendezvous<'p> {
    /// The actors, in the order of the group.
    pub members: Vec<u32>,
    arrived: Vec<Option<Call<'p>>>,
    missing: usize,
    start: Picos,
}

impl<'p> Rendezvous<'p> {
    fn new(members: Vec<u32>) -> Rendezvous<'p> {
        let missing = members.len();
        Rendezvous { arrived: vec![None; missing], members, missing, start: Picos::ZERO }
    }

    /// A member arrives that can start at `call.start`. Once all have, when the collective starts.
    pub fn arrive(&mut self, call: Call<'p>) -> Option<Picos> {
        let place = self.members.iter().position(|&member| member == call.actor.index);
        let place = place.expect("a group contains the actors that it was made for");
        debug_assert!(self.arrived[place].is_none());
        self.arrived[place] = Some(call);
        self.start = self.start.max(call.start);
        self.missing -= 1;
        (self.missing == 0).then_some(self.start)
    }

    /// The calls of all members, starting together; the group is empty afterwards.
    pub fn leave(&mut self, start: Picos, calls: &mut Vec<Call<'p>>) {
        calls.clear();
        let arrived = self.arrived.iter_mut().filter_map(Option::take);
        calls.extend(arrived.map(|call| Call { start, ..call }));
        self.missing = self.members.len();
        self.start = Picos::ZERO;
    }
}

/// All groups of a run, and for each actor the number of each of its class's groups.
pub(crate) fn meet<'p>(
    program: &Program,
    scripts: &[Script<'_>],
    folded: bool,
) -> (Vec<Rendezvous<'p>>, Vec<Vec<u32>>) {
    let mut all: Vec<Rendezvous<'p>> = vec![];
    let mut open = |members: Vec<u32>| {
        all.push(Rendezvous::new(members));
        all.len() as u32 - 1
    };
    let actors: u32 = match folded {
        true => program.classes.len() as u32,
        false => program.ranks() as u32,
    };
    let mut shared: BTreeMap<(Group, usize), u32> = BTreeMap::new();
    let mut of_actor = vec![];
    for ((class, _), script) in program.classes().zip(scripts) {
        let positions = if folded { 1 } else { script.class.mesh.size() };
        // Per group, per position.
        let mut numbers = vec![vec![u32::MAX; positions]; script.class.communicators.len()];
        for (group, numbers) in script.class.communicators.iter().zip(&mut numbers) {
            for position in 0..positions {
                if numbers[position] != u32::MAX {
                    continue;
                }
                match group {
                    Group::Mesh(_) if folded => numbers[position] = open(vec![class.0]),
                    Group::Mesh(axes) => {
                        let first = script.class.first_rank.0;
                        let members = script.class.mesh.members_along(position, axes);
                        let ranks = members.iter().map(|&member| first + member as u32);
                        let number = open(ranks.collect());
                        members.iter().for_each(|&member| numbers[member] = number);
                    }
                    Group::Classes(classes) => {
                        let member = |&class: &ClassId| match folded {
                            true => class.0,
                            false => program.class(class).first_rank.0 + position as u32,
                        };
                        let members = || classes.iter().map(member).collect();
                        let key = (group.clone(), position);
                        numbers[position] = *shared.entry(key).or_insert_with(|| open(members()));
                    }
                    Group::World => {
                        let world = shared.entry((Group::World, 0));
                        numbers[position] = *world.or_insert_with(|| open((0..actors).collect()));
                    }
                }
            }
        }
        let of = |position| numbers.iter().map(|numbers: &Vec<u32>| numbers[position]).collect();
        of_actor.extend((0..positions).map(of));
    }
    (all, of_actor)
}
