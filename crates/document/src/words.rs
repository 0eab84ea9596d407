//! What the library that turns texts into values says, in words that name no types.

use std::cmp::Reverse;

/// A message of Serde's without the types that it names: what is needed, and what there is.
pub fn in_words(message: &str) -> String {
    let message = message.trim_end();
    translated(message).unwrap_or_else(|| message.to_owned())
}

fn translated(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("invalid type: ") {
        let (found, wanted) = rest.rsplit_once(", expected ")?;
        return Some(format!("{}, not {}", needed(wanted, false), value(&without_type(found))));
    }
    if let Some(rest) = message.strip_prefix("invalid value: ") {
        let (found, wanted) = rest.rsplit_once(", expected ")?;
        let is_negative = found.starts_with("integer `-");
        let needed = match wanted {
            "u8" | "u16" | "u32" if is_negative => needed("usize", true),
            _ => needed(wanted, true),
        };
        return Some(format!("{needed}, not {}", value(&without_type(found))));
    }
    if let Some(rest) = message.strip_prefix("invalid length ") {
        let (found, wanted) = rest.rsplit_once(", expected ")?;
        return Some(format!("{}, not of {found}", needed(wanted, false)));
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        return Some(format!("the key {key} is missing"));
    }
    if let Some(key) = message.strip_prefix("duplicate field ") {
        return Some(format!("the key {key} stands here twice"));
    }
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return Some(format!("unknown key {}", among(rest)?));
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        return Some(format!("there is no {}", among(rest)?));
    }
    if message.starts_with("data did not match any variant") {
        return Some("a value of another form is needed".into());
    }
    match message {
        "wanted string or table" => Some(needed("string or table", false)),
        "expected a sequence" => Some("a list is needed".into()),
        "expected a map" => Some("a table is needed".into()),
        _ => None,
    }
}

/// What is there without the type that a large number is read as: "integer `1` as i128".
fn without_type(found: &str) -> String {
    match found.split_once("` as ") {
        Some((found, _)) => format!("{found}`"),
        None => found.to_owned(),
    }
}

/// A word that is not known, the nearest that is, and all: from "`a`, expected one of `b`, `c`".
fn among(rest: &str) -> Option<String> {
    let Some((asked, known)) = rest.split_once(", expected ") else {
        let (asked, _) = rest.split_once(", there are no ")?;
        return Some(format!("{asked}, and no other is possible here"));
    };
    // Names stand between backquotes.
    let names: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let near = nearest(asked.trim_matches('`'), names.iter().copied());
    let near = near.map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
    Some(format!("{asked}{near}; known: {}", names.join(", ")))
}

/// The name that is most similar to `asked`, if one is similar enough to be meant: of several rather the one of which a
/// letter was left out than one that had fewer.
pub fn nearest<'a>(asked: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance takes quadratic time; nobody mistypes a whole paragraph.
    if asked.len() > 64 {
        return None;
    }
    // Of a word of four letters no two are wrong.
    let most = 1 + asked.chars().count() / 5;
    names
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(asked, name), name))
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, name)| (distance, Reverse(name.len())))
        .map(|(_, name)| name)
}

/// What is needed, where this was expected; with the limits of whole numbers where one is beyond them.
fn needed(wanted: &str, with_limits: bool) -> String {
    let limit = |most: u128| match with_limits {
        true => format!("a whole number from 0 to {most} is needed"),
        false => "a whole number is needed".into(),
    };
    let count = |kind: &str| {
        let rest = wanted.strip_prefix(kind)?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    };
    match wanted {
        "u8" => return limit(u8::MAX.into()),
        "u16" => return limit(u16::MAX.into()),
        "u32" => return limit(u32::MAX.into()),
        "usize" | "u64" | "u128" if with_limits => {
            return "a whole number from 0 up is needed".into();
        }
        "usize" | "u64" | "u128" | "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => {
            return "a whole number is needed".into();
        }
        "a nonzero usize" | "a nonzero u32" | "a nonzero u64" | "a nonzero u16"
        | "a nonzero u8" => {
            return "a whole number from 1 up is needed".into();
        }
        "f32" | "f64" => return "a number is needed".into(),
        // What no type of number is large enough for.
        "any value" => return "a smaller number is needed".into(),
        "a boolean" => return "true or false is needed".into(),
        "a string" | "a borrowed string" | "string" => return "text in quotes is needed".into(),
        "a character" => return "a single character in quotes is needed".into(),
        "a sequence" | "an array" => return "a list is needed".into(),
        "a map" | "a table" => return "a table is needed".into(),
        "string or table" | "string or map" | "string only" => {
            return "a word in quotes is needed, or a table".into();
        }
        "variant identifier" | "field identifier" | "identifier" => {
            return "a word in quotes is needed".into();
        }
        _ => {}
    }
    let counted = count("a tuple of size ").or_else(|| count("an array of length "));
    if let Some(length) = counted.or_else(|| count("array of length ")) {
        return format!("a list of {length} values is needed");
    }
    if let Some(rest) = wanted.strip_prefix("tuple struct ") {
        let length = rest.split(" with ").nth(1).and_then(|it| it.split(' ').next());
        return match length {
            Some(length) => format!("a list of {length} values is needed"),
            None => "a list is needed".into(),
        };
    }
    if wanted.starts_with("struct ") || wanted.starts_with("internally tagged enum ") {
        return "a table of keys and values is needed".into();
    }
    if wanted.starts_with("enum ") {
        return "a word in quotes is needed".into();
    }
    format!("{wanted} is needed")
}

/// What there is.
fn value(found: &str) -> String {
    for kind in ["string ", "character "] {
        if let Some(text) = found.strip_prefix(kind) {
            return format!("the text {text}");
        }
    }
    for kind in ["integer ", "floating point ", "boolean "] {
        if let Some(number) = found.strip_prefix(kind) {
            return number.trim_matches('`').to_owned();
        }
    }
    match found {
        "sequence" => "a list".into(),
        "map" | "newtype variant" | "struct variant" => "a table".into(),
        "null" | "unit value" | "Option value" => "nothing".into(),
        "unit variant" | "enum" => "a word alone".into(),
        other => other.to_owned(),
    }
}
