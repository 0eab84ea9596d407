//! `export --to` and `import`: a plan goes elsewhere and comes back.

use crate::invocation::{Outcome, Place};
use shardloom::plan::Recompute;
use shardloom::read_plan;

const PLAN: &str =
    "plan llama-3-8b --cluster h100-80g:2x8 --method megatron-lm --global-batch 64 -o plan.toml";

#[test]
fn a_plan_goes_to_megatron_and_comes_back_and_is_simulated() {
    let place = Place::new();
    place.run(PLAN).succeeds();
    let outcome = place.run("export plan.toml --to megatron -o there/megatron --json").succeeds();
    let answer = outcome.object();
    assert_eq!(answer["files"][0], "there/megatron/train.sh");
    assert_eq!(answer["unsaid"][0]["key"], "sync.algorithm");
    let back = "import there/megatron/train.sh --cluster h100-80g:2x8 -o back.toml";
    place.run(back).succeeds();
    let [mut plan, back] =
        ["plan.toml", "back.toml"].map(|name| read_plan(&place.path(name)).expect("a plan"));
    // The model is known by its sizes, and full recomputation is of whole layers there.
    plan.model.clone_from(&back.model);
    if plan.recompute == Recompute::Full {
        plan.recompute = Recompute::Block;
    }
    assert_eq!(plan.to_toml(), back.to_toml());
    place.run("simulate back.toml --json").succeeds();
}

#[test]
fn a_plan_is_found_for_torchtitan_and_its_python_comes_back_and_is_simulated() {
    let place = Place::new();
    place
        .run("plan llama-3-8b --cluster h100-80g:2x8 --global-batch 64 --for torchtitan -o plan.toml")
        .succeeds();
    let outcome = place.run("export plan.toml --to torchtitan -o there --json").succeeds();
    let files = outcome.object()["files"].clone();
    let table = files.as_array().expect("files").iter().filter_map(|it| it.as_str());
    let table = table.filter(|it| it.ends_with("schedule.csv")).collect::<String>();
    let back =
        format!("import there/shardloom_plan.py {table} --cluster h100-80g:2x8 -o back.toml");
    place.run(back.replace("  ", " ").as_str()).succeeds();
    let [mut plan, back] =
        ["plan.toml", "back.toml"].map(|name| read_plan(&place.path(name)).expect("a plan"));
    // What it does by its own lights: it names the model by its sizes, buckets are layers, and the communication library
    // chooses how collectives are carried out.
    plan.model.clone_from(&back.model);
    (plan.sync.algorithm, plan.sync.bucket_bytes) = (back.sync.algorithm, back.sync.bucket_bytes);
    plan.keeps_gathered = back.keeps_gathered;
    plan.pass_times = back.pass_times;
    assert_eq!(plan.to_toml(), back.to_toml());
    place.run("simulate back.toml --json").succeeds();

    place
        .run("plan gpt-2 --cluster h100-80g:8 --global-batch 64 --for torchtitan --json")
        .refuses("exchange", "torchtitan has no word for model = gpt");
    place
        .run("plan gpt-2 --cluster h100-80g:8 --global-batch 64 --for megatron --method gpipe --json")
        .refuses("usage", "--method");
}

#[test]
fn arguments_after_a_dash_are_a_configuration_too() {
    let place = Place::new();
    let arguments = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 128 \
                     --micro-batch-size 2 --tensor-model-parallel-size 2";
    let outcome =
        place.run(&format!("import --cluster h100-80g:4 --json -- {arguments}")).succeeds();
    let answer = outcome.object();
    let plan = answer["plan"].as_str().expect("a plan");
    outcome.check(plan.contains("global_batch = 4"), "another batch");
    assert_eq!(answer["from"], "megatron");
}

#[test]
fn what_cannot_be_exchanged_is_refused_before_anything_is_written() {
    let place = Place::new();
    place.run(PLAN).succeeds();
    place
        .run("export plan.toml --to torchtitan -o there --json")
        .refuses("exchange", "torchtitan has no word for sync.zero = 1");
    place
        .run("export plan.toml --to torchtitan -o there --json")
        .refuses("exchange", "' --cluster h100-80g:2x8 --global-batch 64 --for torchtitan");
    assert!(!place.path("there").exists());
    place.run("export plan.toml --json").refuses("usage", "--to");
    place.run("export plan.toml --to megatron --json").refuses("usage", "--output");
    place.run("export plan.toml --to nobody -o there --json").refuses("usage", "torchtitan");
    place.run("export plan.toml --to megatron -o there").succeeds();
    place.run("export plan.toml --to megatron -o there --json").refuses("file", "--force");
    place.run("export plan.toml --to megatron -o there --force").succeeds();
    place.run("import --cluster h100-80g:8 --json").refuses("usage", "after --");
    place.run("import missing.sh --cluster h100-80g:8 --json").refuses("file", "missing.sh");
    place
        .run("import there/train.sh --cluster h100-80g:8 --json")
        .refuses("exchange", "has 8 devices");
}

/// A plan that was changed by hand, or made for other machines.
#[test]
fn a_plan_that_does_not_fit_is_said_not_to_where_it_is_exported_and_explained() {
    let place = Place::new();
    let plan =
        "plan llama-3-8b --cluster h100-80g:8 --global-batch 64 --dp 8 --zero 3 -o plan.toml";
    place.run(plan).succeeds();
    let run = |command: &str| place.run(command).succeeds();
    let export = "export plan.toml --to megatron --force -o there";
    let of_export = |outcome: &Outcome| outcome.object()["fit"].clone();
    let fitting = run(export);
    fitting.check(!fitting.stdout.contains("fit:"), "it is said not to fit");
    let fitting = run(&format!("{export} --json"));
    fitting.check(of_export(&fitting) != "exceeds", "it does not fit");
    let text = std::fs::read_to_string(place.path("plan.toml")).expect("a plan");
    place.write("plan.toml", text.replace("zero = 3", "zero = 0"));
    for command in [export, "explain plan.toml"] {
        let outcome = run(command);
        let said = outcome.stdout.lines().take(2).any(|line| line.starts_with("Does not fit: "));
        outcome.check(said, "it is not said before all else");
        let outcome = run(&format!("{command} --json"));
        outcome.check(of_export(&outcome) == "exceeds", "it fits");
    }
}

/// Of the four stages some fit and one does not, or all do.
#[test]
fn a_plan_fits_as_well_as_the_worst_of_its_stages_wherever_that_is_said() {
    let place = Place::new();
    let model = "gpt:layers=12,hidden=3584,heads=32,seq=2048,vocab=51200";
    let sizes =
        "--pp 4 --dp 1 --tp 1 --global-batch 16 --micro-batch 1 --recompute none --schedule 1f1b";
    let formats = "--precision fp16 --attention unfused";
    place
        .run(&format!("plan {model} --cluster a100-80g:4 {sizes} {formats} -o found.toml"))
        .succeeds();
    let text = std::fs::read_to_string(place.path("found.toml")).expect("a plan");
    let mut met = vec![];
    for cluster in ["a100-80g", "v100-32g", "v100-16g"] {
        place.write("plan.toml", text.replace("\"a100-80g:4\"", &format!("\"{cluster}:4\"")));
        let run = |command: &str| place.run(&format!("{command} --json")).succeeds();
        let simulated = run("simulate plan.toml").object();
        let stages = simulated["memory"].as_array().expect("ranks").iter();
        // Close to the limit is what leaves less than a twentieth.
        let verdict = |stage: &serde_json::Value| {
            let number = |key: &str| stage[key].as_f64().expect("a size");
            match number("peak_bytes") / number("memory_bytes") {
                share if share > 1.0 => "exceeds",
                share if share > 0.95 => "close",
                _ => "fits",
            }
        };
        let verdicts: Vec<&str> = stages.map(verdict).collect();
        let worst = ["exceeds", "close", "fits"].into_iter().find(|it| verdicts.contains(it));
        let worst = worst.expect("four stages");
        let export = "export plan.toml --to megatron --force -o there";
        for command in ["simulate plan.toml", "explain plan.toml", export] {
            let outcome = run(command);
            let fit = &outcome.object()["fit"];
            outcome.check(fit == worst, &format!("{fit}, where stages are {verdicts:?}"));
        }
        met.push((worst, verdicts.iter().all(|it| *it == worst)));
    }
    assert!(met.contains(&("exceeds", false)) && met.contains(&("fits", true)), "{met:?}");
}

#[test]
fn a_plan_for_a_project_is_predicted_under_its_software_unless_another_is_asked_for() {
    let place = Place::new();
    let plan = "plan llama-3-8b --cluster h100-80g:1x8 --global-batch 64 --for";
    for (project, stack) in [
        ("nanotron", "nanotron"),
        ("torchtitan", "fsdp-eager"),
        ("accelerate", "pytorch"),
        ("megatron", "megatron"),
        ("nanotron --stack megatron", "megatron"),
    ] {
        let outcome = place.run(&format!("{plan} {project} --json")).succeeds();
        outcome.check(outcome.object()["stack"]["name"] == stack, &format!("not under {stack}"));
    }
    let written = place.run(&format!("{plan} nanotron -o plan.toml")).succeeds();
    written.check(written.stdout.contains("simulate it with --stack nanotron"), "not said");
}

#[test]
fn a_project_says_why_it_runs_no_plan_as_asked_for() {
    let place = Place::new();
    let plan = "plan gpt-2-medium --cluster h100-80g:8 --global-batch 64 --json --for";
    let outcome = place.run(&format!("{plan} deepspeed --pp 2"));
    outcome.refuses("search", "DeepSpeed runs no plan of gpt-2-medium on h100-80g:8 with pp 2: ");
    let outcome = place.run(&format!("{plan} deepspeed --pp 2"));
    outcome.check(!outcome.stderr.contains("widths divide"), "nothing of DeepSpeed");
}
