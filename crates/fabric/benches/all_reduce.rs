//! Time of an all-reduce of 64 MiB between two ranks, direct and by ring.
//!
//! `cargo bench -p shardloom-fabric --bench all_reduce [-- --json]`. Repeats are
//! interleaved and the median is reported, so that figures of one run compare. The limit that it is
//! held against is what it takes all ranks to copy as many bytes at once. With
//! `--json` each direct all-reduce is one object, for `benches/peer/run.py`.

use std::{
    env,
    hint::black_box,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use shardloom_collectives::{Algorithm, Kind, Reduction};
use shardloom_fabric::{
    Collective, Contents, Endpoint, Engine, FabricError, Format, InProcess, Settings,
};
use shardloom_kernels::Arithmetic;

const RANKS: [u32; 2] = [0, 1];
const BYTES: usize = 64 << 20;
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Direct, Algorithm::Ring];
const WARM_UPS: usize = 2;
const REPEATS: usize = 15;

/// Seconds of every repeat, by algorithm, and of both ranks copying what is summed at once.
type Samples = ([Vec<f64>; ALGORITHMS.len()], Vec<f64>);

fn rank(endpoint: &mut dyn Endpoint<Contents>) -> Result<Samples, FabricError> {
    let mut world = endpoint.group(&RANKS)?;
    let (kind, reduction) = (Kind::AllReduce, Reduction::Sum);
    let mut buffer = Contents::zeroed(Format::F32, BYTES / size_of::<f32>());
    let (mut samples, mut copies) = Samples::default();
    let source = vec![1u8; BYTES];
    let mut copy = vec![0u8; BYTES];
    for repeat in 0..WARM_UPS + REPEATS {
        world.barrier()?;
        let start = Instant::now();
        copy.copy_from_slice(black_box(&source));
        black_box(&copy);
        if repeat >= WARM_UPS {
            copies.push(start.elapsed().as_secs_f64());
        }
        for (algorithm, samples) in ALGORITHMS.into_iter().zip(&mut samples) {
            world.barrier()?;
            let start = Instant::now();
            let outcome;
            let collective = Collective::Equal { kind, algorithm, reduction };
            (buffer, outcome) = world.run(collective, buffer);
            outcome?;
            if repeat >= WARM_UPS {
                samples.push(start.elapsed().as_secs_f64());
            }
        }
    }
    Ok((samples, copies))
}

/// The median over repeats, each of which is over when the last rank is done, and all of them.
fn median<'a>(ranks: impl Iterator<Item = &'a Vec<f64>> + Clone) -> (f64, Vec<f64>) {
    let slowest = |repeat: usize| ranks.clone().map(|rank| rank[repeat]).fold(0.0, f64::max);
    let seconds = (0..REPEATS).map(slowest).collect::<Vec<_>>();
    let mut sorted = seconds.clone();
    sorted.sort_by(f64::total_cmp);
    (sorted[REPEATS / 2], seconds)
}

fn main() -> Result<(), FabricError> {
    let json = env::args().any(|argument| argument == "--json");
    let settings = Settings { timeout: Duration::from_secs(60), arithmetic: Arc::new(Arithmetic) };
    let endpoints = InProcess.connect(RANKS.len() as u32, &settings)?;
    let samples = thread::scope(|scope| {
        let ranks = endpoints
            .into_iter()
            .map(|mut endpoint| scope.spawn(move || rank(&mut *endpoint)))
            .collect::<Vec<_>>();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Vec<_>>()
    });
    let samples = samples.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (copy, _) = median(samples.iter().map(|(_, copies)| copies));
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let (median, seconds) = median(samples.iter().map(|(samples, _)| &samples[index]));
        if json {
            for step_seconds in seconds.iter().filter(|_| algorithm == Algorithm::Direct) {
                println!("{{\"algorithm\":\"{algorithm}\",\"step_seconds\":{step_seconds}}}");
            }
            continue;
        }
        let ranks = RANKS.len();
        println!(
            "all-reduce of {BYTES} bytes between {ranks} ranks, {algorithm}: median {median:.6} s of \
             {REPEATS}, {:.2} times what it takes all of them to copy that",
            median / copy
        );
    }
    Ok(())
}
