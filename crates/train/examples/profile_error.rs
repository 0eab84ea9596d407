//! Measures this machine and prints how well operators of other sizes are estimated from that.
//!
//! `cargo run --release -p shardloom-train --example profile_error [-- --thorough] [-- --toml]`

use std::io::Write;
use std::time::Instant;

use shardloom_train::Result;
use shardloom_train::profile::{Effort, Options, check, measure};

fn main() -> Result<()> {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    let effort = if asked("--thorough") { Effort::Thorough } else { Effort::Quick };
    let options = Options { effort, ..Options::default() };
    let mut progress = |what: &str, done: f64| {
        eprint!("\r{:3.0}% {what:<50}", 100.0 * done);
        // Progress that cannot be shown is no reason to stop.
        let _ = std::io::stderr().flush();
    };
    let start = Instant::now();
    let profile = measure(options, &mut progress)?;
    eprintln!("\r{:<60}", format!("measured in {:.1} s", start.elapsed().as_secs_f64()));
    if asked("--toml") {
        println!("{}", profile.to_toml()?);
    }
    let mut estimates = check(&profile, options, &mut progress)?;
    eprintln!();
    for estimate in &estimates {
        println!(
            "{:<44} {:<34} measured {:>10.2} us, estimated {:>10.2} us: {:>+6.1} %",
            estimate.class,
            estimate.size,
            1e6 * estimate.measured_seconds,
            1e6 * estimate.estimated_seconds,
            100.0 * estimate.error(),
        );
    }
    estimates.sort_by(|a, b| a.error().abs().total_cmp(&b.error().abs()));
    let mean = estimates.iter().map(|it| it.error().abs()).sum::<f64>() / estimates.len() as f64;
    let median = estimates[estimates.len() / 2].error().abs();
    println!("absolute error: mean {:.1} %, median {:.1} %", 100.0 * mean, 100.0 * median);
    Ok(())
}
