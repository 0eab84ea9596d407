//! The fuzzer: gives a target, which `FUZZ_TARGET` names, inputs that libFuzzer makes.

#![no_main]

mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<targets::Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(target, _)| *target == name);
    let names = targets::TARGETS.map(|(target, _)| target).join(", ");
    found.unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?}, and must be one of {names}")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
