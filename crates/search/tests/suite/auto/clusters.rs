//! Which devices of a cluster the answer uses, and what is said of the others.

use shardloom_cluster::{Cluster, NodeGroup};
use shardloom_collectives::Algorithm;
use shardloom_plan::AttentionKind;
use shardloom_search::{Outcome, Request, single_device_seconds};

use super::{LARGER, PLENTY, check};
use crate::scenario::{GPT, h100, model};

#[test]
fn devices_that_a_batch_cannot_use_are_left_out_and_said_to_be() {
    let graph = model(GPT);
    let outcome = check(&graph, &h100(1, 7, PLENTY), &Request::new(GPT, "c", 2));
    assert!(outcome.devices_left_out > 0);
    let note = format!("{} of 7 devices are left out", outcome.devices_left_out);
    assert!(outcome.notes.iter().any(|it| it.starts_with(&note)), "{:?}", outcome.notes);
}

#[test]
fn another_batch_that_uses_more_devices_is_named() {
    let graph = model(LARGER);
    let cluster = h100(1, 7, PLENTY);
    let outcome = check(&graph, &cluster, &Request::new(LARGER, "c", 64));
    let note =
        outcome.notes.iter().find(|it| it.starts_with("with 63 samples a step instead of 64"));
    let note = note.unwrap_or_else(|| panic!("{:?}", outcome.notes));
    let other = check(&graph, &cluster, &Request::new(LARGER, "c", 63));
    let rate = |outcome: &Outcome, batch: f64| batch / outcome.judgement.step_seconds;
    let more = rate(&other, 63.0) / rate(&outcome, 64.0) - 1.0;
    assert!(
        more > 0.1 && note.ends_with(&format!("{:.0}% more samples a second", 100.0 * more)),
        "{note}"
    );
}

#[test]
fn a_mixed_cluster_is_planned_for_its_slowest_devices_and_least_memory() {
    let graph = model(LARGER);
    let smaller = h100(1, 2, 3_000_000_000);
    let larger = Cluster::parse("h200:1x2").expect("a preset");
    let cluster = Cluster::new([smaller.groups(), larger.groups()].concat()).expect("a cluster");
    let outcome = check(&graph, &cluster, &Request::new(LARGER, "c", 32));
    assert_eq!(outcome.devices_left_out, 0);
    assert!(outcome.notes.iter().any(|it| it.contains("several kinds of device")));
    assert!(outcome.judgement.memory.iter().all(|it| it.peak_bytes < 3_000_000_000));
}

#[test]
fn slower_devices_are_left_out_where_that_is_faster() {
    let graph = model(LARGER);
    let mixed = Cluster::parse("a100-80g:1x4+h100-80g:1x4").expect("presets");
    let request = Request::new(LARGER, "c", 32);
    let outcome = check(&graph, &mixed, &request);
    assert!(outcome.plan.devices().into_iter().all(|device| device >= 4));
    let alone = check(&graph, &Cluster::parse("h100-80g:1x4").expect("a preset"), &request);
    assert_eq!(outcome.judgement.step_seconds, alone.judgement.step_seconds);
    let slower = outcome.finalists.iter().map(|it| it.step_seconds()).fold(f64::INFINITY, f64::min);
    assert!(slower > alone.judgement.step_seconds, "what was found for all devices");
    let [note] = &outcome.notes[..] else { panic!("{:?}", outcome.notes) };
    assert!(
        note.starts_with(
            "4 of 8 devices, all a100-80g, are left out: the fastest plan found for all takes"
        ),
        "{note}"
    );
}

#[test]
fn nodes_of_one_kind_are_not_called_several_whoever_lists_them_one_by_one() {
    let graph = model(GPT);
    let node = h100(1, 2, PLENTY);
    let cluster = Cluster::new([node.groups(), node.groups()].concat()).expect("a cluster");
    let outcome = check(&graph, &cluster, &Request::new(GPT, "c", 32));
    assert_eq!(outcome.notes, [""; 0]);
}

#[test]
fn a_single_device_is_the_fastest_that_there_is_however_little_memory_it_has() {
    let graph = model(GPT);
    let request = Request::new(GPT, "c", 8);
    let seconds = |text: &str| {
        let cluster = Cluster::parse(text).expect("presets");
        single_device_seconds(&graph, &cluster, &request).expect("an estimate")
    };
    let [slow, fast] = ["a100-80g:1", "h100-80g:1"].map(seconds);
    assert!(fast < slow);
    for mixed in ["a100-80g:2x4+h100-80g:1x8", "h100-80g:1x8+a100-80g:2x4"] {
        assert_eq!(seconds(mixed), fast, "{mixed}");
    }
    let small = single_device_seconds(&graph, &h100(1, 1, 1000), &request).expect("an estimate");
    let large = single_device_seconds(&graph, &h100(1, 1, PLENTY), &request).expect("an estimate");
    assert!(small.is_some() && small == large);
}

#[test]
fn a_single_device_computes_attention_as_is_asked_for_or_as_is_usual() {
    let (graph, cluster) = (model(GPT), Cluster::parse("h100-80g:1").expect("a preset"));
    let seconds = |attention: Option<AttentionKind>| {
        let request = Request { attention, ..Request::new(GPT, "c", 8) };
        let found = single_device_seconds(&graph, &cluster, &request).expect("an estimate");
        found.expect("a plan")
    };
    let [fused, unfused] = [AttentionKind::Fused, AttentionKind::Unfused].map(Some).map(seconds);
    assert!(fused < unfused, "{fused} s, and {unfused} s");
    assert_eq!(seconds(None), fused);
}

/// As of a plan whose replicas reduce in groups of four.
#[test]
fn a_single_device_takes_no_part_in_how_others_reduce() {
    let (graph, cluster) = (model(GPT), h100(1, 1, PLENTY));
    let plain = Request::new(GPT, "c", 8);
    let seconds = |request: &Request| {
        single_device_seconds(&graph, &cluster, request).expect("no groups are asked for")
    };
    let grouped = Request { algorithm: Algorithm::Hierarchical { inner: 4 }, ..plain.clone() };
    assert_eq!(seconds(&grouped), seconds(&plain));
}

/// On a network on which each halving of the nodes is faster, down to one device.
#[test]
fn the_fastest_of_ever_fewer_machines_is_the_answer() {
    let graph = model(GPT);
    let mut groups = h100(8, 1, PLENTY).groups().to_vec();
    groups[0].profile.node.inter.bytes_per_second /= 1e4;
    groups[0].profile.node.uplink_bytes_per_second /= 1e4;
    let whole = h100(8, 1, PLENTY).with_groups(groups.clone()).expect("a cluster");
    let request = Request::new(GPT, "c", 8);
    let outcome = check(&graph, &whole, &request);
    let on = |nodes: u32| {
        let fewer = groups.iter().map(|it| NodeGroup { nodes, ..it.clone() }).collect();
        let fewer = whole.with_groups(fewer).expect("a cluster");
        check(&graph, &fewer, &request).judgement.step_seconds
    };
    let alone = on(1);
    assert_eq!((outcome.plan.device_count(), outcome.devices_left_out), (1, 7));
    assert!((outcome.judgement.step_seconds / alone - 1.0).abs() < 1e-9);
}
