//! What ranks that are threads of one process may rely on.

mod collectives;
mod failures;
mod groups;
mod messages;
mod ranks;
