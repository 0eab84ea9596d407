//! Text to tokens, by several threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::tokenizer::InParts;
use crate::{DataError, Result};

/// Parts that are read ahead for each thread.
const AHEAD: usize = 2;

/// A part, and where its tokens are waited for.
type Job = (String, SyncSender<Result<Vec<u32>>>);

/// Encodes parts by `threads` threads and hands their tokens on in the order of the parts. As many parts are in memory as
/// threads are busy with and a few that are ready for them.
///
/// # Errors
/// The first of what reading, encoding or `accept` answers; nothing more is then read.
pub(crate) fn encode_in_order(
    by: &InParts<'_>,
    threads: usize,
    mut next: impl FnMut() -> Result<Option<String>>,
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
        while let Some(part) = next()? {
            let (answer, waited_for) = sync_channel(1);
            if jobs.send((part, answer)).is_err() {
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

fn work(by: &InParts<'_>, waiting: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting: the next thread waits for the lock instead.
        let job = match waiting.lock() {
            Ok(jobs) => jobs.recv(),
            Err(_) => return,
        };
        let Ok((part, answer)) = job else { return };
        // Nobody waits any more once something has failed.
        let encode = AssertUnwindSafe(|| by.encode(part));
        let _ = answer.send(catch_unwind(encode).unwrap_or_else(|_| Err(panicked())));
    }
}

fn panicked() -> DataError {
    DataError::Tokenize { reason: "it panicked".into() }
}
