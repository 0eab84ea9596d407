//! The fuzzer's corpus, given to its targets again: all that reads files and words of users returns, and what is
//! printed reads as the same (CONTRIBUTING, "Fuzzing").

#[path = "../../../../fuzz/src/targets.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

#[test]
fn every_input_of_the_corpus_is_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut failed = vec![];
    for (name, target) in targets::TARGETS {
        let folder = corpus.join(name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut count = 0;
        for file in files {
            let path = file.expect("a file of the corpus").path();
            let input = fs::read(&path).expect("an input");
            if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
                failed.push(path);
            }
            count += 1;
        }
        assert!(count > 0, "{folder:?} has no input");
    }
    assert!(failed.is_empty(), "these inputs make their targets panic: {failed:#?}");
}

#[test]
fn every_folder_of_the_corpus_has_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for folder in fs::read_dir(corpus).expect("the corpus") {
        let name = folder.expect("a folder of the corpus").file_name();
        assert!(targets::TARGETS.iter().any(|(target, _)| *target == name), "{name:?}");
    }
}
