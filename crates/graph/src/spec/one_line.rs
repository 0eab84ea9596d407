//! The one-line form of a model.

use std::fmt;

use serde::{Deserialize, Serialize};
use shardloom_document::in_words;
use toml::{Table, Value};

use super::document::Document;
use super::{ModelSpec, Network, did_you_mean, preset};
use crate::GraphError;

/// What a key's value is.
#[derive(Clone, Copy)]
enum Kind {
    Count,
    Real,
    Flag,
    Scaling,
    Counts,
}

impl Kind {
    fn rule(self) -> &'static str {
        match self {
            Kind::Count => "a whole number is needed",
            Kind::Real => "a finite number is needed, of at most 3.4e38",
            Kind::Flag => "true or false is needed",
            Kind::Counts => {
                "whole numbers are needed, as in 512-256-64, or 26x1000 for 26 times 1000"
            }
            Kind::Scaling => {
                "[factor, low frequency factor, high frequency factor, original positions] are needed, or \
                 [factor] alone"
            }
        }
    }

    fn read(self, text: &str) -> Option<Value> {
        match self {
            Kind::Count => text.parse::<u64>().ok()?.try_into().ok().map(Value::Integer),
            // By way of 32 bits, so that the shortest text of such a number gives it back exactly.
            Kind::Real => {
                let number = text.parse::<f32>().ok().filter(|number| number.is_finite())?;
                Some(Value::Float(f64::from(number)))
            }
            Kind::Flag => Some(Value::Boolean(text.parse().ok()?)),
            Kind::Counts => {
                let mut values = vec![];
                for item in text.split('-').filter(|_| !text.is_empty()) {
                    let (times, count) = item.split_once('x').unwrap_or(("1", item));
                    let times = times.trim().parse::<usize>().ok()?;
                    // A bound keeps a mistyped one from filling the memory.
                    if times == 0 || values.len().saturating_add(times) > MAX_COUNTS {
                        return None;
                    }
                    let count = Kind::Count.read(count.trim())?;
                    values.extend(std::iter::repeat_n(count, times));
                }
                Some(Value::Array(values))
            }
            Kind::Scaling => {
                let items: Vec<&str> =
                    text.strip_prefix('[')?.strip_suffix(']')?.split(',').map(str::trim).collect();
                let (factors, original) = match items[..] {
                    [_] => (&items[..], None),
                    [.., original] if items.len() == 4 => (&items[..3], Some(original)),
                    _ => return None,
                };
                let mut values = vec![];
                for factor in factors {
                    values.push(Kind::Real.read(factor)?);
                }
                if let Some(original) = original {
                    values.push(Kind::Count.read(original)?);
                }
                Some(Value::Array(values))
            }
        }
    }
}

/// A list in one line has no more numbers.
const MAX_COUNTS: usize = 100_000;

/// A key of a family: its name, its kind, and whether it must be given.
type Key = (&'static str, Kind, bool);

const GPT: &[Key] = &[
    ("layers", Kind::Count, true),
    ("hidden", Kind::Count, true),
    ("heads", Kind::Count, true),
    ("seq", Kind::Count, true),
    ("vocab", Kind::Count, true),
    ("padded_vocab", Kind::Count, false),
    ("ffn", Kind::Count, false),
    ("dropout", Kind::Real, false),
    ("attention_dropout", Kind::Real, false),
    ("embedding_dropout", Kind::Real, false),
    ("rotary", Kind::Count, false),
    ("rope_theta", Kind::Real, false),
    ("parallel", Kind::Flag, false),
    ("head_bias", Kind::Flag, false),
    ("tied", Kind::Flag, false),
    ("separate_loss", Kind::Flag, false),
    ("norm_epsilon", Kind::Real, false),
    ("init_std", Kind::Real, false),
];

const LLAMA: &[Key] = &[
    ("layers", Kind::Count, true),
    ("hidden", Kind::Count, true),
    ("heads", Kind::Count, true),
    ("kv_heads", Kind::Count, false),
    ("head_dim", Kind::Count, false),
    ("ffn", Kind::Count, true),
    ("seq", Kind::Count, true),
    ("vocab", Kind::Count, true),
    ("padded_vocab", Kind::Count, false),
    ("rope_theta", Kind::Real, false),
    ("rope_scaling", Kind::Scaling, false),
    ("windows", Kind::Counts, false),
    ("window_rope_theta", Kind::Real, false),
    ("attention_scalar", Kind::Count, false),
    ("attention_cap", Kind::Real, false),
    ("logit_cap", Kind::Real, false),
    ("norm_epsilon", Kind::Real, false),
    ("tied", Kind::Flag, false),
    ("separate_loss", Kind::Flag, false),
    ("qkv_bias", Kind::Flag, false),
    ("qk_norm", Kind::Flag, false),
    ("post_norms", Kind::Flag, false),
    ("geglu", Kind::Flag, false),
    ("scaled_embedding", Kind::Flag, false),
    ("zero_centered_gain", Kind::Flag, false),
    ("init_std", Kind::Real, false),
];

const MLP: &[Key] = &[
    ("inputs", Kind::Count, true),
    ("hidden", Kind::Count, true),
    ("layers", Kind::Count, true),
    ("classes", Kind::Count, true),
];

const LSTM: &[Key] = &[
    ("layers", Kind::Count, true),
    ("hidden", Kind::Count, true),
    ("embed", Kind::Count, true),
    ("vocab", Kind::Count, true),
    ("seq", Kind::Count, true),
    ("projection", Kind::Count, false),
    ("dropout", Kind::Real, false),
    ("tied", Kind::Flag, false),
    ("sampled_softmax", Kind::Count, false),
    ("forget_bias", Kind::Real, false),
    ("init_std", Kind::Real, false),
];

const DLRM: &[Key] = &[
    ("dense", Kind::Count, true),
    ("rows", Kind::Counts, true),
    ("row_multiple", Kind::Count, false),
    ("embed", Kind::Count, true),
    ("bottom", Kind::Counts, true),
    ("top", Kind::Counts, true),
    ("diagonal", Kind::Flag, false),
];

/// A family with parameters.
struct Family {
    name: &'static str,
    keys: &'static [Key],
    read: fn(Table) -> Result<Network, toml::de::Error>,
}

const FAMILIES: &[Family] = &[
    Family { name: "gpt", keys: GPT, read: |table| table.try_into().map(Network::Gpt) },
    Family { name: "llama", keys: LLAMA, read: |table| table.try_into().map(Network::Llama) },
    Family { name: "mlp", keys: MLP, read: |table| table.try_into().map(Network::Mlp) },
    Family {
        name: "u-transformer",
        keys: GPT,
        read: |table| table.try_into().map(Network::UTransformer),
    },
    Family { name: "lstm", keys: LSTM, read: |table| table.try_into().map(Network::Lstm) },
    Family { name: "dlrm", keys: DLRM, read: |table| table.try_into().map(Network::Dlrm) },
];

/// Reads one line.
pub(super) fn parse(text: &str) -> Result<ModelSpec, GraphError> {
    let text = text.trim();
    let (head, pairs) = match text.split_once(':') {
        Some((head, pairs)) => (head.trim(), pairs),
        None => (text, ""),
    };
    if head == "custom" {
        return parse_custom(pairs);
    }
    let pairs = split_pairs(head, pairs)?;
    // Letters may be of either case.
    let known = || FAMILIES.iter().map(|family| family.name).chain(preset::names());
    let head = known().find(|name| name.eq_ignore_ascii_case(head)).unwrap_or(head);
    if let Some(family) = FAMILIES.iter().find(|family| family.name == head) {
        return changed(head, family.name, family, Table::new(), pairs);
    }
    if !known().any(|name| name == head) {
        return Err(GraphError::Name {
            what: "model",
            name: head.chars().take(100).collect(),
            rule: format!(
                "there is no such family or preset{}; there are the families gpt, llama, mlp, \
                 u-transformer, lstm and dlrm (as in gpt:layers=24,hidden=2048,heads=16,seq=2048,vocab=51200) and the presets {}",
                did_you_mean(head, known()),
                preset::names().collect::<Vec<_>>().join(", ")
            ),
        });
    }
    let spec = preset::preset(head)?;
    let Some((family, table)) = table(&spec.network) else { return Ok(spec) };
    // With other sizes it is no longer the published model.
    let published = pairs.iter().all(|(key, _)| matches!(*key, "seq" | "name"));
    let name = if published { spec.name } else { format!("{head}-variant") };
    changed(head, &name, family, table, pairs)
}

fn parse_custom(text: &str) -> Result<ModelSpec, GraphError> {
    let document: Result<Document, _> =
        toml::de::ValueDeserializer::parse(text.trim()).and_then(Deserialize::deserialize);
    match document {
        Ok(document) => document.model("custom"),
        Err(error) => Err(GraphError::Text {
            place: "custom".into(),
            message: format!(
                "{}; after custom: comes a whole network as a TOML inline table",
                in_words(error.message())
            ),
        }),
    }
}

/// The `key=value` pairs; commas within brackets do not separate.
fn split_pairs<'a>(head: &str, text: &'a str) -> Result<Vec<(&'a str, &'a str)>, GraphError> {
    let mut depth = 0_usize;
    let separates = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    let mut pairs: Vec<(&str, &str)> = vec![];
    for pair in text.split(separates).map(str::trim).filter(|pair| !pair.is_empty()) {
        let error = |message: &str| GraphError::Text {
            place: format!("{head}:{pair}"),
            message: message.into(),
        };
        let (key, value) =
            pair.split_once('=').ok_or_else(|| error("a pair key=value is needed"))?;
        let (key, value) = (key.trim(), value.trim());
        if pairs.iter().any(|&(each, _)| each == key) {
            return Err(error("the key is given twice"));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// The model that `table` becomes with `pairs` laid over it.
fn changed(
    head: &str,
    name: &str,
    family: &Family,
    mut table: Table,
    pairs: Vec<(&str, &str)>,
) -> Result<ModelSpec, GraphError> {
    let names = || family.keys.iter().map(|&(key, ..)| key).chain(["name"]);
    let list = || names().collect::<Vec<_>>().join(", ");
    let mut name = name;
    for (key, text) in pairs {
        if key == "name" {
            name = text;
            continue;
        }
        let Some(&(_, kind, _)) = family.keys.iter().find(|&&(each, ..)| each == key) else {
            let hint = did_you_mean(key, names());
            let rule = format!("{head} has no such key{hint}; its keys are {}", list());
            return Err(GraphError::Name { what: "key", name: key.into(), rule });
        };
        let value = kind.read(text).ok_or_else(|| GraphError::Parameter {
            model: head.into(),
            key: key.into(),
            value: text.into(),
            rule: kind.rule().into(),
        })?;
        table.insert(key.into(), value);
    }
    let missing =
        family.keys.iter().find(|&&(key, _, required)| required && !table.contains_key(key));
    if let Some(&(key, ..)) = missing {
        let rule = format!("{head} needs it; its keys are {}", list());
        return Err(GraphError::Name { what: "missing key", name: key.into(), rule });
    }
    let network = (family.read)(table).map_err(|error| GraphError::Text {
        place: head.into(),
        message: in_words(error.message()),
    })?;
    ModelSpec::new(name, network)
}

/// The family of a network, and its configuration as keys and values; none for a network written as
/// data.
fn table(network: &Network) -> Option<(&'static Family, Table)> {
    let (name, table) = match network {
        Network::Gpt(gpt) => ("gpt", Table::try_from(gpt)),
        Network::Llama(llama) => ("llama", Table::try_from(llama)),
        Network::Mlp(mlp) => ("mlp", Table::try_from(mlp)),
        Network::UTransformer(transformer) => ("u-transformer", Table::try_from(transformer)),
        Network::Lstm(lstm) => ("lstm", Table::try_from(lstm)),
        Network::Dlrm(dlrm) => ("dlrm", Table::try_from(dlrm)),
        Network::Custom(_) => return None,
    };
    let family = FAMILIES.iter().find(|family| family.name == name)?;
    Some((family, table.expect("a configuration holds numbers and flags, so TOML can hold it")))
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((family, table)) = table(&self.network) else {
            let mut text = String::new();
            Document::of(self).serialize(toml::ser::ValueSerializer::new(&mut text)).expect(
                "a network written as data was read from TOML's types, so TOML can hold it",
            );
            return write!(f, "custom:{text}");
        };
        let mut required = table.clone();
        required
            .retain(|key, _| family.keys.iter().any(|&(each, _, needed)| needed && each == key));
        let bare = (family.read)(required).ok();
        let usual = bare.and_then(|network| Some(self::table(&network)?.1)).unwrap_or_default();

        write!(f, "{}", family.name)?;
        let mut separator = ':';
        if self.name != family.name {
            write!(f, ":name={}", self.name)?;
            separator = ',';
        }
        for &(key, kind, needed) in family.keys {
            if let Some(value) = table.get(key)
                && (needed || usual.get(key) != Some(value))
            {
                write!(f, "{separator}{key}={}", text(kind, value))?;
                separator = ',';
            }
        }
        Ok(())
    }
}

/// A value as the shortest text that [`Kind::read`] takes back.
fn text(kind: Kind, value: &Value) -> String {
    match (kind, value) {
        (_, Value::Float(value)) => (*value as f32).to_string(),
        (Kind::Counts, Value::Array(values)) => {
            let runs = values.chunk_by(|one, other| one == other).map(|run| match run {
                [count] => count.to_string(),
                _ => format!("{}x{}", run.len(), run[0]),
            });
            runs.collect::<Vec<_>>().join("-")
        }
        (_, Value::Array(values)) => {
            let items = values.iter().map(|value| text(kind, value));
            format!("[{}]", items.collect::<Vec<_>>().join(","))
        }
        (_, other) => other.to_string(),
    }
}
