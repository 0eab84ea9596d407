//! Durations written down in one run and repeated in another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Guard, Rank};

use crate::held::ExtraBytes;
use crate::{Actor, Call, Driver, SimError};

/// What a driver answered, per actor in order of its calls. A collective stands with its first member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    clock: Clock,
    /// How many steps were run before.
    #[serde(default)]
    steps_before: u64,
    actors: Vec<Durations>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Durations {
    /// Of launches by the host.
    launches: Vec<Picos>,
    /// Of everything but sends and launches.
    spans: Vec<Picos>,
    /// What receives take of the way in, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inflows: Vec<Picos>,
    /// What something takes of memory besides tensors, if anything, by the index of its span.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<usize, ExtraBytes>,
    /// Of the messages of each send.
    sends: Vec<Vec<Picos>>,
    /// Whether flags of guards held.
    holds: Vec<bool>,
}

/// Passes calls on to another driver and writes down what it answers.
#[derive(Debug)]
pub struct Recorder<D> {
    driver: D,
    recording: Recording,
}

impl<D: Driver> Recorder<D> {
    /// Records `driver`.
    pub fn new(driver: D) -> Recorder<D> {
        let (clock, steps_before) = (driver.clock(), driver.steps_before());
        let recording = Recording { clock, steps_before, actors: vec![] };
        Recorder { driver, recording }
    }

    /// The driver and what it answered.
    pub fn finish(self) -> (D, Recording) {
        (self.driver, self.recording)
    }

    fn of(&mut self, actor: Actor) -> &mut Durations {
        let index = actor.index as usize;
        let actors = &mut self.recording.actors;
        if actors.len() <= index {
            actors.resize(index + 1, Durations::default());
        }
        &mut actors[index]
    }
}

impl<D: Driver> Driver for Recorder<D> {
    type Error = D::Error;

    fn clock(&self) -> Clock {
        self.driver.clock()
    }

    fn launches(&self) -> bool {
        self.driver.launches()
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let launch = self.driver.launch(call)?;
        self.of(call.actor).launches.push(launch);
        Ok(launch)
    }

    fn extra_bytes(&mut self, call: &Call<'_>) -> ExtraBytes {
        let bytes = self.driver.extra_bytes(call);
        let of = self.of(call.actor);
        if bytes != ExtraBytes::default() {
            of.extra.insert(of.spans.len(), bytes);
        }
        bytes
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let span = self.driver.local(call)?;
        self.of(call.actor).spans.push(span);
        Ok(span)
    }

    fn steps_before(&self) -> u64 {
        self.driver.steps_before()
    }

    fn publish(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let span = self.driver.publish(call)?;
        self.of(call.actor).spans.push(span);
        Ok(span)
    }

    fn fetch(&mut self, call: &Call<'_>, from: Rank) -> Result<Picos, D::Error> {
        let span = self.driver.fetch(call, from)?;
        self.of(call.actor).spans.push(span);
        Ok(span)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), D::Error> {
        self.driver.send(call, durations)?;
        self.of(call.actor).sends.push(durations.clone());
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let span = self.driver.receive(call)?;
        self.of(call.actor).spans.push(span);
        Ok(span)
    }

    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, D::Error> {
        let inflow = self.driver.inflow(call)?;
        self.of(call.actor).inflows.push(inflow);
        Ok(inflow)
    }

    fn holds(&mut self, actor: Actor, guard: &Guard, step: i64) -> Result<bool, D::Error> {
        let holds = self.driver.holds(actor, guard, step)?;
        self.of(actor).holds.push(holds);
        Ok(holds)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, D::Error> {
        let span = self.driver.collective(members)?;
        self.of(members[0].actor).spans.push(span);
        Ok(span)
    }

    fn request(&mut self, call: &Call<'_>) -> Result<(), D::Error> {
        self.driver.request(call)
    }

    fn negotiate(&mut self, members: &[Call<'_>], cycles: u64) -> Result<Picos, D::Error> {
        let span = self.driver.negotiate(members, cycles)?;
        self.of(members[0].actor).spans.push(span);
        Ok(span)
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, D::Error> {
        let span = self.driver.fused(requests)?;
        self.of(requests[0][0].actor).spans.push(span);
        Ok(span)
    }
}

/// Repeats a [`Recording`] of the same program with the same options.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    recording: &'a Recording,
    /// How many answers to each actor have been used.
    used: Vec<Used>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    launches: usize,
    spans: usize,
    inflows: usize,
    sends: usize,
    holds: usize,
}

impl<'a> Recorded<'a> {
    /// Repeats `recording` from its beginning.
    pub fn new(recording: &'a Recording) -> Recorded<'a> {
        Recorded { recording, used: vec![Used::default(); recording.actors.len()] }
    }

    fn span(&mut self, actor: Actor) -> Result<Picos, SimError> {
        let index = actor.index as usize;
        let spans = self.recording.actors.get(index).map_or(&[][..], |it| &it.spans);
        let span = self.used.get_mut(index).and_then(|used| next(spans, &mut used.spans));
        span.copied().ok_or_else(|| ends(actor, spans.len()))
    }
}

impl Driver for Recorded<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        self.recording.clock
    }

    fn launches(&self) -> bool {
        self.recording.actors.iter().any(|actor| !actor.launches.is_empty())
    }

    fn launch(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let index = call.actor.index as usize;
        let launches = self.recording.actors.get(index).map_or(&[][..], |it| &it.launches);
        let launch = self.used.get_mut(index).and_then(|used| next(launches, &mut used.launches));
        launch.copied().ok_or_else(|| ends(call.actor, launches.len()))
    }

    fn extra_bytes(&mut self, call: &Call<'_>) -> ExtraBytes {
        let index = call.actor.index as usize;
        let actor = self.recording.actors.get(index).zip(self.used.get(index));
        let found = actor.and_then(|(recorded, used)| recorded.extra.get(&used.spans));
        found.copied().unwrap_or_default()
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.span(call.actor)
    }

    fn steps_before(&self) -> u64 {
        self.recording.steps_before
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let index = call.actor.index as usize;
        let sends = self.recording.actors.get(index).map_or(&[][..], |it| &it.sends);
        let send = self.used.get_mut(index).and_then(|used| next(sends, &mut used.sends));
        durations.extend(send.ok_or_else(|| ends(call.actor, sends.len()))?);
        Ok(())
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.span(call.actor)
    }

    /// Recordings from before there were such have none.
    fn inflow(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let index = call.actor.index as usize;
        let inflows = self.recording.actors.get(index).map_or(&[][..], |it| &it.inflows);
        let inflow = self.used.get_mut(index).and_then(|used| next(inflows, &mut used.inflows));
        match inflow {
            Some(inflow) => Ok(*inflow),
            None if inflows.is_empty() => Ok(Picos::ZERO),
            None => Err(ends(call.actor, inflows.len())),
        }
    }

    fn holds(&mut self, actor: Actor, _: &Guard, _: i64) -> Result<bool, SimError> {
        let index = actor.index as usize;
        let holds = self.recording.actors.get(index).map_or(&[][..], |it| &it.holds);
        let used = self.used.get_mut(index).and_then(|used| next(holds, &mut used.holds));
        used.copied().ok_or_else(|| ends(actor, holds.len()))
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        self.span(members[0].actor)
    }

    fn negotiate(&mut self, members: &[Call<'_>], _: u64) -> Result<Picos, SimError> {
        self.span(members[0].actor)
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, SimError> {
        self.span(requests[0][0].actor)
    }
}

fn next<'a, T>(all: &'a [T], used: &mut usize) -> Option<&'a T> {
    let found = all.get(*used)?;
    *used += 1;
    Some(found)
}

fn ends(actor: Actor, recorded: usize) -> SimError {
    SimError::RecordingEnds { rank: actor.rank.0, recorded }
}
