//! Ctrl-C and requests to terminate.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Failure, INTERRUPTED};

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on a first request to stop is only noted; a second one ends the program at once.
///
/// # Errors
/// If the system refuses the handler.
pub fn listen() -> Result<(), Failure> {
    let noted = || {
        if ASKED.swap(true, Ordering::SeqCst) {
            exit(i32::from(INTERRUPTED));
        }
    };
    ctrlc::set_handler(noted)
        .map_err(|error| Failure::usage("interrupts", format!("cannot handle interrupts: {error}")))
}

/// Whether the user asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
