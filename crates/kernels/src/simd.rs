//! Compiles a kernel for the baseline processor, for AVX2 with FMA and for AVX-512, and picks at
//! run time, by [`Tier`](crate::tier::Tier).
//!
//! The body is ordinary Rust over slices, written so that the compiler vectorises it: fixed-size
//! chunks, explicit lane accumulators, no early exits. What it calls must be `#[inline(always)]`,
//! or it would be compiled without the wider instructions; closures should stay small for the same
//! reason. As every order of summation is written out, all versions give the same bits. (Without
//! FMA instructions `mul_add` is a slow function call: correct, and not meant for real training.)

/// Defines functions that run under the instruction set of the selected tier.
macro_rules! simd {
    ($(
        $(#[$attr:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$attr])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn portable($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    portable($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    portable($($arg),*)
                }
                match crate::tier::Tier::current() {
                    crate::tier::Tier::Avx512
                    | crate::tier::Tier::Avx512Bf16
                    | crate::tier::Tier::Amx => {
                        // SAFETY: a tier is current only if the processor has its features, which
                        // include those that `avx512` enables.
                        return unsafe { avx512($($arg),*) };
                    }
                    // SAFETY: as above, for `avx2`.
                    crate::tier::Tier::Avx2 => return unsafe { avx2($($arg),*) },
                    crate::tier::Tier::Portable => {}
                }
            }
            portable($($arg),*)
        }
    )*};
}

pub(crate) use simd;
