//! `--uplink` and `--cards`: what nodes send out.

use crate::invocation::Place;

const MODEL: &str = "gpt:layers=4,hidden=1024,heads=8,seq=512,vocab=8192";

/// The step of a model on two nodes under these options.
fn step(place: &Place, options: &str) -> f64 {
    let shape = "--dp 16 --global-batch 16";
    let outcome = place.run(&format!("simulate {MODEL} {options} {shape} --json")).succeeds();
    outcome.object()["step_seconds"].as_f64().expect("a time")
}

#[test]
fn slower_uplinks_take_longer_however_they_are_said() {
    let place = Place::new();
    let cluster = "--cluster a100-80g:2x8";
    let usual = step(&place, cluster);
    // What the preset has.
    assert_eq!(step(&place, &format!("{cluster} --uplink 1600Gbps")), usual);
    let slow = step(&place, &format!("{cluster} --uplink 100Gbps"));
    assert!(slow > 1.5 * usual, "{slow} after {usual}");
    assert_eq!(step(&place, &format!("{cluster} --cards 1x100Gbps")), slow);
    assert_eq!(step(&place, &format!("{cluster},uplink=100Gbps")), slow);
    assert_eq!(step(&place, &format!("{cluster},uplink=400Gbps --uplink 12.5GB/s")), slow);
}

/// What is given for a plan's machines goes for those that it is held against, too.
#[test]
fn a_plan_held_against_itself_under_another_uplink_is_the_same() {
    let place = Place::new();
    let shape = "--global-batch 16 -o plan.toml";
    place.run(&format!("plan {MODEL} --cluster a100-80g:2x4 {shape}")).succeeds();
    let outcome = place.run("explain plan.toml --against plan.toml --uplink 800Gbps").succeeds();
    outcome.check(outcome.stdout.contains("plan.toml is the same plan"), "it is another");
    outcome.check(!outcome.stdout.contains("differs in"), "it differs from itself");
}

#[test]
fn a_plan_keeps_the_uplink_it_was_made_for() {
    let place = Place::new();
    let outcome = place
        .run(&format!(
            "plan {MODEL} --cluster a100-80g:2x8 --uplink 100Gbps --global-batch 32 -o p.toml --json"
        ))
        .succeeds();
    let planned = outcome.object()["predicted"]["step_seconds"].clone();
    let plan = shardloom::read_plan(&place.path("p.toml")).expect("a plan");
    assert_eq!(plan.cluster, "a100-80g:2x8,uplink=100Gbps");
    let simulated = |command: &str| {
        place.run(&format!("{command} --json")).succeeds().object()["step_seconds"].clone()
    };
    assert_eq!(simulated("simulate p.toml"), planned);
    assert_eq!(simulated("explain p.toml"), planned);
    // What it would take on another network.
    let other = simulated("simulate p.toml --uplink 800Gbps");
    assert!(other.as_f64() <= planned.as_f64(), "{other} after {planned}");
    assert_eq!(
        simulated("explain p.toml --cards 8x100Gbps").as_f64().map(f64::is_finite),
        Some(true)
    );
    place.run("program p.toml --uplink 800Gbps --rank 0").succeeds();
}

#[test]
fn schedules_are_compared_on_the_network_that_was_given() {
    let place = Place::new();
    let compare = |options: &str| {
        let shape = "--dp 16 --global-batch 16 --schedules 1f1b";
        let outcome =
            place.run(&format!("compare {MODEL} --cluster a100-80g:2x8 {shape}{options} --json"));
        outcome.succeeds().object()["rows"][0]["step_seconds"].as_f64().expect("a time")
    };
    assert!(compare(" --uplink 100Gbps") > 1.5 * compare(""));
    let text = place.run(&format!(
        "compare {MODEL} --cluster a100-80g:2x8 --uplink 100Gbps --dp 16 --global-batch 16 \
         --schedules 1f1b"
    ));
    let said = "simulated on a100-80g:2x8,uplink=100Gbps";
    let text = text.succeeds();
    text.check(text.stdout.contains(said), &format!("no {said:?}"));
}

#[test]
fn what_is_no_rate_is_refused() {
    let place = Place::new();
    place.write("machines.toml", "[[group]]\nmachine = \"h200\"\nnodes = 2\n");
    for (options, hint) in [
        ("--cluster h200:2x8 --uplink 800", "--uplink 800: the rate `800` needs a unit"),
        ("--cluster h200:2x8 --uplink -8Gbps", "--uplink -8Gbps: a rate must be above 0"),
        ("--cluster h200:2x8 --uplink 0Gbps", "a rate must be above 0, not 0"),
        ("--cluster h200:2x8 --cards 8", "--cards 8: write cards and the rate of one"),
        ("--cluster h200:2x8 --cards 2x1Gbps --uplink 1Gbps", "cannot be used with"),
        ("--cluster machines.toml --uplink 1Gbps", "write uplink_bytes_per_second in its groups"),
    ] {
        place.run(&format!("simulate {MODEL} {options} --json")).refuses("usage", hint);
    }
    let outcome = place.run(&format!("simulate {MODEL} --cluster h200:2x8,uplink=8 --json"));
    outcome.refuses("cluster", "`uplink=8`: the rate `8` needs a unit");
    let outcome =
        place.run(&format!("compare {MODEL} --run --data text.txt --uplink 1Gbps --json"));
    outcome.refuses("usage", "give --cluster, too");
}
