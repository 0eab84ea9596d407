//! x
use std::time::Instant;
use shardloom_cluster::Cluster;
use shardloom_collectives::Algorithm;
use shardloom_graph::ModelSpec;
use shardloom_plan::*;
use shardloom_sim::*;
use shardloom_sim::estimate::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let g = ModelSpec::parse(&args[1]).unwrap().graph().unwrap();
    let c = Cluster::parse(&args[2]).unwrap();
    let n = c.device_count();
    let gb: u32 = args[3].parse().unwrap();
    let every: usize = args[4].parse().unwrap();
    let settings = Settings { precision: Precision::MIXED, optimizer: Optimizer::default(), norm: true, algorithm: Algorithm::Ring, bucket_bytes: 25_000_000 };
    let t = Instant::now();
    let mut e = Estimator::new(&g, &c, settings).unwrap();
    println!("new {:?}", t.elapsed());
    let mut cands = vec![];
    for pp in (1..=64).filter(|p| n % p == 0 && *p as usize <= g.blocks().len()) { for tp in [1u32, 2, 4, 8] { if n % (pp * tp) != 0 { continue } let dp = n / pp / tp; if gb % dp != 0 { continue }
      for sp in [false, true] { if sp && tp == 1 { continue } for zero in 0..4u8 { if zero > 0 && dp == 1 { continue } for micro in [1u32, 2, 4] { if gb / dp % micro != 0 { continue } for rc in Recompute::ALL { for schedule in ScheduleKind::ALL { for cut in [Cut::Even, Cut::Balanced] {
        cands.push(Candidate { pp, dp, tp, sequence_parallel: sp, zero, microbatch: micro, microbatches: gb / dp / micro, recompute: rc, schedule, cut });
      }}}}}}}}
    let t = Instant::now();
    for c in &cands { e.estimate(c).unwrap(); }
    println!("{} first {:?}", cands.len(), t.elapsed());
    let t = Instant::now();
    for c in &cands { e.estimate(c).unwrap(); }
    println!("again: {:.0}/s", cands.len() as f64 / t.elapsed().as_secs_f64());
    let mut rows = vec![];
    let mut seed = 12345u64;
    for cand in cands.iter() {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if (seed >> 33) as usize % every != 0 { continue }
        let Some(est) = e.estimate(cand).unwrap() else { println!("impossible {cand:?}"); continue };
        let u = Uniform { pp: cand.pp as usize, mesh: Mesh { dp: cand.dp, cp: 1, tp: cand.tp }, sequence_parallel: cand.sequence_parallel, global_batch: gb as usize, microbatches: cand.microbatches as usize,
            schedule: cand.schedule, recompute: cand.recompute, sync: Sync { algorithm: Algorithm::Ring, zero: cand.zero, bucket_bytes: 25_000_000 }, precision: Precision::MIXED, optimizer: Optimizer::default(), clip_norm: Some(1.0) };
        let mut plan = u.plan(&g, "m", "c");
        let cuts = e.cuts(cand).unwrap().unwrap();
        for (stage, w) in plan.pipeline[0].stage.iter_mut().zip(cuts.windows(2)) { stage.blocks = (w[0], w[1]); }
        let pr = match shardloom_program::lower(&g, &plan, n as usize) { Ok(p) => p, Err(er) => { println!("{er} {cand:?}"); continue } };
        let s = simulate(&g, &c, &pr, Options { steps: 2, folded: true }).unwrap();
        let peak = s.timeline.tracks.iter().map(|t| t.peak_bytes).max().unwrap() as f64;
        rows.push((est.step_seconds / s.step_time().seconds(), est.peak_bytes / peak, est.step_seconds, s.step_time().seconds(), peak / 1e9, *cand));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let show = |r: &(f64, f64, f64, f64, f64, Candidate)| println!("time x{:.3} mem x{:.3} est {:.4} sim {:.4} peak {:.2}GB pp{} dp{} tp{} sp{} z{} b{} m{} {:?} {:?} {:?}", r.0, r.1, r.2, r.3, r.4, r.5.pp, r.5.dp, r.5.tp, r.5.sequence_parallel as u8, r.5.zero, r.5.microbatch, r.5.microbatches, r.5.recompute, r.5.schedule, r.5.cut);
    println!("{} rows; time low", rows.len());
    rows.iter().take(12).for_each(show);
    println!("time high"); rows.iter().rev().take(12).for_each(show);
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    println!("mem low"); rows.iter().take(8).for_each(show);
    println!("mem high"); rows.iter().rev().take(8).for_each(show);
    let mean = |f: &dyn Fn(&(f64,f64,f64,f64,f64,Candidate)) -> f64| rows.iter().map(f).sum::<f64>() / rows.len() as f64;
    println!("mean abs time err {:.4} mem err {:.4}", mean(&|r| (r.0 - 1.0).abs()), mean(&|r| (r.1 - 1.0).abs()));
    let rank = |f: &dyn Fn(usize) -> f64| { let mut i: Vec<usize> = (0..rows.len()).collect(); i.sort_by(|&a, &b| f(a).total_cmp(&f(b))); let mut r = vec![0.0; rows.len()]; for (k, &x) in i.iter().enumerate() { r[x] = k as f64 } r };
    let (a, b) = (rank(&|i| rows[i].2), rank(&|i| rows[i].3));
    let k = rows.len() as f64; let d: f64 = a.iter().zip(&b).map(|(x, y)| (x - y).powi(2)).sum();
    println!("spearman {:.4}", 1.0 - 6.0 * d / (k * (k * k - 1.0)));
}
