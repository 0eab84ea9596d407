//! Rows that choose their experts while running: what plans of them are said to do and to take.

use crate::invocation::Place;

/// The example, with its experts on four ranks.
fn place_with_plan() -> Place {
    let place = Place::new();
    place.write("experts.toml", include_str!("../../../../examples/models/routed-experts.toml"));
    let plan = r#"
format = 1
model = "experts.toml"
cluster = "a100-40g:4"
global_batch = 4
microbatches = 1
schedule = "1f1b"
recompute = "none"
layout = "expert:dp, batch:dp"
sync = { algorithm = "ring", zero = 0, bucket_bytes = 25000000 }
precision = { compute = "fp32", gradients = "fp32", master = false }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
[[pipeline]]
stage = [{ blocks = [0, 4], mesh = { dp = 4 }, devices = "0..4" }]
"#;
    place.write("plan.toml", plan);
    place
}

#[test]
fn a_program_says_where_rows_travel_and_what_counts_them() {
    let outcome = place_with_plan().run("program plan.toml").succeeds();
    let line = "  dp       all-to-all-v (joins axis 1, splits axis 0, direct, ranks 0 1 2 3, sends at \
                most 3.00 KiB): layer.0.dispatch #2[<=1,4,8,32] f32 4.00 KiB";
    outcome.check(outcome.stdout.contains(line), "no exchange of rows");
    let product = "forward of layer.0.up (matrix product of each expert)";
    outcome.check(outcome.stdout.contains(product), "no product of experts");
}

#[test]
fn ranks_whose_experts_get_other_shares_are_simulated_by_themselves() {
    let place = place_with_plan();
    let says = "Ranks have different numbers of rows, or are on unlike devices, so each was simulated by itself.";
    let even = place.run("simulate plan.toml").succeeds();
    even.check(!even.stdout.contains(says), "they have equal numbers");
    let skewed = place.run("simulate plan.toml --rows 5,1,1,1").succeeds();
    skewed.check(skewed.stdout.contains(says), "it does not say so");
    for (rows, folded) in [("1,1,1,1", true), ("5,1,1,1", false)] {
        let outcome = place.run(&format!("simulate plan.toml --rows {rows} --json")).succeeds();
        outcome.check(outcome.objects()[0]["folded"] == folded, "it says otherwise");
    }
    let asked = place.run("simulate plan.toml --rows 5,1,1,1 --unfolded").succeeds();
    asked.check(!asked.stdout.contains(says), "that was asked for");
}

#[test]
fn shares_of_other_experts_than_there_are_are_refused() {
    let outcome = place_with_plan().run("simulate plan.toml --rows 1,2 --json");
    outcome.refuses("usage", "there are 4 experts");
    // Their sum has no number.
    let outcome = place_with_plan().run("simulate plan.toml --rows 1e308,1e308,1,1 --json");
    outcome.refuses("usage", "there are 4 experts");
}

#[test]
fn shares_of_rows_that_no_model_chooses_with_are_refused() {
    let arguments = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256 --cluster h100-80g:2 --dp 2";
    let outcome =
        Place::new().run(&format!("simulate {arguments} --global-batch 4 --rows 5,1 --json"));
    outcome.refuses("usage", "--rows: shares of rows are given, and the model has no experts");
    let text =
        Place::new().run(&format!("simulate {arguments} --global-batch 4 --rows 5,x --json"));
    text.refuses("usage", "a number is needed, such as 0.1");
}
