//! What a plan is judged by is that of all of its ranks, though one may stand for several.

use crate::scenario::{h100, model};
use shardloom_plan::{Mesh, Precision, Uniform};
use shardloom_program::lower;
use shardloom_search::judge;
use shardloom_sim::{Options, simulate};

#[test]
fn the_share_of_waiting_is_that_of_all_ranks() {
    let text = "gpt:layers=6,hidden=512,heads=8,seq=256,vocab=4096";
    let graph = model(text);
    let cluster = h100(1, 8, 80_000_000_000);
    for (pp, dp) in [(1, 8), (2, 4), (4, 2)] {
        let uniform = Uniform {
            pp,
            mesh: Mesh::of(dp, 1, 1),
            global_batch: 32,
            microbatches: 4,
            precision: Precision::MIXED,
            clip_norm: Some(1.0),
            ..Uniform::default()
        };
        let plan = uniform.plan(&graph, text, "c");
        let judgement = judge(&graph, &cluster, &plan).expect("it can be simulated");
        let program = lower(&graph, &plan, 8).expect("the plan can be lowered");
        let options = Options { folded: false, ..Options::default() };
        let all = simulate(&graph, &cluster, &program, options).expect("it simulates").summary();
        assert_eq!(all.ranks.len(), 8);
        let idle: f64 = all.ranks.iter().map(|rank| rank.idle_seconds).sum();
        let share = idle / 8.0 / all.step_seconds;
        let found = judgement.dependency_idle_fraction;
        assert!((found - share).abs() < 1e-9, "{pp} x {dp}: {found}, and {share} of all");
        let sent: u64 = all.ranks.iter().map(|rank| rank.sent_bytes).sum();
        // Shards of ranks that are taken for alike differ by an element.
        let ratio = judgement.sent_bytes as f64 / sent as f64;
        assert!((ratio - 1.0).abs() < 1e-6, "{pp} x {dp}: {ratio} of what ranks send");
        let waits: f64 = all.ranks.iter().map(|rank| rank.waits).sum();
        assert!((judgement.waits - waits / 8.0).abs() < 1e-9);
        assert!(pp == 1 || judgement.waits >= 1.0, "{pp} x {dp}: a pipeline fills");
        assert!((judgement.bubble_fraction - all.bubble_fraction).abs() < 1e-9);
    }
}
