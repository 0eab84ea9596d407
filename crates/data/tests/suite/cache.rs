//! Encoded text is kept, known again, and made anew where it is damaged.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use shardloom_data::{Corpus, DataError, Progress, Reading, Stage, Tokenizer};

/// Where a child finds what it is to read.
const FOLDER: &str = "SHARDLOOM_TEST_FOLDER";

/// A tokenizer that splits text by a regular expression and then into bytes, some of which it merges.
fn split_by(pattern: &str, added: Value) -> Value {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut vocabulary: serde_json::Map<String, Value> =
        alphabet.into_iter().zip(0..).map(|(byte, id)| (byte.into(), json!(id))).collect();
    // ĊĊ is two line ends, and Ċ/ one and a slash.
    for (id, token) in (256..).zip(["he", "ll", "hell", "hello", "Ġhe", "ĊĊ", "Ċ/", "!Ċ"]) {
        vocabulary.insert(token.into(), json!(id));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "post_processor": null, "decoder": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": vocabulary,
            "merges": ["h e", "l l", "he ll", "hell o", "Ġ he", "Ċ Ċ", "Ċ /", "! Ċ"]
        }
    })
}

/// Of GPT-4o, which keeps slashes with the line ends before them.
const GPT_4O: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Of Llama 3.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn tokenizer(folder: &Path, json: &Value) -> (PathBuf, Tokenizer) {
    let path = folder.join("tokenizer.json");
    fs::write(&path, json.to_string()).expect("a tokenizer");
    let opened = Tokenizer::open(&path).expect("a tokenizer");
    (path, opened)
}

/// Lines of words, blank lines, indents, line ends of Windows, and marks and slashes at both ends of lines.
fn text(bytes: usize) -> String {
    let pieces = [
        "hello hell",
        "he",
        "\n",
        "\n",
        "!\n",
        "\n/",
        " ",
        "é",
        "12345",
        "\n\n",
        "\r\n",
        "  ",
        "!\n/usr",
        "<mask>",
        "\n<mask>",
    ];
    let mut state = 1_u64;
    let mut text = String::new();
    while text.len() < bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
    }
    text
}

/// Opens a text, and says which stages that took.
fn open(
    path: &Path,
    by: &Tokenizer,
    cache: Option<&Path>,
) -> Result<(Corpus, Vec<Stage>), DataError> {
    let stages = RefCell::new(vec![]);
    let heard = |progress: Progress| {
        let mut stages = stages.borrow_mut();
        assert!(progress.done <= progress.total);
        if stages.last() != Some(&progress.stage) {
            stages.push(progress.stage);
        }
    };
    let reading =
        Reading { cache: cache.map(Path::to_path_buf), heard: &heard, ..Reading::default() };
    let corpus = Corpus::open(&[path.to_path_buf()], by, 0.1, &reading)?;
    Ok((corpus, stages.into_inner()))
}

fn tokens(corpus: &Corpus) -> Vec<u32> {
    let mut tokens = vec![];
    corpus.read(0..corpus.training_len() + corpus.validation_len(), &mut tokens).expect("tokens");
    tokens
}

fn kept(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| !path.ends_with(".gitignore")).collect();
    files.sort();
    files
}

#[test]
fn a_text_in_parts_has_the_tokens_of_the_whole() {
    let text = text(9 << 17);
    let mask = json!([{
        "id": 300, "content": "<mask>", "single_word": false, "lstrip": true, "rstrip": false,
        "normalized": false, "special": true
    }]);
    for (pattern, added) in [(GPT_4O, json!([])), (LLAMA_3, mask)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("text.txt");
        fs::write(&path, &text).expect("a text");
        let (file, by) = tokenizer(folder.path(), &split_by(pattern, added));
        let at_once = tokenizers::Tokenizer::from_file(file).expect("a tokenizer");
        let at_once =
            at_once.encode_fast(text.as_str(), false).expect("encodes").get_ids().to_vec();
        let (corpus, _) = open(&path, &by, None).expect("a corpus");
        assert_eq!(tokens(&corpus), at_once);
        // A checkpoint takes either for the same data.
        let held = Corpus::from_tokens(at_once, by.vocabulary_size(), 0.1).expect("a corpus");
        assert_eq!(corpus.digest(), held.digest());
        assert_eq!(
            (corpus.training_len(), corpus.validation_len(), corpus.held_bytes()),
            (held.training_len(), held.validation_len(), 0)
        );
    }
}

/// A tokenizer of two words that is done soon.
fn words(first: &str, second: &str) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "post_processor": null, "decoder": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {first: 0, second: 1, "?": 2}, "unk_token": "?"}
    })
}

/// A folder with a text of two parts, and its tokenizer. Words are long, so that they are few.
fn example() -> (tempfile::TempDir, PathBuf, Tokenizer) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("text.txt");
    let word = "word".repeat(25);
    let lines = (0..11_000).map(|line| match line % 3 {
        0 => "here\n".to_owned(),
        1 => format!("{word} there\n"),
        _ => format!("{word}\n"),
    });
    fs::write(&path, lines.collect::<String>().repeat(2)).expect("a text");
    let (_, by) = tokenizer(folder.path(), &words("here", "there"));
    (folder, path, by)
}

#[test]
fn text_is_encoded_once_and_what_is_damaged_anew() {
    let (folder, path, by) = example();
    let cache = folder.path().join(".shardloom-cache");
    let (corpus, stages) = open(&path, &by, None).expect("a corpus");
    assert_eq!(stages, [Stage::Checking, Stage::Encoding, Stage::Checking]);
    let (digest, whole) = (corpus.digest().to_owned(), tokens(&corpus));
    drop(corpus);
    let [file] = &kept(&cache)[..] else { panic!("one file in {:?}", kept(&cache)) };
    let sound = fs::read(file).expect("tokens");
    let opened = |encodes: bool| {
        let (corpus, stages) = open(&path, &by, None).expect("a corpus");
        assert_eq!(stages.contains(&Stage::Encoding), encodes);
        assert_eq!((corpus.digest(), tokens(&corpus)), (digest.as_str(), whole.clone()));
        assert_eq!(fs::read(file).expect("tokens"), sound);
        assert_eq!(kept(&cache).len(), 1);
    };
    opened(false);
    let mut damaged = sound.clone();
    damaged[sound.len() / 2] ^= 1;
    fs::write(file, &damaged).expect("written");
    opened(true);
}

#[test]
fn another_text_or_tokenizer_has_other_tokens() {
    let (folder, path, by) = example();
    let cache = folder.path().join("elsewhere");
    let (first, _) = open(&path, &by, Some(&cache)).expect("a corpus");
    let longer = fs::read_to_string(&path).expect("a text") + "more";
    fs::write(&path, &longer).expect("a text");
    let (second, stages) = open(&path, &by, Some(&cache)).expect("a corpus");
    assert!(stages.contains(&Stage::Encoding));
    assert_ne!(first.digest(), second.digest());
    let (_, other) = tokenizer(folder.path(), &words("there", "here"));
    let (third, stages) = open(&path, &other, Some(&cache)).expect("a corpus");
    assert!(stages.contains(&Stage::Encoding));
    assert_eq!(tokens(&third), other.encode(&longer).expect("encodes"));
    assert_eq!(kept(&cache).len(), 3);
    assert!(!folder.path().join(".shardloom-cache").exists(), "nothing beside the text");
    // Copies of a text are the same text, and its tokens are there however it is named.
    let copy = folder.path().join("copy.txt");
    fs::write(&copy, &longer).expect("a text");
    let (fourth, stages) = open(&copy, &other, Some(&cache)).expect("a corpus");
    assert_eq!((stages, fourth.digest()), (vec![Stage::Checking], third.digest()));
}

#[test]
fn little_text_is_not_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("text.txt");
    fs::write(&path, "hello hell\n").expect("a text");
    let (_, by) = tokenizer(folder.path(), &split_by(LLAMA_3, json!([])));
    let nowhere = folder.path().join("text.txt/no folder");
    let (corpus, _) = open(&path, &by, Some(&nowhere)).expect("needs no folder");
    assert_eq!(tokens(&corpus), by.encode("hello hell\n").expect("encodes"));
    assert!(!folder.path().join(".shardloom-cache").exists());
}

#[test]
fn a_folder_that_cannot_be_written_names_the_option_for_another() {
    let (_folder, path, by) = example();
    let error = open(&path, &by, Some(&path)).expect_err("a file").to_string();
    assert!(error.contains("text.txt") && error.contains("--cache DIR"), "{error}");
}

#[test]
fn all_texts_of_a_folder_are_one_file_of_tokens_which_is_not_taken_for_text() {
    let (folder, path, by) = example();
    let texts = folder.path().join("texts");
    fs::create_dir(&texts).expect("a folder");
    fs::copy(&path, texts.join("b.txt")).expect("a text");
    fs::write(texts.join("a.txt"), "hell").expect("a text");
    fs::write(texts.join("c.bin"), "no\0text").expect("a file");
    let (corpus, _) = open(&texts, &by, None).expect("a corpus");
    let parts = ["hell".to_owned(), fs::read_to_string(&path).expect("a text")];
    let wanted: Vec<u32> =
        parts.iter().flat_map(|part| by.encode(part).expect("encodes")).collect();
    assert_eq!(tokens(&corpus), wanted);
    assert_eq!(corpus.skipped(), [texts.join("c.bin")]);
    assert_eq!(kept(&texts.join(".shardloom-cache")).len(), 1);
    let (again, stages) = open(&texts, &by, None).expect("a corpus");
    assert_eq!((stages, again.digest()), (vec![Stage::Checking], corpus.digest()));
}

/// What a child does: reads the text of the folder that the environment names, and says in a file of its own whether it
/// encoded anything. Where it is to be killed, it goes in the middle of that.
#[test]
#[ignore = "started by other tests"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let dies = folder.join("dies").exists();
    let by = Tokenizer::open(&folder.join("tokenizer.json")).expect("a tokenizer");
    let encoded = RefCell::new(false);
    let heard = |progress: Progress| {
        if progress.stage == Stage::Encoding {
            *encoded.borrow_mut() = true;
            if dies && progress.done == progress.total {
                std::process::abort();
            }
        }
    };
    let reading = Reading { heard: &heard, ..Reading::default() };
    let corpus = Corpus::open(&[folder.join("text.txt")], &by, 0.0, &reading).expect("a corpus");
    let said = format!("{} {}", encoded.borrow(), corpus.digest());
    fs::write(folder.join(format!("said.{}", std::process::id())), said).expect("said");
}

fn start_child(folder: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["cache::child", "--exact", "--ignored", "--test-threads=1"]).env(FOLDER, folder);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command.spawn().expect("a child")
}

#[test]
fn of_several_processes_one_encodes() {
    let (folder, path, by) = example();
    let children: Vec<_> = (0..4).map(|_| start_child(folder.path())).collect();
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    let files = fs::read_dir(folder.path()).expect("a folder").map(|it| it.expect("a file").path());
    let said: Vec<String> = files
        .filter(|path| path.file_stem().is_some_and(|stem| stem == "said"))
        .map(|path| fs::read_to_string(path).expect("said"))
        .collect();
    let (corpus, stages) = open(&path, &by, None).expect("a corpus");
    assert_eq!(stages, [Stage::Checking]);
    let who = |encoded: bool| format!("{encoded} {}", corpus.digest());
    assert_eq!(said.iter().filter(|said| **said == who(true)).count(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|said| **said == who(false)).count(), 3, "{said:?}");
    assert_eq!(kept(&folder.path().join(".shardloom-cache")).len(), 1);
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let (folder, path, by) = example();
    fs::write(folder.path().join("dies"), "").expect("written");
    let mut child = start_child(folder.path());
    assert!(!child.wait().expect("it ends").success());
    let cache = folder.path().join(".shardloom-cache");
    let ends = |ending: &str| {
        let files = kept(&cache);
        files.iter().filter(|file| file.extension().is_some_and(|it| it == ending)).count()
    };
    assert_eq!((ends("tokens"), ends("partial"), ends("lock")), (0, 1, 1));
    let (corpus, stages) = open(&path, &by, None).expect("a corpus");
    assert!(stages.contains(&Stage::Encoding));
    assert_eq!((ends("tokens"), ends("partial"), ends("lock")), (1, 0, 0));
    let text = fs::read_to_string(&path).expect("a text");
    assert_eq!(tokens(&corpus), by.encode(text).expect("encodes"));
}
