//! The parts of RankRNN: dense layers, a long short-term memory, and the optimizer that trains them. All parameters
//! of a network lie in one list, and so do their gradients; a part says where its own are. Parts run by the kernels
//! that training has, in fp32; the optimizer keeps parameters in double precision.

mod adam;
mod dense;
mod lstm;

pub(super) use adam::Adam;
pub(super) use dense::Dense;
pub(super) use lstm::{Lstm, Trace};

use super::random::Random;

/// Room for parameters as parts are added.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// All of them.
    pub values: Vec<f64>,
}

impl Parameters {
    /// Adds so many, uniform between plus and minus the inverse square root of how many numbers each sums up, and
    /// says where they begin.
    fn add(&mut self, count: usize, inputs: usize, random: &mut Random) -> usize {
        let begin = self.values.len();
        let bound = 1.0 / (inputs as f64).sqrt();
        self.values.extend((0..count).map(|_| bound * (2.0 * random.unit() - 1.0)));
        begin
    }
}
