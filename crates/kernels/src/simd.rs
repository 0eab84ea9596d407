//! Compiles a kernel for the baseline processor, for AVX2 with FMA and for AVX-512, and picks at
//! run time.
//!
//! The body is ordinary Rust over slices, written so that the compiler vectorises it: fixed-size
//! chunks, explicit lane accumulators, no early exits. What it calls must be `#[inline(always)]`,
//! or it would be compiled without the wider instructions; closures should stay small for the same
//! reason. As every order of summation is written out, all versions give the same bits. (Without
//! FMA instructions `mul_add` is a slow function call: correct, and not meant for real training.)

/// Defines functions that run under the widest instruction set the processor has.
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
                if std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor was just found to have the features `avx512` enables.
                    return unsafe { avx512($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                {
                    // SAFETY: the processor was just found to have the features `avx2` enables.
                    return unsafe { avx2($($arg),*) };
                }
            }
            portable($($arg),*)
        }
    )*};
}

pub(crate) use simd;
