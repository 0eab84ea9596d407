//! A rank's communicators, made with the rank.

use std::collections::BTreeMap;
use std::time::Duration;

use shardloom_collectives::Reduction;
use shardloom_fabric::{
    Collective as Meeting, Endpoint, Group as Communicator, Handle, Negotiated, Negotiation,
    Request, Window,
};
use shardloom_graph::Reduction as Partial;
use shardloom_program::{
    Action, Collective as Kind, Exchange, Group, Instruction, Queue, TensorId,
};

use super::fetches::RepeatedFetches;
use crate::Result;
use crate::rank::{
    At, Brought, Collective, Contribution, Fetch, MOST_RESERVED, Publish, Rank, stored,
};

/// A rank's communicators, and which of its instructions meet in which of them.
pub(crate) struct Communicators {
    made: Vec<Box<dyn Communicator<Contribution>>>,
    /// Those whose members agree while running on the order of requests.
    negotiated: Vec<Negotiating>,
    /// Where the rank publishes and fetches, if it does.
    window: Option<Published>,
    /// By the number of a collective; none where there is nothing to exchange or nobody to exchange it with.
    meetings: Vec<Option<Met>>,
}

/// Where a collective is carried out.
#[derive(Clone, Copy)]
enum Met {
    /// In which of those that are made, and what the rank does there.
    InOrder(usize, Meeting<'static>),
    /// In which of those that are negotiated, and the number of the request.
    AsAgreed(usize, usize),
}

/// A rank's window, and how far it is.
struct Published {
    window: Box<dyn Window<Contribution>>,
    /// The number of the first publication of the row of steps, which goes on from those of earlier rows.
    first: u64,
    /// Rooms for what is fetched, between two fetches.
    rooms: Vec<Contribution>,
    /// In which steps of the row that was published what was fetched.
    fetched: Vec<u32>,
    /// What is repeated in the row, if anything, and how often the rank had been fetched from before it.
    repeated: Option<(RepeatedFetches, u64)>,
}

/// Publications of a row, at most.
const MOST_PUBLISHED: u64 = 1 << 32;

/// A communicator whose members agree on the order of requests.
struct Negotiating {
    /// Its number in the class.
    number: u16,
    /// Whether the rank is its first member, which answers.
    answers: bool,
    members: Negotiated<Contribution>,
}

/// A collective that was started among a rank's group.
#[expect(clippy::large_enum_variant, reason = "in a box it would ask the heap each time")]
pub(crate) enum Started {
    /// Nobody takes part but the rank.
    Alone(Contribution),
    /// In which of those that are made.
    Together(usize, Handle),
    /// The same, of those that are negotiated.
    Requested(usize, Handle),
}

impl Communicators {
    /// Those of `rank`.
    ///
    /// # Errors
    /// If communication fails.
    pub fn new(
        endpoint: &mut dyn Endpoint<Contribution>,
        rank: &mut Rank,
        timeout: Duration,
    ) -> Result<Communicators> {
        let negotiated = negotiated(endpoint, rank, timeout)?;
        let published = rank.published_tensors();
        let lent: Vec<Contribution> =
            published.into_iter().map(|tensor| rank.lend_lasting(tensor)).collect();
        let window = (!lent.is_empty()).then(|| {
            let rooms = Vec::with_capacity(lent.len());
            Published {
                window: endpoint.window(lent),
                first: 0,
                rooms,
                fetched: vec![],
                repeated: None,
            }
        });
        let (program, class, position) = (rank.program(), rank.class(), rank.position());
        let met = rank.collectives().map(|instruction| {
            let exchange = program.exchange(class, position, instruction)?;
            let members = program.members(rank.class_id(), position, &exchange.group).len();
            (members > 1 && exchange.elements > 0).then_some((instruction, exchange))
        });
        let met: Vec<Option<(&Instruction, Exchange)>> = met.collect();
        // Two groups may have the same members, who all have to make them in the same order.
        let groups = met.iter().flatten().filter(|(it, _)| !it.is_negotiated());
        let groups = groups.map(|(_, exchange)| &exchange.group);
        let mut groups: Vec<&Group> = groups.collect();
        groups.sort_unstable();
        groups.dedup();
        let make = |group: &&Group| {
            let members = program.members(rank.class_id(), position, group);
            let members: Vec<u32> = members.iter().map(|member| member.0).collect();
            Ok(endpoint.group(&members)?)
        };
        let made = groups.iter().map(make).collect::<Result<_>>()?;
        let mut requests = vec![0; negotiated.len()];
        let meeting = |(instruction, met): (&Instruction, &Option<(&Instruction, Exchange)>)| {
            if let Queue::Negotiated(number) = instruction.queue {
                let place = negotiated.iter().position(|it| it.number == number)?;
                requests[place] += 1;
                return met.as_ref().map(|_| Met::AsAgreed(place, requests[place] - 1));
            }
            let Exchange { kind, ref group, algorithm, .. } = met.as_ref()?.1;
            let made = groups.binary_search(&group).expect("all groups are made");
            let reduction = reduction(instruction);
            Some(Met::InOrder(made, Meeting::Equal { kind, algorithm, reduction }))
        };
        let meetings = rank.collectives().zip(&met).map(meeting).collect();
        Ok(Communicators { made, negotiated, window, meetings })
    }

    /// Whether the rank publishes and fetches.
    pub fn fetches(&self) -> bool {
        self.window.is_some()
    }

    /// Prepares for a row of so many steps, which all ranks run. What was published in earlier ones is not fetched
    /// any more. The row fetches what another did, if that is repeated.
    pub fn begin_row(&mut self, steps: u32, repeated: Option<RepeatedFetches>) {
        if let Some(published) = &mut self.window {
            published.first += MOST_PUBLISHED;
            published.fetched.clear();
            published.fetched.reserve(steps.min(MOST_RESERVED) as usize);
            let before = published.window.fetched();
            published.repeated = repeated.map(|repeated| (repeated, before));
        }
    }

    /// Publishes what a rank holds.
    ///
    /// # Errors
    /// If communication fails.
    pub fn publish(&mut self, publish: &Publish, rank: &Rank, at: At) -> Result<()> {
        let Published { window, first, repeated, .. } =
            self.window.as_mut().expect("the rank has a window");
        let step = rank.step_of_row();
        if let Some((repeated, before_row)) = repeated {
            window.wait_until_fetched(*before_row + repeated.before[step as usize])?;
        }
        let number = *first + step;
        Ok(window.publish(number, &mut |parts| rank.publish_to(publish, at, parts))?)
    }

    /// Fetches for a rank what another has published.
    ///
    /// # Errors
    /// If communication fails.
    pub fn fetch(&mut self, fetch: &Fetch, rank: &mut Rank, at: At) -> Result<()> {
        let Published { window, first, rooms, fetched, repeated } =
            self.window.as_mut().expect("the rank has a window");
        rank.room_for(fetch, at, rooms);
        let then = repeated.as_ref().map_or(0, |(it, _)| it.fetched[fetched.len()]);
        let least = *first + u64::from(then);
        let number = window.fetch(rank.partner(fetch).0, least, rooms)?;
        rank.take_fetched(fetch, at, rooms);
        fetched.push((number - *first) as u32);
        Ok(())
    }

    /// Has the members that the rank answers answer as they did in a row that wrote these
    /// [lists](Self::take_lists), or by themselves.
    ///
    /// # Errors
    /// If they are no lists of this rank.
    pub fn repeat(&mut self, lists: Option<&[u32]>) -> Result<()> {
        let mut of_each: Vec<Vec<Vec<u32>>> = vec![vec![]; self.negotiated.len()];
        let mut rest = lists.unwrap_or_default();
        while let [number, length, more @ ..] = rest {
            let place =
                self.negotiated.iter().position(|it| u32::from(it.number) == *number && it.answers);
            let list = more.split_at_checked(*length as usize);
            let (Some(place), Some((list, left))) = (place, list) else {
                return Err(super::command::other_row());
            };
            of_each[place].push(list.to_vec());
            rest = left;
        }
        if !rest.is_empty() {
            return Err(super::command::other_row());
        }
        for (negotiating, own) in self.negotiated.iter_mut().zip(of_each) {
            negotiating.members.repeat(lists.map(|_| own));
        }
        Ok(())
    }

    /// What members were answered whom the rank answers, since this was asked last: of each list the number of
    /// the communicator, its length and the numbers of the requests that were carried out as one. Of a rank that
    /// fetches in which step of the row the other had published that, fetch by fetch.
    pub fn take_lists(&mut self) -> Vec<u32> {
        if let Some(Published { fetched, .. }) = &mut self.window {
            return std::mem::take(fetched);
        }
        let mut all = vec![];
        for Negotiating { number, answers, members } in &mut self.negotiated {
            for list in members.take_lists().into_iter().filter(|_| *answers) {
                all.extend([u32::from(*number), list.len() as u32]);
                all.extend(list);
            }
        }
        all
    }

    /// Starts a rank's part in a collective.
    pub fn start(&mut self, collective: &Collective, contribution: Contribution) -> Started {
        let (communicator, meeting) = match self.meetings[collective.number] {
            None => return Started::Alone(contribution),
            Some(Met::AsAgreed(negotiated, request)) => {
                let members = &mut self.negotiated[negotiated].members;
                return Started::Requested(negotiated, members.start(request, contribution));
            }
            Some(Met::InOrder(communicator, meeting)) => (communicator, meeting),
        };
        let group = &mut self.made[communicator];
        let handle = match &contribution.part {
            // Rows go by counts of their own each time.
            Brought::Rows(rows) => {
                let (sent, received) = (rows.sent.clone(), rows.received.clone());
                let meeting = Meeting::AllToAllV { sent: &sent, received: &received };
                group.start(meeting, contribution)
            }
            Brought::Elements(..) | Brought::Scalar(_) => group.start(meeting, contribution),
        };
        Started::Together(communicator, handle)
    }

    /// What a collective that was started came to, once it has ended.
    pub fn wait(&mut self, started: Started) -> Result<Contribution> {
        let (contribution, outcome) = match started {
            Started::Alone(contribution) => return Ok(contribution),
            Started::Together(communicator, handle) => self.made[communicator].wait(handle),
            Started::Requested(negotiated, handle) => {
                self.negotiated[negotiated].members.wait(handle)
            }
        };
        outcome?;
        Ok(contribution)
    }
}

/// The communicators of a rank whose members agree on the order of requests, in the order of their numbers, which
/// is the same on all members.
fn negotiated(
    endpoint: &mut dyn Endpoint<Contribution>,
    rank: &mut Rank,
    timeout: Duration,
) -> Result<Vec<Negotiating>> {
    let Some(plan) = rank.program().negotiation else { return Ok(vec![]) };
    let mut of_each: BTreeMap<u16, (Vec<Request>, Vec<TensorId>)> = BTreeMap::new();
    let (program, class, position) = (rank.program(), rank.class(), rank.position());
    for instruction in rank.collectives() {
        let Queue::Negotiated(number) = instruction.queue else { continue };
        let exchange = program.exchange(class, position, instruction);
        let Exchange { algorithm, elements, .. } = exchange.expect("it is a collective");
        let format = stored(class.tensor(instruction.reads[0].tensor).format);
        let reduction = reduction(instruction);
        let (requests, tensors) = of_each.entry(number).or_default();
        requests.push(Request { algorithm, reduction, format, elements });
        let further = instruction.writes[1..].iter().map(|it| it.to.tensor);
        let further: Vec<TensorId> = further.filter(|it| !tensors.contains(it)).collect();
        tensors.extend(further);
    }
    let mut all = vec![];
    for (number, (requests, tensors)) in of_each {
        let group = &rank.class().communicators[usize::from(number)];
        let members = rank.program().members(rank.class_id(), rank.position(), group);
        let members: Vec<u32> = members.iter().map(|member| member.0).collect();
        let mut lent = tensors.into_iter().map(|tensor| rank.lend_lasting(tensor));
        let told = lent.next().expect("requests have a place where members tell of them");
        let side_by_side = lent.collect();
        let cycle = Duration::from_secs_f64(plan.cycle_seconds);
        let negotiation = Negotiation { requests, cycle, fused_bytes: plan.fusion_bytes, timeout };
        let group = endpoint.group_apart(&members)?;
        let answers = group.position() == 0;
        let members = Negotiated::new(group, negotiation, told, side_by_side)?;
        all.push(Negotiating { number, answers, members });
    }
    Ok(all)
}

/// How the parts of an instruction's collective combine.
pub(super) fn reduction(instruction: &Instruction) -> Reduction {
    let partial = match instruction.action {
        Action::Collective { kind: Kind::AllReduce(partial), .. } => partial,
        Action::Collective { kind: Kind::ReduceScatter { reduction, .. }, .. } => reduction,
        _ => Partial::Sum,
    };
    match partial {
        Partial::Sum => Reduction::Sum,
        Partial::Max => Reduction::Max,
    }
}
