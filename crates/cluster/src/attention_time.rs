//! How long fused attention takes, by the length of sequences and the size of heads.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::checked;

/// How fast kernels of fused attention are in their two passes.
///
/// Written as one number it is the fraction of the peak rate that both passes reach, whatever the length of
/// sequences and the size of heads. Few kernels are like that: a score takes its exponential besides its
/// arithmetic, which small heads have less of, and short sequences have fewer keys than a tile of queries
/// needs to fill its pipeline. So it is also written as two tables, `forward` and `backward`, of `reachable`, the
/// fraction of the peak rate that the arithmetic of scores reaches; `score_seconds`, which a score takes besides
/// on the whole device; and `half_keys`, keys at which half of the rate is reached. The last two are 0 where they
/// are left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FusedAttention {
    /// The forward pass.
    pub forward: AttentionPass,
    /// The backward pass, which computes scores again.
    pub backward: AttentionPass,
}

/// One pass of fused attention. A score takes its arithmetic at `reachable` of the peak rate and `score_seconds`
/// besides; queries that see k keys take as long as if they saw k + `half_keys`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionPass {
    /// Fraction of the peak rate that the arithmetic of scores reaches.
    #[serde(deserialize_with = "checked::fraction")]
    pub reachable: f64,
    /// Seconds that a score takes besides its arithmetic on the whole device: its exponential.
    #[serde(default, deserialize_with = "checked::non_negative")]
    pub score_seconds: f64,
    /// Keys at which half of the rate is reached.
    #[serde(default, deserialize_with = "checked::non_negative")]
    pub half_keys: f64,
}

impl FusedAttention {
    /// Both passes reach this fraction of the peak rate.
    pub fn flat(reachable: f64) -> FusedAttention {
        let pass = AttentionPass { reachable, score_seconds: 0.0, half_keys: 0.0 };
        FusedAttention { forward: pass, backward: pass }
    }

    fn as_flat(&self) -> Option<f64> {
        let reachable = self.forward.reachable;
        (*self == FusedAttention::flat(reachable)).then_some(reachable)
    }
}

impl AttentionPass {
    /// Seconds without launch of a pass at a peak of `peak` FLOP/s over `scores` scores, each with `flops_of_score`
    /// of arithmetic, where a query sees `keys` keys on average.
    pub fn seconds(&self, peak: f64, scores: f64, flops_of_score: f64, keys: f64) -> f64 {
        let of_score = flops_of_score / (peak * self.reachable) + self.score_seconds;
        scores * of_score * (1.0 + self.half_keys / keys.max(1.0))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Passes {
    forward: AttentionPass,
    backward: AttentionPass,
}

impl Serialize for FusedAttention {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        let FusedAttention { forward, backward } = *self;
        match self.as_flat() {
            Some(reachable) => output.serialize_f64(reachable),
            None => Passes { forward, backward }.serialize(output),
        }
    }
}

impl<'de> Deserialize<'de> for FusedAttention {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<FusedAttention, D::Error> {
        input.deserialize_any(NumberOrPasses)
    }
}

struct NumberOrPasses;

impl<'de> Visitor<'de> for NumberOrPasses {
    type Value = FusedAttention;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number above 0 and at most 1, or a table of forward and backward")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<FusedAttention, E> {
        match number > 0.0 && number <= 1.0 {
            true => Ok(FusedAttention::flat(number)),
            false => {
                let text = format!("must be a number above 0 and at most 1, got {number}");
                Err(E::custom(text))
            }
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<FusedAttention, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<FusedAttention, E> {
        self.visit_f64(number as f64)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<FusedAttention, M::Error> {
        let Passes { forward, backward } = Passes::deserialize(MapAccessDeserializer::new(map))?;
        Ok(FusedAttention { forward, backward })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Document {
        attention: FusedAttention,
    }

    const PASSES: &str = "[attention.forward]\nreachable = 0.5\nscore_seconds = 1e-12\nhalf_keys = 64.0\n\n\
                          [attention.backward]\nreachable = 0.25\nscore_seconds = 0.0\nhalf_keys = 0.0\n";

    #[test]
    fn a_score_takes_arithmetic_and_its_exponential_and_few_keys_take_longer() {
        let pass = AttentionPass { reachable: 0.5, score_seconds: 1e-12, half_keys: 64.0 };
        // 256 FLOPs at half of 1e14 a second are 5.12 ps.
        let great = pass.seconds(1e14, 1e9, 256.0, 1e12);
        assert!((great - 6.12e-3).abs() < 1e-9, "{great}");
        assert_eq!(
            pass.seconds(1e14, 1e9, 256.0, 64.0),
            2.0 * pass.seconds(1e14, 1e9, 256.0, f64::INFINITY)
        );
    }

    #[test]
    fn a_number_stands_for_both_passes_and_is_written_as_one() {
        let flat: Document = toml::from_str("attention = 0.5").expect("a number");
        assert_eq!(flat.attention, FusedAttention::flat(0.5));
        assert_eq!(toml::to_string(&flat).expect("written"), "attention = 0.5\n");
        let passes: Document = toml::from_str(PASSES).expect("two passes");
        let written = toml::to_string(&passes).expect("written");
        assert_eq!(toml::from_str::<Document>(&written).expect("two passes"), passes);
        assert_eq!(passes.attention.forward.half_keys, 64.0);
    }

    #[test]
    fn what_no_kernel_can_reach_is_refused() {
        for (text, what) in [
            ("attention = 1.5", "above 0 and at most 1"),
            ("attention = 0", "above 0 and at most 1"),
            ("attention = \"fast\"", "a table of forward and backward"),
            ("attention = { forward = { reachable = 0.5 } }", "backward"),
            (&PASSES.replace("0.25", "2.5"), "above 0 and at most 1"),
            (&PASSES.replace("half_keys = 64.0", "half_keys = -1.0"), "0 or above"),
        ] {
            let error = toml::from_str::<Document>(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
