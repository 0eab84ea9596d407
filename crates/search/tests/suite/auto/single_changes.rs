//! Single changes of an answer, of which none is better.

use shardloom_cluster::NodeGroup;
use shardloom_plan::Communication;
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

/// Two replicas on two, three and four cores, on two of a machine of four, and on two cores of each of two machines: ranks
/// get a communication thread where every one has a core besides, whatever is free elsewhere.
#[test]
fn ranks_communicate_by_a_thread_where_each_has_a_core_besides() {
    let cases = [(1, 2, 2, false), (1, 3, 3, false), (1, 4, 4, true), (1, 2, 4, true)];
    for (nodes, devices, cores, free) in cases.into_iter().chain([(2, 2, 2, false)]) {
        let (graph, gpus) = (model(GPT), h100(nodes, devices, PLENTY));
        let mut groups = gpus.groups().to_vec();
        for NodeGroup { profile, .. } in &mut groups {
            (profile.device.lanes_overlap, profile.node.devices) = (false, cores);
        }
        let cluster = gpus.with_groups(groups).expect("a cluster");
        let [one, dp] = [Some(1), Some(2)];
        let only = Only { pp: one, dp, cp: one, tp: one, zero: Some(0), ..Only::default() };
        let request = Request { only, bucket_bytes: 10_000, ..Request::new(GPT, "c", 8) };
        let found = search(&graph, &cluster, &request).expect("an answer");
        assert_eq!(found.plan.device_count(), 2);
        let expected = if free { Communication::Thread } else { Communication::InLine };
        assert_eq!(found.plan.communication, expected, "{nodes} of {devices}");
        // Where lanes overlap the device communicates beside computation as it is.
        let of_gpus = search(&graph, &gpus, &request).expect("an answer");
        assert_eq!(of_gpus.plan.communication, Communication::InLine);
    }
}
