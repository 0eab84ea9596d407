//! What a run says before its first step.

use shardloom::cluster::Profile;

use crate::invocation::{Place, TINY};

const TRAIN: &str = "train gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256 --data text.txt --global-batch 4 \
                     --seed 7 --profile none.toml";

/// The lines of a run's beginning, by what stands before the colon.
fn lines(printed: &str) -> Vec<(&str, &str)> {
    let lines = printed.lines().take_while(|line| !line.is_empty());
    lines.map(|line| line.split_once(": ").expect("it has a name")).collect()
}

#[test]
fn a_run_begins_with_what_it_will_do() {
    let place = Place::new();
    place.write("text.txt", "a b c ".repeat(100));
    let outcome = place.run(&format!("{TRAIN} --steps 2 --checkpoint run")).succeeds();
    let found = lines(&outcome.stdout);
    let names: Vec<&str> = found.iter().map(|&(name, _)| name).collect();
    let expected = ["Model", "Weights", "Data", "Steps", "Plan", "Memory", "Predicted step"];
    assert_eq!(names, expected, "{}", outcome.stdout);
    let of = |name: &str| found[names.iter().position(|&it| it == name).expect("it is there")].1;
    assert_eq!(of("Weights"), "drawn with seed 7");
    assert!(of("Data").ends_with("samples of 8 tokens to train on, by bytes"), "{}", of("Data"));
    assert!(of("Steps").starts_with("2 of 4 samples, 64 tokens, "), "{}", of("Steps"));
    let why =
        "not known, as this machine has not been measured as it is now (`shardloom profile` does)";
    assert_eq!(of("Predicted step"), why);
    let outcome = place.run(&format!("{TRAIN} --steps 3 --checkpoint run --resume")).succeeds();
    let found = lines(&outcome.stdout);
    assert_eq!(found[1], ("Weights", "those of run/step-00000002"), "{}", outcome.stdout);
}

/// Validation takes whole micro-batches only, and so many at most.
#[test]
fn a_run_says_how_many_samples_it_is_validated_on() {
    let place = Place::new();
    let rows: String = (0..40).map(|row| format!("{row},{},{}\n", 40 - row, row % 2)).collect();
    place.write("rows.csv", rows);
    let train = "train mlp:inputs=2,hidden=4,layers=2,classes=2 --data rows.csv --steps 1 \
                 --validation-fraction 0.25 --profile none.toml --global-batch";
    for (options, said) in [
        (
            "4",
            "30 samples to train on, 8 of 10 others to validate on, which are whole micro-batches",
        ),
        ("5", "30 samples to train on, 10 to validate on"),
        (
            "2 --validation-microbatches 3",
            "30 samples to train on, 6 of 10 others to validate on, which are whole micro-batches",
        ),
    ] {
        let outcome = place.run(&format!("{train} {options}")).succeeds();
        let found = lines(&outcome.stdout);
        outcome.check(found[2].0 == "Data" && found[2].1.ends_with(said), said);
    }
}

/// Seconds in words of an opening, such as `2.42 ms`.
fn seconds(words: &str) -> f64 {
    let (number, unit) = words.split_once(' ').expect("a unit");
    let unit = match unit {
        "ns" => 1e-9,
        "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        other => panic!("no such unit: {other}"),
    };
    number.parse::<f64>().expect("a number") * unit
}

/// What the opening predicts for a step and for all of them.
fn predicted(place: &Place, options: &str) -> (f64, f64) {
    let outcome = place.run(&format!("train {TINY} {options}")).succeeds();
    let found = lines(&outcome.stdout);
    let said = found.last().expect("lines").1;
    let (step, rest) = said.split_once(", all in ").expect("two times");
    let (all, end) = rest.split_once(", by ").expect("an end");
    outcome.check(end.len() == "2026-01-01 00:00:00".len(), "no day and time");
    (seconds(step), seconds(all))
}

#[test]
fn all_steps_are_predicted_to_take_as_long_as_each_does() {
    let place = Place::new();
    place.pretend_measured();
    for steps in [1, 3, 40] {
        let (step, all) = predicted(&place, &format!("--steps {steps} --dp 2"));
        let expected = step * f64::from(steps);
        assert!((all / expected - 1.0).abs() < 0.02, "{all} for {steps} of {step}");
    }
    // Of a run that goes on, those that are left.
    let kept = "--dp 2 --checkpoint run";
    predicted(&place, &format!("{kept} --steps 3"));
    let (step, all) = predicted(&place, &format!("{kept} --steps 8 --resume"));
    assert!((all / (5.0 * step) - 1.0).abs() < 0.02, "{all} for 5 of {step}");
    // In virtual time nobody knows when the last step ends.
    let clock = "--dp 2 --steps 3 --clock virtual --cluster h100-80g:2";
    let outcome = place.run(&format!("train {TINY} {clock}")).succeeds();
    let said = lines(&outcome.stdout).last().expect("lines").1;
    let end = ", simulated; in virtual time computing takes what it takes here";
    outcome.check(said.strip_suffix(end).is_some_and(|it| seconds(it) > 0.0), end);
}

/// Whether averages end between the steps that are left or before them.
#[test]
fn steps_behind_the_last_average_are_predicted_as_steps_without_averages() {
    let place = Place::new();
    // Links so slow that a step which reduces gradients takes much longer than one that averages seldom.
    let mut profile = Profile::preset("v100-16g").expect("a preset");
    profile.device.name = "local".into();
    profile.device.lanes_overlap = false;
    profile.node.devices = 2;
    profile.node.intra.bytes_per_second = 1e7;
    place.write("profile.toml", profile.to_toml().expect("TOML"));
    let averaged = "--dp 2 --average-every 4 --steps";
    let one = |options: &str| {
        let (_, all) = predicted(&place, &format!("{options} 20"));
        all / 20.0
    };
    let (with, without) = (one(averaged), one("--dp 2 --no-clip --steps"));
    assert!(without > 1.5 * with, "{with} and {without} are too close");
    for end in [4, 5, 7] {
        let options = format!("{averaged} 8 --average-until {end}");
        let (_, all) = predicted(&place, &options);
        let count = f64::from(end);
        let expected = count * with + (8.0 - count) * without;
        assert!((all / expected - 1.0).abs() < 0.02, "until {end}: {all}, not {expected}");
    }
    let kept = "--average-until 4 --checkpoint run";
    predicted(&place, &format!("{averaged} 6 {kept}"));
    let (_, all) = predicted(&place, &format!("{averaged} 9 {kept} --resume"));
    assert!((all / (3.0 * without) - 1.0).abs() < 0.02, "{all}, not 3 of {without}");
}
