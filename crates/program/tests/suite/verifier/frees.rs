//! What frees a tensor waits for all queues that touch it.

use shardloom_program::verify::{Violation, verify};
use shardloom_program::{Action, Instruction, Program};

use super::programs::pipeline;

/// The first stage's value is freed by an instruction of its own behind the send that frees it as lowered.
fn freed_apart(mut program: Program) -> Program {
    let body = program.classes[0].bodies.iter_mut().find_map(|body| {
        let sends = |it: &Instruction| matches!(it.action, Action::Send { .. });
        let at = body.instructions.iter().position(|it| sends(it) && !it.frees.is_empty())?;
        Some((body, at))
    });
    let (body, at) = body.expect("a value is sent and freed");
    let freed = std::mem::take(&mut body.instructions[at].frees);
    let free = Instruction::new(Action::Free, [], []).freeing(freed);
    body.instructions.insert(at + 1, free);
    program
}

#[test]
fn what_computation_frees_while_it_may_still_be_sent_is_rejected() {
    let mut program = freed_apart(pipeline());
    let found = verify(&program).expect_err("the send is not waited for");
    let races = |it: &Violation| matches!(it, Violation::Race { .. });
    assert!(found.iter().all(races), "{found:#?}");
    program.assign_queues();
    assert_eq!(verify(&program), Ok(()));
}
