//! What is needed and what is there, of every type that documents are read as.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shardloom_document::{in_words, json_fault, nearest};

/// What is said of a JSON text that is no `T`.
fn said<T: DeserializeOwned>(text: &str) -> String {
    match serde_json::from_str::<T>(text) {
        Ok(_) => panic!("{text} is one"),
        Err(error) => json_fault(&error).message,
    }
}

/// Likewise of a value that was read before.
fn said_of_value<T: DeserializeOwned>(text: &str) -> String {
    let value: Value = serde_json::from_str(text).expect("JSON");
    match serde_json::from_value::<T>(value) {
        Ok(_) => panic!("{text} is one"),
        Err(error) => in_words(&error.to_string()),
    }
}

#[derive(Deserialize)]
struct Pair(#[allow(dead_code)] u8, #[allow(dead_code)] u8);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
struct One {
    #[allow(dead_code)]
    layers: u8,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Forward,
    Backward,
    Wide(#[allow(dead_code)] u8),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    #[allow(dead_code)]
    Number(u8),
    #[allow(dead_code)]
    List(Vec<u8>),
}

#[derive(Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    #[allow(dead_code)]
    Steps { rate: f64 },
}

#[test]
fn what_is_there_is_called_by_its_kind() {
    for (text, there) in [
        ("null", "nothing"),
        ("true", "true"),
        ("1.5", "1.5"),
        ("-2.5", "-2.5"),
        ("\"x `y` z\"", "the text \"x `y` z\""),
        ("[1]", "a list"),
        ("{}", "a table"),
    ] {
        assert_eq!(said::<u32>(text), format!("a whole number is needed, not {there}"));
    }
    assert_eq!(said::<String>("7"), "text in quotes is needed, not 7");
    assert_eq!(said::<bool>("\"true\""), "true or false is needed, not the text \"true\"");
    for (found, there) in [
        ("unit value", "nothing"),
        ("Option value", "nothing"),
        ("newtype variant", "a table"),
        ("struct variant", "a table"),
        ("unit variant", "a word alone"),
        ("enum", "a word alone"),
        ("character `x`", "the text `x`"),
        ("something else", "something else"),
    ] {
        let message = format!("invalid type: {found}, expected a boolean");
        assert_eq!(in_words(&message), format!("true or false is needed, not {there}"));
    }
}

#[test]
fn limits_of_whole_numbers_are_told_of_numbers_beyond_them() {
    for (said, needed) in [
        (said::<u8>("256"), "from 0 to 255 is needed, not 256"),
        (said::<u16>("65536"), "from 0 to 65535 is needed, not 65536"),
        (said::<u32>("4294967296"), "from 0 to 4294967295 is needed, not 4294967296"),
        // What is negative is too small for any of them.
        (said::<u8>("-1"), "from 0 up is needed, not -1"),
        (said::<u16>("-70000"), "from 0 up is needed, not -70000"),
        (said::<u32>("-1"), "from 0 up is needed, not -1"),
        (said::<u64>("-1"), "from 0 up is needed, not -1"),
        (said::<usize>("-1"), "from 0 up is needed, not -1"),
        (said::<NonZeroUsize>("0"), "from 1 up is needed, not 0"),
        (said::<NonZeroU32>("0"), "from 1 up is needed, not 0"),
    ] {
        assert_eq!(said, format!("a whole number {needed}"));
    }
    // Nobody needs to know how long a signed number is.
    for said in [said::<i8>("300"), said::<i16>("300000"), said::<i32>("3000000000")] {
        assert!(said.starts_with("a whole number is needed, not 3"), "{said}");
    }
    // Nor limits where there is no number.
    for said in [said::<u8>("[]"), said::<u16>("[]"), said::<u32>("[]"), said::<u64>("[]")] {
        assert_eq!(said, "a whole number is needed, not a list");
    }
    for of in ["u8", "u16", "u32", "u64", "usize"] {
        let message = format!("invalid type: sequence, expected a nonzero {of}");
        assert_eq!(in_words(&message), "a whole number from 1 up is needed, not a list");
    }
}

#[test]
fn what_is_needed_is_said_of_every_kind_of_value() {
    for (said, needed) in [
        (said::<i64>("\"\""), "a whole number"),
        (said::<f32>("\"\""), "a number"),
        (said::<f64>("\"\""), "a number"),
        (said::<bool>("\"\""), "true or false"),
        (said::<char>("\"\""), "a single character in quotes"),
        (said::<Vec<u8>>("\"\""), "a list"),
        (said::<BTreeMap<String, u8>>("\"\""), "a table"),
        (said::<(u8, u8)>("\"\""), "a list of 2 values"),
        (said::<[u8; 3]>("\"\""), "a list of 3 values"),
        (said::<One>("\"\""), "a table of keys and values"),
        (said::<Tagged>("\"\""), "a table of keys and values"),
        (said::<Pair>("\"\""), "a list"),
    ] {
        assert_eq!(said, format!("{needed} is needed, not the text \"\""));
    }
    assert_eq!(
        said::<char>("\"ab\""),
        "a single character in quotes is needed, not the text \"ab\""
    );
    assert_eq!(said_of_value::<Order>("7"), "a word in quotes is needed, or a table, not 7");
    assert_eq!(said::<Either>("\"\""), "a value of another form is needed");
    for (message, said) in [
        ("wanted string or table", "a word in quotes is needed, or a table"),
        ("expected a sequence", "a list is needed"),
        ("expected a map\n", "a table is needed"),
        (
            "invalid type: map, expected variant identifier",
            "a word in quotes is needed, not a table",
        ),
        ("invalid type: map, expected enum Order", "a word in quotes is needed, not a table"),
        (
            "invalid type: map, expected string only",
            "a word in quotes is needed, or a table, not a table",
        ),
        ("invalid type: null, expected a date", "a date is needed, not nothing"),
    ] {
        assert_eq!(in_words(message), said);
    }
    for of in ["i8", "i16", "i32", "i64", "i128", "isize", "u128"] {
        let message = format!("invalid type: map, expected {of}");
        assert_eq!(in_words(&message), "a whole number is needed, not a table");
    }
    // What somebody's own rule says is in words already.
    assert_eq!(in_words("rates are above 0\n"), "rates are above 0");
}

#[test]
fn lists_of_another_length_are_told_both_lengths() {
    assert_eq!(said::<(u8, u8)>("[1]"), "a list of 2 values is needed, not of 1");
    assert_eq!(said::<[u8; 3]>("[1, 2]"), "a list of 3 values is needed, not of 2");
    assert_eq!(said::<Pair>("[1]"), "a list of 2 values is needed, not of 1");
}

/// The library says so of those that have more than 64 bits.
#[test]
fn large_numbers_are_told_without_the_type_that_they_were_read_as() {
    let number = "99999999999999999999";
    for (kind, needed) in [("invalid type", "f64"), ("invalid value", "f64")] {
        let message = format!("{kind}: integer `{number}` as i128, expected {needed}");
        assert_eq!(in_words(&message), format!("a number is needed, not {number}"));
    }
    let message = format!("invalid type: integer `{number}` as u128, expected any value");
    assert_eq!(in_words(&message), format!("a smaller number is needed, not {number}"));
}

#[test]
fn keys_that_are_missing_unknown_or_there_twice_are_named() {
    assert_eq!(said::<One>("{}"), "the key `layers` is missing");
    assert_eq!(said::<One>("{\"layers\": 1, \"layers\": 1}"), "the key `layers` stands here twice");
    assert_eq!(said::<One>("{\"zero\": 1}"), "unknown key `zero`; known: layers");
    assert_eq!(
        said::<One>("{\"layer\": 1}"),
        "unknown key `layer`, did you mean `layers`?; known: layers"
    );
    assert_eq!(said::<Nothing>("{\"a\": 1}"), "unknown key `a`, and no other is possible here");
    let known = "known: forward, backward, wide";
    assert_eq!(said::<Order>("\"sideways\""), format!("there is no `sideways`; {known}"));
    assert_eq!(
        said::<Order>("\"forwrad\""),
        format!("there is no `forwrad`, did you mean `forward`?; {known}")
    );
}

/// As many letters are others as a name of that length may have wrong: one, and one more for every four.
#[test]
fn a_name_is_near_if_one_letter_and_a_fifth_of_all_are_wrong_at_most() {
    for length in 1..=64 {
        let asked = "a".repeat(length);
        for wrong in 0..=length {
            let name = format!("{}{}", "b".repeat(wrong), "a".repeat(length - wrong));
            let expected = (wrong <= 1 + length / 5).then_some(name.as_str());
            assert_eq!(nearest(&asked, [name.as_str()]), expected, "{wrong} of {length}");
        }
    }
    let long = "a".repeat(65);
    assert_eq!(nearest(&long, [long.as_str()]), None);
    assert_eq!(nearest("", ["a"]), Some("a"));
    assert_eq!(nearest("", ["ab"]), None);
}

#[test]
fn of_several_names_the_nearest_is_suggested_and_of_equally_near_ones_the_first() {
    assert_eq!(nearest("abcd", ["abxy", "abcx", "xbcd"]), Some("abcx"));
    assert_eq!(nearest("abcd", ["xbcd", "abcx"]), Some("xbcd"));
    assert_eq!(nearest("abcd", ["abcd", "abcx"]), Some("abcd"));
    assert_eq!(nearest("abcd", ["abcx", "abcd"]), Some("abcd"));
    // Rather a letter was left out than one too many.
    assert_eq!(nearest("abcd", ["abc", "abcde"]), Some("abcde"));
    // Two letters that changed places are one mistake.
    assert_eq!(nearest("abc", ["acb"]), Some("acb"));
}
