//! Operators.

use crate::{BlockId, Signature, ValueId};

/// Identifies an operator of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(crate) u32);

impl OpId {
    /// Position in the graph's list of operators.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The slot of a row that goes to no expert.
pub const UNROUTED: u32 = u32::MAX;

/// A pointwise nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Gaussian error linear unit in its tanh form (Hendrycks & Gimpel 2016, eq. 2), as in GPT-2.
    Gelu,
    /// max(x, 0).
    Relu,
}

/// What a gated linear unit does to its gate (Shazeer 2020, arXiv 2002.05202, equation 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// x sigmoid(x): SwiGLU, as in Llama.
    Silu,
    /// [`Activation::Gelu`]: GeGLU, as in Gemma.
    Gelu,
}

/// Which positions of a sequence a query of attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// All of them.
    All,
    /// Position i sees those up to i.
    Causal,
    /// Position i sees the last `positions` of those up to i, itself among them.
    Window {
        /// How many, below the length of a sequence.
        positions: usize,
    },
}

impl Visibility {
    /// How many of so many keys a query sees at most.
    pub fn most(self, keys: usize) -> usize {
        match self {
            Visibility::All | Visibility::Causal => keys,
            Visibility::Window { positions } => positions.min(keys),
        }
    }

    /// How many of the keys that [`most`](Visibility::most) counts for every query they see on average: half
    /// of all under a causal mask, and with a window all but the half of one that the first positions lack.
    pub fn seen(self, keys: usize) -> f64 {
        match self {
            Visibility::All => 1.0,
            Visibility::Causal => 0.5,
            Visibility::Window { .. } => 1.0 - 0.5 * self.most(keys) as f64 / keys as f64,
        }
    }
}

/// Scaling of rotary frequencies for long contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryScaling {
    /// All are divided, which interpolates between positions (Chen et al. 2023, arXiv 2306.15595, equation 3).
    Linear {
        /// By what.
        factor: f32,
    },
    /// As published with Llama 3.1.
    ByWavelength {
        /// Division of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_positions / low_frequency_factor` are divided.
        low_frequency_factor: f32,
        /// Wavelengths below `original_positions / high_frequency_factor` are kept.
        high_frequency_factor: f32,
        /// Context length of the original training.
        original_positions: u32,
    },
}

impl RotaryScaling {
    /// What makes a scaling possible.
    pub(crate) const RULE: &str = "the factors are finite and above 0, the low frequency factor is \
                                   below the high one, and there is an original position";

    /// Whether frequencies can be scaled so.
    pub(crate) fn is_possible(&self) -> bool {
        let is_factor = |factor: f32| factor.is_finite() && factor > 0.0;
        match *self {
            RotaryScaling::Linear { factor } => is_factor(factor),
            RotaryScaling::ByWavelength {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_positions,
            } => {
                [factor, low, high].map(is_factor) == [true; 3]
                    && low < high
                    && original_positions > 0
            }
        }
    }
}

/// What becomes of rows for which an expert has no slot left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// They go to no expert, and contribute zeros (Lepikhin et al. 2020, arXiv 2006.16668, section
    /// 2.2).
    Drop,
    /// Training stops with an error that says where.
    Stop,
}

/// What an operator computes. Shapes are written as named axes; `...` are leading axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OpKind {
    /// `(tokens [...], table [vocab, model]) -> [..., model]`: row lookup. Tokens outside the local
    /// part of a split vocabulary give zeros.
    Embed,
    /// `(x [rows..., k...], w, [bias n...]) -> [rows..., n...]`: contraction over the axes shared by x
    /// and w. `w` is `[k..., n...]`, or `[n..., k...]` when `transposed`.
    Contract {
        /// Whether `w` has its output axes first.
        transposed: bool,
    },
    /// `(a, b) -> a + b`, where a parameter `b` may lack leading axes of `a`.
    Add,
    /// `(a [..., m, ...], b [..., n, ...], ...) -> [..., m + n + ..., ...]`: side by side along one
    /// axis, which has a dimension of its own in the result.
    Concat {
        /// Which axis of the parts, counted from the first.
        axis: usize,
    },
    /// `x -> (y, mask)`: inverted dropout.
    Dropout {
        /// Probability of a zero.
        probability: f32,
    },
    /// `(x [..., n], bias [n], residual [..., n]) -> (residual + dropout(x + bias), mask)`; no mask
    /// where the probability is zero.
    BiasDropoutAdd {
        /// Probability of a zero.
        probability: f32,
    },
    /// `(x [..., n], gain [n], bias [n]) -> (y, stats [..., 2])`: layer normalisation; stats are mean
    /// and reciprocal standard deviation.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// `(x [..., n], gain [n]) -> (y, stats [...])`: root-mean-square normalisation, times `offset + gain`;
    /// stats are the reciprocal root mean square.
    RmsNorm {
        /// Added to the mean square.
        epsilon: f32,
        /// Added to the gain: 1 where gains are stored less one, else 0.
        offset: f32,
    },
    /// `(x, [counts]) -> f(x)`; counts where it is known only while running how many rows x has.
    Pointwise(Activation),
    /// `(gate, up) -> f(gate) * up`: a gated linear unit without its matrices.
    Glu(Gate),
    /// `x -> factor x`, the factor being rounded to the format of x first.
    Scale {
        /// What each element is multiplied by.
        factor: f32,
    },
    /// `x -> cap tanh(x / cap)`, which lies between -cap and cap (Gemma Team 2024, arXiv 2408.00118, section 2).
    SoftCap {
        /// The bound.
        cap: f32,
    },
    /// `x [batch, seq, heads..., head_dim] -> x` rotated by position (Su et al. 2021, arXiv
    /// 2104.09864): of the first `width` elements of a head the first half against the second, the others
    /// as they are.
    Rotary {
        /// How many elements of a head are rotated.
        width: usize,
        /// Base of the frequencies.
        theta: f32,
        /// Scaling of the frequencies for long contexts.
        scaling: Option<RotaryScaling>,
    },
    /// `(q [batch, seq, heads, (group), head_dim], k [batch, seq, heads, head_dim], [documents [batch, seq]]) ->
    /// softmax(scale * q.k) [batch, heads, (group), seq, keys]` over the keys that a query sees, 0 elsewhere. With
    /// `documents` it sees none before the first of its document, which they say.
    AttentionProbs {
        /// Which keys a query sees.
        visibility: Visibility,
        /// Factor on the dot products.
        scale: f32,
        /// What these products are bounded by, as by [`OpKind::SoftCap`], before the softmax.
        soft_cap: Option<f32>,
    },
    /// `(probs [batch, heads, (group), seq, keys], v [batch, seq, heads, head_dim]) -> (context
    /// [batch, seq, heads, (group), head_dim], mask)`, with dropout on the probabilities.
    AttentionContext {
        /// Which keys a query sees; the probabilities of others are zero.
        visibility: Visibility,
        /// Probability of dropping an attention weight.
        probability: f32,
    },
    /// `(q [batch, seq, heads, (group), head_dim], k [batch, seq, heads, head_dim], v like k, [documents [batch,
    /// seq]]) -> context [batch, seq, heads, (group), head_dim]`: [`OpKind::AttentionProbs`] and
    /// [`OpKind::AttentionContext`] as one, which keeps no probabilities, as FlashAttention does (Dao et al. 2022,
    /// arXiv 2205.14135).
    FusedAttention {
        /// Which keys a query sees.
        visibility: Visibility,
        /// Factor on the dot products.
        scale: f32,
        /// What these products are bounded by before the softmax.
        soft_cap: Option<f32>,
        /// Probability of dropping an attention weight.
        probability: f32,
    },
    /// `logits [batch, rows..., choices] -> (probability [batch, rows...], choice [batch, rows...], slot
    /// [batch, rows...], counts [experts, batch])`: top-1 gating (Fedus et al. 2021, arXiv 2101.03961,
    /// section 2.1). Each row chooses the expert of its largest logit, of equal ones the first;
    /// `probability` is the softmax of the logits there, and what is differentiated. The rows of one sample
    /// take an expert's slots in their order. `slot` is [`UNROUTED`] for those that find none, and
    /// `counts` says how many have one.
    Route {
        /// Slots that one expert has for the rows of one sample.
        slots: usize,
        /// What becomes of rows that find none.
        overflow: Overflow,
    },
    /// `(x [batch, rows..., model], choice, slot, counts) -> [experts, batch, slots, model]`: the rows
    /// that have a slot, side by side in the order of expert, sample and slot, without gaps.
    Dispatch,
    /// `(x [experts, batch, slots, k], counts, w [experts, k, n]) -> [experts, batch, slots, n]`: the
    /// product of each expert's rows with its matrix.
    ExpertContract,
    /// `(y [experts, batch, slots, model], counts, choice, slot, probability) -> [batch, rows...,
    /// model]`: each row's result times its probability, in the row's place; zeros without a slot.
    Combine,
    /// `(gates [batch, seq, gate, hidden], w [units, gate, hidden], [p [hidden, units]]) -> (y [batch, seq,
    /// units], activated [batch, seq, gate, hidden], cell [batch, seq, hidden], [output [batch, seq,
    /// hidden]])`: the recurrence of a long short-term memory (Hochreiter & Schmidhuber 1997) with forget
    /// gates (Gers et al. 2000). `gates` is what the input contributes before activation, of the input
    /// gate, the forget gate, the candidate and the output gate in this order; `w` multiplies the result of
    /// the position before, `y_-1` and the cell before the first being zero:
    ///
    /// ```text
    /// (i, f, g, o) = gates_t + y_t-1 w
    /// cell_t = sigmoid(f + forget_bias) cell_t-1 + sigmoid(i) tanh(g)
    /// y_t = sigmoid(o) tanh(cell_t), times p if there is one
    /// ```
    ///
    /// The projection `p` is that of Sak et al. 2014 (arXiv 1402.1128, section 2), without its
    /// non-recurrent part. What is kept for the gradient are the gates after activation, the cells and,
    /// with a projection, what it multiplies.
    Lstm {
        /// Added to the forget gate before activation (Jozefowicz et al. 2015, section 2.2).
        forget_bias: f32,
    },
    /// `(a [batch, model], b [batch, model], ...) -> [batch, pairs]`: the dot products of all pairs of the
    /// inputs, each with those before it (Naumov et al. 2019, arXiv 1906.00091, section 2.1.3): b.a, c.a,
    /// c.b, d.a and so on.
    DotInteraction {
        /// Whether each input is also multiplied with itself, after those before it.
        diagonal: bool,
    },
    /// `logits [..., vocab] -> max [...]`: first phase of the cross-entropy.
    LogitMax {
        /// How many classes there are, if fewer than columns: those behind them are padding, which no phase looks at,
        /// as if their logits were minus infinity.
        classes: Option<usize>,
    },
    /// `(logits, max, targets [...]) -> (sum [...], target [...])`: second phase, the sum of
    /// `exp(logit - max)` and the target's `logit - max`.
    LogitSum {
        /// As of the first phase.
        classes: Option<usize>,
    },
    /// `(logits, max, sum, target, targets) -> loss []`: last phase, the sum over all rows of
    /// `ln sum - target`. Its gradient with respect to the logits is that of the whole cross-entropy.
    CrossEntropy {
        /// As of the first phase. The gradient of padding is zero.
        classes: Option<usize>,
    },
    /// `(x [..., model], targets [...], w [vocab, model], bias [vocab]) -> (loss [], target [...], sampled [...,
    /// samples])`: a linear layer and the softmax cross-entropy of its logits over the target and so many other
    /// classes, drawn anew in each step, the same for all rows (Jean et al. 2015, arXiv 1412.2007; TensorFlow's
    /// `sampled_softmax_loss`). Class c is drawn in proportion to `ln((c + 2) / (c + 1))`, none twice; from each
    /// logit the logarithm of how often its class is expected to be drawn is taken, and a target that is drawn for
    /// its own row does not count again. The loss is summed over rows; `target` and `sampled` are the
    /// probabilities. The gradient of `w` and `bias` is zero but in the rows of targets and drawn classes.
    SampledCrossEntropy {
        /// How many classes there are.
        classes: usize,
        /// How many are drawn; 0 where the softmax is over all classes, as in an evaluation.
        samples: usize,
    },
    /// `(logits [...], targets [...]) -> loss []`: binary cross-entropy of the logits' sigmoid, the sum over
    /// all elements of `ln(1 + exp(logit)) - target logit`; targets are 0 or 1.
    SigmoidCrossEntropy,
}

impl OpKind {
    /// A short name, also the key of its measured rates in a machine profile.
    pub fn name(&self) -> &'static str {
        match self {
            OpKind::Embed => "embed",
            OpKind::Contract { .. } => "contract",
            OpKind::Add => "add",
            OpKind::Concat { .. } => "concat",
            OpKind::Dropout { .. } => "dropout",
            OpKind::BiasDropoutAdd { .. } => "bias-dropout-add",
            OpKind::LayerNorm { .. } => "layer-norm",
            OpKind::RmsNorm { .. } => "rms-norm",
            OpKind::Pointwise(Activation::Gelu) => "gelu",
            OpKind::Pointwise(Activation::Relu) => "relu",
            OpKind::Glu(Gate::Silu) => "swiglu",
            OpKind::Glu(Gate::Gelu) => "geglu",
            OpKind::Scale { .. } => "scale",
            OpKind::SoftCap { .. } => "soft-cap",
            OpKind::Rotary { .. } => "rotary",
            OpKind::AttentionProbs { .. } => "attention-probs",
            OpKind::AttentionContext { .. } => "attention-context",
            OpKind::FusedAttention { .. } => "fused-attention",
            OpKind::Route { .. } => "route",
            OpKind::Dispatch => "dispatch",
            OpKind::ExpertContract => "expert-contract",
            OpKind::Combine => "combine",
            OpKind::Lstm { .. } => "lstm",
            OpKind::DotInteraction { .. } => "dot-interaction",
            OpKind::LogitMax { .. } => "logit-max",
            OpKind::LogitSum { .. } => "logit-sum",
            OpKind::CrossEntropy { .. } => "cross-entropy",
            OpKind::SampledCrossEntropy { .. } => "sampled-cross-entropy",
            OpKind::SigmoidCrossEntropy => "sigmoid-cross-entropy",
        }
    }

    /// Whether selective recomputation repeats it (Korthikanti et al. 2022, section 5): the softmax,
    /// dropout and products of attention, large in memory and small in arithmetic.
    pub fn in_attention_core(&self) -> bool {
        matches!(self, OpKind::AttentionProbs { .. } | OpKind::AttentionContext { .. })
    }

    /// The probability with which the operator drops elements; none where it drops none. Most make a mask as
    /// their second output.
    pub fn dropout(&self) -> Option<f32> {
        match *self {
            OpKind::Dropout { probability }
            | OpKind::BiasDropoutAdd { probability }
            | OpKind::AttentionContext { probability, .. }
            | OpKind::FusedAttention { probability, .. } => {
                (probability > 0.0).then_some(probability)
            }
            _ => None,
        }
    }

    /// The same operator in an evaluation, where nothing is dropped and no classes are drawn.
    #[must_use]
    pub fn in_evaluation(self) -> OpKind {
        match self {
            OpKind::SampledCrossEntropy { classes, .. } => {
                OpKind::SampledCrossEntropy { classes, samples: 0 }
            }
            OpKind::Dropout { .. } => OpKind::Dropout { probability: 0.0 },
            OpKind::BiasDropoutAdd { .. } => OpKind::BiasDropoutAdd { probability: 0.0 },
            OpKind::AttentionContext { visibility, .. } => {
                OpKind::AttentionContext { visibility, probability: 0.0 }
            }
            OpKind::FusedAttention { visibility, scale, soft_cap, .. } => {
                OpKind::FusedAttention { visibility, scale, soft_cap, probability: 0.0 }
            }
            other => other,
        }
    }

    /// Which positions of a sequence a query sees, where the operator is one of attention.
    pub fn visibility(&self) -> Option<Visibility> {
        match *self {
            OpKind::AttentionProbs { visibility, .. }
            | OpKind::AttentionContext { visibility, .. }
            | OpKind::FusedAttention { visibility, .. } => Some(visibility),
            _ => None,
        }
    }

    /// Whether position i of a sequence sees only positions up to i, where the operator is one of attention.
    pub fn causal(&self) -> Option<bool> {
        self.visibility().map(|visibility| visibility != Visibility::All)
    }

    /// Whether it is a matrix product with a parameter, whose weight gradients are large and read nothing that
    /// is changed afterwards: a backward pass in halves puts them off.
    pub fn is_product(&self) -> bool {
        matches!(
            self,
            OpKind::Contract { .. }
                | OpKind::ExpertContract
                | OpKind::Lstm { .. }
                | OpKind::SampledCrossEntropy { .. }
        )
    }

    /// Whether the gradients of its parameters are zero but in the rows that indices among its inputs, or random
    /// numbers, name.
    pub fn reads_rows(&self) -> bool {
        matches!(self, OpKind::Embed | OpKind::SampledCrossEntropy { .. })
    }

    /// How many classes it draws.
    pub fn drawn_classes(&self) -> usize {
        match *self {
            OpKind::SampledCrossEntropy { samples, .. } => samples,
            _ => 0,
        }
    }

    /// Whether its result is a loss, with which gradients begin.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            OpKind::CrossEntropy { .. }
                | OpKind::SampledCrossEntropy { .. }
                | OpKind::SigmoidCrossEntropy
        )
    }
}

/// An operator of the graph.
#[derive(Clone, Debug)]
pub struct Op {
    /// Unique name.
    pub name: String,
    /// What it computes.
    pub kind: OpKind,
    /// What it reads, in the order of [`OpKind`].
    pub inputs: Vec<ValueId>,
    /// What it produces, in the order of [`OpKind`].
    pub outputs: Vec<ValueId>,
    /// The block it belongs to.
    pub block: BlockId,
    /// Its loops.
    pub signature: Signature,
}

impl Op {
    /// The loop over positions of a sequence, where what is computed depends on which position it is: a
    /// device that has a part of it must know where that begins.
    pub fn position_loop(&self) -> Option<usize> {
        match self.kind {
            // Queries and what is rotated are `[batch, seq, ...]`, and so is what attention gives.
            OpKind::Rotary { .. }
            | OpKind::AttentionProbs { .. }
            | OpKind::FusedAttention { .. } => {
                Some(self.signature.inputs[0][1])
            }
            OpKind::AttentionContext { .. } => Some(self.signature.outputs[0][1]),
            OpKind::Embed
            | OpKind::Contract { .. }
            | OpKind::Add
            | OpKind::Concat { .. }
            | OpKind::Dropout { .. }
            | OpKind::BiasDropoutAdd { .. }
            | OpKind::LayerNorm { .. }
            | OpKind::RmsNorm { .. }
            | OpKind::Pointwise(_)
            | OpKind::Glu(_)
            | OpKind::Scale { .. }
            | OpKind::SoftCap { .. }
            | OpKind::Route { .. }
            | OpKind::Dispatch
            | OpKind::ExpertContract
            | OpKind::Combine
            // A recurrence over a part of a sequence would need the state before it.
            | OpKind::Lstm { .. }
            | OpKind::DotInteraction { .. }
            | OpKind::LogitMax { .. }
            | OpKind::LogitSum { .. }
            | OpKind::CrossEntropy { .. }
            | OpKind::SampledCrossEntropy { .. }
            | OpKind::SigmoidCrossEntropy => None,
        }
    }

    /// The loops over the elements that may be dropped, where the operator drops some.
    pub fn mask_loops(&self) -> Option<Vec<usize>> {
        self.kind.dropout()?;
        Some(match self.kind {
            // Probabilities are `[batch, heads, (group), seq, keys]`.
            OpKind::FusedAttention { .. } => {
                let (q, k) = (&self.signature.inputs[0], &self.signature.inputs[1]);
                [&q[..1], &q[2..q.len() - 1], &[q[1], k[1]]].concat()
            }
            _ => self.signature.outputs[1].clone(),
        })
    }

    /// The loop over what is told apart by number: rows of a table, or classes.
    pub fn index_loop(&self) -> Option<usize> {
        match self.kind {
            OpKind::Embed => self.signature.inputs[1].first().copied(),
            OpKind::LogitMax { .. } | OpKind::LogitSum { .. } | OpKind::CrossEntropy { .. } => {
                self.signature.inputs[0].last().copied()
            }
            OpKind::Contract { .. }
            | OpKind::Add
            | OpKind::Concat { .. }
            | OpKind::Dropout { .. }
            | OpKind::BiasDropoutAdd { .. }
            | OpKind::LayerNorm { .. }
            | OpKind::RmsNorm { .. }
            | OpKind::Pointwise(_)
            | OpKind::Glu(_)
            | OpKind::Scale { .. }
            | OpKind::SoftCap { .. }
            | OpKind::Rotary { .. }
            | OpKind::AttentionProbs { .. }
            | OpKind::AttentionContext { .. }
            | OpKind::FusedAttention { .. }
            // Choices name experts, of which every device has all where it reads them.
            | OpKind::Route { .. }
            | OpKind::Dispatch
            | OpKind::ExpertContract
            | OpKind::Combine
            | OpKind::Lstm { .. }
            | OpKind::DotInteraction { .. }
            // Every device has all classes.
            | OpKind::SampledCrossEntropy { .. }
            // Targets are probabilities here, and name nothing.
            | OpKind::SigmoidCrossEntropy => None,
        }
    }
}
