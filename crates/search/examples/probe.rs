//! x
use std::time::Instant;
use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_graph::ModelSpec;
use shardloom_plan::*;
use shardloom_sim::*;
fn main() {
    let g = ModelSpec::parse("llama-3-405b:seq=8192").unwrap().graph().unwrap();
    let n: u32 = 16384;
    let c = Cluster::parse("h100-80g:2048x8").unwrap();
    for (pp, tp, mbs, rc, zero) in [(1usize, 8u32, 1usize, Recompute::None, 0u8), (8, 8, 1, Recompute::Selective, 1), (16, 8, 1, Recompute::Selective, 1), (16, 8, 1, Recompute::Full, 1),(16, 8, 1, Recompute::Selective, 3),(128,8,1,Recompute::Selective,1)] {
        let dp = n / tp / pp as u32;
        let u = Uniform { pp, mesh: Mesh { dp, cp: 1, tp }, sequence_parallel: true, global_batch: 2048, microbatches: 2048 / dp as usize / mbs,
            schedule: ScheduleKind::OneForwardOneBackward, recompute: rc, sync: Sync { algorithm: Algorithm::Ring, zero, bucket_bytes: 25_000_000 }, precision: Precision::MIXED, optimizer: Optimizer::default(), clip_norm: Some(1.0) };
        let t = Instant::now();
        let plan = u.plan(&g, "m", "c");
        let tp_ = t.elapsed();
        let t = Instant::now();
        let pr = match shardloom_program::lower(&g, &plan, n as usize) { Ok(p) => p, Err(e) => { println!("{e}"); continue } };
        let tl = t.elapsed();
        let t = Instant::now();
        let s = simulate(&g, &c, &pr, Options { steps: 2, folded: true }).unwrap();
        let ts = t.elapsed();
        let peak = s.timeline.tracks.iter().map(|t| t.peak_bytes).max().unwrap() as f64 / 1e9;
        println!("pp{pp} dp{dp} tp{tp} {rc:?} z{zero}: plan {tp_:?} lower {tl:?} sim {ts:?} step {:.3} peak {peak:.1} GB", s.step_time().seconds());
    }
    // one replica lowered
    for pp in [1usize, 16] {
    let u = Uniform { pp, mesh: Mesh { dp: 1, cp: 1, tp: 8 }, sequence_parallel: true, global_batch: 1, microbatches: 1,
            schedule: ScheduleKind::OneForwardOneBackward, recompute: Recompute::Selective, sync: Sync { algorithm: Algorithm::Ring, zero:0, bucket_bytes: 25_000_000 }, precision: Precision::MIXED, optimizer: Optimizer::default(), clip_norm: Some(1.0) };
    let plan = u.plan(&g, "m", "c");
    let t = Instant::now();
    let _pr = shardloom_program::lower(&g, &plan, n as usize);
    println!("small lower pp {pp} {:?}", t.elapsed());
    }
}
