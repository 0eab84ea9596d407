//! The projects that plans go to and come from.

use std::fmt;

/// A project that trains under a configuration of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Project {
    /// Megatron-LM: command-line arguments.
    Megatron,
    /// DeepSpeed: a JSON file.
    DeepSpeed,
    /// torchtitan: a Python function that returns a configuration, and a table of actions.
    Torchtitan,
    /// nanotron: a YAML file.
    Nanotron,
    /// Hugging Face Accelerate: a YAML file.
    Accelerate,
}

impl Project {
    /// All of them.
    pub const ALL: [Project; 5] = [
        Project::Megatron,
        Project::DeepSpeed,
        Project::Torchtitan,
        Project::Nanotron,
        Project::Accelerate,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Project::Megatron => "megatron",
            Project::DeepSpeed => "deepspeed",
            Project::Torchtitan => "torchtitan",
            Project::Nanotron => "nanotron",
            Project::Accelerate => "accelerate",
        }
    }

    /// The project with the version whose words are written.
    pub fn version(self) -> &'static str {
        match self {
            Project::Megatron => "Megatron-LM core_v0.19.0",
            Project::DeepSpeed => "DeepSpeed 0.19.8",
            Project::Torchtitan => "torchtitan 0.3.0",
            Project::Nanotron => "nanotron 0.4 at commit 2411b022",
            Project::Accelerate => "Accelerate 1.15.0",
        }
    }
}

impl fmt::Display for Project {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Project::Megatron => "Megatron-LM",
            Project::DeepSpeed => "DeepSpeed",
            Project::Torchtitan => "torchtitan",
            Project::Nanotron => "nanotron",
            Project::Accelerate => "Accelerate",
        })
    }
}
