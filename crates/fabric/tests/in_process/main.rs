//! What ranks that are threads of one process may rely on.

mod all_to_all_v;
mod collectives;
mod failures;
mod groups;
mod messages;
mod ranks;
