//! Number formats per tensor role.

use serde::{Deserialize, Serialize};

/// A floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Number {
    /// IEEE 754 binary32.
    Fp32,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary16.
    Fp16,
}

impl Number {
    /// All of them.
    pub const ALL: [Number; 3] = [Number::Fp32, Number::Bf16, Number::Fp16];

    /// The name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Number::Fp32 => "fp32",
            Number::Bf16 => "bf16",
            Number::Fp16 => "fp16",
        }
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Number::Fp32 => 4,
            Number::Bf16 | Number::Fp16 => 2,
        }
    }
}

/// Which format each role has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precision {
    /// Weights in use, activations and their gradients.
    pub compute: Number,
    /// Accumulated weight gradients.
    pub gradients: Number,
    /// Whether the optimizer keeps an fp32 copy of the weights.
    pub master: bool,
    /// Whether products of activations and weights, but for the last one before the loss, are computed from
    /// operands that are scaled and cast to 8 bits (Micikevicius et al. 2022, arXiv 2209.05433). Activations that
    /// nothing else reads are kept and gathered in 8 bits too; the rest stays as the other formats say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fp8_products: bool,
    /// How updated weights are rounded that are in bfloat16 and have no fp32 copy.
    #[serde(default, skip_serializing_if = "Rounding::is_to_nearest")]
    pub rounding: Rounding,
}

/// How a number becomes one of the two of a narrower format that it lies between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// The nearer one.
    #[default]
    Nearest,
    /// Either, with a probability that is the larger the nearer it is, so that its mean is the number (Gupta et al.
    /// 2015, ICML, arXiv 1502.02551): an update that is small beside a weight is not lost, on average.
    Stochastic,
}

impl Rounding {
    /// The name in plans.
    pub fn name(self) -> &'static str {
        match self {
            Rounding::Nearest => "nearest",
            Rounding::Stochastic => "stochastic",
        }
    }

    fn is_to_nearest(&self) -> bool {
        *self == Rounding::Nearest
    }
}

impl Precision {
    /// Everything in 32 bits.
    pub const FP32: Precision = Precision {
        compute: Number::Fp32,
        gradients: Number::Fp32,
        master: false,
        fp8_products: false,
        rounding: Rounding::Nearest,
    };
    /// bfloat16 with fp32 gradient accumulation and master weights: 2 + 4 + 12 bytes a parameter with
    /// Adam, as Megatron-LM trains.
    pub const MIXED: Precision = Precision {
        compute: Number::Bf16,
        gradients: Number::Fp32,
        master: true,
        fp8_products: false,
        rounding: Rounding::Nearest,
    };

    /// bfloat16 with fp32 gradient accumulation, and weights that are rounded stochastically instead of having fp32
    /// copies: 2 + 4 + 8 bytes a parameter with Adam.
    pub const STOCHASTIC: Precision =
        Precision { master: false, rounding: Rounding::Stochastic, ..Precision::MIXED };

    /// In the words of plans, such as `{ compute = "bf16", gradients = "fp32", master = true }`.
    pub(crate) fn words(self) -> String {
        let Precision { compute, gradients, master, fp8_products, rounding } = self;
        let (compute, gradients) = (compute.name(), gradients.name());
        let mut words =
            format!("compute = {compute:?}, gradients = {gradients:?}, master = {master}");
        if fp8_products {
            words += ", fp8_products = true";
        }
        if !rounding.is_to_nearest() {
            words += &format!(", rounding = {:?}", rounding.name());
        }
        format!("{{ {words} }}")
    }

    /// What is usual where computation is in `compute`: in 16 bits as [`Precision::MIXED`].
    pub fn usual(compute: Number) -> Precision {
        match compute {
            Number::Fp32 => Precision::FP32,
            Number::Bf16 | Number::Fp16 => Precision { compute, ..Precision::MIXED },
        }
    }
}
