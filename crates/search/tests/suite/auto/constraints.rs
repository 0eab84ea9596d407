//! Plans that must have what was asked for, or be such as somebody runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use shardloom_cluster::Cluster;
use shardloom_plan::{Axis, Plan, Recompute, Uniform};
use shardloom_search::{Only, Outcome, Request, Runner, SearchError, Space, auto, judge};
use shardloom_sim::estimate::{Cut, Estimator};

use super::{LARGER, PLENTY, search};
use crate::scenario::{GPT, h100, model};

#[test]
fn documents_that_are_to_be_masked_are_or_the_model_is_refused() {
    let cluster = h100(1, 4, PLENTY);
    let masked = |text: &str| {
        let request = Request { mask_documents: true, ..Request::new(text, "c", 32) };
        search(&model(text), &cluster, &request)
    };
    let found = masked(LARGER).expect("a plan");
    assert!(found.plan.mask_documents);
    let whole = search(&model(LARGER), &cluster, &Request::new(LARGER, "c", 32)).expect("a plan");
    let ratio = found.judgement.step_seconds / whole.judgement.step_seconds;
    // It loads where documents begin.
    assert!((1.0..1.001).contains(&ratio), "{ratio}");
    for text in [
        "lstm:layers=1,hidden=8,embed=8,seq=8,vocab=32",
        "mlp:inputs=8,hidden=8,layers=2,classes=4",
    ] {
        let error = masked(text).expect_err("it has no causal attention alone");
        assert!(matches!(error, SearchError::Request { key: "mask_documents", .. }), "{error}");
    }
}

#[test]
fn what_a_plan_must_have_it_has_and_nothing_faster_is_left() {
    let graph = model(LARGER);
    let cluster = h100(2, 4, PLENTY);
    let free = Request::new(LARGER, "c", 32);
    for only in [
        Only { tp: Some(4), pp: Some(2), ..Only::default() },
        Only { zero: Some(3), microbatch: Some(2), ..Only::default() },
        Only { dp: Some(2), recompute: Some(Recompute::Block), ..Only::default() },
        Only { cp: Some(2), ..Only::default() },
        // Wider than a node.
        Only { tp: Some(8), ..Only::default() },
    ] {
        let request = Request { only: only.clone(), ..free.clone() };
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        assert_eq!(space.candidates().count(), space.count(), "{only:?}");
        let found = search(&graph, &cluster, &request).expect("a plan");
        let (_, stage) = found.plan.stages().next().expect("a stage");
        let [tp, cp] = [Axis::TP, Axis::CP].map(|axis| stage.mesh.width(axis) as u32);
        // Also those that do not share what ZeRO shards.
        let dp = stage.mesh.size() as u32 / tp / cp;
        let widths = [tp, dp, cp];
        for (asked, width) in [only.tp, only.dp, only.cp].into_iter().zip(widths) {
            assert!(asked.is_none_or(|asked| asked == width), "{only:?}: {widths:?}");
        }
        let meshes: BTreeSet<_> = found.plan.stages().map(|(_, it)| it.devices.0.clone()).collect();
        assert!(only.pp.is_none_or(|pp| pp as usize == meshes.len()), "{only:?}");
        assert!(only.zero.is_none_or(|zero| zero == found.plan.sync.zero), "{only:?}");
        assert!(only.recompute.is_none_or(|it| it == found.plan.recompute), "{only:?}");
        let samples = 32 / found.plan.microbatches / dp as usize;
        assert!(only.microbatch.is_none_or(|it| it as usize == samples), "{only:?}");
        assert!(found.not_searched[0].contains("asked for"), "{:?}", found.not_searched);
        let faster = search(&graph, &cluster, &free).expect("a plan").judgement.step_seconds;
        assert!(found.judgement.step_seconds >= faster, "{only:?}");
    }
    let none = Only::default();
    for (only, rule) in [
        (Only { tp: Some(3), ..none.clone() }, "tp 3: tp must divide heads = 8"),
        (Only { dp: Some(3), ..none.clone() }, "dp 3: dp must divide the 32 samples of a step"),
        (
            Only { tp: Some(4), dp: Some(4), ..none.clone() },
            "tp 4, dp 4: these are 16 devices, and there are 8",
        ),
        (
            Only { microbatch: Some(3), ..none.clone() },
            "micro-batches of 3 must divide the 32 samples of a replica",
        ),
        (
            Only { dp: Some(1), cp: Some(1), zero: Some(2), ..none.clone() },
            "ZeRO 2: ZeRO shares among replicas, and there is one",
        ),
        (Only { pp: Some(3), ..none.clone() }, "pp 3: widths divide the devices, the batch"),
    ] {
        let request = Request { only, ..free.clone() };
        let error = search(&graph, &cluster, &request).expect_err(rule).to_string();
        assert!(error.starts_with("no plan of gpt on c has ") && error.contains(rule), "{error}");
    }
    let text = "gpt:layers=2,hidden=64,heads=4,seq=32,vocab=128";
    let request = Request { only: Only { pp: Some(8), ..none }, ..Request::new(text, "c", 32) };
    let error = search(&model(text), &cluster, &request).expect_err("too few blocks").to_string();
    assert!(
        error.contains("pp 8: 8 stages hold at least a block each, and there are 4"),
        "{error}"
    );
    let only = Only { recompute: Some(Recompute::Stage), ..Only::default() };
    let error = search(&graph, &cluster, &Request { only, ..free }).expect_err("no estimate");
    assert!(error.to_string().contains("by stage"), "{error}");
}

#[test]
fn a_search_with_updates_that_are_validated_afterwards_is_refused_by_name() {
    let text = "gpt:layers=4,hidden=64,heads=4,seq=32,vocab=128";
    let cluster = Cluster::parse("h100-80g:8").expect("a preset");
    let request = Request { post_validation: true, ..Request::new(text, "h100-80g:8", 16) };
    let error = search(&model(text), &cluster, &request).expect_err("it has no estimate");
    let refused = matches!(&error, SearchError::Request { key: "post_validation", .. });
    assert!(refused, "{error}");
}

/// Somebody who runs pipelines that are cut so, without ZeRO, and on so many devices at most.
#[derive(Debug)]
struct Pipelines {
    cuts: BTreeMap<usize, Vec<usize>>,
    most_devices: u32,
}

impl Runner for Pipelines {
    fn name(&self) -> &str {
        "somebody"
    }

    fn runs_on(&self, _: &Cluster, devices: u32) -> bool {
        devices <= self.most_devices
    }

    fn runs_numbers(&self, numbers: &Uniform, chunks: usize) -> bool {
        self.cuts.contains_key(&numbers.pp) && chunks == 1 && numbers.sync.zero == 0
    }

    fn runs(&self, _: &Cluster, plan: &Plan) -> bool {
        let stages = &plan.pipeline[0].stage;
        let firsts = stages.iter().map(|stage| stage.blocks.0);
        let cut: Vec<usize> = firsts.chain(stages.last().map(|stage| stage.blocks.1)).collect();
        self.cuts.get(&stages.len()) == Some(&cut)
            && plan.sync.zero == 0
            && plan.pipeline.len() == 1
    }

    fn takes_bucket_size(&self, _: &Cluster, _: &Plan) -> bool {
        true
    }

    fn own_cuts(&self) -> Option<&BTreeMap<usize, Vec<usize>>> {
        Some(&self.cuts)
    }
}

#[test]
fn the_fastest_plan_is_found_of_those_that_somebody_runs() {
    let graph = model(LARGER);
    let cluster = h100(1, 4, PLENTY);
    let free = Request::new(LARGER, "c", 32);
    let blocks = graph.blocks().len();
    let of = |cuts: &[&[usize]], most_devices| {
        let cuts = cuts.iter().map(|cut| (cut.len() - 1, cut.to_vec())).collect();
        let runner = Arc::new(Pipelines { cuts, most_devices });
        Request { runner: Some(runner), ..free.clone() }
    };
    let fastest = search(&graph, &cluster, &free).expect("a plan").judgement.step_seconds;
    for (cuts, most_devices) in [
        (&[&[0, 1, blocks][..]][..], 4),
        (&[&[0, 2, 3, 4, blocks], &[0, 4, blocks]], 4),
        (&[&[0, 2, blocks]], 2),
    ] {
        let request = of(cuts, most_devices);
        let runner = request.runner.clone().expect("a runner");
        let space = Space::new(&graph, &cluster, &request).expect("a space");
        assert_eq!(space.candidates().count(), space.count());
        assert!(space.candidates().all(|it| it.cut == Cut::Own && it.zero == 0));
        let found = search(&graph, &cluster, &request).expect("a plan");
        assert!(runner.runs(&cluster, &found.plan), "{}", found.plan.to_toml());
        assert!(found.plan.device_count() <= most_devices as usize && !found.plan.post_validation);
        // No other of them is faster, by simulating all.
        let mut estimator =
            Estimator::new(&graph, &cluster, request.settings()).expect("an estimator");
        for candidate in space.candidates().filter(|it| !it.halves()) {
            let exists = estimator.estimate(&candidate).expect("costs").is_some();
            let plan = request.planned(&graph, &mut estimator, &candidate).expect("costs");
            let Some(plan) = plan.filter(|plan| exists && runner.runs(&cluster, plan)) else {
                continue;
            };
            let judged = judge(&graph, &cluster, &plan).expect("it can be lowered");
            let is_slower = judged.step_seconds >= 0.98 * found.judgement.step_seconds;
            assert!(!judged.fits(request.memory_share) || is_slower, "{}", plan.to_toml());
        }
        assert!(found.judgement.step_seconds >= fastest);
        assert_eq!(found.not_searched[0], "plans that somebody does not run");
    }
    let error = search(&graph, &cluster, &of(&[], 4)).expect_err("none").to_string();
    assert!(error.starts_with("somebody runs no plan of gpt on c: widths"), "{error}");
    let only = Only { tp: Some(4), ..Only::default() };
    let request = Request { only, ..of(&[&[0, 1, blocks]], 4) };
    let error = search(&graph, &cluster, &request).expect_err("none").to_string();
    assert!(error.starts_with("somebody runs no plan of gpt on c with tp 4: widths"), "{error}");
}

/// They are what people use, who have asked for nothing.
#[test]
fn baselines_are_asked_for_without_what_plans_must_have() {
    let graph = model(GPT);
    let only = Only { tp: Some(2), microbatch: Some(1), ..Only::default() };
    let request = Request { only, ..Request::new(GPT, "c", 8) };
    let asked = Mutex::new(vec![]);
    let baselines = |machines: &Cluster, request: &Request| {
        let mut asked = asked.lock().expect("nobody panics");
        asked.push((machines.device_count(), request.clone()));
        Ok(vec![])
    };
    auto(&graph, &h100(1, 4, PLENTY), &request, baselines).expect("an answer");
    let asked = asked.into_inner().expect("nobody panics");
    assert!(asked.iter().any(|(devices, _)| *devices == 4), "{asked:?}");
    for (_, found) in asked {
        assert_eq!(found, Request { only: Only::default(), ..request.clone() });
    }
}

/// As many replicas as were asked for take two of eight devices; samples in four parts each take all.
#[test]
fn devices_that_replicas_leave_take_parts_of_samples() {
    let cluster = h100(1, 8, PLENTY);
    let two = Only { dp: Some(2), tp: Some(1), pp: Some(1), ..Only::default() };
    let found = |seq: usize, only: &Only| {
        let text = format!("gpt:layers=2,hidden=256,heads=4,seq={seq},vocab=1024");
        let request = Request { only: only.clone(), ..Request::new(&text, "c", 32) };
        search(&model(&text), &cluster, &request).expect("a plan")
    };
    let whole = found(8192, &two);
    let (_, stage) = whole.plan.stages().next().expect("a stage");
    assert_eq!([Axis::DP, Axis::CP].map(|axis| stage.mesh.width(axis)), [2, 4]);
    // Parts that are shorter than is tried are said not to be, where devices are left out for it.
    let untried = |found: &Outcome| {
        let begin = "context parallelism with fewer than 256 positions on a device";
        found.not_searched.iter().any(|it| it.starts_with(begin))
    };
    assert!(whole.devices_left_out == 0 && !untried(&whole), "{:?}", whole.not_searched);
    let short = found(128, &two);
    assert!(short.devices_left_out == 6 && untried(&short), "{:?}", short.not_searched);
    let free = found(8192, &Only::default());
    assert!(free.devices_left_out == 0 && !untried(&free), "{:?}", free.not_searched);
}

#[test]
fn what_was_asked_for_is_named_where_more_nodes_would_not_do() {
    let (graph, cluster) = (model(LARGER), h100(1, 2, 1 << 27));
    let error = |only: Only, batch| {
        let request = Request { only, ..Request::new(LARGER, "c", batch) };
        search(&graph, &cluster, &request).expect_err("nothing fits").to_string()
    };
    let whole = Only { pp: Some(1), tp: Some(1), zero: Some(0), ..Only::default() };
    for batch in [8, 4096] {
        let said = format!(
            "as tp 1, pp 1, ZeRO 0 and a global batch of {batch} do not spread the model further"
        );
        let error = error(whole.clone(), batch);
        assert!(error.contains(&said), "{error}");
    }
}

#[test]
fn unequal_shares_are_said_not_to_be_searched_where_devices_are_unlike() {
    let said = |text: &str| {
        let cluster = Cluster::parse(text).expect("presets");
        let found = search(&model(GPT), &cluster, &Request::new(GPT, "c", 32)).expect("a plan");
        found.not_searched.iter().any(|it| it == "pipelines with unequal shares of a step")
    };
    assert!(said("a100-80g:1x4+h100-80g:1x4"));
    assert!(!said("h100-80g:1x4+h100-80g:1x4"));
}
