//! Ranks that block at every receive and every collective come through, all members of a group run the same
//! collectives in the same order, and what is sent is received.

use std::collections::{BTreeMap, BTreeSet};

use super::row::{Row, Step, entries, instructions};
use super::violation::Violation;
use crate::{
    Action, Class, ClassId, Collective, Content, Exchange, Format, Group, Program, Rank, RouteId,
    View,
};

/// What ranks of a class communicate in a row, in order.
struct Stream<'p> {
    steps: Vec<Step<'p>>,
}

/// Where one rank is.
struct Cursor {
    class: ClassId,
    position: usize,
    next: usize,
}

/// A collective as it must be the same for all who belong to it.
#[derive(Debug, PartialEq)]
struct Meeting {
    exchange: Exchange,
    collective: Collective,
    formats: [Format; 2],
    subject: Subject,
}

/// What a collective is about.
#[derive(Debug, PartialEq)]
enum Subject {
    /// What several classes hold: the graph's parameter that their bucket begins with.
    Bucket(Option<shardloom_graph::ValueId>, Content),
    /// A number of each rank.
    Sum(Content),
    /// Something of one class: the place in its order.
    Own(ClassId, usize),
}

/// Runs all ranks, each as far as it comes, until they are through or wait in a circle.
///
/// # Errors
/// What does not match, or where ranks wait.
pub fn run_blocking(program: &Program, row: Row) -> Result<(), Violation> {
    let streams: Vec<Stream<'_>> = program
        .classes()
        .map(|(id, class)| {
            let all = instructions(class, id, &entries(program, class, row))
                .filter(|step| {
                    let publishes = matches!(step.instruction.action, Action::Publish { .. });
                    publishes || step.instruction.involves_others()
                })
                .collect();
            Stream { steps: all }
        })
        .collect();
    count_messages(program, &streams)?;
    let mut cursors: Vec<Cursor> = (0..program.ranks() as u32)
        .map(|rank| {
            let (class, position) = program.locate(Rank(rank));
            Cursor { class, position, next: 0 }
        })
        .collect();
    let mut groups = Groups::default();
    let mut published: BTreeSet<Rank> = BTreeSet::new();
    let mut arrived: BTreeMap<(RouteId, usize, Option<u32>), usize> = BTreeMap::new();
    loop {
        let mut moved = false;
        for rank in 0..cursors.len() {
            while let Some(step) = current(&streams, &cursors[rank]) {
                let position = cursors[rank].position;
                let microbatch = step.run.microbatch;
                match &step.instruction.action {
                    Action::Send { route } => {
                        let route_of = program.route(*route);
                        let microbatch = route_of.microbatch(microbatch);
                        for message in route_of.sent_by(position) {
                            *arrived.entry((*route, message.to, microbatch)).or_default() += 1;
                        }
                    }
                    Action::Receive { route } => {
                        let route_of = program.route(*route);
                        let microbatch = route_of.microbatch(microbatch);
                        let wanted = route_of.received_by(position).count();
                        let waiting = arrived.entry((*route, position, microbatch)).or_default();
                        if *waiting < wanted {
                            break;
                        }
                        *waiting -= wanted;
                    }
                    Action::Collective { group, .. } => {
                        let number = groups.number(program, step.id, position, group);
                        let members = groups.members[number].clone();
                        let all_there = members.iter().all(|member| {
                            let other = &cursors[member.0 as usize];
                            groups.waits(program, current(&streams, other), other, number)
                        });
                        if !all_there {
                            break;
                        }
                        let own = meeting(program, &step, &cursors[rank]);
                        for member in &members {
                            let other = &cursors[member.0 as usize];
                            let Some(at) = current(&streams, other) else { continue };
                            if meeting(program, &at, other) != own {
                                let (at, other) = (step.site(), at.site());
                                return Err(Violation::Meeting { at, other });
                            }
                        }
                        // The others of the group leave with this rank, which does below.
                        for member in members.iter().filter(|it| it.0 as usize != rank) {
                            cursors[member.0 as usize].next += 1;
                        }
                    }
                    Action::Publish { .. } => {
                        published.insert(Rank(rank as u32));
                    }
                    // It may be from any other.
                    Action::Fetch { group } => {
                        let members = program.members(step.id, position, group);
                        let mut others = members.iter().filter(|it| it.0 as usize != rank);
                        if !others.all(|other| published.contains(other)) {
                            break;
                        }
                    }
                    _ => {}
                }
                cursors[rank].next += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let stuck = cursors.iter().zip(0u32..).find_map(|(cursor, rank)| {
        let at = current(&streams, cursor)?.site();
        Some(Violation::Deadlock { rank, at })
    });
    stuck.map_or(Ok(()), Err)
}

fn current<'p>(streams: &[Stream<'p>], cursor: &Cursor) -> Option<Step<'p>> {
    streams[cursor.class.0 as usize].steps.get(cursor.next).copied()
}

/// Checks that each micro-batch is sent on a route as often as it is received.
fn count_messages(program: &Program, streams: &[Stream<'_>]) -> Result<(), Violation> {
    let mut counts: BTreeMap<(RouteId, Option<u32>), (usize, usize)> = BTreeMap::new();
    for step in streams.iter().flat_map(|stream| &stream.steps) {
        let address =
            |route: RouteId| (route, program.route(route).microbatch(step.run.microbatch));
        match step.instruction.action {
            Action::Send { route } => counts.entry(address(route)).or_default().0 += 1,
            Action::Receive { route } => counts.entry(address(route)).or_default().1 += 1,
            _ => {}
        }
    }
    let unequal = counts.into_iter().find(|(_, (sent, received))| sent != received);
    match unequal {
        None => Ok(()),
        Some(((RouteId(route), microbatch), (sent, received))) => {
            Err(Violation::Messages { route, microbatch, sent, received })
        }
    }
}

/// The members of groups, found once; groups of equal members are the same.
#[derive(Default)]
struct Groups<'p> {
    numbers: BTreeMap<(ClassId, usize, &'p Group), usize>,
    members: Vec<Vec<Rank>>,
}

impl<'p> Groups<'p> {
    /// The number of a group that a rank belongs to.
    fn number(
        &mut self,
        program: &Program,
        class: ClassId,
        position: usize,
        group: &'p Group,
    ) -> usize {
        let Groups { numbers, members } = self;
        *numbers.entry((class, position, group)).or_insert_with(|| {
            let ranks = program.members(class, position, group);
            members.iter().position(|known| *known == ranks).unwrap_or_else(|| {
                members.push(ranks);
                members.len() - 1
            })
        })
    }

    /// Whether a rank stands at a collective of this group.
    fn waits(
        &mut self,
        program: &Program,
        at: Option<Step<'p>>,
        cursor: &Cursor,
        number: usize,
    ) -> bool {
        let Some(at) = at else { return false };
        let Action::Collective { group, .. } = &at.instruction.action else { return false };
        self.number(program, at.id, cursor.position, group) == number
    }
}

fn meeting(program: &Program, step: &Step<'_>, cursor: &Cursor) -> Option<Meeting> {
    let class = step.class;
    let exchange = program.exchange(class, cursor.position, step.instruction)?;
    let Action::Collective { kind, .. } = step.instruction.action else { return None };
    let (read, write) = (step.instruction.reads[0], step.instruction.writes[0].to);
    let formats = [read, write].map(|view| class.tensor(view.tensor).format);
    let content = class.tensor(read.tensor).content;
    let subject = match exchange.group {
        Group::Classes(_) => Subject::Bucket(first_value(class, read), content),
        Group::World => Subject::Sum(content),
        Group::Mesh(_) => Subject::Own(step.id, cursor.next),
    };
    Some(Meeting { exchange, collective: kind, formats, subject })
}

/// The graph's parameter that the bucket of a tensor begins with.
fn first_value(class: &Class, view: View) -> Option<shardloom_graph::ValueId> {
    let bucket = class.bucket(class.tensor(view.tensor).bucket?);
    bucket.params.first().map(|&param| class.param(param).value)
}
