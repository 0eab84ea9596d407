use serde::{Deserialize, Serialize};

use crate::ClusterError;

/// A measured curve: time against size (elements or bytes, as its holder says).
///
/// Linear between points. Above the last point time grows in proportion to size,
/// so the last rate holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<(f64, f64)>", try_from = "Vec<(f64, f64)>")]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// A curve through `(size, seconds)` points.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Points`] unless there is at least one point, sizes ascend
    /// strictly from above 0, and all times are finite and above 0.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self, ClusterError> {
        if points.is_empty() {
            return Err(ClusterError::Points("a curve needs at least one (size, seconds)".into()));
        }
        let mut previous = 0.0;
        for &(size, seconds) in &points {
            if !(size > previous && size.is_finite()) {
                return Err(ClusterError::Points(format!(
                    "sizes must ascend strictly from above 0, got {size} after {previous}"
                )));
            }
            if !(seconds > 0.0 && seconds.is_finite()) {
                return Err(ClusterError::Points(format!(
                    "the time at size {size} must be above 0 seconds, got {seconds}"
                )));
            }
            previous = size;
        }
        Ok(Self { points })
    }

    /// Time at `size`. Below the first point it is on the line from
    /// `seconds_at_zero`; with 0.0 the first rate holds there.
    pub fn seconds(&self, size: f64, seconds_at_zero: f64) -> f64 {
        let next = self.points.partition_point(|&(known, _)| known < size);
        let before = next.checked_sub(1).map_or((0.0, seconds_at_zero), |index| self.points[index]);
        match self.points.get(next) {
            None => before.1 * size / before.0,
            Some(after) => {
                let part = (size - before.0) / (after.0 - before.0);
                before.1 + part * (after.1 - before.1)
            }
        }
    }
}

impl From<Curve> for Vec<(f64, f64)> {
    fn from(curve: Curve) -> Self {
        curve.points
    }
}

impl TryFrom<Vec<(f64, f64)>> for Curve {
    type Error = ClusterError;

    fn try_from(points: Vec<(f64, f64)>) -> Result<Self, Self::Error> {
        Self::new(points)
    }
}
