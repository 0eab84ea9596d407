//! `shardloom generate`: text from what was trained.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use shardloom::{Drawing, Generator};

use crate::failure::Failure;
use crate::number::{not_negative, size, whole};
use crate::terminal::Terminal;

/// Go on with a text as a trained model would
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom generate checkpoints --prompt 'fn main() {' --tokens 200
  shardloom generate checkpoints/step-00000500 --prompt 'The' --temperature 0")]
pub struct Generate {
    /// A checkpoint, or a folder of checkpoints, of which the newest sound one is taken
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,

    /// The text to go on from
    #[arg(long, value_name = "TEXT")]
    prompt: String,

    /// Tokens to add
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u32>)]
    tokens: u32,

    /// By what logits are divided before drawing; 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = not_negative)]
    temperature: f64,

    /// Draw only from this many of the likeliest tokens [default: all]
    #[arg(long, value_name = "K", value_parser = size)]
    top_k: Option<usize>,

    /// Seed of the drawing
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = whole::<u64>)]
    seed: u64,

    /// `bytes` or a tokenizer.json [default: the one the model was trained with]
    #[arg(long, value_name = "TOKENIZER")]
    tokenizer: Option<String>,
}

#[derive(Serialize)]
struct Answer {
    text: String,
    tokens: u32,
}

impl Generate {
    /// Generates.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        if self.prompt.is_empty() {
            let message = "--prompt is empty: at least one token is needed to go on from";
            return Err(Failure::usage("--prompt", message));
        }
        let Generate { temperature, top_k, seed, .. } = *self;
        let drawing = Drawing { temperature, top_k, seed };
        let mut generator = Generator::open(&self.checkpoint, self.tokenizer.as_deref(), drawing)?;
        for refused in generator.refused() {
            terminal.note(refused);
        }
        if let Some(trained_with) = generator.trained_with() {
            terminal.note(format_args!(
                "the model was trained with the tokenizer {trained_with}, and its tokens mean something else with another"
            ));
        }
        generator.prompt(&self.prompt)?;
        let mut shown = String::new();
        for _ in 0..self.tokens {
            if !terminal.json() {
                self.show(&generator, &mut shown, terminal)?;
            }
            generator.next_token()?;
        }
        let text = generator.text()?;
        if terminal.json() {
            return terminal.object(&Answer { text, tokens: self.tokens });
        }
        terminal.line(&text[common_prefix(&shown, &text)..])
    }

    /// Shows what has come, but for an end that may yet turn out otherwise: the bytes of a character
    /// come one after another.
    fn show(
        &self,
        generator: &Generator,
        shown: &mut String,
        terminal: Terminal,
    ) -> Result<(), Failure> {
        let text = generator.text()?;
        let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        terminal.text(&text[common_prefix(shown, text)..])?;
        text.clone_into(shown);
        Ok(())
    }
}

/// Bytes that both begin with, to the end of a character.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(c, _)| c.len_utf8()).sum()
}
