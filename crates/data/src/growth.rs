//! How far a tokenizer may lengthen a text before it looks up tokens, known from its description. Replacements may
//! be as long as one likes and follow each other, so that a small file could ask for more memory than there is.

use std::collections::BTreeSet;

use serde_json::Value;
use tokenizers::Tokenizer;
use tokenizers::normalizers::{NormalizerWrapper, Precompiled};

use crate::character_map;

/// Bytes after all steps, as a multiple of those before them, and besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    pub factor: f64,
    pub added_bytes: f64,
}

impl Growth {
    /// What no step lengthens.
    pub const NONE: Growth = Growth { factor: 1.0, added_bytes: 0.0 };

    /// That of decoders, at most.
    pub fn of_decoding(tokenizer: &Tokenizer) -> Growth {
        let mut steps = vec![];
        if let Some(Ok(step)) = tokenizer.get_decoder().map(serde_json::to_value) {
            flatten(step, &mut steps);
        }
        Growth::of(&steps)
    }

    fn of(steps: &[Value]) -> Growth {
        let mut growth = Growth::NONE;
        // Replacements of which none matches what another has written: a byte of the text goes through one of them.
        let (mut alone, mut written) = (1.0_f64, BTreeSet::new());
        for step in steps {
            if let Some((pattern, content)) = replacement(step) {
                if pattern.chars().any(|character| written.contains(&character)) {
                    growth.follow(alone, 0.0);
                    (alone, written) = (1.0, BTreeSet::new());
                }
                alone = alone.max(content.len() as f64 / pattern.len() as f64);
                written.extend(content.chars());
                continue;
            }
            growth.follow(alone, 0.0);
            (alone, written) = (1.0, BTreeSet::new());
            let (factor, added_bytes) = by_one(step);
            growth.follow(factor, added_bytes);
        }
        growth.follow(alone, 0.0);
        growth
    }

    fn follow(&mut self, factor: f64, added_bytes: f64) {
        self.factor *= factor;
        self.added_bytes = self.added_bytes * factor + added_bytes;
    }

    /// What a text of so many bytes becomes at most.
    pub fn of_bytes(self, bytes: usize) -> f64 {
        self.factor * bytes as f64 + self.added_bytes
    }
}

/// How far a tokenizer lengthens a text when it encodes it.
pub(crate) struct Lengthening {
    /// By all normalizers and pre-tokenizers, at most.
    pub growth: Growth,
    /// The map of characters that the first normalizer is, if it is one, and what the others and the pre-tokenizers
    /// do at most.
    map: Option<(Precompiled, Growth)>,
}

impl Lengthening {
    /// What no step lengthens.
    pub const NONE: Lengthening = Lengthening { growth: Growth::NONE, map: None };

    pub fn of(tokenizer: &Tokenizer) -> Lengthening {
        let mut steps = vec![];
        let normalizer = tokenizer.get_normalizer().map(serde_json::to_value);
        let pre_tokenizer = tokenizer.get_pre_tokenizer().map(serde_json::to_value);
        for step in [normalizer, pre_tokenizer].into_iter().flatten().flatten() {
            flatten(step, &mut steps);
        }
        let map = tokenizer.get_normalizer().and_then(first_map);
        let map = map.map(|map| (map.clone(), Growth::of(steps.get(1..).unwrap_or_default())));
        Lengthening { growth: Growth::of(&steps), map }
    }

    /// What a text becomes at most. Maps of characters have long texts for few of them, so what one makes of this text
    /// is looked at where the bound for any text is above `enough`; of pieces, which this many bytes are enough for.
    pub fn of_text(&self, text: &str, enough: f64) -> f64 {
        let bound = self.growth.of_bytes(text.len());
        let Some((map, rest)) = &self.map else { return bound };
        if bound <= enough {
            return bound;
        }
        let piece_bytes = ((enough / self.growth.factor) as usize).max(4);
        let (mut left, mut bytes) = (text, 0);
        while !left.is_empty() {
            let piece;
            (piece, left) = left.split_at(left.floor_char_boundary(piece_bytes.min(left.len())));
            // Of two characters that are one to the reader and were cut apart, each may be mapped.
            bytes += map.normalize_string(piece).len() + piece.len().min(8);
        }
        rest.of_bytes(bytes)
    }
}

/// The map of characters that is the first normalizer.
fn first_map(normalizer: &NormalizerWrapper) -> Option<&Precompiled> {
    match normalizer {
        NormalizerWrapper::Precompiled(map) => Some(map),
        NormalizerWrapper::Sequence(sequence) => first_map(sequence.as_ref().first()?),
        _ => None,
    }
}

/// The steps of sequences, however deep, in order.
fn flatten(step: Value, steps: &mut Vec<Value>) {
    let Value::Object(mut keys) = step else { return };
    for sequence in ["normalizers", "pretokenizers", "decoders"] {
        if let Some(Value::Array(inner)) = keys.remove(sequence) {
            inner.into_iter().for_each(|step| flatten(step, steps));
            return;
        }
    }
    steps.push(Value::Object(keys));
}

/// The text that a step replaces and by what, unless it does something else or replaces nothing by something.
fn replacement(step: &Value) -> Option<(&str, &str)> {
    let pattern = step.get("pattern")?.get("String")?.as_str()?;
    let content = step.get("content")?.as_str()?;
    (!pattern.is_empty()).then_some((pattern, content))
}

/// Factor and added bytes of a step. What follows from Unicode is not counted, as forms of characters and of case do:
/// at most 11 bytes for one, however often it is done.
fn by_one(step: &Value) -> (f64, f64) {
    let text = |key: &str| step.get(key).and_then(Value::as_str);
    let bytes = |key: &str| text(key).map_or(0.0, |text| text.len() as f64);
    let says = |key: &str| step.get(key).and_then(Value::as_bool) == Some(true);
    if step.get("pattern").is_some() && step.get("content").is_some() {
        let regex = step["pattern"].get("Regex").and_then(Value::as_str).unwrap_or_default();
        let content = bytes("content");
        return match least_match(regex) {
            0 => (1.0 + content, content),
            least => ((content / least as f64).max(1.0), 0.0),
        };
    }
    match text("type").unwrap_or_default() {
        "Prepend" => (1.0, bytes("prepend")),
        // A map that cannot be followed is refused before.
        "Precompiled" => {
            let map = text("precompiled_charsmap").unwrap_or_default();
            (character_map::most_growth(map).unwrap_or(1.0), 0.0)
        }
        // A byte becomes one of 256 characters, of up to 2 bytes.
        "ByteLevel" if says("add_prefix_space") => (4.0, 4.0),
        "ByteLevel" => (2.0, 0.0),
        // One character for each space, and before each word.
        "Metaspace" => (1.0 + bytes("replacement"), bytes("replacement")),
        // Spaces around a character of 3 bytes; a space before a token.
        "BertNormalizer" | "WordPiece" => (2.0, bytes("prefix")),
        _ => (1.0, 0.0),
    }
}

/// The fewest bytes that a regular expression matches, 0 where that is not known.
fn least_match(regex: &str) -> usize {
    let parsed = regex_syntax::parse(regex).ok();
    parsed.and_then(|parsed| parsed.properties().minimum_len()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn growth(steps: &Value) -> (f64, f64) {
        let mut flat = vec![];
        flatten(json!({"type": "Sequence", "normalizers": steps}), &mut flat);
        let Growth { factor, added_bytes } = Growth::of(&flat);
        (factor, added_bytes)
    }

    fn replace(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
    }

    fn replace_regex(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    }

    #[test]
    fn replacements_multiply_where_one_may_replace_what_another_has_written() {
        assert_eq!(growth(&json!([])), (1.0, 0.0));
        assert_eq!(growth(&json!([replace("a", "aaaa")])), (4.0, 0.0));
        assert_eq!(growth(&json!([replace("a", "aaaa"), replace("a", "aa")])), (8.0, 0.0));
        assert_eq!(growth(&json!([replace("ab", "x")])), (1.0, 0.0));
        let nested = json!({"type": "Sequence", "normalizers": [replace("x", "xxx")]});
        assert_eq!(growth(&json!([replace("a", "xx"), nested])), (6.0, 0.0));
    }

    #[test]
    fn replacements_of_different_characters_do_not() {
        let of_each = json!([replace(" ", "\u{2581}"), replace("\n", "<n>"), replace("\t", "<t>")]);
        assert_eq!(growth(&of_each), (3.0, 0.0));
        // Lower case may make another's character of what was written.
        let between = json!([replace("a", "BB"), {"type": "Lowercase"}, replace("b", "cc")]);
        assert_eq!(growth(&between), (4.0, 0.0));
    }

    /// Of texts of up to seven characters by trying all.
    #[test]
    fn no_text_grows_by_more_than_is_said_and_of_one_replacement_some_grow_as_far() {
        let texts = (0..8).flat_map(|length| {
            (0..1 << length).map(move |bits: u32| -> String {
                (0..length).map(|at| if bits >> at & 1 == 1 { 'b' } else { 'a' }).collect()
            })
        });
        let texts: Vec<String> = texts.collect();
        let pairs = ["a", "b", "ab", "aab"].into_iter().flat_map(|pattern| {
            ["", "a", "b", "bb", "aba", "abab"].map(|content| (pattern, content))
        });
        let pairs: Vec<(&str, &str)> = pairs.collect();
        for &(pattern, content) in &pairs {
            let (factor, added) = growth(&json!([replace(pattern, content)]));
            assert_eq!(added, 0.0);
            let repeated = pattern.repeat(5);
            let longest = repeated.replace(pattern, content).len().max(repeated.len());
            assert_eq!(factor, longest as f64 / repeated.len() as f64, "{pattern} by {content}");
            for &(second, other) in &pairs {
                let steps = json!([
                    replace(pattern, content),
                    {"type": "Prepend", "prepend": "a"},
                    replace(second, other),
                ]);
                let (factor, added) = growth(&steps);
                for text in &texts {
                    let found = format!("a{}", text.replace(pattern, content));
                    let found = found.replace(second, other);
                    let most = factor * text.len() as f64 + added;
                    assert!(found.len() as f64 <= most + 1e-9, "{text}: {steps}");
                }
            }
        }
    }

    #[test]
    fn what_matches_nothing_is_written_between_all_characters() {
        assert_eq!(growth(&json!([replace("", "abc")])), (4.0, 3.0));
        assert_eq!(growth(&json!([replace_regex("x*", "abc")])), (4.0, 3.0));
        assert_eq!(growth(&json!([replace_regex(" {2,}", "abc")])), (1.5, 0.0));
        assert_eq!(growth(&json!([replace_regex("(?=a)", "abc")])), (4.0, 3.0), "not known");
    }

    #[test]
    fn other_steps_have_bounds_of_their_own() {
        let llama = json!([{"type": "Prepend", "prepend": "\u{2581}"}, replace(" ", "\u{2581}")]);
        assert_eq!(growth(&llama), (3.0, 9.0));
        let bytes = json!({"type": "ByteLevel"});
        assert_eq!(growth(&Value::Array(vec![bytes; 40])).0, 2f64.powi(40));
        let map = character_map::example::map(&[(b'a', "ab"), (b'b', "abcdef")]);
        let map = json!({"type": "Precompiled", "precompiled_charsmap": map});
        assert_eq!(growth(&json!([map])), (6.0, 0.0));
    }
}
