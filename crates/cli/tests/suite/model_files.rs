//! A file that describes a model is one wherever its table `model` stands.

use crate::invocation::Place;

#[test]
fn a_model_file_that_begins_with_comments_is_not_taken_for_a_plan() {
    let place = Place::new();
    let text = include_str!("../../../../examples/models/own-network.toml");
    assert!(text.starts_with('#') && text.contains("\n[model]\n"));
    place.write("commented.toml", text);
    place.write("indented.toml", text.replace("\n[model]\n", "\n  [model]\n"));
    let (_, bare) = text.split_once("[model]").expect("a table");
    place.write("bare.toml", format!("[model]{bare}"));
    for name in ["commented.toml", "indented.toml", "bare.toml"] {
        let options = "--cluster h100-80g:2 --dp 2 --global-batch 4 --json";
        let outcome = place.run(&format!("simulate {name} {options}")).succeeds();
        outcome.check(outcome.object()["step_seconds"].is_number(), "no time");
    }
}
