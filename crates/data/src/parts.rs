//! A text in parts that can be encoded apart.

use std::path::{Path, PathBuf};

use crate::blocks::Blocks;
use crate::tokenizer::Cuts;
use crate::{DataError, Result};

/// The longest part, as a tokenizer takes many times the memory of what it encodes at once.
const LONGEST_PART: usize = 1 << 24;

/// The parts of the text of a file, which are those of the text as a whole. One part and one block are in memory.
pub(crate) struct Parts<'a> {
    path: PathBuf,
    blocks: Blocks,
    cuts: &'a Cuts,
    part_bytes: usize,
    longest: usize,
    /// What has been read of the next part, and where it has no cut before.
    text: String,
    searched: usize,
    ended: bool,
}

impl<'a> Parts<'a> {
    /// Opens a file. Parts have at least `part_bytes`, but for the last.
    pub fn open(path: &Path, cuts: &'a Cuts, part_bytes: usize) -> Result<Parts<'a>> {
        Ok(Parts {
            path: path.to_path_buf(),
            blocks: Blocks::open(path)?,
            cuts,
            part_bytes,
            longest: LONGEST_PART,
            text: String::new(),
            searched: 0,
            ended: false,
        })
    }

    /// The next part; none behind the last.
    ///
    /// # Errors
    /// If the file cannot be read or is not text, or has no place to cut it at for too long.
    pub fn next(&mut self) -> Result<Option<String>> {
        loop {
            match self.cuts.find(&self.text, self.part_bytes, &mut self.searched, self.ended) {
                Some(end) => {
                    let rest = self.text.split_off(end);
                    self.searched = 0;
                    return Ok(Some(std::mem::replace(&mut self.text, rest)));
                }
                None if self.ended => return Ok(None),
                None if self.text.len() > self.longest => {
                    return Err(DataError::NoCut {
                        path: self.path.clone(),
                        bytes: self.text.len(),
                    });
                }
                None => match self.blocks.next()? {
                    Some(block) => match block.text {
                        Ok(text) => self.text.push_str(text),
                        Err(offset) => {
                            return Err(DataError::NotText { path: self.path.clone(), offset });
                        }
                    },
                    None => self.ended = true,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn parts(text: &[u8], cuts: &Cuts, part_bytes: usize, longest: usize) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("text.txt");
        fs::write(&path, text).expect("a temporary file");
        let mut parts = Parts { longest, ..Parts::open(&path, cuts, part_bytes)? };
        std::iter::from_fn(|| parts.next().transpose()).collect()
    }

    #[test]
    fn parts_of_a_file_are_those_of_its_text_wherever_blocks_end() {
        // Longer than a block, with characters of all lengths across its ends.
        let line = "word é ₤ 🦀 // more\n/ and on\n";
        let text: String = (0..30_000).map(|at| format!("{at} {line}")).collect();
        let cuts = Cuts::default();
        for shift in 0..5 {
            let text = "x".repeat(shift) + &text;
            let whole: Vec<&str> = cuts.parts(&text, 100_000).collect();
            assert!(whole.len() > 5);
            assert_eq!(parts(text.as_bytes(), &cuts, 100_000, usize::MAX).expect("parts"), whole);
        }
    }

    #[test]
    fn what_is_not_text_and_what_cannot_be_cut_is_refused() {
        let cuts = Cuts::default();
        let long = [&b"a\n".repeat(200_000)[..], b"\xc3("].concat();
        for (bytes, at) in [(&b"ab\xff"[..], 2), (b"ab\xc3", 2), (&long, 400_000)] {
            let error = parts(bytes, &cuts, 10, usize::MAX).expect_err("not text");
            assert!(matches!(error, DataError::NotText { offset, .. } if offset == at), "{error}");
        }
        let blank = "a \n".repeat(200_000);
        let error = parts(blank.as_bytes(), &cuts, 10, 300_000).expect_err("no cut").to_string();
        assert!(error.contains("text.txt") && error.contains("line end"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn parts_of_short_texts_are_those_of_the_whole(text in "(ab|é|\n|\n\n|\r\n| |/|🦀){0,40}", part in 0_usize..20) {
            let cuts = Cuts::default();
            let whole: Vec<String> = cuts.parts(&text, part).map(str::to_owned).collect();
            prop_assert_eq!(whole.concat(), text.as_str());
            prop_assert_eq!(parts(text.as_bytes(), &cuts, part, usize::MAX).expect("parts"), whole);
        }
    }
}
