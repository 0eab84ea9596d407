//! Language models over words and recommendation models, from data to trained.

use crate::invocation::{Place, named_tensors};

const CLICKS: &str = include_str!("../../../../examples/data/clicks.csv");

const DLRM: &str = "dlrm:dense=4,rows=200-60-5,embed=8,bottom=16,top=16-8";

fn losses(place: &Place, command: &str) -> Vec<f64> {
    let losses = place.run(&format!("{command} --json")).succeeds().losses();
    losses.iter().map(|(_, loss)| loss.parse().expect("a number")).collect()
}

fn assert_alike(place: &Place, command: &str, splits: &[&str]) {
    let expected = losses(place, command);
    let last = expected[expected.len() - 1];
    assert!(last < 0.95 * expected[0], "{command} learns: {expected:?}");
    for split in splits {
        let found = losses(place, &format!("{command} {split}"));
        assert_eq!(found.len(), expected.len(), "{split}");
        for (loss, expected) in found.iter().zip(&expected) {
            assert!((loss - expected).abs() < 1e-4, "{split}: {loss} instead of {expected}");
        }
    }
}

#[test]
fn a_recommendation_model_trains_on_a_table_of_categories_however_it_is_split() {
    let place = Place::new();
    place.write("clicks.csv", CLICKS);
    let command =
        format!("train {DLRM} --data clicks.csv --steps 12 --global-batch 64 --learning-rate 0.01");
    let splits = ["--dp 2", "--tp 2", "--pp 2 --microbatches 4", "--dp 2 --pp 2 --zero 1"];
    assert_alike(&place, &command, &splits);
}

/// Of 200, 60 and 5 categories 2 ranks divide the first two, of 200, 60 and 8 rows all.
#[test]
fn tables_with_padding_are_split_learn_the_same_and_are_written_without_it() {
    let place = Place::new();
    place.write("clicks.csv", CLICKS);
    place.write("bad.csv", "0,0,0,0,1,2,5,1\n");
    let command =
        format!("train {DLRM} --data clicks.csv --steps 12 --global-batch 64 --learning-rate 0.01");
    assert_alike(&place, &command, &["--pad-vocabulary 4", "--pad-vocabulary 4 --tp 2"]);
    let train = |data: &str, folder: &str, more: &str| {
        place.run(&format!(
            "train {DLRM} --data {data} --steps 2 --global-batch 8 --checkpoint {folder} {more} --json"
        ))
    };
    train("bad.csv", "none", "--pad-vocabulary 4")
        .refuses("data", "\"5\" is no category.2: a whole number from 0 to 4");
    for (folder, more) in [("plain", ""), ("padded", "--pad-vocabulary 4 --tp 2")] {
        train("clicks.csv", folder, more).succeeds();
        place.run(&format!("export {folder} --weights {folder}.safetensors")).succeeds();
    }
    let shapes = |file: &str| -> Vec<(String, usize)> {
        let tensors = named_tensors(&place.path(file));
        tensors.into_iter().map(|(name, bytes)| (name, bytes.len())).collect()
    };
    assert_eq!(shapes("padded.safetensors"), shapes("plain.safetensors"));
    let begun = format!("{command} --weights padded.safetensors");
    assert_alike(&place, &begun, &["--pad-vocabulary 4 --tp 2"]);
}

/// 26 tables of 24 billion numbers, of which 8 devices hold an eighth each where the rows are divided.
#[test]
fn whole_tables_are_named_where_padding_would_divide_them() {
    let place = Place::new();
    let plan = |more: &str| {
        let of = "plan dlrm-criteo-terabyte --cluster h100-80g:1x8 --global-batch 65536";
        place.run(&format!("{of} {more} --json"))
    };
    plan("").refuses("search", "--pad-vocabulary 8 lets 8 devices divide them");
    plan("--pad-vocabulary 8").succeeds();
    let small = "plan dlrm:dense=4,rows=1001-2000,embed=64,bottom=16,top=16-8";
    let noted = "tensor parallelism of width 2 does not divide the rows of 1 of 2 tables";
    for (more, is_noted) in [("", true), ("--pad-vocabulary 2", false)] {
        let found = place
            .run(&format!("{small} --cluster h100-80g:2 --global-batch 64 --tp 2 {more} --json"))
            .succeeds();
        found.check(found.stdout.contains(noted) == is_noted, "the note");
    }
}

#[test]
fn a_language_model_trains_on_the_words_of_a_text_however_it_is_split() {
    let place = Place::new();
    let made = place.run("vocabulary --data text.txt --size 100 -o words.json --json").succeeds();
    let answer = made.object();
    // 400 lines of six words and an end; "is the square of", two entries of its own, and 94 numbers.
    made.check(answer["vocabulary"] == 100 && answer["words"] == 400 * 7, "not its words");
    made.check(answer["different"] == 4 + 2 * 400, "not its different words");
    let model = "lstm:layers=2,hidden=16,embed=16,dropout=0.1";
    let command = format!(
        "train {model} --seq 7 --tokenizer words.json --data text.txt --steps 12 --global-batch 16 --learning-rate 0.01"
    );
    let splits = ["--dp 2", "--tp 2", "--pp 2 --microbatches 4 --schedule zb-h1"];
    assert_alike(&place, &command, &splits);
}

#[test]
fn what_does_not_fit_a_recommendation_model_is_said() {
    let place = Place::new();
    place.write("clicks.csv", CLICKS);
    place.write("bad.csv", "0,0,0,0,1,2,5,1\n");
    let train = |model: &str, data: &str| {
        place.run(&format!("train {model} --data {data} --steps 1 --json"))
    };
    train(DLRM, "bad.csv").refuses("data", "\"5\" is no category.2: a whole number from 0 to 4");
    let fewer = "dlrm:dense=3,rows=200-60-5,embed=8,bottom=16,top=16-8";
    train(fewer, "clicks.csv").refuses("data", "8 columns, but the model reads 7");
    train(DLRM, "clicks.csv --data bad.csv").refuses("data", "rows of one table");
    train("dlrm:dense=3,rows=5-x,embed=8,bottom=,top=", "clicks.csv").refuses("model", "26x1000");
    place
        .run("vocabulary --data text.txt --size 2 -o w.json --json")
        .refuses("data", "take 3 or more");
    place
        .run("vocabulary --data nothing.txt --size 9 -o w.json --json")
        .refuses("file", "nothing.txt");
}

#[test]
fn plans_are_found_for_published_models_with_large_tables() {
    let place = Place::new();
    let cases = [("lm1b-lstm-2048-512", 512), ("dlrm-criteo-kaggle", 2048)];
    for (model, batch) in cases {
        let command = format!("plan {model} --cluster v100-32g:2x8 --global-batch {batch} --json");
        let found = place.run(&command).succeeds();
        found.check(
            found.object()["predicted"]["step_seconds"].as_f64().is_some_and(|it| it > 0.0),
            "no time",
        );
    }
}
