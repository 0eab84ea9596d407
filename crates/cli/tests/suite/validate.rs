//! `shardloom validate` on a small file.

use std::fs;

use crate::invocation::Place;

/// Two plans of one group, and one with more micro-batches than its batch has samples.
const SMALL: &str = "\
gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,iteration_ms
4,8,2,256,4,2,128,1,4,1,20
4,8,4,256,4,2,128,2,2,1,30
4,8,16,256,4,2,128,1,4,1,30
";

fn place(text: &str) -> Place {
    let place = Place::new();
    fs::write(place.path("small.csv"), text).expect("the place can be written");
    place
}

#[test]
fn errors_and_refusals_are_printed() {
    let place = place(SMALL);
    let outcome = place.run("validate small.csv --rows").succeeds();
    let said = |text: &str| outcome.check(outcome.stdout.contains(text), &format!("no {text:?}"));
    said("gpt-2x256, 4 devices: dp 2, tp 2, micro-batch 4");
    said("1 not predicted: numbers do not fit together");
    said("small.csv          3         2");
    said("worst regret");
    let outcome = place.run("validate small.csv --rows --json").succeeds();
    let answer = outcome.object();
    let file = &answer["files"][0];
    outcome.check(file["all"]["rows"] == 3 && file["all"]["refused"] == 1, "not one of three");
    outcome.check(file["all"]["regret"]["groups"] == 1, "not one group");
    outcome.check(file["lines"].as_array().map_or(0, Vec::len) == 3, "not a line for each row");
    outcome.check(file["lines"][0]["measured_seconds"] == 0.02, "another time was measured");
}

#[test]
fn bad_files_and_texts_are_refused() {
    let place = place(&SMALL.replace("4,8,4,256,4,2", "4,8,4,256,-4,2"));
    let outcome = place.run("validate small.csv");
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    let what = "small.csv:3: column heads: a whole number from 0 up is needed, not \"-4\"";
    outcome.check(outcome.stderr.contains(what), "not the line and the column");
    let place = self::place(SMALL);
    let outcome = place.run("validate small.csv --only llama");
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stderr.contains("--only llama: no row has that"), "not what is wrong");
}

/// A stack with what its file says of residuals.
fn stack(residuals: &str) -> String {
    format!("name = \"mine\"\nsource = \"made up\"\n{residuals}")
}

#[test]
fn rows_in_the_interval_are_counted() {
    let place = place(SMALL);
    place.write("mine.toml", stack(""));
    let outcome = place.run("validate small.csv --stack mine.toml --rows --json").succeeds();
    let answer = outcome.object();
    outcome.check(answer["interval"].is_null(), "an interval without residuals");
    outcome.check(answer.get("residuals").is_none(), "residuals that nobody asked for");
    let ratio = |line: usize| {
        let line = &answer["files"][0]["lines"][line];
        let number = |key: &str| line[key].as_f64().expect("a time");
        number("measured_seconds") / number("predicted_seconds")
    };
    let [first, second] = [ratio(0), ratio(1)];
    // About the first row, so narrow that the second is outside.
    let (low, high) = (0.99 * first, 1.01 * first);
    assert!(second < low || second > high, "{first} and {second}");
    let residuals = format!(
        "[[residuals]]\nof = \"all\"\ndevices = [\"a100-80g\"]\nrows = 15\nlow = {low}\nhigh = {high}\n"
    );
    place.write("mine.toml", stack(&residuals));
    let outcome = place.run("validate small.csv --stack mine.toml --json").succeeds();
    let answer = outcome.object();
    for found in [&answer["interval"], &answer["files"][0]["all"]["interval"]] {
        outcome.check(found["rows"] == 2 && found["inside"] == 1, "not one of two");
        let half_width = found["half_width"].as_f64().expect("a width");
        outcome.check((half_width - 0.01 * first).abs() < 1e-9, "another width");
    }
    let outcome = place.run("validate small.csv small.csv --stack mine.toml").succeeds();
    let said = |rows: usize| {
        let width = format!("{:.1}%", first);
        format!("  in the 80% interval: 50.0% of {rows} rows, half-width {width}\n")
    };
    let all = format!("\nall files\n{}", said(4));
    outcome.check(outcome.stdout.matches(&said(2)).count() == 2, "not of each file");
    outcome.check(outcome.stdout.contains(&all), "not of all files");
}

#[test]
fn rows_that_the_software_was_not_calibrated_on_are_counted_apart() {
    let several_nodes = "16,32,2,256,4,2,128,1,16,1,20\n";
    let place = place(&format!("{SMALL}{several_nodes}"));
    let residuals = "[[residuals]]\nof = \"one-node\"\ndevices = [\"a100-80g\"]\nrows = 15\nlow = 0.5\nhigh = 2.0\n";
    place.write("mine.toml", stack(residuals));
    let command = "validate small.csv --stack mine.toml";
    let interval = place.run(&format!("{command} --json")).succeeds().object()["interval"].clone();
    assert_eq!((&interval["rows"], &interval["without"]), (&2.into(), &1.into()));
    let outcome = place.run(command).succeeds();
    let said =
        "; 1 row more without one, as the software was not calibrated on such devices and steps\n";
    outcome.check(outcome.stdout.contains(said), "nothing is said of the third");
    place.write("mine.toml", stack(&residuals.replace("one-node", "all")));
    let outcome = place.run(command).succeeds();
    outcome.check(!outcome.stdout.contains("more without one"), "all have an interval");
}

#[test]
fn residuals_are_printed_as_stacks_have_them() {
    // One plan sixteen times, measured to take 10 to 25 ms.
    let (header, row) = (SMALL.lines().next().expect("a header"), "4,8,2,256,4,2,128,1,4,1");
    let rows: String = (10..26).map(|it| format!("{row},{it}\n")).collect();
    let place = place(&format!("{header}\n{rows}"));
    place.write("mine.toml", stack(""));
    let command = "validate small.csv --stack mine.toml --rows --residuals";
    let answer = place.run(&format!("{command} --json")).succeeds().object();
    let predicted = answer["files"][0]["lines"][0]["predicted_seconds"].as_f64().expect("a time");
    let group = &answer["residuals"][0];
    assert_eq!((&group["of"], &group["rows"]), (&"all".into(), &16.into()));
    // Places 1.5 and 13.5 of 0 to 15.
    for (index, right) in [0.0115, 0.0235].into_iter().enumerate() {
        let found = group["quantiles"][index].as_f64().expect("a number");
        assert!((found * predicted - right).abs() < 1e-9, "{index} {found}");
    }
    let outcome = place.run(command).succeeds();
    let (_, printed) =
        outcome.stdout.split_once("# mine: no model can be left out\n").expect("TOML");
    place.write("mine.toml", stack(printed));
    let outcome = place.run("validate small.csv --stack mine.toml").succeeds();
    let said = "in the 80% interval: 75.0% of 16 rows";
    outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    // Of 14 rows nothing is said.
    let short: Vec<&str> = rows.lines().take(14).collect();
    place.write("small.csv", format!("{header}\n{}\n", short.join("\n")));
    let outcome = place.run(command).succeeds();
    let said = "# mine, all: too few rows, 14 of at least 15";
    outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
}

#[test]
fn a_page_has_every_predicted_row_and_escapes_what_files_say() {
    let place = place(SMALL);
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../validate/data/korthikanti22_table5.csv");
    let published =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../validate/data/nanotron_ultrascale_h100.csv");
    let text = fs::read_to_string(published).expect("the project's data");
    let lines: Vec<&str> = text.lines().take(2).collect();
    // A row whose model is markup.
    place.write("evil.csv", lines.join("\n").replace("nanotron-1.34B", "<b onload=x>"));
    let files = format!("{data} small.csv evil.csv");
    place.run(&format!("validate {files} --html page.html")).succeeds();
    let page = fs::read_to_string(place.path("page.html")).expect("a page");
    // Four measurements, two, and one whose time is not compared but its memory is.
    let rows = page.matches("<tr id=\"row-").count();
    assert_eq!(rows, 7, "rows of the page");
    assert!(page.contains("&lt;b onload=x&gt;") && !page.contains("<b onload"));
    assert!(page.contains("computing "), "nothing says what takes the time");
    assert!(page.contains("numbers do not fit together"), "a refused row is not told of");
    let outcome = place.run(&format!("validate {files} --html page.html"));
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stderr.contains("page.html exists"), "not why");
    place.run(&format!("validate {files} --html page.html --force")).succeeds();
}

#[test]
fn single_operators_are_held_against_the_model_of_their_device() {
    let place = place(SMALL);
    place.write(
        "operators.csv",
        "device,operator,pass,format,batch,m,n,k,library,bytes,seconds\n\
         H200,gelu,forward,bf16,1,4096,4096,1,eager,67108864,2e-5\n\
         H200,contract,forward,bf16,1,4096,4096,4096,cublas,,2e-4\n\
         Abacus,contract,forward,bf16,1,8,8,8,hand,,2e-4\n",
    );
    let outcome = place.run("validate operators.csv --json").succeeds();
    let file = &outcome.object()["files"][0];
    outcome.check(file["operators"].as_array().map(Vec::len) == Some(2), "not two operators");
    outcome.check(file["operators"][0]["errors"]["rows"] == 1, "not a row of each");
    outcome.check(file["refusals"][0]["rows"] == 1, "what has no preset is not refused");
    let outcome = place.run("validate operators.csv small.csv --html page.html").succeeds();
    for said in ["gelu.forward", "contract.forward", "no preset of the hardware", "small.csv"] {
        outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    }
    let page = fs::read_to_string(place.path("page.html")).expect("a page");
    assert!(page.contains("gelu.forward") && page.contains("no preset of the hardware"));
    let outcome = place.run("validate operators.csv --only contract").succeeds();
    outcome.check(!outcome.stdout.contains("gelu"), "more than was asked for");
}

#[test]
fn rows_say_what_the_predicted_time_goes_to() {
    let place = place(SMALL);
    let outcome = place.run("validate small.csv --rows --json").succeeds();
    let answer = outcome.object();
    let shares = answer["files"][0]["lines"][0]["shares"].as_object().expect("shares").clone();
    let sum: f64 = shares.values().filter_map(|it| it.as_f64()).sum();
    outcome.check(shares.len() == 4 && (sum - 1.0).abs() < 1e-9, "they do not add up to 1");
    outcome.check(answer["files"][0]["lines"][2]["shares"].is_null(), "of a row that is refused");
}

/// Rows of one model, each measured to take what a stack with twice the memory time is predicted to.
#[test]
fn a_fitted_stack_is_written_and_read_again() {
    let place = place(&SMALL.lines().take(3).map(|it| it.to_owned() + "\n").collect::<String>());
    let residuals =
        "[[residuals]]\nof = \"all\"\ndevices = [\"a100-80g\"]\nrows = 40\nlow = 0.9\nhigh = 1.2\n";
    let own = |memory_time: f64| {
        let head = "name = \"mine\"\nsource = \"made up\"\n";
        format!("{head}memory_time = {memory_time:?}\n{residuals}")
    };
    place.write("mine.toml", own(2.0));
    let answer =
        place.run("validate small.csv --stack mine.toml --rows --json").succeeds().object();
    let milliseconds = |line: usize| {
        1e3 * answer["files"][0]["lines"][line]["predicted_seconds"].as_f64().expect("a time")
    };
    let lines: Vec<&str> = SMALL.lines().collect();
    let [first, second] = [(1, milliseconds(0)), (2, milliseconds(1))].map(|(line, time)| {
        let (row, _) = lines[line].rsplit_once(',').expect("a time");
        format!("{row},{time}\n")
    });
    place.write("small.csv", format!("{}\n{first}{second}", lines[0]));
    place.write("mine.toml", own(1.5));
    let fit = "validate small.csv --stack mine.toml --fit memory_time -o fitted.toml";
    let outcome = place.run(&format!("{fit} --json")).succeeds();
    let found = outcome.object();
    let constant = &found["constants"][0];
    outcome.check(constant["before"] == 1.5 && constant["rows"] == 2, "another constant");
    let after = constant["after"].as_f64().expect("a value");
    outcome.check((after / 2.0 - 1.0).abs() < 0.02, "not the one that rows were made with");
    outcome.check(found["error_after"].as_f64() < Some(0.01), "an error is left");
    let answer = place.run("validate small.csv --stack fitted.toml --json").succeeds().object();
    let error = answer["files"][0]["all"]["step"]["mean_absolute"].as_f64().expect("an error");
    assert_eq!(Some(error), found["error_after"].as_f64(), "the file is another stack");
    // What was said of residuals was of the stack before.
    let fitted = std::fs::read_to_string(place.path("fitted.toml")).expect("written");
    assert!(!fitted.contains("residuals"), "{fitted}");
    // Not over the file, and for people.
    let outcome = place.run(fit);
    outcome.check(outcome.status == Some(2), "exit status is not 2");
    outcome.check(outcome.stderr.contains("fitted.toml exists"), "not why");
    let outcome = place.run(&format!("{fit} --force")).succeeds();
    for said in ["memory_time  1.5000", "mean error: ", "all rows are of one source and one model"]
    {
        outcome.check(outcome.stdout.contains(said), &format!("no {said:?}"));
    }
}

#[test]
fn what_cannot_be_fitted_is_refused() {
    let place = place(SMALL);
    let refuses = |arguments: &str, hint: &str| {
        place.run(&format!("validate {arguments} --json")).refuses("usage", hint);
    };
    refuses(
        "small.csv --fit kernel_second",
        "kernel_second is no constant of the stack megatron-2021",
    );
    refuses("small.csv --fit kernel_second", "host.kernel_seconds");
    refuses("small.csv --fit host.share_seconds", "is 0 under the stack megatron-2021");
    refuses("small.csv --fit memory_time,memory_time", "is there twice");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../validate/data/internevo.csv");
    refuses(&format!("small.csv {data} --fit memory_time"), "internevo, megatron-2021");
    refuses("small.csv -o mine.toml", "--fit");
    refuses("small.csv --fit memory_time --html page.html", "--html");
}
