//! Packets between the processes of an MPI job.
#![expect(unsafe_code, reason = "MPI reads and writes buffers while operations are under way")]

use std::{
    collections::VecDeque,
    ffi::c_int,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use mpi::{
    Threading,
    environment::Universe,
    ffi,
    topology::SimpleCommunicator,
    traits::{AsRaw, Communicator, CommunicatorCollectives},
};

use crate::{Arrived, Contents, FabricError, Format, Packet, Returns, Transport, message::Nobody};

/// Bodies up to here travel with their header.
const SMALL: usize = 4096;
/// What is sent of a body at once on one machine: MPI counts bytes in 31 bits.
const PIECE_HERE: usize = 1 << 30;
/// And to other machines: what Open MPI sends over TCP without asking its receiver first (64 KiB with its own
/// header). Where two processes send each other larger pieces, an answer waits behind all that goes the same
/// way, and the two take turns: over a shaped link, a direct all-reduce took 1.47 times as long.
const PIECE_AWAY: usize = (64 << 10) - 512;
/// Tags of headers and of bodies that travel alone.
const HEADER: c_int = 1;
const BODY: c_int = 2;
/// How long a process that has ended waits for the others to end, too.
const ENDING: Duration = Duration::from_secs(600);
/// Lengths that a header begins with: its own, and that of the body.
const LENGTHS: usize = 16;
/// Bodies that are kept to be used again, and their bytes.
const KEPT: usize = 64;
const KEPT_BYTES: u64 = 256 << 20;

/// The processes of an MPI job, as `mpirun` or `srun` starts them; a job of one where nothing started this one.
///
/// MPI is started once in a process and ends when this is dropped, which waits for all processes of the job.
pub struct Mpi {
    state: Mutex<State>,
    process: u32,
    processes: u32,
}

struct State {
    /// In order, so that the communicator is freed first.
    communicator: SimpleCommunicator,
    _universe: Universe,
    /// What was sent, until MPI no longer reads it.
    sending: Vec<Sending>,
    /// By sender, in the order sent.
    arriving: Box<[VecDeque<Arriving>]>,
    /// The sender that is looked at first, next time.
    first: usize,
    free: VecDeque<Contents>,
    free_bytes: u64,
    /// By process: whether it runs on this machine.
    here: Box<[bool]>,
    /// Processes that have said that they send no more.
    ended: u32,
}

// SAFETY: MPI was started so that any thread may call it, one at a time; a lock is held whenever it is.
unsafe impl Send for State {}

struct Sending {
    requests: VecDeque<ffi::MPI_Request>,
    /// What MPI reads: not moved or changed, as the heap holds it, until all requests are complete.
    _header: Vec<u8>,
    body: Contents,
    origin: Arc<dyn Returns>,
}

struct Arriving {
    header: Vec<u8>,
    /// What MPI writes: not moved or read, as the heap holds it, until all requests are complete.
    body: Contents,
    requests: VecDeque<ffi::MPI_Request>,
}

impl Mpi {
    /// Starts MPI.
    ///
    /// # Errors
    ///
    /// [`FabricError::Start`] if it was started before, or its library cannot be called by several threads.
    pub fn start() -> Result<Self, FabricError> {
        let refused = |reason: &str| FabricError::Start { reason: reason.to_owned() };
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| refused("MPI was started in this process before"))?;
        if threading < Threading::Serialized {
            return Err(refused(
                "this MPI library can only be called by one thread; use one that was built with \
                 support for threads",
            ));
        }
        // A communicator of its own, so that nobody else's messages are met here.
        let communicator = universe.world().duplicate();
        let (process, processes) = (communicator.rank() as u32, communicator.size() as u32);
        let here = on_this_machine(&communicator, processes as usize);
        let arriving = (0..processes).map(|_| VecDeque::new()).collect();
        let (sending, free) = (vec![], VecDeque::new());
        let state = State {
            communicator,
            _universe: universe,
            sending,
            arriving,
            first: 0,
            free,
            free_bytes: 0,
            here,
            ended: 0,
        };
        Ok(Self { state: Mutex::new(state), process, processes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Mpi {
    fn process(&self) -> u32 {
        self.process
    }

    fn processes(&self) -> u32 {
        self.processes
    }

    fn send(&self, to: u32, packet: Packet) {
        self.state().send(to as c_int, packet);
    }

    fn receive(&self) -> Option<Arrived> {
        let mut state = self.state();
        let sent = state.take_sent();
        state.accept();
        let arrived = state.next();
        drop(state);
        // Whoever takes a buffer back may send something.
        sent.into_iter().for_each(|(body, origin)| origin.take_back(body));
        arrived
    }

    fn is_under_way(&self) -> bool {
        let state = self.state();
        !state.sending.is_empty() || state.arriving.iter().any(|of_one| !of_one.is_empty())
    }

    fn reuse(&self, body: Contents) {
        // Small ones cost less to make than to look for.
        if body.bytes() <= SMALL as u64 {
            return;
        }
        let mut state = self.state();
        state.free_bytes += body.bytes();
        state.free.push_back(body);
        while state.free.len() > KEPT || state.free_bytes > KEPT_BYTES {
            let Some(oldest) = state.free.pop_front() else { break };
            state.free_bytes -= oldest.bytes();
        }
    }
}

impl State {
    fn send(&mut self, to: c_int, packet: Packet) {
        let Packet { header, body, origin } = packet;
        let bytes = body.as_bytes();
        let travels_along = bytes.len() <= SMALL;
        let mut message = Vec::with_capacity(
            LENGTHS + header.len() + if travels_along { bytes.len() } else { 0 },
        );
        message.extend((header.len() as u64).to_le_bytes());
        message.extend((bytes.len() as u64).to_le_bytes());
        message.extend(&header);
        if travels_along {
            message.extend(bytes);
        }
        let mut requests = VecDeque::from([self.start_to_send(&message, to, HEADER)]);
        if !travels_along {
            let pieces = bytes.chunks(self.piece(to));
            requests.extend(pieces.map(|it| self.start_to_send(it, to, BODY)));
        }
        self.sending.push(Sending { requests, _header: message, body, origin });
    }

    /// What is sent of a body at once to a process, or comes from it.
    fn piece(&self, process: c_int) -> usize {
        if self.here[process as usize] { PIECE_HERE } else { PIECE_AWAY }
    }

    /// Has MPI read `bytes` until the request is complete.
    fn start_to_send(&self, bytes: &[u8], to: c_int, tag: c_int) -> ffi::MPI_Request {
        let (start, length) = (bytes.as_ptr().cast(), bytes.len() as c_int);
        let communicator = self.communicator.as_raw();
        // SAFETY: the bytes lie on the heap and stay there until the request is complete (`Sending`); the
        // count fits, as headers are short and bodies are cut.
        started("MPI_Isend", |request| unsafe {
            ffi::MPI_Isend(start, length, ffi::RSMPI_UINT8_T, to, tag, communicator, request)
        })
    }

    /// What MPI is through with reading.
    fn take_sent(&mut self) -> Vec<(Contents, Arc<dyn Returns>)> {
        let mut sent = vec![];
        let mut index = 0;
        while index < self.sending.len() {
            if complete(&mut self.sending[index].requests) {
                let done = self.sending.swap_remove(index);
                sent.push((done.body, done.origin));
            } else {
                index += 1;
            }
        }
        sent
    }

    /// Takes all headers that are there, and has MPI write what goes with them.
    fn accept(&mut self) {
        while let Some((from, message)) = self.next_header() {
            // What does not begin with lengths that are true is handed on as it is: no header of this engine.
            let (header, body, along) = parts(&message).unwrap_or((&message, 0, &[]));
            let header = header.to_vec();
            let mut arriving =
                Arriving { header, body: self.room(body), requests: VecDeque::new() };
            let bytes = arriving.body.as_bytes_mut();
            if body <= SMALL {
                bytes.copy_from_slice(along);
            } else {
                let pieces = bytes.chunks_mut(self.piece(from));
                arriving.requests.extend(pieces.map(|it| self.start_to_receive(it, from)));
            }
            self.arriving[from as usize].push_back(arriving);
        }
    }

    /// The oldest message with a header that has not been taken, and who sent it.
    fn next_header(&self) -> Option<(c_int, Vec<u8>)> {
        let communicator = self.communicator.as_raw();
        let (mut is_there, mut length) = (0, 0);
        // SAFETY: message and status are written by MPI before they are read; all pointers are to locals. The
        // buffer is as long as the message that was matched.
        unsafe {
            let mut message: ffi::MPI_Message = std::mem::zeroed();
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            ffi::MPI_Improbe(
                ffi::MPI_ANY_SOURCE as c_int,
                HEADER,
                communicator,
                &mut is_there,
                &mut message,
                &mut status,
            );
            if is_there == 0 {
                return None;
            }
            ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut length);
            let mut bytes = vec![0; length as usize];
            ffi::MPI_Mrecv(
                bytes.as_mut_ptr().cast(),
                length,
                ffi::RSMPI_UINT8_T,
                &mut message,
                &mut status,
            );
            Some((status.MPI_SOURCE, bytes))
        }
    }

    /// Has MPI write `bytes` until the request is complete.
    fn start_to_receive(&self, bytes: &mut [u8], from: c_int) -> ffi::MPI_Request {
        let (start, length) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        let communicator = self.communicator.as_raw();
        // SAFETY: as in `start_to_send`, of `Arriving`. Bodies of one sender are asked for in the order of
        // their headers, in which they were sent.
        started("MPI_Irecv", |request| unsafe {
            ffi::MPI_Irecv(start, length, ffi::RSMPI_UINT8_T, from, BODY, communicator, request)
        })
    }

    /// So many bytes, to be written.
    fn room(&mut self, bytes: usize) -> Contents {
        let kept = self.free.iter().position(|kept| kept.bytes() == bytes as u64);
        let kept = kept.and_then(|kept| self.free.remove(kept));
        self.free_bytes -= kept.as_ref().map_or(0, Contents::bytes);
        kept.map_or_else(|| Contents::zeroed(Format::U8, bytes), |it| it.relabelled(Format::U8))
    }

    /// The next packet that is there as a whole; of one sender not before those sent earlier.
    fn next(&mut self) -> Option<Arrived> {
        let (first, senders) = (self.first, self.arriving.len());
        for from in (0..senders).map(|it| (first + it) % senders) {
            let Some(oldest) = self.arriving[from].front_mut() else { continue };
            if !complete(&mut oldest.requests) {
                continue;
            }
            self.first = from + 1;
            let Arriving { header, body, .. } = self.arriving[from].pop_front()?;
            if header.is_empty() {
                self.ended += 1;
            } else {
                return Some(Arrived { from: from as u32, header, body });
            }
        }
        None
    }
}

/// The header of a message, the bytes of its body, and the body if it travels along.
fn parts(message: &[u8]) -> Option<(&[u8], usize, &[u8])> {
    let (header, rest) = message.split_first_chunk::<8>()?;
    let (body, rest) = rest.split_first_chunk::<8>()?;
    let (header, along) = rest.split_at_checked(u64::from_le_bytes(*header) as usize)?;
    let body = u64::from_le_bytes(*body) as usize;
    let expected = if body <= SMALL { body } else { 0 };
    (along.len() == expected).then_some((header, body, along))
}

/// The request that a call of MPI starts.
fn started(call: &str, start: impl FnOnce(*mut ffi::MPI_Request) -> c_int) -> ffi::MPI_Request {
    // SAFETY: the library says it never changes.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    let code = start(&mut request);
    // Errors end the job, unless told otherwise (MPI_ERRORS_ARE_FATAL).
    assert_eq!(code, ffi::MPI_SUCCESS as c_int, "{call}");
    request
}

/// Whether all requests are complete; the first of them that are, are forgotten.
fn complete(requests: &mut VecDeque<ffi::MPI_Request>) -> bool {
    while let Some(request) = requests.front_mut() {
        let mut is_complete = 0;
        // SAFETY: the request was started and is not complete; both pointers are to what lives here.
        unsafe { ffi::MPI_Test(request, &mut is_complete, ffi::RSMPI_STATUS_IGNORE) };
        if is_complete == 0 {
            return false;
        }
        requests.pop_front();
    }
    true
}

/// By process: whether it runs on the machine that this one runs on, by what MPI calls machines. All call it.
fn on_this_machine(communicator: &SimpleCommunicator, processes: usize) -> Box<[bool]> {
    let mut hasher = DefaultHasher::new();
    mpi::environment::processor_name().ok().hash(&mut hasher);
    let own = hasher.finish();
    let mut all = vec![0; processes];
    communicator.all_gather_into(&own, &mut all);
    all.into_iter().map(|it| it == own).collect()
}

impl Drop for Mpi {
    /// Says that this process sends no more, and takes what others send until they have said the same: so all
    /// that was sent arrives, and nothing is under way when MPI ends, which waits for all processes anyway.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let nobody: Arc<dyn Returns> = Arc::new(Nobody);
        for process in 0..self.processes {
            let origin = Arc::clone(&nobody);
            let last = Packet { header: vec![], body: Contents::default(), origin };
            state.send(process as c_int, last);
        }
        let began = Instant::now();
        while state.ended < self.processes || !state.sending.is_empty() {
            if began.elapsed() > ENDING {
                // MPI says which process ended all.
                // SAFETY: the communicator is alive.
                unsafe { ffi::MPI_Abort(state.communicator.as_raw(), 1) };
            }
            state.accept();
            while state.next().is_some() {}
            drop(state.take_sent());
            thread::sleep(Duration::from_micros(50));
        }
    }
}
