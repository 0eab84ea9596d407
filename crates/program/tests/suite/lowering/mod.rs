//! What lowering makes of a plan: which collectives, how often, over how many elements; what is kept
//! and what runs again; and what must hold of every program.

mod activations;
mod buckets;
mod factored;
mod frozen;
mod groups;
mod hybrid;
mod invariants;
mod layers;
mod meshes;
mod model;
mod second_copy;
