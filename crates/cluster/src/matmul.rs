//! How long a matrix product takes, from physical constants or from measurements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ClusterError, Precision, checked};

/// Where matrix product times come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatmulRates {
    /// From the device's structure.
    Analytic(AnalyticMatmul),
    /// From products timed on the device.
    Measured(MeasuredMatmul),
}

/// Tile and wave quantisation.
///
/// The result is cut into tiles; the device's `units` take one each at a time, so
/// time comes in whole waves. A tile of depth k costs as much as k + `half_k`
/// (filling the pipeline, writing the result): at k = `half_k` half of the rate is
/// reached. Where tiles are fewer than units, the depth may be split among idle
/// units, at the price of partial results going through memory. No product is
/// faster than its operands come out of memory. Of all tiles and splits the fastest
/// counts, as libraries choose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnalyticMatmul {
    /// Units that work on a tile each: streaming multiprocessors, matrix units.
    #[serde(deserialize_with = "checked::count")]
    pub units: u32,
    /// Depth at which a tile runs at half of its rate.
    #[serde(deserialize_with = "checked::non_negative")]
    pub half_k: f64,
    /// Tiles to choose from; at least one.
    #[serde(deserialize_with = "some_tiles")]
    pub tiles: Vec<Tile>,
    /// What fraction of `reachable` products of a format reach, where that is not all of it: the higher a peak
    /// rate, the harder it is to feed.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "checked::fractions"
    )]
    pub relative: BTreeMap<Precision, f64>,
    /// What fraction of that products reach whose matrices have rows that do not begin at multiples of 16 bytes, so
    /// that units cannot load them in whole vectors.
    #[serde(
        default = "all",
        skip_serializing_if = "is_all",
        deserialize_with = "checked::fraction"
    )]
    pub unaligned: f64,
}

/// Bytes of the vectors in which units load operands.
const VECTOR_BYTES: u64 = 16;

fn all() -> f64 {
    1.0
}

fn is_all(fraction: &f64) -> bool {
    *fraction == 1.0
}

/// One tile shape.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tile {
    /// Rows of the result.
    #[serde(deserialize_with = "checked::count")]
    pub m: u32,
    /// Columns of the result.
    #[serde(deserialize_with = "checked::count")]
    pub n: u32,
    /// Fraction of the peak rate it reaches at great depth on a full device. Smaller
    /// tiles reuse each operand less and reach less.
    #[serde(deserialize_with = "checked::fraction")]
    pub reachable: f64,
}

fn some_tiles<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<Tile>, D::Error> {
    let tiles = Vec::<Tile>::deserialize(input)?;
    match tiles.is_empty() {
        true => Err(serde::de::Error::custom("needs at least one tile")),
        false => Ok(tiles),
    }
}

impl AnalyticMatmul {
    /// Time without launch of a product `[batch, m, n, k]` of operands in `format`, in rows of so many elements as
    /// `rows` says, at a peak of `peak` FLOP/s and `memory` bytes per second.
    pub(crate) fn seconds(
        &self,
        format: Precision,
        peak: f64,
        memory: f64,
        [batch, m, n, k]: [u64; 4],
        rows: &[u64],
    ) -> f64 {
        let vectors = |row: &u64| (row * u64::from(format.bytes())).is_multiple_of(VECTOR_BYTES);
        let reached = if rows.iter().all(vectors) { 1.0 } else { self.unaligned };
        let peak = peak * reached * self.relative.get(&format).copied().unwrap_or(1.0);
        let element_bytes = f64::from(format.bytes());
        let (products, rows, columns, depth) = (batch as f64, m as f64, n as f64, k as f64);
        let elements = products * (rows * depth + depth * columns + rows * columns);
        let streamed = elements * element_bytes / memory;
        // Partial sums are written and read back in 32 bits.
        let partial = products * rows * columns * 8.0 / memory;
        let units = f64::from(self.units);
        self.tiles
            .iter()
            .map(|tile| {
                let tiles = products
                    * (rows / f64::from(tile.m)).ceil()
                    * (columns / f64::from(tile.n)).ceil();
                let area = f64::from(tile.m) * f64::from(tile.n);
                let unit_rate = peak * tile.reachable / units;
                let compute =
                    |depth: f64, waves: f64| waves * 2.0 * area * (depth + self.half_k) / unit_rate;
                let whole = compute(depth, (tiles / units).ceil()).max(streamed);
                let pieces = (units / tiles).floor().min(depth);
                if pieces < 2.0 {
                    return whole;
                }
                let split = compute((depth / pieces).ceil(), 1.0).max(streamed);
                whole.min(split + pieces * partial)
            })
            .fold(f64::INFINITY, f64::min)
    }
}

/// Products timed on the device.
///
/// The rate (FLOP/s) of an unmeasured shape is interpolated between its four
/// nearest measured shapes, distances being those of the logarithms of m, n and k
/// (Franke and Little's weights, which fade out at the fifth, so that the rate is
/// continuous). A shape outside the measured box has the rate of the nearest place
/// on it. Batched products are taken one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "MeasuredTable", into = "MeasuredTable")]
pub struct MeasuredMatmul {
    /// The format measured in.
    pub(crate) precision: Precision,
    points: Vec<MatmulPoint>,
    /// Least and greatest logarithm of m, n and k.
    bounds: [(f64, f64); 3],
}

/// One timed product `[m, k] x [k, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulPoint {
    /// Rows of the result.
    #[serde(deserialize_with = "checked::count")]
    pub m: u32,
    /// Columns of the result.
    #[serde(deserialize_with = "checked::count")]
    pub n: u32,
    /// Depth.
    #[serde(deserialize_with = "checked::count")]
    pub k: u32,
    /// Time it took.
    #[serde(deserialize_with = "checked::positive")]
    pub seconds: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredTable {
    precision: Precision,
    points: Vec<MatmulPoint>,
}

impl MeasuredMatmul {
    /// Rates from products timed in one format.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Points`] without points, with one that is empty or took no
    /// time, or with a shape listed twice.
    pub fn new(precision: Precision, points: Vec<MatmulPoint>) -> Result<Self, ClusterError> {
        if points.is_empty() {
            return Err(ClusterError::Points("no matrix product was measured".into()));
        }
        let shape = |point: &MatmulPoint| [point.m, point.n, point.k];
        for (index, point) in points.iter().enumerate() {
            let [m, n, k] = shape(point);
            let wrong = |why: &str| ClusterError::Points(format!("product {m} x {n} x {k} {why}"));
            if m == 0 || n == 0 || k == 0 || !(point.seconds > 0.0 && point.seconds.is_finite()) {
                return Err(wrong("must have sizes and seconds above 0"));
            }
            if points[..index].iter().any(|other| shape(other) == shape(point)) {
                return Err(wrong("is listed twice"));
            }
        }
        let bounds = [0, 1, 2].map(|axis| {
            let logs = points.iter().map(|point| f64::from(shape(point)[axis]).ln());
            logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
                (low.min(log), high.max(log))
            })
        });
        Ok(Self { precision, points, bounds })
    }

    /// Time of one product.
    pub(crate) fn seconds(&self, m: u64, n: u64, k: u64) -> f64 {
        let flops = 2.0 * m as f64 * n as f64 * k as f64;
        flops / self.flops_per_second([m, n, k].map(|size| size as f64))
    }

    fn flops_per_second(&self, shape: [f64; 3]) -> f64 {
        const NEIGHBOURS: usize = 4;
        let mut place = shape.map(f64::ln);
        for (log, (low, high)) in place.iter_mut().zip(self.bounds) {
            *log = log.clamp(low, high);
        }
        // The nearest, ascending; one more than is used bounds their reach.
        let mut nearest = [(f64::INFINITY, 0.0); NEIGHBOURS + 1];
        for point in &self.points {
            let sizes = [point.m, point.n, point.k].map(f64::from);
            let squares = sizes.iter().zip(place).map(|(size, log)| (size.ln() - log).powi(2));
            let mut candidate =
                (squares.sum::<f64>().sqrt(), 2.0 * sizes.iter().product::<f64>() / point.seconds);
            for slot in &mut nearest {
                if candidate.0 < slot.0 {
                    std::mem::swap(slot, &mut candidate);
                }
            }
        }
        let reach = nearest[NEIGHBOURS].0;
        let (mut weighted, mut weights) = (0.0, 0.0);
        for (distance, rate) in nearest.into_iter().take_while(|(distance, _)| distance.is_finite())
        {
            if distance < 1e-9 {
                return rate;
            }
            // With no further point the weight is the limit for infinite reach.
            let fade = if reach.is_finite() { (reach - distance) / reach } else { 1.0 };
            let weight = (fade / distance).powi(2);
            weighted += weight * rate;
            weights += weight;
        }
        match weights > 0.0 {
            true => weighted / weights,
            // All are equally far: none is nearer than the reach.
            false => nearest.iter().map(|(_, rate)| rate).sum::<f64>() / nearest.len() as f64,
        }
    }
}

impl TryFrom<MeasuredTable> for MeasuredMatmul {
    type Error = ClusterError;

    fn try_from(table: MeasuredTable) -> Result<Self, Self::Error> {
        Self::new(table.precision, table.points)
    }
}

impl From<MeasuredMatmul> for MeasuredTable {
    fn from(measured: MeasuredMatmul) -> Self {
        Self { precision: measured.precision, points: measured.points }
    }
}
