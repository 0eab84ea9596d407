//! What the rows of a source do not say, as it holds for all of them.

use crate::case::MemoryOf;
use crate::cut::Cut;
use crate::shape::Layers;

/// What holds for all rows of a model in a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Convention {
    /// What the layers are.
    pub kind: Layers,
    /// The most parameters with which the head shares the weights of the embedding.
    pub tied_below: f64,
    /// Whether the vocabulary is padded as Megatron-LM does.
    pub padded: bool,
    /// Whether tensor parallelism comes with sequence parallelism.
    pub sequence_parallel: bool,
    /// What a node sends out, in bytes a second, where it is not the preset's.
    pub uplink_bytes_per_second: Option<f64>,
    /// Time of a message between nodes however small it is, in seconds, where it is not the preset's.
    pub network_latency_seconds: Option<f64>,
    /// The share of bandwidths between nodes that is reached, where it is not the preset's.
    pub network_reachable: Option<f64>,
    /// How layers become stages.
    pub cut: Cut,
    /// The software stack.
    pub stack: &'static str,
    /// Whether times are steady enough to be compared.
    pub timed: bool,
    /// Whose memory is measured.
    pub memory_of: MemoryOf,
}

/// Families whose feed-forward layers have two matrices, by the beginnings of their names.
const GPT_LIKE: [&str; 4] = ["gpt", "mpt", "opt", "bert"];

impl Convention {
    /// What present software on Megatron-LM's lines does: a padded vocabulary, sequence parallelism, equal
    /// stages. Sources that are not known are taken for it.
    fn megatron(model: &str) -> Convention {
        let two_matrices = GPT_LIKE.iter().any(|family| model.starts_with(family));
        Convention {
            kind: match two_matrices {
                true => Layers::Gpt { dropout: 0.0 },
                false => Layers::Llama,
            },
            tied_below: if two_matrices { f64::INFINITY } else { 0.0 },
            padded: true,
            sequence_parallel: true,
            uplink_bytes_per_second: None,
            network_latency_seconds: None,
            network_reachable: None,
            cut: Cut::EvenLayers,
            stack: "megatron",
            timed: true,
            memory_of: MemoryOf::Fullest,
        }
    }

    /// What `benches/gpu/steps.py` runs: embedding and head are one.
    fn pytorch(stack: &'static str, usual: Convention) -> Convention {
        Convention { padded: false, tied_below: f64::INFINITY, stack, ..usual }
    }

    /// What holds for the rows of `model` in `source`.
    pub fn of(source: &str, model: &str) -> Convention {
        let usual = Convention::megatron(model);
        match source {
            "nanotron ultra-scale playbook" => Convention {
                kind: Layers::Llama,
                // Every row says "embeddings tied under 4B".
                tied_below: 4e9,
                padded: false,
                // 8 cards of 400 Gb/s.
                uplink_bytes_per_second: Some(400e9),
                // Fitted with the stack: the network is Amazon's (EFA).
                network_latency_seconds: Some(45e-6),
                network_reachable: Some(0.65),
                cut: Cut::ByArithmetic,
                stack: "nanotron",
                // Rank 0 alone writes what it has reserved (`log_throughput` in `helpers.py` at 67c5ebb).
                memory_of: MemoryOf::First,
                ..usual
            },
            "InternLM/InternEvo" => Convention {
                padded: false,
                sequence_parallel: false,
                // Every row says "4x100Gb RoCE a node".
                uplink_bytes_per_second: Some(50e9),
                stack: "internevo",
                ..usual
            },
            "Hugging Face in PyTorch, eager" => Convention::pytorch("pytorch", usual),
            "Hugging Face in PyTorch, blocks compiled" => {
                Convention::pytorch("pytorch-compiled", usual)
            }
            "mosaicml/llm-foundry" => Convention { padded: false, stack: "fsdp-eager", ..usual },
            // Squared ReLU (Parmar et al. 2024, arXiv 2402.16819, table 1).
            "NVIDIA/dgxc-benchmarking" if model.starts_with("nemotron") => {
                Convention { kind: Layers::GroupedTwoMatrix, ..usual }
            }
            // Repeated tests differ by 15% in the median, and by 21 times at most.
            "NVIDIA/Megatron-LM" => Convention { timed: false, ..usual },
            _ => usual,
        }
    }
}
