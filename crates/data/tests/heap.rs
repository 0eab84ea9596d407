//! Memory does not grow with the data: what is more than a little is read where it lies.
#![expect(unsafe_code, reason = "only an allocator sees how much memory is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use shardloom_data::{Batches, Corpus, DataError, Reading, Tokenizer};

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Tests of one program share its heap, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        MOST.fetch_max(now, Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes in use at once beyond those before.
fn most_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = IN_USE.load(Ordering::SeqCst);
    MOST.store(before, Ordering::SeqCst);
    let result = work();
    (result, MOST.load(Ordering::SeqCst) - before)
}

/// Opens a text and looks at samples all over it.
fn train_on(paths: &[PathBuf], by: &Tokenizer) -> Batches {
    let corpus = Corpus::open(paths, by, 0.1, &Reading::default()).expect("a corpus");
    assert_eq!(corpus.held_bytes(), 0);
    let batches = Batches::new(corpus, 1000, 3).expect("enough of it");
    let mut room = vec![];
    for position in 0..200 {
        assert_eq!(batches.sample(position, &mut room).expect("reads").inputs.len(), 1000);
    }
    batches
}

fn lines(bytes: usize) -> String {
    let mut text: String =
        (0..).map(|line| format!("line {line} of it\n")).take(bytes / 12).collect();
    text.truncate(bytes);
    text
}

#[test]
fn bytes_are_read_where_they_lie() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("text.txt");
    let mut text = lines(18_000_000);
    fs::write(&path, &text).expect("a text");
    let paths = [path.clone()];
    let (batches, small) = most_of(|| train_on(&paths, &Tokenizer::bytes()));
    let digest = batches.corpus().digest().to_owned();
    // The same tokens in memory.
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let held = Corpus::from_tokens(tokens, 256, 0.1).expect("a corpus");
    assert_eq!(digest, held.digest());
    let held = Batches::new(held, 1000, 3).expect("enough of it");
    let (mut room, mut other) = (vec![], vec![]);
    for position in [0, 1, 17, 16_000, 40_000] {
        let (one, two) = (batches.sample(position, &mut room), held.sample(position, &mut other));
        assert_eq!(one.expect("reads"), two.expect("reads"));
    }
    drop((batches, held, room, other));
    text = lines(36_000_000);
    fs::write(&path, &text).expect("a text");
    let (_, large) = most_of(|| train_on(&paths, &Tokenizer::bytes()));
    assert!(small < 1 << 20 && large < 1 << 20, "{small} and {large} bytes");
}

#[test]
fn many_files_are_one_corpus() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    // More than stay open, and of different lengths.
    let mut all = String::new();
    for file in 0..150 {
        let text = lines(115_000 + 97 * file);
        fs::write(folder.path().join(format!("{file:03}.txt")), &text).expect("a text");
        all.push_str(&text);
    }
    fs::write(folder.path().join("050.bin"), "no\0text").expect("a file");
    let paths = [folder.path().to_path_buf()];
    let (batches, most) = most_of(|| train_on(&paths, &Tokenizer::bytes()));
    assert!(most < 1 << 20, "{most} bytes");
    assert_eq!(batches.corpus().skipped().len(), 1);
    let bytes: Vec<u32> = all.bytes().map(u32::from).collect();
    let mut room = vec![];
    // From within the first file, over several ends, and the end of all.
    let end = bytes.len() as u64;
    for range in [0..10, 114_990..115_010, 100..400_000, end - 300_000..end, end - 1..end] {
        batches.corpus().read(range.clone(), &mut room).expect("reads");
        assert!(room == bytes[range.start as usize..range.end as usize], "{range:?}");
    }
    // Files that stay open and files that do not are noticed when they change.
    for file in [0, 149] {
        let path = folder.path().join(format!("{file:03}.txt"));
        let start = if file == 0 { 0 } else { end - 10 };
        batches.corpus().read(start..start + 10, &mut room).expect("reads");
        fs::OpenOptions::new().write(true).open(&path).and_then(|it| it.set_len(50)).expect("cut");
        let error = batches.corpus().read(start..start + 10, &mut room).expect_err("changed");
        assert!(matches!(&error, DataError::Changed { path: at } if *at == path), "{error}");
    }
}

#[test]
fn kept_tokens_are_read_where_they_lie() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("text.txt");
    fs::write(&path, lines(4_000_000)).expect("a text");
    let words = words(folder.path());
    train_on(std::slice::from_ref(&path), &words);
    let (_, most) = most_of(|| train_on(std::slice::from_ref(&path), &words));
    assert!(most < 3 << 19, "{most} bytes");
}

/// A tokenizer of a few words.
fn words(folder: &Path) -> Tokenizer {
    let path = folder.join("tokenizer.json");
    let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"line": 0, "of": 1, "it": 2, "?": 3}, "unk_token": "?"}}"#;
    fs::write(&path, json).expect("a tokenizer");
    Tokenizer::open(&path).expect("a tokenizer")
}
