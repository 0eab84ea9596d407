use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    ClusterError, Curve, FusedAttention, MatmulRates, MeasuredMatmul, ProductSeconds, checked,
};

/// Number format of a matrix product's operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32-bit floating point.
    Fp32,
    /// 32-bit floating point multiplied with 10 bits of mantissa.
    Tf32,
    /// 16-bit brain floating point.
    Bf16,
    /// 16-bit floating point.
    Fp16,
    /// 8-bit floating point.
    Fp8,
}

impl Precision {
    const ALL: [Precision; 5] =
        [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16, Precision::Fp8];

    /// Bytes of one element in memory.
    pub fn bytes(self) -> u32 {
        match self {
            Precision::Fp32 | Precision::Tf32 => 4,
            Precision::Bf16 | Precision::Fp16 => 2,
            Precision::Fp8 => 1,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::Fp32 => "fp32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
            Precision::Fp8 => "fp8",
        })
    }
}

/// Peak dense rates in FLOP/s, by operand format; absent where the device has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeakFlops {
    /// Of [`Precision::Fp32`].
    #[serde(deserialize_with = "checked::optional_peak")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp32: Option<f64>,
    /// Of [`Precision::Tf32`].
    #[serde(deserialize_with = "checked::optional_peak")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tf32: Option<f64>,
    /// Of [`Precision::Bf16`].
    #[serde(deserialize_with = "checked::optional_peak")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16: Option<f64>,
    /// Of [`Precision::Fp16`].
    #[serde(deserialize_with = "checked::optional_peak")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp16: Option<f64>,
    /// Of [`Precision::Fp8`].
    #[serde(deserialize_with = "checked::optional_peak")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8: Option<f64>,
}

impl PeakFlops {
    fn get(&self, precision: Precision) -> Option<f64> {
        match precision {
            Precision::Fp32 => self.fp32,
            Precision::Tf32 => self.tf32,
            Precision::Bf16 => self.bf16,
            Precision::Fp16 => self.fp16,
            Precision::Fp8 => self.fp8,
        }
    }
}

/// One kind of device: what it holds and how fast it computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKind {
    /// What it is called in messages.
    pub name: String,
    /// Memory a program can use.
    pub memory_bytes: u64,
    /// Nominal memory bandwidth.
    #[serde(deserialize_with = "checked::transfer_rate")]
    pub memory_bytes_per_second: f64,
    /// Fraction of the memory bandwidth that memory-bound operators reach.
    #[serde(deserialize_with = "checked::fraction")]
    pub memory_reachable: f64,
    /// Time that starting an operator adds to it.
    #[serde(deserialize_with = "checked::non_negative")]
    pub launch_seconds: f64,
    /// Whether communication leaves the computing units alone: true of accelerators
    /// with their own copy engines and network cards, false of ranks that compute
    /// and communicate on the same cores.
    pub lanes_overlap: bool,
    /// How fast fused attention kernels are, for devices on which training
    /// normally uses them (Dao 2023, arXiv 2307.08691): plans then usually have `attention = "fused"`, whose
    /// scores and probabilities never pass through memory. One number is the fraction of the peak rate that they
    /// reach, forward and backward together. Without it attention is separate products and a
    /// softmax between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fused_attention: Option<FusedAttention>,
    /// Price of an hour, in US dollars, where one is known: what clouds list for one rented on demand.
    #[serde(default, deserialize_with = "checked::optional_positive")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// Price of one to own, in US dollars, with its share of the machine that it is sold in.
    #[serde(default, deserialize_with = "checked::optional_positive")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_to_buy: Option<f64>,
    /// Peak rates.
    pub peak_flops: PeakFlops,
    /// How fast matrix products run.
    pub matmul: MatmulRates,
    /// Measured `(elements, seconds)` curves of memory-bound operator classes, by
    /// class name (`layer-norm`), in the device's full precision.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rates: BTreeMap<String, Curve>,
    /// Measured operators that are in the main matrix products, by class name
    /// (`contract+bias.weight`), in the device's full precision. Where a class is
    /// listed here, [`DeviceKind::matmul`] is not asked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub products: BTreeMap<String, ProductSeconds>,
    /// What was measured in other formats. Of memory-bound classes that are not listed there, what was measured in full
    /// precision holds; a product that is not listed is asked of the format's table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_format: BTreeMap<Precision, FormatRates>,
}

/// What was measured of operators whose real numbers are in one format.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FormatRates {
    /// As [`DeviceKind::rates`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rates: BTreeMap<String, Curve>,
    /// As [`DeviceKind::products`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub products: BTreeMap<String, ProductSeconds>,
    /// How fast matrix products run in this format, where [`DeviceKind::matmul`] was measured in another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matmul: Option<MeasuredMatmul>,
}

impl DeviceKind {
    /// Peak dense rate in FLOP/s.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoPrecision`] if the device does not compute in it.
    pub fn peak_flops(&self, precision: Precision) -> Result<f64, ClusterError> {
        let known = |&other: &Precision| self.peak_flops.get(other).is_some();
        self.peak_flops
            .get(precision)
            .ok_or_else(|| self.no_rate(precision, Precision::ALL.into_iter().filter(known)))
    }

    /// That it has no rate in `precision` and those in others.
    fn no_rate(
        &self,
        precision: Precision,
        others: impl Iterator<Item = Precision>,
    ) -> ClusterError {
        ClusterError::NoPrecision {
            device: self.name.clone(),
            precision,
            available: others.map(|it| it.to_string()).collect::<Vec<_>>().join(", "),
            is_measured: matches!(self.matmul, MatmulRates::Measured(_)),
        }
    }

    /// Time of `batch` products `[m, k] x [k, n]`, launch included, of matrices whose rows begin where units can load
    /// them in whole vectors; nothing takes no time.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoPrecision`] if the device does not compute in `precision`,
    /// or was not measured in it.
    pub fn matmul_seconds(
        &self,
        precision: Precision,
        batch: u64,
        m: u64,
        n: u64,
        k: u64,
    ) -> Result<f64, ClusterError> {
        self.matmul_seconds_in_rows(precision, [batch, m, n, k], &[])
    }

    /// The same of products `[batch, m, n, k]` whose matrices have rows of so many elements in memory as `rows` says:
    /// a row that 16 bytes do not divide makes analytic rates less ([`AnalyticMatmul::unaligned`]).
    ///
    /// [`AnalyticMatmul::unaligned`]: crate::AnalyticMatmul::unaligned
    ///
    /// # Errors
    ///
    /// As [`matmul_seconds`](Self::matmul_seconds).
    pub fn matmul_seconds_in_rows(
        &self,
        precision: Precision,
        [batch, m, n, k]: [u64; 4],
        rows: &[u64],
    ) -> Result<f64, ClusterError> {
        let peak = self.peak_flops(precision)?;
        if batch == 0 || m == 0 || n == 0 || k == 0 {
            return Ok(0.0);
        }
        match &self.matmul {
            MatmulRates::Analytic(analytic) => {
                let memory = self.memory_bytes_per_second * self.memory_reachable;
                let shape = [batch, m, n, k];
                Ok(self.launch_seconds + analytic.seconds(precision, peak, memory, shape, rows))
            }
            MatmulRates::Measured(measured) => {
                let others = self.in_format.values().filter_map(|it| it.matmul.as_ref());
                let tables = || std::iter::once(measured).chain(others.clone());
                match tables().find(|it| it.precision == precision) {
                    Some(table) => Ok(batch as f64 * table.seconds(m, n, k)),
                    None => Err(self.no_rate(precision, tables().map(|it| it.precision))),
                }
            }
        }
    }

    /// What was measured of a class of operators that are in the main products, where they compute in `format`.
    pub fn measured_product(&self, format: Precision, class: &str) -> Option<&ProductSeconds> {
        match (self.in_format.get(&format), format) {
            (Some(measured), _) => measured.products.get(class),
            (None, Precision::Fp32) => self.products.get(class),
            (None, _) => None,
        }
    }

    /// What was measured of a class of memory-bound operators, where they compute in `format`.
    pub fn measured_rate(&self, format: Precision, class: &str) -> Option<&Curve> {
        let in_format = self.in_format.get(&format).and_then(|it| it.rates.get(class));
        in_format.or_else(|| self.rates.get(class))
    }

    /// Time of a memory-bound operator of the named class over `elements` in full precision, which
    /// moves `bytes` to and from memory.
    ///
    /// From the class's measured curve if there is one, else from the bytes and the
    /// memory bandwidth, plus the launch.
    pub fn memory_bound_seconds(&self, class: &str, elements: f64, bytes: f64) -> f64 {
        self.memory_bound_seconds_in(Precision::Fp32, class, elements, bytes)
    }

    /// The same where the operator computes in `format`.
    pub fn memory_bound_seconds_in(
        &self,
        format: Precision,
        class: &str,
        elements: f64,
        bytes: f64,
    ) -> f64 {
        match self.measured_rate(format, class) {
            Some(curve) => curve.seconds(elements, 0.0),
            None => {
                self.launch_seconds + bytes / (self.memory_bytes_per_second * self.memory_reachable)
            }
        }
    }
}
