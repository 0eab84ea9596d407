//! Inputs and options that are nearly right: none makes the program panic, die, wait for ever, or take more
//! time or memory than it may.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use crate::attack::attack;
use crate::invocation::Place;
use crate::material::{self, Kind};
use crate::mutation::{self, Random};

/// Which inputs are tried: `SHARDLOOM_ATTACKS=FIRST..END`, else the first 10,000.
fn numbers() -> Range<usize> {
    let Ok(range) = env::var("SHARDLOOM_ATTACKS") else { return 0..10_000 };
    let (first, end) = range.split_once("..").expect("FIRST..END");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// What is tried under a number.
struct Case {
    kind: &'static str,
    arguments: Vec<String>,
    /// The file that is changed, and what stands in it.
    file: Option<(String, Vec<u8>)>,
}

#[test]
#[ignore = "takes an hour"]
fn bad_inputs_are_refused_or_used_within_limits() {
    let place = Place::new();
    let kinds = material::make(&place);
    let options = Options::read(&place);
    let mut faults = String::new();
    // For each kind: how many, how many of these were used, and the longest time.
    let mut tally: BTreeMap<&str, (usize, usize, f64)> = BTreeMap::new();
    for number in numbers() {
        let mut random = Random::new(number as u64);
        let case = match random.below(4) {
            0 => options.case(&mut random),
            _ => of_a_file(&mut random, &place, random_kind(&kinds, number)),
        };
        fs::create_dir(place.path("out")).expect("made");
        let saved = case.file.as_ref().map(|(name, bytes)| {
            let saved = Saved::of(&place, name);
            place.write(name, bytes);
            repair_digests(&place, name, number.is_multiple_of(2));
            saved
        });
        let attacked = attack(&place, &case.arguments);
        drop(saved);
        fs::remove_dir_all(place.path("out")).expect("it is there");
        let (all, taken, longest) = tally.entry(case.kind).or_default();
        *all += 1;
        *taken += usize::from(attacked.taken);
        *longest = longest.max(attacked.seconds);
        if number % 500 == 499 {
            eprintln!("{} tried", number + 1);
        }
        if let Some(fault) = attacked.fault {
            let command: String = case.arguments.join(" ").chars().take(300).collect();
            let fault: String = fault.chars().take(2000).collect();
            eprintln!("{number} ({}): shardloom {command}\n{fault}\n", case.kind);
            if let Some(folder) = env::var_os("SHARDLOOM_FINDINGS") {
                keep(Path::new(&folder), number, &case);
            }
            writeln!(faults, "{number}: {command}").expect("memory");
        }
    }
    for (kind, (all, taken, longest)) in &tally {
        println!("{kind}: {all} tried, {taken} of them used, the longest took {longest:.1} s");
    }
    assert!(faults.is_empty(), "SHARDLOOM_ATTACKS=N..N+1 runs one again:\n{faults}");
}

fn random_kind(kinds: &[Kind], number: usize) -> &Kind {
    &kinds[number % kinds.len()]
}

fn of_a_file(random: &mut Random, place: &Place, kind: &Kind) -> Case {
    let file = &kind.files[random.below(kind.files.len())];
    let sound = fs::read(place.path(file)).expect("a sound input");
    let bytes = match String::from_utf8(sound) {
        Ok(text) => {
            let others: Vec<&str> =
                kind.others.iter().map(String::as_str).chain([text.as_str()]).collect();
            mutation::text(random, &text, &others)
        }
        Err(error) => mutation::bytes(random, error.as_bytes()),
    };
    let command = &kind.commands[random.below(kind.commands.len())];
    let arguments = command.replace("FILE", file).split_whitespace().map(str::to_owned).collect();
    Case { kind: kind.name, arguments, file: Some((file.clone(), bytes)) }
}

/// A file, or the folder of checkpoints that it is in, which is put back when this is dropped.
struct Saved<'a> {
    place: &'a Place,
    files: Vec<(String, Vec<u8>)>,
    checkpoints: Option<String>,
}

impl Saved<'_> {
    fn of<'a>(place: &'a Place, name: &str) -> Saved<'a> {
        let checkpoints = match name.split('/').next() {
            Some(folder @ ("run" | "classes")) => Some(folder.to_owned()),
            _ => None,
        };
        let names = match &checkpoints {
            Some(folder) => material::all_below(place, folder),
            None => vec![name.to_owned()],
        };
        let read = |name: String| (name.clone(), fs::read(place.path(&name)).expect("it is there"));
        Saved { place, files: names.into_iter().map(read).collect(), checkpoints }
    }
}

impl Drop for Saved<'_> {
    fn drop(&mut self) {
        if let Some(folder) = &self.checkpoints {
            // What the run has added goes.
            fs::remove_dir_all(self.place.path(folder)).expect("it is there");
        }
        for (name, bytes) in &self.files {
            let folder = self.place.path(name).parent().expect("a folder").to_owned();
            fs::create_dir_all(folder).expect("made");
            self.place.write(name, bytes);
        }
    }
}

/// Gives a changed file of a checkpoint the digests that belong to it, so that it is read further.
fn repair_digests(place: &Place, name: &str, repair: bool) {
    let Some((folder, file)) = name.rsplit_once('/') else { return };
    let manifest = format!("{folder}/manifest.json");
    if !repair || !place.path(&manifest).exists() {
        return;
    }
    if file.ends_with(".safetensors") {
        let bytes = fs::read(place.path(name)).expect("it is there");
        let text = fs::read(place.path(&manifest)).expect("it is there");
        let Ok(mut value) = serde_json::from_slice::<Value>(&text) else { return };
        value["shards"][0]["bytes"] = bytes.len().into();
        value["shards"][0]["blake3"] = blake3::hash(&bytes).to_hex().as_str().into();
        place.write(&manifest, value.to_string());
    }
    if file != "manifest.blake3" {
        let digest = blake3::hash(&fs::read(place.path(&manifest)).expect("it is there"));
        place.write(&format!("{folder}/manifest.blake3"), format!("{}\n", digest.to_hex()));
    }
}

/// The options of each command, as its help names them.
struct Options {
    lines: Vec<String>,
    /// Options of a command, and whether they take a value.
    of: BTreeMap<String, Vec<(String, bool)>>,
}

impl Options {
    fn read(place: &Place) -> Options {
        let lines = material::command_lines();
        let mut of = BTreeMap::new();
        for line in &lines {
            let command = line.split(' ').next().unwrap_or_default();
            let help = place.run(&format!("{command} -h")).succeeds().stdout;
            let options = help.lines().filter_map(|line| {
                let option = line.split_whitespace().find(|word| word.starts_with("--"))?;
                let named = line.trim_start().starts_with('-');
                named.then(|| (option.to_owned(), line.contains(&format!("{option} <"))))
            });
            of.insert(command.to_owned(), options.collect());
        }
        Options { lines, of }
    }

    fn case(&self, random: &mut Random) -> Case {
        let line = &self.lines[random.below(self.lines.len())];
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let options = &self.of[&words[0]];
        for _ in 0..1 + random.below(3) {
            let at = 1 + random.below(words.len());
            match random.below(4) {
                0 if at < words.len() => drop(words.remove(at)),
                1 if at < words.len() => {
                    // Of a model's or an optimizer's words, one.
                    let bytes = mutation::text(random, &words[at], &[line]);
                    words[at] = String::from_utf8_lossy(&bytes).replace('\0', "");
                }
                2 if at < words.len() => words[at] = mutation::word(random).replace('\0', ""),
                _ => {
                    let (option, takes) = &options[random.below(options.len())];
                    words.push(option.clone());
                    if *takes {
                        words.push(mutation::word(random).replace('\0', ""));
                    }
                }
            }
        }
        // An argument has its limit, and so have all together.
        words.iter_mut().for_each(|word| word.truncate(word.floor_char_boundary(100_000)));
        Case { kind: "options", arguments: words, file: None }
    }
}

/// Keeps a bad input where somebody can look at it.
fn keep(folder: &Path, number: usize, case: &Case) {
    fs::create_dir_all(folder).expect("made");
    let line = format!("{}\n{:?}\n", case.kind, case.arguments);
    fs::write(folder.join(format!("{number}.command")), line).expect("written");
    if let Some((name, bytes)) = &case.file {
        let name = name.replace('/', "+");
        fs::write(folder.join(format!("{number}.{name}")), bytes).expect("written");
    }
}
