//! Explanations rest on experiments.

use crate::scenario::{h100, model};
use shardloom_cluster::{Cluster, NodeGroup, Stack};
use shardloom_plan::{
    AttentionKind, Communication, Mesh, Negotiation, Plan, Precision, Recompute, ScheduleKind,
    Servers, Staleness, Uniform,
};
use shardloom_search::{Explanation, Fact, Judgement, Request, Rival, Topic, auto, explain, judge};

const TEXT: &str = "gpt:layers=6,hidden=512,heads=8,seq=256,vocab=4096";

/// The plan of these sizes for a global batch of 32.
fn plan(pp: usize, dp: u32, tp: u32, microbatches: usize) -> Plan {
    let uniform = Uniform {
        pp,
        mesh: Mesh::of(dp, 1, tp),
        global_batch: 32,
        microbatches,
        precision: Precision::MIXED,
        clip_norm: Some(1.0),
        ..Uniform::default()
    };
    uniform.plan(&model(TEXT), TEXT, "c")
}

fn explained(plan: &Plan, rivals: &[(&str, &Plan)]) -> Explanation {
    let (graph, cluster) = (model(TEXT), h100(2, 4, 80_000_000_000));
    let rivals: Vec<Rival<'_>> = rivals
        .iter()
        .map(|&(name, plan)| Rival { name, plan, graph: &graph, cluster: &cluster })
        .collect();
    explain(&graph, &cluster, plan, &rivals).expect("it can be simulated")
}

fn about(explanation: &Explanation, topic: Topic) -> Vec<&Fact> {
    explanation.facts.iter().filter(|it| it.topic == topic).collect()
}

#[test]
fn shares_of_a_step_add_up_to_about_all_of_it() {
    for (pp, dp, tp) in [(1, 8, 1), (4, 2, 1), (1, 2, 4), (2, 2, 2)] {
        let explanation = explained(&plan(pp, dp, tp, 4), &[]);
        let sum: f64 = about(&explanation, Topic::Share).iter().map(|it| it.number).sum();
        assert!((0.85..1.15).contains(&sum), "{pp} x {dp} x {tp}: {sum}");
    }
}

#[test]
fn a_step_without_flush_takes_what_it_takes_in_a_full_pipeline() {
    let mut endless = plan(4, 2, 1, 1);
    endless.schedule = shardloom_plan::ScheduleKind::PipeDream;
    endless.weights = shardloom_plan::Weights::Stash;
    endless.clip_norm = None;
    let judgement = judge(&model(TEXT), &h100(2, 4, 80_000_000_000), &endless);
    let explanation = explained(&endless, &[]);
    assert_eq!(explanation.step_seconds, judgement.expect("it can be simulated").step_seconds);
    let shares = about(&explanation, Topic::Share);
    assert!(shares.iter().all(|it| it.number < 1.0), "{shares:?}");
}

#[test]
fn a_pipeline_with_few_microbatches_waits_for_other_stages() {
    let explanation = explained(&plan(8, 1, 1, 8), &[]);
    let bottlenecks = about(&explanation, Topic::Bottleneck);
    let worst = bottlenecks.first().expect("a bottleneck");
    assert!(worst.sentence.contains("waiting for other stages"), "{}", worst.sentence);
    // (p - 1) / (m + p - 1) of equal stages; these are not equal.
    assert!(worst.number > 0.3, "{}", worst.number);
}

#[test]
fn devices_of_servers_do_not_wait_for_other_stages_but_have_nothing_to_compute() {
    // Workers that are alike wait for nobody but their servers, which update in a moment and stand idle besides.
    for (workers, servers) in [(4, 4), (6, 2), (2, 6)] {
        let mut uniform = Uniform { mesh: Mesh::of(workers, 1, 1), ..Uniform::default() };
        (uniform.global_batch, uniform.microbatches) = (48, 4);
        uniform.sync.servers = Some(Servers::of(servers, Staleness::SYNCHRONOUS));
        let explanation = explained(&uniform.plan(&model(TEXT), TEXT, "c"), &[]);
        let shares = about(&explanation, Topic::Share);
        let share = |name: &str| {
            shares.iter().find(|it| it.sentence.ends_with(name)).map_or(0.0, |it| it.number)
        };
        let (computing, idle) = (share("is computing"), share("is servers that compute nothing"));
        // A worker computes, and does not wait, for as long as a server has nothing to compute.
        let ratio = f64::from(servers) / f64::from(workers);
        assert!((idle / (ratio * computing) - 1.0).abs() < 0.1, "{ratio}: {shares:?}");
        assert_eq!(share("waiting for other stages"), 0.0, "{shares:?}");
        assert!(share("waiting for other replicas") < 0.05, "{shares:?}");
        let sum: f64 = shares.iter().map(|it| it.number).sum();
        assert!((0.85..1.15).contains(&sum), "{workers} and {servers}: {sum}");
    }
}

/// Eight devices that compute nearly all the time, each with a worker and a server.
#[test]
fn servers_on_workers_devices_are_no_devices_that_compute_nothing() {
    let mut uniform = Uniform { mesh: Mesh::of(8, 1, 1), ..Uniform::default() };
    (uniform.global_batch, uniform.microbatches) = (512, 32);
    let servers = Servers { colocated: true, ..Servers::of(0, Staleness::SYNCHRONOUS) };
    uniform.sync.servers = Some(servers);
    uniform.sync.bucket_bytes = 1_000_000;
    let plan = uniform.plan(&model(TEXT), TEXT, "c");
    let shares = explained(&plan, &[]);
    let shares = about(&shares, Topic::Share);
    assert!(shares.iter().all(|it| !it.sentence.contains("servers")), "{shares:?}");
    let computing = shares.iter().find(|it| it.sentence.ends_with("is computing"));
    let computing = computing.expect("a share").number;
    assert!(computing > 0.8, "{computing}");
    let judged = judge(&model(TEXT), &h100(2, 4, 80_000_000_000), &plan).expect("it runs");
    assert!((judged.bubble_fraction - (1.0 - computing)).abs() < 1e-9, "{judged:?}");
}

#[test]
fn tensor_parallelism_across_a_slow_link_is_found_out() {
    let explanation = explained(&plan(1, 1, 8, 4), &[]);
    let worst = about(&explanation, Topic::Bottleneck)[0];
    assert!(worst.sentence.contains("tensor-parallel communication"), "{}", worst.sentence);
    let faster = about(&explanation, Topic::Machine);
    let between = faster.iter().find(|it| it.sentence.contains("between nodes")).expect("a fact");
    assert!(between.number > 0.05, "{}", between.sentence);
}

#[test]
fn every_sentence_of_a_rival_has_the_simulators_number() {
    let (ours, other) = (plan(1, 8, 1, 1), plan(8, 1, 1, 8));
    let explanation = explained(&ours, &[("a pipeline", &other), ("itself", &ours)]);
    let rivals = about(&explanation, Topic::Rival);
    let cluster = h100(2, 4, 80_000_000_000);
    let judgement = judge(&model(TEXT), &cluster, &other).expect("it can be simulated");
    assert_eq!(rivals[0].number, judgement.step_seconds);
    assert!(rivals[0].sentence.starts_with("a pipeline takes "), "{}", rivals[0].sentence);
    assert_eq!(rivals[1].sentence, "itself is this plan");
    assert_eq!(rivals[1].number, explanation.step_seconds);
}

/// Whatever the plan that is explained is for.
#[test]
fn a_rival_is_judged_for_its_own_model_and_on_its_own_machines() {
    let (ours, cluster) = (plan(1, 8, 1, 1), h100(2, 4, 80_000_000_000));
    let other_text = "gpt:layers=3,hidden=256,heads=4,seq=128,vocab=1024";
    let other_graph = model(other_text);
    let slow = {
        let mut groups = cluster.groups().to_vec();
        groups[0].profile.node.inter.bytes_per_second /= 50.0;
        groups[0].profile.node.uplink_bytes_per_second /= 50.0;
        cluster.with_groups(groups).expect("a cluster")
    };
    let uniform = Uniform { mesh: Mesh::of(8, 1, 1), global_batch: 32, ..Uniform::default() };
    let other = uniform.plan(&other_graph, other_text, "slow");
    let graph = model(TEXT);
    let rival = Rival { name: "it", plan: &other, graph: &other_graph, cluster: &slow };
    let found = explain(&graph, &cluster, &ours, &[rival]).expect("it can be simulated");
    let judged = judge(&other_graph, &slow, &other).expect("it can be simulated");
    assert_eq!(about(&found, Topic::Rival)[0].number, judged.step_seconds);
    let here = judge(&other_graph, &cluster, &other).expect("it can be simulated");
    assert!(judged.step_seconds > 1.1 * here.step_seconds);
}

/// These devices' software has no fused kernels.
#[test]
fn fused_attention_is_suggested_with_a_word_where_there_are_no_kernels_for_it() {
    let of = |cluster: &Cluster| {
        let found = explain(&model(TEXT), cluster, &plan(1, 8, 1, 4), &[]);
        let found = found.expect("it can be simulated");
        let changes = about(&found, Topic::Change).into_iter().map(|it| it.sentence.clone());
        changes.filter(|it| it.contains("attention = \"fused\"")).collect::<Vec<_>>()
    };
    let separate = h100(2, 4, 80_000_000_000);
    let fusing = separate.clone().under(Stack::parse("pytorch").expect("a preset"));
    assert!(!separate.fuses_attention() && fusing.fuses_attention());
    for (cluster, is_said) in [(&separate, true), (&fusing, false)] {
        let [sentence] = &of(cluster)[..] else { panic!("{:?}", of(cluster)) };
        assert_eq!(sentence.contains("has no kernel for it here)"), is_said, "{sentence}");
    }
}

#[test]
fn communication_is_called_after_what_splits_the_model() {
    let of = |mesh: Mesh| {
        let mut uniform = Uniform { mesh, global_batch: 8, ..Uniform::default() };
        uniform.microbatches = 2;
        let explanation = explained(&uniform.plan(&model(TEXT), TEXT, "c"), &[]);
        let shares = about(&explanation, Topic::Share);
        let names = [
            "without tensor-parallel",
            "without context-parallel",
            "without communication of tensor",
        ];
        names.map(|name| shares.iter().any(|it| it.sentence.starts_with(name)))
    };
    assert_eq!(of(Mesh::of(1, 1, 8)), [true, false, false]);
    assert_eq!(of(Mesh::of(1, 8, 1)), [false, true, false]);
    assert_eq!(of(Mesh::of(1, 2, 4)), [false, false, true]);
}

#[test]
fn memory_that_limits_a_plan_is_said_to() {
    let graph = model(TEXT);
    let cluster = h100(1, 4, 800_000_000);
    let request = Request::new(TEXT, "c", 64);
    let outcome = auto(&graph, &cluster, &request, |_, _| Ok(vec![])).expect("an answer");
    let explanation = explain(&graph, &cluster, &outcome.plan, &[]).expect("it can be simulated");
    assert_eq!(explanation.step_seconds, outcome.judgement.step_seconds);
    let memory = about(&explanation, Topic::Memory);
    assert!(memory[0].number > 0.0 && memory[0].number <= request.memory_share);
    assert!(memory[0].sentence.starts_with("fullest: stage"), "{}", memory[0].sentence);
    assert!(memory[1].sentence.contains("more memory"), "{}", memory[1].sentence);
}

#[test]
fn half_a_batch_of_odd_micro_batches_is_not_tried() {
    let three = Plan { global_batch: 24, ..plan(1, 1, 1, 3) };
    let facts = explained(&three, &[]);
    let half =
        about(&facts, Topic::Batch).into_iter().any(|it| it.sentence.contains("half the global"));
    assert!(!half);
}

#[test]
fn batches_that_the_schedule_does_not_exist_for_are_not_tried() {
    let mut four = plan(2, 1, 1, 4);
    four.schedule = shardloom_plan::ScheduleKind::Interleaved;
    let blocks = model(TEXT).blocks().len();
    let cuts: Vec<usize> = (0..=4).map(|stage| stage * blocks / 4).collect();
    let stage = |index: usize| {
        let like = &four.pipeline[0].stage[index % 2];
        shardloom_plan::Stage { blocks: (cuts[index], cuts[index + 1]), ..like.clone() }
    };
    four.pipeline[0].stage = (0..4).map(stage).collect();
    let tried = |plan: &Plan| {
        let facts = explained(plan, &[]);
        let batches = about(&facts, Topic::Batch).into_iter();
        batches.filter(|it| it.sentence.contains("half the global")).count()
    };
    assert_eq!(tried(&four), 1);
    // Interleaved pipelines of two groups of devices take no single micro-batch.
    let two = Plan { microbatches: 2, ..four };
    assert_eq!(tried(&two), 0);
}

#[test]
fn what_is_small_is_said_in_small_units() {
    let explanation = explained(&plan(1, 2, 1, 1), &[]);
    for topic in [Topic::Bottleneck, Topic::Memory] {
        for fact in about(&explanation, topic) {
            let nothing = fact.sentence.split(' ').any(|word| word == "0.0" || word == "0.00");
            assert!(!nothing, "{}", fact.sentence);
        }
    }
    // Weights of 23 million parameters in 16 bits are 0.05 GB.
    let memory = &about(&explanation, Topic::Memory)[0].sentence;
    assert!(memory.contains("MiB") && memory.contains("GiB"), "{memory}");
}

#[test]
fn the_bottlenecks_are_the_two_largest_losses_or_computing_and_the_largest_loss() {
    let mut computing = 0;
    for (pp, dp, tp, microbatches) in
        [(1, 1, 1, 1), (1, 8, 1, 4), (4, 2, 1, 4), (1, 2, 4, 4), (2, 2, 2, 4), (1, 1, 8, 4)]
    {
        let explanation = explained(&plan(pp, dp, tp, microbatches), &[]);
        let shares = about(&explanation, Topic::Share);
        // Shares stand in the order of their size.
        let mut losses = shares.iter().filter(|it| !it.sentence.ends_with("is computing"));
        let found = about(&explanation, Topic::Bottleneck);
        let numbers: Vec<f64> = found.iter().map(|it| it.number).collect();
        let limit = found[0].sentence.starts_with("the limit is computing");
        computing += usize::from(limit);
        let expected = match limit {
            true => shares.iter().find(|it| it.sentence.ends_with("is computing")),
            false => losses.next(),
        };
        let mut expected = vec![expected.expect("a share").number];
        expected.extend(losses.next().map(|it| it.number));
        assert_eq!(numbers, expected, "{pp} x {dp} x {tp}: {found:?}");
    }
    assert!((1..6).contains(&computing), "{computing} of 6");
}

#[test]
fn where_computing_is_the_limit_the_largest_loss_is_the_next_bottleneck() {
    let text = "gpt:layers=6,hidden=2048,heads=16,seq=1024,vocab=4096";
    let (graph, cluster) = (model(text), h100(1, 2, 80_000_000_000));
    let uniform = Uniform {
        mesh: Mesh::of(2, 1, 1),
        global_batch: 64,
        microbatches: 4,
        precision: Precision::MIXED,
        ..Uniform::default()
    };
    let plan = uniform.plan(&graph, text, "c");
    let explanation = explain(&graph, &cluster, &plan, &[]).expect("it can be simulated");
    let [limit, next] = about(&explanation, Topic::Bottleneck)[..] else { panic!("not two") };
    assert!(limit.sentence.starts_with("the limit is computing"), "{}", limit.sentence);
    // Shares stand in the order of their size.
    let shares = about(&explanation, Topic::Share);
    assert!(shares[0].sentence.ends_with("is computing"), "{}", shares[0].sentence);
    let loss = shares[1].sentence.strip_prefix("without ").and_then(|it| it.split_once(" a step"));
    let (loss, less) = loss.expect("what a step loses");
    let said = format!("the next bottleneck is {loss}: ");
    assert!(next.sentence.starts_with(&said), "{}, and {loss}{less}", next.sentence);
    assert_eq!(next.number, shares[1].number);
}

#[test]
fn what_other_machines_would_do_is_asked_of_the_nodes_of_every_group() {
    let [whole, half] = [2, 1].map(|nodes| h100(nodes, 4, 80_000_000_000));
    // The same nodes, said one by one.
    let apart = Cluster::new([half.groups(), half.groups()].concat()).expect("a cluster");
    let apart = apart.under(whole.stack().clone());
    for (pp, dp, tp) in [(1, 8, 1), (2, 2, 2)] {
        let facts = |cluster: &Cluster| {
            let found = explain(&model(TEXT), cluster, &plan(pp, dp, tp, 4), &[]);
            let about = found.expect("it can be simulated").facts.into_iter();
            about.map(|it| (it.sentence, it.number)).collect::<Vec<_>>()
        };
        assert_eq!(facts(&apart), facts(&whole), "{pp} x {dp} x {tp}");
    }
}

#[test]
fn what_a_rival_loses_most_to_is_said_with_its_share() {
    let wide = plan(1, 1, 8, 4);
    let rivals = explained(&plan(1, 8, 1, 4), &[("wide", &wide)]);
    let fact = about(&rivals, Topic::Rival)[0];
    // Explained by itself, it loses the most to the same, in seconds of its own step.
    let alone = explained(&wide, &[]);
    let worst = about(&alone, Topic::Bottleneck)[0];
    assert!(worst.sentence.contains("tensor-parallel communication"), "{}", worst.sentence);
    let share = format!("{:.1}%", 100.0 * worst.number);
    let end = format!(" {share} of it tensor-parallel communication");
    assert!(fact.sentence.ends_with(&end), "{}, not {end}", fact.sentence);
}

/// Rivals may compute attention in another way than the plan, and differ from the graph that is given.
#[test]
fn rivals_with_fused_attention_are_compared() {
    let unfused = plan(1, 8, 1, 4);
    let fused = Plan { attention: AttentionKind::Fused, ..plan(1, 4, 2, 4) };
    for (ours, rival) in [(&unfused, &fused), (&fused, &unfused)] {
        let explanation = explained(ours, &[("rival", rival)]);
        let fact = about(&explanation, Topic::Rival)[0];
        let cluster = h100(2, 4, 80_000_000_000);
        let alone = judge(&model(TEXT), &cluster, rival).expect("it can be simulated");
        assert_eq!(fact.number, alone.step_seconds);
    }
}

#[test]
fn a_host_that_launches_slowly_is_a_part_of_the_step() {
    let facts = |kernel_seconds: f64| {
        let mut stack = Stack::default();
        stack.host.kernel_seconds = kernel_seconds;
        stack.host.waits_for_steps = true;
        let cluster = h100(1, 1, 80_000_000_000).under(stack);
        let found = explain(&model(TEXT), &cluster, &plan(1, 1, 1, 4), &[]);
        found.expect("it can be simulated")
    };
    let share = |of: &Explanation, name: &str| {
        let shares = about(of, Topic::Share).into_iter();
        shares.filter(|it| it.sentence.contains(name)).map(|it| it.number).sum::<f64>()
    };
    let (ideal, slow) = (facts(0.0), facts(1e-3));
    assert_eq!(share(&ideal, "the host"), 0.0);
    let expected = 1.0 - ideal.step_seconds / slow.step_seconds;
    assert!(expected > 0.5, "{expected}");
    assert!((share(&slow, "waiting for the host") - expected).abs() < 1e-9);
    // One stage waits for no others.
    assert_eq!(share(&slow, "other stages"), 0.0);
    let worst = about(&slow, Topic::Bottleneck)[0];
    assert!(worst.sentence.contains("waiting for the host"), "{}", worst.sentence);
}

#[test]
fn other_batches_are_those_that_are_named() {
    let graph = model(TEXT);
    let cluster = h100(2, 4, 80_000_000_000);
    let ours = plan(2, 2, 2, 4);
    let judged =
        |plan: &Plan| -> Judgement { judge(&graph, &cluster, plan).expect("it can be simulated") };
    let explanation = explained(&ours, &[]);
    let facts = about(&explanation, Topic::Batch);
    let others = [("with half the global batch", 16, 2), ("with twice the global batch", 64, 8)];
    assert_eq!(facts.len(), others.len(), "{facts:?}");
    let mut signs = [0, 0];
    for (fact, (condition, global_batch, microbatches)) in facts.iter().zip(others) {
        let other = Plan { global_batch, microbatches, ..ours.clone() };
        let of_sample = |plan: &Plan| judged(plan).step_seconds / plan.global_batch as f64;
        let saved = 1.0 - of_sample(&other) / of_sample(&ours);
        assert!((fact.number - saved).abs() < 1e-12, "{}: {saved}", fact.sentence);
        let relation = if saved > 0.0 { "less time" } else { "more time" };
        let whole = fact.sentence.starts_with(condition) && fact.sentence.ends_with(relation);
        assert!(whole, "{}: {saved}", fact.sentence);
        signs[usize::from(saved > 0.0)] += 1;
    }
    assert!(signs.iter().all(|&sign| sign > 0), "some take less time, some more: {facts:?}");
}

#[test]
fn changes_of_a_plan_are_simulated_and_the_best_first() {
    let graph = model(TEXT);
    let cluster = h100(2, 4, 80_000_000_000);
    let ours = plan(2, 2, 2, 4);
    let seconds =
        |plan: &Plan| judge(&graph, &cluster, plan).expect("it can be simulated").step_seconds;
    let explanation = explained(&ours, &[]);
    let facts = about(&explanation, Topic::Change);
    assert_eq!(facts.len(), 10, "{facts:?}");
    assert!(facts.windows(2).all(|pair| pair[0].number >= pair[1].number), "{facts:?}");
    let mut known = 0;
    let schedule = |schedule| Plan { schedule, ..ours.clone() };
    for (what, other) in [
        ("recompute = \"full\"", Plan { recompute: Recompute::Full, ..ours.clone() }),
        ("microbatches = 8", Plan { microbatches: 8, ..ours.clone() }),
        ("microbatches = 2", Plan { microbatches: 2, ..ours.clone() }),
        ("schedule = \"zb-h1\"", schedule(ScheduleKind::ZeroBubbleH1)),
        ("schedule = \"afab\"", schedule(ScheduleKind::Afab)),
        ("schedule = \"zb-h2\"", schedule(ScheduleKind::ZeroBubbleH2)),
        ("tp = 1 and dp = 4", plan(2, 4, 1, 2)),
        ("dp = 1 and tp = 4", plan(2, 1, 4, 8)),
    ] {
        let start = format!("with {what}, a step would take ");
        let saved = 1.0 - seconds(&other) / seconds(&ours);
        let Some(fact) = facts.iter().find(|it| it.sentence.starts_with(&start)) else {
            assert!(saved <= facts[9].number, "{what} is left out and saves {saved}: {facts:?}");
            continue;
        };
        assert!((fact.number - saved).abs() < 1e-12, "{}: {saved}", fact.sentence);
        assert!(fact.sentence.ends_with(") to spare"), "{}", fact.sentence);
        known += 1;
    }
    assert!(known >= 3, "{facts:?}");
    // The schedule of a plan whose stages lie otherwise is left as it is, and so is one without a pipeline.
    let alone = explained(&plan(1, 4, 1, 4), &[]);
    let facts = about(&alone, Topic::Change);
    assert!(facts.iter().all(|it| !it.sentence.contains("schedule")), "{facts:?}");
    // Where a change does not fit, that is said with how much is missing.
    let small = h100(2, 4, judge(&graph, &cluster, &ours).expect("it").memory[0].peak_bytes);
    let told = explain(&graph, &small, &ours, &[]).expect("it can be simulated");
    let facts = about(&told, Topic::Change);
    assert!(facts.iter().any(|it| it.sentence.contains("memory: does not fit, ")), "{facts:?}");
}

/// Of waiting for stages, launches and computing: what is said to make them shorter has been tried where it can be.
#[test]
fn what_makes_a_step_longer_is_not_said_to_make_a_part_of_it_shorter() {
    let large = "gpt:layers=4,hidden=4096,heads=32,seq=2048,vocab=4096";
    let mut seen = std::collections::BTreeSet::new();
    for (text, pp, microbatches, recompute, kernel_seconds) in [
        (large, 4, 4, Recompute::None, 0.0),
        (large, 1, 2, Recompute::None, 0.0),
        (large, 1, 2, Recompute::Full, 0.0),
        (TEXT, 4, 8, Recompute::None, 0.0),
        (TEXT, 2, 4, Recompute::None, 1e-4),
    ] {
        let graph = model(text);
        let mut stack = Stack::default();
        stack.host.kernel_seconds = kernel_seconds;
        let cluster = h100(2, 4, 80_000_000_000).under(stack);
        let uniform = Uniform { pp, global_batch: 32, microbatches, ..Uniform::default() };
        let ours = Plan { recompute, ..uniform.plan(&graph, text, "c") };
        let seconds =
            |plan: &Plan| judge(&graph, &cluster, plan).expect("it can be simulated").step_seconds;
        let helps =
            |microbatches: usize| seconds(&Plan { microbatches, ..ours.clone() }) <= seconds(&ours);
        let told = explain(&graph, &cluster, &ours, &[]).expect("it can be simulated");
        for fact in about(&told, Topic::Bottleneck) {
            let (part, remedy) = fact.sentence.split_once("it shrinks with ").expect("so");
            let (name, advice, expected) = match part {
                _ if part.contains("other stages") => {
                    ("stages", "more micro-batches", helps(2 * microbatches))
                }
                _ if part.contains("the host") => {
                    ("host", "larger micro-batches", helps(microbatches / 2))
                }
                _ if part.contains("computing") => {
                    ("computing", "less recomputation", recompute != Recompute::None)
                }
                _ => continue,
            };
            assert_eq!(remedy.contains(advice), expected, "{}", fact.sentence);
            seen.insert((name, expected));
        }
    }
    let both = |name| seen.contains(&(name, true)) && seen.contains(&(name, false));
    assert!(both("stages") && both("computing") && seen.contains(&("host", true)), "{seen:?}");
}

#[test]
fn how_full_memory_is_has_four_names() {
    let plan = plan(1, 4, 1, 4);
    let roomy = h100(1, 4, 80_000_000_000);
    let needed = judge(&model(TEXT), &roomy, &plan).expect("it can be simulated").memory[0];
    for (share, verdict) in [
        (0.7, "leaves room"),
        (0.9, "uses memory well"),
        (0.97, "is close to the limit"),
        (1.5, "does not fit"),
    ] {
        let cluster = h100(1, 4, (needed.peak_bytes as f64 / share) as u64);
        let found = explain(&model(TEXT), &cluster, &plan, &[]).expect("it can be simulated");
        let fact = about(&found, Topic::Memory)[0];
        assert!((fact.number - share).abs() < 1e-6, "{share}: {}", fact.number);
        assert!(fact.sentence.contains(&format!(", which {verdict}")), "{}", fact.sentence);
    }
}

/// Cycles, and what is reduced as one, are in what is explained as in what is judged.
#[test]
fn reductions_whose_order_is_agreed_on_take_what_they_take_elsewhere() {
    let (graph, cluster) = (model(TEXT), h100(1, 4, 80_000_000_000));
    let mut negotiated = plan(1, 4, 1, 4);
    negotiated.communication = Communication::Thread;
    let mut steps = vec![];
    for cycle_seconds in [0.001, 0.25] {
        let negotiation = Negotiation { cycle_seconds, ..Negotiation::default() };
        negotiated.sync.negotiation = Some(negotiation);
        let judgement = judge(&graph, &cluster, &negotiated).expect("it can be simulated");
        let found = explain(&graph, &cluster, &negotiated, &[]).expect("it can be simulated");
        assert_eq!(found.step_seconds, judgement.step_seconds, "cycles of {cycle_seconds} s");
        steps.push(found.step_seconds);
    }
    assert!(steps[1] > steps[0], "longer cycles make longer steps: {steps:?}");
}

/// What kernels need while they run is a stack's, and counts.
#[test]
fn memory_is_that_of_the_software_too() {
    let (graph, plan) = (model(TEXT), plan(1, 4, 1, 4));
    let bare = h100(1, 4, 80_000_000_000);
    let mut shares = vec![];
    for stack in ["nanotron", "internevo"] {
        let cluster = bare.clone().under(Stack::parse(stack).expect("a preset"));
        let judgement = judge(&graph, &cluster, &plan).expect("it can be simulated");
        let fullest = judgement.fullest().expect("a stage");
        let share = fullest.peak_bytes as f64 / fullest.memory_bytes as f64;
        let found = explain(&graph, &cluster, &plan, &[]).expect("it can be simulated");
        assert_eq!(about(&found, Topic::Memory)[0].number, share, "{stack}");
        shares.push(share);
    }
    assert!(shares[0] != shares[1], "no stack needs any");
}

/// Of a cluster that lacks a tenth of the memory that the fastest plan asks for.
#[test]
fn a_quarter_more_memory_finds_the_plan_that_just_did_not_fit() {
    let graph = model(TEXT);
    let request = Request::new(TEXT, "c", 64);
    let answer = |memory_bytes: u64| {
        let cluster = h100(1, 4, memory_bytes);
        auto(&graph, &cluster, &request, |_, _| Ok(vec![])).expect("an answer")
    };
    let fastest = answer(80_000_000_000);
    let needed = fastest.judgement.memory.iter().map(|it| it.peak_bytes).max().expect("a stage");
    let memory_bytes = (0.9 * needed as f64 / request.memory_share) as u64;
    let found = answer(memory_bytes);
    let saved = 1.0 - fastest.judgement.step_seconds / found.judgement.step_seconds;
    assert!(saved > 0.001, "as fast in less memory");
    let cluster = h100(1, 4, memory_bytes);
    let explanation = explain(&graph, &cluster, &found.plan, &[]).expect("it can be simulated");
    let fact = about(&explanation, Topic::Memory)[1];
    let begin = "if devices had 25.0% more memory, a plan that takes ";
    assert!(fact.sentence.starts_with(begin), "{}", fact.sentence);
    // Within what estimates, by which it is chosen, miss.
    assert!((fact.number - saved).abs() < 0.02, "{}: {saved}", fact.sentence);
}

/// What is faster, and how.
type Faster = (&'static str, fn(&mut NodeGroup));

#[test]
fn what_faster_machines_would_do_is_simulated_of_them() {
    let cluster = h100(2, 4, 80_000_000_000);
    let changes: [Faster; 3] = [
        ("links between nodes", |group| {
            group.profile.node.inter.bytes_per_second *= 2.0;
            group.profile.node.uplink_bytes_per_second *= 2.0;
        }),
        ("links within nodes", |group| group.profile.node.intra.bytes_per_second *= 2.0),
        ("device memory", |group| group.profile.device.memory_bytes_per_second *= 2.0),
    ];
    // One node has no links to others.
    let one_node = explain(&model(TEXT), &h100(1, 4, 80_000_000_000), &plan(1, 4, 1, 4), &[]);
    let one_node = one_node.expect("it can be simulated");
    let of_one_node = about(&one_node, Topic::Machine).into_iter();
    let said: Vec<&str> =
        of_one_node.map(|it| it.sentence.split(" were").next().expect("a beginning")).collect();
    assert_eq!(said, ["if links within nodes", "if device memory"]);
    let (mut nothing, mut less) = (0, 0);
    for (pp, dp, tp) in [(1, 8, 1), (2, 1, 4), (1, 1, 4)] {
        let plan = plan(pp, dp, tp, 4);
        let explanation = explained(&plan, &[]);
        let facts = about(&explanation, Topic::Machine);
        assert_eq!(facts.len(), changes.len());
        for (fact, (what, change)) in facts.into_iter().zip(changes) {
            let mut groups = cluster.groups().to_vec();
            groups.iter_mut().for_each(change);
            let other = cluster.with_groups(groups).expect("a cluster");
            let other = judge(&model(TEXT), &other, &plan).expect("it can be simulated");
            let saved = 1.0 - other.step_seconds / explanation.step_seconds;
            assert!((fact.number - saved).abs() < 1e-12, "{}: {saved}", fact.sentence);
            assert!(fact.sentence.starts_with(&format!("if {what} were twice as fast, ")));
            let is_nothing = fact.sentence.ends_with("nothing would change");
            assert_eq!(is_nothing, saved < 0.0005, "{}", fact.sentence);
            assert!(is_nothing || fact.sentence.ends_with("% less"), "{}", fact.sentence);
            nothing += usize::from(is_nothing);
            less += usize::from(!is_nothing);
        }
    }
    assert!(nothing > 0 && less > 3, "{nothing} and {less}");
}

#[test]
fn a_rival_that_does_not_fit_is_said_to_need_more() {
    let (graph, ours, other) = (model(TEXT), plan(1, 2, 4, 8), plan(1, 8, 1, 1));
    let roomy = h100(2, 4, 80_000_000_000);
    let [own, needed] = [&ours, &other].map(|it| {
        let judged = judge(&graph, &roomy, it).expect("it can be simulated");
        judged.fullest().expect("a stage").peak_bytes
    });
    assert!(own < needed, "{own} and {needed}");
    let rivals = |memory_bytes| {
        let cluster = h100(2, 4, memory_bytes);
        let (name, plan) = ("data parallelism", &other);
        let rival = Rival { name, plan, graph: &graph, cluster: &cluster };
        let found = explain(&graph, &cluster, &ours, &[rival]);
        about(&found.expect("it can be simulated"), Topic::Rival)[0].sentence.clone()
    };
    let begin = "data parallelism does not fit: it needs ";
    assert!(rivals(needed - 1).starts_with(begin));
    assert!(!rivals(needed).starts_with(begin));
}

/// Four groups of replicas send at once, and what leaves a node is no more than one device's link.
#[test]
fn links_between_nodes_that_are_twice_as_fast_carry_twice_as_much_out_of_a_node() {
    let of = |links: f64, out: f64| {
        let cluster = h100(2, 4, 80_000_000_000);
        let mut groups = cluster.groups().to_vec();
        let node = &mut groups[0].profile.node;
        let one_device = node.inter.bytes_per_second / 20.0;
        node.inter.bytes_per_second = links * one_device;
        node.uplink_bytes_per_second = out * one_device;
        cluster.with_groups(groups).expect("a cluster")
    };
    let plan = plan(1, 2, 4, 4);
    let seconds =
        |cluster: &Cluster| judge(&model(TEXT), cluster, &plan).expect("it simulates").step_seconds;
    let found = explain(&model(TEXT), &of(1.0, 1.0), &plan, &[]).expect("it can be simulated");
    let fact = about(&found, Topic::Machine)[0];
    let saved = 1.0 - seconds(&of(2.0, 2.0)) / found.step_seconds;
    assert!(fact.sentence.contains("links between nodes"), "{}", fact.sentence);
    assert!((fact.number - saved).abs() < 1e-12, "{}: {saved}", fact.sentence);
    assert_ne!(seconds(&of(2.0, 2.0)), seconds(&of(2.0, 1.0)), "what leaves a node is the limit");
}

#[test]
fn how_much_longer_a_rival_takes_is_said_from_a_two_thousandth_on() {
    let ours = plan(1, 4, 1, 4);
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut other = ours.clone();
        change(&mut other);
        other
    };
    let mut rivals = vec![
        // The same but for what it was made for.
        with(&|plan| plan.cluster = "another".into()),
        with(&|plan| plan.keeps_gathered = !plan.keeps_gathered),
        with(&|plan| plan.recompute = Recompute::Full),
        with(&|plan| plan.microbatches = 1),
        with(&|plan| plan.microbatches = 8),
        with(&|plan| plan.clip_norm = None),
        with(&|plan| plan.sync.zero = 1),
    ];
    for bucket_bytes in [1 << 18, 1 << 20, 1 << 22, 1 << 30] {
        rivals.push(with(&|plan| plan.sync.bucket_bytes = bucket_bytes));
    }
    let named: Vec<(&str, &Plan)> = rivals.iter().map(|plan| ("it", plan)).collect();
    let explanation = explained(&ours, &named);
    let (mut little, mut same) = (0, 0);
    for fact in about(&explanation, Topic::Rival) {
        let longer = fact.number / explanation.step_seconds - 1.0;
        let percent = format!("{:.1}%", 100.0 * longer.abs());
        let expected = match longer {
            longer if longer >= 0.0005 => format!("it takes {percent} longer: "),
            longer if longer <= -0.0005 => format!("it would take {percent} less: "),
            _ => "it takes as long: ".to_owned(),
        };
        assert!(fact.sentence.starts_with(&expected), "{}, {longer}", fact.sentence);
        little += usize::from((0.0005..0.05).contains(&longer.abs()));
        same += usize::from(longer.abs() < 0.0005);
    }
    assert!(little > 1 && same > 0, "{little} and {same}");
}
