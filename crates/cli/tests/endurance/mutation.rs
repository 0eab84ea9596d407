//! Inputs that are nearly right: sound ones with a few edits, which follow from a number.

/// Random numbers that follow from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// A power of two below 2^`end`, each as likely.
    fn power(&mut self, end: usize) -> usize {
        1 << self.below(end)
    }

    /// One edit mostly, seldom many.
    fn edits(&mut self) -> usize {
        1 + (self.next().trailing_zeros() as usize).min(6)
    }
}

/// What stands in place of numbers.
const NUMBERS: [&str; 30] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "64",
    "1000",
    "65536",
    "1000000",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "0.5",
    "-0.0",
    "1e-320",
    "1e308",
    "1e400",
    "-1e308",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_000",
];

/// What stands in place of words.
const WORDS: [&str; 30] = [
    "",
    " ",
    "0",
    "-1",
    "none",
    "auto",
    "local",
    "unbounded",
    "1f1b",
    "zb-v",
    "dualpipe",
    "interleaved",
    "ring",
    "hierarchical:0",
    "hierarchical:18446744073709551615",
    "h100-80g:2",
    "h100-80g:999999999999x8",
    "h100-80g:1+a100-80g:1",
    "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=64",
    "llama-3-405b",
    "adamw:beta1=2",
    "0..5",
    "0-18446744073709551615",
    "1,2,,3",
    "batch:dp, batch:dp",
    "é\u{301}\u{200d}\u{1f9e8}",
    "\u{0}",
    "..",
    "/dev/zero",
    "*",
];

/// What stands in place of values of documents.
const VALUES: [&str; 12] =
    ["null", "true", "[]", "{}", "\"\"", "\"x\"", "[[]]", "-1", "1e400", "{a=1}", "[0, 0]", "''"];

/// A word for an option.
pub fn word(random: &mut Random) -> String {
    match random.below(8) {
        0..4 => random.one_of(&NUMBERS).to_owned(),
        4..7 => random.one_of(&WORDS).to_owned(),
        _ => "9".repeat(random.power(16)),
    }
}

/// Text with edits; `others` are texts of the same kind, of which pieces come.
pub fn text(random: &mut Random, text: &str, others: &[&str]) -> Vec<u8> {
    let mut text = text.to_owned();
    let mut cut_within = None;
    for _ in 0..random.edits() {
        match random.below(14) {
            0..4 => replace_number(random, &mut text),
            4 => replace_quoted(random, &mut text),
            5 => replace_value(random, &mut text),
            6 => lines(random, &mut text),
            7 => {
                let span = span(random, &text);
                text.replace_range(span, "");
            }
            8 => {
                let at = place(random, &text);
                text.insert_str(at, &word(random).replace('\0', "\u{1}"));
            }
            9 => cut_within = Some(random.below(text.len() + 1)),
            10 => {
                let from = random.one_of(others);
                let piece = span(random, from);
                let at = span(random, &text);
                text.replace_range(at, &from[piece]);
            }
            11 => {
                let opening = random.one_of(&["[", "{\"a\":", "{a=", "(", "- ", "[[a]]\n"]);
                let at = place(random, &text);
                text.insert_str(at, &opening.repeat(random.power(17)));
            }
            12 => {
                let from = random.one_of(others);
                if let (Some(old), Some(new)) = (name(random, &text), name(random, from)) {
                    let new = from[new].to_owned();
                    text.replace_range(old, &new);
                }
            }
            _ => {
                let span = span(random, &text);
                let piece = text[span.clone()].to_owned();
                let times = random.power(10).min(1 + (1 << 20) / piece.len().max(1));
                text.insert_str(span.end, &piece.repeat(times));
            }
        }
        text.truncate(text.floor_char_boundary(4 << 20));
    }
    let mut bytes = text.into_bytes();
    if let Some(at) = cut_within {
        bytes.truncate(at);
    }
    // Text that is none.
    if random.below(40) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes[at] = 0xff;
    }
    bytes
}

/// Bytes with edits.
pub fn bytes(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.edits() {
        if bytes.is_empty() {
            return bytes;
        }
        // What says what the rest is stands at the begin or the end of most files.
        let at = match random.below(3) {
            0 => random.below(bytes.len().min(64)),
            1 => bytes.len() - 1 - random.below(bytes.len().min(64)),
            _ => random.below(bytes.len()),
        };
        let to = (at + 1 + random.below(256)).min(bytes.len());
        match random.below(7) {
            0 => bytes[at] ^= random.power(8) as u8,
            1..4 => {
                let numbers = [
                    0,
                    1,
                    7,
                    255,
                    1 << 15,
                    1 << 31,
                    (1 << 32) - 1,
                    1 << 40,
                    u64::MAX >> 1,
                    u64::MAX,
                ];
                let number = numbers[random.below(numbers.len())].to_le_bytes();
                let size = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + size].copy_from_slice(&number[..size]);
            }
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..to)),
            _ => {
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

fn place(random: &mut Random, text: &str) -> usize {
    text.floor_char_boundary(random.below(text.len() + 1))
}

fn span(random: &mut Random, text: &str) -> std::ops::Range<usize> {
    let start = place(random, text);
    let longest = random.power(12);
    let end = start + random.below(longest);
    start..text.floor_char_boundary(end.min(text.len())).max(start)
}

/// One of the longest pieces whose characters are all of a kind.
fn piece(random: &mut Random, text: &str, of: fn(char) -> bool) -> Option<std::ops::Range<usize>> {
    let from = place(random, text);
    let start = from + text[from..].find(of)?;
    let end = text[start..].find(|c| !of(c)).map_or(text.len(), |length| start + length);
    Some(start..end)
}

fn name(random: &mut Random, text: &str) -> Option<std::ops::Range<usize>> {
    piece(random, text, |c| c.is_alphabetic() || c == '_')
}

fn replace_number(random: &mut Random, text: &mut String) {
    if let Some(number) = piece(random, text, |c| c.is_ascii_digit() || c == '.') {
        let new = random.one_of(&NUMBERS);
        text.replace_range(number, new);
    }
}

fn replace_quoted(random: &mut Random, text: &mut String) {
    let from = place(random, text);
    let Some(start) = text[from..].find('"').map(|at| from + at + 1) else { return };
    let Some(end) = text[start..].find('"').map(|at| start + at) else { return };
    let new = word(random).replace('\0', "\\u0000");
    text.replace_range(start..end, &new);
}

fn replace_value(random: &mut Random, text: &mut String) {
    let from = place(random, text);
    let Some(start) = text[from..].find([':', '=']).map(|at| from + at + 1) else { return };
    let end = text[start..].find(['\n', ',', '}']).map_or(text.len(), |at| start + at);
    let new = random.one_of(&VALUES);
    text.replace_range(start..end, new);
}

/// Leaves a line out, puts one elsewhere, or repeats one.
fn lines(random: &mut Random, text: &mut String) {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    if lines.is_empty() {
        return;
    }
    let at = random.below(lines.len());
    let to = random.below(lines.len());
    match random.below(3) {
        0 => drop(lines.remove(at)),
        1 => lines.swap(at, to),
        _ => {
            let line = lines[at];
            lines.splice(to..to, std::iter::repeat_n(line, random.power(10)));
        }
    }
    *text = lines.concat();
}
