//! Tests of the whole crate, as one program.

mod arrangements;
mod averaging;
mod differences;
mod loss_scale;
mod meshes;
mod negotiation;
mod parameter_groups;
mod servers;
mod sizes;
mod text;
mod turns;
mod uneven_shares;
mod validation;
