//! The classes that a trained model gives to rows of a table, and how many of them are right, in training and
//! afterwards.

use std::fs;

use crate::invocation::Place;
use serde_json::{Value, json};
use shardloom::data::{Field, Part, Source, Table};

const MLP: &str = "mlp:inputs=2,hidden=12,layers=2,classes=3";

/// 120 rows of two numbers and one of three classes that these say most often.
fn flowers() -> Vec<[f64; 3]> {
    let mut state = 7_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    let row = |index: usize| {
        let class = index % 3;
        let (x, y) = [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)][class];
        let number = |of: f64, noise: f64| (1000.0 * (of + 1.2 * (noise - 0.5))).round() / 1000.0;
        [number(x, next()), number(y, next()), class as f64]
    };
    (0..120).map(row).collect()
}

fn text(rows: &[[f64; 3]], with_class: bool) -> String {
    let line = |[x, y, class]: &[f64; 3]| match with_class {
        true => format!("{x},{y},{class}\n"),
        false => format!("{x},{y}\n"),
    };
    rows.iter().map(line).collect()
}

/// The rows of a file that training validates on, of which it draws a quarter.
fn drawn(place: &Place, file: &str) -> String {
    let table = Table::open(&place.path(file), 0.25, 0).expect("a table");
    let line = |row| {
        let mut room = vec![];
        let mut field = |input| match table.field(Part::Validation, row, input, &mut room) {
            Ok(Some(Field::Reals(numbers))) => format!("{},{}", numbers[0], numbers[1]),
            Ok(Some(Field::Indices(class))) => class[0].to_string(),
            other => panic!("{other:?}"),
        };
        format!("{},{}\n", field("features"), field("targets"))
    };
    (0..table.validation_len()).map(line).collect()
}

/// A place with all rows, some of them apart, and training of this kind, which is validated on all that it draws.
fn trained(options: &str) -> (Place, Value) {
    let place = Place::new();
    let rows = flowers();
    place.write("all.csv", text(&rows, true));
    place.write("kept.csv", text(&rows[90..], true));
    place.write("unknown.csv", text(&rows[90..], false));
    let outcome = place.run(&format!(
        "train {MLP} --data all.csv --steps 30 --global-batch 6 --learning-rate 0.01 --checkpoint run \
         --validation-fraction 0.25 --validate-every 10 --validation-microbatches 1000 {options} --json"
    ));
    let outcome = outcome.succeeds();
    let validated: Vec<Value> = outcome
        .objects()
        .into_iter()
        .filter(|step| step.get("validation_accuracy").is_some_and(Value::is_number))
        .collect();
    let steps: Vec<&Value> = validated.iter().map(|step| &step["step"]).collect();
    outcome.check(steps == [9, 19, 29], "an accuracy after other steps");
    let summary = outcome.summary();
    let last = &summary["final_validation_accuracy"];
    outcome.check(*last == validated[2]["validation_accuracy"], "another accuracy at the end");
    (place, summary)
}

#[test]
fn the_accuracy_of_training_is_that_of_the_rows_predicted_afterwards_whatever_the_plan() {
    for options in ["", "--dp 2", "--tp 3", "--pp 2", "--dp 2 --tp 3 --zero 1"] {
        let (place, summary) = trained(options);
        place.write("drawn.csv", drawn(&place, "all.csv"));
        let outcome = place.run("predict run --data drawn.csv --json").succeeds();
        let accuracy = &outcome.summary()["accuracy"];
        outcome.check(*accuracy == summary["final_validation_accuracy"], &format!("{summary}"));
        outcome.check(
            accuracy.as_f64().is_some_and(|it| it > 0.5 && it < 1.0),
            "nothing to tell apart",
        );
    }
}

/// What an answer says of its rows, counted anew from its lines.
#[test]
fn lines_file_matrix_and_summary_say_the_same() {
    let (place, _) = trained("--pp 2");
    let outcome = place.run("predict run --data kept.csv --json").succeeds();
    let mut lines = outcome.objects();
    let summary = lines.pop().unwrap_or_default()["summary"].take();
    outcome.check(lines.len() == 30 && summary["rows"] == 30, "not a line for each row");
    let mut counts = vec![vec![0; 3]; 3];
    for (index, line) in lines.iter().enumerate() {
        let number = |key: &str| line[key].as_u64().map(|it| it as usize);
        outcome.check(number("row") == Some(index + 1), "rows out of order");
        let target = flowers()[90 + index][2] as usize;
        outcome.check(number("target") == Some(target), "another class than in the table");
        counts[target][number("predicted").expect("a class")] += 1;
        let probability = line["probability"].as_f64().unwrap_or_default();
        outcome.check(probability > 1.0 / 3.0 && probability <= 1.0, "no such probability");
    }
    let right: usize = (0..3).map(|class| counts[class][class]).sum();
    outcome.check(summary["accuracy"] == right as f64 / 30.0, "another accuracy");
    let matrix = &summary["confusion"];
    outcome.check(matrix["classes"] == json!([0, 1, 2]), "other classes");
    outcome.check(matrix["counts"] == json!(counts), "another matrix");
    for class in 0..3 {
        let got: usize = counts.iter().map(|row| row[class]).sum();
        let of: usize = counts[class].iter().sum();
        let share = |of: usize| counts[class][class] as f64 / of as f64;
        outcome.check(matrix["precision"][class] == share(got), "another precision");
        outcome.check(matrix["recall"][class] == share(of), "another recall");
    }

    let files = "predict run --data kept.csv -o predictions.csv --confusion confusion.csv";
    let for_people = place.run(files).succeeds();
    let expected = |with_target: bool| {
        let head =
            if with_target { "predicted,probability,target\n" } else { "predicted,probability\n" };
        let rows = lines.iter().map(|line| {
            let probability = line["probability"].as_f64().unwrap_or_default();
            let target = if with_target { format!(",{}", line["target"]) } else { String::new() };
            format!("{},{probability:.6}{target}\n", line["predicted"])
        });
        head.to_owned() + &rows.collect::<String>()
    };
    let read = |name: &str| fs::read_to_string(place.path(name)).expect("a file");
    assert_eq!(read("predictions.csv"), expected(true));
    let counts = counts.iter().enumerate();
    let rows = counts.map(|(class, row)| format!("{class},{},{},{}\n", row[0], row[1], row[2]));
    assert_eq!(read("confusion.csv"), format!("class,0,1,2\n{}", rows.collect::<String>()));
    let said = format!("{right} of 30 rows");
    for_people.check(for_people.stdout.contains(&said), "another accuracy for people");
    for_people.check(!for_people.stdout.contains("probability"), "rows were printed, too");
    for_people.check(for_people.stdout.contains("class \\ predicted"), "no matrix");

    // Without classes there is nothing to compare with.
    let outcome = place.run("predict run --data unknown.csv").succeeds();
    assert_eq!(outcome.stdout, expected(false));
    let outcome = place.run("predict run --data unknown.csv -o other.csv --json").succeeds();
    outcome.check(outcome.objects().len() == 1, "rows were printed, too");
    let summary = outcome.summary();
    outcome.check(summary["predictions"] == "other.csv", "another file");
    outcome.check(summary["accuracy"].is_null() && summary["confusion"].is_null(), "of what?");
    assert_eq!(read("other.csv"), expected(false));
}

#[test]
fn people_read_the_accuracy_where_they_read_the_loss_of_validation() {
    let place = Place::new();
    place.write("all.csv", text(&flowers(), true));
    let train = format!("train {MLP} --data all.csv --steps 4 --global-batch 6 --validate-every 2");
    let outcome = place.run(&format!("{train} --html report.html")).succeeds();
    let validated: Vec<&str> =
        outcome.stdout.lines().filter(|line| line.contains("  validation ")).collect();
    outcome.check(validated.len() == 2, "not validated twice");
    outcome.check(validated.iter().all(|line| line.contains("  accuracy ")), "without an accuracy");
    outcome.check(outcome.stdout.contains("Validation accuracy: "), "none in the summary");
    let page = fs::read_to_string(place.path("report.html")).expect("a report");
    outcome.check(page.contains("id=\"accuracies\""), "none in the report");
    let text = "gpt:layers=1,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4";
    let outcome = place.run(&format!("train {text} --steps 2 --validate-every 1")).succeeds();
    outcome.check(outcome.stdout.contains("  validation "), "not validated");
    outcome.check(!outcome.stdout.contains("ccuracy"), "an accuracy of a language model");
}

#[test]
fn one_logit_gives_a_probability_to_either_class() {
    let place = Place::new();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/clicks.csv");
    let model = "dlrm:dense=4,rows=200-60-5,embed=4,bottom=8,top=8";
    let train = format!(
        "train {model} --tp 2 --data {data} --steps 20 --checkpoint run --validation-fraction 0.1 \
         --validation-microbatches 100000 --global-batch 1 --json"
    );
    let trained = place.run(&train).succeeds().summary();
    let rows = fs::read_to_string(data).expect("an example");
    let rows: Vec<&str> = rows.lines().skip(1).collect();
    let kept = (rows.len() as f64 * 0.1).ceil() as usize;
    place.write("kept.csv", rows[rows.len() - kept..].join("\n"));
    let outcome = place.run("predict run --data kept.csv --json").succeeds();
    let accuracy = &outcome.summary()["accuracy"];
    outcome.check(*accuracy == trained["final_validation_accuracy"], &format!("{trained}"));
    let lines = outcome.objects();
    let likely =
        |line: &Value| line["probability"].as_f64().is_some_and(|it| (0.5..=1.0).contains(&it));
    outcome.check(lines[..kept].iter().all(likely), "less likely than the other class");
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let (place, _) = trained("");
    place.write("narrow.csv", "1\n2\n");
    place.write("wide.csv", "1,2,0\n1,2,0,4\n");
    place.write("word.csv", "x,y\n1,2\n3,red\n");
    place.write("far.csv", "1,2,0\n1,2,3\n");
    place.write("empty.csv", "");
    place.write("there.csv", "mine");
    place.run("train gpt:layers=1,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4 --steps 1 --checkpoint text --json").succeeds();
    for (arguments, kind, hint) in [
        ("run --data narrow.csv", "data", "narrow.csv:1: 1 columns, but the model reads 2"),
        ("run --data wide.csv", "data", "wide.csv:2: 4 columns, but rows before it have 3"),
        ("run --data word.csv", "data", "word.csv:3: \"red\" is no finite number"),
        (
            "run --data far.csv",
            "data",
            "far.csv:2: \"3\" is no class that the model knows: a whole number from 0 to 2",
        ),
        ("run --data empty.csv", "data", "empty.csv: there are no rows"),
        ("run --data missing.csv", "data", "missing.csv"),
        ("run", "usage", "--data"),
        ("missing --data kept.csv", "file", "missing"),
        ("text --data kept.csv", "model", "shardloom generate"),
        ("run --data kept.csv -o there.csv", "file", "--force"),
        ("run --data kept.csv --confusion there.csv", "file", "--force"),
        ("run --data kept.csv -o none/a.csv", "file", "no folder none"),
        ("run --data kept.csv -o a.csv --confusion ./a.csv", "file", "two files"),
        ("run --data unknown.csv -o a.csv --confusion b.csv", "usage", "last column"),
    ] {
        place.run(&format!("predict {arguments} --json")).refuses(kind, hint);
    }
    assert!(!place.path("a.csv").exists() && !place.path("b.csv").exists());
    place.run("predict run --data kept.csv -o there.csv --force --json").succeeds();
    assert_eq!(fs::read_to_string(place.path("there.csv")).expect("a file").lines().count(), 31);
}

/// Classes of a network of one's own are not called a vocabulary, and still there are no more than it has.
#[test]
fn a_class_that_a_network_of_ones_own_does_not_have_is_refused_in_training() {
    let place = Place::new();
    place.write(
        "own.toml",
        r#"
[model]
name = "own"
[dims]
columns = 2
kinds = 3
[[input]]
name = "features"
kind = "real"
axes = ["columns"]
[[input]]
name = "targets"
kind = "index"
axes = []
[[block]]
name = "head"
[[block.op]]
kind = "contract"
inputs = ["features"]
weight = { axes = ["columns", "kinds"], init = { normal = 0.1 } }
[[block.op]]
name = "loss"
kind = "cross-entropy"
inputs = ["head", "targets"]
"#,
    );
    place.write("all.csv", text(&flowers(), true));
    place.write("far.csv", "1,2,0\n1,2,3\n");
    let train = "train own.toml --steps 2 --global-batch 2 --checkpoint run --json --data";
    place.run(&format!("{train} far.csv")).refuses("data", "far.csv:2: class 3, but own tells 3");
    place.run(&format!("{train} all.csv")).succeeds();
    place.run("predict run --data all.csv --json").succeeds();
}

/// As many published tables have them.
#[test]
fn classes_that_have_names_are_predicted_by_name() {
    let place = Place::new();
    const NAMES: [&str; 3] = ["red", "a, b", "blue"];
    let named = |rows: &[[f64; 3]]| -> String {
        let line = |[x, y, class]: &[f64; 3]| format!("{x},{y},\"{}\"\n", NAMES[*class as usize]);
        rows.iter().map(line).collect()
    };
    // In alphabetical order the names are of the classes 2, 0 and 1.
    let numbered = |rows: &[[f64; 3]]| -> String {
        let line = |[x, y, class]: &[f64; 3]| format!("{x},{y},{}\n", [2, 0, 1][*class as usize]);
        rows.iter().map(line).collect()
    };
    let rows = flowers();
    place.write("named.csv", named(&rows));
    place.write("numbered.csv", numbered(&rows));
    let train = |data: &str, run: &str| {
        let command = format!(
            "train {MLP} --data {data} --steps 20 --global-batch 6 --checkpoint {run} --json"
        );
        place.run(&command).succeeds()
    };
    let [by_name, by_number] = [train("named.csv", "names"), train("numbered.csv", "numbers")];
    by_name.check(by_name.losses() == by_number.losses(), "other classes");
    let outcome =
        place.run("predict names --data named.csv -o p.csv --confusion c.csv --json").succeeds();
    let matrix = &outcome.summary()["confusion"];
    assert_eq!(matrix["classes"], json!(["a, b", "blue", "red"]));
    let numbers = place.run("predict numbers --data numbered.csv -o n.csv --json").succeeds();
    assert_eq!(matrix["counts"], numbers.summary()["confusion"]["counts"]);
    let [names, numbers] =
        ["p.csv", "n.csv"].map(|it| fs::read_to_string(place.path(it)).expect("written"));
    let in_names: Vec<String> = numbers
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let name = |field: &str| match field {
                "0" => "\"a, b\"",
                "1" => "blue",
                _ => "red",
            };
            format!("{},{},{}", name(fields[0]), fields[1], name(fields[2]))
        })
        .collect();
    assert_eq!(names.lines().skip(1).collect::<Vec<_>>(), in_names);
    let confusion = fs::read_to_string(place.path("c.csv")).expect("written");
    assert!(confusion.starts_with("class,\"a, b\",blue,red\n\"a, b\","), "{confusion}");
    let people = place.run("predict names --data named.csv").succeeds();
    people.check(people.stdout.contains("class \\ predicted"), "no matrix");
    place.write("other.csv", "1,2,green\n");
    place.run("predict names --data other.csv --json").refuses("data", "knows: a, b, blue, red");
    place.run("predict names --data numbered.csv --json").refuses("data", "\"2\" is no class");
    // The names are part of the data that a run goes on with.
    place.write("named.csv", named(&rows).replace("blue", "brown"));
    let again = format!(
        "train {MLP} --data named.csv --steps 30 --global-batch 6 --checkpoint names --resume --json"
    );
    place.run(&again).refuses("checkpoint", "resume with the same data");
    // Under a name that is known to be a mistake.
    place.write("mixed.csv", "1,2,red\n1,2,0\n");
    let mixed = format!("train {MLP} --data mixed.csv --steps 1 --global-batch 2 --json");
    place.run(&mixed).refuses("data", "mixed.csv:2: \"0\" is no name of a class");
}
