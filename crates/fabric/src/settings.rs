use std::{fmt, sync::Arc, time::Duration};

use crate::Reduce;

/// What an engine is told besides the number of its ranks.
#[derive(Clone)]
pub struct Settings {
    /// How long an operation may wait for other ranks before it gives up.
    pub timeout: Duration,
    /// What reducing comes to.
    pub arithmetic: Arc<dyn Reduce>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
