//! Who performs the instructions that the engine orders.

use shardloom_program::timeline::{Clock, Picos};
use shardloom_program::{ClassId, Guard, Instruction, Rank, Run};

use crate::SimError;
use crate::held::ExtraBytes;

/// One participant of a simulation: a rank, or a whole class that its first rank stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Position among the actors of this run, from 0.
    pub index: u32,
    /// The rank; of a folded class the first.
    pub rank: Rank,
    /// Its class.
    pub class: ClassId,
    /// Its position in the mesh of its class.
    pub position: usize,
    /// How many ranks it stands for: the whole class when folded, else 1.
    pub multiplicity: u32,
}

/// One instruction that one actor comes to.
#[derive(Clone, Copy, Debug)]
pub struct Call<'p> {
    /// Who.
    pub actor: Actor,
    /// In which entry of the actor's control, and in which step.
    pub run: Run,
    /// Where in the entry's body.
    pub index: usize,
    /// The instruction itself.
    pub instruction: &'p Instruction,
    /// When it starts.
    pub start: Picos,
}

/// Performs instructions, or pretends to, and says how long they take.
///
/// The engine calls each method when all that the instruction reads is there, and for each actor in
/// order of its control. Whatever concerns others happens in order of virtual time, ties by actor; an actor's own work may
/// be done before others do what is earlier.
pub trait Driver {
    /// What can go wrong.
    type Error: From<SimError>;

    /// What kind of time the durations are.
    fn clock(&self) -> Clock;

    /// Whether launching takes time; otherwise the engine does not ask how much.
    fn launches(&self) -> bool {
        false
    }

    /// How long the host of the actor's device takes to launch an instruction. Hosts launch one instruction
    /// after the other and run ahead of their devices; an instruction starts only when it has been launched.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn launch(&mut self, _call: &Call<'_>) -> Result<Picos, Self::Error> {
        Ok(Picos::ZERO)
    }

    /// What an instruction that needs nobody else takes of memory besides the program's tensors; nothing of a
    /// driver that holds nothing else. Asked right before [`Driver::local`].
    fn extra_bytes(&mut self, _call: &Call<'_>) -> ExtraBytes {
        ExtraBytes::default()
    }

    /// Performs an instruction that needs nobody else.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn local(&mut self, call: &Call<'_>) -> Result<Picos, Self::Error>;

    /// How many steps were run before the first of these: partners are drawn by the step of the whole run.
    fn steps_before(&self) -> u64 {
        0
    }

    /// Publishes what others fetch, which they find from the end of that on.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn publish(&mut self, call: &Call<'_>) -> Result<Picos, Self::Error> {
        self.local(call)
    }

    /// Fetches what a rank published last, which takes no part; of a folded actor the slowest of all pairs.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn fetch(&mut self, call: &Call<'_>, _from: Rank) -> Result<Picos, Self::Error> {
        self.local(call)
    }

    /// Sends, and pushes onto `durations` (empty before) that of each message, in the order of
    /// [`Route::sent_by`](shardloom_program::Route::sent_by); they go one after another. A folded actor
    /// answers for its busiest position.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn send(&mut self, call: &Call<'_>, durations: &mut Vec<Picos>) -> Result<(), Self::Error>;

    /// Takes in what has arrived; the time of the messages themselves is the senders' answer.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn receive(&mut self, call: &Call<'_>) -> Result<Picos, Self::Error>;

    /// How long what a receive takes in occupies the way into the receiver's device, whoever sends it: what comes
    /// in by one receive after another goes that way one after another, where this is not zero.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn inflow(&mut self, _call: &Call<'_>) -> Result<Picos, Self::Error> {
        Ok(Picos::ZERO)
    }

    /// Whether the flag holds of a guard that `actor` comes to in a step, counted from the first of all.
    /// That depends on numbers, so for a driver without any all flags hold.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn holds(&mut self, _actor: Actor, _guard: &Guard, _step: i64) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// An actor makes a request, and goes on: a collective that it has [come to](Driver::fused) is run later.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn request(&mut self, _call: &Call<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The members of a group, of each some request that it has made, tell each other which they have made, in so
    /// many cycles. How long one of these takes.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn negotiate(&mut self, _members: &[Call<'_>], _cycles: u64) -> Result<Picos, Self::Error> {
        Ok(Picos::ZERO)
    }

    /// Runs requests as one, each made by all members, which stand in the order of the group; in all calls the
    /// start is when they were made.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn fused(&mut self, requests: &[Vec<Call<'_>>]) -> Result<Picos, Self::Error> {
        let mut all = Picos::ZERO;
        for members in requests {
            all += self.collective(members)?;
        }
        Ok(all)
    }

    /// Runs a collective whose members have all arrived, `members` in the order of the group; all of
    /// them are occupied for the result. The group may have one member. A folded class that the group
    /// lies within is one member.
    ///
    /// # Errors
    /// Whatever goes wrong in it.
    fn collective(&mut self, members: &[Call<'_>]) -> Result<Picos, Self::Error>;
}
