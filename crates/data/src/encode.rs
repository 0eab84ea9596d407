//! Text to tokens, by several threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::tokenizer::Tokenizer;
use crate::{DataError, Result};

/// Pieces that are read ahead for each thread.
const AHEAD: usize = 2;

/// What is encoded at once.
pub(crate) struct Piece {
    /// Texts, one after the other.
    pub texts: Vec<String>,
    /// The token behind each, if any.
    pub end: Option<u32>,
}

impl Piece {
    /// Bytes of all texts.
    pub fn bytes(&self) -> u64 {
        self.texts.iter().map(|text| text.len() as u64).sum()
    }

    fn encode(&self, by: &Tokenizer) -> Result<Vec<u32>> {
        let mut tokens = vec![];
        for text in &self.texts {
            tokens.append(&mut by.encode(text)?);
            tokens.extend(self.end);
        }
        Ok(tokens)
    }
}

/// A piece, and where its tokens are waited for.
type Job = (Piece, SyncSender<Result<Vec<u32>>>);

/// Encodes pieces by `threads` threads and hands their tokens on in the order of the pieces. As many pieces are in memory as
/// threads are busy with and a few that are ready for them.
///
/// # Errors
/// The first of what reading, encoding or `accept` answers; nothing more is then read.
pub(crate) fn encode_in_order(
    by: &Tokenizer,
    threads: usize,
    mut next: impl FnMut() -> Result<Option<Piece>>,
    mut accept: impl FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    let (jobs, waiting) = sync_channel::<Job>(threads);
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        for _ in 0..threads {
            thread::Builder::new()
                .spawn_scoped(scope, || work(by, &waiting))
                .map_err(|error| DataError::Threads { error })?;
        }
        // Closed when this returns, which ends the threads.
        let jobs = jobs;
        let mut under_way: VecDeque<Receiver<Result<Vec<u32>>>> = VecDeque::new();
        let mut finish = |oldest: Receiver<Result<Vec<u32>>>| match oldest.recv() {
            Ok(tokens) => accept(&tokens?),
            Err(_) => Err(panicked()),
        };
        while let Some(piece) = next()? {
            let (answer, waited_for) = sync_channel(1);
            if jobs.send((piece, answer)).is_err() {
                return Err(panicked());
            }
            under_way.push_back(waited_for);
            if under_way.len() >= AHEAD * threads
                && let Some(oldest) = under_way.pop_front()
            {
                finish(oldest)?;
            }
        }
        under_way.into_iter().try_for_each(finish)
    })
}

fn work(by: &Tokenizer, waiting: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting: the next thread waits for the lock instead.
        let job = match waiting.lock() {
            Ok(jobs) => jobs.recv(),
            Err(_) => return,
        };
        let Ok((piece, answer)) = job else { return };
        // Nobody waits any more once something has failed.
        let encode = AssertUnwindSafe(|| piece.encode(by));
        let _ = answer.send(catch_unwind(encode).unwrap_or_else(|_| Err(panicked())));
    }
}

fn panicked() -> DataError {
    DataError::Tokenize { reason: "it panicked".into() }
}
