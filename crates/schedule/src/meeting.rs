//! Where devices can meet between their actions without waiting for each other in a circle, and where it
//! costs them nothing.
//!
//! The actions of all devices are put in one order in which each comes after everything that it needs,
//! and a meeting stands in it right after the last action that it waits for. What a device does is then a
//! part of one order that all can follow entry by entry: actions and meetings that come earlier never
//! wait for later ones. So whatever blocks, nobody waits for ever, and devices that meet several times,
//! with the same others or not, do so in the same order.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_plan::PassTimes;

use super::timing::{Timed, pass_time, time};
use super::{Pass, Schedule, requirements};
use crate::ScheduleError;

/// An action of a device: the device, and the action's place in its order.
pub type Place = (usize, usize);

/// Devices that want to meet.
pub struct MeetingRequest {
    /// For each of the devices the action before the end of which it has no part in the meeting.
    pub not_before: Vec<Place>,
}

/// A meeting before the end of the step.
pub struct Meeting {
    /// Which request it fulfils.
    pub request: usize,
    /// For each of the devices the action after which it comes to the meeting. Where several meetings
    /// come after one action, they come in the order of the meetings.
    pub after: Vec<Place>,
}

/// Those of the `requests` that are held before the end of the step if passes take `times`: where the
/// step becomes no longer by it, even if devices do nothing else while they meet. That is where they
/// would stand idle later; a meeting that holds up actions which others wait for is put off to the end.
/// Devices that compute while they communicate gain by every meeting that is not put off.
///
/// # Errors
/// If the orders deadlock.
pub fn meetings(
    schedule: &Schedule,
    times: &PassTimes,
    requests: &[MeetingRequest],
) -> Result<Vec<Meeting>, ScheduleError> {
    let is_last = |&(device, action): &Place| action + 1 == schedule.orders[device].len();
    // Those who have the same to wait for come and go together.
    let mut alike: BTreeMap<&[Place], Vec<usize>> = BTreeMap::new();
    for (index, request) in requests.iter().enumerate() {
        alike.entry(&request.not_before).or_default().push(index);
    }
    let can_be_early = |not_before: &[Place]| !not_before.iter().any(is_last);
    // Without flush there is no end of a step that all devices come to, and no idle time.
    if schedule.ahead() > 0 || !alike.keys().any(|it| can_be_early(it)) {
        return Ok(vec![]);
    }
    let actions = time(schedule, 1, times)?.actions;
    let order = one_order(schedule, &actions);
    let mut rank: Vec<Vec<usize>> = actions.iter().map(|actions| vec![0; actions.len()]).collect();
    for (index, &(device, action)) in order.iter().enumerate() {
        rank[device][action] = index;
    }
    let entries = entries(schedule, times, &order);
    let latest = |not_before: &[Place]| {
        not_before.iter().map(|&(device, action)| rank[device][action]).max()
    };
    let mut groups: Vec<&[Place]> = alike.keys().copied().collect();
    groups.sort_by_key(|it| latest(it));

    let mut stands = vec![order.len(); groups.len()];
    let mut shortest = makespan(&entries, actions.len(), moment(times), &groups, &stands);
    let mut found = vec![];
    for (group, &not_before) in groups.iter().enumerate() {
        let Some(latest) = latest(not_before).filter(|_| can_be_early(not_before)) else {
            continue;
        };
        stands[group] = latest + 1;
        let length = makespan(&entries, actions.len(), moment(times), &groups, &stands);
        if length > shortest + ROUNDING * moment(times) {
            stands[group] = order.len();
            continue;
        }
        shortest = length;
        let last = |device: usize| rank[device].partition_point(|&it| it <= latest) - 1;
        let after = not_before.iter().map(|&(device, _)| (device, last(device)));
        let after: Vec<Place> = after.collect();
        found.extend(
            alike[not_before].iter().map(|&request| Meeting { request, after: after.clone() }),
        );
    }
    Ok(found)
}

/// Times differ if they do by this share of a meeting.
const ROUNDING: f64 = 1e-3;

/// How long a meeting is taken to last: so short that only what waits for it matters.
fn moment(times: &PassTimes) -> f64 {
    1e-3 * (times.forward + times.input + times.weight)
}

/// An action in the one order.
struct Entry {
    device: usize,
    duration: f64,
    /// The entries that it waits for, and how long after their ends.
    needs: Vec<(usize, f64)>,
}

fn entries(schedule: &Schedule, times: &PassTimes, order: &[Place]) -> Vec<Entry> {
    let map = &schedule.map;
    let mut known: BTreeMap<Pass, usize> = BTreeMap::new();
    let mut entries = vec![];
    for (index, &(device, action)) in order.iter().enumerate() {
        let action = schedule.orders[device][action];
        let needed = action.passes().flat_map(|pass| requirements(map, pass)).flatten();
        let needs = needed.filter_map(|needed| {
            let found = needed.as_slice().iter().find_map(|it| Some((it, *known.get(it)?)));
            let (pass, entry) = found?;
            let travels = map.device(pass.instance) != device;
            Some((entry, if travels { times.message } else { 0.0 }))
        });
        let needs = needs.collect();
        let duration = action.passes().map(|pass| pass_time(map, times, pass)).sum();
        known.extend(action.passes().map(|pass| (pass, index)));
        entries.push(Entry { device, duration, needs });
    }
    entries
}

/// How long a step takes in which devices do one thing at a time: their actions, and each group's meeting
/// of a `moment` before the action at which it `stands`.
fn makespan(
    entries: &[Entry],
    devices: usize,
    moment: f64,
    groups: &[&[Place]],
    stands: &[usize],
) -> f64 {
    let mut ends: Vec<f64> = Vec::with_capacity(entries.len());
    let mut clocks = vec![0.0f64; devices];
    let mut meetings: Vec<(usize, &[Place])> =
        stands.iter().copied().zip(groups.iter().copied()).collect();
    meetings.sort_by_key(|&(at, _)| at);
    let mut meetings = meetings.into_iter().peekable();
    for index in 0..=entries.len() {
        while let Some((_, group)) = meetings.next_if(|&(at, _)| at == index) {
            let begin = group.iter().map(|&(device, _)| clocks[device]).fold(0.0, f64::max);
            group.iter().for_each(|&(device, _)| clocks[device] = begin + moment);
        }
        let Some(Entry { device, duration, needs }) = entries.get(index) else { break };
        let ready = needs.iter().map(|&(entry, after)| ends[entry] + after);
        let end = ready.fold(clocks[*device], f64::max) + duration;
        ends.push(end);
        clocks[*device] = end;
    }
    clocks.into_iter().fold(0.0, f64::max)
}

/// All actions, each after what it needs; among those that can be next the one that ends first.
fn one_order(schedule: &Schedule, actions: &[Vec<Timed>]) -> Vec<Place> {
    let map = &schedule.map;
    let mut done: BTreeSet<Pass> = BTreeSet::new();
    let mut next = vec![0; actions.len()];
    // The devices whose next action can run.
    let mut ready: Vec<usize> = vec![];
    let mut order = vec![];
    let mut asked: Vec<usize> = (0..actions.len()).collect();
    loop {
        for device in asked {
            let can_run = actions[device].get(next[device]).is_some_and(|timed| {
                let needed = timed.action.passes().flat_map(|it| requirements(map, it));
                needed.flatten().all(|it| it.as_slice().iter().any(|pass| done.contains(pass)))
            });
            if can_run && !ready.contains(&device) {
                ready.push(device);
            }
        }
        let end = |device: usize| actions[device][next[device]].end;
        let first = ready.iter().enumerate().min_by(|(_, one), (_, other)| {
            end(**one).total_cmp(&end(**other)).then(one.cmp(other))
        });
        let Some((place, &device)) = first else { return order };
        ready.swap_remove(place);
        let action = actions[device][next[device]].action;
        done.extend(action.passes());
        order.push((device, next[device]));
        next[device] += 1;
        // Only its own next action and those of the stages around can have waited for it.
        let around =
            action.passes().flat_map(|it| [map.before(it.instance), map.after(it.instance)]);
        asked = around.flatten().map(|it| map.device(it)).chain([device]).collect();
    }
}
