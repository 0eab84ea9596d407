//! A word-level vocabulary, as a Hugging Face tokenizer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::blocks::Blocks;
use crate::text_files::{Expected, examine, files_below, is_folder};
use crate::{DataError, Result};

/// What stands for words that are not in the vocabulary.
const UNKNOWN: &str = "<unk>";

/// What stands for the end of a line.
const END: &str = "<eos>";

/// A vocabulary of the most frequent words of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct WordVocabulary {
    /// Words by number: unknown, end of line, and then by falling frequency, equally frequent ones by
    /// their letters.
    pub words: Vec<String>,
    /// Words and ends of lines of the text.
    pub total: u64,
    /// Those among them that are unknown.
    pub unknown: u64,
    /// Different words of the text.
    pub different: usize,
}

impl WordVocabulary {
    /// The `size` most frequent words of files, and of folders with all text below them, among them one for
    /// unknown words and one for the end of a line. Words are what stands between white space, in lower
    /// case.
    ///
    /// # Errors
    /// If a path cannot be read or is not text, there is no word, or `size` is below 3.
    pub fn of(paths: &[PathBuf], size: usize) -> Result<WordVocabulary> {
        if size < 3 {
            return Err(DataError::VocabularySize { size });
        }
        let mut counts = HashMap::new();
        let mut ends = 0;
        for path in paths {
            if !is_folder(path)? {
                let ends_of_file = count_file(path, &mut counts)?;
                ends += ends_of_file.map_err(not_text(path))?;
                continue;
            }
            for file in files_below(path)? {
                if examine(&file, Expected::StrictText, &mut |_| {})?.is_ok() {
                    ends += count_file(&file, &mut counts)?.map_err(not_text(&file))?;
                }
            }
        }
        // They are there whatever the text has.
        let mut unknown = counts.remove(UNKNOWN).unwrap_or(0);
        ends += counts.remove(END).unwrap_or(0);
        if counts.is_empty() {
            return Err(DataError::EmptyCorpus { paths: paths.to_vec() });
        }
        let different = counts.len();
        let total = ends + unknown + counts.values().sum::<u64>();
        let mut by_frequency: Vec<(String, u64)> = counts.into_iter().collect();
        by_frequency.sort_unstable_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        let kept = by_frequency.len().min(size - 2);
        unknown += by_frequency[kept..].iter().map(|(_, count)| count).sum::<u64>();
        let most = by_frequency.into_iter().take(kept).map(|(word, _)| word);
        let words = [UNKNOWN, END].map(str::to_owned).into_iter().chain(most).collect();
        Ok(WordVocabulary { words, total, unknown, different })
    }

    /// The tokenizer as a `tokenizer.json`, which [`Tokenizer::open`](crate::Tokenizer::open) and Hugging
    /// Face's `tokenizers` read.
    pub fn to_json(&self) -> String {
        let numbers: HashMap<&str, usize> =
            self.words.iter().map(String::as_str).zip(0..).collect();
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Lowercase"},
                {"type": "Replace", "pattern": {"String": "\n"}, "content": format!(" {END} ")},
            ]},
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": numbers, "unk_token": UNKNOWN},
        });
        format!("{tokenizer:#}\n")
    }
}

fn not_text(path: &Path) -> impl FnOnce(u64) -> DataError {
    move |offset| DataError::NotText { path: path.to_path_buf(), offset }
}

/// Counts the words of a file, and gives its ends of lines, or where it is found not to be text.
fn count_file(
    path: &Path,
    counts: &mut HashMap<String, u64>,
) -> Result<std::result::Result<u64, u64>> {
    let mut blocks = Blocks::open(path)?;
    let (mut text, mut ends) = (String::new(), 0);
    while let Some(block) = blocks.next()? {
        match block.text {
            Ok(more) => text.push_str(more),
            Err(offset) => return Ok(Err(offset)),
        }
        // The last word may go on in the next block.
        if let Some((last, character)) = text.char_indices().rfind(|(_, it)| it.is_whitespace()) {
            let rest = text.split_off(last + character.len_utf8());
            ends += count(&text, counts);
            text = rest;
        }
    }
    Ok(Ok(ends + count(&text, counts)))
}

/// Counts the words of a text, and gives its ends of lines.
fn count(text: &str, counts: &mut HashMap<String, u64>) -> u64 {
    // Character by character, as tokenizers do it; the letter sigma has another form at the end of a word otherwise.
    let text: String = text.chars().flat_map(char::to_lowercase).collect();
    for word in text.split_whitespace() {
        match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => {
                counts.insert(word.to_owned(), 1);
            }
        }
    }
    text.matches('\n').count() as u64
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Tokenizer;

    const TEXT: &str = "The cat saw the dog.\nA dog saw\tthe cat\n";

    fn of(text: &str, size: usize) -> Result<WordVocabulary> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("text.txt");
        fs::write(&path, text).expect("a temporary file");
        WordVocabulary::of(&[path], size)
    }

    #[test]
    fn words_are_in_lower_case_by_frequency_and_the_rest_is_unknown() {
        let vocabulary = of(TEXT, 6).expect("a vocabulary");
        assert_eq!(vocabulary.words, ["<unk>", "<eos>", "the", "cat", "saw", "a"]);
        assert_eq!((vocabulary.total, vocabulary.unknown, vocabulary.different), (12, 2, 6));
        let all = of(TEXT, 100).expect("a vocabulary");
        assert_eq!((all.words.len(), all.unknown), (8, 0));
    }

    #[test]
    fn the_tokenizer_gives_the_numbers_of_words_and_ends_of_lines() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, of(TEXT, 6).expect("a vocabulary").to_json()).expect("a temporary file");
        let tokenizer = Tokenizer::open(&path).expect("a tokenizer");
        assert_eq!(tokenizer.vocabulary_size(), 6);
        let tokens = tokenizer.encode(TEXT).expect("encodes");
        assert_eq!(tokens, [2, 3, 4, 2, 0, 1, 5, 0, 4, 2, 3, 1]);
        assert_eq!(tokenizer.decode(&tokens[..3]).expect("decodes"), "the cat saw");
    }

    #[test]
    fn words_across_the_blocks_of_a_file_are_counted_whole() {
        let text = "Wörter und mehr\n".repeat(60_000) + "END";
        let vocabulary = of(&text, 10).expect("a vocabulary");
        assert_eq!(vocabulary.words, ["<unk>", "<eos>", "mehr", "und", "wörter", "end"]);
        assert_eq!((vocabulary.total, vocabulary.unknown), (4 * 60_000 + 1, 0));
    }

    #[test]
    fn a_vocabulary_without_room_or_words_is_refused() {
        assert_eq!(of(TEXT, 3).expect("room for one").words, ["<unk>", "<eos>", "the"]);
        let message = of(TEXT, 2).expect_err("no room").to_string();
        assert!(message.contains("2 words"), "{message}");
        let message = of(" \n", 9).expect_err("no words").to_string();
        assert!(message.contains("no text in"), "{message}");
        let path = PathBuf::from("nowhere.txt");
        let message = WordVocabulary::of(&[path], 9).expect_err("no file").to_string();
        assert!(message.contains("nowhere.txt"), "{message}");
    }
}
