//! `shardloom program`: what the ranks of a plan hold and do, line by line.

use clap::Args;
use shardloom::program::text::LEGEND;
use shardloom::program_text;

use super::plan_or_model::{PlanOrModel, Planned, Shape};
use super::{ProfileFile, in_options};
use crate::failure::Failure;
use crate::number::whole;
use crate::terminal::Terminal;

/// Say what ranks of a plan hold and do: every tensor and every instruction of a step, a line each
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  shardloom program plan.toml
  shardloom program plan.toml --rank 3
  shardloom program gpt:layers=2,hidden=64,heads=2,seq=32,vocab=128 --cluster a100-80g:4 --pp 2 --dp 2 --zero 1 --global-batch 4")]
pub struct Program {
    #[command(flatten)]
    what: PlanOrModel,

    /// The rank [default: the first of all ranks that do the same]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    rank: Option<u32>,

    #[command(flatten)]
    profile: ProfileFile,

    #[command(flatten)]
    shape: Shape,
}

impl Program {
    /// Prints the programs.
    pub fn run(&self, terminal: Terminal) -> Result<(), Failure> {
        let local = self.profile.local();
        let Planned { model, plan, file, .. } = self.what.planned(&self.shape, &local, terminal)?;
        let texts = program_text(&model, &plan, self.rank);
        let texts = texts.map_err(|error| in_options::of_plan(error, file.as_deref()))?;
        if terminal.json() {
            return texts.iter().try_for_each(|text| terminal.object(text));
        }
        // Files keep each instruction on one line, to be searched and compared.
        let width = terminal.columns().unwrap_or(usize::MAX);
        terminal.text(LEGEND)?;
        for text in &texts {
            terminal.text("\n")?;
            terminal.text(wrapped(&text.text, width))?;
        }
        Ok(())
    }
}

/// The text in lines of at most `width` columns, broken between operands where that is possible, and else
/// at spaces. A line goes on a little to the right of what stands behind its first gap of two spaces, so that queues
/// and names remain a column.
fn wrapped(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let start = line.len() - line.trim_start().len();
        let gap = line[start..].find("  ").map(|at| start + at);
        let begins = gap.map_or(start, |gap| line.len() - line[gap..].trim_start().len());
        let indent = " ".repeat((begins + 2).min(width / 2));
        let (mut rest, mut room, mut kept) = (line, width, begins);
        while let Some((end, _)) = rest.char_indices().nth(room) {
            // Before `kept` stands what is not to be broken off.
            let spaces: Vec<usize> = rest.match_indices(' ').map(|(at, _)| at).collect();
            let fits = spaces.iter().copied().filter(|&at| at > kept && at <= end);
            let between = |at: &usize| ends_operand(&rest[..*at], &rest[*at..]);
            let cut = fits.clone().rfind(between).or_else(|| fits.clone().next_back());
            // A word that is longer than a line stays whole.
            let cut = cut.or_else(|| spaces.into_iter().find(|&at| at > end.max(kept)));
            let Some(cut) = cut else { break };
            wrapped += rest[..cut].trim_end();
            wrapped += &format!("\n{indent}");
            rest = rest[cut..].trim_start();
            (room, kept) = (width - indent.len(), 0);
        }
        wrapped += rest;
        wrapped.push('\n');
    }
    wrapped
}

/// Whether an operand, or the part of a line that says what is done, ends between two texts.
fn ends_operand(before: &str, after: &str) -> bool {
    before.ends_with([',', ';', ':']) || after.starts_with(" <-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_fit_stay_as_they_are() {
        assert_eq!(wrapped("a step\n  forward 0  (note)\n", 18), "a step\n  forward 0  (note)\n");
    }

    #[test]
    fn long_lines_go_on_behind_the_queue() {
        let line = "    dp   all-gather: y[4] <- x[2], z[2]; frees x\n";
        let expected =
            ["    dp   all-gather: y[4]", "           <- x[2], z[2];", "           frees x\n"];
        assert_eq!(wrapped(line, 25), expected.join("\n"));
    }

    #[test]
    fn words_longer_than_a_line_stay_whole_and_no_word_is_lost() {
        let text =
            "    compute  forward: é.long.naïve.name[2,8] <- x\n  block.0  412 elements: ä[8], b\n";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for width in 0..60 {
            assert_eq!(words(&wrapped(text, width)), words(text), "{width} columns");
        }
    }

    /// Lines of random words, some of which end an operand. Each line but the last is as long as it can be: up to the
    /// last end of an operand that fits, and where none fits up to the last word.
    #[test]
    fn lines_break_behind_the_last_operand_that_fits_or_else_the_last_word() {
        let mut state = 11_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let ends = |word: &str, next: Option<&&str>| {
            word.ends_with([',', ';', ':']) || next.is_some_and(|it| it.starts_with("<-"))
        };
        let [mut at_operands, mut at_words] = [0; 2];
        for _ in 0..300 {
            let words: Vec<String> = (0..40)
                .map(|_| match random(9) {
                    0 => "<-".to_owned(),
                    1 | 2 => {
                        "é".repeat(1 + random(6) as usize) + [",", ";", ":"][random(3) as usize]
                    }
                    _ => "x".repeat(1 + random(8) as usize),
                })
                .collect();
            let width = 24 + random(40) as usize;
            let text = format!("    q  {}\n", words.join(" "));
            let found = wrapped(&text, width);
            let lines: Vec<&str> = found.lines().collect();
            let mut all = words.iter().map(String::as_str).collect::<Vec<_>>().into_iter();
            for (index, line) in lines.iter().enumerate() {
                assert!(line.chars().count() <= width, "{line:?} in {width} columns");
                let (indent, kept) = if index == 0 { ("    q  ", 7) } else { ("         ", 9) };
                let own: Vec<&str> =
                    line.strip_prefix(indent).expect("indented").split(' ').collect();
                assert!(all.by_ref().take(own.len()).eq(own.iter().copied()), "{line:?}");
                let rest: Vec<&str> = all.clone().collect();
                if rest.is_empty() {
                    assert_eq!(index + 1, lines.len());
                    break;
                }
                // How many words there would be room for, and behind which of them an operand ends.
                let both: Vec<&str> = own.iter().chain(&rest).copied().collect();
                let columns = |words: usize| {
                    kept + both[..words].iter().map(|it| it.chars().count() + 1).sum::<usize>() - 1
                };
                let fit = (1..both.len()).take_while(|&it| columns(it) <= width);
                let (last, operand) = fit.fold((0, None), |(_, operand), it| {
                    (it, Some(it).filter(|it| ends(both[it - 1], both.get(*it))).or(operand))
                });
                assert_eq!(own.len(), operand.unwrap_or(last), "{line:?} in {width} columns");
                *(if operand.is_some() { &mut at_operands } else { &mut at_words }) += 1;
            }
            assert!(all.next().is_none(), "words are lost");
        }
        assert!(at_operands > 100 && at_words > 100, "{at_operands} and {at_words}");
    }
}
