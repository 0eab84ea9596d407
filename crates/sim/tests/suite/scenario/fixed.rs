//! Durations made up by hand.

use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{Action, BodyKind, Content, Program};
use shardloom_sim::{Call, Driver, SimError};

use super::exchanged;

/// Gives each pass its time at its first operator, and each kind of communication its own.
pub struct Fixed<'p> {
    pub program: &'p Program,
    pub forward: u64,
    /// Of input gradients, and of weight gradients; a whole backward pass takes both.
    pub backward: [u64; 2],
    pub message: u64,
    pub norm_share: u64,
    pub reduce: u64,
    pub norm: u64,
}

impl<'p> Fixed<'p> {
    /// Only passes take time, backward passes whole.
    pub fn passes(program: &'p Program, forward: u64, backward: u64) -> Fixed<'p> {
        let backward = [0, backward];
        Fixed { program, forward, backward, message: 0, norm_share: 0, reduce: 0, norm: 0 }
    }
}

impl Driver for Fixed<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        Clock::Virtual
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        let body = self.program.class(call.actor.class).body_of(&call.run.entry);
        let computes = |action: &Action| matches!(action, Action::Kernel { .. });
        let first = body.instructions.iter().position(|it| computes(&it.action));
        let [input, weight] = self.backward;
        Ok(Picos(match (body.kind, &call.instruction.action) {
            (_, Action::Norm) => self.norm_share,
            (BodyKind::Forward, _) if first == Some(call.index) => self.forward,
            (BodyKind::Backward, _) if first == Some(call.index) => input + weight,
            (BodyKind::BackwardInput, _) if first == Some(call.index) => input,
            (BodyKind::BackwardWeight, _) if first == Some(call.index) => weight,
            _ => 0,
        }))
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        let Action::Send { route } = call.instruction.action else { return Ok(()) };
        let messages = self.program.route(route).sent_by(call.actor.position);
        durations.extend(messages.map(|_| Picos(self.message)));
        Ok(())
    }

    fn receive(&mut self, _call: &Call<'_>) -> Result<Picos, SimError> {
        Ok(Picos::ZERO)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let class = self.program.class(members[0].actor.class);
        Ok(Picos(match exchanged(class, members[0].instruction) {
            Some(Content::Gradient) => self.reduce,
            Some(Content::Norm) => self.norm,
            _ => 0,
        }))
    }
}
