//! Ctrl-C and other requests to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

#[cfg(unix)]
use signal_hook::consts::{SIGHUP, SIGXFSZ};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, after_signal};

/// What asks a run to stop: Ctrl-C, the system's manager of processes, and a terminal that goes.
const REQUESTS: &[i32] = &[
    SIGINT,
    SIGTERM,
    #[cfg(unix)]
    SIGHUP,
];

/// Whether there was one.
static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The number of the signal that was the first one.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// From now on a first request to stop is only noted; a second one ends the program at once.
///
/// # Errors
/// If the system refuses the handler.
pub fn listen() -> Result<(), Failure> {
    for &signal in REQUESTS {
        let status = i32::from(after_signal(signal));
        // Handlers run in this order: at the first signal nothing was asked yet.
        flag::register_conditional_shutdown(signal, status, Arc::clone(&ASKED)).map_err(refused)?;
        flag::register_usize(signal, Arc::clone(&SIGNAL), signal as usize).map_err(refused)?;
        flag::register(signal, Arc::clone(&ASKED)).map_err(refused)?;
    }
    Ok(())
}

/// From now on a write beyond the size that files may have (`ulimit -f`) fails with an error, as on a full disk. Otherwise
/// its signal would end the program without a message.
///
/// # Errors
/// If the system refuses the handler.
#[cfg(unix)]
pub fn report_file_size_limits() -> Result<(), Failure> {
    flag::register(SIGXFSZ, Arc::default()).map(drop).map_err(refused)
}

fn refused(error: std::io::Error) -> Failure {
    Failure::usage("interrupts", format!("cannot handle interrupts: {error}"))
}

/// The signal by which the user asked to stop.
pub fn asked() -> Option<i32> {
    ASKED.load(Ordering::SeqCst).then(|| SIGNAL.load(Ordering::SeqCst) as i32)
}
