//! Schedules, rules for weights, corrections, optimizers, layouts and all other words of plans, every two
//! of them together in some run: a run that was interrupted goes on as if it had not been, given weights are
//! those that the first step runs with, and ranks in processes of their own do what threads of one do.

mod data;
mod given_weights;
mod interruption;
mod pairs;
mod processes;
mod resharding;
mod words;
