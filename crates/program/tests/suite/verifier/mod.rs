//! The verifier passes programs as they are lowered, and rejects those in which one thing is wrong.

mod compression;
mod everywhere;
mod frees;
mod frozen;
mod instructions;
mod mutants;
mod mutations;
mod order;
pub mod programs;
mod replaced;
mod rows;
mod sparse;
mod tables;
mod waiting;

use shardloom_plan::{Axis, Mesh, ParameterGroup, Plan, ScheduleKind, Weights};
use shardloom_program::verify::verify;

use programs::{gpt, lowered, mesh, uniform, with_second_copy};

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
fn programs_with_a_second_copy_of_weights_verify() {
    let graph = gpt(true);
    for schedule in ScheduleKind::ALL {
        if !schedule.flushes() || schedule == ScheduleKind::Table {
            continue;
        }
        let plan = with_second_copy(schedule, 2).plan(&graph, "model", "local");
        assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{schedule:?}");
        let plan = Plan { post_validation: true, ..plan };
        assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{schedule:?}, validated");
    }
}

#[test]
fn programs_of_every_rule_for_weight_versions_verify() {
    let graph = gpt(false);
    for mesh in [mesh(1, 1), mesh(2, 1)] {
        for zero in 0..=if mesh.dp() > 1 { 3 } else { 0 } {
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

#[test]
fn programs_with_groups_of_parameters_and_other_axes_verify() {
    let graph = gpt(true);
    let [rows, columns] = ["rows", "columns"].map(|name| Axis::named(name).expect("a name"));
    for schedule in [ScheduleKind::OneForwardOneBackward, ScheduleKind::Chimera] {
        for (zero, other) in [(0, 3), (1, 2), (2, 0), (3, 1)] {
            let mut plan = uniform(schedule, 2, mesh(2, 2), zero).plan(&graph, "model", "local");
            let group = ParameterGroup::named("*.{0,1}.ffn.*");
            plan.parameters = vec![ParameterGroup { zero: Some(other), ..group }];
            let text = format!("{schedule:?}, ZeRO-{zero} and ZeRO-{other}");
            assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{text}");
            plan.axes = vec![columns, rows];
            for rule in &mut plan.layout.0 {
                rule.axis = if rule.axis == Axis::DP { rows } else { columns };
            }
            for stage in plan.pipeline.iter_mut().flat_map(|it| &mut it.stage) {
                stage.mesh = Mesh::SINGLE.with(columns, 2).with(rows, 2);
            }
            assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{text}, other axes");
        }
    }
}

#[test]
fn programs_with_unequal_shares_and_layouts_of_stages_verify() {
    let graph = gpt(false);
    for schedule in [ScheduleKind::Afab, ScheduleKind::OneForwardOneBackward] {
        let mut plan = uniform(schedule, 2, mesh(1, 2), 0).plan(&graph, "model", "local");
        let mut second = plan.pipeline[0].clone();
        for stage in &mut second.stage {
            stage.devices.0.iter_mut().for_each(|device| *device += 4);
        }
        plan.pipeline.push(second);
        for (pipeline, share) in plan.pipeline.iter_mut().zip([3, 1]) {
            pipeline.microbatches = Some(share);
            let layout = "heads:tp, ffn:tp".to_owned().try_into();
            pipeline.stage[0].layout = Some(layout.expect("rules"));
        }
        assert_eq!(verify(&lowered(&graph, &plan)), Ok(()), "{schedule:?}");
    }
}
