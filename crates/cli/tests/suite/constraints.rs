//! What plans have that are restricted by options.

use crate::invocation::Place;

/// The part of a note before the time that it names.
fn note(place: &Place, options: &str) -> Vec<String> {
    let plan = format!("plan gpt-2 --cluster h100-80g:8 --global-batch 8 {options} --json");
    let answer = place.run(&plan).succeeds().object();
    let notes = answer["notes"].as_array().expect("notes").iter();
    notes.filter_map(|note| note.as_str().map(str::to_owned)).collect()
}

#[test]
fn what_an_option_costs_is_said_where_a_usual_plan_without_it_is_faster() {
    let place = Place::new();
    for (options, begin, plan) in [
        ("--zero 3", "--zero 3 costs ", "ZeRO 1"),
        ("--pp 4 --zero 0", "--pp 4 and --zero 0 cost ", "1 stage of"),
        ("--method gpipe", "--method gpipe costs ", "1 stage of"),
    ] {
        let notes = note(&place, options);
        let found = notes.iter().find(|note| note.starts_with(begin));
        let found = found.unwrap_or_else(|| panic!("{options}: {notes:?}"));
        assert!(found.contains(" a step or more: ") && found.contains(plan), "{found}");
    }
}

#[test]
fn a_search_without_restriction_has_nothing_to_say_of_costs() {
    let notes = note(&Place::new(), "");
    assert!(notes.iter().all(|note| !note.contains("a step or more")), "{notes:?}");
}

/// A single stage has no order of passes, whichever was asked for.
#[test]
fn one_stage_where_a_schedule_was_asked_for_is_explained() {
    let place = Place::new();
    let model = "gpt:layers=4,hidden=64,heads=4,seq=32,vocab=96 --cluster h100-80g:4";
    let plan = format!("plan {model} --global-batch 8 --schedule dualpipe");
    let outcome = place.run(&plan).succeeds();
    outcome.check(outcome.stdout.starts_with("1 device: 1 stage "), "several stages");
    let begin = "dualpipe was asked for, which orders the passes of several stages, and the plan is of one: ";
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let note = lines.iter().find(|line| line.starts_with(begin));
    outcome.check(note.is_some(), "nothing is said of it");
    let several = place.run(&format!("{plan} --pp 2")).succeeds();
    several.check(!several.stdout.contains("was asked for, which orders"), "it has several");
}

#[test]
fn a_schedule_is_refused_where_one_stage_was_asked_for() {
    let place = Place::new();
    let plan = "plan gpt-2 --cluster h100-80g:8 --global-batch 8 --schedule zb-v --json";
    let outcome = place.run(&format!("{plan} --pp 1"));
    outcome.refuses(
        "usage",
        "--schedule zb-v: it orders the passes of several stages, and --pp 1 leaves one",
    );
    let alternating = plan.replace("zb-v", "1f1b");
    place.run(&format!("{alternating} --pp 1")).succeeds();
}

#[test]
fn stages_that_a_schedule_cannot_have_are_named_by_their_option() {
    let place = Place::new();
    let shape = "gpt-2 --cluster h100-80g:4 --global-batch 8 --pp 2 --microbatches 4 --chunks";
    for (number, rule) in [
        ("1 --schedule interleaved", "--chunks 1: interleaved wants at least two stages"),
        ("3 --schedule hanayo", "--chunks 3: hanayo wants an even number of stages"),
    ] {
        place.run(&format!("simulate {shape} {number} --json")).refuses("plan", rule);
        place.run(&format!("program {shape} {number} --json")).refuses("plan", rule);
    }
}
