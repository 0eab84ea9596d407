//! A page of all keys that files may have.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

use super::declarations::{Declaration, Member, has_default};

/// A kind of file.
pub struct Section<'a> {
    pub title: &'a str,
    /// What such a file is.
    pub about: &'a str,
    /// The type of the whole file.
    pub root: &'a str,
    /// An example, as TOML.
    pub example: &'a str,
    /// Types that it may use: those of its own crate before others.
    pub known: Vec<&'a Declaration>,
    /// What is said of types, or of members (`GroupTable.nodes`), besides their documentation.
    pub notes: &'a [(&'a str, &'a str)],
}

/// A section: its example, and then every type that a file consists of, in the order in which they are met.
pub fn section(section: &Section<'_>) -> String {
    let mut text = format!("## {}\n\n{}\n\n", section.title, section.about);
    write!(text, "```toml\n{}\n```\n", section.example.trim()).expect("memory");
    let find = |name: &str| section.known.iter().find(|it| it.name == name).copied();
    let root = find(section.root).expect("the root is declared");
    let mut met = BTreeSet::from([root.name.as_str()]);
    let mut queue = VecDeque::from([root]);
    while let Some(declaration) = queue.pop_front() {
        let written = section.written(declaration);
        write!(text, "\n{}", section.described(declaration, written)).expect("memory");
        let mut all: Vec<&Member> = vec![];
        if let Some(written) = written {
            for member in &written.members {
                all.push(member);
                all.extend(&member.members);
            }
        }
        let types = all.iter().map(|it| it.holds.as_str());
        let types = types.chain(declaration.read_as().filter(|_| written.is_none()));
        for name in types.flat_map(|it| it.split(|it: char| !it.is_alphanumeric())) {
            if let Some(next) = find(name)
                && met.insert(next.name.as_str())
            {
                queue.push_back(next);
            }
        }
    }
    text
}

impl Section<'_> {
    fn note(&self, name: &str) -> Option<&str> {
        self.notes.iter().find(|(of, _)| *of == name).map(|(_, note)| *note)
    }

    /// The type whose members are written in a file in place of this one's; none if it has a form of its own.
    fn written<'d>(&'d self, of: &'d Declaration) -> Option<&'d Declaration> {
        let Some(name) = of.read_as() else { return Some(of).filter(|it| !it.reads_itself) };
        let mut same = self.known.iter().filter(|it| it.name == name);
        let in_file = same.clone().find(|it| it.file == of.file);
        in_file.or(same.next()).copied()
    }

    fn described(&self, of: &Declaration, written: Option<&Declaration>) -> String {
        let is_root = of.name == self.root;
        let mut text = format!("### {}\n\n", if is_root { "The file" } else { &of.name });
        let note = self.note(&of.name).map(str::to_owned);
        for about in [Some(paragraphs(&of.docs)), note].into_iter().flatten() {
            if !about.is_empty() {
                write!(text, "{about}\n\n").expect("memory");
            }
        }
        let Some(written) = written else {
            if let Some(form) = of.read_as().filter(|it| *it != "String") {
                writeln!(text, "Written as {}.", words(form)).expect("memory");
            }
            return text.trim_end().to_owned() + "\n";
        };
        let rename = written.serde("rename_all");
        if written.is_enum {
            if let Some(tag) = written.serde("tag") {
                write!(text, "A table whose `{tag}` is one of these.\n\n").expect("memory");
            }
            text += "| word | what |\n|---|---|\n";
            for member in &written.members {
                let key = member.key(rename);
                let holds = match member.holds.as_str() {
                    "" => String::new(),
                    holds => format!(" with {}", words(holds)),
                };
                let mut what = self.docs(member, written);
                for field in &member.members {
                    let optional = if field.is_optional() { ", optional" } else { "" };
                    let (name, kind) = (field.key(None), words(&field.holds));
                    let field_docs = self.docs(field, written);
                    write!(what, " `{name}` ({kind}{optional}): {field_docs}").expect("memory");
                }
                writeln!(text, "| `{key}`{holds} | {what} |").expect("memory");
            }
            return text;
        }
        text += "| key | value | | what |\n|---|---|---|---|\n";
        let all_optional = has_default(&written.attributes);
        for member in &written.members {
            let need = if all_optional || member.is_optional() { "optional" } else { "" };
            let (key, kind) = (member.key(rename), words(&member.holds));
            let what = self.docs(member, written);
            writeln!(text, "| `{key}` | {kind} | {need} | {what} |").expect("memory");
        }
        text
    }

    /// What a member is: by a note, by its documentation, by that of what is called so in the same file, or by
    /// that of its type.
    fn docs(&self, member: &Member, of: &Declaration) -> String {
        let note = self.note(&format!("{}.{}", of.name, member.name));
        let own = Some(member.docs.as_str()).filter(|it| !it.is_empty());
        let of_file = self.known.iter().filter(|it| it.file == of.file);
        let mut others = of_file.flat_map(|it| {
            it.members.iter().chain(it.members.iter().flat_map(|member| &member.members))
        });
        let other = || {
            let other = others.find(|it| it.name == member.name && !it.docs.is_empty());
            other.map(|it| it.docs.as_str())
        };
        let its_type = || {
            let mut names = member.holds.split(|it: char| !it.is_alphanumeric());
            let found = names.find_map(|name| self.known.iter().find(|it| it.name == name));
            found.map(|it| it.docs.as_str()).filter(|it| !it.is_empty())
        };
        let text = note.or(own).or_else(other).or_else(its_type);
        let text = text.unwrap_or_else(|| {
            panic!(
                "nothing says what `{}` of `{}` is; it needs documentation",
                member.name, of.name
            )
        });
        one_line(text.split("\n\n").next().unwrap_or_default())
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Paragraphs, each on a line of its own; tables stay as they are.
fn paragraphs(text: &str) -> String {
    let paragraph = |it: &str| {
        let whole = it.lines().all(|line| line.starts_with('|') || line.starts_with("- "));
        if whole { it.to_owned() } else { it.lines().collect::<Vec<_>>().join(" ") }
    };
    text.split("\n\n").map(paragraph).collect::<Vec<_>>().join("\n\n")
}

/// A type in words; those that the page describes by their names.
fn words(rust: &str) -> String {
    let rust = rust.trim();
    let inside = |outer: &str| {
        let rest = rust.strip_prefix(outer)?.strip_prefix('<')?;
        rest.strip_suffix('>')
    };
    if let Some(inner) = inside("Option").or(inside("Spanned")).or(inside("Box")) {
        return words(inner);
    }
    if let Some(inner) = inside("Vec").or(inside("BTreeSet")) {
        return format!("list of {}", words(inner));
    }
    if let Some((key, value)) = inside("BTreeMap").and_then(|it| it.split_once(", ")) {
        return format!("table by {} of {}", words(key), words(value));
    }
    if let Some(inner) = rust.strip_prefix('(').and_then(|it| it.strip_suffix(')')) {
        let parts: Vec<String> = inner.split(", ").map(words).collect();
        return format!("list: {}", parts.join(", "));
    }
    match rust {
        "String" | "Text" => "text".into(),
        "bool" => "`true` or `false`".into(),
        "f32" | "f64" => "number".into(),
        "u8" | "u16" | "u32" | "u64" | "usize" | "NonZeroU32" | "NonZeroU64" => {
            "whole number".into()
        }
        other => format!("`{other}`"),
    }
}
