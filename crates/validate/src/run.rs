//! Predictions of many rows at once.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shardloom_cluster::Stack;

use crate::{Prediction, Refusal, Row};

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The prediction, or why there is none.
    pub prediction: Result<Prediction, Refusal>,
    /// How long predicting took.
    pub elapsed: Duration,
}

/// Predicts `rows` on all cores, each under the software stack that it ran under or all under `stack`; the outcomes are in the order of the rows. `hear` is called after each row,
/// from any thread.
pub fn predict(rows: &[Row], stack: Option<&Stack>, hear: &(dyn Fn() + Sync)) -> Vec<Outcome> {
    on_all_cores(rows.len(), |index| {
        let begin = Instant::now();
        let case = rows[index].case.as_ref().map_err(Clone::clone);
        let prediction = case.and_then(|case| case.predict(stack));
        hear();
        Outcome { prediction, elapsed: begin.elapsed() }
    })
}

/// What `work` comes to for every number below `count`, in their order, computed on all cores.
pub(crate) fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![]);
    let run = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let found = work(index);
            done.lock().expect("no thread panics with the lock").push((index, found));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get).min(count) {
            scope.spawn(run);
        }
    });
    let mut done = done.into_inner().expect("no thread panics with the lock");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, found)| found).collect()
}
