//! Several processes that share the ranks of a run: the first leads, the others follow.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use shardloom_fabric::{
    Endpoint, Engine, FabricError, Format, Message, Pool, PoolId, Process, Settings, View, ViewMut,
};
use shardloom_kernels::Arithmetic;
use shardloom_program::Program;

use crate::{Contribution, Error, Result};

/// Bytes of the first message of a text, and of those that follow where it is longer.
const FIRST: usize = 4 << 10;
const NEXT: usize = 64 << 10;
/// Messages of each kind to one process that may be under way.
const MOST: usize = 4;
/// Tags of the two.
const FIRST_TAG: u64 = 0;
const NEXT_TAG: u64 = 1;
/// The leader may take as long as it likes between two commands.
const FOR_EVER: Duration = Duration::MAX;
/// Between two looks at whether somebody has said something, the longer the longer that takes.
const LEAST_PAUSE: Duration = Duration::from_micros(50);
const MOST_PAUSE: Duration = Duration::from_millis(10);

/// The processes of a run, each with an equal share of its ranks or, where there are fewer ranks, one or none,
/// as one of them sees the others.
///
/// Process 0 leads: it decides what is done ([`Processes::tell`]), and the others do it with their ranks
/// ([`Trainer::follow`](crate::Trainer::follow)). All run the same program on the same model and data.
pub struct Processes {
    process: Process,
    // Dropped before the engine that it is of.
    link: Mutex<Link>,
    /// By process: the name of the machine that it runs on.
    hosts: Vec<String>,
    engine: Arc<dyn Engine<Contribution>>,
}

/// How the leader and the others talk.
struct Link {
    endpoint: Box<dyn Endpoint<Contribution>>,
    /// By process; of those that this one talks to.
    pools: Vec<Option<[PoolId; 2]>>,
}

impl Processes {
    /// Joins the processes that an engine connects, once all have come.
    ///
    /// # Errors
    /// If the engine cannot connect them, or one is gone.
    pub fn join(engine: Arc<dyn Engine<Contribution>>) -> Result<Processes> {
        let process = engine.process();
        let settings = Settings { timeout: FOR_EVER, arithmetic: Arc::new(Arithmetic) };
        let mut endpoints = engine.connect(process.of, &settings)?;
        let mut endpoint = endpoints.pop().expect("each process has its part of a connection");
        let mut pools = vec![];
        for to in 0..process.of {
            let talks = (process.number == 0) != (to == 0);
            let mut pool = |elements| {
                endpoint.pool(Pool {
                    to,
                    format: Format::U8,
                    elements,
                    ready: 0,
                    most: MOST,
                    priority: None,
                })
            };
            pools.push(if talks { Some([pool(FIRST)?, pool(NEXT)?]) } else { None });
        }
        let (link, host) = (Mutex::new(Link { endpoint, pools }), host());
        let mut processes = Processes { process, link, hosts: vec![], engine };
        processes.hosts = processes.bring_together(host)?;
        Ok(processes)
    }

    /// What each process has, by process, for all of them, which all call this.
    ///
    /// # Errors
    /// If one is gone.
    pub fn bring_together<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>> {
        if !self.leads() {
            self.tell(&own)?;
            return self.hear(0);
        }
        let others = self.others().map(|other| self.hear(other));
        let all: Vec<T> = [Ok(own)].into_iter().chain(others).collect::<Result<_>>()?;
        self.tell(&all)?;
        Ok(all)
    }

    /// By process: the name of the machine that it runs on.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The share of a program's ranks that runs on this machine.
    pub fn share_here(&self, program: &Program) -> f64 {
        let own = &self.hosts[self.process.number as usize];
        match self.process_of_ranks(program) {
            Some(processes) => {
                let here = processes.iter().filter(|&&it| self.hosts[it as usize] == *own).count();
                here as f64 / processes.len() as f64
            }
            None => {
                let here = self.hosts.iter().filter(|&host| host == own).count();
                here as f64 / f64::from(self.process.of)
            }
        }
    }

    /// By rank of a program, the process that it lives in where each has one at most: that with the number of its
    /// device. Otherwise they are dealt in order.
    pub(crate) fn process_of_ranks(&self, program: &Program) -> Option<Vec<u32>> {
        let devices = program.devices();
        devices.iter().all(|&it| it < self.process.of).then_some(devices)
    }

    /// This process.
    pub fn process(&self) -> Process {
        self.process
    }

    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.process.number == 0
    }

    /// What connects them.
    pub(crate) fn engine(&self) -> &Arc<dyn Engine<Contribution>> {
        &self.engine
    }

    /// The processes that this one talks to.
    pub(crate) fn others(&self) -> std::ops::Range<u32> {
        match self.process.number {
            0 => 1..self.process.of,
            _ => 0..1,
        }
    }

    /// Says something to all processes that this one talks to: the leader to all others, each of them to the
    /// leader.
    ///
    /// # Errors
    /// If one is gone.
    pub fn tell(&self, what: &impl Serialize) -> Result<()> {
        let bytes = rmp_serde::to_vec_named(what).map_err(|error| Error::Processes {
            reason: format!("what one tells the others cannot be written: {error}"),
        })?;
        let sent = |to| self.link().send(to, &bytes).map_err(|error| self.gone(to, error));
        // All that can hear it do.
        let outcomes: Vec<Result<()>> = self.others().map(sent).collect();
        outcomes.into_iter().collect()
    }

    /// What a process says next.
    ///
    /// # Errors
    /// If it is gone.
    pub fn hear<T: DeserializeOwned>(&self, from: u32) -> Result<T> {
        self.hear_within(from, FOR_EVER)
    }

    /// The same, if it begins to say so within some time.
    ///
    /// # Errors
    /// As [`Processes::hear`]; if it says nothing for so long.
    pub(crate) fn hear_within<T: DeserializeOwned>(&self, from: u32, time: Duration) -> Result<T> {
        let began = Instant::now();
        let first = loop {
            let mut link = self.link();
            match link.endpoint.try_receive(from, FIRST_TAG) {
                Ok(Some(first)) => break first,
                Ok(None) if began.elapsed() > time => {
                    let reason = format!("it has said nothing for {time:?}");
                    return Err(self.gone_because(from, reason));
                }
                Ok(None) => drop(link),
                Err(error) => return Err(self.gone(from, error)),
            }
            // Who waits long can wait a little longer.
            std::thread::sleep((began.elapsed() / 100).clamp(LEAST_PAUSE, MOST_PAUSE));
        };
        let received = self.link().receive(from, &first);
        drop(first);
        let bytes = received.map_err(|error| self.gone(from, error))?;
        rmp_serde::from_slice(&bytes).map_err(|error| Error::Processes {
            reason: format!("process {from} does not run the same program: {error}"),
        })
    }

    /// Waits until all processes have called it.
    ///
    /// # Errors
    /// If one is gone.
    pub(crate) fn meet(&self) -> Result<()> {
        if !self.leads() {
            self.tell(&())?;
        }
        self.others().try_for_each(|from| self.hear::<()>(from))?;
        if self.leads() { self.tell(&()) } else { Ok(()) }
    }

    /// Tells the others that this process is gone, and why.
    pub fn leave(&self, reason: &str) {
        self.link().endpoint.fail(reason);
    }

    fn gone(&self, process: u32, error: FabricError) -> Error {
        self.gone_because(
            process,
            match error {
                FabricError::PeerGone { reason, .. } => reason,
                other => other.to_string(),
            },
        )
    }

    fn gone_because(&self, process: u32, reason: String) -> Error {
        let host = self.hosts.get(process as usize);
        let host = host.map_or_else(String::new, |host| format!(" (on {host})"));
        Error::ProcessGone { process, host, reason }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes").field("process", &self.process).finish_non_exhaustive()
    }
}

/// The name of this machine.
fn host() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

impl Link {
    /// The first message begins with the length of all.
    fn send(&mut self, to: u32, bytes: &[u8]) -> std::result::Result<(), FabricError> {
        let [first, next] = self.pools[to as usize].expect("processes talk to the leader");
        let length = (bytes.len() as u64).to_le_bytes();
        let (along, rest) = bytes.split_at(bytes.len().min(FIRST - length.len()));
        let pieces = rest.chunks(NEXT).map(|piece| (next, NEXT_TAG, [&[], piece]));
        for (pool, tag, parts) in
            [(first, FIRST_TAG, [&length[..], along])].into_iter().chain(pieces)
        {
            let mut message = self.endpoint.message(pool, tag)?;
            let ViewMut::U8(buffer) = message.view_mut() else { unreachable!("it is bytes") };
            let (head, tail) = buffer.split_at_mut(parts[0].len());
            head.copy_from_slice(parts[0]);
            tail[..parts[1].len()].copy_from_slice(parts[1]);
            self.endpoint.send(message)?;
        }
        Ok(())
    }

    /// What begins with `first`.
    fn receive(&mut self, from: u32, first: &Message) -> std::result::Result<Vec<u8>, FabricError> {
        let View::U8(first) = first.view() else { unreachable!("it is bytes") };
        let (length, along) = first.split_at(size_of::<u64>());
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
        let mut bytes = along[..along.len().min(length)].to_vec();
        while bytes.len() < length {
            let message = self.endpoint.receive(from, NEXT_TAG)?;
            let View::U8(piece) = message.view() else { unreachable!("it is bytes") };
            bytes.extend(&piece[..piece.len().min(length - bytes.len())]);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use shardloom_fabric::{MessagePassing, Queues};
    use shardloom_graph::ModelSpec;
    use shardloom_plan::{Mesh, Uniform};
    use shardloom_program::lower;

    use super::*;

    /// Three processes, on machines of these names, as each of them sees them.
    fn processes(hosts: [&str; 3]) -> Vec<Processes> {
        let join = |transport| {
            let engine = MessagePassing::over(Box::new(transport)).expect("a thread");
            let mut joined = Processes::join(Arc::new(engine)).expect("all three come");
            joined.hosts = hosts.map(str::to_owned).into();
            joined
        };
        thread::scope(|scope| {
            let all: Vec<_> = Queues::between(3)
                .into_iter()
                .map(|transport| scope.spawn(move || join(transport)))
                .collect();
            all.into_iter().map(|it| it.join().expect("it joins")).collect()
        })
    }

    #[test]
    fn ranks_are_here_that_live_in_processes_on_this_machine() {
        let spec = ModelSpec::parse("mlp:inputs=4,hidden=8,layers=2,classes=2").expect("a model");
        let graph = spec.graph().expect("a model");
        let program = |ranks: u32| {
            let mesh = Mesh::of(ranks, 1, 1);
            let uniform = Uniform { mesh, global_batch: 6, ..Uniform::default() };
            let plan = uniform.plan(&graph, "model", "local");
            lower(&graph, &plan, ranks as usize).expect("a program")
        };
        let all = processes(["one", "other", "one"]);
        let shares = |ranks| {
            let program = program(ranks);
            all.iter().map(|it| it.share_here(&program)).collect::<Vec<_>>()
        };
        // A rank each; two of them in the first two processes; two each.
        assert_eq!(shares(3), [2.0 / 3.0, 1.0 / 3.0, 2.0 / 3.0]);
        assert_eq!(shares(2), [0.5; 3]);
        assert_eq!(shares(6), [2.0 / 3.0, 1.0 / 3.0, 2.0 / 3.0]);
    }

    #[test]
    fn ranks_live_in_processes_of_their_own_only_where_there_are_as_many_processes() {
        let spec = ModelSpec::parse("mlp:inputs=4,hidden=8,layers=2,classes=2").expect("a model");
        let graph = spec.graph().expect("a model");
        let all = processes(["one"; 3]);
        for ranks in 1..=6 {
            let mesh = Mesh::of(ranks, 1, 1);
            let uniform = Uniform { mesh, global_batch: ranks as usize, ..Uniform::default() };
            let plan = uniform.plan(&graph, "model", "local");
            let program = lower(&graph, &plan, ranks as usize).expect("a program");
            // Three processes have the devices 0 to 2.
            let expected = (ranks <= 3).then(|| (0..ranks).collect::<Vec<u32>>());
            for process in &all {
                assert_eq!(process.process_of_ranks(&program), expected, "{ranks} ranks");
            }
        }
    }

    #[test]
    fn the_machine_of_a_process_that_is_gone_is_named() {
        let all = processes(["one", "other", "third"]);
        all[1].leave("it was stopped");
        let error = all[0].hear::<()>(1).expect_err("it is gone");
        let said = "process 1 (on other) of the run is gone: it was stopped";
        assert_eq!(error.to_string(), said);
    }
}
