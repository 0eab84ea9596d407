//! Single changes of an answer, of which none is better.

use shardloom_search::{Only, Request, Topic, explain};

use super::{LARGER, PLENTY, search};
use crate::scenario::{GPT, h100, model};

/// As `explain` tries them; what a request fixes may be better otherwise.
#[test]
fn no_single_change_of_an_answer_that_fits_is_faster() {
    let mut seen = 0;
    for (text, nodes, devices, global_batch) in
        [(GPT, 1, 4, 8), (GPT, 2, 4, 16), (LARGER, 1, 4, 8), (LARGER, 2, 2, 16)]
    {
        let (graph, cluster) = (model(text), h100(nodes, devices, PLENTY));
        for only in [Only::default(), Only { pp: Some(2), ..Only::default() }] {
            let request = Request {
                only,
                fastest_algorithm: false,
                fastest_bucket_size: false,
                ..Request::new(text, "c", global_batch)
            };
            let found = search(&graph, &cluster, &request).expect("an answer");
            let told = explain(&graph, &cluster, &found.plan, &[]).expect("it can be simulated");
            for fact in told.facts.iter().filter(|it| it.topic == Topic::Change) {
                let is_searched = !fact.sentence.contains("attention")
                    && !fact.sentence.contains("sequence parallelism");
                let fits = fact.sentence.contains("memory: fits");
                assert!(
                    !is_searched || !fits || fact.number < 1e-3,
                    "{}: {}",
                    found.plan.to_toml(),
                    fact.sentence
                );
                seen += usize::from(is_searched && fits);
            }
        }
    }
    assert!(seen > 30, "{seen} changes");
}
