//! Types with their documentation, read from formatted Rust.

use std::fs;
use std::path::Path;

/// A struct or an enum.
#[derive(Clone, Debug, Default)]
pub struct Declaration {
    pub name: String,
    pub docs: String,
    /// All of its attributes.
    pub attributes: String,
    pub is_enum: bool,
    /// What is in parentheses, if it is a struct with fields without names.
    pub inner: Option<String>,
    pub members: Vec<Member>,
    /// The file that it is in.
    pub file: String,
    /// Whether it is read by code of its own, so that its members do not say how it is written.
    pub reads_itself: bool,
}

/// A field or a variant.
#[derive(Clone, Debug, Default)]
pub struct Member {
    pub name: String,
    pub docs: String,
    pub attributes: String,
    /// Type of a field, or what a variant holds in parentheses.
    pub holds: String,
    /// Fields of a variant.
    pub members: Vec<Member>,
}

impl Declaration {
    /// The value of a key in its `serde` attributes.
    pub fn serde(&self, key: &str) -> Option<&str> {
        value_of(&self.attributes, key)
    }

    /// The type that it is read as, where that is another.
    pub fn read_as(&self) -> Option<&str> {
        let transparent = self.inner.as_deref();
        self.serde("try_from").or(self.serde("from")).or(transparent)
    }
}

impl Member {
    /// What it is called in a file of a type whose names are as `rename_all` says.
    pub fn key(&self, rename_all: Option<&str>) -> String {
        match (value_of(&self.attributes, "rename"), rename_all) {
            (Some(name), _) => name.to_owned(),
            (None, Some("kebab-case")) => kebab(&self.name),
            (None, Some("lowercase")) => self.name.to_lowercase(),
            (None, _) => self.name.clone(),
        }
    }

    /// Whether it may be absent.
    pub fn is_optional(&self) -> bool {
        self.holds.starts_with("Option<") || has_default(&self.attributes)
    }
}

/// Whether there is `default` or `default = "..."` in `serde` attributes.
pub fn has_default(attributes: &str) -> bool {
    let serde = attributes.split("#[serde(").skip(1);
    serde.flat_map(|it| it.split([',', ')'])).any(|it| {
        let word = it.trim();
        word == "default" || word.starts_with("default =")
    })
}

fn value_of<'a>(attributes: &'a str, key: &str) -> Option<&'a str> {
    let wanted = format!("{key} = \"");
    let mut places = attributes.match_indices(&wanted);
    let starts_word =
        |at: usize| !attributes[..at].ends_with(|it: char| it.is_alphanumeric() || it == '_');
    let (at, _) = places.find(|(at, _)| starts_word(*at))?;
    attributes[at + wanted.len()..].split('"').next()
}

fn kebab(name: &str) -> String {
    let mut text = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text.replace('_', "-")
}

/// All structs and enums of the files in a folder, and in those below.
pub fn declarations(folder: &Path) -> Vec<Declaration> {
    let mut found = vec![];
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            found.extend(declarations(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            found.extend(of_file(&text, &path.display().to_string()));
        }
    }
    found
}

fn of_file(text: &str, file: &str) -> Vec<Declaration> {
    let mut found = vec![];
    let mut lines = text.lines().peekable();
    let (mut docs, mut attributes) = (vec![], String::new());
    while let Some(line) = lines.next() {
        let word = line.trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ");
        let word = word.trim_start_matches("pub ");
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.strip_prefix(' ').unwrap_or(doc));
        } else if line.starts_with("#[") {
            attribute(line, &mut lines, &mut attributes);
        } else if let Some((is_enum, rest)) = word
            .strip_prefix("struct ")
            .map(|rest| (false, rest))
            .or_else(|| word.strip_prefix("enum ").map(|rest| (true, rest)))
        {
            let end = rest.find(|it: char| !it.is_alphanumeric()).unwrap_or(rest.len());
            let inner = match &rest[end..] {
                "(" => members(&mut lines, 4).first().map(|it| it.name.clone()),
                rest => {
                    rest.strip_prefix('(').and_then(|it| it.strip_suffix(");")).map(str::to_owned)
                }
            };
            let members = if rest.ends_with('{') { members(&mut lines, 4) } else { vec![] };
            found.push(Declaration {
                name: rest[..end].to_owned(),
                docs: joined(&docs),
                attributes: std::mem::take(&mut attributes),
                is_enum,
                inner: inner.map(|it| it.trim_start_matches("pub ").to_owned()),
                members,
                file: file.to_owned(),
                reads_itself: text.contains(&format!("Deserialize<'de> for {} ", &rest[..end])),
            });
            docs.clear();
        } else {
            docs.clear();
            attributes.clear();
        }
    }
    found
}

type Lines<'a> = std::iter::Peekable<std::str::Lines<'a>>;

/// Members up to the brace that closes them, which are set in by `indent` spaces.
fn members(lines: &mut Lines<'_>, indent: usize) -> Vec<Member> {
    let mut found = vec![];
    let (mut docs, mut attributes) = (vec![], String::new());
    while let Some(line) = lines.next() {
        if line.len() - line.trim_start().len() < indent {
            break;
        }
        let line = line.trim_start();
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.strip_prefix(' ').unwrap_or(doc));
            continue;
        }
        if line.starts_with("#[") {
            attribute(line, lines, &mut attributes);
            continue;
        }
        let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let end = line.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        if name.is_empty() {
            continue;
        }
        let inner = if rest.ends_with('{') { members(lines, indent + 4) } else { vec![] };
        let holds = rest.trim_start_matches([':', ' ']).trim_end_matches(',');
        let holds = holds
            .strip_prefix('(')
            .filter(|_| rest.starts_with('('))
            .map_or(holds, |it| it.strip_suffix(')').unwrap_or(it));
        found.push(Member {
            name: name.to_owned(),
            docs: joined(&docs),
            attributes: std::mem::take(&mut attributes),
            holds: holds.trim_end_matches(" {").trim_matches('{').trim().to_owned(),
            members: inner,
        });
        docs.clear();
    }
    found
}

/// Adds an attribute that begins on `line` and may go on.
fn attribute(line: &str, lines: &mut Lines<'_>, attributes: &mut String) {
    attributes.push_str(line.trim());
    let open = |text: &str| text.matches('[').count() > text.matches(']').count();
    let mut whole = line.to_owned();
    while open(&whole) {
        let Some(next) = lines.next() else { break };
        attributes.push(' ');
        attributes.push_str(next.trim());
        whole.push_str(next);
    }
}

/// Documentation without what only compilers follow, up to its examples.
fn joined(lines: &[&str]) -> String {
    let text: Vec<&str> =
        lines.iter().take_while(|line| !line.starts_with("```")).copied().collect();
    plain(&text.join("\n"))
}

/// Links of documentation as their words.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('[') {
        let (before, link) = rest.split_at(at);
        plain.push_str(before);
        let end = link.find(']').filter(|&end| {
            let words = &link[1..end];
            words.starts_with('`') || link[end + 1..].starts_with('(')
        });
        match end {
            Some(end) => {
                plain.push_str(&link[1..end]);
                rest = &link[end + 1..];
                if let Some(target) = rest.strip_prefix('(') {
                    rest = target.split_once(')').map_or("", |(_, after)| after);
                }
            }
            None => {
                plain.push('[');
                rest = &link[1..];
            }
        }
    }
    plain + rest
}
