//! Plans that are found for a project, which it takes.

use shardloom::exchange::Project;
use shardloom::plan::{Precision, Recompute};
use shardloom::{
    Error, LocalProfile, Model, Planned, export_plan, find_plan, find_plan_for, load_cluster,
    usual_request,
};

fn model(text: &str) -> Model {
    Model::load(text).expect("a model")
}

fn planned(
    model: &Model,
    cluster: &str,
    batch: usize,
    project: Option<Project>,
) -> Result<Planned, Error> {
    let local = LocalProfile::at("none".as_ref());
    let machines = load_cluster(cluster, &local, &mut |_, _| {}).expect("a cluster");
    let request = usual_request(model, &machines, cluster, batch);
    match project {
        Some(project) => find_plan_for(model, &machines, &request, project),
        None => find_plan(model, &machines, &request),
    }
}

/// Exports the plan as anybody would, from its file.
fn exported(found: &Planned, project: Project) -> Result<(), Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.toml");
    std::fs::write(&file, found.outcome.plan.to_toml()).expect("it can be written");
    export_plan(&file, project).map(|_| ())
}

/// The models, machines and batches that every project gets a plan for.
const CASES: [(&str, &str, usize); 8] = [
    // One device, one machine, several, some left out.
    ("llama:layers=8,hidden=512,heads=8,kv_heads=4,ffn=1408,seq=512,vocab=32000", "h100-80g:1", 8),
    (
        "llama:layers=8,hidden=512,heads=8,kv_heads=4,ffn=1408,seq=512,vocab=32000",
        "h100-80g:1x8",
        64,
    ),
    (
        "llama:layers=8,hidden=512,heads=8,kv_heads=4,ffn=1408,seq=512,vocab=32000",
        "a100-80g:2x8",
        12,
    ),
    // Which has to be split or sharded, over machines too.
    ("llama-3-8b", "h100-80g:1x8", 64),
    ("llama-3-8b", "h100-80g:4x8", 128),
    ("llama-2-13b", "a100-80g:2x8", 64),
    // A vocabulary that no even width divides.
    ("llama:layers=24,hidden=2048,heads=16,ffn=5504,seq=1024,vocab=32001", "h100-80g:2x8", 64),
    // fp16 is the usual format of these.
    (
        "llama:layers=8,hidden=512,heads=8,kv_heads=4,ffn=1408,seq=512,vocab=32000",
        "v100-32g:1x8",
        32,
    ),
];

fn every_plan_can_be_taken_to(project: Project) {
    for (text, cluster, batch) in CASES {
        let model = model(text);
        // Of what these projects do not write, Megatron-LM's scaling of rotary frequencies is another.
        let found = planned(&model, cluster, batch, Some(project))
            .unwrap_or_else(|error| panic!("{text} on {cluster} for {project}: {error}"));
        exported(&found, project).unwrap_or_else(|error| {
            panic!("{text} on {cluster}: {error}\n{}", found.outcome.plan.to_toml())
        });
        let outcome = &found.outcome;
        assert!(!outcome.plan.post_validation && outcome.plan.recompute != Recompute::Full);
        assert!(
            outcome
                .not_searched
                .iter()
                .any(|it| *it == format!("plans that {project} does not run")),
            "{:?}",
            outcome.not_searched
        );
        // None of the plans that people use is faster, if it can be taken there.
        for baseline in outcome.baselines.iter().filter(|it| it.fits) {
            let (plan, seconds) =
                (baseline.plan.clone().expect("it fits"), baseline.step_seconds());
            let mut other = found.clone();
            other.outcome.plan = plan;
            let is_slower = seconds.expect("it was simulated") >= outcome.judgement.step_seconds;
            let alike = other.outcome.plan.precision == outcome.plan.precision;
            assert!(is_slower || !alike || exported(&other, project).is_err(), "{}", baseline.name);
        }
    }
}

#[test]
fn every_plan_for_megatron_can_be_taken_there() {
    every_plan_can_be_taken_to(Project::Megatron);
}

#[test]
fn every_plan_for_deepspeed_can_be_taken_there() {
    every_plan_can_be_taken_to(Project::DeepSpeed);
}

#[test]
fn every_plan_for_torchtitan_can_be_taken_there() {
    every_plan_can_be_taken_to(Project::Torchtitan);
}

#[test]
fn every_plan_for_nanotron_can_be_taken_there() {
    every_plan_can_be_taken_to(Project::Nanotron);
}

#[test]
fn every_plan_for_accelerate_can_be_taken_there() {
    every_plan_can_be_taken_to(Project::Accelerate);
}
