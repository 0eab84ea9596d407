//! The documents whose every command is run: what they show is what the program prints.

use crate::invocation::Place;

/// Runs the commands of a document's `console` blocks, one after the other in one folder, in which a `json`
/// block lies as `config.json`. Each line below a command is one of its output, in order; `...` stands for any
/// number of lines.
fn check(text: &str) {
    let place = Place::new();
    if let Some(config) = blocks(text, "json").next() {
        place.write("config.json", config);
    }
    let mut commands = 0;
    for block in blocks(text, "console") {
        let mut shown = vec![];
        for each in block.split("$ shardloom ").skip(1) {
            let (command, output) = each.split_once('\n').unwrap_or((each, ""));
            shown.push((command, output));
        }
        assert!(!shown.is_empty(), "no command in {block}");
        for (command, output) in shown {
            let outcome = place.run(command).succeeds();
            let mut printed = outcome.stdout.lines();
            let mut skips = false;
            for line in output.lines().filter(|line| !line.is_empty()) {
                if line == "..." {
                    skips = true;
                    continue;
                }
                let mut left = printed.by_ref().map(str::trim_end).filter(|it| !it.is_empty());
                let found =
                    if skips { left.any(|it| it == line) } else { left.next() == Some(line) };
                outcome.check(found, &format!("not printed in this place: {line}"));
                skips = false;
            }
            commands += 1;
        }
    }
    assert!(commands > 0, "no commands");
}

/// The contents of blocks in a language.
fn blocks<'a>(text: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("```{language}\n");
    let starts: Vec<usize> = text.match_indices(&start).map(|(at, _)| at + start.len()).collect();
    starts.into_iter().filter_map(|at| text[at..].split("```").next())
}

#[test]
fn figures_of_an_introduction_are_drawn() {
    check(include_str!("../../../../docs/introduction-figures.md"));
}

#[test]
fn the_tutorial_leads_from_a_configuration_to_an_exported_plan() {
    check(include_str!("../../../../docs/tutorial.md"));
}
