//! What is said where no plan fits: the plan that needs least, and what would help.

use shardloom_cluster::Cluster;
use shardloom_graph::Graph;
use shardloom_plan::Recompute;
use shardloom_search::{Only, Request, SearchError, Space};
use shardloom_sim::estimate::{Candidate, Estimator};

use super::{PLENTY, check, search};
use crate::scenario::{GPT, h100, model};

/// The least memory that a plan with one sample a micro-batch is estimated to need.
fn least_bytes(graph: &Graph, cluster: &Cluster, request: &Request) -> f64 {
    let space = Space::new(graph, cluster, request).expect("a space");
    let mut estimator = Estimator::new(graph, cluster, request.settings()).expect("an estimator");
    let ones = space.candidates().filter(|it| it.microbatch == 1);
    let peaks = ones.map(|it| estimator.estimate(&it).expect("costs").map(|it| it.peak_bytes));
    peaks.flatten().fold(f64::INFINITY, f64::min)
}

#[test]
fn where_nothing_fits_the_closest_plan_and_a_remedy_are_named() {
    let graph = model(GPT);
    let cluster = h100(1, 2, 12_000_000);
    let error = search(&graph, &cluster, &Request::new(GPT, "tiny", 32)).expect_err("too small");
    let message = error.to_string();
    assert!(message.starts_with("gpt fits on tiny in no plan"), "{message}");
    let SearchError::NothingFits { needed_bytes, available_bytes, remedy, space, .. } = &error
    else {
        panic!("{error}");
    };
    assert!(needed_bytes > available_bytes);
    assert!(remedy.contains("times as many nodes"), "{remedy}");
    let request = Request::new(GPT, "tiny", 32);
    assert_eq!(*space, Space::new(&graph, &cluster, &request).expect("a space").count());
    // The remedy is true.
    let times: u32 = remedy
        .split("so would ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .expect("the remedy has a number of nodes");
    check(&graph, &h100(times, 2, 12_000_000), &request);
}

#[test]
fn the_closest_plan_has_the_micro_batches_that_were_asked_for() {
    let only = Only { microbatch: Some(4), ..Only::default() };
    let request = Request { only, ..Request::new(GPT, "tiny", 32) };
    let error = search(&model(GPT), &h100(1, 2, 12_000_000), &request).expect_err("too small");
    let SearchError::NothingFits { closest, .. } = error else { panic!("{error}") };
    assert!(closest.contains(", 4 samples a micro-batch and"), "{closest}");
}

/// Read back from the sentence: what is not said is one, or all replicas.
#[test]
fn the_closest_plan_is_named_with_all_its_widths() {
    let (graph, cluster) = (model(GPT), h100(1, 4, 5_000_000));
    for only in [
        Only::default(),
        Only { cp: Some(2), ..Only::default() },
        Only { cp: Some(4), ..Only::default() },
        Only { cp: Some(2), tp: Some(2), ..Only::default() },
        Only { dp: Some(2), cp: Some(2), zero: Some(3), ..Only::default() },
        Only { pp: Some(2), dp: Some(2), zero: Some(1), ..Only::default() },
        Only { tp: Some(4), recompute: Some(Recompute::Full), ..Only::default() },
    ] {
        let request = Request { only, ..Request::new(GPT, "tiny", 32) };
        let error = search(&graph, &cluster, &request).expect_err("too small");
        let SearchError::NothingFits { closest, needed_bytes, .. } = error else {
            panic!("{error}")
        };
        let number = |before: &str| -> Option<u32> {
            let rest = closest.split_once(before)?.1;
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse().ok()
        };
        let said = |before: &str| number(before).expect("it is said");
        let dp = said("data ");
        let is_named = |it: &Candidate| {
            [it.pp, it.dp, it.tp] == [said("pipeline "), dp, said("tensor ")]
                && (it.cp, it.sharing)
                    == (number("context ").unwrap_or(1), number("within ").unwrap_or(dp))
                && u32::from(it.zero) == said("ZeRO-")
                && closest.ends_with(&format!(" recomputation {}", it.recompute.name()))
                && it.microbatch == 1
        };
        assert_eq!(number("context ").is_some(), number("context ") > Some(1), "{closest}");
        // It is one of those that need least.
        let mut estimator =
            Estimator::new(&graph, &cluster, request.settings()).expect("an estimator");
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        let mut needs = space
            .candidates()
            .filter(is_named)
            .filter_map(|it| estimator.estimate(&it).expect("costs").map(|it| it.peak_bytes));
        assert!(needs.any(|it| it as u64 == needed_bytes), "{closest}");
        assert_eq!(needed_bytes, least_bytes(&graph, &cluster, &request) as u64, "{closest}");
    }
}

/// Without attention, computing only attention again saves nothing.
#[test]
fn of_plans_that_need_equally_little_the_plainest_is_named() {
    let text = "mlp:inputs=1024,hidden=1024,layers=1,classes=64";
    let request = Request::new(text, "c", 1);
    let error = search(&model(text), &h100(1, 1, 10_000_000), &request).expect_err("too small");
    let SearchError::NothingFits { closest, .. } = error else { panic!("{error}") };
    assert!(closest.ends_with("recomputation none"), "{closest}");
}

/// As many blocks as nodes there can be at most, 256 times as many.
#[test]
fn the_remedy_names_the_first_doubling_of_nodes_that_is_enough() {
    let text = "gpt:layers=254,hidden=64,heads=4,seq=16,vocab=64";
    let graph = model(text);
    // One sample, which no replicas can share.
    let request = Request::new(text, "c", 1);
    let needed = |nodes: u32| least_bytes(&graph, &h100(nodes, 1, PLENTY), &request);
    let (enough, half) = (needed(256), needed(128));
    assert!(enough < 0.95 * half, "256 nodes need {enough} each, half as many {half}");
    let memory_bytes = (1.02 * enough / request.memory_share) as u64;
    let error = search(&graph, &h100(1, 1, memory_bytes), &request).expect_err("too small");
    let SearchError::NothingFits { closest, needed_bytes, remedy, .. } = error else {
        panic!("{error}");
    };
    let end = "so would 256 times as many nodes (256 devices)";
    assert!(remedy.ends_with(end), "{remedy}");
    assert!(closest.contains("one sample a micro-batch"), "{closest}");
    assert_eq!(needed_bytes, needed(1) as u64);
}

#[test]
fn no_more_nodes_are_asked_for_than_are_needed() {
    let text = "gpt:layers=6,hidden=64,heads=4,seq=16,vocab=64";
    let graph = model(text);
    for (nodes, memory_share) in [(2, 0.95), (4, 0.95), (2, 0.5), (4, 0.5)] {
        let request = Request { memory_share, ..Request::new(text, "c", 1) };
        let needed = least_bytes(&graph, &h100(nodes, 1, PLENTY), &request);
        let cluster = h100(1, 1, (1.02 * needed / request.memory_share) as u64);
        let error = search(&graph, &cluster, &request).expect_err("too small");
        let SearchError::NothingFits { remedy, .. } = error else { panic!("{error}") };
        let end = format!("so would {nodes} times as many nodes ({nodes} devices)");
        assert!(remedy.ends_with(&end), "{remedy}");
    }
}

#[test]
fn devices_with_as_much_memory_as_the_remedy_says_would_do() {
    let text = "gpt:layers=24,hidden=2048,heads=16,seq=1024,vocab=50304";
    let graph = model(text);
    for memory_share in [0.5, 0.9] {
        let request = Request { memory_share, ..Request::new(text, "small", 8) };
        let found = search(&graph, &h100(1, 2, 4_000_000_000), &request);
        let Err(SearchError::NothingFits { needed_bytes, remedy, .. }) = found else {
            panic!("{found:?}");
        };
        let gibibytes: u64 = remedy
            .strip_prefix("devices of ")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|number| number.parse().ok())
            .expect("the remedy has a size of devices");
        // Of which a plan may take its share, and the size is rounded up.
        let least = needed_bytes as f64 / memory_share / f64::from(1 << 30);
        assert!((0.0..=1.0).contains(&(gibibytes as f64 - least)), "{remedy}: {least}");
        check(&graph, &h100(1, 2, gibibytes << 30), &request);
    }
}

/// Six would be enough, and four are not.
#[test]
fn nodes_are_doubled_until_they_are_enough() {
    let text = "gpt:layers=10,hidden=64,heads=4,seq=16,vocab=64";
    let graph = model(text);
    let request = Request::new(text, "c", 1);
    let needed = |nodes: u32| least_bytes(&graph, &h100(nodes, 1, PLENTY), &request);
    let [four, six, eight] = [4, 6, 8].map(needed);
    let enough = 1.02 * six.max(eight);
    assert!(enough < 0.98 * four, "{four}, {six} and {eight}");
    let cluster = h100(1, 1, (enough / request.memory_share) as u64);
    let error = search(&graph, &cluster, &request).expect_err("too small");
    let SearchError::NothingFits { remedy, .. } = error else { panic!("{error}") };
    assert!(remedy.ends_with("so would 8 times as many nodes (8 devices)"), "{remedy}");
}
