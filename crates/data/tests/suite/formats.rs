//! Documents in JSON, and tokens that other projects have made.

use std::fs;
use std::path::{Path, PathBuf};

use shardloom_data::{Corpus, DataError, Reading, Tokenizer};

fn words(folder: &Path, end: &str) -> Tokenizer {
    let path = folder.join("tokenizer.json");
    let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel",
        "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "END": 4}, "unk_token": "?"}}"#;
    fs::write(&path, json.replace("END", end)).expect("a tokenizer");
    Tokenizer::open(&path).expect("a tokenizer")
}

fn open(paths: &[PathBuf], by: &Tokenizer) -> Result<Vec<u32>, DataError> {
    let corpus = Corpus::open(paths, by, 0.0, &Reading::default())?;
    let mut tokens = vec![];
    corpus.read(0..corpus.training_len(), &mut tokens)?;
    // The digest is that of the tokens, however they are kept.
    let held = Corpus::from_tokens(tokens.clone(), by.vocabulary_size(), 0.0)?;
    assert_eq!(corpus.digest(), held.digest());
    Ok(tokens)
}

#[test]
fn documents_end_with_the_end_of_text_where_there_is_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("documents.jsonl");
    fs::write(&path, "{\"text\": \"a b\"}\n{\"text\": \"\"}\n{\"n\": 1, \"text\": \"c\"}\n")
        .expect("a file");
    let paths = [path];
    let tokens = open(&paths, &words(folder.path(), "<|endoftext|>")).expect("documents");
    assert_eq!(tokens, [1, 2, 4, 4, 3, 4]);
    let tokens = open(&paths, &words(folder.path(), "other")).expect("documents");
    assert_eq!(tokens, [1, 2, 3]);
    let tokens = open(&paths, &Tokenizer::bytes()).expect("documents");
    assert_eq!(tokens, [97, 32, 98, 99]);
}

#[test]
fn many_documents_are_kept_and_known_by_field_and_tokenizer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("documents.jsonl");
    let word = "word".repeat(100);
    let lines = (0..6000).map(|at| match at % 3 {
        0 => format!("{{\"text\": \"a {word}\", \"body\": \"c\"}}\n"),
        _ => format!("{{\"text\": \"{word} b\", \"body\": \"c a\"}}\n"),
    });
    fs::write(&path, lines.collect::<String>()).expect("a file");
    let by = words(folder.path(), "</s>");
    let paths = [path];
    let expected: Vec<u32> =
        (0..6000).flat_map(|at| if at % 3 == 0 { [1, 0, 4] } else { [0, 2, 4] }).collect();
    assert_eq!(open(&paths, &by).expect("documents"), expected);
    assert_eq!(open(&paths, &by).expect("documents"), expected);
    let body = Reading { text_field: "body".into(), ..Reading::default() };
    let corpus = Corpus::open(&paths, &by, 0.0, &body).expect("documents");
    assert_eq!(corpus.training_len(), 2000 * (2 + 3 + 3));
    let kept = fs::read_dir(folder.path().join(".shardloom-cache")).expect("a folder");
    let tokens = kept.filter(|it| {
        it.as_ref().is_ok_and(|it| it.path().extension().is_some_and(|it| it == "tokens"))
    });
    assert_eq!(tokens.count(), 2);
}

/// What Megatron-LM writes for these sequences, each of which is a document.
fn write_megatron(prefix: &Path, kind: u8, sequences: &[&[u32]]) -> PathBuf {
    let width = match kind {
        1 => 1,
        8 => 2,
        _ => 4,
    };
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1_u64.to_le_bytes());
    index.push(kind);
    index.extend((sequences.len() as u64).to_le_bytes());
    index.extend((sequences.len() as u64 + 1).to_le_bytes());
    index.extend(sequences.iter().flat_map(|it| (it.len() as i32).to_le_bytes()));
    let mut start = 0_i64;
    for sequence in sequences {
        index.extend(start.to_le_bytes());
        start += (sequence.len() * width) as i64;
    }
    index.extend((0..=sequences.len() as i64).flat_map(i64::to_le_bytes));
    let tokens = sequences.concat();
    let data = tokens.iter().flat_map(|token| token.to_le_bytes()[..width].to_vec());
    fs::write(prefix.with_extension("idx"), index).expect("an index");
    let path = prefix.with_extension("bin");
    fs::write(&path, data.collect::<Vec<u8>>()).expect("tokens");
    path
}

#[test]
fn what_megatron_has_encoded_is_read_by_any_of_its_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let by = words(folder.path(), "</s>");
    let prefix = folder.path().join("corpus_text_document");
    for kind in [1, 4, 8] {
        let data = write_megatron(&prefix, kind, &[&[1, 2, 4], &[], &[3, 0, 1, 4]]);
        let index = prefix.with_extension("idx");
        for path in [data, index, prefix.clone()] {
            assert_eq!(open(&[path], &by).expect("tokens"), [1, 2, 4, 3, 0, 1, 4]);
        }
    }
    // Without its index.
    let alone = folder.path().join("alone.bin");
    fs::write(&alone, [1, 200, 3]).expect("written");
    for tokenizer in [&by, &Tokenizer::bytes()] {
        let message =
            open(std::slice::from_ref(&alone), tokenizer).expect_err("no index").to_string();
        assert!(message.contains("alone.bin is not UTF-8 text at byte 1"), "{message}");
        assert!(message.contains("alone.idx beside it"), "{message}");
    }
    fs::write(&alone, "text").expect("written");
    assert_eq!(
        open(&[alone], &Tokenizer::bytes()).expect("text"),
        *b"text".map(u32::from).as_slice()
    );
    let refused = |part: &str| {
        let message = open(std::slice::from_ref(&prefix), &by).expect_err(part).to_string();
        assert!(message.contains("corpus_text_document") && message.contains(part), "{message}");
    };
    write_megatron(&prefix, 8, &[&[1, 2], &[9]]);
    refused("token 9 at position 2 is outside the vocabulary of 5");
    write_megatron(&prefix, 5, &[&[1]]);
    refused("of kind 5; tokens are 1 (uint8), 4 (int32) or 8 (uint16)");
    let data = write_megatron(&prefix, 4, &[&[1, 2], &[3]]);
    fs::write(&data, [0; 16]).expect("written");
    refused("it has 4 tokens, but its index 3");
    fs::write(&data, [0; 15]).expect("written");
    refused("15 bytes are no tokens of 4 bytes each");
    let index = prefix.with_extension("idx");
    let sound = fs::read(&index).expect("an index");
    fs::write(&index, &sound[..40]).expect("written");
    refused("it ends too early");
    let mut moved = sound.clone();
    moved[34 + 2 * 4 + 8] = 4;
    fs::write(&index, &moved).expect("written");
    refused("sequence 1 does not begin where the one before ends");
    for sequences in [u64::MAX, 1 << 61, 1 << 40] {
        let mut huge = sound.clone();
        huge[18..26].copy_from_slice(&sequences.to_le_bytes());
        fs::write(&index, &huge).expect("written");
        refused("it ends too early");
    }
    // It is not read as a text then.
    let mut damaged = sound.clone();
    damaged[0] = b'X';
    fs::write(&index, &damaged).expect("written");
    refused("it is no index of Megatron-LM");
    fs::write(&index, "").expect("written");
    refused("it ends too early");
    let mut newer = sound;
    newer[9] = 2;
    fs::write(&index, &newer).expect("written");
    refused("no index of Megatron-LM of version 1");
}

#[test]
fn what_datatrove_has_encoded_is_as_wide_as_what_is_beside_it_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let by = words(folder.path(), "</s>");
    let data = folder.path().join("00000_unshuffled.ds");
    let beside = |ending: &str| folder.path().join(format!("00000_unshuffled.ds.{ending}"));
    let tokens = [1_u32, 2, 4, 3, 0, 4];
    let narrow: Vec<u8> = tokens.iter().flat_map(|&it| (it as u16).to_le_bytes()).collect();
    let wide: Vec<u8> = tokens.iter().flat_map(|it| it.to_le_bytes()).collect();
    let paths = [data.clone()];
    let index: Vec<u8> = [3_u64, 6].iter().flat_map(|end| end.to_le_bytes()).collect();
    for bytes in [&narrow, &wide] {
        fs::write(&data, bytes).expect("tokens");
        fs::write(beside("index"), &index).expect("an index");
        assert_eq!(open(&paths, &by).expect("tokens"), tokens);
        fs::remove_file(beside("index")).expect("removed");
        fs::write(beside("metadata"), "gpt2\n6\n6 T").expect("metadata");
        assert_eq!(open(&paths, &by).expect("tokens"), tokens);
        fs::remove_file(beside("metadata")).expect("removed");
    }
    fs::write(&data, &narrow).expect("tokens");
    assert_eq!(open(&paths, &by).expect("tokens"), tokens, "by the vocabulary");
    let refused = |part: &str| {
        let message = open(&paths, &by).expect_err(part).to_string();
        assert!(message.contains("00000_unshuffled.ds") && message.contains(part), "{message}");
    };
    fs::write(beside("metadata"), "gpt2\n").expect("metadata");
    refused("its second line is no number of tokens");
    fs::write(beside("index"), &index[..10]).expect("an index");
    refused("10 bytes are no numbers of 8 bytes each");
    fs::write(beside("index"), &index[..8]).expect("an index");
    // Six tokens of two bytes are three of four, as an index of another file says.
    refused("is outside the vocabulary of 5");
    fs::write(beside("index"), 5_u64.to_le_bytes()).expect("an index");
    refused("it has 12 bytes, but 5 tokens by what is beside it");
}

/// Where it is in its own file, whatever is read before.
#[test]
fn a_token_that_the_vocabulary_does_not_have_is_named_by_its_file_and_its_place_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let by = words(folder.path(), "</s>");
    let write = |name: &str, tokens: &[u16]| {
        let path = folder.path().join(name);
        let bytes: Vec<u8> = tokens.iter().flat_map(|it| it.to_le_bytes()).collect();
        fs::write(&path, bytes).expect("tokens");
        path
    };
    let sound = write("0.ds", &[1, 2, 4, 3, 0, 4]);
    for place in 0..4 {
        let mut tokens = [1, 2, 3, 4];
        tokens[place] = 9;
        let wrong = write("1.ds", &tokens);
        for before in 0..3 {
            let mut paths = vec![sound.clone(); before];
            paths.push(wrong.clone());
            let message = open(&paths, &by).expect_err("no such token").to_string();
            let part = format!("token 9 at position {place} is outside the vocabulary of 5");
            assert!(message.contains("1.ds") && message.contains(&part), "{message}");
        }
    }
}

#[test]
fn without_files_beside_it_the_vocabulary_says_how_wide_tokens_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("00000_unshuffled.ds");
    fs::write(&data, [1, 0, 0, 0, 2, 0, 0, 0]).expect("tokens");
    let path = folder.path().join("tokenizer.json");
    for (size, tokens) in [(65_536, &[1, 0, 2, 0][..]), (65_537, &[1, 2])] {
        let words: Vec<String> = (0..size).map(|at| format!("\"w{at}\": {at}")).collect();
        let json = format!(
            "{{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [],
            \"normalizer\": null, \"pre_tokenizer\": {{\"type\": \"WhitespaceSplit\"}},
            \"post_processor\": null, \"decoder\": null, \"model\": {{\"type\": \"WordLevel\",
            \"vocab\": {{{}}}, \"unk_token\": \"w0\"}}}}",
            words.join(", ")
        );
        fs::write(&path, json).expect("a tokenizer");
        let by = Tokenizer::open(&path).expect("a tokenizer");
        assert_eq!(open(std::slice::from_ref(&data), &by).expect("tokens"), tokens);
    }
}

#[test]
fn a_folder_may_have_all_of_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let by = words(folder.path(), "</s>");
    let root = folder.path().join("all");
    fs::create_dir(&root).expect("a folder");
    fs::write(root.join("a.txt"), "a b").expect("a text");
    fs::write(root.join("b.jsonl"), "{\"text\": \"c\"}\n").expect("a text");
    write_megatron(&root.join("c"), 8, &[&[3, 3]]);
    fs::write(root.join("d.ds"), [2, 0, 2, 0]).expect("tokens");
    fs::write(root.join("d.ds.index"), 2_u64.to_le_bytes()).expect("an index");
    fs::write(root.join("d.ds.metadata"), "a b c\n2\n2 T").expect("metadata");
    fs::write(root.join("e.txt"), "a").expect("a text");
    // An index of nothing is a text or none, as it was.
    fs::write(root.join("f.idx"), "b").expect("a text");
    assert_eq!(open(&[root], &by).expect("tokens"), [1, 2, 3, 4, 3, 3, 2, 2, 1, 2]);
}
