//! Help texts, word for word.

use crate::invocation::Place;

#[test]
fn help_of_every_command_is_as_recorded() {
    let place = Place::new();
    for command in [
        "",
        "plan",
        "explain",
        "simulate",
        "program",
        "train",
        "generate",
        "predict",
        "export",
        "import",
        "schedule",
        "compare",
        "methods",
        "profile",
        "validate",
        "demo",
        "launch",
        "vocabulary",
        "completions",
        "manual",
    ] {
        let outcome = place.run(&format!("{command} --help")).succeeds();
        outcome.check(command.is_empty() || outcome.stdout.contains("Examples:"), "no examples");
        let name = if command.is_empty() { "shardloom" } else { command };
        insta::assert_snapshot!(name, outcome.stdout);
    }
}

#[test]
fn without_a_command_help_is_an_error() {
    let outcome = Place::new().run("");
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stderr.contains("Usage: shardloom"), "no usage");
}
