//! What a run says before its first step.

use crate::invocation::Place;

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
