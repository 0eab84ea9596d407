//! The numbers beside a plan, and the predictions for this machine.

use shardloom::cluster::{Cluster, NodeGroup, Profile};
use shardloom::plan::{AttentionKind, Mesh, Number, Precision, Uniform};
use shardloom::search::{Request, single_device_seconds};
use shardloom::{
    LocalProfile, Model, Planned, Unpredicted, find_plan, methods, plan_by_method, predict_here,
    read_plan, read_plan_and_model, simulate, uniform_plan, usual_request,
};

const TEXT: &str = "gpt:layers=4,hidden=512,heads=8,seq=256,vocab=1024";
const BATCH: usize = 64;

fn cluster(text: &str) -> Cluster {
    Cluster::parse(text).expect("presets")
}

fn planned(model: &Model, text: &str, change: impl Fn(Request) -> Request) -> Planned {
    let cluster = cluster(text);
    let request = change(usual_request(model, &cluster, text, BATCH));
    find_plan(model, &cluster, &request).expect("a plan")
}

/// FLOPs of a step by Narayanan et al. 2021 (arXiv 2104.04473, appendix), without recomputation.
fn step_flops() -> f64 {
    let (l, h, s, v) = (4.0, 512.0, 256.0, 1024.0);
    72.0 * BATCH as f64 * l * s * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * h * l))
}

#[test]
fn rates_shares_and_gains_of_a_plan_follow_from_its_step() {
    let model = Model::load(TEXT).expect("a model");
    let close = |found: f64, right: f64| (found / right - 1.0).abs() < 1e-9;
    for (text, bf16_flops) in
        [("h100-80g:4", 4.0 * 989.4e12), ("a100-80g:1x4+h100-80g:1x4", 4.0 * (312e12 + 989.4e12))]
    {
        let cluster = cluster(text);
        let planned = planned(&model, text, |it| it);
        let (plan, judgement) = (&planned.outcome.plan, &planned.outcome.judgement);
        let step_seconds = judgement.step_seconds;
        assert!(close(planned.tokens_per_second, (BATCH * 256) as f64 / step_seconds));
        let peaks = plan.devices().into_iter().map(|device| {
            let device =
                if text.starts_with("a100") && device < 4 { "a100-80g" } else { "h100-80g" };
            let profile = Profile::preset(device).expect("a preset");
            profile.device.peak_flops(shardloom::cluster::Precision::Bf16).expect("it has bf16")
        });
        let peak: f64 = peaks.sum();
        assert!(peak <= 1.001 * bf16_flops, "{peak}");
        let used = planned.model_flops_utilisation.expect("peaks are known");
        assert!(close(used, step_flops() / step_seconds / peak), "{used} of {text}");
        let request = usual_request(&model, &cluster, text, BATCH);
        let alone = single_device_seconds(model.graph(), &cluster, &request).expect("an estimate");
        let speedup = planned.speedup.expect("it runs on one device");
        assert!(close(speedup, alone.expect("it runs on one device") / step_seconds));
        assert_eq!(planned.peak_bytes_per_rank.len(), plan.device_count());
        let fullest = judgement.memory.iter().map(|it| it.peak_bytes).max();
        assert_eq!(planned.peak_bytes_per_rank.iter().copied().max(), fullest);
        let efficiency = planned.efficiency(&cluster);
        match cluster.groups().len() {
            1 => assert!(close(efficiency.expect("alike"), speedup / plan.device_count() as f64)),
            _ => assert_eq!(efficiency, None),
        }
    }
}

/// A step on one device has as many kernels of attention as one of the plan.
#[test]
fn one_device_computes_attention_as_the_plan_does() {
    let model = Model::load(TEXT).expect("a model");
    let nanotron = shardloom::cluster::Stack::parse("nanotron").expect("a preset");
    let cluster = cluster("h100-80g:4").under(nanotron);
    let alone = |attention| {
        let usual = usual_request(&model, &cluster, "h100-80g:4", BATCH);
        let request = Request { attention, ..usual };
        single_device_seconds(model.graph(), &cluster, &request).expect("an estimate")
    };
    let [usual, fused, unfused] =
        [None, Some(AttentionKind::Fused), Some(AttentionKind::Unfused)].map(alone);
    assert_eq!(usual, fused);
    assert_ne!(usual, unfused);
}

#[test]
fn devices_of_one_kind_have_an_efficiency_whoever_lists_their_nodes_one_by_one() {
    let model = Model::load(TEXT).expect("a model");
    let text = "h100-80g:1x2+h100-80g:1x2";
    let planned = planned(&model, text, |it| it);
    assert!(planned.efficiency(&cluster(text)).is_some());
}

#[test]
fn each_rank_has_the_peak_of_its_stage() {
    let model = Model::load(TEXT).expect("a model");
    let cluster = cluster("h100-80g:8");
    let request = usual_request(&model, &cluster, "h100-80g:8", BATCH);
    let gpipe = methods::named("gpipe").expect("a method");
    let planned = plan_by_method(&model, &cluster, &request, gpipe).expect("a plan");
    let simulated = simulate(&model, &planned.outcome.plan, &cluster, false).expect("a step");
    assert_eq!(planned.peak_bytes_per_rank, simulated.peak_bytes_per_rank());
    let folded = simulate(&model, &planned.outcome.plan, &cluster, true).expect("a step");
    assert_eq!(folded.peak_bytes_per_rank(), simulated.peak_bytes_per_rank());
    let search = &planned.outcome.search;
    assert_eq!((search.method, search.space), ("gpipe", search.evaluated + search.bounded_away));
    assert_eq!(planned.outcome.devices_left_out, 8 - planned.outcome.plan.device_count() as u32);
}

#[test]
fn a_vocabulary_that_tensor_parallelism_does_not_divide_is_told_with_what_it_costs() {
    let wide = |vocabulary: usize| {
        let text = format!("gpt:layers=2,hidden=512,heads=8,seq=256,vocab={vocabulary}");
        let model = Model::load(&text).expect("a model");
        let planned = planned(&model, "h100-80g:4", |request| Request {
            only: shardloom::search::Only { tp: Some(4), ..Default::default() },
            ..request
        });
        let notes = planned.outcome.notes.clone();
        let found = notes.into_iter().find(|it| it.contains("does not divide the vocabulary"));
        (found, planned)
    };
    // To the next multiple of 128 x 4.
    let (note, planned) = wide(50_257);
    let note = note.expect("all ranks compute the whole head");
    assert!(
        note.contains("of width 4 ") && note.contains("padded to 50688 (--pad-vocabulary 512)"),
        "{note}"
    );
    let share = note.rsplit(" would take ").next().and_then(|it| it.split('%').next());
    let share: f64 = share.and_then(|it| it.parse().ok()).expect("a share of the step");
    // The same plan of the model with so many rows, its vocabulary split.
    let padded = "gpt:layers=2,hidden=512,heads=8,seq=256,vocab=50257,padded_vocab=50688";
    let model = Model::load(padded).expect("a model");
    let mut plan = planned.outcome.plan.clone();
    // Before sequence parallelism, which splits what is left.
    let text = String::from(plan.layout);
    let split = match text.contains(", seq:tp") {
        true => text.replace(", seq:tp", ", vocab:tp, seq:tp"),
        false => format!("{text}, vocab:tp"),
    };
    plan.layout = split.try_into().expect("rules");
    let seconds = simulate(&model, &plan, &cluster("h100-80g:4"), true).expect("a step");
    let right = 1.0 - seconds.summary.step_seconds / planned.outcome.judgement.step_seconds;
    assert!((share / 100.0 - right).abs() < 0.02, "{share}%, and {right}");
    assert_eq!(wide(50_688).0, None);
    // One that it divides may still have rows that no vector of 16 bytes divides.
    let (_, planned) = wide(50_260);
    let slow = |it: &&String| it.contains("the vocabulary of 50260 is no multiple of 32,");
    assert!(planned.outcome.notes.iter().any(|it| slow(&it)), "{:?}", planned.outcome.notes);
    // A vocabulary that is next to nothing.
    assert_eq!(wide(33).0, None);
}

#[test]
fn a_step_here_is_predicted_if_this_machine_was_measured_and_has_enough_cores() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let local = LocalProfile::at(&folder.path().join("profile.toml"));
    let model = Model::load(TEXT).expect("a model");
    let plan = |dp: u32, precision| {
        let numbers =
            Uniform { mesh: Mesh::of(dp, 1, 1), global_batch: 8, precision, ..Uniform::default() };
        uniform_plan(&model, &numbers, "local").expect("a plan")
    };
    let predicted = |dp, precision| {
        let found = predict_here(&model, &plan(dp, precision), &local).expect("it can be read");
        found.map(|it| it.summary.step_seconds)
    };
    assert_eq!(predicted(1, Precision::FP32), Err(Unpredicted::Here));
    let mut profile = Profile::preset("gtx-1080-ti").expect("a preset");
    profile.node.devices = 2;
    let text = profile.to_toml().expect("TOML");
    std::fs::write(local.path().unwrap(), text).expect("written");
    for dp in [1, 2] {
        let groups = vec![NodeGroup { profile: profile.clone(), nodes: 1, devices_per_node: dp }];
        let cluster = Cluster::new(groups).expect("a cluster");
        let right = simulate(&model, &plan(dp, Precision::FP32), &cluster, false).expect("a step");
        assert_eq!(predicted(dp, Precision::FP32), Ok(right.summary.step_seconds));
    }
    let two_cores = Unpredicted::Ranks { ranks: 4, there: 2, of: "core" };
    assert_eq!(predicted(4, Precision::FP32), Err(two_cores));
    let format = Unpredicted::Format(Number::Bf16);
    assert_eq!(predicted(1, Precision::MIXED), Err(format));
    std::fs::write(local.path().unwrap(), "speed = 3").expect("written");
    predict_here(&model, &plan(1, Precision::FP32), &local).expect_err("no profile");
}

#[test]
fn a_plan_file_that_does_not_fit_its_model_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("plan.toml");
    let model = Model::load(TEXT).expect("a model");
    let numbers = Uniform { global_batch: 8, ..Uniform::default() };
    let plan = uniform_plan(&model, &numbers, "h100-80g:1").expect("a plan");
    let text = plan.to_toml();
    std::fs::write(&path, &text).expect("written");
    let (read, of) = read_plan_and_model(&path).expect("it fits");
    assert_eq!((read, of.text()), (plan, model.text()));
    assert!(text.contains("blocks = [0, 6]"), "{text}");
    std::fs::write(&path, text.replace("blocks = [0, 6]", "blocks = [0, 5]")).expect("written");
    // Only with a model it is wrong.
    read_plan(&path).expect("it is a plan");
    let error = read_plan_and_model(&path).expect_err("a block is missing");
    let stage = text.lines().position(|it| it == "[[pipeline.stage]]").expect("there is one");
    let line = stage + 1;
    let message = error.to_string();
    assert!(message.contains(&format!("plan.toml:{line}: ")), "{message}");
}
