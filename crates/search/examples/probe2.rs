//! x
use shardloom_cluster::Cluster;
use shardloom_graph::ModelSpec;
use shardloom_search::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let g = ModelSpec::parse(&args[1]).unwrap().graph().unwrap();
    let c = Cluster::parse(&args[2]).unwrap();
    let r = Request::new(&args[1], &args[2], args[3].parse().unwrap());
    let t = std::time::Instant::now();
    let o = match auto(&g, &c, &r) { Ok(o) => o, Err(e) => { println!("{e} {:?}", t.elapsed()); return } };
    let d = |p: &shardloom_plan::Plan| format!("pp{} {} m{} z{} {:?} {:?} {} first {:?}", p.pipeline[0].stage.len(), p.pipeline[0].stage[0].mesh, p.microbatches, p.sync.zero, p.recompute, p.schedule, String::from(p.layout.clone()).contains("seq:tp"), p.pipeline[0].stage[0].blocks);
    println!("{:?} {:?}", o.search, o.notes);
    println!("ANSWER {} sim {:.4} est {:?} {:?}", d(&o.plan), o.judgement.step_seconds, o.estimated_seconds, o.judgement.fullest().map(|f| f.peak_bytes as f64 / 1e9));
    for b in &o.baselines { println!("  {} fits {} {:?} {}", b.name, b.fits, b.step_seconds(), b.plan.as_ref().map(d).unwrap_or_default()); }
    for f in &o.finalists { println!("  est {:.4} sim {:.4} {} {:.1}", f.estimated_seconds, f.judgement.step_seconds, d(&f.plan), f.judgement.fullest().unwrap().peak_bytes as f64 / 1e9); }
    let rivals: Vec<(&str, &shardloom_plan::Plan)> = o.baselines.iter().filter_map(|b| Some((b.name, b.plan.as_ref()?))).collect();
    let t = std::time::Instant::now();
    let e = explain(&g, &c, &o.plan, &rivals).unwrap();
    println!("explain {:?}", t.elapsed());
    for f in e.facts { println!("  {:?} {}", f.topic, f.sentence); }
}
