//! The arguments of a command, out of a shell script or a command line.
//!
//! Scripts are not run. What is understood of them: comments, quotes, lines that go on after `\`,
//! assignments `NAME=value` and `NAME=(...)`, and what is made of them by `$NAME`, `${NAME}` and
//! `${NAME:-value}`. A value that needs more than that stays as it is written, and is refused where it is read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use super::{ON_DEVICES, asks_for_offload, is_misspelt, is_off};
use crate::ExchangeError;

/// Options with the values that follow them; of an option given twice the last counts.
pub(super) struct Arguments {
    place: String,
    /// On which line each option is named last.
    lines: BTreeMap<String, usize>,
    options: BTreeMap<String, Vec<String>>,
    read: RefCell<BTreeSet<String>>,
    /// The lines that run a command for what it prints.
    commands: Vec<usize>,
    /// The first and last lines of branches that name options.
    branches: Vec<(usize, usize)>,
}

impl Arguments {
    /// Reads `text`.
    ///
    /// # Errors
    /// If its variables are made of each other until they are too long, or a quote is not closed.
    pub fn of(text: &str, place: &str) -> Result<Arguments, ExchangeError> {
        let mut options: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut current: Option<String> = None;
        let Words { words, undecided } = words(text, place)?;
        for word in words {
            let Some(option) = word.strip_prefix("--").filter(|name| !name.is_empty()) else {
                if let Some(values) = current.as_ref().and_then(|name| options.get_mut(name)) {
                    values.push(word);
                }
                continue;
            };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, vec![value.to_owned()]),
                None => (option, vec![]),
            };
            // torchrun takes both.
            let name = if name.contains('_') { name.replace('_', "-") } else { name.to_owned() };
            options.insert(name.clone(), value);
            current = Some(name);
        }
        if options.is_empty() {
            let message = "has no option, such as --num-layers 24".into();
            return Err(ExchangeError::Text { place: place.into(), message });
        }
        let lines = lines_of(text);
        Ok(Arguments {
            place: place.into(),
            lines,
            options,
            read: RefCell::default(),
            commands: commands_of(text),
            branches: branches_of(text, &undecided),
        })
    }

    /// Where an option is named: the file and the line, if it is there.
    pub fn at(&self, name: &str) -> String {
        match self.lines.get(name) {
            Some(line) => format!("{}:{line}", self.place),
            None => self.place.clone(),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.read.borrow_mut().insert(name.into());
        self.options.contains_key(name)
    }

    /// The value of an option that is there.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ExchangeError> {
        self.read.borrow_mut().insert(name.into());
        match self.options.get(name).map(|values| values.first()) {
            None => Ok(None),
            // The parentheses behind it part words.
            Some(Some(value)) if value == "$" => {
                let rule =
                    "what a command prints, or arithmetic comes to, is not read: write the value";
                self.error(name, "$(...)", rule)
            }
            Some(Some(value)) if value.contains('$') => {
                let rule =
                    "the variable is not assigned in the file: write the value, or assign it";
                self.error(name, value, rule)
            }
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => Err(ExchangeError::Text {
                place: self.at(name),
                message: format!("--{name} has no value"),
            }),
        }
    }

    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, ExchangeError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => self.error(name, text, "a number is needed"),
        }
    }

    /// A number from 1 up.
    pub fn size(&self, name: &str) -> Result<Option<usize>, ExchangeError> {
        match self.number::<usize>(name)? {
            Some(0) => self.error(name, 0, "a number from 1 up is needed"),
            other => Ok(other),
        }
    }

    /// `name` has a value that cannot be.
    pub fn error<T>(
        &self,
        name: &str,
        value: impl Display,
        rule: impl Into<String>,
    ) -> Result<T, ExchangeError> {
        Err(ExchangeError::Word {
            place: self.at(name),
            key: format!("--{name}"),
            value: value.to_string(),
            rule: rule.into(),
        })
    }

    /// The option `name` is needed and is not there.
    pub fn missing<T>(&self, name: &str, rule: &str) -> Result<T, ExchangeError> {
        let read = self.read.borrow();
        let others = self.options.keys().filter(|other| !read.contains(*other));
        let meant = others.map(String::as_str).find(|other| is_misspelt(other, name));
        match meant {
            Some(found) => Err(self.misspelt(found, name)),
            None => {
                let message = format!("--{name} is missing: {rule}");
                Err(ExchangeError::Text { place: self.place.clone(), message })
            }
        }
    }

    fn misspelt(&self, found: &str, meant: &str) -> ExchangeError {
        let message = format!("there is no --{found} here, did you mean --{meant}?");
        ExchangeError::Text { place: self.at(found), message }
    }

    /// The options that were not read.
    ///
    /// # Errors
    /// If one differs by a letter or two from one that was looked for and is not there, or asks for tensors elsewhere
    /// than on devices.
    pub fn unread(&self) -> Result<Vec<String>, ExchangeError> {
        let read = self.read.borrow();
        let mut unread = vec![];
        for (name, values) in self.options.iter().filter(|(name, _)| !read.contains(*name)) {
            let mut absent = read.iter().filter(|it| !self.options.contains_key(*it));
            if let Some(meant) = absent.find(|meant| is_misspelt(name, meant)) {
                return Err(self.misspelt(name, meant));
            }
            let value = values.first().map_or("given", String::as_str);
            if asks_for_offload(name) && !is_off(value) {
                return self.error(name, value, ON_DEVICES);
            }
            unread.push(format!("--{name}"));
        }
        Ok(unread)
    }

    /// One line about commands that a script runs for what they print, if there are any.
    pub fn commands_note(&self) -> Option<String> {
        let lines: Vec<String> = self.commands.iter().map(usize::to_string).collect();
        let lines = (!lines.is_empty()).then(|| lines.join(", "))?;
        Some(format!("what commands print is not read, which the script runs in its lines {lines}"))
    }

    /// One line about options that a script only gives under conditions, if there are any.
    pub fn branches_note(&self) -> Option<String> {
        let lines: Vec<String> =
            self.branches.iter().map(|&(first, last)| format!("{first} to {last}")).collect();
        let lines = (!lines.is_empty()).then(|| lines.join(", "))?;
        Some(format!(
            "which branches the script takes in lines {lines} is not known: their options are read, of one in several \
             branches the last; leave only those that it takes"
        ))
    }
}

/// The first and last lines of a script's `case`, and of an `if` with an `undecided` line, that name options; the
/// outermost of them.
fn branches_of(text: &str, undecided: &BTreeSet<usize>) -> Vec<(usize, usize)> {
    struct Open {
        is_case: bool,
        begin: usize,
        has_options: bool,
    }
    let mut open: Vec<Open> = vec![];
    let mut found: Vec<(usize, usize)> = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let words = || line.split([' ', ';', '\t']);
        if let Some(word @ ("if" | "case")) = words().next() {
            open.push(Open { is_case: word == "case", begin: number, has_options: false });
        }
        let is_plain = !line.starts_with('#');
        if is_plain && line.split([' ', '(', '"', '\'']).any(|it| it.starts_with("--")) {
            open.iter_mut().for_each(|it| it.has_options = true);
        }
        for word in words() {
            let closes =
                open.last().is_some_and(|it| word == if it.is_case { "esac" } else { "fi" });
            let Some(closed) = open.pop_if(|_| closes) else { continue };
            let counts = closed.is_case || undecided.range(closed.begin..=number).next().is_some();
            if closed.has_options && counts {
                found.retain(|&(begin, _)| begin < closed.begin);
                found.push((closed.begin, number));
            }
        }
    }
    found
}

/// The lines of a script with `$(...)` or backquotes, comments aside. What is within `$((...))` is arithmetic.
fn commands_of(text: &str) -> Vec<usize> {
    let is_command = |line: &str| {
        let line = line.trim_start();
        !line.starts_with('#') && (line.replace("$((", "").contains("$(") || line.contains('`'))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_command(line));
    lines.map(|(index, _)| index + 1).collect()
}

/// On which line of a script each option is named last.
fn lines_of(text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("--") {
            let rest = &line[at + 2..];
            let end = rest.find(|c: char| !matches!(c, '-' | '_') && !c.is_ascii_alphanumeric());
            lines.insert(rest[..end.unwrap_or(rest.len())].replace('_', "-"), index + 1);
        }
    }
    lines
}

/// How many bytes a script's words may have, with variables replaced.
const MOST: usize = 1 << 22;

/// What a script says.
#[derive(Default)]
struct Words {
    words: Vec<String>,
    /// The lines of options under an `if` of which it cannot be told which branch is taken.
    undecided: BTreeSet<usize>,
}

/// The words of a script, with variables of the script replaced, and without branches that are known not to be taken.
/// The elements of an array are words where it is written.
fn words(text: &str, place: &str) -> Result<Words, ExchangeError> {
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    let mut conditions = Conditions::default();
    let Words { mut words, mut undecided } = Words::default();
    let mut bytes = 0;
    let split = split(text).map_err(|line| ExchangeError::Text {
        place: format!("{place}:{line}"),
        message: "the quote that begins here is not closed".into(),
    })?;
    for SplitWord { text: word, begins, line } in split {
        let word = replaced(&word, &variables, MOST - bytes);
        let Some(word) = word.filter(|word| bytes + word.len() <= MOST) else {
            let message = format!("its words have more than {MOST} bytes, with variables replaced");
            return Err(ExchangeError::Text { place: place.into(), message });
        };
        bytes += word.len();
        if conditions.hear(&word, begins) || conditions.skips() {
            continue;
        }
        if conditions.are_undecided() && word.contains("--") {
            undecided.insert(line);
        }
        let assigned = word.split_once('=').filter(|(name, _)| is_name(name));
        match assigned {
            Some((name, value)) => {
                variables.insert(name.into(), value.into());
                // NAME="--bf16 --fp16": options all the same.
                if value.contains("--") {
                    words.extend(value.split_whitespace().map(str::to_owned));
                }
            }
            // ("--vocab-size 128256"): an option and its value, which the shell takes apart where it is not quoted again.
            None if word.starts_with("--") => {
                words.extend(word.split_whitespace().map(str::to_owned));
            }
            None => words.push(word),
        }
    }
    Ok(Words { words, undecided })
}

/// The `if` commands that a script is within.
#[derive(Default)]
struct Conditions {
    open: Vec<Branches>,
    /// The words of a condition, up to `then`.
    condition: Option<Vec<String>>,
}

/// The branches of an `if` so far. Of what is not known, any may be taken.
#[derive(Default)]
struct Branches {
    /// Whether one of those before this one is taken.
    before: Option<bool>,
    /// Whether this one is.
    this: Option<bool>,
}

impl Branches {
    /// The next branch, whose condition comes to this.
    fn next(&mut self, holds: Option<bool>) {
        let before = match (self.before, self.this) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
        let this = match (before, holds) {
            (Some(true), _) | (_, Some(false)) => Some(false),
            (Some(false), holds) => holds,
            (None, _) => None,
        };
        *self = Branches { before, this };
    }
}

impl Conditions {
    /// Whether a word belongs to the command `if` itself. Only one that `begins` a command can be a word of it.
    fn hear(&mut self, word: &str, begins: bool) -> bool {
        if let Some(condition) = &mut self.condition {
            if begins && word == "then" {
                let holds = holds(condition);
                self.condition = None;
                if let Some(branches) = self.open.last_mut() {
                    branches.next(holds);
                }
            } else {
                condition.push(word.to_owned());
            }
            return true;
        }
        match word {
            _ if !begins => return false,
            "if" => {
                self.open.push(Branches { before: Some(false), this: Some(false) });
                self.condition = Some(vec![]);
            }
            "elif" if !self.open.is_empty() => self.condition = Some(vec![]),
            "else" => match self.open.last_mut() {
                Some(branches) => branches.next(Some(true)),
                None => return false,
            },
            "fi" => return self.open.pop().is_some(),
            _ => return false,
        }
        true
    }

    /// Whether the words here are in a branch that is not taken.
    fn skips(&self) -> bool {
        self.open.iter().any(|branches| branches.this == Some(false))
    }

    /// Whether it is not known if the words here are in a branch that is taken.
    fn are_undecided(&self) -> bool {
        self.open.iter().any(|branches| branches.this.is_none())
    }
}

/// Whether a condition of a script holds, where that can be told: a comparison of texts, or whether one is empty. What
/// still has a `$` is of the environment.
fn holds(condition: &[String]) -> Option<bool> {
    let words: Vec<&str> = condition.iter().map(String::as_str).collect();
    let words = match &words[..] {
        ["[[", inner @ .., "]]"] | ["[", inner @ .., "]"] | ["test", inner @ ..] => inner,
        _ => return None,
    };
    let is_known = |text: &str| !text.contains(['$', '`', '*', '?']);
    match *words {
        [one, "==" | "=", other] if is_known(one) && is_known(other) => Some(one == other),
        [one, "!=", other] if is_known(one) && is_known(other) => Some(one != other),
        ["-n", text] if is_known(text) => Some(!text.is_empty()),
        ["-z", text] if is_known(text) => Some(text.is_empty()),
        _ => None,
    }
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    !name.is_empty()
        && name.bytes().all(letter)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// `word` with the values of variables that are known; none if that has more than `most` bytes.
fn replaced(word: &str, variables: &BTreeMap<String, String>, most: usize) -> Option<String> {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text += &rest[..at];
        let after = &rest[at + 1..];
        let (inside, length) = match after.strip_prefix('{') {
            Some(braced) => match braced.find('}') {
                Some(end) => (&braced[..end], end + 2),
                None => break,
            },
            None => {
                let end = after.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
                let end = end.unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        let (name, default) = match inside.split_once(":-").or_else(|| inside.split_once(":=")) {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        match variables.get(name).map(String::as_str).or(default) {
            Some(value) => text += value,
            None => text += &rest[at..at + 1 + length],
        }
        if text.len() > most {
            return None;
        }
        rest = &after[length..];
    }
    Some(text + rest)
}

/// A word of a script.
struct SplitWord {
    text: String,
    /// Whether a command begins with it.
    begins: bool,
    /// The line on which it ends.
    line: usize,
}

/// The words of a script so far.
struct Split {
    words: Vec<SplitWord>,
    /// Whether the next one begins a command.
    begins: bool,
}

impl Split {
    /// Takes a word that ends on this line, if there is one.
    fn end(&mut self, word: Option<String>, line: usize) {
        let Some(text) = word else { return };
        // Behind these comes a command.
        let leads = ["if", "then", "elif", "else", "do", "!", "&&", "||"].contains(&text.as_str());
        let begins = std::mem::replace(&mut self.begins, leads);
        self.words.push(SplitWord { text, begins, line });
    }
}

/// Words apart by white space, `;` and parentheses, without quotes and comments; else the line of a quote that is not
/// closed.
fn split(text: &str) -> Result<Vec<SplitWord>, usize> {
    let mut words = Split { words: vec![], begins: true };
    // The word that is being read; an empty one may be quoted.
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    let line_of = |rest: &str| text[..text.len() - rest.len()].matches('\n').count() + 1;
    let mut opened = 1;
    // The line of the letter at hand, and up to where lines are counted.
    let (mut line, mut counted) = (1, 0);
    while let Some(letter) = letters.next() {
        let at = text.len() - letters.as_str().len() - letter.len_utf8();
        line += text[counted..at].matches('\n').count();
        counted = at;
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None | Some('"'), '\\') => match letters.next() {
                // The line goes on.
                Some('\n') | None => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
            },
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                opened = line_of(letters.as_str());
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => {
                let _ = letters.by_ref().find(|&letter| letter == '\n');
                words.begins = true;
            }
            (None, '(' | ')') => words.end(word.take(), line),
            (None, ';' | '\n') => {
                words.end(word.take(), line);
                words.begins = true;
            }
            (None, _) if letter.is_whitespace() => words.end(word.take(), line),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.end(word, line);
    match quote {
        Some(_) => Err(opened),
        None => Ok(words.words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_with_its_variables_arrays_quotes_and_comments() {
        let script = r#"
            #!/bin/bash
            TP=4 # --tensor-model-parallel-size 9
            export PP=${PP:-2}
            ARGS=(
                --tensor-model-parallel-size $TP
                --pipeline-model-parallel-layout 'Et*2|(tt|)*2L'
                --lr=1e-4 --tokenizer-model tok#2 --num-layers 3
                "--vocab-size 128256"
            )
            MORE="--seq-length 2048 \
                  --bf16"
            torchrun --nproc_per_node ${GPUS:-8} pretrain_gpt.py ${ARGS[@]} $MORE \
                --pipeline-model-parallel-size ${PP} --data-path $DATA "#;
        let script = script.replace("\\\\", "\\");
        let arguments = Arguments::of(&script, "run.sh").expect("it can be read");
        let text = |name| arguments.text(name).expect("a value").unwrap_or("none").to_owned();
        assert_eq!(text("tensor-model-parallel-size"), "4");
        assert_eq!(text("pipeline-model-parallel-layout"), "Et*2|(tt|)*2L");
        assert_eq!(text("pipeline-model-parallel-size"), "2");
        assert_eq!(text("lr"), "1e-4");
        // A comment begins with a word of its own.
        assert_eq!(["tokenizer-model", "num-layers"].map(text), ["tok#2", "3"]);
        assert_eq!(["seq-length", "vocab-size"].map(text), ["2048", "128256"]);
        assert_eq!(text("nproc-per-node"), "8");
        assert!(arguments.has("bf16"));
        assert_eq!(text("hidden-size"), "none");
        let error = arguments.text("data-path").expect_err("not assigned").to_string();
        assert!(error.contains("run.sh:14: --data-path = $DATA"), "{error}");
    }

    #[test]
    fn of_an_option_that_is_given_twice_the_last_counts_and_unread_ones_are_known() {
        let arguments =
            Arguments::of("--lr 1 --seed 3 --lr 2", "arguments").expect("it can be read");
        assert_eq!(arguments.number::<f64>("lr").expect("a number"), Some(2.0));
        assert_eq!(arguments.unread().expect("no misspelt one"), ["--seed"]);
        // An empty value is one, and another than none.
        let arguments = Arguments::of("--name '' --lr", "arguments").expect("it can be read");
        assert_eq!(arguments.text("name").expect("a value"), Some(""));
        let error = arguments.text("lr").expect_err("no value").to_string();
        assert!(error.contains("--lr has no value"), "{error}");
        let error =
            Arguments::of("--size $(echo 3) --lr $((1 + 1))", "arguments").expect("it can be read");
        let error = error.text("size").expect_err("no value").to_string();
        assert!(error.contains("--size = $(...): what a command prints"), "{error}");
        let error = Arguments::of("--size 0", "arguments").expect("it can be read").size("size");
        assert!(error.expect_err("too small").to_string().contains("from 1 up"));
    }

    /// As scripts of Megatron-LM have it.
    #[test]
    fn branches_that_are_known_not_to_be_taken_are_not_read() {
        let of = |dtype: &str| {
            format!(
                "DTYPE=${{1:-\"{dtype}\"}}\nARGS=()\nif [[ \"$DTYPE\" == \"fp8\" ]]; then\n  ARGS+=(\n  \"--fp8-format \
                 hybrid\"\n  )\nelif [ \"$DTYPE\" != bf16 ]\nthen ARGS+=(--fp16)\nelse\n  if [ -z \"\" ]; then \
                 ARGS+=(--bf16); else ARGS+=(--no); fi\nfi\npretrain ${{ARGS[@]}} --seed 3\n"
            )
        };
        for (dtype, has) in [("fp8", "fp8-format"), ("bf16", "bf16"), ("half", "fp16")] {
            // What the script is given is not known, but by its default.
            let arguments = Arguments::of(&of(dtype), "a.sh").expect("it can be read");
            let given = arguments.options.keys().map(String::as_str);
            assert_eq!(Vec::from_iter(given), [has, "seed"], "{dtype}");
            assert_eq!(arguments.branches_note(), None);
        }
        // Words of a text are no conditions, and nothing behind them is lost.
        let told = "echo see if all is well # if\necho then; run --seed 3 --note if --lr 1\n";
        let arguments = Arguments::of(told, "a.sh").expect("it can be read");
        assert_eq!(arguments.options.len(), 3);
    }

    #[test]
    fn options_under_conditions_are_told() {
        let script = "A=1\n# if --not\nif [[ $B == 1 ]]; then\n  X+=(--fp8-format hybrid)\n  if true; then\n    echo\n  fi\n\
                      else\n  X+=(--bf16)\nfi\nif [ -z $B ]; then echo; fi\ncase $A in\n 1) X+=(--lr 1);;\nesac\n\
                      run --seed 3\n";
        let note = Arguments::of(script, "a.sh").expect("it can be read").branches_note();
        assert!(note.is_some_and(|it| it.contains(" in lines 3 to 10, 12 to 14 is not known")));
        let decided = script.replace("$B == 1", "$A == 1");
        let note = Arguments::of(&decided, "a.sh").expect("it can be read").branches_note();
        assert!(note.is_some_and(|it| it.contains(" in lines 12 to 14 is not known")));
        assert_eq!(Arguments::of("run --lr 1", "a.sh").expect("read").branches_note(), None);
        // Only those that are not known, wherever they are.
        let both = "A=1\nif [ $A == 2 ]; then\n  X+=(--fp8-format hybrid)\nfi\nif [ $A == 1 ]; then\n  if [ $B == 1 ]\n  \
                    then\n    X+=(--bf16)\n  fi\nfi\nrun --world $((8 * 2)) ${X[@]}\n";
        let arguments = Arguments::of(both, "a.sh").expect("it can be read");
        let note = arguments.branches_note().unwrap_or_default();
        assert!(note.contains(" in lines 5 to 10 is not known"), "{note}");
        assert_eq!(arguments.commands_note(), None);
    }
}
