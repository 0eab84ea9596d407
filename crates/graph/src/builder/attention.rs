//! Softmax attention.

use super::GraphBuilder;
use super::operators::{auxiliary, output, parallel};
use crate::op::Visibility;
use crate::{DType, DimId, GraphError, OpKind, Signature, Split, ValueId};

/// What attention computes of its operands.
///
/// ```
/// use shardloom_graph::builder::Attention;
/// use shardloom_graph::op::Visibility;
/// let windowed =
///     Attention { visibility: Visibility::Window { positions: 4096 }, ..Attention::CAUSAL };
/// assert_eq!(windowed.scale, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Which keys a query sees.
    pub visibility: Visibility,
    /// Factor on the dot products; one over the root of the width of a head if absent.
    pub scale: Option<f32>,
    /// What these products are bounded by before the softmax: c tanh(s / c) takes the place of s.
    pub soft_cap: Option<f32>,
    /// Probability of dropping an attention weight.
    pub dropout: f32,
}

impl Attention {
    /// What earlier positions are attended to by, with nothing else.
    pub const CAUSAL: Attention =
        Attention { visibility: Visibility::Causal, scale: None, soft_cap: None, dropout: 0.0 };
}

impl GraphBuilder {
    /// Softmax attention: `q [batch, seq, heads, (group), head_dim]` over `k`, `v [batch, seq, heads,
    /// head_dim]`, giving `[batch, seq, heads, (group), head_dim]`. `keys` names the key positions and
    /// is as long as `seq`.
    ///
    /// # Errors
    /// If axes do not fit, a window has no position, the scale or the cap is not finite and above 0, or the
    /// dropout is outside [0, 1).
    pub fn attention(
        &mut self,
        name: &str,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        keys: DimId,
        attention: Attention,
    ) -> Result<ValueId, GraphError> {
        let Attention { visibility, scale, soft_cap, dropout: probability } = attention;
        self.check_probability(name, probability)?;
        for (key, value) in [("scale", scale), ("soft cap", soft_cap)] {
            value.map_or(Ok(()), |value| self.check_positive(name, key, value))?;
        }
        let (q_axes, k_axes) = (self.axes(q), self.axes(k));
        let [batch, seq, heads, head_dim] = k_axes[..] else {
            return Err(self.axes_error(name, k, "keys are [batch, seq, heads, head_dim]"));
        };
        self.same_axes(name, v, &k_axes)?;
        let fits = matches!(q_axes.len(), 4 | 5)
            && q_axes[..3] == [batch, seq, heads]
            && q_axes.last() == Some(&head_dim);
        if !fits {
            let rule = "queries are [batch, seq, heads, (group), head_dim] like the keys";
            return Err(self.axes_error(name, q, rule));
        }
        if self.graph.dim(keys).size != self.graph.dim(seq).size {
            let rule = format!("keys must be as long as {}", self.graph.dim(seq).name);
            return Err(self.axes_error(name, k, &rule));
        }
        let visibility = match visibility {
            Visibility::Window { positions: 0 } => {
                let rule = "a query sees its own position at least".into();
                return Err(self.parameter_error(name, "window", "0".into(), rule));
            }
            // One that hides nothing is none.
            Visibility::Window { positions } if positions >= self.graph.dim(keys).size => {
                Visibility::Causal
            }
            other => other,
        };
        let group = &q_axes[3..q_axes.len() - 1];
        let probs_axes = [&[batch, heads], group, &[seq, keys]].concat();
        let renamed = vec![batch, keys, heads, head_dim];

        let parallel_loops = parallel(&[&[batch, heads], group, &[seq]].concat());
        let signature = Signature::by_dim(
            &parallel_loops,
            &[q_axes.clone(), renamed.clone()],
            std::slice::from_ref(&probs_axes),
        );
        let usual = || 1.0 / (self.graph.dim(head_dim).size as f32).sqrt();
        let scale = scale.unwrap_or_else(usual);
        let probs = self.op(
            &format!("{name}.probs"),
            OpKind::AttentionProbs { visibility, scale, soft_cap },
            &[q, k],
            vec![output(probs_axes.clone())],
            signature,
        )?;

        let mut loops = parallel_loops;
        loops.extend([(head_dim, Split::Opaque), (keys, Split::Opaque)]);
        let mut outputs = vec![output(q_axes.clone())];
        let mut output_dims = vec![q_axes];
        if probability > 0.0 {
            outputs.push(auxiliary("mask", probs_axes.clone(), DType::Mask));
            output_dims.push(probs_axes.clone());
        }
        let signature = Signature::by_dim(&loops, &[probs_axes, renamed], &output_dims);
        let kind = OpKind::AttentionContext { visibility, probability };
        self.op(&format!("{name}.context"), kind, &[probs, v], outputs, signature)
    }
}
