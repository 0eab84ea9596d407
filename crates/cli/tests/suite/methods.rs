//! Published systems by name.

use crate::invocation::Place;

#[test]
fn every_method_says_what_it_is_and_what_can_be_done_with_it() {
    let place = Place::new();
    let outcome = place.run("methods --json").succeeds();
    let answer = outcome.object();
    let rows = answer.as_array().cloned().unwrap_or_default();
    outcome.check(rows.len() == shardloom::methods::all().len(), "not all methods");
    for row in &rows {
        for key in ["name", "family", "paper"] {
            outcome.check(row[key].is_string(), &format!("no text {key} in {row}"));
        }
        for key in ["plan", "simulate", "train"] {
            outcome.check(row[key] == true, &format!("not {key} in {row}"));
        }
    }
    let text = place.run("methods").succeeds();
    for row in &rows {
        let name = row["name"].as_str().unwrap_or_default();
        text.check(text.stdout.contains(name), &format!("{name} is missing"));
    }
}

/// Each as the library has it, in either form of the list.
#[test]
fn methods_are_listed_in_the_words_of_the_registry() {
    let place = Place::new();
    let answer = place.run("methods --json").succeeds().object();
    let rows = answer.as_array().expect("rows");
    let text = place.run("methods").succeeds();
    for (row, method) in rows.iter().zip(shardloom::methods::all()) {
        for (key, expected) in [
            ("name", method.name),
            ("family", method.family.name()),
            ("paper", method.paper),
            ("about", method.about),
        ] {
            assert_eq!(row[key], expected, "{key} of {}", method.name);
        }
        let entry = format!("\n{}: {}\n  {}\n", method.name, method.about, method.paper);
        text.check(text.stdout.contains(&entry), &entry);
        let is_row = |line: &str| {
            line.strip_prefix(method.name).is_some_and(|it| it.trim() == method.family.name())
        };
        text.check(text.stdout.lines().any(is_row), "it is not in the table");
    }
}

#[test]
fn a_plan_by_a_method_is_in_its_words_and_simulates_as_predicted() {
    let place = Place::new();
    let arguments = "plan gpt:layers=6,hidden=128,heads=4,vocab=512 --seq 64 --cluster h100-80g:4 \
                     --global-batch 16";
    let outcome = place.run(&format!("{arguments} --method zb-v -o p.toml --json")).succeeds();
    let answer = outcome.object();
    outcome.check(answer["plan"]["schedule"] == "zb-v", "another schedule");
    let search = &answer["search"];
    outcome.check(search["method"] == "zb-v", "another method");
    let count = |key: &str| search[key].as_u64().unwrap_or(0);
    // One, two, four and eight times the depth are 4 micro-batches for 2 stages with 8 samples for each of
    // 2 replicas; of 4 stages with 16 they are 3. Tensor parallelism of 2 adds 4 for 2 stages.
    outcome.check(count("space") == 10, "another space");
    outcome.check(count("evaluated") == 10 && count("bounded_away") == 0, "not all are evaluated");
    outcome.check(count("simulated") == 10, "not all are simulated");
    outcome.check(answer["baselines"].as_array().map_or(0, Vec::len) == 3, "no baselines");
    let simulated = place.run("simulate p.toml --json").succeeds().object();
    let predicted = &answer["predicted"]["step_seconds"];
    outcome.check(&simulated["step_seconds"] == predicted, "simulated otherwise");
}

#[test]
fn trials_go_into_a_file_and_a_plan_by_them_simulates_as_predicted() {
    let place = Place::new();
    let arguments = "plan gpt:layers=1,hidden=64,heads=4,vocab=512 --seq 32 --cluster h100-80g:4 --global-batch 12";
    let trials = format!("{arguments} --method autosync --trials 12 --trials-file trials.json");
    let outcome = place.run(&format!("{trials} -o p.toml --json")).succeeds();
    let answer = outcome.object();
    // Beside them the plans of four methods, one of which has the table on servers.
    outcome.check(answer["search"]["simulated"] == 16, "another number of plans");
    let simulated = place.run("simulate p.toml --json").succeeds().object();
    let predicted = &answer["predicted"]["step_seconds"];
    outcome.check(&simulated["step_seconds"] == predicted, "simulated otherwise");
    let again = place.run(&format!("{trials} --trials-seed 7 --json")).succeeds();
    let answer = again.object();
    again.check(answer["notes"].to_string().contains("12 that were known"), "nothing was known");
    let slower = answer["predicted"]["step_seconds"].as_f64() > predicted.as_f64();
    again.check(!slower, "slower than what was known");
    place.run(&format!("{arguments} --trials 5 --json")).refuses("usage", "--method");
    place
        .run(&format!("{arguments} --method gpipe --trials 5 --json"))
        .refuses("method", "trials = 5 of them");
    std::fs::write(place.path("trials.json"), "{}").expect("written");
    place.run(&format!("{trials} --json")).refuses("method", "trials.json");
}

#[test]
fn trials_are_trained_with_where_they_have_data() {
    let place = Place::new();
    let model = "plan gpt:layers=1,hidden=16,heads=2,vocab=256 --seq 8 --global-batch 4";
    let trials = "--method autosync --trials 5 --trials-steps 2 --trials-data text.txt";
    // What is wrong is said before this machine is measured.
    let elsewhere = place.run(&format!("{model} --cluster h100-80g:2 {trials} --json"));
    elsewhere.refuses("usage", "not on h100-80g:2");
    let missing = trials.replace("text.txt", "missing.txt");
    place.run(&format!("{model} --cluster local {missing} --json")).refuses("file", "missing.txt");
    let without = "--method autosync --trials-steps 2";
    place
        .run(&format!("{model} --cluster local {without} --json"))
        .refuses("usage", "--trials-data");

    place.pretend_measured();
    let local = format!("{model} --cluster local:2 {trials}");
    place
        .run(&format!("{} --json", local.replace("autosync --trials 5", "gpipe")))
        .refuses("method", "trials = measured");
    let outcome =
        place.run(&format!("{local} --trials-file trials.json -o p.toml --json")).succeeds();
    let answer = outcome.object();
    let measured = answer["search"]["measured_step_seconds"].as_f64();
    outcome.check(measured.is_some_and(|it| it > 0.0), "nothing was measured");
    let tried: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("trials.json")).expect("written"))
            .expect("JSON");
    let seconds = |it: &serde_json::Value| it["seconds"].as_f64().expect("a time");
    let done = tried["trials"][0]["done"].as_array().expect("a list").iter().map(seconds);
    let fastest = done.fold(f64::INFINITY, f64::min);
    outcome.check(measured <= Some(fastest), "not the fastest");
    let simulated = place.run("simulate p.toml --json").succeeds().object();
    let predicted = &answer["predicted"]["step_seconds"];
    outcome.check(&simulated["step_seconds"] == predicted, "simulated otherwise");
    let said = place.run(&local).succeeds().stdout;
    assert!(said.contains("Measured: a step took"), "{said}");
}

#[test]
fn without_flush_a_plan_simulates_as_predicted_too() {
    let place = Place::new();
    let arguments = "plan gpt:layers=6,hidden=128,heads=4,vocab=512 --seq 64 --cluster h100-80g:4 \
                     --global-batch 16 --method pipemare -o p.toml --json";
    let outcome = place.run(arguments).succeeds();
    let answer = outcome.object();
    let notes = answer["notes"].to_string();
    outcome.check(notes.contains("not clipped"), "it does not say that gradients are not clipped");
    let simulated = place.run("simulate p.toml --json").succeeds().object();
    let predicted = &answer["predicted"]["step_seconds"];
    outcome.check(&simulated["step_seconds"] == predicted, "simulated otherwise");
}

#[test]
fn what_a_method_cannot_plan_is_refused() {
    let place = Place::new();
    let plan = |rest: &str| {
        let model = "gpt:layers=6,hidden=128,heads=4,vocab=512";
        place.run(&format!("plan {model} --seq 64 --global-batch 16 --json {rest}"))
    };
    plan("--cluster h100-80g:4 --method gpip").refuses("method", "did you mean \"gpipe\"?");
    plan("--cluster h100-80g:3 --method dualpipe").refuses("method", "even");
    plan("--cluster h100-80g:1 --method zb-h1").refuses("method", "at least 2");
}
