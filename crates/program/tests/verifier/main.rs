//! The verifier passes programs as they are lowered, and rejects those in which one thing is wrong.

mod everywhere;
mod frees;
mod mutations;
mod programs;
mod rows;

use shardloom_plan::{Plan, ScheduleKind, Weights};
use shardloom_program::verify::verify;

use programs::{gpt, lowered, mesh, uniform};

#[test]
fn programs_of_every_schedule_and_way_of_sharing_verify() {
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| *kind != ScheduleKind::Table);
    for schedule in kinds {
        for tied in [false, true] {
            let graph = gpt(tied);
            let meshes = [(mesh(1, 1), 0..=0), (mesh(2, 1), 0..=3), (mesh(2, 2), 0..=3)];
            for (mesh, zero) in
                meshes.into_iter().flat_map(|(it, zeros)| zeros.map(move |z| (it, z)))
            {
                let plan = uniform(schedule, 2, mesh, zero).plan(&graph, "model", "local");
                let text = format!("{schedule:?} x {mesh}, zero {zero}, tied {tied}");
                assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{text}");
                if schedule.flushes() {
                    let plan = Plan { post_validation: true, ..plan };
                    assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{text}, validated");
                }
            }
        }
    }
}

#[test]
fn programs_of_every_rule_for_weight_versions_verify() {
    let graph = gpt(false);
    for mesh in [mesh(1, 1), mesh(2, 1)] {
        for zero in 0..=if mesh.dp > 1 { 3 } else { 0 } {
            for weights in [
                Weights::Stash,
                Weights::VerticalSync,
                Weights::DoubleBuffer,
                Weights::Newest { corrections: Default::default() },
            ] {
                let uniform = uniform(ScheduleKind::PipeDream, 2, mesh, zero);
                let plan = Plan { weights, ..uniform.plan(&graph, "model", "local") };
                assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{weights:?} x {mesh}, {zero}");
            }
        }
    }
}
