//! What can be wrong with a program.

use std::fmt;

use crate::{BodyId, ClassId};

/// An instruction of a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The class whose ranks run it.
    pub class: ClassId,
    /// The body that it stands in.
    pub body: BodyId,
    /// Its number in the body, from 0.
    pub instruction: usize,
    /// Its class and its body, for people.
    pub place: String,
}

impl fmt::Display for Site {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, instruction {}", self.place, self.instruction)
    }
}

/// A rule that a program breaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Violation {
    /// An instruction has not the operands that its action needs.
    #[error("{at}: {fault}")]
    Operands {
        /// Where.
        at: Site,
        /// What is wrong with them.
        fault: String,
    },
    /// An operand lies outside of its tensor.
    #[error("{at}: the operand is not within {tensor}")]
    Outside {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// The two ends of an instruction have different sizes.
    #[error("{at}: the sizes of {read} and {written} do not fit")]
    Sizes {
        /// Where.
        at: Site,
        /// What it reads.
        read: String,
        /// What it writes.
        written: String,
    },
    /// Rows whose number is known only while running are read, written or moved without their counts.
    #[error("{at}: how many rows {tensor} has is not among what is read")]
    Counts {
        /// Where.
        at: Site,
        /// The rows.
        tensor: String,
    },
    /// Rows are treated as another routing decided, or as rows are not.
    #[error("{at}: {tensor} is not treated as the routing of its rows decided")]
    Rows {
        /// Where.
        at: Site,
        /// The rows.
        tensor: String,
    },
    /// The gradients of a table are used with rows that are not theirs.
    #[error("{at}: the rows that are read with {tensor} are not those that it is of")]
    RowsOfOthers {
        /// Where.
        at: Site,
        /// The gradients.
        tensor: String,
    },
    /// Rows of a table that servers hold are not those that a worker looks up in its step, or are exchanged in another
    /// order.
    #[error("{at}: {tensor} {fault}")]
    LookedUp {
        /// Where.
        at: Site,
        /// Which tensor.
        tensor: String,
        /// What is wrong.
        fault: String,
    },
    /// The gradients of a table are used before equal rows are summed.
    #[error("{at}: {tensor} may have a row twice")]
    EqualRows {
        /// Where.
        at: Site,
        /// The gradients.
        tensor: String,
    },
    /// The two ends of an instruction store their elements differently.
    #[error("{at}: {read} and {written} have different formats")]
    Formats {
        /// Where.
        at: Site,
        /// What it reads, or the route it belongs to.
        read: String,
        /// What it writes.
        written: String,
    },
    /// The shares of a collective's members are not the parts of the whole.
    #[error("{at}: the members' shares of {tensor} do not make up the whole")]
    Shares {
        /// Where.
        at: Site,
        /// What is shared.
        tensor: String,
    },
    /// A write has a mode that its action cannot have.
    #[error("{at}: {tensor} cannot be written in this mode")]
    Mode {
        /// Where.
        at: Site,
        /// What it writes.
        tensor: String,
    },
    /// The parameters of a bucket do not lie side by side in all of it, or a tensor of it has another size.
    #[error("{place}: the parameters of {bucket} do not fill {tensor}")]
    Bucket {
        /// The class.
        place: String,
        /// The bucket.
        bucket: String,
        /// What they do not fill.
        tensor: String,
    },
    /// A route's messages do not bring each receiver its whole tensor.
    #[error("route {route}: {fault}")]
    Route {
        /// Its number.
        route: u32,
        /// What is wrong with it.
        fault: String,
    },
    /// A pass of an operator has other operands than elsewhere.
    #[error("{at}: the operator's operands differ from those at {other}")]
    Operator {
        /// Where.
        at: Site,
        /// Another place at which it runs.
        other: Site,
    },
    /// A micro-batch does not go through a pass of an operator once.
    #[error(
        "micro-batch {microbatch} goes {times} times through the {pass} pass of operator {operator}"
    )]
    Passes {
        /// The micro-batch.
        microbatch: u32,
        /// The graph's number of the operator.
        operator: usize,
        /// Which pass.
        pass: String,
        /// How often.
        times: usize,
    },
    /// A tensor is read, or added to, that is not written before.
    #[error("{at}: {tensor} is used before it is written, or after it is freed")]
    Unwritten {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is overwritten while it is there.
    #[error("{at}: {tensor} is overwritten while it is there")]
    Overwritten {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is freed that nobody has read.
    #[error("{at}: {tensor} is freed and was never read")]
    Unread {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is freed that is not there, or that is there for the whole run.
    #[error("{at}: {tensor} is freed and is not there to be freed")]
    FreedTwice {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is left at the end.
    #[error("{place}: nothing frees {tensor}")]
    Left {
        /// The class.
        place: String,
        /// The tensor.
        tensor: String,
    },
    /// An instruction touches a tensor that another queue may still read or write.
    #[error("{at}: another queue may not be through with {tensor}")]
    Race {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// An entry asks for older weights than are held.
    #[error("{place}: runs with weights {age} updates old, of which {versions} versions are held")]
    Age {
        /// The class and the body.
        place: String,
        /// The age that the entry asks for.
        age: u32,
        /// How many versions there are.
        versions: u32,
    },
    /// The passes of one micro-batch run with different versions of the weights.
    #[error("{place}: micro-batch {microbatch} runs with other weights than in its forward pass")]
    Versions {
        /// The class and the body.
        place: String,
        /// The micro-batch.
        microbatch: u32,
    },
    /// A micro-batch is sent more or less often than it is received.
    #[error("route {route}: micro-batch {microbatch:?} is sent {sent} times, received {received}")]
    Messages {
        /// The route.
        route: u32,
        /// The micro-batch; none of what belongs to a step.
        microbatch: Option<u32>,
        /// How often it is sent.
        sent: usize,
        /// How often it is received.
        received: usize,
    },
    /// Members of a group come to different collectives.
    #[error("{at}: meets {other}, which is another collective")]
    Meeting {
        /// Where one of them stands.
        at: Site,
        /// Where another does.
        other: Site,
    },
    /// Ranks wait for each other for ever.
    #[error("rank {rank} waits at {at} for ever")]
    Deadlock {
        /// The first of them.
        rank: u32,
        /// Where it waits.
        at: Site,
    },
    /// Gradients are read or updated with before they are reduced over all that have parts of them.
    #[error("{at}: {tensor} is used before it is reduced over all replicas")]
    Unreduced {
        /// Where.
        at: Site,
        /// The gradients, or the norm.
        tensor: String,
    },
    /// Gradients are reduced once more over the same group, or added to after they were.
    #[error("{at}: {tensor} is reduced twice, or added to after it was reduced")]
    ReducedTwice {
        /// Where.
        at: Site,
        /// The gradients.
        tensor: String,
    },
    /// Gradients are overwritten before an update read them.
    #[error("{at}: {tensor} is overwritten before an update reads it")]
    Lost {
        /// Where.
        at: Site,
        /// The gradients, or the norm.
        tensor: String,
    },
    /// An update reads gradients to which nothing was added since the last.
    #[error("{at}: {parameter} has no gradient")]
    NoGradient {
        /// Where.
        at: Site,
        /// The parameter.
        parameter: String,
    },
    /// Gradients are left that no update has read.
    #[error("{place}: no update reads {tensor}")]
    Unused {
        /// The class.
        place: String,
        /// The gradients.
        tensor: String,
    },
    /// A micro-batch adds to a parameter's gradient in other operators than the others.
    #[error(
        "micro-batch {microbatch} does not add to the gradient of {parameter} as the others do"
    )]
    Contributions {
        /// The micro-batch.
        microbatch: u32,
        /// The parameter.
        parameter: String,
    },
    /// A pass reads weights before the part of the last update that changes them.
    #[error("{at}: reads {tensor} before the step before has changed it")]
    Early {
        /// Where.
        at: Site,
        /// The weights.
        tensor: String,
    },
    /// Weights are read of which only this rank's share is new.
    #[error("{at}: of {tensor} only a share is up to date")]
    Stale {
        /// Where.
        at: Site,
        /// The weights.
        tensor: String,
    },
    /// Weights are made of master weights that have not been updated yet.
    #[error("{at}: {tensor} are read before their update")]
    CastEarly {
        /// Where.
        at: Site,
        /// The master weights.
        tensor: String,
    },
    /// Weights are gathered of which no share has changed.
    #[error("{at}: {tensor} is gathered and is up to date")]
    GatheredTwice {
        /// Where.
        at: Site,
        /// The weights.
        tensor: String,
    },
    /// A copy to go back to is not of what is put back, or not of what was there before the update.
    #[error("{at}: {tensor} does not go back to what it was before the update")]
    Backup {
        /// Where.
        at: Site,
        /// What is copied, or put back.
        tensor: String,
    },
    /// Something writes what is frozen.
    #[error("{at}: {tensor} is frozen, and written")]
    FrozenChanged {
        /// Where.
        at: Site,
        /// The weights.
        tensor: String,
    },
    /// An update does not change a tensor, or does so more than once.
    #[error("{place}: an update changes {tensor} {times} times")]
    Updates {
        /// The class and the body.
        place: String,
        /// The tensor.
        tensor: String,
        /// How often.
        times: usize,
    },
    /// Over all steps a tensor is not changed as often as there are updates.
    #[error("{place}: {updates} updates change {tensor} {times} times")]
    UpdatesOfAll {
        /// The class.
        place: String,
        /// The tensor.
        tensor: String,
        /// How many updates there are.
        updates: i64,
        /// How often it is changed, less how often that is undone.
        times: i64,
    },
    /// Updates that are tested later are not tested once.
    #[error("{place}: {updates} updates are tested {times} times")]
    Tests {
        /// The class.
        place: String,
        /// How many updates there are.
        updates: i64,
        /// How often one is tested.
        times: i64,
    },
    /// A guard reads what is no flag, or one that is not written.
    #[error("{place}: a guard reads {tensor}, which says nothing yet")]
    Flag {
        /// The class.
        place: String,
        /// What it reads.
        tensor: String,
    },
    /// A tensor is there after one arm of a guard, and not after the other.
    #[error("{place}: only one arm of a guard leaves {tensor} behind")]
    Arms {
        /// The class.
        place: String,
        /// The tensor.
        tensor: String,
    },
    /// Ranks that take the same arm of a guard may read different flags.
    #[error("{place}: others who take the same arm may read another {tensor}")]
    Agreement {
        /// The class.
        place: String,
        /// The flag.
        tensor: String,
    },
    /// Weights that each replica has its own of are not averaged once in a step that averages, or operators
    /// go on to read them as they were before.
    #[error(
        "{place}: a step averages the weights of {bucket} {times} times, or those that are read stay"
    )]
    Averages {
        /// The class.
        place: String,
        /// The bucket.
        bucket: String,
        /// How often.
        times: u32,
    },
    /// Weights that a replica publishes are not published once in a step, before anything changes them.
    #[error("{place}: a step publishes the weights of {bucket} {times} times")]
    Publications {
        /// The class.
        place: String,
        /// The bucket.
        bucket: String,
        /// How often.
        times: u32,
    },
    /// What is summed up, published or fetched, or made of such, is not the weights that a replica has its own of,
    /// or not over all replicas.
    #[error(
        "{place}: {tensor} is no sum over all replicas that have weights of their own, nor what one of them has \
         published, or not made of such"
    )]
    NoAverage {
        /// The class and the body.
        place: String,
        /// The sum, or what is made of it.
        tensor: String,
    },
    /// Something but weights goes from one replica with weights of its own to another.
    #[error("{at}: {tensor} goes between replicas that have weights of their own")]
    Apart {
        /// Where.
        at: Site,
        /// What.
        tensor: String,
    },
    /// A server has other control besides, several ranks, the same client twice, or a client from which it does
    /// not first receive, of which it does not end one step at a time, or to which it sends without having
    /// waited for the others.
    #[error(
        "{place}: it does not receive from each client, end a step of it and wait for the others before it \
         sends, or does something else"
    )]
    Service {
        /// The class.
        place: String,
    },
    /// The ranges of a worker's bucket that servers hold do not make it up, or are not those that are sent.
    #[error("{place}: servers do not hold each element of bucket {bucket} once, as it is sent")]
    Served {
        /// The class of the worker.
        place: String,
        /// The bucket.
        bucket: String,
    },
    /// A message between a worker and a server is not of the elements of the parameters that it is said to be of.
    #[error("{at}: {tensor} is not what route {route} carries")]
    Piece {
        /// Where it is sent or received.
        at: Site,
        /// The tensor.
        tensor: String,
        /// The route.
        route: u32,
    },
    /// What a server sums is not the same elements of each worker's gradients of a step, each worker's once, or
    /// does not come back as the elements that it is of.
    #[error("{at}: {tensor} {fault}")]
    Summed {
        /// Where it is added or sent.
        at: Site,
        /// The sum.
        tensor: String,
        /// What is wrong.
        fault: String,
    },
    /// What is sent, added or freed is not by how much one update has changed weights, or was before.
    #[error(
        "{at}: {tensor} is not by how much one update has changed weights, or is not sent whole, or added, once"
    )]
    Delta {
        /// Where.
        at: Site,
        /// The tensor.
        tensor: String,
    },
    /// What a worker's update has changed of a bucket does not go to servers once a step.
    #[error("{place}: a step sends what has changed of {bucket} {times} times")]
    Deltas {
        /// The class of the worker.
        place: String,
        /// The bucket.
        bucket: String,
        /// How often.
        times: i64,
    },
    /// A worker gets weights that lack gradients from too many steps before.
    #[error("{place}: weights lack gradients from {steps} steps before, and may from {bound}")]
    Staleness {
        /// The body that sends them.
        place: String,
        /// From how many.
        steps: i64,
        /// From how many they may.
        bound: i64,
    },
    /// In some order of requests a rank waits for ever.
    #[error("{place}: in some order of requests it waits for ever")]
    Waits {
        /// The class.
        place: String,
    },
}
