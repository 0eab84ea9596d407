//! From a plan's optimizer to its kernel.

use shardloom_kernels::optimizer::{Adafactor, AdamW, Lamb, Optimizer, Sgd};

/// The kernel of `planned`.
pub(crate) fn kernel(planned: &shardloom_plan::Optimizer) -> Optimizer {
    match *planned {
        shardloom_plan::Optimizer::Sgd { momentum, weight_decay, reference_batch: _ } => {
            Optimizer::Sgd(Sgd::new(momentum as f32, weight_decay as f32))
        }
        shardloom_plan::Optimizer::Adamw { beta1, beta2, epsilon, weight_decay } => {
            Optimizer::AdamW(AdamW {
                beta1: beta1 as f32,
                beta2: beta2 as f32,
                epsilon: epsilon as f32,
                weight_decay: weight_decay as f32,
            })
        }
        shardloom_plan::Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } => {
            Optimizer::Lamb(Lamb {
                beta1: beta1 as f32,
                beta2: beta2 as f32,
                epsilon: epsilon as f32,
                weight_decay: weight_decay as f32,
            })
        }
        shardloom_plan::Optimizer::Adafactor {
            decay_exponent,
            clip,
            least_parameter_rms,
            weight_decay,
        } => Optimizer::Adafactor(Adafactor {
            decay_exponent: decay_exponent as f32,
            clip: clip as f32,
            least_parameter_rms: least_parameter_rms as f32,
            weight_decay: weight_decay as f32,
        }),
    }
}
