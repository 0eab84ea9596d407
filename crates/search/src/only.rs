//! What plans must have.

use std::fmt;

use shardloom_plan::Recompute;

/// What candidates are restricted to; a search chooses what is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Meshes of devices that a pipeline goes through.
    pub pp: Option<u32>,
    /// Data-parallel width.
    pub dp: Option<u32>,
    /// Context-parallel width.
    pub cp: Option<u32>,
    /// Tensor-parallel width.
    pub tp: Option<u32>,
    /// ZeRO stage.
    pub zero: Option<u8>,
    /// Samples of a micro-batch on one replica.
    pub microbatch: Option<u32>,
    /// Which activations are computed twice.
    pub recompute: Option<Recompute>,
}

impl Only {
    /// Whether nothing is said.
    pub fn is_free(&self) -> bool {
        *self == Only::default()
    }
}

impl fmt::Display for Only {
    /// `tp 4, pp 2`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Only { pp, dp, cp, tp, zero, microbatch, recompute } = *self;
        let zero = zero.map(u32::from);
        let numbers = [
            ("tp", tp),
            ("pp", pp),
            ("dp", dp),
            ("cp", cp),
            ("ZeRO", zero),
            ("micro-batches of", microbatch),
        ];
        let said =
            numbers.iter().filter_map(|(name, number)| Some(format!("{name} {}", (*number)?)));
        let recompute = recompute.map(|it| format!("recompute {}", it.name()));
        out.write_str(&said.chain(recompute).collect::<Vec<_>>().join(", "))
    }
}

/// Whether `value` is what was asked for, if anything was.
pub(crate) fn allows<T: PartialEq>(asked: Option<T>, value: T) -> bool {
    asked.is_none_or(|asked| asked == value)
}
