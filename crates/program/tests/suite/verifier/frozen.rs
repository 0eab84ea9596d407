//! Programs in which what is frozen has gradients, what is trained has none, or an update changes what is frozen, are
//! rejected.

use shardloom_collectives::Algorithm;
use shardloom_plan::{Mesh, ParameterGroup, Plan, Sync, Uniform};
use shardloom_program::verify::{Violation, verify};
use shardloom_program::{
    Action, BodyKind, Bucket, Collective, Group, Instruction, Program, View, Window, lower,
};

use super::programs::gpt;

/// Two replicas whose blocks are frozen.
fn program(zero: u8) -> Program {
    let graph = gpt(false);
    let sync = Sync { zero, ..Sync::default() };
    let uniform = Uniform { mesh: Mesh::of(2, 1, 1), global_batch: 2, sync, ..Uniform::default() };
    let frozen = ParameterGroup { frozen: true, ..ParameterGroup::named("block.*") };
    let plan = Plan { parameters: vec![frozen], ..uniform.plan(&graph, "model", "local") };
    lower(&graph, &plan, 2).expect("a program")
}

fn found(program: &Program) -> Vec<Violation> {
    verify(program).expect_err("it is rejected")
}

#[test]
fn what_is_frozen_is_what_has_no_gradients() {
    for zero in 0..4 {
        assert_eq!(verify(&program(zero)), Ok(()));
        for frozen in [false, true] {
            let mut changed = program(zero);
            let is_it = |bucket: &&mut Bucket| bucket.is_frozen == frozen;
            let bucket = changed.classes[0].buckets.iter_mut().find(is_it).expect("one");
            bucket.is_frozen = !frozen;
            let of_bucket = |it: &Violation| matches!(it, Violation::Bucket { .. });
            assert!(found(&changed).iter().any(of_bucket), "ZeRO-{zero}, frozen {frozen}");
        }
    }
}

/// Shares of what is frozen are gathered by nobody, where all have the whole.
#[test]
fn nothing_writes_what_is_frozen() {
    for zero in [1, 2] {
        let mut changed = program(zero);
        let class = &mut changed.classes[0];
        let frozen = class.buckets.iter().find(|bucket| bucket.is_frozen).expect("one");
        let whole = View::whole(frozen.held.replicated.weights);
        let share = View { window: Window::Share, ..whole };
        let group = Group::Mesh(frozen.replicas.clone());
        let kind = Collective::AllGather { axis: 0 };
        let action = Action::Collective { kind, group, algorithm: Algorithm::Ring };
        let epilogue = class.bodies.iter_mut().find(|body| body.kind == BodyKind::Epilogue);
        let gather = Instruction::new(action, [share], [whole]);
        epilogue.expect("an update").instructions.push(gather);
        changed.assign_queues();
        let is_it = |it: &Violation| matches!(it, Violation::FrozenChanged { .. });
        assert!(found(&changed).iter().any(is_it), "ZeRO-{zero}: {:?}", found(&changed));
    }
}
