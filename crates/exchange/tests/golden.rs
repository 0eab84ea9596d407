//! What is written for each project, as files; every project's own parser has read them, see
//! `benches/exchange`.

mod plans;

use plans::Case;
use shardloom_exchange::{Project, export};

/// Files and what is not said, as one text.
fn written(case: &Case, project: Project) -> String {
    let exported = export(project, &case.plan, &case.spec, &case.graph, case.machines());
    match exported {
        Ok(exported) => {
            let files = exported.files.iter().map(|it| format!("==> {}\n{}", it.name, it.text));
            let unsaid =
                exported.unsaid.iter().map(|it| format!("unsaid: {} = {}\n", it.key, it.value));
            files.chain(unsaid).collect()
        }
        Err(error) => format!("refused: {error}\n"),
    }
}

fn check(case: &str) {
    let case = plans::case(case);
    for project in Project::ALL {
        insta::assert_snapshot!(
            format!("{}_{}", case.name, project.name()),
            written(&case, project)
        );
    }
}

#[test]
fn interleaved_3d() {
    check("interleaved-3d");
}

#[test]
fn zero_bubble() {
    check("zero-bubble-v");
}

#[test]
fn zero_bubble_of_one_stage_a_device() {
    check("zero-bubble-h1");
}

#[test]
fn interleaved_and_sharded() {
    check("interleaved-sharded");
}

#[test]
fn dualpipe_v() {
    check("dualpipe-v");
}

#[test]
fn fully_sharded() {
    check("fully-sharded");
}

#[test]
fn uneven_stages() {
    check("uneven-stages");
}

#[test]
fn sequence_parallel() {
    check("sequence-parallel");
}

#[test]
fn context_parallel() {
    check("context-parallel");
}

#[test]
fn sharded_states() {
    check("sharded-states");
}

#[test]
fn replicated_gpt() {
    check("replicated-gpt");
}
