//! The differences between two plans.

use crate::Plan;

/// How many characters of a value are shown to people.
const MOST_SHOWN: usize = 100;

/// One field in which two plans differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path of the field.
    pub key: String,
    /// Its value in the first plan; none if absent.
    pub before: Option<String>,
    /// Its value in the second plan; none if absent.
    pub after: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value: &Option<String>| match value {
            None => "absent".into(),
            Some(value) => match value.char_indices().nth(MOST_SHOWN) {
                Some((end, _)) => {
                    format!("{}.. ({} characters)", &value[..end], value.chars().count())
                }
                None => value.clone(),
            },
        };
        write!(out, "{}: {} -> {}", self.key, text(&self.before), text(&self.after))
    }
}

/// All fields in which `before` and `after` differ, in the order of their paths.
pub fn diff(before: &Plan, after: &Plan) -> Vec<Difference> {
    let table = |plan: &Plan| {
        toml::Value::try_from(plan).expect("a plan has only tables, arrays, strings and numbers")
    };
    let mut differences = vec![];
    compare("", Some(&table(before)), Some(&table(after)), &mut differences);
    differences
}

fn compare(
    key: &str,
    before: Option<&toml::Value>,
    after: Option<&toml::Value>,
    differences: &mut Vec<Difference>,
) {
    if before == after {
        return;
    }
    let children = |value: Option<&toml::Value>| -> Option<Vec<String>> {
        match value {
            Some(toml::Value::Table(table)) => Some(table.keys().cloned().collect()),
            Some(toml::Value::Array(array)) => {
                Some((0..array.len()).map(|index| index.to_string()).collect())
            }
            _ => None,
        }
    };
    fn child<'v>(value: Option<&'v toml::Value>, name: &str) -> Option<&'v toml::Value> {
        match value? {
            toml::Value::Table(table) => table.get(name),
            toml::Value::Array(array) => array.get(name.parse::<usize>().ok()?),
            _ => None,
        }
    }
    match (children(before), children(after)) {
        (Some(mut names), Some(others)) => {
            names.extend(others.into_iter().filter(|name| child(before, name).is_none()));
            for name in names {
                let path = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                compare(&path, child(before, &name), child(after, &name), differences);
            }
        }
        _ => {
            let text = |value: Option<&toml::Value>| value.map(ToString::to_string);
            let key = key.to_owned();
            differences.push(Difference { key, before: text(before), after: text(after) });
        }
    }
}
