//! What pages say, and what is said of pages and traces that were written.

use std::fs;

use shardloom::cluster::{MeasuredOn, Profile};
use shardloom::profile::this_machine;

use crate::invocation::{Outcome, Place};

const MODEL: &str = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=512";

fn page(place: &Place, name: &str) -> String {
    fs::read_to_string(place.path(name)).expect("a page")
}

/// The sentences that say why.
fn why(page: &str) -> &str {
    let from = page.split_once("<h2>Why</h2>").expect("a section that says why").1;
    from.split_once("</section>").expect("it ends").0
}

fn says(outcome: &Outcome, text: &str, what: &str) {
    outcome.check(text.contains(what), &format!("no {what:?} in {text}"));
}

/// As many of each as the terminal has, and with the same verdicts.
#[test]
fn a_page_of_a_plan_has_the_plans_that_it_was_found_among() {
    let place = Place::new();
    let plan = format!("plan {MODEL} --cluster h100-80g:4 --global-batch 32 --html plan.html");
    let outcome = place.run(&plan).succeeds();
    says(&outcome, &outcome.stdout, "Report: plan.html\n");
    let page = page(&place, "plan.html");
    let why = why(&page);
    let table = page.split_once("<h2>Plans that were considered</h2>").expect("a table").1;
    for baseline in ["data parallel", "zero-3", "megatron rules"] {
        let mut lines = outcome.stdout.lines();
        let line = lines.find(|line| line.starts_with(baseline)).expect("it is on the terminal");
        let verdict = line.rsplit("  ").next().unwrap_or_default().trim();
        says(&outcome, why, baseline);
        let row = table.split("<tr>").find(|row| row.contains(&format!(">{baseline}<")));
        says(&outcome, row.expect("a row"), &format!(">{verdict}<"));
    }
    says(&outcome, why, " plans that auto looked at ");
    says(&outcome, why, "; it shrinks with ");
    place.run(&format!("{plan} --json")).refuses("file", "--force");
    place.run(&format!("{plan} --force")).succeeds();
    place
        .run(&format!("{plan} --force --cluster h100-80g:2 --json"))
        .refuses("usage", "one --cluster");
}

/// The sentence on plans that people use, one of which does not fit, the table of plans and the terminal's lines have the
/// same steps and verdicts, and the sentence on the search has the terminal's numbers and the table's next plan.
#[test]
fn sentences_of_a_page_say_what_its_table_and_the_terminal_do() {
    let place = Place::new();
    let plan = "plan gpt:layers=8,hidden=4096,heads=32,seq=512,vocab=32000 --cluster v100-16g:4 --global-batch 8 \
                --html plan.html";
    let outcome = place.run(plan).succeeds();
    let page = page(&place, "plan.html");
    let sentences: Vec<&str> =
        why(&page).split("<li>").map(|it| it.split("</li>").next().unwrap_or_default()).collect();
    let sentence = |part: &str| {
        *sentences.iter().find(|it| it.contains(part)).expect("it is among the sentences")
    };
    let table = page.split_once("<h2>Plans that were considered</h2>").expect("a table").1;
    let rows: Vec<Vec<&str>> = table
        .split("<tr>")
        .skip(2)
        .map(|row| row.split("</td>").filter_map(|cell| cell.split_once('>')).collect::<Vec<_>>())
        .map(|cells| {
            cells.iter().map(|cell| cell.1.rsplit('>').next().unwrap_or_default()).collect()
        })
        .collect();
    let people_use = sentence("Plans that people use without a search: ");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let mut excluded = 0;
    for name in ["data parallel", "zero-3", "megatron rules"] {
        let row = rows.iter().find(|row| row[0] == name).expect("a row");
        let (step, verdict) = (row[1], row[2]);
        let line = lines.iter().find_map(|line| line.strip_prefix(name)).expect("a line");
        let (of_line, rest) = line.trim().split_once("  ").expect("a step and a verdict");
        assert_eq!((of_line, rest.trim()), (step, verdict), "{name}");
        let expected = match verdict {
            "does not fit in memory" => {
                excluded += 1;
                format!("{name} does not fit in memory, where a step would take {step}")
            }
            longer => format!("{name} takes {longer}, {step}"),
        };
        says(&outcome, people_use, &expected);
    }
    outcome.check((1..3).contains(&excluded), "all or none of them fit");
    let searched = sentence(" plans that auto looked at ");
    let next = rows
        .iter()
        .find(|row| row[0].starts_with("candidate") && row[2] != "does not fit in memory");
    let next = next.expect("others fit");
    says(&outcome, searched, &format!("that fits takes {}, {} ({})", next[1], next[2], next[3]));
    // `2496 plans: 135 evaluated, 2361 bounded away, 12 simulated, in 1.2 s`.
    let counts =
        lines.iter().find(|line| line.contains(" bounded away, ")).expect("a line of counts");
    let words = counts.split(|c: char| !c.is_ascii_digit()).filter(|it| !it.is_empty());
    let counts: Vec<&str> = words.take(4).collect();
    let plain = searched.replace(',', "");
    let begin = format!("Of {} plans that auto looked at {} were estimated", counts[0], counts[1]);
    outcome.check(plain.starts_with(&begin), &begin);
    says(&outcome, &plain, &format!(" and {} simulated;", counts[3]));
}

#[test]
fn a_page_of_a_given_plan_says_what_considers_others() {
    let place = Place::new();
    let simulate = format!("simulate {MODEL} --cluster h100-80g:4 --pp 4 --global-batch 32");
    let outcome = place.run(&format!("{simulate} --html s.html --trace s.trace")).succeeds();
    says(&outcome, &outcome.stdout, "Report: s.html\n");
    says(&outcome, &outcome.stdout, "Trace: s.trace (of Perfetto; open it at ui.perfetto.dev)\n");
    says(&outcome, why(&page(&place, "s.html")), "No other plan was simulated: ");
    let outcome = place.run(&format!("{simulate} --html j.html --json")).succeeds();
    outcome.check(!outcome.stdout.contains("Report"), "programs read of it");
}

/// Times need a profile; what ranks hold does not.
#[test]
fn a_page_of_training_without_a_profile_has_all_that_needs_no_times() {
    let place = Place::new();
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4 --steps 3 --pp 2";
    let outcome = place.run(&format!("{train} --html t.html --trace t.trace")).succeeds();
    says(&outcome, &outcome.stdout, "Report: t.html\nTrace: t.trace (of Perfetto; ");
    let page = page(&place, "t.html");
    let why = why(&page);
    for what in [
        "The plan: 2 devices: 2 stages of 1 device",
        "Memory: rank ",
        "optimizer state ",
        "share of peak FLOP/s (MFU) are not known, as ",
        "<code>shardloom profile</code>",
    ] {
        says(&outcome, why, what);
    }
    for figure in ["Parameters", "Tokens per second", "Predicted peak", "Memory of the run"] {
        says(&outcome, &page, &format!("<dt>{figure}</dt>"));
    }
    outcome.check(!page.contains("(MFU)</dt>"), "a share of an unknown peak");
    // Each rank holds what it is predicted to.
    let table = page.split_once("<h2>Memory and messages of the run</h2>").expect("a table").1;
    let table = table.split_once("</section>").expect("it ends").0;
    for row in table.split("<tr>").skip(2) {
        let cell = |name: &str| {
            let from = row.split_once(&format!("data-name=\"{name}\">")).expect("a cell").1;
            from.split_once('<').expect("it ends").0
        };
        assert_eq!(cell("peak memory"), cell("predicted peak"), "{row}");
    }
    assert_eq!(table.split("<tr>").skip(2).count(), 2, "a row for each rank");

    place.pretend_measured();
    let outcome = place.run(&format!("{train} --html t.html --trace t.trace --force")).succeeds();
    let page = self::page(&place, "t.html");
    says(&outcome, &page, "(MFU)</dt>");
    outcome.check(!self::why(&page).contains("not known"), "something is not known");
}

#[test]
fn a_page_of_training_by_a_plan_that_was_found_has_the_others() {
    let place = Place::new();
    place.pretend_measured();
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4 --steps 2 --ranks 2";
    let outcome = place.run(&format!("{train} --html t.html")).succeeds();
    let page = page(&place, "t.html");
    says(&outcome, why(&page), "Plans that people use without a search: ");
    says(&outcome, &page, "<h2>Plans that were considered</h2>");
}

#[test]
fn what_is_predicted_from_a_disturbed_measurement_is_said_to_be_above_all_else() {
    let place = Place::new();
    let mut profile = Profile::preset("v100-16g").expect("a preset");
    let here = this_machine().expect("a machine");
    profile.measured_on = Some(MeasuredOn { others_percent: 42, ..here });
    profile.device.name = "local".into();
    profile.device.lanes_overlap = false;
    place.write("profile.toml", profile.to_toml().expect("TOML"));
    let train =
        "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4 --steps 2";
    let outcome = place.run(&format!("{train} --html t.html")).succeeds();
    says(&outcome, &outcome.stderr, "other programs took 42% of the processors' time");
    let page = page(&place, "t.html");
    let warnings = page.split_once("role=\"alert\"").expect("a warning").1;
    let warnings = warnings.split_once("</section>").expect("it ends").0;
    says(&outcome, warnings, "Other programs took 42% of the processors");
}
