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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_said_in_one_order_and_nothing_else() {
        let none = Only::default();
        assert!(none.is_free() && none.to_string().is_empty());
        for (only, said) in [
            (Only { pp: Some(2), ..none.clone() }, "pp 2"),
            (Only { dp: Some(3), ..none.clone() }, "dp 3"),
            (Only { cp: Some(4), ..none.clone() }, "cp 4"),
            (Only { tp: Some(5), ..none.clone() }, "tp 5"),
            (Only { zero: Some(0), ..none.clone() }, "ZeRO 0"),
            (Only { microbatch: Some(7), ..none.clone() }, "micro-batches of 7"),
            (Only { recompute: Some(Recompute::Full), ..none.clone() }, "recompute full"),
        ] {
            assert_eq!((only.to_string().as_str(), only.is_free()), (said, false));
        }
        let all = Only {
            pp: Some(2),
            dp: Some(3),
            cp: Some(4),
            tp: Some(5),
            zero: Some(1),
            microbatch: Some(7),
            recompute: Some(Recompute::None),
        };
        let said = "tp 5, pp 2, dp 3, cp 4, ZeRO 1, micro-batches of 7, recompute none";
        assert_eq!(all.to_string(), said);
    }

    #[test]
    fn a_value_is_allowed_if_it_is_what_was_asked_for_or_nothing_was() {
        assert!(allows(None, 1) && allows(Some(1), 1) && !allows(Some(1), 2));
    }
}
