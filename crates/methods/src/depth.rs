//! How deep a pipeline can be.

use crate::MethodError;
use crate::choice::Task;

/// Makes sure that pipelines of some depth can be: one that is `allowed` on the devices, and whose `stages`
/// have at least a block each.
///
/// # Errors
/// Which number leaves none.
pub(crate) fn require_depth(
    task: &Task<'_>,
    allowed: impl Fn(usize) -> bool,
    stages: impl Fn(usize) -> usize,
) -> Result<(), MethodError> {
    let devices = task.cluster.device_count() as usize;
    if devices < 2 {
        let rule = "a pipeline needs at least 2; on one there is no pipeline to plan";
        return Err(task.impossible("devices", devices, rule));
    }
    // All devices together are a depth, unless it must be even.
    let Some(shallowest) = (2..=devices).find(|&depth| allowed(depth)) else {
        let rule = "its pipelines have an even number of stages; take an even number of devices";
        return Err(task.impossible("devices", devices, rule));
    };
    let (stages, blocks) = (stages(shallowest), task.graph.blocks().len());
    if stages > blocks {
        let rule = format!(
            "its pipelines on {devices} devices have {stages} stages or more, of at least a block each"
        );
        return Err(task.impossible("blocks", blocks, rule));
    }
    Ok(())
}
