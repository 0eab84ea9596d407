//! Modelled times, of which some are noted.

use shardloom_program::timeline::{Clock, Picos};
use shardloom_sim::{Call, Driver, Modelled, SimError};

/// What a collective took: of which instruction of which body, and in which micro-batch.
pub type Exchange = ((u32, usize), Option<u32>, Picos);

/// A driver that says what another one says, and notes it.
pub struct Noted<'a> {
    modelled: Modelled<'a>,
    /// What collectives took, in the order in which they started.
    pub exchanges: Vec<Exchange>,
    /// What cycles of negotiation took, likewise.
    pub cycles: Vec<Picos>,
}

impl<'a> Noted<'a> {
    pub fn new(modelled: Modelled<'a>) -> Noted<'a> {
        Noted { modelled, exchanges: vec![], cycles: vec![] }
    }
}

impl Driver for Noted<'_> {
    type Error = SimError;

    fn clock(&self) -> Clock {
        self.modelled.clock()
    }

    fn local(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.modelled.local(call)
    }

    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), SimError> {
        self.modelled.send(call, durations)
    }

    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, SimError> {
        self.modelled.receive(call)
    }

    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, SimError> {
        let (first, took) = (members[0], self.modelled.collective(members)?);
        let place = (first.run.entry.body.0, first.index);
        self.exchanges.push((place, first.run.microbatch, took));
        Ok(took)
    }

    fn negotiate(&mut self, members: &[Call<'_>], cycles: u64) -> Result<Picos, SimError> {
        let took = self.modelled.negotiate(members, cycles)?;
        self.cycles.push(took);
        Ok(took)
    }

    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, SimError> {
        self.modelled.fused(requests)
    }
}
