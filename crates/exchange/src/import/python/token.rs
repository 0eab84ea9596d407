//! Python's tokens, by logical line.

use std::fmt;

use shardloom_document::Fault;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name or a word of the language.
    Name(String),
    /// A number as it is written.
    Number(String),
    /// What a string has.
    Text(String),
    /// Any other character.
    Mark(char),
}

impl fmt::Display for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(text) | Token::Number(text) => out.write_str(text),
            Token::Text(text) => write!(out, "{text:?}"),
            Token::Mark(mark) => write!(out, "{mark}"),
        }
    }
}

/// A logical line: as long as a bracket is open it goes on.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// How many blanks are before it.
    pub indent: usize,
    /// Its tokens, each with the line of the file; at least one.
    pub tokens: Vec<(Token, usize)>,
}

/// The logical lines of a file.
pub(super) fn lines_of(text: &str) -> Result<Vec<Line>, Fault> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let (mut lines, mut tokens) = (vec![], vec![]);
    let (mut indent, mut open) = (0, 0_usize);
    let mut at_start = true;
    loop {
        let line = reader.line;
        let wrong = |message: &str| Fault { line: Some(line), message: message.into() };
        match reader.next() {
            None if open > 0 => return Err(wrong("a bracket is not closed")),
            None => break,
            Some('\n') if open > 0 => {}
            Some('\n') => {
                if !tokens.is_empty() {
                    lines.push(Line { indent, tokens: std::mem::take(&mut tokens) });
                }
                (indent, at_start) = (0, true);
            }
            Some(' ' | '\t') if at_start && tokens.is_empty() => indent += 1,
            Some(blank) if blank.is_whitespace() => {}
            Some('\\') if reader.rest.peek() == Some(&'\n') => {
                reader.next();
            }
            Some('#') => while reader.rest.next_if(|&it| it != '\n').is_some() {},
            Some(first) => {
                at_start = false;
                let token = reader.token(first).map_err(wrong)?;
                match token {
                    Token::Mark('(' | '[' | '{') => open += 1,
                    Token::Mark(')' | ']' | '}') => {
                        open =
                            open.checked_sub(1).ok_or_else(|| wrong("a bracket is not opened"))?;
                    }
                    _ => {}
                }
                tokens.push((token, line));
            }
        }
    }
    if !tokens.is_empty() {
        lines.push(Line { indent, tokens });
    }
    Ok(lines)
}

struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn token(&mut self, first: char) -> Result<Token, &'static str> {
        if matches!(first, '"' | '\'') {
            return self.string(first, false);
        }
        let mut word = String::from(first);
        let is_letter = |it: char| it == '_' || it.is_alphanumeric();
        if first.is_ascii_digit() {
            while let Some(&next) = self.rest.peek() {
                let sign = matches!(next, '+' | '-') && word.ends_with(['e', 'E']);
                if !(is_letter(next) || next == '.' || sign) {
                    break;
                }
                word.extend(self.rest.next());
            }
            return Ok(Token::Number(word.replace('_', "")));
        }
        if !is_letter(first) {
            return Ok(Token::Mark(first));
        }
        while let Some(next) = self.rest.next_if(|&it| is_letter(it)) {
            word.push(next);
        }
        match self.rest.peek() {
            Some(&quote @ ('"' | '\'')) if matches!(&word[..], "r" | "R") => {
                self.next();
                self.string(quote, true)
            }
            _ => Ok(Token::Name(word)),
        }
    }

    /// What follows a quote, up to the one that ends it.
    fn string(&mut self, quote: char, is_raw: bool) -> Result<Token, &'static str> {
        let mut text = String::new();
        let mut is_long = false;
        if self.rest.next_if_eq(&quote).is_some() {
            if self.rest.next_if_eq(&quote).is_none() {
                return Ok(Token::Text(text));
            }
            is_long = true;
        }
        loop {
            match self.next() {
                None => return Err("a string does not end"),
                Some('\n') if !is_long => return Err("a string does not end on its line"),
                Some('\\') => match self.next() {
                    Some(escaped) if is_raw => text.extend(['\\', escaped]),
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('\n') | None => {}
                    Some(escaped) => text.push(escaped),
                },
                Some(it) if it == quote && !is_long => return Ok(Token::Text(text)),
                Some(it) => {
                    text.push(it);
                    if is_long
                        && it == quote
                        && text.ends_with(&[quote, quote, quote].iter().collect::<String>())
                    {
                        text.truncate(text.len() - 3);
                        return Ok(Token::Text(text));
                    }
                }
            }
        }
    }
}
