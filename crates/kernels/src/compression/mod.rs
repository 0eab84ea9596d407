//! Compression of gradients on their way between replicas.
//!
//! What a replica compresses is its *part* of the sum of gradients and what it has left out of it so far, its
//! *residual*, which becomes what is left out now. A residual that is not finite becomes zero: what is not finite
//! was sent.

pub mod one_bit;
pub mod power_sgd;
pub mod top_k;

pub use power_sgd::Factors;

/// A matrix within the elements of a bucket, or some rows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Its first element.
    pub offset: usize,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
}

/// A bucket's matrices by who sums them, in order; those of each lie side by side.
pub type Shares = Box<[Box<[Matrix]>]>;

/// A step of a compression: what it reads and writes, in this order. What is written is read too where it says
/// so. Gradients and residuals are fp32, of the elements of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Reads gradients; writes them in 16 bits, rounded, and the residual, which it reads too.
    Round,
    /// Reads gradients; writes their [signs](one_bit) by shares of equal room, one for each member, and the
    /// residual, which it reads too.
    Signs(Shares),
    /// Reads one's own share of the signs of all members, one member's after the other; writes the signs of their
    /// sums, and the residual of these, which it reads too.
    SignsOfSum(Box<[Matrix]>),
    /// Reads signs; writes the gradients that they are of.
    FromSigns(Shares),
    /// Reads gradients; writes the [largest](top_k) of them, and the residual, which it reads too.
    Largest,
    /// Reads the largest of all members; writes their sums, and zeros elsewhere.
    FromLargest {
        /// How many members there are.
        members: usize,
    },
    /// Reads gradients; writes left factors, and the residual and right [factors](power_sgd), which it reads
    /// too. The residual becomes all that is compressed, until the sum is known.
    Left(Factors),
    /// Reads the residual; writes right factors, and left factors, which it reads too and makes orthonormal.
    Right(Factors),
    /// Reads left factors; writes gradients, and the residual and right factors, which it reads too. Right factors
    /// that are not finite become zero.
    FromFactors {
        /// Of which matrices.
        factors: Factors,
        /// How many members there are.
        members: usize,
    },
}

/// Zero in place of what is not finite.
pub(crate) fn finite(value: f32) -> f32 {
    if value.is_finite() { value } else { 0.0 }
}
