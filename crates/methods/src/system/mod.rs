//! One file per published system.

pub(crate) mod autosync;
pub(crate) mod averaging;
pub(crate) mod byteps;
pub(crate) mod chimera;
pub(crate) mod controllable_memory;
pub(crate) mod data_parallel;
pub(crate) mod deepspeed;
pub(crate) mod dualpipe;
pub(crate) mod gpipe;
pub(crate) mod hanayo;
pub(crate) mod herring;
pub(crate) mod horovod;
pub(crate) mod interleaved;
pub(crate) mod megatron_lm;
pub(crate) mod parallax;
pub(crate) mod parameter_server;
pub(crate) mod pipedream;
pub(crate) mod pipedream_2bw;
pub(crate) mod pipedream_flush;
pub(crate) mod pipelined_backpropagation;
pub(crate) mod pipemare;
pub(crate) mod torchgpipe;
pub(crate) mod zero;
pub(crate) mod zero_bubble;

mod equal_stages;
mod replicas;
mod workers;
