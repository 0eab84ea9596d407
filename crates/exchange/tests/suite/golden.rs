//! What is written for each project, as files; every project's own parser has read them, see
//! `benches/exchange`.

use crate::plans::Case;
use shardloom_exchange::{Project, export};
use shardloom_plan::{Mesh, Sync, Uniform};

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
    let case = crate::plans::case(case);
    for project in Project::ALL {
        insta::assert_snapshot!(
            format!("{}_{}", case.name, project.name()),
            written(&case, project)
        );
    }
}

#[test]
fn sharded_among_some_of_the_replicas() {
    check("hybrid-sharded");
}

#[test]
fn states_sharded_among_some_of_the_replicas() {
    check("hybrid-states");
}

#[test]
fn experts_dealt_to_ranks() {
    check("experts");
}

#[test]
fn products_in_eight_bits() {
    check("eight-bits");
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

/// Megatron-LM's arguments.py, before Blackwell: with tensor or context parallelism kernels have to be launched in
/// one queue, and with sharded parameters (torch's or its own FSDP) they must not be.
#[test]
fn megatron_is_given_the_queue_that_it_asks_for() {
    const ONE_QUEUE: &str = "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n";
    for (dp, cp, tp) in [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (2, 2, 2)] {
        for zero in 0..=3 {
            let (mesh, sync) = (Mesh::of(dp, cp, tp), Sync { zero, ..Sync::default() });
            let usual = crate::plans::numbers();
            let plan = crate::plans::plan(crate::plans::LLAMA, &Uniform { mesh, sync, ..usual }, 1);
            let case = Case::of("one queue", plan);
            let text = written(&case, Project::Megatron);
            let is_sharded = text.contains("fsdp");
            let asked = (tp > 1 || cp > 1) && !is_sharded;
            assert_eq!(
                text.contains(ONE_QUEUE),
                asked,
                "ZeRO {zero}, {dp} by {cp} by {tp}: {text}"
            );
        }
    }
}
