//! Time of an all-reduce of 64 MiB between two ranks, direct and by ring.
//!
//! `cargo bench -p shardloom-fabric --bench all_reduce [-- --json]`. Repeats are
//! interleaved and the median is reported, so that figures of one run compare. With
//! `--json` each direct all-reduce is one object, for `benches/peer/run.py`.

use std::{
    env,
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

/// Seconds of every repeat, by algorithm.
type Samples = [Vec<f64>; ALGORITHMS.len()];

fn rank(endpoint: &mut dyn Endpoint<Contents>) -> Result<Samples, FabricError> {
    let mut world = endpoint.group(&RANKS)?;
    let (kind, reduction) = (Kind::AllReduce, Reduction::Sum);
    let mut buffer = Contents::zeroed(Format::F32, BYTES / size_of::<f32>());
    let mut samples = Samples::default();
    for repeat in 0..WARM_UPS + REPEATS {
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
    Ok(samples)
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
    for (index, algorithm) in ALGORITHMS.into_iter().enumerate() {
        // A repeat is over when the last rank is done.
        let mut seconds = (0..REPEATS)
            .map(|repeat| samples.iter().map(|rank| rank[index][repeat]).fold(0.0, f64::max))
            .collect::<Vec<_>>();
        if json {
            for step_seconds in seconds.iter().filter(|_| algorithm == Algorithm::Direct) {
                println!("{{\"algorithm\":\"{algorithm}\",\"step_seconds\":{step_seconds}}}");
            }
            continue;
        }
        seconds.sort_by(f64::total_cmp);
        let (median, ranks) = (seconds[REPEATS / 2], RANKS.len());
        println!(
            "all-reduce of {BYTES} bytes between {ranks} ranks, {algorithm}: \
             median {median:.6} s of {REPEATS}"
        );
    }
    Ok(())
}
