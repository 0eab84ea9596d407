//! x
#[path = "../tests/scenario/mod.rs"] mod scenario;
use shardloom_sim::*;
use std::time::Instant;
use shardloom_graph::families::GptConfig;
fn main(){
  let m: usize = std::env::args().nth(1).unwrap().parse().unwrap();
  let zero: u8 = std::env::args().nth(2).unwrap().parse().unwrap();
  let t=Instant::now();
  let g=GptConfig{layers:126,hidden:16384,heads:128,seq:8192,vocab:128256-256,ffn:None,dropout:0.0,tied:false,norm_epsilon:1e-5,init_std:0.02}.graph("g").unwrap();
  let mut p=scenario::uniform(16,128,8,m); p.sequence_parallel=true; p.sync.zero=zero; p.sync.bucket_bytes=1<<30; let pr=scenario::lowered(&g,&p);
  println!("lower {:?}", t.elapsed());
  for c in pr.classes.iter().take(2) { println!("{:?}", c.bodies.iter().map(|b|b.instructions.len()).collect::<Vec<_>>()); }
  let c=scenario::h100(16384);
  for steps in [1,2] {
  let t=Instant::now();
  let s=simulate(&g,&c,&pr,Options{steps,folded:true}).unwrap();
  println!("simulate {steps} {:?} intervals {} mem {}", t.elapsed(), s.timeline.tracks.iter().map(|t|t.intervals.len()).sum::<usize>(), s.timeline.tracks[0].memory.len());
  let t=Instant::now();
  let sm=s.summary();
  println!("summary {:?} {} {} {:?}", t.elapsed(), sm.step_seconds, sm.bubble_fraction, sm.ranks[0]);
  }
}
