//! Which instructions the kernels use.
//!
//! Every kernel exists in up to three versions, and products of bfloat16 in a fourth and a fifth. The best for the
//! processor runs, unless the environment variable [`VARIABLE`] names another: to find out whether a difference
//! between two machines comes from their kernels, and to test on one machine what others will run.

use std::fmt;
use std::sync::OnceLock;

/// The environment variable that chooses a [`Tier`] by its name.
pub const VARIABLE: &str = "SHARDLOOM_KERNELS";

/// A set of instructions that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// What every processor of the target architecture has.
    Portable,
    /// AVX2 with FMA, as x86-64 processors since 2013 have; the level x86-64-v3.
    Avx2,
    /// AVX-512 with the extensions BW, DQ and VL.
    Avx512,
    /// The same with AVX512-BF16 for products of bfloat16. AMD's processors, since Zen 4, do twice as much by it in a
    /// cycle as by the instructions for fp32; Intel's do half as much, and use it only where they are told to.
    Avx512Bf16,
    /// The same with products of bfloat16 by the tile registers of AMX, as Intel's server processors since 2023 have:
    /// more than ten times as much in a cycle as by the instructions for fp32. Only on Linux, which is asked for the
    /// registers.
    Amx,
}

/// Why kernels cannot be chosen as asked. Every message says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// No tier has that name.
    #[error("{VARIABLE}={value}: there are no such kernels; this machine has {}", names(available))]
    Unknown {
        /// The name given.
        value: String,
        /// Tiers of this machine.
        available: Vec<Tier>,
    },
    /// The processor lacks the instructions.
    #[error(
        "{VARIABLE}={tier}: this machine's processor lacks these instructions; it has {}",
        names(available)
    )]
    Lacking {
        /// The tier asked for.
        tier: Tier,
        /// Tiers of this machine.
        available: Vec<Tier>,
    },
}

impl Tier {
    /// All tiers, each better than the one before.
    pub const ALL: [Tier; 5] =
        [Tier::Portable, Tier::Avx2, Tier::Avx512, Tier::Avx512Bf16, Tier::Amx];

    /// The name, as [`VARIABLE`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
            Tier::Avx512 => "avx512",
            Tier::Avx512Bf16 => "avx512-bf16",
            Tier::Amx => "amx",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Tier::Portable => true,
            Tier::Avx2 => has_avx2(),
            Tier::Avx512 => has_avx512(),
            Tier::Avx512Bf16 => has_avx512_bf16(),
            Tier::Amx => has_avx512_bf16() && has_amx(),
        }
    }

    /// The tiers that this machine can run.
    pub fn available() -> Vec<Tier> {
        Tier::ALL.into_iter().filter(|tier| tier.is_available()).collect()
    }

    /// The tier that this process runs: the best of the machine, or the one that [`VARIABLE`] named
    /// when this was first asked.
    ///
    /// Ask before computing, and show the error to whoever set the variable: kernels themselves
    /// have no way to report it, and panic with it.
    ///
    /// # Errors
    /// If the variable names no tier, or one that this machine cannot run.
    pub fn selected() -> Result<Tier, TierError> {
        selection().clone()
    }

    /// The tier to run now.
    ///
    /// # Panics
    /// With the error of [`Tier::selected`].
    #[inline(always)]
    pub(crate) fn current() -> Tier {
        match selection() {
            Ok(tier) => *tier,
            Err(error) => refuse(error),
        }
    }

    /// The tier for the variable's text; none and an empty one leave the choice to the machine, on which bfloat16 is
    /// multiplied faster as such or not.
    fn of_text(
        text: Option<&str>,
        available: &[Tier],
        has_fast_bf16: bool,
    ) -> Result<Tier, TierError> {
        let Some(value) = text.filter(|text| !text.is_empty()) else {
            let is_fast = |tier: &&Tier| has_fast_bf16 || **tier != Tier::Avx512Bf16;
            return Ok(available.iter().rfind(is_fast).copied().unwrap_or(Tier::Portable));
        };
        let tier = Tier::ALL.into_iter().find(|tier| tier.name() == value).ok_or_else(|| {
            TierError::Unknown { value: value.to_owned(), available: available.to_vec() }
        })?;
        match available.contains(&tier) {
            true => Ok(tier),
            false => Err(TierError::Lacking { tier, available: available.to_vec() }),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Read once, so that no run changes its arithmetic half-way.
#[inline(always)]
fn selection() -> &'static Result<Tier, TierError> {
    static SELECTION: OnceLock<Result<Tier, TierError>> = OnceLock::new();
    SELECTION.get_or_init(|| {
        let text = std::env::var_os(VARIABLE);
        let text = text.as_deref().map(|text| text.to_string_lossy());
        Tier::of_text(text.as_deref(), &Tier::available(), is_from_amd())
    })
}

#[cold]
#[inline(never)]
fn refuse(error: &TierError) -> ! {
    panic!("{error}")
}

fn names(tiers: &[Tier]) -> String {
    tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(", ")
}

/// Also BMI and LZCNT, which the crates need that compute thin matrix products in this tier.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("lzcnt")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has_avx2() && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_bf16() -> bool {
    has_avx512() && std::arch::is_x86_feature_detected!("avx512bf16")
}

/// The tile registers and their products of bfloat16, and that Linux lets this process use them: it keeps them for
/// those that ask, and for their threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    let knows_features = __cpuid(0).eax >= 7;
    if cfg!(miri) || !knows_features || __cpuid_count(7, 0).edx & (BF16 | TILES) != BF16 | TILES {
        return false;
    }
    // SAFETY: arch_prctl with ARCH_REQ_XCOMP_PERM takes a number and changes nothing but what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn has_amx() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn is_from_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn is_from_amd() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_choice_the_best_tier_of_the_machine_runs() {
        for text in [None, Some("")] {
            let best = |available: &[Tier], fast| Tier::of_text(text, available, fast);
            for fast in [false, true] {
                assert_eq!(best(&Tier::ALL, fast), Ok(Tier::Amx));
            }
            assert_eq!(best(&Tier::ALL[..4], true), Ok(Tier::Avx512Bf16));
            assert_eq!(best(&Tier::ALL[..4], false), Ok(Tier::Avx512));
            for fast in [false, true] {
                assert_eq!(best(&Tier::ALL[..3], fast), Ok(Tier::Avx512));
                assert_eq!(best(&Tier::ALL[..2], fast), Ok(Tier::Avx2));
                assert_eq!(best(&[Tier::Portable], fast), Ok(Tier::Portable));
            }
        }
    }

    #[test]
    fn every_tier_is_chosen_by_its_name() {
        for tier in Tier::ALL {
            assert_eq!(Tier::of_text(Some(tier.name()), &Tier::ALL, false), Ok(tier));
        }
    }

    #[test]
    fn an_unknown_tier_and_one_the_machine_lacks_are_refused_with_those_it_has() {
        let available = &Tier::ALL[..2];
        let message =
            |text| Tier::of_text(Some(text), available, true).expect_err("refused").to_string();
        assert_eq!(
            message("sse9"),
            "SHARDLOOM_KERNELS=sse9: there are no such kernels; this machine has portable, avx2"
        );
        assert_eq!(
            message("avx512"),
            "SHARDLOOM_KERNELS=avx512: this machine's processor lacks these instructions; it has \
             portable, avx2"
        );
    }
}
