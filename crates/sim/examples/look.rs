//! x
#[path = "../tests/scenario/mod.rs"] mod scenario;
use shardloom_sim::*;
use shardloom_graph::families::GptConfig;
fn main(){
  let m: usize = std::env::args().nth(1).unwrap().parse().unwrap();
  let zero: u8 = std::env::args().nth(2).unwrap().parse().unwrap();
  let g=GptConfig{layers:126,hidden:16384,heads:128,seq:8192,vocab:128256-256,ffn:None,dropout:0.0,tied:false,norm_epsilon:1e-5,init_std:0.02}.graph("g").unwrap();
  let mut p=scenario::uniform(16,128,8,m); p.sequence_parallel=true; p.sync.zero=zero; p.sync.bucket_bytes=1<<30; let pr=scenario::lowered(&g,&p);
  let c=scenario::h100(16384);
  let s=simulate(&g,&c,&pr,Options{steps:1,folded:true}).unwrap();
  for t in s.timeline.tracks.iter() { println!("{} {:?} {:?}", t.place, t.busy().seconds(), t.communicating().seconds());
   let mut v: Vec<_>=t.intervals.iter().collect(); v.sort_by_key(|i|std::cmp::Reverse(i.end.0-i.start.0)); for i in v.iter().take(6) { println!("    {} {:.3} {:.3}", i.label, i.start.seconds(), i.end.seconds()); } }
}
