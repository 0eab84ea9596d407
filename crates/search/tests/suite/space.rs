//! The space against an enumeration of all numbers there are.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::bucket_size::Least;
use crate::scenario::{GPT, h100, model};
use shardloom_cluster::{Cluster, Stack};
use shardloom_plan::{PassTimes, Recompute, ScheduleKind, even_cuts};
use shardloom_search::{Only, Request, Space, judge};
use shardloom_sim::estimate::Candidate;

/// In how many orders `pp` meshes can run `blocks` blocks, by listing them.
fn orders(pp: u32, blocks: u32) -> usize {
    let interleaved = (2..=16).filter(|chunks| {
        let stages = pp * chunks;
        stages <= blocks && [0, 1, 2].iter().any(|ends| (blocks - ends).is_multiple_of(stages))
    });
    // One stage on each: 1f1b, afab, zb-h1, zb-h2, zb-1p, zb-2p.
    let chains = 6;
    // Two on each, down and up: zb-v, v-half, v-min, hanayo, dualpipev; four: hanayo.
    let waves = if 2 * pp <= blocks { 5 } else { 0 } + if 4 * pp <= blocks { 1 } else { 0 };
    // Two pipelines: chimera, dualpipe.
    let both_ways = if pp.is_multiple_of(2) { 2 } else { 0 };
    chains + interleaved.count() + waves + both_ways
}

/// How many candidates there are, by trying every number.
fn counted(devices: u32, node: u32, batch: u32, tps: &[u32], blocks: u32) -> usize {
    let mut count = 0;
    for tp in tps.iter().copied().filter(|&tp| tp <= node && tp <= devices) {
        for pp in (1..=blocks).filter(|pp| (devices / tp).is_multiple_of(*pp)) {
            let room = devices / tp / pp;
            let Some(dp) = (1..=room).rev().find(|&dp| batch.is_multiple_of(dp)) else { continue };
            for _microbatch in (1..=batch / dp).filter(|it| (batch / dp).is_multiple_of(*it)) {
                let sequences = if tp > 1 { 2 } else { 1 };
                // Replicas of a node share, where there are others.
                let within = node / tp;
                let some = within > 1 && within < dp && dp.is_multiple_of(within);
                let zeros = match dp {
                    1 => 1,
                    _ if some => 7,
                    _ => 4,
                };
                let (cuts, orders) = if pp > 1 { (2, orders(pp, blocks)) } else { (1, 1) };
                count += sequences * zeros * cuts * orders * Recompute::BY_BLOCK.len();
            }
        }
    }
    count
}

#[test]
fn the_count_is_that_of_a_brute_force_enumeration() {
    let graph = model(GPT);
    let blocks = graph.blocks().len() as u32;
    for (nodes, per_node, batch) in [(1, 1, 7), (1, 8, 32), (2, 8, 24), (3, 4, 60), (1, 7, 16)] {
        let cluster = h100(nodes, per_node, 80_000_000_000);
        let request = Request::new(GPT, "c", batch as usize);
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        // 4 heads: 1, 2 and 4 divide them.
        let expected = counted(nodes * per_node, per_node, batch, &[1, 2, 4], blocks);
        assert_eq!(space.count(), expected, "{nodes} x {per_node}, batch {batch}");
        let all: Vec<_> = space.candidates().collect();
        assert_eq!(all.len(), expected);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), expected, "all are different");
        for candidate in &all {
            assert!(candidate.devices() <= nodes * per_node, "{candidate:?}");
            assert_eq!(candidate.global_batch(), u64::from(batch), "{candidate:?}");
        }
    }
}

#[test]
fn a_vocabulary_that_does_not_divide_stays_whole() {
    let text = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=101";
    let graph = model(text);
    let cluster = h100(1, 4, 80_000_000_000);
    let space = Space::new(&graph, &cluster, &Request::new(text, "c", 8)).expect("a space");
    let wide = space
        .candidates()
        .find(|it| it.tp == 4 && it.chunks == 1)
        .expect("heads and widths divide");
    let whole = "batch:dp, seq:cp, heads:tp, ffn:tp";
    assert_eq!(String::from(wide.layout(&graph)), whole);
    let request = Request::new(text, "c", 8);
    let cuts = even_cuts(graph.blocks().len(), wide.pp as usize);
    let plan = request.plan(&graph, &wide, &cuts, PassTimes::default());
    assert_eq!(String::from(plan.layout.clone()), whole);
    judge(&graph, &cluster, &plan).expect("it can be lowered");
}

#[test]
fn tensor_parallel_groups_stay_within_the_smallest_of_unlike_nodes() {
    let graph = model(GPT);
    let groups = [h100(1, 4, 80_000_000_000), h100(2, 2, 80_000_000_000)];
    let groups = groups.iter().flat_map(|it| it.groups().to_vec()).collect();
    let cluster = Cluster::new(groups).expect("a cluster");
    let space = Space::new(&graph, &cluster, &Request::new(GPT, "c", 8)).expect("a space");
    // Four heads: 1, 2 and 4 divide them.
    assert_eq!(space.candidates().map(|it| it.tp).max(), Some(2));
}

/// Widths of context parallelism of all candidates.
fn contexts(seq: usize, devices: u32, batch: usize) -> BTreeSet<u32> {
    let text = format!("gpt:layers=2,hidden=64,heads=4,seq={seq},vocab=101");
    let graph = model(&text);
    let cluster = h100(2, devices / 2, 80_000_000_000);
    let request = Request::new(&text, "c", batch);
    let space = Space::new(&graph, &cluster, &request).expect("a space");
    let all: Vec<_> = space.candidates().collect();
    assert_eq!(
        (all.len(), all.iter().collect::<HashSet<_>>().len()),
        (space.count(), space.count())
    );
    assert!(all.iter().all(|it| it.divides(&graph) && it.devices() <= devices), "{text}");
    all.iter().map(|it| it.cp).collect()
}

#[test]
fn long_sequences_are_split_as_long_as_ranks_have_4096_positions() {
    assert_eq!(contexts(32_768, 16, 64), [1, 2, 4, 8].into());
    assert_eq!(contexts(16_384, 16, 64), [1, 2, 4].into());
    assert_eq!(contexts(16_380, 16, 64), [1].into());
    assert_eq!(contexts(3 * 8_192, 12, 64), [1, 2, 3, 4, 6].into());
}

#[test]
fn shorter_sequences_are_split_where_there_are_more_devices_than_samples() {
    assert_eq!(contexts(8_192, 8, 8), [1].into());
    assert_eq!(contexts(8_192, 8, 4), [1, 2].into());
    assert_eq!(contexts(4_096, 8, 4), [1].into());
}

/// Those who work on one sequence hold the same parameters, as replicas do.
#[test]
fn ranks_of_one_sequence_share_within_a_node_that_has_no_room_for_another_replica() {
    let text = "gpt:layers=2,hidden=64,heads=4,seq=32768,vocab=101";
    let graph = model(text);
    let request = Request::new(text, "c", 64);
    let space = Space::new(&graph, &h100(2, 4, 80_000_000_000), &request).expect("a space");
    let sharing = |cp: u32, tp: u32| -> BTreeSet<(u8, u32)> {
        let all = space.candidates().filter(|it| [it.pp, it.dp, it.cp, it.tp] == [1, 2, cp, tp]);
        all.map(|it| (it.zero, it.sharing)).collect()
    };
    let over_all = [(0, 2), (1, 2), (2, 2), (3, 2)];
    assert_eq!(sharing(1, 4), over_all.into());
    let within = [(1, 1), (2, 1), (3, 1)];
    assert_eq!(sharing(4, 1), over_all.into_iter().chain(within).collect());
}

/// There is nothing to put in order.
#[test]
fn one_stage_has_a_schedule_of_one_stage_on_each_device_whichever_are_asked_for() {
    let graph = model(GPT);
    for (asked, expected) in [
        (ScheduleKind::ZeroBubbleV, ScheduleKind::OneForwardOneBackward),
        (ScheduleKind::Chimera, ScheduleKind::OneForwardOneBackward),
        (ScheduleKind::Afab, ScheduleKind::Afab),
    ] {
        let request = Request { schedules: vec![asked], ..Request::new(GPT, "c", 8) };
        let space = Space::new(&graph, &h100(1, 1, 80_000_000_000), &request).expect("a space");
        assert!(space.count() > 0);
        assert!(
            space.candidates().all(|it| (it.schedule, it.chunks) == (expected, 1)),
            "{asked:?}"
        );
    }
}

#[test]
fn what_cannot_be_asked_for_is_named() {
    let graph = model(GPT);
    let cluster = h100(1, 2, 80_000_000_000);
    let message = |request: Request| {
        Space::new(&graph, &cluster, &request).expect_err("it cannot be").to_string()
    };
    let request = Request::new(GPT, "c", 8);
    let empty = Request { global_batch: 0, ..request.clone() };
    assert_eq!(message(empty), "global_batch = 0: a step has 1 to 16777216 samples");
    let none = Request { schedules: vec![], ..request.clone() };
    assert_eq!(message(none), "schedules = []: at least one to choose from");
    let none = Request { finalists: 0, ..request.clone() };
    assert_eq!(message(none), "finalists = 0: at least one plan must be simulated");
    let none = Request { memory_share: 0.0, ..request };
    assert_eq!(message(none), "memory_share = 0: above 0, and at most 1 for all memory");
}

/// Software that runs whole blocks again has no other full recomputation.
#[test]
fn what_is_computed_again_is_what_the_software_does_where_all_is_asked_for() {
    let graph = model(GPT);
    let only = Only { recompute: Some(Recompute::Full), ..Only::default() };
    let request = Request { only, ..Request::new(GPT, "c", 8) };
    for (reruns_blocks, expected) in [(false, Recompute::Full), (true, Recompute::Block)] {
        let mut stack = Stack::default();
        stack.plan_defaults.reruns_blocks = reruns_blocks;
        let cluster = h100(1, 4, 80_000_000_000).under(stack);
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        let found: HashSet<Recompute> = space.candidates().map(|it| it.recompute).collect();
        assert_eq!(found, HashSet::from([expected]));
    }
}

/// With one stage on each there may be more: as many as there are blocks.
#[test]
fn no_more_than_a_thousand_stages_are_tried_where_devices_have_several() {
    let text = "gpt:layers=2046,hidden=32,heads=4,seq=32,vocab=64";
    let graph = model(text);
    let cluster = h100(256, 8, 80_000_000_000);
    let space = Space::new(&graph, &cluster, &Request::new(text, "c", 64)).expect("a space");
    let stages = |several: bool| {
        let candidates = space.candidates().filter(|it| (it.chunks > 1) == several);
        candidates.map(|it| it.pp * it.chunks).max()
    };
    assert_eq!((stages(true), stages(false)), (Some(1024), Some(2048)));
}

/// All others run whole blocks again.
#[test]
fn whoever_runs_plans_computes_blocks_again_where_this_program_computes_all() {
    let (graph, cluster) = (model(GPT), h100(1, 4, 80_000_000_000));
    let own = Request::new(GPT, "c", 8);
    let others = Request { runner: Some(Arc::new(Least(0))), ..own.clone() };
    let of = |request: &Request| -> Vec<Candidate> {
        Space::new(&graph, &cluster, request).expect("a space").candidates().collect()
    };
    let (own, others) = (of(&own), of(&others));
    let recomputed: HashSet<Recompute> = own.iter().map(|it| it.recompute).collect();
    assert!(recomputed.contains(&Recompute::Full) && recomputed.len() > 2, "{recomputed:?}");
    assert_eq!(own.len(), others.len());
    for (own, other) in own.into_iter().zip(others) {
        let recompute = match own.recompute {
            Recompute::Full => Recompute::Block,
            other => other,
        };
        assert_eq!(other, Candidate { recompute, ..own });
    }
}
