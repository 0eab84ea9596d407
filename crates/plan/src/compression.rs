//! What becomes of gradients on their way between replicas.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Number;

/// How replicas compress the gradients that they exchange, each its own part of the sum.
///
/// What a compressor leaves out is not lost but where it says so: a replica keeps it as its *residual*, and adds
/// it to its gradients of the next step (error feedback: Seide et al. 2014; Karimireddy et al. 2019,
/// arXiv 1901.09847).
///
/// Written as text, and in plans, it is `none`, `fp16`, `bf16-feedback`, `one-bit`, `top-k:100` or `power-sgd:4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Compression {
    /// Gradients go as they are.
    #[default]
    None,
    /// Gradients are rounded to 16 bits and summed in these, as Horovod's and PyTorch's compression is.
    Rounded {
        /// The format, of 16 bits.
        to: Number,
        /// Whether replicas keep what rounding their own part leaves out. Rounding of sums is lost either way.
        feedback: bool,
    },
    /// One bit for each element, its sign, and for each row of a matrix the mean of those that are not negative
    /// and the mean of those that are (Seide et al. 2014, Interspeech, "1-bit stochastic gradient descent").
    /// Replicas exchange theirs all to all, each sums a share of the rows, and the sums are compressed once more,
    /// with a residual of their own.
    OneBit,
    /// One element of each so many, those of the largest magnitude of a bucket, with their places; replicas
    /// gather those of all (Aji and Heafield 2017, arXiv 1704.05021; Lin et al. 2018, arXiv 1712.01887).
    TopK {
        /// Of how many elements one is sent.
        of: u32,
    },
    /// A product of two matrices of so small a rank for each matrix, found by a step of power iteration from
    /// that of the step before; vectors and small matrices as they are (Vogels et al. 2019, arXiv 1905.13727).
    PowerSgd {
        /// The rank.
        rank: u32,
    },
}

/// A text names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown compression {0:?}: expected none, fp16, bf16, fp16-feedback, bf16-feedback, one-bit, top-k:N (the \
     largest of each N) or power-sgd:RANK"
)]
pub struct UnknownCompression(pub String);

impl Compression {
    /// Its name, without numbers.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Rounded { to: Number::Fp32, .. } => "fp32",
            Compression::Rounded { to: Number::Fp16, feedback: false } => "fp16",
            Compression::Rounded { to: Number::Bf16, feedback: false } => "bf16",
            Compression::Rounded { to: Number::Fp16, feedback: true } => "fp16-feedback",
            Compression::Rounded { to: Number::Bf16, feedback: true } => "bf16-feedback",
            Compression::OneBit => "one-bit",
            Compression::TopK { .. } => "top-k",
            Compression::PowerSgd { .. } => "power-sgd",
        }
    }

    /// Whether it leaves everything as it is.
    pub fn is_none(&self) -> bool {
        *self == Compression::None
    }

    /// Whether replicas keep what they left out.
    pub fn keeps_residual(self) -> bool {
        !matches!(self, Compression::None | Compression::Rounded { feedback: false, .. })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())?;
        match self {
            Compression::TopK { of: number } | Compression::PowerSgd { rank: number } => {
                write!(out, ":{number}")
            }
            Compression::None | Compression::Rounded { .. } | Compression::OneBit => Ok(()),
        }
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Compression, UnknownCompression> {
        let number = |text: &str| text.parse().ok().filter(|&number: &u32| number > 0);
        let rounded = |to, feedback| Some(Compression::Rounded { to, feedback });
        let found = match text.split_once(':') {
            Some(("top-k", of)) => number(of).map(|of| Compression::TopK { of }),
            Some(("power-sgd", rank)) => number(rank).map(|rank| Compression::PowerSgd { rank }),
            Some(_) => None,
            None => match text {
                "none" => Some(Compression::None),
                "fp16" => rounded(Number::Fp16, false),
                "bf16" => rounded(Number::Bf16, false),
                "fp16-feedback" => rounded(Number::Fp16, true),
                "bf16-feedback" => rounded(Number::Bf16, true),
                "one-bit" => Some(Compression::OneBit),
                _ => None,
            },
        };
        found.ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> String {
        compression.to_string()
    }
}

impl TryFrom<String> for Compression {
    type Error = UnknownCompression;

    fn try_from(text: String) -> Result<Compression, UnknownCompression> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let all = [
            "none",
            "fp16",
            "bf16",
            "fp16-feedback",
            "bf16-feedback",
            "one-bit",
            "top-k:100",
            "power-sgd:4",
        ];
        for text in all {
            let compression: Compression = text.parse().expect("it is one");
            assert_eq!(compression.to_string(), text);
        }
        for text in ["", "fp32", "top-k", "top-k:0", "top-k:-1", "power-sgd:", "one-bit:3", "fp8"] {
            let refused = text.parse::<Compression>();
            assert_eq!(refused, Err(UnknownCompression(text.to_owned())));
        }
    }
}
