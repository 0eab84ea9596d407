//! Language models over words and recommendation models, from data to trained.

use crate::invocation::Place;

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
