//! Work of many simulations on all cores.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What `work` comes to for every number below `count`, in their order, computed on all cores.
pub fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_once_and_what_it_comes_to_is_in_order() {
        for count in [0, 1, 2, 100] {
            let calls = AtomicUsize::new(0);
            let squares = on_all_cores(count, |index| {
                calls.fetch_add(1, Ordering::Relaxed);
                index * index
            });
            assert_eq!(squares, (0..count).map(|index| index * index).collect::<Vec<_>>());
            assert_eq!(calls.into_inner(), count);
        }
    }
}
