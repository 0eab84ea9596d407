//! The text of programs: as recorded for a handful of plans, and complete for all kinds of plans.

use std::collections::{BTreeMap, BTreeSet};

use shardloom_graph::ModelSpec;
use shardloom_plan::{Averaging, Mesh, Plan, Uniform};
use shardloom_program::{
    Action, Body, BodyId, Class, Instruction, Point, Program, Rank, TensorId, View, lower,
};

use crate::every_kind::{self, Example};
use crate::trace::plans::{self, Case};

fn all() -> Vec<Case> {
    let families: [fn() -> Vec<Case>; 8] = [
        plans::schedules,
        plans::validated,
        plans::served,
        plans::splits,
        plans::optimizers,
        plans::versions,
        plans::recomputation,
        plans::skips,
    ];
    families.into_iter().flat_map(|family| family()).collect()
}

fn program(case: &Case) -> Program {
    let Case { name, graph, plan } = case;
    lower(graph, plan, plan.device_count()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The text of the first rank of each class.
fn text(case: &Case) -> String {
    let program = program(case);
    let text = |class: &Class| program.text(&case.graph, class.first_rank);
    let texts: Option<Vec<String>> = program.classes.iter().map(text).collect();
    texts.expect("classes have ranks").join("\n")
}

#[test]
fn texts_of_a_handful_of_plans_are_as_recorded() {
    let recorded = [
        "split-pp1-dp2-cp1-tp1-zero0",
        "split-pp1-dp2-cp1-tp1-zero3-tied",
        "split-pp2-dp2-cp1-tp2-zero0-tied",
        "versions-double-buffer",
        "versions-discrepancy",
        "validated-1f1b",
        "served-2-by-2-within-3",
        "schedule-dualpipe",
        "optimizer-adafactor-zero1",
    ];
    let cases: BTreeMap<String, Case> =
        all().into_iter().map(|case| (case.name.clone(), case)).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for name in recorded {
            insta::assert_snapshot!(name, text(&cases[name]));
        }
    });
}

/// What a text says below a line that begins a section, up to the next section.
fn section<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    lines.take_while(|line| line.starts_with(' ')).collect()
}

/// The lines of instructions below each entry that has any.
fn bodies(text: &str) -> Vec<Vec<&str>> {
    let mut bodies: Vec<Vec<&str>> = vec![];
    let step = section(text, "a step, in order");
    for line in step.into_iter().chain(section(text, "the loss of validation data")) {
        match line.strip_prefix("    ") {
            Some(line) => bodies.last_mut().expect("a title comes first").push(line),
            None => bodies.push(vec![]),
        }
    }
    bodies.retain(|body| !body.is_empty());
    bodies
}

/// The bodies with instructions that a rank runs, in order, those of equal instructions once.
fn distinct(class: &Class) -> Vec<&Body> {
    let run = class.entries().map(|entry| entry.body).chain(class.evaluation.iter().copied());
    let mut distinct: Vec<&Body> = vec![];
    for body in run.map(|id| class.body(id)) {
        let empty = body.instructions.is_empty();
        if !empty && !distinct.iter().any(|known| known.instructions == body.instructions) {
            distinct.push(body);
        }
    }
    distinct
}

/// The tensors of operands in a list of them, each with the elements of its shape.
fn operands(list: &str) -> Vec<(String, usize)> {
    let operand = |operand: &str| {
        let operand = operand.strip_prefix("start or ").unwrap_or(operand);
        let operand = operand.strip_prefix("add to ").unwrap_or(operand);
        let (operand, _) = operand.rsplit_once(']').unwrap_or_else(|| panic!("no shape: {list}"));
        let (view, shape) = operand.rsplit_once('[').unwrap_or_else(|| panic!("no shape: {list}"));
        let tensor = view.split_once('/').map_or(view, |(tensor, _)| tensor);
        (tensor.to_owned(), product(shape))
    };
    list.split(", ").filter(|operand| !operand.is_empty()).map(operand).collect()
}

/// The elements of a shape, whose extents have commas between.
fn product(shape: &str) -> usize {
    let extents = shape.split(',').filter(|extent| !extent.is_empty());
    extents.map(|extent| extent.parse::<usize>().expect("a number")).product()
}

/// The operands that a line of an instruction says, what it writes first, and what it frees.
fn said(line: &str) -> (Vec<(String, usize)>, Vec<String>) {
    let (line, _) = line.split_once("; after ").unwrap_or((line, ""));
    let (line, freed) = line.split_once("; frees ").unwrap_or((line, ""));
    let freed = freed.split(", ").filter(|name| !name.is_empty());
    let freed = freed.map(|name| name.trim_end_matches(" (in place)").to_owned());
    // Some only free.
    let only_frees = line.trim_end().ends_with("drop what is not needed");
    let views = line.split_once(": ").map(|(_, views)| views).or(only_frees.then_some(""));
    let views = views.unwrap_or_else(|| panic!("no operands: {line}"));
    let (written, read) = views.split_once("<- ").unwrap_or((views, ""));
    let mut said = operands(written.trim_end());
    said.extend(operands(read));
    (said, freed.collect())
}

/// The points that an instruction follows; bodies that do the same have one name.
fn points(class: &Class, instruction: &Instruction) -> usize {
    let named = |body: BodyId| {
        let same = |it: &Body| it.instructions == class.body(body).instructions;
        class.bodies.iter().position(same).expect("it is its own")
    };
    let point = |&point: &Point| match point {
        Point::Queue(queue) => format!("{queue:?}"),
        Point::Here(number) => format!("{number}"),
        Point::Microbatch(body, number) => format!("{number} of {}", named(body)),
        Point::Latest(body, number) => format!("{number} of the last {}", named(body)),
    };
    instruction.after.iter().map(point).collect::<BTreeSet<_>>().len()
}

#[test]
fn every_instruction_and_every_operand_of_a_rank_is_said_once_for_equal_bodies() {
    for case in all() {
        let program = program(&case);
        for class in &program.classes {
            let last = class.first_rank.0 + class.mesh.size() as u32 - 1;
            for rank in BTreeSet::from([class.first_rank, Rank(last)]) {
                let text = program.text(&case.graph, rank).expect("it is a rank");
                let bodies = bodies(&text);
                let expected = distinct(class);
                assert_eq!(bodies.len(), expected.len(), "{}: bodies of {rank:?}", case.name);
                let mut names: BTreeMap<TensorId, String> = BTreeMap::new();
                for (lines, body) in bodies.iter().zip(expected) {
                    assert_eq!(lines.len(), body.instructions.len(), "{}: {lines:#?}", case.name);
                    for (number, (line, instruction)) in
                        lines.iter().zip(&body.instructions).enumerate()
                    {
                        let first = line.split_whitespace().next();
                        assert_eq!(first, Some(number.to_string().as_str()), "{line}");
                        let waits = line
                            .split_once("; after ")
                            .map_or(0, |(_, after)| after.split(" and ").count());
                        assert_eq!(waits, points(class, instruction), "{}: {line}", case.name);
                        let (said, freed) = said(line);
                        let written = instruction.writes.iter().map(|write| write.to);
                        let views: Vec<View> =
                            written.chain(instruction.reads.iter().copied()).collect();
                        assert_eq!(said.len(), views.len(), "{}: {line}", case.name);
                        assert_eq!(freed.len(), instruction.frees.len(), "{}: {line}", case.name);
                        let position = (rank.0 - class.first_rank.0) as usize;
                        for ((_, elements), &view) in said.iter().zip(&views) {
                            let held = class.view_range(view, position).len();
                            assert_eq!(*elements, held, "{}: {line}", case.name);
                        }
                        let tensors = views.iter().map(|view| view.tensor);
                        let tensors = tensors.chain(instruction.frees.iter().copied());
                        let said = said.into_iter().map(|(name, _)| name).chain(freed);
                        for (name, id) in said.zip(tensors) {
                            let known = names.entry(id).or_insert_with(|| name.clone());
                            assert_eq!(*known, name, "{}: {line}", case.name);
                        }
                    }
                }
                let different: BTreeSet<&String> = names.values().collect();
                assert_eq!(different.len(), names.len(), "{}: two tensors, one name", case.name);
            }
        }
    }
}

#[test]
fn every_lasting_tensor_of_a_rank_is_said_once() {
    for case in all() {
        let program = program(&case);
        for class in &program.classes {
            let last = class.mesh.size() - 1;
            let rank = Rank(class.first_rank.0 + last as u32);
            let text = program.text(&case.graph, rank).expect("it is a rank");
            let held = section(&text, "holds all the time");
            let columns = |line: &&str| {
                let (name, rest) = line.trim_start().split_once("  ")?;
                let (shape, _) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
                Some((name.to_owned(), product(shape)))
            };
            let rows: Vec<(String, usize)> = held.iter().filter_map(columns).collect();
            let names: BTreeSet<&String> = rows.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), held.len(), "{}: {held:#?}", case.name);
            assert_eq!(held.len(), class.lasting().count(), "{}", case.name);
            for ((name, elements), (id, tensor)) in rows.iter().zip(class.lasting()) {
                assert!(name.starts_with(&tensor.name), "{}: {name}", case.name);
                assert_eq!(*elements, class.elements(id, last), "{}: {name}", case.name);
            }
        }
    }
}

#[test]
fn there_is_no_text_of_a_rank_that_does_not_exist() {
    let case = all().swap_remove(0);
    let program = program(&case);
    assert!(program.text(&case.graph, Rank(program.ranks() as u32 - 1)).is_some());
    assert!(program.text(&case.graph, Rank(program.ranks() as u32)).is_none());
}

/// Of rows whose numbers turn out while running, as many are sent as counts say, at most all.
#[test]
fn exchanges_of_rows_are_named_apart_with_the_most_that_they_send() {
    let text = include_str!("../../../../../examples/models/routed-experts.toml");
    let spec = ModelSpec::from_toml(text, "routed-experts.toml").expect("a valid model");
    let graph = spec.graph().expect("a valid model");
    let uniform = Uniform { mesh: Mesh::of(2, 1, 1), global_batch: 8, ..Uniform::default() };
    let layout = "expert:dp, batch:dp".to_owned().try_into().expect("two rules");
    let plan = Plan { layout, ..uniform.plan(&graph, "model", "local") };
    let program = lower(&graph, &plan, 2).unwrap_or_else(|error| panic!("{error}"));
    let text = program.text(&graph, Rank(0)).expect("it has a rank 0");
    let exchanges = text.lines().filter(|line| line.contains("all-to-all"));
    let rows = exchanges.clone().filter(|line| line.contains("all-to-all-v")).count();
    assert!(rows > 0, "{text}");
    for line in exchanges {
        assert_eq!(line.contains("all-to-all-v"), line.contains("sends at most "), "{line}");
    }
}

/// Where replicas average in some steps only, the other steps have an arm of the guard in which nothing is averaged.
#[test]
fn bodies_that_average_are_told_apart_by_what_they_do() {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for Example { name, graph, plan, program } in every_kind::without_servers() {
        let Some(averaging) = plan.sync.averaging else { continue };
        let text = program.text(&graph, Rank(0)).expect("it has a rank 0");
        let words = [
            ("question whether to average", averaging.every > 1),
            ("no averaging", averaging.every > 1),
            ("publication and fetch", averaging == Averaging::PAIRS),
        ];
        for (word, expected) in words {
            let says = text.lines().any(|line| line.contains(word) && !line.contains("after"));
            assert_eq!(says, expected, "{name}: {word}");
            seen.extend(expected.then_some(word));
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Of tables on servers, too, ranks send as many rows as their samples look up, at most as many as there is room for.
#[test]
fn messages_of_rows_are_said_to_have_at_most_so_many_bytes_and_others_to_have_them() {
    let (mut of_rows, mut others) = (0, 0);
    for Example { name, graph, program, .. } in every_kind::with_servers() {
        let brings_rows = program.routes.iter().any(|route| route.moves_rows());
        for class in &program.classes {
            let text = program.text(&graph, class.first_rank).expect("it is a rank");
            // Behind the number of the instruction stands the queue.
            let is_send = |line: &&str| line.split_whitespace().nth(1) == Some("send");
            let messages: Vec<&str> = text.lines().filter(is_send).collect();
            for line in &messages {
                let most = line.contains(" (at most ");
                assert!(!most || brings_rows, "{name}: {line}");
                of_rows += usize::from(most);
                others += usize::from(!most);
            }
            let count = class.instructions().filter(|(_, _, it)| match it.action {
                Action::Send { route } => program.route(route).moves_rows(),
                _ => false,
            });
            let says = messages.iter().any(|line| line.contains(" (at most "));
            assert_eq!(says, count.count() > 0, "{name}: {}", class.place());
        }
    }
    assert!(of_rows > 4 && others > 10, "{of_rows} {others}");
}

/// The messages that a text says a rank exchanges, by `word` to or from whom: those ranks, each with a size.
fn messages(text: &str, word: &str) -> BTreeSet<(u32, String)> {
    let mut all = BTreeSet::new();
    for line in text.lines() {
        let Some((said, _)) = line.split_once(": ").or(line.strip_suffix(':').map(|it| (it, "")))
        else {
            continue;
        };
        let Some((_, list)) = said.split_once(&format!(" {word} rank ")) else { continue };
        for message in list.split(", rank ") {
            let (rank, size) = message.split_once(' ').expect("a rank and a size");
            all.insert((rank.parse().expect("a number"), size.to_owned()));
        }
    }
    all
}

#[test]
fn what_a_rank_is_said_to_send_the_others_are_said_to_receive() {
    let mut count = 0;
    for Example { name, graph, program, .. } in every_kind::all() {
        let (mut sent, mut received) = (BTreeSet::new(), BTreeSet::new());
        for rank in 0..program.ranks() as u32 {
            let text = program.text(&graph, Rank(rank)).expect("it is a rank");
            sent.extend(messages(&text, "to").into_iter().map(|(to, size)| (rank, to, size)));
            received
                .extend(messages(&text, "from").into_iter().map(|(from, size)| (from, rank, size)));
        }
        assert_eq!(sent, received, "{name}");
        let pairs: BTreeSet<(u32, u32)> = sent.iter().map(|it| (it.0, it.1)).collect();
        let of_routes = program.routes.iter().flat_map(|route| {
            let [from, to] = [route.from, route.to].map(|it| program.class(it).first_rank.0);
            let messages = route.messages.iter();
            messages.map(move |it| (from + it.from as u32, to + it.to as u32))
        });
        assert_eq!(pairs, of_routes.collect(), "{name}");
        count += sent.len();
    }
    assert!(count > 100, "{count}");
}
