//! Stages that nothing comes back to, which begin the next step while others are still at the one before.

use crate::scenario::{gpt, h100};
use shardloom_plan::{ParameterGroup, ScheduleKind, Uniform};
use shardloom_program::lower;
use shardloom_sim::{Options, simulate};

/// Nothing below is trained, and there is no norm of all gradients to wait for.
#[test]
fn a_frozen_first_stage_is_as_many_steps_ahead_as_it_likes() {
    let graph = gpt(2, false);
    for schedule in [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward] {
        let uniform = Uniform {
            pp: 2,
            global_batch: 8,
            microbatches: 4,
            schedule,
            clip_norm: None,
            ..Uniform::default()
        };
        let mut plan = uniform.plan(&graph, "model", "h100-80g:2");
        let names = "{embedding.*,block.0.*}";
        plan.parameters = vec![ParameterGroup { frozen: true, ..ParameterGroup::named(names) }];
        let program = lower(&graph, &plan, 2).expect("a program");
        let steps = |steps, folded| {
            let options = Options { steps, folded };
            let found = simulate(&graph, &h100(2), &program, options).expect("it comes through");
            found.step_ends[1].clone()
        };
        let ends = steps(8, true);
        assert_eq!(ends, steps(8, false));
        // The second stage finds all it needs, so that its steps take as long as its own work.
        let took: Vec<_> = ends.windows(2).map(|pair| pair[1].since(pair[0])).collect();
        assert!(took[1..].iter().all(|it| *it == took[1]), "{took:?}");
    }
}
