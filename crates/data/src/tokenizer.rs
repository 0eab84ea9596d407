//! Text to token ids and back.

use std::path::Path;

use shardloom_document::{Fault, json_fault, json_line_of, json_value, read_document};
use tokenizers::ModelWrapper;

use crate::growth::{Growth, Lengthening};
use crate::{DataError, Result, character_map, vocabulary};

/// Longer texts are read in parts of at least this many bytes.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// Longer texts are encoded in parts of at least this many bytes, because the offsets a tokenizer keeps take 17 bytes of
/// memory and more for each of them, where words are of one letter 240, on each core.
const ENCODED_BYTES: usize = 1 << 17;

/// How many bytes such a part may become by normalization for its size to be kept; else parts are smaller.
const USUAL_BYTES: f64 = (4 * ENCODED_BYTES) as f64;

/// How many bytes a part may become at most, as where a line is long.
const MOST_BYTES: f64 = (8 * PART_BYTES) as f64;

/// How many times as long a text may become, and how many bytes may be added to any.
const MOST_GROWTH: Growth = Growth { factor: 4096.0, added_bytes: (1 << 16) as f64 };

/// Turns text into token ids and back.
pub struct Tokenizer {
    kind: Kind,
    vocabulary_size: usize,
    /// Where a text may be cut.
    cuts: Cuts,
    /// What a text may become before its tokens are looked up.
    lengthening: Lengthening,
    /// Of the file that it was read from.
    digest: blake3::Hash,
    end_of_text: Option<u32>,
}

/// What the library finds wrong with a file, and where: it reads parts as a whole, and of those that are of several
/// kinds it only says that none fits.
fn unread(json: &[u8], value: &serde_json::Value, error: &serde_json::Error) -> Fault {
    use serde_json::from_value;
    type IsWrong = fn(serde_json::Value) -> bool;
    let wrong: [(&str, IsWrong); 5] = [
        ("model", |part| from_value::<tokenizers::ModelWrapper>(part).is_err()),
        ("normalizer", |part| from_value::<tokenizers::NormalizerWrapper>(part).is_err()),
        ("pre_tokenizer", |part| from_value::<tokenizers::PreTokenizerWrapper>(part).is_err()),
        ("post_processor", |part| from_value::<tokenizers::PostProcessorWrapper>(part).is_err()),
        ("decoder", |part| from_value::<tokenizers::DecoderWrapper>(part).is_err()),
    ];
    let Fault { line, message } = json_fault(error);
    if message == "Model missing." {
        return Fault { line: Some(1), message: "the key `model` is missing".into() };
    }
    let part = wrong.iter().find(|(key, is_wrong)| {
        value.get(key).is_some_and(|part| !part.is_null() && is_wrong(part.clone()))
    });
    let Some(&(key, _)) = part else { return Fault { line, message } };
    let line = json_line_of(&String::from_utf8_lossy(json), key).or(line);
    let kind = value[key].get("type").and_then(serde_json::Value::as_str);
    if let Some(pattern) = wrong_pattern(&value[key]) {
        return Fault {
            line,
            message: format!("{key}: the regular expression {pattern:?} is none: {message}"),
        };
    }
    let message = match kind {
        Some(kind) if message == "a value of another form is needed" => {
            format!("{key}: there is no type {kind:?} here, or its keys are not those of that type")
        }
        _ => format!("{key}: {message}"),
    };
    Fault { line, message }
}

/// The first regular expression in a part of a tokenizer that is none.
fn wrong_pattern(part: &serde_json::Value) -> Option<&str> {
    use serde_json::Value;
    let inner: Vec<&Value> = match part {
        Value::Array(items) => items.iter().collect(),
        Value::Object(entries) => {
            if let Some(Value::String(pattern)) = entries.get("Regex") {
                let alone = serde_json::json!({
                    "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false
                });
                let read = serde_json::from_value::<tokenizers::PreTokenizerWrapper>(alone);
                return read.is_err().then_some(pattern);
            }
            entries.values().collect()
        }
        _ => vec![],
    };
    inner.into_iter().find_map(wrong_pattern)
}

/// What stands for the end of a text in tokenizers of published models, the first that there is.
const ENDS_OF_TEXT: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"];

enum Kind {
    Bytes,
    HuggingFace(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// The tokenizer whose tokens are bytes: a vocabulary of 256, and any
    /// bytes at all can be encoded.
    #[must_use]
    pub fn bytes() -> Self {
        Self {
            kind: Kind::Bytes,
            vocabulary_size: 256,
            cuts: Cuts::default(),
            lengthening: Lengthening::NONE,
            digest: blake3::hash(b"bytes"),
            end_of_text: None,
        }
    }

    /// A Hugging Face `tokenizer.json`.
    ///
    /// Its truncation and padding settings, which are meant for inference, are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be read; [`DataError::Tokenizer`] if it is
    /// not a tokenizer, has an empty vocabulary, a map of characters that leads out of itself, a BPE merge whose second
    /// token lacks the prefix of those that continue a word or whose result the vocabulary lacks, or two tokens of one
    /// id, may make a text thousands of times as long, or has BPE dropout, with which the same text would have different
    /// tokens each time.
    pub fn open(path: &Path) -> Result<Self> {
        let at = |fault: Fault| DataError::Tokenizer {
            path: path.to_path_buf(),
            line: fault.line,
            reason: fault.message,
        };
        let unusable = |reason: String| at(Fault { line: None, message: reason });
        let json = read_document(path).map_err(DataError::io("read", path))?;
        let text = std::str::from_utf8(&json).map_err(|_| unusable("it is no UTF-8".into()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // The library panics at some text that is not JSON.
        let value = json_value(text).map_err(at)?;
        if let Some(reason) = vocabulary::fault(&value) {
            return Err(unusable(reason));
        }
        if let Some(reason) = character_map::fault(&value) {
            return Err(unusable(reason));
        }
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(text).map_err(|error| {
            match error.downcast_ref::<serde_json::Error>() {
                Some(error) => at(unread(text.as_bytes(), &value, error)),
                None => unusable(error.to_string()),
            }
        })?;
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout
            && dropout > 0.0
        {
            return Err(unusable(format!(
                "its BPE dropout is {dropout}, which makes tokens random; set \"dropout\" to null"
            )));
        }
        let lengthening = Lengthening::of(&tokenizer);
        require_bounded(lengthening.growth, "normalizers and pre-tokenizers").map_err(unusable)?;
        require_bounded(Growth::of_decoding(&tokenizer), "decoders").map_err(unusable)?;
        // An embedding table has a row for the highest id, and ids may have gaps.
        let highest = tokenizer.get_vocab(true).into_values().max();
        let highest = highest.ok_or_else(|| {
            let message = "its vocabulary is empty: a model of text needs tokens to tell apart";
            at(Fault { line: json_line_of(text, "model.vocab"), message: message.into() })
        })?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| unusable(error.to_string()))?;
        Ok(Self {
            end_of_text: ENDS_OF_TEXT.iter().find_map(|end| tokenizer.token_to_id(end)),
            cuts: Cuts::of(&tokenizer),
            lengthening,
            digest: blake3::hash(&json),
            kind: Kind::HuggingFace(Box::new(tokenizer)),
            vocabulary_size: highest as usize + 1,
        })
    }

    /// One more than the highest token id.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// The token ids of a text, without any special tokens around it.
    ///
    /// A text of more than 128 KiB is encoded in parts, cut at the first line end
    /// after that much that stands between two characters other than
    /// whitespace, the second of which is no slash, and that belongs to no added token. The pre-tokenizers of GPT-2 and Llama 3 and later cut there
    /// anyway; one that marks the start of a text marks that of each part. Parts are
    /// smaller where normalization may make a text more than 4 times as long.
    ///
    /// # Errors
    ///
    /// [`DataError::NotUtf8`] if the bytes are not UTF-8, unless this is the byte
    /// tokenizer; [`DataError::Tokenize`] if the tokenizer fails, for instance on a
    /// character it has no token for, or might make more than 8 MiB of a part.
    pub fn encode(&self, text: impl AsRef<[u8]>) -> Result<Vec<u32>> {
        let text = text.as_ref();
        match &self.kind {
            Kind::Bytes => Ok(text.iter().copied().map(u32::from).collect()),
            Kind::HuggingFace(tokenizer) => {
                let text = str::from_utf8(text)
                    .map_err(|error| DataError::NotUtf8 { offset: error.valid_up_to() })?;
                let fitting = (USUAL_BYTES / self.lengthening.growth.factor) as usize;
                encode_in_parts(
                    tokenizer,
                    &self.cuts,
                    &self.lengthening,
                    text,
                    fitting.min(ENCODED_BYTES),
                )
            }
        }
    }

    /// The token between documents; none if the vocabulary has none that is known for it.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        self.end_of_text
    }

    /// Whether bytes are the tokens.
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self.kind, Kind::Bytes)
    }

    /// Where a long text may be cut.
    pub(crate) fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// The digest (BLAKE3) of its file, or of what stands for bytes.
    pub fn digest(&self) -> blake3::Hash {
        self.digest
    }

    /// The text of token ids, special tokens included. Bytes that are not UTF-8
    /// become replacement characters, as happens where a sample ends within a
    /// character.
    ///
    /// # Errors
    ///
    /// [`DataError::TokenOutOfVocabulary`] for an id at or above
    /// [`vocabulary_size`](Self::vocabulary_size); [`DataError::Tokenize`] if the
    /// tokenizer fails.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        check_vocabulary(tokens, 0, self.vocabulary_size)?;
        match &self.kind {
            Kind::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Kind::HuggingFace(tokenizer) => tokenizer.decode(tokens, false).map_err(failed),
        }
    }
}

/// Errors with the reason if steps of a tokenizer may lengthen a text too far.
fn require_bounded(growth: Growth, steps: &str) -> std::result::Result<(), String> {
    let Growth { factor, added_bytes } = growth;
    if factor <= MOST_GROWTH.factor && added_bytes <= MOST_GROWTH.added_bytes {
        return Ok(());
    }
    Err(format!(
        "its {steps} may make a text {factor:.3e} times as long and add {added_bytes:.3e} bytes; a tokenizer for \
         {} times and {} bytes at most is needed",
        MOST_GROWTH.factor, MOST_GROWTH.added_bytes
    ))
}

/// Errors unless every token, the first of which is behind `before` others, is below `vocabulary_size`.
pub(crate) fn check_vocabulary(tokens: &[u32], before: u64, vocabulary_size: usize) -> Result<()> {
    match tokens.iter().position(|&token| token as usize >= vocabulary_size) {
        None => Ok(()),
        Some(position) => Err(DataError::TokenOutOfVocabulary {
            token: tokens[position],
            position: before + position as u64,
            vocabulary_size,
        }),
    }
}

fn encode_in_parts(
    tokenizer: &tokenizers::Tokenizer,
    cuts: &Cuts,
    lengthening: &Lengthening,
    text: &str,
    part_bytes: usize,
) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for part in cuts.parts(text, part_bytes) {
        // A tokenizer that hardly lengthens a text takes lines of any length.
        if lengthening.growth.factor * ENCODED_BYTES as f64 > USUAL_BYTES {
            let becomes = lengthening.of_text(part, MOST_BYTES);
            if becomes > MOST_BYTES {
                let bytes = part.len();
                let reason = format!(
                    "it may make {becomes:.2e} bytes of the {bytes} up to the next line end where the text may be \
                     cut; break the text into shorter lines"
                );
                return Err(DataError::Tokenize { reason });
            }
        }
        tokens.extend_from_slice(tokenizer.encode_fast(part, false).map_err(failed)?.get_ids());
    }
    Ok(tokens)
}

/// Where a text may be cut, so that the tokens of its parts are those of the whole: after a single line end
/// between two words, as long as no token of its own reaches over it.
#[derive(Default)]
pub(crate) struct Cuts {
    /// What added tokens have before a cut and behind it.
    forbidden: Vec<(String, String)>,
    /// The most bytes of these behind it.
    ahead: usize,
}

impl Cuts {
    /// Those of a tokenizer. An added token may take the white space before it for its own, or have a line end within.
    fn of(tokenizer: &tokenizers::Tokenizer) -> Cuts {
        let mut cuts = Cuts::default();
        for token in tokenizer.get_added_tokens_decoder().values() {
            let content = &token.content;
            let within = content.match_indices('\n').map(|(at, _)| content.split_at(at + 1));
            let before = token.lstrip.then_some(("", content.as_str()));
            for (left, right) in within.chain(before).filter(|(_, right)| !right.is_empty()) {
                cuts.ahead = cuts.ahead.max(right.len());
                cuts.forbidden.push((left.to_owned(), right.to_owned()));
            }
        }
        cuts
    }

    /// The parts of a text, each of at least so many bytes but for the last.
    pub fn parts<'a>(
        &'a self,
        mut text: &'a str,
        part_bytes: usize,
    ) -> impl Iterator<Item = &'a str> {
        std::iter::from_fn(move || {
            let end = self.find(text, part_bytes, &mut 0, true)?;
            let (part, rest) = text.split_at(end);
            text = rest;
            Some(part)
        })
    }

    /// The end of the first part of a text of which more may follow, unless it is `whole`; none if that is not known yet, or
    /// there is no text. No cut is before `searched`, which is brought up to date.
    pub fn find(
        &self,
        text: &str,
        part_bytes: usize,
        searched: &mut usize,
        whole: bool,
    ) -> Option<usize> {
        if text.len() < part_bytes && !whole {
            return None;
        }
        *searched = (*searched).max(text.floor_char_boundary(part_bytes));
        while let Some(found) = text[*searched..].find('\n') {
            let end = *searched + found + 1;
            let (left, right) = text.split_at(end);
            if right.len() < self.ahead.max(1) && !whole {
                *searched = end - 1;
                return None;
            }
            *searched = end;
            if self.may_part(left, right) {
                return Some(end);
            }
        }
        *searched = text.len();
        (whole && !text.is_empty()).then_some(text.len())
    }

    fn may_part(&self, left: &str, right: &str) -> bool {
        let blank = |character: Option<char>| character.is_none_or(char::is_whitespace);
        !blank(left[..left.len() - 1].chars().next_back())
            && !blank(right.chars().next())
            // The pre-tokenizer of GPT-4o keeps slashes with the line ends before them.
            && !right.starts_with('/')
            && !self.forbidden.iter().any(|(before, behind)| {
                left.ends_with(before.as_str()) && right.starts_with(behind.as_str())
            })
    }
}

fn failed(error: tokenizers::Error) -> DataError {
    DataError::Tokenize { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use serde_json::json;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    /// A GPT-2 style tokenizer: the 256 bytes and four merges, a special token
    /// after a gap in the ids, and a truncation setting to be ignored.
    fn gpt2_json() -> serde_json::Value {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let mut vocabulary: BTreeMap<String, u32> =
            alphabet.into_iter().map(String::from).zip(0..).collect();
        for (token, id) in ["he", "ll", "hell", "hello"].into_iter().zip(256..) {
            vocabulary.insert(token.to_owned(), id);
        }
        vocabulary.insert("<|endoftext|>".to_owned(), 300);
        json!({
            "version": "1.0",
            "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "padding": null,
            "added_tokens": [{
                "id": 300, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            }],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
                "vocab": vocabulary,
                "merges": ["h e", "l l", "he ll", "hell o"]
            }
        })
    }

    fn open(json: &serde_json::Value) -> Result<Tokenizer> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, json.to_string()).expect("written");
        Tokenizer::open(&path)
    }

    fn gpt2() -> Tokenizer {
        open(&gpt2_json()).expect("a tokenizer")
    }

    #[test]
    fn merges_that_the_vocabulary_lacks_are_refused() {
        let with = |merges: serde_json::Value| {
            let mut json = gpt2_json();
            json["model"]["merges"] = merges;
            open(&json)
        };
        assert!(with(json!(["#version: 0.2", "h e"])).is_ok());
        for merges in [json!(["h e", "e h"]), json!([["h", "e"], ["e", "h"]])] {
            let message = with(merges).err().expect("no token eh").to_string();
            let said = r#"it merges "e" and "h", and its vocabulary has no "eh""#;
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn bytes_are_their_own_tokens() {
        let tokenizer = Tokenizer::bytes();
        assert_eq!(tokenizer.vocabulary_size(), 256);
        assert_eq!(tokenizer.encode("aé").expect("encodes"), [97, 195, 169]);
        assert_eq!(tokenizer.encode([0, 255]).expect("encodes"), [0, 255]);
        assert_eq!(tokenizer.decode(&[97, 195, 169]).expect("decodes"), "aé");
        assert_eq!(tokenizer.decode(&[97, 195]).expect("decodes"), "a\u{fffd}");
        // Of several that are too large the first is named.
        let error = tokenizer.decode(&[1, 256, 2, 300]).expect_err("no bytes");
        let DataError::TokenOutOfVocabulary { token, position, vocabulary_size } = error else {
            panic!("{error}");
        };
        assert_eq!((token, position, vocabulary_size), (256, 1, 256));
        let error = tokenizer.decode(&[1, 256]).expect_err("not a byte").to_string();
        assert_eq!(error, "token 256 at position 1 is outside the vocabulary of 256");
    }

    #[test]
    fn two_tokens_of_one_id_are_refused() {
        let mut json = gpt2_json();
        assert!(open(&json).is_ok());
        // A token of the vocabulary may be special besides.
        let special = |content: &str| {
            let mut json = gpt2_json();
            let mut token = json["added_tokens"][0].clone();
            (token["id"], token["content"]) = (json!(256), json!(content));
            json["added_tokens"].as_array_mut().expect("a list").push(token);
            open(&json)
        };
        assert!(special("he").is_ok());
        let message = special("<he>").err().expect("one id").to_string();
        assert!(
            message.contains(r#"its tokens "he" and "<he>" both have the id 256"#),
            "{message}"
        );
        json["model"]["vocab"]["hello"] = json["model"]["vocab"]["he"].clone();
        let message = open(&json).err().expect("one id").to_string();
        assert!(
            message.contains(r#"its tokens "he" and "hello" both have the id 256"#),
            "{message}"
        );
    }

    #[test]
    fn hugging_face_merges_are_applied_and_truncation_is_not() {
        let tokenizer = gpt2();
        let tokens = tokenizer.encode("hello hehell").expect("encodes");
        assert_eq!(tokens.len(), 4);
        assert_eq!((tokens[0], &tokens[2..]), (259, [256, 258].as_slice()));
        assert_eq!(tokenizer.decode(&tokens).expect("decodes"), "hello hehell");
    }

    #[test]
    fn vocabulary_reaches_the_highest_id_across_gaps() {
        assert_eq!(gpt2().vocabulary_size(), 301);
        assert_eq!(gpt2().encode("<|endoftext|>").expect("encodes"), [300]);
    }

    #[test]
    fn text_tokenizer_refuses_bytes_that_are_not_text() {
        let error = gpt2().encode(b"ab\xff").expect_err("not UTF-8");
        assert!(matches!(error, DataError::NotUtf8 { offset: 2 }), "{error}");
    }

    /// The library would cut it off all the same.
    #[test]
    fn merges_of_what_lacks_the_prefix_that_continues_a_word_are_refused() {
        let of = |merges: serde_json::Value| {
            let vocab = json!({"a": 0, "b": 1, "##b": 2, "ab": 3});
            let prefix = "##";
            let model = json!({
                "type": "BPE", "vocab": vocab, "merges": merges, "continuing_subword_prefix": prefix,
            });
            open(&json!({"version": "1.0", "added_tokens": [], "model": model}))
        };
        assert!(of(json!(["a ##b"])).is_ok());
        assert!(of(json!([["a", "##b"]])).is_ok());
        for merges in [json!(["a ##b", "a b"]), json!([["a", "b"]])] {
            let error = of(merges).err().expect("refused").to_string();
            assert!(error.contains("\"b\", which does not begin with \"##\""), "{error}");
        }
    }

    /// A few hundred bytes of a file would ask for any memory.
    #[test]
    fn tokenizers_that_lengthen_texts_without_measure_are_refused() {
        let replace = |content: String| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
        let with = |key: &str, step: serde_json::Value| {
            let mut json = gpt2_json();
            json[key] = step;
            open(&json)
        };
        let doubling = vec![replace("aa".to_owned()); 40];
        for step in [
            replace("b".repeat(1_000_000)),
            json!({"type": "Sequence", "normalizers": doubling}),
            json!({"type": "Prepend", "prepend": "b".repeat(100_000)}),
        ] {
            let error = with("normalizer", step).err().expect("refused").to_string();
            assert!(error.contains("its normalizers and pre-tokenizers may make"), "{error}");
        }
        let decoder = with("decoder", replace("b".repeat(10_000)));
        assert!(decoder.err().expect("refused").to_string().contains("its decoders may make"));
        // 1,000 times is a matter of the line's length.
        let tokenizer = with("normalizer", replace("b".repeat(1000))).expect("bounded");
        let tokens = tokenizer.encode("a".repeat(100)).expect("short");
        assert_eq!(tokens.len(), 100_000);
        assert_eq!(tokenizer.encode("x\n".repeat(100_000)).expect("short lines").len(), 200_000);
        let error = tokenizer.encode("a".repeat(100_000)).expect_err("long").to_string();
        assert!(error.contains("of the 100000 up to the next line end"), "{error}");
        // Each byte takes much memory where words are short: 10 MB of them some gigabytes.
        let each =
            json!({"type": "Replace", "pattern": {"Regex": "."}, "content": "b ".repeat(25)});
        let tokenizer = with("normalizer", each).expect("bounded");
        let error = tokenizer.encode("a".repeat(200_000)).expect_err("long").to_string();
        assert!(error.contains("of the 200000 up to the next line end"), "{error}");
    }

    /// As of XLM-RoBERTa, whose map has 33 bytes for one character of 3, before pre-tokenizers that may make a byte 4.
    #[test]
    fn what_a_map_makes_of_a_long_line_is_looked_at_where_it_might_be_too_much() {
        let mut json = gpt2_json();
        let map = character_map::example::map(&[(b'#', &"a".repeat(200))]);
        json["normalizer"] = json!({"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": map},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]});
        let tokenizer = open(&json).expect("bounded");
        let line = "a".repeat(1 << 20);
        let tokens = tokenizer.encode(format!("#{line}#")).expect("a long line");
        assert_eq!(tokens.len(), (1 << 20) + 400);
        let error = tokenizer.encode("#".repeat(1 << 18)).expect_err("too much").to_string();
        assert!(error.contains("of the 262144 up to the next line end"), "{error}");
    }

    #[test]
    fn maps_of_characters_that_lead_out_of_themselves_are_refused() {
        let mut json = gpt2_json();
        let map = character_map::example::in_base64(&[0], "a\0");
        json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": map});
        let error = open(&json).err().expect("refused").to_string();
        assert!(error.contains("its precompiled_charsmap: unit 0"), "{error}");
    }

    #[test]
    fn unusable_tokenizers_are_refused_by_path() {
        let mut random = gpt2_json();
        random["model"]["dropout"] = json!(0.5);
        let error = open(&random).err().expect("refused").to_string();
        assert!(error.contains("tokenizer.json") && error.contains("dropout is 0.5"), "{error}");

        let error = open(&json!({"model": 1})).err().expect("refused");
        assert!(matches!(error, DataError::Tokenizer { .. }), "{error}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        for (text, said) in [
            (
                "{\n\"model\": {\n\"type\": \"Words\"\n}}",
                "json:2: cannot use this tokenizer: model: ",
            ),
            ("{\n\"model\": {\n\"type\": \"Words\"\n}}", "there is no type \"Words\" here"),
            (
                "{\"normalizer\": {\"type\": \"No\"},\n\"model\": 1}",
                "json:2: cannot use this tokenizer: model: ",
            ),
            ("{\n\"version\": \"1.0\",\n}", "json:3: cannot use this tokenizer: it is no JSON: "),
            ("{}", "json:1: cannot use this tokenizer: the key `model` is missing"),
            (
                r#"{"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}}, "pre_tokenizer":
                {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": false},
                {"type": "Split", "pattern": {"Regex": "([b"}, "behavior": "Isolated", "invert": false}]}}"#,
                "pre_tokenizer: the regular expression \"([b\" is none: ",
            ),
            (
                "{\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\",\n\"vocab\": {}}}",
                "json:2: cannot use this tokenizer: its vocabulary is empty",
            ),
        ] {
            fs::write(&path, text).expect("written");
            let error = Tokenizer::open(&path).err().expect("refused").to_string();
            assert!(error.contains(said), "{error}");
        }

        let error = Tokenizer::open(Path::new("/nowhere/tokenizer.json")).err().expect("refused");
        assert!(matches!(error, DataError::Io { .. }), "{error}");
    }

    #[test]
    fn parts_end_between_two_lines_of_words() {
        let end_of_part =
            |text: &str, part| Cuts::default().find(text, part, &mut 0, true).expect("some text");
        assert_eq!(end_of_part("ab\ncd\nef", 0), 3);
        assert_eq!(end_of_part("ab\ncd\nef", 3), 6);
        assert_eq!(end_of_part("ab\n\ncd\n ef\r\ngh", 0), 14, "blank lines and indents hold");
        assert_eq!(end_of_part("éa\nb", 1), 4, "within a character");
        assert_eq!(
            end_of_part("ab!\n/cd\nef", 0),
            8,
            "slashes stay with the line ends before them"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn encoding_in_parts_changes_nothing(text in "(hello|he|é|\n|\n\n|\r\n| |  |a|!){0,40}", part in 0_usize..20) {
            let tokenizer = gpt2();
            let Kind::HuggingFace(inner) = &tokenizer.kind else { unreachable!("opened from json") };
            let parts = encode_in_parts(inner, &tokenizer.cuts, &tokenizer.lengthening, &text, part).expect("encodes");
            prop_assert_eq!(&parts, &tokenizer.encode(&text).expect("encodes"));
            prop_assert_eq!(tokenizer.decode(&parts).expect("decodes"), text);
        }
    }
}
