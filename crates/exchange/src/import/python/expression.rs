//! What an expression of Python is, as far as that is known without running it.

use serde_json::Value;
use shardloom_document::Fault;

use super::token::Token;
use super::{CALLEE, FIRST, Kind, Node, Scope, TEXT};

/// Brackets within each other that no configuration has.
const DEEPEST: usize = 32;

/// Tokens that are read from the first on.
pub(super) struct Expression<'t> {
    tokens: &'t [(Token, usize)],
    at: usize,
    depth: usize,
}

/// The arguments of a call.
struct Arguments {
    named: Vec<(String, Node)>,
    /// The first that has no name.
    first: Option<Node>,
}

/// What is before a call or an attribute.
enum Operand {
    /// Something whose value is known.
    Known(Node),
    /// A name that nothing is known of, with its attributes.
    Name(String),
}

impl Expression<'_> {
    /// What all of some tokens are: several apart by commas are a list.
    pub fn all(tokens: &[(Token, usize)], scope: &mut Scope<'_>) -> Result<Node, Fault> {
        let mut expression = Expression { tokens, at: 0, depth: 0 };
        let first = expression.one(scope)?;
        if expression.at == tokens.len() {
            return Ok(first);
        }
        let line = first.line;
        let mut nodes = vec![first];
        while expression.takes(',') && expression.at < tokens.len() {
            nodes.push(expression.one(scope)?);
        }
        match expression.at == tokens.len() {
            true => Ok(Node { line, kind: Kind::List(nodes) }),
            false => Err(expression.unexpected()),
        }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn line(&self) -> usize {
        let last = self.tokens.last();
        self.tokens.get(self.at).or(last).map_or(1, |&(_, line)| line)
    }

    fn takes(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(&Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn unexpected(&self) -> Fault {
        let found = self.peek().map_or_else(|| "the end".into(), |token| format!("{token}"));
        let message = format!("an expression is not followed by {found}");
        Fault { line: Some(self.line()), message }
    }

    /// Whether the expression is over here.
    fn is_over(&self) -> bool {
        matches!(self.peek(), None | Some(Token::Mark(',' | ')' | ']' | '}' | ':' | '=')))
    }

    /// One expression. What has operators is its text.
    fn one(&mut self, scope: &mut Scope<'_>) -> Result<Node, Fault> {
        if self.depth == DEEPEST {
            let message = format!("nested deeper than {DEEPEST} levels");
            return Err(Fault { line: Some(self.line()), message });
        }
        self.depth += 1;
        let (begin, line) = (self.at, self.line());
        let node = self.operand(scope)?;
        self.depth -= 1;
        if self.is_over() && self.at > begin {
            return scope.counted(node, line);
        }
        // An operator: what follows up to the end of the expression is passed over.
        let mut open = 0_usize;
        while let Some(token) = self.peek() {
            match token {
                Token::Mark('(' | '[' | '{') => open += 1,
                Token::Mark(',' | ')' | ']' | '}') if open == 0 => break,
                Token::Mark(')' | ']' | '}') => open -= 1,
                _ => {}
            }
            self.at += 1;
        }
        if self.at == begin {
            return Err(self.unexpected());
        }
        Ok(unknown(&self.tokens[begin..self.at]))
    }

    /// A value with the calls and attributes that follow it.
    fn operand(&mut self, scope: &mut Scope<'_>) -> Result<Node, Fault> {
        let (begin, line) = (self.at, self.line());
        let leaf = |value: Value| Operand::Known(Node { line, kind: Kind::Leaf(value) });
        let negative = self.takes('-');
        let Some(token) = self.peek().cloned() else { return Err(self.unexpected()) };
        let mut operand = match token {
            Token::Number(text) => {
                self.at += 1;
                match number(&text, negative) {
                    Some(value) => leaf(value),
                    None => return Ok(unknown(&self.tokens[begin..self.at])),
                }
            }
            _ if negative => return Ok(unknown(&self.tokens[begin..self.at])),
            Token::Text(first) => {
                let mut text = first;
                self.at += 1;
                // Strings beside each other are one.
                while let Some(Token::Text(more)) = self.peek() {
                    text += more;
                    self.at += 1;
                }
                leaf(Value::String(text))
            }
            Token::Name(name) => {
                self.at += 1;
                match &name[..] {
                    "True" => leaf(Value::Bool(true)),
                    "False" => leaf(Value::Bool(false)),
                    "None" => leaf(Value::Null),
                    _ => match scope.named(&name, line)? {
                        Some(node) => Operand::Known(Node { line, ..node }),
                        None => Operand::Name(name),
                    },
                }
            }
            Token::Mark('[' | '(') => {
                let is_tuple = token == Token::Mark('(');
                self.at += 1;
                let (nodes, has_comma) = self.several(if is_tuple { ')' } else { ']' }, scope)?;
                match (nodes.len(), is_tuple && !has_comma) {
                    // Brackets around one expression.
                    (1, true) => {
                        Operand::Known(nodes.into_iter().next().unwrap_or_else(|| unknown(&[])))
                    }
                    _ => Operand::Known(Node { line, kind: Kind::List(nodes) }),
                }
            }
            Token::Mark('{') => {
                self.at += 1;
                Operand::Known(Node { line, kind: Kind::Table(self.entries(scope)?) })
            }
            Token::Mark(_) => return Ok(unknown(&self.tokens[begin..self.at])),
        };
        loop {
            operand = match self.peek() {
                Some(Token::Mark('.')) => {
                    self.at += 1;
                    let Some(Token::Name(name)) = self.peek().cloned() else {
                        return Err(self.unexpected());
                    };
                    self.at += 1;
                    match operand {
                        Operand::Name(before) => Operand::Name(format!("{before}.{name}")),
                        Operand::Known(node) if self.peek() == Some(&Token::Mark('(')) => {
                            self.at += 1;
                            Operand::Known(self.method(node, &name, begin, scope)?)
                        }
                        Operand::Known(node) => match node.entry(&name) {
                            Some(entry) => Operand::Known(entry.clone()),
                            None => Operand::Known(unknown(&self.tokens[begin..self.at])),
                        },
                    }
                }
                Some(Token::Mark('(')) => {
                    self.at += 1;
                    Operand::Known(match operand {
                        Operand::Name(callee) => self.call(&callee, line, scope)?,
                        Operand::Known(_) => {
                            self.several(')', scope)?;
                            unknown(&self.tokens[begin..self.at])
                        }
                    })
                }
                Some(Token::Mark('[')) => {
                    self.at += 1;
                    self.several(']', scope)?;
                    Operand::Known(unknown(&self.tokens[begin..self.at]))
                }
                _ => break,
            };
        }
        Ok(match operand {
            Operand::Known(node) => node,
            Operand::Name(_) => unknown(&self.tokens[begin..self.at]),
        })
    }

    /// Expressions up to a bracket, and whether there is a comma.
    fn several(&mut self, end: char, scope: &mut Scope<'_>) -> Result<(Vec<Node>, bool), Fault> {
        let (mut nodes, mut has_comma) = (vec![], false);
        while !self.takes(end) {
            nodes.push(self.one(scope)?);
            match self.takes(',') {
                true => has_comma = true,
                false if self.peek() == Some(&Token::Mark(end)) => {}
                false => return Err(self.unexpected()),
            }
        }
        Ok((nodes, has_comma))
    }

    /// The entries of a dictionary after its bracket; those whose word is no string are passed over.
    fn entries(&mut self, scope: &mut Scope<'_>) -> Result<Vec<(String, Node)>, Fault> {
        let mut entries = vec![];
        while !self.takes('}') {
            let word = self.one(scope)?;
            if !self.takes(':') {
                return Err(self.unexpected());
            }
            let node = self.one(scope)?;
            if let Kind::Leaf(Value::String(word)) = word.kind {
                entries.push((word, node));
            }
            if !self.takes(',') && self.peek() != Some(&Token::Mark('}')) {
                return Err(self.unexpected());
            }
        }
        Ok(entries)
    }

    /// The arguments of a call after its bracket: those with names, and the first without one.
    fn arguments(&mut self, scope: &mut Scope<'_>) -> Result<Arguments, Fault> {
        let (mut named, mut first) = (vec![], None);
        while !self.takes(')') {
            match (self.peek().cloned(), self.tokens.get(self.at + 1)) {
                (Some(Token::Name(name)), Some((Token::Mark('='), line))) => {
                    let line = *line;
                    self.at += 2;
                    let node = self.one(scope)?;
                    named.push((name, Node { line, ..node }));
                }
                _ => {
                    let node = self.one(scope)?;
                    first.get_or_insert(node);
                }
            }
            if !self.takes(',') && self.peek() != Some(&Token::Mark(')')) {
                return Err(self.unexpected());
            }
        }
        Ok(Arguments { named, first })
    }

    /// A call of something by name.
    fn call(&mut self, callee: &str, line: usize, scope: &mut Scope<'_>) -> Result<Node, Fault> {
        let Arguments { named, first } = self.arguments(scope)?;
        if named.is_empty()
            && first.is_none()
            && let Some(node) = scope.called(callee, line)?
        {
            return Ok(node);
        }
        // Numbers that are no literals, and paths.
        if matches!(callee, "float" | "str")
            && let Some(Node { kind: Kind::Leaf(Value::String(text)), .. }) = &first
        {
            return Ok(Node::text(line, text.clone()));
        }
        let (module, rest) = match callee.split_once('.') {
            Some((before, rest)) => (scope.module.imported.get(before), rest),
            None => (scope.module.imported.get(callee), ""),
        };
        // A function is named with its module; what makes a configuration by its class.
        let full = match module {
            Some(module) if rest.is_empty() => format!("{module}.{callee}"),
            _ => callee.to_owned(),
        };
        let is_class = callee.chars().next().is_some_and(char::is_uppercase);
        let callee = if is_class { callee.to_owned() } else { full };
        let mut entries = vec![(CALLEE.to_owned(), Node::text(line, callee))];
        entries.extend(first.map(|node| (FIRST.to_owned(), node)));
        entries.extend(named);
        Ok(Node { line, kind: Kind::Table(entries) })
    }

    /// A call of a method of something.
    fn method(
        &mut self,
        node: Node,
        name: &str,
        begin: usize,
        scope: &mut Scope<'_>,
    ) -> Result<Node, Fault> {
        let Arguments { named, first } = self.arguments(scope)?;
        Ok(match (name, first) {
            // A converter stays what makes it, and is named in what it converts.
            ("build", None) if named.is_empty() => node,
            ("convert", Some(mut converted)) if matches!(converted.kind, Kind::Table(_)) => {
                let word = "converters".to_owned();
                let mut converters = match converted.entry(&word).map(|it| &it.kind) {
                    Some(Kind::List(nodes)) => nodes.clone(),
                    _ => vec![],
                };
                converters.push(node);
                let line = self.line();
                converted.set(&[word], Node { line, kind: Kind::List(converters) });
                converted
            }
            // A file beside this one.
            ("with_name", Some(name)) => name,
            _ => unknown(&self.tokens[begin..self.at]),
        })
    }
}

fn number(text: &str, negative: bool) -> Option<Value> {
    let sign = if negative { "-" } else { "" };
    let text = format!("{sign}{text}");
    match text.parse::<i64>() {
        Ok(whole) => Some(Value::from(whole)),
        Err(_) => text.parse::<f64>().ok().filter(|it| it.is_finite()).map(Value::from),
    }
}

/// What is not understood, by its text.
fn unknown(tokens: &[(Token, usize)]) -> Node {
    let line = tokens.first().map_or(1, |&(_, line)| line);
    let words: Vec<String> = tokens.iter().map(|(token, _)| token.to_string()).collect();
    let entry = (TEXT.to_owned(), Node::text(line, words.join(" ")));
    Node { line, kind: Kind::Table(vec![entry]) }
}
