//! `shardloom vocabulary`: the words of a text as a tokenizer.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::data::WordVocabulary;
use shardloom::program::quantity::percent;

use crate::failure::Failure;
use crate::number::whole;
use crate::output_file::OutputFile;
use crate::terminal::Terminal;

/// Make a word-level tokenizer of the most frequent words of a text
///
/// Words are what stands between white space, in lower case. Two entries of the vocabulary are for words that
/// are not in it and for ends of lines. The file is a tokenizer.json, which `train --tokenizer` and Hugging
/// Face's tokenizers read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom vocabulary --data text.txt --size 10000 -o words.json
  shardloom train lstm:layers=2,hidden=200,embed=200 --seq 35 --tokenizer words.json \\
      --data text.txt --steps 500")]
pub struct Vocabulary {
    /// Text: a file, or a folder with all text below it. May be given several times
    #[arg(long, value_name = "PATH", required = true)]
    data: Vec<PathBuf>,

    /// Entries of the vocabulary at most
    #[arg(long, value_name = "WORDS", value_parser = whole::<usize>)]
    size: usize,

    /// The file for the tokenizer
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Overwrite a file that exists
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Answer {
    tokenizer: String,
    vocabulary: usize,
    words: u64,
    different: usize,
    unknown: u64,
}

impl Vocabulary {
    /// Counts words.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let file = OutputFile::new(&self.output, self.force)?;
        let spinner = terminal.spinner("counting words");
        let found = WordVocabulary::of(&self.data, self.size).map_err(shardloom::Error::from);
        spinner.finish_and_clear();
        let found = found?;
        file.write(found.to_json())?;
        let answer = Answer {
            tokenizer: file.path().display().to_string(),
            vocabulary: found.words.len(),
            words: found.total,
            different: found.different,
            unknown: found.unknown,
        };
        if terminal.json() {
            return terminal.object(&answer);
        }
        let share = percent(answer.unknown as f64 / answer.words as f64);
        terminal.line(format_args!(
            "{} entries, of {} different words, written to {}; {share} of all {} are unknown",
            answer.vocabulary, answer.different, answer.tokenizer, answer.words,
        ))
    }
}
