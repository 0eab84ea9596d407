//! A plan in one line.

use shardloom::plan::{Axis, Plan};

/// Devices, stages, mesh, ZeRO, schedule, micro-batches and recomputation.
pub fn plan_line(plan: &Plan) -> String {
    let stages = plan.stages().count();
    let meshes: Vec<String> = plan.stages().map(|(_, stage)| stage.mesh.to_string()).collect();
    let mesh = match meshes.split_first() {
        Some((first, rest)) if rest.iter().all(|each| each == first) => first.clone(),
        _ => meshes.join(" | "),
    };
    let sequence = plan.layout.splits("seq", Axis::Tp);
    format!(
        "{} devices: {stages} stage{} of {mesh}{}, ZeRO {}, {} with {} micro-batches of {}, \
         recompute {}",
        plan.device_count(),
        if stages == 1 { "" } else { "s" },
        if sequence { " with sequence parallelism" } else { "" },
        plan.sync.zero,
        plan.schedule.name(),
        plan.microbatches,
        plan.microbatch_samples(),
        plan.recompute.name()
    )
}
