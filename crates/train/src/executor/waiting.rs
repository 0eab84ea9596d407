//! Takes waiting for others out of what blocking ranks record.
//!
//! A rank comes to a receive or a collective and then waits: until the sender begins to send, or the last member has
//! come. Only what follows is communication, and only that is what the simulator shows of either, so that predicted and
//! measured times of waiting and of communication are of the same things. Times of several processes count from when all
//! met: between machines they differ by what their clocks have drifted apart since then.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use shardloom_program::timeline::{MessageEnd, Picos, Track};
use shardloom_program::{Action, Group, Issued, Program, Rank, RouteId};

/// A rank's track, and which instruction each of its intervals of communication was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub track: Track,
    /// By interval.
    pub issued: Vec<Option<Issued>>,
}

/// What ranks do together, the first time and again.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Meeting<'p> {
    /// A message of a route, of a micro-batch.
    Message { route: RouteId, from: Rank, to: Rank, microbatch: Option<u32> },
    /// A collective of these ranks.
    Collective { group: &'p Group, members: Vec<Rank> },
}

/// The tracks of all ranks with their messages, in which communication begins when the others are there.
pub(crate) fn without_waiting(program: &Program, mut recorded: Vec<Recorded>) -> Vec<Track> {
    // When the last of those that keep others waiting has come to it, by how often they had met before.
    let mut begun: HashMap<(Meeting<'_>, usize), Picos> = HashMap::new();
    each(program, &mut recorded, |meeting, start, keeps_waiting| {
        if keeps_waiting {
            let last = begun.entry(meeting).or_default();
            *last = start.max(*last);
        }
        start
    });
    each(program, &mut recorded, |meeting, start, keeps_waiting| {
        match (&meeting.0, keeps_waiting) {
            (Meeting::Message { .. }, true) => start,
            _ => begun.get(&meeting).map_or(start, |&last| start.max(last)),
        }
    });
    recorded.into_iter().map(|it| with_messages(program, it)).collect()
}

/// The rank's track with the messages among its intervals; the engine's, of which no instructions are known, has them.
fn with_messages(program: &Program, Recorded { mut track, issued }: Recorded) -> Track {
    let class = program.class(program.locate(Rank(track.rank)).0);
    let messages =
        track.intervals.iter().zip(issued).filter_map(|(interval, issued)| {
            match issued?.instruction(class).action {
                Action::Send { route } | Action::Receive { route } => {
                    Some(MessageEnd { route, interval: interval.clone() })
                }
                _ => None,
            }
        });
    let messages: Vec<MessageEnd> = messages.collect();
    track.messages.extend(messages);
    track
}

/// Lets `start` say when each interval of communication begins, as far as that is before its end. It is told which
/// meeting it is, when the rank came to it, and whether others wait for that.
fn each<'p>(
    program: &'p Program,
    recorded: &mut [Recorded],
    mut start: impl FnMut((Meeting<'p>, usize), Picos, bool) -> Picos,
) {
    for Recorded { track, issued } in recorded {
        let rank = Rank(track.rank);
        let mut met: HashMap<Meeting<'p>, usize> = HashMap::new();
        for (interval, issued) in track.intervals.iter_mut().zip(issued) {
            let Some(issued) = *issued else { continue };
            let mut begins = interval.start;
            for (meeting, keeps_waiting) in meetings(program, rank, issued) {
                let before = met.entry(meeting.clone()).or_default();
                *before += 1;
                begins = begins.max(start((meeting, *before), interval.start, keeps_waiting));
            }
            interval.start = begins.min(interval.end);
        }
    }
}

/// What a rank takes part in by an instruction, and whether others wait for it there.
fn meetings(program: &Program, rank: Rank, issued: Issued) -> Vec<(Meeting<'_>, bool)> {
    let (class_id, position) = program.locate(rank);
    let class = program.class(class_id);
    let instruction = issued.instruction(class);
    let microbatch = issued.microbatch;
    let first = |class| program.class(class).first_rank.0;
    match &instruction.action {
        Action::Send { route: id } | Action::Receive { route: id } => {
            let sends = matches!(instruction.action, Action::Send { .. });
            let route = program.route(*id);
            let own = route.messages.iter().filter(|message| match sends {
                true => message.from == position,
                false => message.to == position,
            });
            own.map(|message| {
                let from = Rank(first(route.from) + message.from as u32);
                let to = Rank(first(route.to) + message.to as u32);
                (Meeting::Message { route: *id, from, to, microbatch }, sends)
            })
            .collect()
        }
        Action::Collective { group, .. } if !instruction.is_negotiated() => {
            let members = program.members(class_id, position, group);
            vec![(Meeting::Collective { group, members }, true)]
        }
        _ => vec![],
    }
}
