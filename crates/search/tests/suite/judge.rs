//! What a plan is judged by is that of all of its ranks, though one may stand for several.

use crate::scenario::{h100, model};
use shardloom_plan::{Mesh, Precision, Sync, Uniform};
use shardloom_program::lower;
use shardloom_search::judge;
use shardloom_sim::{Options, simulate};

#[test]
fn the_share_of_waiting_is_that_of_all_ranks() {
    let text = "gpt:layers=6,hidden=512,heads=8,seq=256,vocab=4096";
    let graph = model(text);
    let cluster = h100(1, 8, 80_000_000_000);
    let cases = [(1, 8, "star"), (2, 4, "binary-tree"), (4, 2, "ring")];
    for (pp, dp, algorithm) in cases {
        let uniform = Uniform {
            pp,
            mesh: Mesh::of(dp, 1, 1),
            global_batch: 32,
            microbatches: 4,
            precision: Precision::MIXED,
            clip_norm: Some(1.0),
            sync: Sync { algorithm: algorithm.parse().expect("an algorithm"), ..Sync::default() },
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
        assert_eq!(judgement.sent_bytes, sent, "{pp} x {dp}, {algorithm}");
        let waits: f64 = all.ranks.iter().map(|rank| rank.waits).sum();
        assert!((judgement.waits - waits / 8.0).abs() < 1e-9);
        assert!(pp == 1 || judgement.waits >= 1.0, "{pp} x {dp}: a pipeline fills");
        assert!((judgement.bubble_fraction - all.bubble_fraction).abs() < 1e-9);
    }
}
