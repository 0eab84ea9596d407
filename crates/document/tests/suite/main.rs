//! What is said of documents that are wrong.

mod places;
mod words;

use serde::Deserialize;
use shardloom_document::{
    Fault, json_fault, json_fault_in, json_line_of, json_line_of_path, nearest, toml_fault,
    toml_line_of,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // Only how it is refused matters.
struct Sizes {
    layers: usize,
    #[serde(default)]
    zero: u8,
    #[serde(default)]
    rate: f64,
    #[serde(default)]
    tied: bool,
    #[serde(default)]
    name: String,
    #[serde(default)]
    blocks: [usize; 2],
    #[serde(default)]
    order: Option<Order>,
    #[serde(default)]
    inner: Option<Box<Sizes>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    ZbH1,
    ZbV,
}

fn of_toml(text: &str) -> String {
    let error = toml::from_str::<Sizes>(text).expect_err(text);
    let Fault { line, message } = toml_fault(text, &error);
    format!("{}: {message}", line.unwrap_or(0))
}

fn of_json(text: &str) -> String {
    let error = serde_json::from_str::<Sizes>(text).expect_err(text);
    let Fault { line, message } = json_fault(&error);
    format!("{}: {message}", line.unwrap_or(0))
}

#[test]
fn json_is_wrong_within_a_key_whose_line_is_named() {
    let said = |text: &str| {
        let error = serde_json::from_str::<Sizes>(text).expect_err(text);
        json_fault_in(text, &error).to_string()
    };
    assert_eq!(
        said("{\"layers\": 1,\n\"inner\": {\n\"zero\": 1\n}}"),
        "line 2: inner: the key `layers` is missing"
    );
    assert_eq!(
        said("{\"layers\": 1,\n\"inner\": {\n\"layers\": \"a { b\"}}"),
        "line 3: inner.layers: a whole number is needed, not the text \"a { b\""
    );
    assert_eq!(said("{\"zero\": 1}"), "line 1: the key `layers` is missing");
    assert_eq!(said("{\n\"layers\": }"), "line 2: it is no JSON: a value is needed here");
}

#[test]
fn keys_of_json_may_have_dots() {
    let text = "{\"map\": {\n\"a.b\": 1,\n\"a\": {\"b\": 2}}}";
    assert_eq!(json_line_of_path(text, &["map", "a.b"]), Some(2));
    assert_eq!(json_line_of_path(text, &["map", "a", "b"]), Some(3));
    assert_eq!(json_line_of(text, "map.a.b"), Some(3));
}

#[test]
fn no_types_are_named() {
    for (line, said) in [
        ("layers = \"x\"", "1: layers: a whole number is needed, not the text \"x\""),
        ("layers = -1", "1: layers: a whole number from 0 up is needed, not -1"),
        ("layers = 1.5", "1: layers: a whole number is needed, not 1.5"),
        ("layers = [1]", "1: layers: a whole number is needed, not a list"),
        ("layers = { a = 1 }", "1: layers: a whole number is needed, not a table"),
        ("layers = 1\nzero = 300", "2: zero: a whole number from 0 to 255 is needed, not 300"),
        ("layers = 1\nrate = \"fast\"", "2: rate: a number is needed, not the text \"fast\""),
        ("layers = 1\ntied = 1", "2: tied: true or false is needed, not 1"),
        ("layers = 1\nname = 1", "2: name: text in quotes is needed, not 1"),
        ("layers = 1\nblocks = 1", "2: blocks: a list of 2 values is needed, not 1"),
        ("layers = 1\ninner = 1", "2: inner: a table of keys and values is needed, not 1"),
        ("zero = 1", "1: the key `layers` is missing"),
        ("layers = 1\nlayrs = 2", "2: unknown key `layrs`, did you mean `layers`?; known: "),
        (
            "layers = 1\norder = \"zbv\"",
            "2: order: there is no `zbv`, did you mean `zb-v`?; known: zb-h1, zb-v",
        ),
        (
            "layers = 1\n[inner]\nlayers = true",
            "3: inner.layers: a whole number is needed, not true",
        ),
        ("layers", "1: it is no TOML: "),
    ] {
        assert!(of_toml(line).starts_with(said), "{line}\n{}\n{said}", of_toml(line));
    }
}

#[test]
fn no_key_stands_before_words_that_name_one() {
    for (text, said) in [
        ("layers = 1\ninner = { layers = 1, layrs = 2 }", "2: unknown key `layrs`, "),
        ("layers = 1\ninner = { zero = 1 }", "2: the key `layers` is missing"),
    ] {
        assert!(of_toml(text).starts_with(said), "{text}\n{}\n{said}", of_toml(text));
    }
}

#[test]
fn json_is_refused_in_the_same_words() {
    for (text, said) in [
        ("{\n\"layers\": \"x\"}", "2: a whole number is needed, not the text \"x\""),
        ("{\"layers\": null}", "1: a whole number is needed, not nothing"),
        ("{\"layers\": 1,\n\"layrs\": 2}", "2: unknown key `layrs`, did you mean `layers`?"),
        ("{\"layers\": ", "1: it is no JSON: the text ends where a value is needed"),
        ("{\"layers\": 1,}", "1: it is no JSON: a comma stands behind the last value"),
        ("", "1: it is no JSON: the text ends where a value is needed"),
        (
            &format!("{{\"layers\": {}x}}", " ".repeat(100)),
            "1: it is no JSON: a value is needed here, at column 112",
        ),
    ] {
        assert!(of_json(text).starts_with(said), "{text}\n{}\n{said}", of_json(text));
    }
}

#[test]
fn the_line_of_a_key_is_found_or_of_what_is_around_it() {
    let text = "a = 1\n[b]\nc = [\n  1,\n  2,\n]\n";
    assert_eq!(toml_line_of(text, "b.c[1]"), Some(5));
    assert_eq!(toml_line_of(text, "b.d"), Some(2));
    assert_eq!(toml_line_of(text, "e"), None);
    let text =
        "{\n \"x\": {\"b\": [\n  {\"c\": \"\\\"a\"}]},\n \"a\": \"b\",\n \"b\": {\n  \"c\": 1}\n}";
    serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(json_line_of(text, "b.c"), Some(6));
    assert_eq!(json_line_of(text, "b.d"), Some(5));
    assert_eq!(json_line_of(text, "a"), Some(4));
    assert_eq!(json_line_of(text, "c"), None);
    for broken in ["{\"a", "{\"a\\", "]}", "\"é"] {
        assert_eq!(json_line_of(broken, "a"), None, "{broken}");
    }
}

#[test]
fn only_what_is_similar_is_suggested() {
    let names = ["zero_optimization", "optimizer"];
    assert_eq!(nearest("zero_optimisation", names), Some("zero_optimization"));
    assert_eq!(nearest("scheduler", names), None);
}

#[derive(Debug, Deserialize)]
#[allow(dead_code)] // Only how it is refused matters.
struct Run {
    rule: Rule,
    #[serde(default)]
    order: When,
}

/// Its form depends on a word in it, so that the library forgets where its values stood.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(dead_code)] // Only how it is refused matters.
enum Rule {
    Steps { rate: f64, decay: f64 },
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum When {
    #[default]
    First,
}

#[test]
fn values_of_tables_of_a_kind_are_found_by_what_is_wrong_with_them() {
    let said = |text: &str| {
        let error = toml::from_str::<Run>(text).expect_err(text);
        let Fault { line, message } = toml_fault(text, &error);
        format!("{}: {message}", line.unwrap_or(0))
    };
    for (line, message) in [
        ("decay = \"x\"", "5: rule.decay: a number is needed, not the text \"x\""),
        ("decay = true", "5: rule.decay: a number is needed, not true"),
        ("decay = []", "5: rule.decay: a number is needed, not a list"),
        ("deccay = 0.5", "5: unknown key `deccay`, did you mean `decay`?; known: rate, decay"),
        ("decay = 99999999999999999999", "5: rule.decay: "),
        ("", "2: the key `decay` is missing"),
    ] {
        let text = format!("\n[rule]\nkind = \"steps\"\nrate = 1.0\n{line}\n");
        let found = said(&text);
        assert!(found.starts_with(message), "{found} instead of {message}");
    }
    let order = said("order = 1e300\nrule = {kind = \"steps\", rate = 1.0, decay = 0.0}\n");
    assert_eq!(order, "1: order: a word in quotes is needed, or a table");
}
