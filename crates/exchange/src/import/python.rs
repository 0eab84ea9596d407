//! Configurations that are Python: what a function returns, as the values that JSON has.
//!
//! Nothing is run. What is understood: functions without arguments that assign names, set attributes of what they
//! assigned, and return an expression; in expressions calls with named arguments, lists, tuples, dictionaries,
//! strings, numbers, names of the function or the file, and calls of the file's own functions. A call is a table of
//! its arguments and its [callee](CALLEE); what else stands there is a table of its [text](TEXT), which no word that
//! is read can be. Loops and conditions are passed over, with what is in them.

mod expression;
mod token;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use shardloom_document::Fault;

use expression::Expression;
use token::{Line, Token, lines_of};

/// The word of a call's table that names what is called.
pub(super) const CALLEE: &str = "()";
/// The word of a call's table that has its first argument, if that has no name.
pub(super) const FIRST: &str = "(0)";
/// The word under which what is not understood stands as text.
pub(super) const TEXT: &str = "?";

/// The most tables, lists and values that a configuration may have.
const MOST: usize = 1 << 16;
/// How deep calls of functions may be.
const DEEPEST: usize = 8;

/// What stands somewhere, and on which line.
#[derive(Clone, Debug)]
struct Node {
    line: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Leaf(Value),
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
}

impl Node {
    fn text(line: usize, text: impl Into<String>) -> Node {
        Node { line, kind: Kind::Leaf(Value::String(text.into())) }
    }

    /// How many nodes it is.
    fn size(&self) -> usize {
        match &self.kind {
            Kind::Leaf(_) => 1,
            Kind::List(nodes) => 1 + nodes.iter().map(Node::size).sum::<usize>(),
            Kind::Table(entries) => 1 + entries.iter().map(|(_, it)| it.size()).sum::<usize>(),
        }
    }

    fn entry(&self, word: &str) -> Option<&Node> {
        let Kind::Table(entries) = &self.kind else { return None };
        entries.iter().find_map(|(name, node)| (name == word).then_some(node))
    }

    /// Sets what stands at a path of attributes, if what is before its last word is a table.
    fn set(&mut self, path: &[String], node: Node) {
        let (Some((word, rest)), Kind::Table(entries)) = (path.split_first(), &mut self.kind)
        else {
            return;
        };
        let known = entries.iter_mut().find(|(name, _)| name == word);
        match (known, rest) {
            (Some((_, old)), []) => *old = node,
            (Some((_, table)), rest) => table.set(rest, node),
            (None, []) => entries.push((word.clone(), node)),
            // A part of what is not said, and so has its defaults.
            (None, rest) => {
                let mut table = Node { line: node.line, kind: Kind::Table(vec![]) };
                table.set(rest, node);
                entries.push((word.clone(), table));
            }
        }
    }

    fn value(self, path: &str, lines: &mut BTreeMap<String, usize>) -> Value {
        match self.kind {
            Kind::Leaf(value) => value,
            Kind::List(nodes) => Value::Array(
                nodes.into_iter().map(|it| it.value(path, &mut BTreeMap::new())).collect(),
            ),
            Kind::Table(entries) => {
                let mut map = Map::new();
                for (word, node) in entries {
                    let within =
                        if path.is_empty() { word.clone() } else { format!("{path}.{word}") };
                    lines.insert(within.clone(), node.line);
                    map.insert(word, node.value(&within, lines));
                }
                Value::Object(map)
            }
        }
    }
}

/// A file of functions.
struct Module {
    /// The statements of each function, by its name, in the file's order.
    functions: Vec<(String, Vec<Line>)>,
    /// What is assigned outside of functions.
    globals: BTreeMap<String, Node>,
    /// What `from MODULE import NAME` says: the module of each name.
    imported: BTreeMap<String, String>,
}

/// The names of a function that are known where an expression stands.
struct Scope<'m> {
    module: &'m Module,
    locals: BTreeMap<String, Node>,
    depth: usize,
    /// How many nodes may still be copied or made.
    left: usize,
}

/// The configuration that a file's function `plan`, or its only one, returns, and on which lines its words stand.
/// A configuration is what `returns` (such as `Trainer.Config`) makes.
pub(super) fn read(text: &str, returns: &str) -> Result<(Value, BTreeMap<String, usize>), Fault> {
    let module = Module::of(lines_of(text)?)?;
    let mut found: Vec<(&str, Node)> = vec![];
    for (name, body) in &module.functions {
        let node = Scope::of(&module, 0, MOST).returned(body)?.0;
        let callee = node.entry(CALLEE).map(|it| &it.kind);
        if matches!(callee, Some(Kind::Leaf(Value::String(callee))) if callee == returns) {
            found.push((name, node));
        }
    }
    let named = found.iter().position(|(name, _)| *name == "plan");
    let at = match (named, found.len()) {
        (Some(at), _) => at,
        (None, 1) => 0,
        (None, 0) => {
            let message =
                format!("has no function without arguments that returns a {returns}(...)");
            return Err(Fault { line: None, message });
        }
        (None, _) => {
            let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
            let message = format!(
                "has several configurations ({}): call the one that is meant plan",
                names.join(", ")
            );
            return Err(Fault { line: None, message });
        }
    };
    let mut lines = BTreeMap::new();
    let value = found.swap_remove(at).1.value("", &mut lines);
    Ok((value, lines))
}

impl Module {
    fn of(lines: Vec<Line>) -> Result<Module, Fault> {
        let mut module =
            Module { functions: vec![], globals: BTreeMap::new(), imported: BTreeMap::new() };
        let mut at_top = vec![];
        // Whether the lines that follow are of the function that was begun last.
        let mut within = false;
        for line in lines {
            if line.indent > 0 {
                if let Some((_, body)) = module.functions.last_mut().filter(|_| within) {
                    body.push(line);
                }
                continue;
            }
            within = false;
            match &line.tokens[..] {
                [
                    (Token::Name(word), _),
                    (Token::Name(name), _),
                    (Token::Mark('('), _),
                    (Token::Mark(')'), _),
                    ..,
                ] if word == "def" => {
                    module.functions.push((name.clone(), vec![]));
                    within = true;
                }
                [(Token::Name(word), _), rest @ ..] if word == "from" => module.import(rest),
                _ => at_top.push(line),
            }
        }
        let mut scope = Scope::of(&module, 0, MOST);
        for line in &at_top {
            scope.assign(line)?;
        }
        module.globals = scope.locals;
        Ok(module)
    }

    /// What follows `from`.
    fn import(&mut self, tokens: &[(Token, usize)]) {
        let Some(at) = tokens.iter().position(|(it, _)| *it == Token::Name("import".into())) else {
            return;
        };
        let from: String = tokens[..at].iter().map(|(it, _)| it.to_string()).collect();
        for (token, _) in &tokens[at + 1..] {
            if let Token::Name(name) = token {
                self.imported.insert(name.clone(), from.clone());
            }
        }
    }
}

impl<'m> Scope<'m> {
    fn of(module: &'m Module, depth: usize, left: usize) -> Scope<'m> {
        Scope { module, locals: BTreeMap::new(), depth, left }
    }

    /// What a function returns, and how many nodes may be made after it.
    fn returned(mut self, body: &[Line]) -> Result<(Node, usize), Fault> {
        // What is indented deeper than the first line is of a loop or a condition.
        let usual = body.first().map_or(0, |line| line.indent);
        for line in body.iter().filter(|line| line.indent == usual) {
            match line.tokens.split_first() {
                Some(((Token::Name(word), at), rest)) if word == "return" => {
                    let node = match rest {
                        [] => Node { line: *at, kind: Kind::Leaf(Value::Null) },
                        rest => Expression::all(rest, &mut self)?,
                    };
                    return Ok((node, self.left));
                }
                _ => self.assign(line)?,
            }
        }
        let line = body.first().map_or(1, |line| line.tokens[0].1);
        Ok((Node { line, kind: Kind::Leaf(Value::Null) }, self.left))
    }

    /// What a line assigns: to a name, to several, or to an attribute.
    fn assign(&mut self, line: &Line) -> Result<(), Fault> {
        let equals = line.tokens.iter().position(|(token, _)| *token == Token::Mark('='));
        let Some(at) = equals else { return Ok(()) };
        let (targets, value) = (&line.tokens[..at], &line.tokens[at + 1..]);
        let mut names = vec![];
        for target in targets.split(|(token, _)| *token == Token::Mark(',')) {
            // Another target, such as an element, or what is compared.
            let Some(path) = path_of(target) else { return Ok(()) };
            names.push(path);
        }
        let node = Expression::all(value, self)?;
        let nodes = match (names.len(), &node.kind) {
            (1, _) => vec![node],
            (count, Kind::List(nodes)) if nodes.len() == count => nodes.clone(),
            _ => return Ok(()),
        };
        for (path, node) in names.iter().zip(nodes) {
            match path.split_first() {
                Some((name, [])) => {
                    self.locals.insert(name.clone(), node);
                }
                Some((name, rest)) => {
                    if let Some(known) = self.locals.get_mut(name) {
                        known.set(rest, node);
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// What a name stands for, if that is known.
    fn named(&mut self, name: &str, line: usize) -> Result<Option<Node>, Fault> {
        let known = self.locals.get(name).or_else(|| self.module.globals.get(name)).cloned();
        match known {
            Some(node) => Ok(Some(self.counted(node, line)?)),
            None => Ok(None),
        }
    }

    /// What a call of one of the file's own functions returns.
    fn called(&mut self, name: &str, line: usize) -> Result<Option<Node>, Fault> {
        let module = self.module;
        let Some((_, body)) = module.functions.iter().find(|(it, _)| it == name) else {
            return Ok(None);
        };
        if self.depth == DEEPEST {
            let message = format!("functions call each other more than {DEEPEST} deep");
            return Err(Fault { line: Some(line), message });
        }
        let (node, left) = Scope::of(module, self.depth + 1, self.left).returned(body)?;
        self.left = left;
        Ok(Some(node))
    }

    fn counted(&mut self, node: Node, line: usize) -> Result<Node, Fault> {
        match self.left.checked_sub(node.size()) {
            Some(left) => {
                self.left = left;
                Ok(node)
            }
            None => {
                let message = format!("its functions make more than {MOST} values");
                Err(Fault { line: Some(line), message })
            }
        }
    }
}

/// The words of a name with attributes, `a.b.c`, if tokens are nothing else; of `a: Type` the name.
fn path_of(tokens: &[(Token, usize)]) -> Option<Vec<String>> {
    let end = tokens.iter().position(|(token, _)| *token == Token::Mark(':'));
    let mut path = vec![];
    for (index, (token, _)) in tokens[..end.unwrap_or(tokens.len())].iter().enumerate() {
        match (index % 2, token) {
            (0, Token::Name(name)) => path.push(name.clone()),
            (1, Token::Mark('.')) => {}
            _ => return None,
        }
    }
    (!path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Value {
        read(text, "Trainer.Config").unwrap_or_else(|fault| panic!("{fault}")).0
    }

    #[test]
    fn what_a_function_returns_is_read_with_its_names_attributes_and_calls() {
        let text = r#"
from torchtitan.models.llama3 import model_registry
SIZE = 4  # of a model
def model():
    a, b = SIZE, -1.5e-3
    config = X.Config(a=a, n=[b, None, True], text=r".*x" "y",)
    for norm in config.traverse(Y):
        norm.eps = 3
    config = Float8LinearConverter.Config(filter_fqns=["lm_head"]).build().convert(config)
    return config

def base() -> Trainer.Config:
    return Trainer.Config(
        spec=model(), registry=model_registry("8B"), clip=float("inf"),
        batch=2 * SIZE, parallelism=P(degree=2), path=str(Path(__file__).with_name("a.csv")),
        settings={"lr": 0.1, "betas": (0.9, 0.95)},
    )

def plan():
    config = base()
    config.parallelism.other = "x"
    config.compile.enable = False
    return config
"#;
        let wanted = json!({
            "()": "Trainer.Config",
            "spec": {
                "()": "X.Config", "a": 4, "n": [-0.0015, null, true], "text": ".*xy",
                "converters": [{ "()": "Float8LinearConverter.Config", "filter_fqns": ["lm_head"] }],
            },
            "registry": { "()": "torchtitan.models.llama3.model_registry", "(0)": "8B" },
            "clip": "inf",
            "batch": { "?": "2 * SIZE" },
            "parallelism": { "()": "P", "degree": 2, "other": "x" },
            "path": "a.csv",
            "settings": { "lr": 0.1, "betas": [0.9, 0.95] },
            "compile": { "enable": false },
        });
        assert_eq!(value(text), wanted);
        let (_, lines) = read(text, "Trainer.Config").expect("it can be read");
        assert_eq!(
            ["batch", "parallelism.degree", "compile.enable"].map(|it| lines[it]),
            [15, 15, 22]
        );
    }

    #[test]
    fn one_configuration_is_read_and_what_has_none_or_several_is_refused() {
        let of =
            |name: &str| format!("def {name}():\n    return Trainer.Config(name=\"{name}\")\n");
        assert_eq!(value(&of("any"))["name"], "any");
        assert_eq!(value(&(of("any") + &of("plan")))["name"], "plan");
        let error = |text: &str| read(text, "Trainer.Config").expect_err(text).to_string();
        assert!(error(&(of("a") + &of("b"))).contains("several configurations (a, b)"));
        assert!(error("def f(x):\n    return Trainer.Config()\n").contains("no function"));
    }

    #[test]
    fn what_would_take_all_memory_or_never_ends_is_refused() {
        let error = |text: &str| read(text, "X").expect_err("it is refused").to_string();
        let nested =
            format!("def f():\n    return {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
        assert!(error(&nested).contains("line 2: nested deeper"), "{}", error(&nested));
        assert!(error("def f():\n    return g()\ndef g():\n    return f()\n").contains("8 deep"));
        let doubled: String = (1..64).map(|it| format!("    a = [a, a, {it}]\n")).collect();
        let doubled = format!("def f():\n    a = 1\n{doubled}    return X(a=a)\n");
        assert!(error(&doubled).contains("more than 65536 values"), "{}", error(&doubled));
        for wrong in
            ["def f():\n    return X(", "def f():\n    return 'x\n", "def f():\n    return X)\n"]
        {
            error(wrong);
        }
    }
}
