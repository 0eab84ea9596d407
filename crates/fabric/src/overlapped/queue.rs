use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// What one thread is to do, in the order in which others put it in.
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
    /// There is something to do, or there will be nothing more.
    more: Condvar,
    /// All is done.
    idle: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// Whether the thread is at one that it took.
    running: bool,
    stopped: bool,
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        let state =
            State { jobs: VecDeque::with_capacity(super::ROOM), running: false, stopped: false };
        Self { state: Mutex::new(state), more: Condvar::new(), idle: Condvar::new() }
    }
}

impl<J> Queue<J> {
    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in at the end, or gives it back if the queue was stopped.
    pub(super) fn put(&self, job: J) -> Result<(), J> {
        let mut state = self.state();
        if state.stopped {
            return Err(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.more.notify_one();
        Ok(())
    }

    /// The next job, waiting for it; none once all are done and the queue was stopped. The thread says when
    /// it has [finished](Self::finished) it.
    pub(super) fn next(&self) -> Option<J> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running = true;
                return Some(job);
            }
            if state.stopped {
                return None;
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Says that the job taken last is done.
    pub(super) fn finished(&self) {
        let mut state = self.state();
        state.running = false;
        if state.jobs.is_empty() {
            self.idle.notify_all();
        }
    }

    /// Waits until all jobs are done.
    pub(super) fn drain(&self) {
        let mut state = self.state();
        while state.running || !state.jobs.is_empty() {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the thread end when all jobs are done, and takes no more.
    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waits_for_all_jobs_waits_for_the_one_that_runs() {
        let (queue, ended) = (Queue::default(), AtomicBool::new(false));
        queue.put(1).unwrap();
        assert_eq!(queue.next(), Some(1));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                queue.drain();
                ended.load(Ordering::Acquire)
            });
            // Time to come back too early.
            thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::Release);
            queue.finished();
            assert!(waiting.join().unwrap());
        });
    }
}
