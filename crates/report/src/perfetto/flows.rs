//! Which messages belong together: the flows of a trace from sends to receives.

use std::collections::BTreeMap;

use shardloom_program::RouteId;
use shardloom_program::timeline::{Activity, Track};

/// For each message of a track the flows that it is an end of.
pub(super) type TrackFlows = Vec<Vec<u64>>;

/// The flows of a timeline.
pub(super) struct Flows {
    /// By track.
    pub(super) tracks: Vec<TrackFlows>,
}

/// The ends of the messages on one route for one micro-batch: track and place among its messages.
#[derive(Default)]
struct Ends {
    sends: Vec<(usize, usize)>,
    receives: Vec<(usize, usize)>,
}

impl Flows {
    /// Numbers after `last` for the flows among `tracks`. Messages on a route for a micro-batch are paired in order of
    /// ranks and time; where there are more of one end, several next to each other share one of the other.
    pub(super) fn of(tracks: &[Track], last: &mut u64) -> Flows {
        let mut messages: BTreeMap<(RouteId, Option<u32>), Ends> = BTreeMap::new();
        for (track, of) in tracks.iter().enumerate() {
            for (place, message) in of.messages.iter().enumerate() {
                let ends =
                    messages.entry((message.route, message.interval.microbatch)).or_default();
                match message.interval.activity {
                    Activity::Send => ends.sends.push((track, place)),
                    _ => ends.receives.push((track, place)),
                }
            }
        }
        let mut flows: Vec<TrackFlows> =
            tracks.iter().map(|track| vec![vec![]; track.messages.len()]).collect();
        for Ends { sends, receives } in messages.values() {
            let count = match (sends.len(), receives.len()) {
                (0, _) | (_, 0) => 0,
                (sends, receives) => sends.max(receives),
            };
            for flow in 0..count {
                *last += 1;
                for ends in [sends, receives] {
                    let (track, place) = ends[flow * ends.len() / count];
                    flows[track][place].push(*last);
                }
            }
        }
        Flows { tracks: flows }
    }
}

#[cfg(test)]
mod tests {
    use shardloom_program::timeline::MessageEnd;

    use super::*;
    use crate::visible::tests::interval;

    fn track(activity: Activity) -> Track {
        let interval = interval(activity, "message 3", 0, 1);
        Track { messages: vec![MessageEnd { route: RouteId(7), interval }], ..Track::default() }
    }

    #[test]
    fn every_end_has_a_flow_where_one_stage_has_more_ranks() {
        let (send, receive) = (track(Activity::Send), track(Activity::Receive));
        let mut last = 10;
        let flows = |tracks: &[Track], last: &mut u64| Flows::of(tracks, last).tracks;
        let to_two = flows(&[send.clone(), receive.clone(), receive.clone()], &mut last);
        assert_eq!(to_two, [[vec![11, 12]], [vec![11]], [vec![12]]]);
        let to_one = flows(&[send.clone(), send.clone(), receive.clone()], &mut last);
        assert_eq!(to_one, [[vec![13]], [vec![14]], [vec![13, 14]]]);
        let of_sends = flows(&[send.clone(), send], &mut last);
        assert!(of_sends.iter().flatten().all(Vec::is_empty), "nobody receives these");
        assert_eq!(last, 14);
    }
}
