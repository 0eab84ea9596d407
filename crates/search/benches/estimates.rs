//! How many distinct plans are bounded in a second on one core, and how well estimates rank plans.

use std::hint::black_box;
use std::time::Instant;

use mimalloc::MiMalloc;
use shardloom_cluster::Cluster;
use shardloom_graph::ModelSpec;
use shardloom_methods::baselines;
use shardloom_search::{Request, Space, auto, judge};
use shardloom_sim::estimate::{Candidate, Estimator};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Repeats, of which the median counts.
const REPEATS: usize = 9;

/// Plans that are simulated to compare ranks with.
const SIMULATED: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cases = [
        ("gpt:layers=22,hidden=2048,heads=16,seq=2048,vocab=51200", "h100-80g:4x8", 256),
        ("llama-3-8b:seq=8192", "h100-80g:16x8", 512),
        ("llama-3-405b:seq=8192", "h100-80g:2048x8", 2048),
    ];
    for (model, cluster_text, global_batch) in cases {
        let graph = ModelSpec::parse(model)?.graph()?;
        let cluster = Cluster::parse(cluster_text)?;
        let request = Request::new(model, cluster_text, global_batch);
        let space: Vec<Candidate> = Space::new(&graph, &cluster, &request)?.candidates().collect();
        let outcome = auto(&graph, &cluster, &request, |cluster, request| {
            baselines(&graph, cluster, request)
        })?;
        let mut rates = vec![];
        for _ in 0..REPEATS {
            // What is tabulated once for many candidates is there, what is added up for some is not.
            let mut estimator = Estimator::new(&graph, &cluster, request.settings())?;
            for candidate in &space {
                estimator.least_seconds(candidate)?;
                estimator.cuts(candidate)?;
            }
            let begun = Instant::now();
            for candidate in &space {
                black_box(estimator.bound(black_box(candidate))?);
            }
            rates.push(space.len() as f64 / begun.elapsed().as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        println!("{model} on {cluster_text}, global batch {global_batch}");
        println!("  {} plans, {:.0} bounds/s", space.len(), rates[REPEATS / 2]);
        println!("  whole search {:.2} s", outcome.search.seconds);
        let mut estimator = Estimator::new(&graph, &cluster, request.settings())?;
        // Plans of many micro-batches take long to simulate.
        let stride = (space.len() / SIMULATED).max(1);
        let mut times = vec![];
        for candidate in space.iter().step_by(stride) {
            let effort = candidate.microbatches as usize * graph.blocks().len();
            if effort > 5_000 {
                continue;
            }
            let Some(estimate) = estimator.estimate(candidate)? else { continue };
            let Some(plan) = request.planned(&graph, &mut estimator, candidate)? else { continue };
            times.push((estimate.step_seconds, judge(&graph, &cluster, &plan)?.step_seconds));
        }
        println!("  rank correlation {:.4} over {} plans", rank_correlation(&times), times.len());
    }
    Ok(())
}

/// Spearman's rank correlation.
fn rank_correlation(times: &[(f64, f64)]) -> f64 {
    let ranks = |of: fn(&(f64, f64)) -> f64| {
        let mut order: Vec<usize> = (0..times.len()).collect();
        order.sort_by(|&a, &b| of(&times[a]).total_cmp(&of(&times[b])));
        let mut ranks = vec![0.0; times.len()];
        order.iter().zip(0u32..).for_each(|(&index, rank)| ranks[index] = f64::from(rank));
        ranks
    };
    let (first, second) = (ranks(|it| it.0), ranks(|it| it.1));
    let squares: f64 = first.iter().zip(&second).map(|(a, b)| (a - b).powi(2)).sum();
    let count = times.len() as f64;
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}
