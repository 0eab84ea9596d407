//! What sources of 2021 to 2024 that ran Megatron-LM on A100s have in common.

use shardloom_plan::{Number, Recompute};

use crate::Refusal;
use crate::case::{Case, MemoryOf, MicroBatch, Split};
use crate::cut::Cut;
use crate::hardware::Hardware;
use crate::shape::{Layers, Shape};

/// A GPT in fp16 on nodes of eight A100s, with Megatron-LM's usual dropout, tied embeddings and a padded
/// vocabulary.
pub(super) struct Job {
    pub gpus: u32,
    /// What a node sends out, in bytes a second, where the source says it.
    pub uplink_bytes_per_second: Option<f64>,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub vocab: usize,
    pub seq: usize,
    pub tp: u32,
    pub pp: u32,
    pub chunks: u32,
    pub dp: u32,
    pub sequence_parallel: bool,
    pub recompute: Recompute,
    pub global_batch: usize,
    pub micro_batch: MicroBatch,
}

impl Job {
    pub fn case(self) -> Case {
        Case {
            hardware: Hardware {
                preset: "a100-80g".into(),
                gpus: self.gpus,
                uplink_bytes_per_second: self.uplink_bytes_per_second,
                network_latency_seconds: None,
                network_reachable: None,
            },
            stack: "megatron-2021",
            shape: Shape {
                kind: Layers::Gpt { dropout: 0.1 },
                layers: self.layers,
                hidden: self.hidden,
                heads: self.heads,
                kv_heads: self.heads,
                ffn: self.hidden.saturating_mul(4),
                vocab: self.vocab,
                seq: self.seq,
                tied: true,
                padded: true,
            },
            split: Split {
                tp: self.tp,
                pp: self.pp,
                chunks: self.chunks,
                dp: self.dp,
                cp: 1,
                sequence_parallel: self.sequence_parallel,
                zero: 0,
                sharing: self.dp,
                recompute: Some(self.recompute),
                cut: Cut::EvenLayers,
            },
            global_batch: self.global_batch,
            micro_batch: self.micro_batch,
            compute: Number::Fp16,
            fp8_products: false,
            memory_of: MemoryOf::Fullest,
        }
    }
}

/// Replicas of a pipeline of `tp` by `pp` devices on `gpus`.
///
/// # Errors
/// If they do not divide.
pub(super) fn replicas(gpus: u32, tp: u32, pp: u32) -> Result<u32, Refusal> {
    let of_pipeline = tp.saturating_mul(pp);
    match of_pipeline > 0 && gpus.is_multiple_of(of_pipeline) {
        true => Ok(gpus / of_pipeline),
        false => {
            let text = format!("tp x pp = {of_pipeline} does not divide {gpus} devices");
            Err(Refusal::Numbers(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_what_pipelines_leave_of_the_devices() {
        assert_eq!(replicas(16, 4, 2), Ok(2));
        assert_eq!(replicas(8, 4, 2), Ok(1));
        let text = "tp x pp = 8 does not divide 12 devices";
        assert_eq!(replicas(12, 4, 2), Err(Refusal::Numbers(text.into())));
        assert!(matches!(replicas(16, 0, 2), Err(Refusal::Numbers(_))));
    }
}
