//! Plans that are found for a project, which it takes.

use shardloom::exchange::{Exported, Project};
use shardloom::plan::{Mesh, Recompute, ScheduleKind, Uniform};
use shardloom::{
    Error, LocalProfile, Model, Plan, Planned, export_plan, find_plan, find_plan_for, load_cluster,
    uniform_plan, usual_request,
};

fn model(text: &str) -> Model {
    Model::load(text).expect("a model")
}

fn planned(
    model: &Model,
    cluster: &str,
    batch: usize,
    project: Option<Project>,
) -> Result<Planned, Box<Error>> {
    let local = LocalProfile::at("none".as_ref());
    let machines = load_cluster(cluster, &local, &mut |_, _| {}).expect("a cluster");
    let request = usual_request(model, &machines, cluster, batch);
    match project {
        Some(project) => find_plan_for(model, &machines, &request, project).map_err(Box::new),
        None => find_plan(model, &machines, &request).map_err(Box::new),
    }
}

/// Exports the plan as anybody would, from its file.
fn exported(plan: &Plan, project: Project) -> Result<Exported, Box<Error>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.toml");
    std::fs::write(&file, plan.to_toml()).expect("it can be written");
    export_plan(&file, project).map_err(Box::new)
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
        let found = planned(&model, cluster, batch, Some(project))
            .unwrap_or_else(|error| panic!("{text} on {cluster} for {project}: {error}"));
        exported(&found.outcome.plan, project).unwrap_or_else(|error| {
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
            let is_slower = seconds.expect("it was simulated") >= outcome.judgement.step_seconds;
            let alike = plan.precision == outcome.plan.precision;
            assert!(is_slower || !alike || exported(&plan, project).is_err(), "{}", baseline.name);
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

/// Restricted to what a project runs, a search is as good as one that is not, where that finds what the project runs.
#[test]
fn a_project_that_runs_the_fastest_plan_of_all_gets_one_as_fast() {
    let mut taken = 0;
    for (text, cluster, batch) in [CASES[1], CASES[3], CASES[5]] {
        let model = model(text);
        let free = planned(&model, cluster, batch, None).expect("a plan");
        let (plan, seconds) = (&free.outcome.plan, free.outcome.judgement.step_seconds);
        for project in Project::ALL {
            let found = planned(&model, cluster, batch, Some(project)).expect("a plan");
            let found = found.outcome.judgement.step_seconds;
            assert!(found >= seconds * 0.999, "{text} for {project}: {found} of {seconds} s");
            // What is run has buckets of another size where the project cannot be told the plan's.
            let says_sizes =
                |it: &Exported| it.unsaid.iter().all(|it| it.key != "sync.bucket_bytes");
            if !plan.post_validation && exported(plan, project).is_ok_and(|it| says_sizes(&it)) {
                taken += 1;
                assert!(found <= seconds * 1.001, "{text} for {project}: {found} of {seconds} s");
            }
        }
    }
    assert!(taken > 0, "no project runs any of them");
}

#[test]
fn a_refusal_names_what_finds_another_plan_if_there_is_one() {
    let text = CASES[1].0;
    let model = model(text);
    let of = |schedule, dp| {
        let numbers = Uniform {
            pp: 2,
            mesh: Mesh::of(dp, 1, 1),
            global_batch: 16,
            microbatches: 4,
            schedule,
            ..Uniform::default()
        };
        uniform_plan(&model, &numbers, "h100-80g:1x8").expect("a plan")
    };
    let refused = |plan: &Plan, project| exported(plan, project).expect_err("it is refused");
    let dualpipe = of(ScheduleKind::DualPipe, 2);
    for project in Project::ALL {
        let error = refused(&dualpipe, project);
        assert!(matches!(*error, Error::Unexportable { .. }), "{error}");
        let command = format!(
            "--cluster h100-80g:1x8 --global-batch 16 --precision fp32 --for {}",
            project.name()
        );
        assert!(error.to_string().ends_with(&command), "{error}");
    }
    // Some devices of one machine and all of another are launched by none.
    let apart = uniform_plan(
        &model,
        &Uniform { mesh: Mesh::of(6, 1, 1), global_batch: 6, ..Uniform::default() },
        "h100-80g:2x4",
    );
    let error = refused(&apart.expect("a plan"), Project::Megatron).to_string();
    assert!(error.contains("as many devices take part; the fastest plan"), "{error}");
    // No other plan of this model would do.
    let gpt = Model::load("gpt:layers=4,hidden=64,heads=4,seq=32,vocab=128").expect("a model");
    let plan = uniform_plan(&gpt, &Uniform::default(), "h100-80g:1").expect("a plan");
    assert!(matches!(*refused(&plan, Project::Torchtitan), Error::Exchange(_)));
    let none = planned(&gpt, "h100-80g:1x8", 8, Some(Project::Torchtitan)).expect_err("none");
    assert!(none.to_string().contains("has no word for model"), "{none}");
}
