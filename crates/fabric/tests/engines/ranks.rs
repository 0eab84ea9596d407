use std::{panic, sync::Arc, thread, time::Duration};

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{
    Collective, Contents, Endpoint, Engine, FabricError, Format, Group, Message, Pool, PoolId,
    Settings, View, ViewMut,
};

use crate::arithmetic::Plain;

/// An engine that is held to a fact.
pub type Tested = dyn Engine<Contents>;
pub type Rank = Box<dyn Endpoint<Contents>>;
pub type Members = dyn Group<Contents>;

/// Long enough that only a hang reaches it.
pub const PATIENT: Duration = Duration::from_secs(120);

/// For tests in which time runs out.
pub const IMPATIENT: Duration = Duration::from_millis(5);

/// The endpoints of some ranks.
pub fn connect(engine: &Tested, ranks: u32, timeout: Duration) -> Vec<Rank> {
    engine.connect(ranks, &Settings { timeout, arithmetic: Arc::new(Plain) }).unwrap()
}

/// Runs every rank on its thread; results by rank.
pub fn on_ranks<R: Send>(
    engine: &Tested,
    ranks: u32,
    timeout: Duration,
    run: impl Fn(Rank) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let threads = connect(engine, ranks, timeout)
            .into_iter()
            .map(|endpoint| scope.spawn(|| run(endpoint)))
            .collect::<Vec<_>>();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
            .collect()
    })
}

/// These numbers, to be lent.
pub fn reals(values: &[f32]) -> Contents {
    let mut contents = Contents::zeroed(Format::F32, values.len());
    let ViewMut::F32(all) = contents.view_mut() else { unreachable!("they are f32") };
    all.copy_from_slice(values);
    contents
}

pub fn as_reals(contents: View<'_>) -> &[f32] {
    let View::F32(values) = contents else { panic!("{contents:?} is not f32") };
    values
}

/// Carries a collective out on some numbers in place.
pub fn collective(
    group: &mut Members,
    kind: Kind,
    algorithm: Algorithm,
    reduction: Reduction,
    buffer: &mut [f32],
) -> Result<(), FabricError> {
    let (after, outcome) =
        group.run(Collective::Equal { kind, algorithm, reduction }, reals(buffer));
    buffer.copy_from_slice(as_reals(after.view()));
    outcome
}

/// Likewise in double precision: a direct all-reduce.
pub fn all_reduce_f64(
    group: &mut Members,
    buffer: &mut [f64],
    reduction: Reduction,
) -> Result<(), FabricError> {
    let mut contents = Contents::zeroed(Format::F64, buffer.len());
    let ViewMut::F64(values) = contents.view_mut() else { unreachable!("they are f64") };
    values.copy_from_slice(buffer);
    let (kind, algorithm) = (Kind::AllReduce, Algorithm::Direct);
    let (after, outcome) = group.run(Collective::Equal { kind, algorithm, reduction }, contents);
    let View::F64(values) = after.view() else { unreachable!("they are f64") };
    buffer.copy_from_slice(values);
    outcome
}

/// Buffers of one number each for messages to a rank, none of which are made ahead.
pub fn pool(endpoint: &mut Rank, to: u32, most: usize) -> PoolId {
    endpoint
        .pool(Pool { to, format: Format::F32, elements: 1, ready: most, most, priority: None })
        .unwrap()
}

/// Sends one number.
pub fn send(endpoint: &mut Rank, pool: PoolId, tag: u64, value: f32) -> Result<(), FabricError> {
    let mut message = endpoint.message(pool, tag)?;
    write(&mut message, value);
    endpoint.send(message)
}

/// Writes the number of a message.
pub fn write(message: &mut Message, value: f32) {
    let ViewMut::F32([number]) = message.view_mut() else { panic!("{message:?}") };
    *number = value;
}

/// The number of a message.
pub fn number(message: &Message) -> f32 {
    let View::F32(&[number]) = message.view() else { panic!("{message:?}") };
    number
}

/// Receives one number.
pub fn receive(endpoint: &mut Rank, from: u32, tag: u64) -> Result<f32, FabricError> {
    endpoint.receive(from, tag).map(|message| number(&message))
}
