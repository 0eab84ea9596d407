//! Optimizers by the text that names them.

use shardloom_document::{in_words, nearest};
use shardloom_plan::Optimizer;
use toml::{Table, Value};

use crate::{Error, Result};

/// Settings and what they are if the text does not say; some are then not set.
type Settings = &'static [(&'static str, Option<f64>)];

const KINDS: [(&str, Settings); 4] = [
    ("sgd", &[("momentum", Some(0.9)), ("weight_decay", Some(0.0)), ("reference_batch", None)]),
    (
        "adamw",
        &[
            ("beta1", Some(0.9)),
            ("beta2", Some(0.95)),
            ("epsilon", Some(1e-8)),
            ("weight_decay", Some(0.1)),
        ],
    ),
    (
        "lamb",
        &[
            ("beta1", Some(0.9)),
            ("beta2", Some(0.999)),
            ("epsilon", Some(1e-6)),
            ("weight_decay", Some(0.01)),
        ],
    ),
    (
        "adafactor",
        &[
            ("decay_exponent", Some(0.8)),
            ("clip", Some(1.0)),
            ("least_parameter_rms", Some(1e-3)),
            ("weight_decay", Some(0.0)),
        ],
    ),
];

/// The names that [`parse_optimizer`] knows.
pub fn optimizer_names() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().map(|(name, _)| name)
}

/// The optimizer that `text` names: `sgd`, `adamw`, `lamb` or `adafactor`, with settings after a colon
/// where they are not the usual ones. Usual are momentum 0.9; for AdamW what GPT-3 was trained with
/// (Brown et al. 2020, appendix B); for LAMB You et al. 2020; for Adafactor Shazeer and Stern 2018,
/// section 8.
///
/// ```
/// use shardloom::parse_optimizer;
/// use shardloom::plan::Optimizer;
///
/// assert_eq!(parse_optimizer("adamw")?, Optimizer::default());
/// assert_eq!(parse_optimizer("sgd:momentum=0")?, Optimizer::sgd(0.0));
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// If there is no such optimizer, it has no such setting, or a value is no number. Whether numbers make
/// sense is checked with the plan.
pub fn parse_optimizer(text: &str) -> Result<Optimizer> {
    let wrong = |rule: String| Error::Optimizer { text: text.into(), rule };
    let (kind, pairs) = text.split_once(':').unwrap_or((text, ""));
    let Some(&(kind, settings)) =
        KINDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(kind.trim()))
    else {
        let names = KINDS.map(|(name, _)| name);
        let near = nearest(&kind.trim().to_ascii_lowercase(), names);
        let near = near.map_or_else(String::new, |name| format!("did you mean {name:?}? "));
        let names = names.join(", ");
        return Err(wrong(format!("{near}there are {names}, as in sgd:momentum=0.9")));
    };
    let mut table = Table::new();
    table.insert("kind".into(), kind.into());
    for &(key, usual) in settings {
        table.extend(usual.map(|usual| (key.to_owned(), Value::Float(usual))));
    }
    for pair in pairs.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| wrong(format!("{pair:?} is no pair key=value")))?;
        let key = key.trim();
        if !settings.iter().any(|(name, _)| *name == key) {
            let names: Vec<&str> = settings.iter().map(|&(name, _)| name).collect();
            return Err(wrong(format!("the settings of {kind} are {}", names.join(", "))));
        }
        let value = value.trim();
        let number = (value.parse().map(Value::Integer))
            .or_else(|_| value.parse().map(Value::Float))
            .map_err(|_| wrong(format!("{key} needs a number, not {value:?}")))?;
        table.insert(key.into(), number);
    }
    table.try_into().map_err(|error: toml::de::Error| wrong(in_words(error.message())))
}

/// The text that [`parse_optimizer`] reads as `optimizer`: its name, and after a colon the settings that are not the
/// usual ones.
pub(crate) fn optimizer_text(optimizer: &Optimizer) -> String {
    let name = optimizer.name();
    let settings = |it: Optimizer| Table::try_from(it).expect("an optimizer is a table");
    let usual = settings(parse_optimizer(name).expect("it is one of the kinds"));
    let own = settings(*optimizer).into_iter().filter(|(key, value)| usual.get(key) != Some(value));
    let changed: Vec<String> = own.map(|(key, value)| format!("{key}={value}")).collect();
    match changed.is_empty() {
        true => name.to_owned(),
        false => format!("{name}:{}", changed.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_is_read_from_its_text() {
        for (kind, settings) in KINDS {
            let usual = parse_optimizer(kind).expect("bare");
            assert_eq!(optimizer_text(&usual), *kind);
            for (key, of_usual) in settings {
                let value = if of_usual.is_some() { "0.25" } else { "32" };
                let text = format!("{kind}:{key}={value}");
                let changed = parse_optimizer(&text).expect("a setting");
                assert_eq!(optimizer_text(&changed), text);
                assert_eq!(parse_optimizer(&optimizer_text(&changed)).expect("its text"), changed);
            }
        }
    }

    #[test]
    fn every_kind_parses_bare_and_with_each_setting() {
        for (kind, settings) in KINDS {
            parse_optimizer(kind).expect("bare");
            for (key, usual) in settings {
                let (text, value) = match usual {
                    Some(_) => ("0.25", Value::Float(0.25)),
                    None => ("32", Value::Integer(32)),
                };
                let changed = parse_optimizer(&format!("{kind}:{key}={text}")).expect("a setting");
                let table = Table::try_from(changed).expect("a table");
                assert_eq!(table[*key], value, "{kind} {key}");
            }
        }
    }

    #[test]
    fn settings_are_apart_by_commas_and_what_is_left_out_is_usual() {
        let found = parse_optimizer(" adamw : beta1 = 0.5 , weight_decay=2,").expect("a text");
        let right = Optimizer::Adamw { beta1: 0.5, beta2: 0.95, epsilon: 1e-8, weight_decay: 2.0 };
        assert_eq!(found, right);
        assert_eq!(parse_optimizer("sgd:").expect("a text"), Optimizer::sgd(0.9));
        for (kind, settings) in [
            (
                "lamb",
                &[("beta1", 0.9), ("beta2", 0.999), ("epsilon", 1e-6), ("weight_decay", 0.01)][..],
            ),
            (
                "adafactor",
                &[
                    ("decay_exponent", 0.8),
                    ("clip", 1.0),
                    ("least_parameter_rms", 1e-3),
                    ("weight_decay", 0.0),
                ],
            ),
        ] {
            let table = Table::try_from(parse_optimizer(kind).expect("bare")).expect("a table");
            for (key, usual) in settings {
                assert_eq!(table[*key], Value::Float(*usual), "{kind} {key}");
            }
        }
    }

    #[test]
    fn wrong_texts_are_told_what_there_is() {
        for (text, hint) in [
            ("adam", "sgd, adamw, lamb, adafactor"),
            ("sgd:beta1=0.9", "momentum, weight_decay"),
            ("sgd:momentum", "key=value"),
            ("sgd:momentum=fast", "needs a number"),
            ("sgd:reference_batch=0.5", "0.5"),
            ("sgd:reference_batch=-1", "-1"),
            ("", "sgd"),
        ] {
            let error = parse_optimizer(text).expect_err(text).to_string();
            assert!(error.contains(hint), "{error}");
        }
    }
}
