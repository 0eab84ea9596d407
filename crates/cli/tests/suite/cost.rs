//! What plans cost, and what the numbers of their devices rest on.

use crate::invocation::Place;
use serde_json::Value;
use shardloom::cluster::Profile;

const MODEL: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=512";

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

#[test]
fn a_plan_costs_its_devices_for_as_long_as_it_takes() {
    let place = Place::new();
    let arguments = format!("plan {MODEL} --cluster h100-80g:8 --global-batch 64 -o p.toml");
    let outcome = place.run(&format!("{arguments} --tokens 1e9 --json")).succeeds();
    let answer = outcome.object();
    let devices = shardloom::read_plan(&place.path("p.toml")).expect("a plan").device_count();
    let cost = &answer["cost"];
    let per_hour = devices as f64 * 12.29;
    let step = per_hour / 3600.0 * number(&answer["predicted"]["step_seconds"]);
    for (key, expected) in [
        ("per_hour", per_hour),
        ("per_step", step),
        ("per_sample", step / 64.0),
        ("per_token", step / 64.0 / 128.0),
    ] {
        let close = (number(&cost[key]) / expected - 1.0).abs() < 1e-9;
        outcome.check(close, &format!("{key} is not {expected} in {cost}"));
    }
    outcome.check(cost["to_buy"].is_null(), "a price to buy");
    let budget = number(&answer["budget"]["price"]);
    outcome
        .check((budget / (1e9 * number(&cost["per_token"])) - 1.0).abs() < 1e-9, "another budget");
    let device = &answer["devices"][0];
    outcome.check(device["name"] == "h100-80g", "another device");

    let outcome = place.run("simulate p.toml --json").succeeds();
    outcome.check(outcome.object()["cost"] == *cost, "another cost when simulated");
    let outcome = place.run("simulate p.toml").succeeds();
    let hour = format!("Cost: {:.1} US dollars an hour, ", per_hour);
    outcome.check(outcome.stdout.contains(&hour), &format!("no {hour:?}"));
    outcome.check(outcome.stdout.contains(" for 1,000 steps, "), "no price of steps");
    outcome.check(outcome.stdout.contains(" for a million tokens\n"), "no price of tokens");
}

#[test]
fn a_price_is_said_only_where_all_devices_have_one() {
    let place = Place::new();
    let simulate = |cluster: &str| {
        place
            .run(&format!("simulate {MODEL} --cluster {cluster} --pp 2 --global-batch 8"))
            .succeeds()
    };
    let outcome = simulate("rtx-3090:1+titan-rtx:1");
    outcome
        .check(outcome.stdout.contains("Cost: 3,998 US dollars to buy the devices\n"), "no cost");
    let said = "Devices: rtx-3090, data sheet only; titan-rtx, data sheet only\n";
    outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    let outcome = simulate("rtx-3090:1+h200:1");
    outcome.check(!outcome.stdout.contains("Cost:"), "a cost of devices without one");
    let outcome = simulate("a100-40g:2");
    outcome.check(outcome.stdout.contains(", 49,750 to buy the devices\n"), "no price to buy");
}

#[test]
fn explanations_say_what_devices_rest_on() {
    let place = Place::new();
    let arguments = format!("plan {MODEL} --cluster gh200:4 --global-batch 8 -o p.toml");
    let outcome = place.run(&arguments).succeeds();
    let said = "Devices: gh200, data sheet only";
    outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    let outcome = place.run("explain p.toml").succeeds();
    outcome.check(outcome.stdout.contains(&format!("{said}.")), &format!("no {said:?}"));
    let outcome = place.run("explain p.toml --json").succeeds();
    outcome.check(outcome.object()["devices"][0]["calibrated_on"].is_null(), "calibrated");
}

#[test]
fn devices_of_servers_cost_as_those_of_workers_do() {
    let place = Place::new();
    let plan = "gpt-2 --cluster h100-80g:4 --dp 2 --global-batch 16 --json";
    for (servers, devices) in [("", 2.0), ("--servers 1", 3.0), ("--servers 2", 4.0)] {
        let outcome = place.run(&format!("simulate {plan} {servers}")).succeeds();
        let per_hour = number(&outcome.object()["cost"]["per_hour"]);
        outcome.check((per_hour / (devices * 12.29) - 1.0).abs() < 1e-9, "other devices");
    }
}

/// Of one kind and of several, with prices of both sorts, one or none.
#[test]
fn devices_of_an_answer_have_the_prices_of_their_presets() {
    let place = Place::new();
    for kinds in [&["h100-80g"][..], &["rtx-3090"], &["a100-40g"], &["gh200", "v100-16g"]] {
        let cluster = kinds.iter().map(|it| format!("{it}:1")).collect::<Vec<_>>().join("+");
        let outcome = place.run(&format!("simulate {MODEL} --cluster {cluster} --json")).succeeds();
        let answer = outcome.object();
        let devices = answer["devices"].as_array().expect("devices");
        outcome.check(devices.len() == kinds.len(), "other kinds of device");
        for (device, kind) in devices.iter().zip(kinds) {
            let profile = Profile::preset(kind).expect("a preset");
            for (key, expected) in [
                ("price_per_hour", profile.device.price_per_hour),
                ("price_to_buy", profile.device.price_to_buy),
            ] {
                outcome
                    .check(device[key].as_f64() == expected, &format!("another {key} of {kind}"));
            }
            outcome.check(device["name"] == *kind, "another name");
            outcome
                .check(device["calibrated_on"].as_str() == profile.calibrated_on.as_deref(), kind);
        }
    }
}
