//! `--stack`: under which software a step would run.

use crate::invocation::Place;

const MODEL: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=512 --cluster a100-80g:8";

#[test]
fn a_stack_takes_its_own_time_and_is_named_with_what_it_was_calibrated_on() {
    let place = Place::new();
    let simulated = |stack: &str| {
        let outcome =
            place.run(&format!("simulate {MODEL} --global-batch 8 --recompute full{stack} --json"));
        let answer = outcome.succeeds().object();
        (answer["step_seconds"].as_f64().expect("a time"), answer["stack"].clone())
    };
    let (_, usual) = simulated("");
    assert_eq!(usual["name"], "megatron");
    let (own, name) = simulated(" --stack shardloom");
    assert_eq!((&name["name"], name["calibrated_on"].is_null()), (&"shardloom".into(), true));
    let (megatron, name) = simulated(" --stack megatron-2021");
    assert_eq!(name["name"], "megatron-2021");
    assert!(name["calibrated_on"].as_str().is_some_and(|it| it.contains("vTrain")), "{name}");
    // Launching alone takes far longer than so small a model does.
    assert!(megatron > 5.0 * own, "{megatron} after {own}");
}

#[test]
fn what_a_stack_usually_does_is_in_plans_made_for_it() {
    let place = Place::new();
    let program = |stack: &str| {
        place.run(&format!("program {MODEL} --tp 2 --recompute full{stack}")).succeeds().stdout
    };
    let sums = |text: String| text.matches("all-reduce").count();
    assert!(sums(program(" --stack megatron-2021")) > sums(program(" --stack shardloom")));
    // All gradients of replicas at once; 25 MB of them at a time are several sums.
    let reductions = |stack: &str| {
        let model = "gpt:layers=4,hidden=1024,heads=4,seq=128,vocab=512 --cluster a100-80g:2";
        sums(place.run(&format!("program {model} --dp 2{stack}")).succeeds().stdout)
    };
    assert!(reductions(" --stack megatron-2021") < reductions(""));
    let outcome = place
        .run(&format!("plan {MODEL} --global-batch 16 --stack nanotron -o plan.toml"))
        .succeeds();
    for said in ["Software: nanotron, calibrated on", "simulate it with --stack nanotron"] {
        outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    }
    // The device has kernels of fused attention, and the software takes them.
    let plan = shardloom::read_plan(&place.path("plan.toml")).expect("a plan");
    assert_eq!(plan.attention, shardloom::plan::AttentionKind::Fused);
    // So in plans made of options, unless these say otherwise.
    let made = |options: &str| {
        let command = format!("program {MODEL} --stack nanotron{options}");
        place.run(&command).succeeds().stdout
    };
    assert!(made("").contains("fused-attention") && !made("").contains("attention-probs"));
    let unfused = made(" --attention unfused");
    assert!(unfused.contains("attention-probs") && !unfused.contains("fused-attention"));
}

/// A stack with residuals of steps on one node only.
const OF_ONE_NODE: &str = r#"
name = "mine"
source = "made up"
[[residuals]]
of = "one-node"
devices = ["a100-80g"]
rows = 17
low = 0.5
high = 2.25
"#;

#[test]
fn predicted_times_come_with_the_interval_of_their_stacks_residuals() {
    let place = Place::new();
    place.write("mine.toml", OF_ONE_NODE);
    let model = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=512";
    let run = |command: &str| place.run(command).succeeds();
    let plan = |cluster: &str, output: &str| {
        format!("plan {model} --global-batch 32 --cluster {cluster} -o {output} --force")
    };
    let one = plan("a100-80g:2", "one.toml") + " --stack mine.toml";
    let predicted = run(&format!("{one} --json")).object()["predicted"].clone();
    let simulated = run("simulate one.toml --stack mine.toml --json").object();
    let explained = run("explain one.toml --stack mine.toml --json").object();
    for answer in [&predicted, &simulated, &explained] {
        let step = answer["step_seconds"].as_f64().expect("a time");
        let right = serde_json::json!([0.5 * step, 2.25 * step]);
        assert_eq!(answer["step_seconds_interval"], right, "{answer}");
    }
    let step = predicted["step_seconds"].as_f64().expect("a time");
    let [step, low, high] =
        [1.0, 0.5, 2.25].map(|it| shardloom::program::quantity::seconds(it * step));
    let within =
        format!("{step} ({low} to {high} by four of five of 17 published steps on one node)");
    for (command, said) in [
        (one.as_str(), format!("\nStep time: {within}\nSoftware: mine")),
        ("simulate one.toml --stack mine.toml", format!("\nSteady step: {within}\n")),
        ("explain one.toml --stack mine.toml", format!("\nA step takes {within}.\n")),
    ] {
        let outcome = run(command);
        outcome.check(outcome.stdout.contains(&said), &format!("no {said:?}"));
    }
    // Nothing is known of several nodes, nor of Shardloom itself.
    let several = plan("a100-80g:2x1", "two.toml") + " --method megatron-lm --stack mine.toml";
    for command in [
        several.as_str(),
        "simulate two.toml --stack mine.toml",
        "explain two.toml --stack mine.toml",
        "simulate one.toml",
    ] {
        let outcome = run(&format!("{command} --json"));
        let answer = outcome.object();
        let predicted = answer.get("predicted").unwrap_or(&answer);
        let known = predicted.get("step_seconds_interval");
        outcome.check(known.is_some_and(|it| it.is_null()), "not null");
        let outcome = run(command);
        outcome.check(!outcome.stdout.contains("four of five"), "an interval of nothing");
    }
}

#[test]
fn a_stack_of_ones_own_is_a_file_and_an_unknown_one_is_refused() {
    let place = Place::new();
    place.write("mine.toml", "name = \"mine\"\nsource = \"made up\"\n");
    let outcome = place.run(&format!("simulate {MODEL} --stack mine.toml")).succeeds();
    let said = "Software: mine, not calibrated";
    outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    let outcome = place.run(&format!("simulate {MODEL} --stack megatrn"));
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stderr.contains("`megatron`"), "not the nearest");
    place.write("mine.toml", "name = \"mine\"\n");
    let outcome = place.run(&format!("simulate {MODEL} --stack mine.toml"));
    outcome.check(outcome.stderr.contains("the key `source` is missing"), "not what is missing");
}

#[test]
fn products_in_8_bits_are_planned_where_devices_have_them_and_are_not_trained() {
    let place = Place::new();
    let model = "gpt:layers=2,hidden=4096,heads=32,seq=1024,vocab=8192";
    let seconds = |options: &str| {
        let command =
            format!("plan {model} --cluster h100-80g:1 --global-batch 4 {options} --json");
        let answer = place.run(&command).succeeds().object();
        answer["predicted"]["step_seconds"].as_f64().expect("a time")
    };
    let (wide, narrow) = (seconds("-o wide.toml"), seconds("--fp8 -o narrow.toml"));
    assert!(narrow < 0.9 * wide, "{narrow} after {wide}");
    let plan = shardloom::read_plan(&place.path("narrow.toml")).expect("a plan");
    assert!(plan.precision.fp8_products);
    place
        .run(&format!("plan {model} --cluster a100-80g:1 --global-batch 4 --fp8 --json"))
        .refuses("cluster", "fp8");
    place
        .run(&format!(
            "plan {model} --cluster h100-80g:1 --global-batch 4 --precision fp32 --fp8 --json"
        ))
        .refuses("usage", "leave out --precision fp32");
    place.write("text.txt", "a text ".repeat(4000));
    place
        .run("train narrow.toml --data text.txt --steps 1 --json")
        .refuses("plan", "precision.fp8_products");
}

#[test]
fn help_names_every_stack() {
    let place = Place::new();
    let said = place.run("plan --help").succeeds().stdout;
    let said: Vec<&str> = said.split(|it: char| !it.is_alphanumeric() && it != '-').collect();
    for name in shardloom::cluster::Stack::preset_names() {
        assert!(said.contains(&name), "{name}");
    }
}
