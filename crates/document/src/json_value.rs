//! JSON in which no key says two things.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::{Fault, json_fault};

/// The value that a text is as JSON. A mark of the order of bytes before it, which some editors write, is passed over.
///
/// # Errors
/// If it is no JSON, or an object has a key twice: readers differ in which of the values counts.
///
/// ```
/// use shardloom_document::json_value;
///
/// assert_eq!(json_value("{\"a\": [1, null]}")?["a"][0], 1);
/// let twice = json_value("{\"a\": 1,\n \"a\": 1}").expect_err("twice");
/// assert_eq!((twice.line, twice.message.as_str()), (Some(2), "the key \"a\" is given twice"));
/// # Ok::<(), shardloom_document::Fault>(())
/// ```
pub fn json_value(text: &str) -> Result<Value, Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Once(value) = serde_json::from_str(text).map_err(|error| json_fault(&error))?;
    Ok(value)
}

/// A value whose objects have each key once.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Once, D::Error> {
        input.deserialize_any(AnyValue).map(Once)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = vec![];
        while let Some(Once(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = pairs.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} is given twice")));
            }
            let Once(value) = pairs.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_any_reader_of_json_finds() {
        for text in [
            "null",
            "true",
            "-3",
            "18446744073709551615",
            "1.5e-7",
            r#""a\né""#,
            "[]",
            r#"{"b": {"a": [1, {"a": 2}], "b": false}, "a": [{}, null, "x"]}"#,
        ] {
            let usual: Value = serde_json::from_str(text).expect(text);
            assert_eq!(json_value(text), Ok(usual.clone()), "{text}");
            assert_eq!(json_value(&format!("\u{feff}{text}")), Ok(usual), "{text}");
        }
        for text in ["", "{", "[1,]", "1 2", "\u{feff}\u{feff}1", &"[".repeat(100_000)] {
            assert!(json_value(text).is_err(), "{text:.20}");
        }
    }

    #[test]
    fn a_key_that_an_object_has_twice_is_refused_however_deep_it_is() {
        for text in [r#"{"k": 1, "k": 1}"#, r#"[[{"a": {"k": [], "b": 1, "k": {}}}]]"#] {
            let fault = json_value(text).expect_err(text);
            assert_eq!(
                (fault.line, fault.message.as_str()),
                (Some(1), "the key \"k\" is given twice")
            );
        }
        assert!(json_value(r#"{"k": {"k": 1}, "l": [{"k": 1}, {"k": 2}]}"#).is_ok());
    }
}
