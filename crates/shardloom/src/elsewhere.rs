//! Plans that go to other projects and come from them.

use std::collections::BTreeMap;
use std::path::Path;

use shardloom_cluster::{Cluster, ClusterError, DeviceId, NodeId};
use shardloom_exchange::{
    ExchangeError, Exported, Given, Imported, Machines, Project, export, import,
};
use shardloom_plan::Plan;

use crate::{Result, read_plan_and_model};

/// A plan file as the configuration of another project.
///
/// # Errors
/// If the file holds no plan that fits its model, or says what the project has no word for.
pub fn export_plan(path: &Path, project: Project) -> Result<Exported> {
    let (plan, model) = read_plan_and_model(path)?;
    let machines = machines(&plan, project)?;
    Ok(export(project, &plan, model.spec(), model.graph(), machines)?)
}

/// The machines that the plan's devices are on: as many of each.
fn machines(plan: &Plan, project: Project) -> Result<Machines> {
    let devices = plan.device_count();
    let cluster = match Cluster::parse(&plan.cluster) {
        Ok(cluster) => cluster,
        // This machine, and nothing else.
        Err(ClusterError::NoLocalProfile) => return Ok(Machines { nodes: 1, devices }),
        Err(error) => return Err(error.into()),
    };
    let mut sizes: BTreeMap<NodeId, usize> = BTreeMap::new();
    for device in plan.devices() {
        *sizes.entry(cluster.node_of(DeviceId(device))?).or_default() += 1;
    }
    let nodes = sizes.len();
    let size = devices / nodes.max(1);
    if sizes.values().any(|&other| other != size) {
        let reason = "it is launched on machines of which as many devices take part";
        return Err(ExchangeError::Refused {
            project,
            key: "pipeline.stage.devices".into(),
            value: format!("{devices} devices on {nodes} machines of {:?}", plan.cluster),
            reason: reason.into(),
        }
        .into());
    }
    Ok(Machines { nodes, devices: size })
}

/// The configuration of another project as a plan; `place` is the file's name, for messages.
///
/// # Errors
/// If the text is no configuration of that project, asks for something that plans do not have, or does not
/// fit its model or machines.
pub fn import_plan(
    project: Project,
    text: &str,
    place: &str,
    given: &Given<'_>,
) -> Result<Imported> {
    Ok(import(project, text, place, given)?)
}

#[cfg(test)]
mod tests {
    use shardloom_plan::{DeviceList, Mesh, Uniform};

    use super::*;
    use crate::{Model, uniform_plan};

    fn machines_of(cluster: &str, devices: std::ops::Range<u32>) -> Result<Machines> {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32")?;
        let numbers = Uniform {
            mesh: Mesh::of(devices.end - devices.start, 1, 1),
            global_batch: devices.len(),
            ..Uniform::default()
        };
        let mut plan = uniform_plan(&model, &numbers, cluster)?;
        plan.pipeline[0].stage[0].devices = DeviceList(devices.collect());
        machines(&plan, Project::Megatron)
    }

    #[test]
    fn a_plan_is_launched_on_the_machines_of_its_devices() {
        let found = |cluster, devices| {
            let Machines { nodes, devices } = machines_of(cluster, devices).expect("machines");
            (nodes, devices)
        };
        assert_eq!(found("h100-80g:2x8", 0..16), (2, 8));
        assert_eq!(found("h100-80g:4x8", 0..24), (3, 8));
        assert_eq!(found("h100-80g:2x8", 0..4), (1, 4));
        assert_eq!(found("h100-80g:2x8", 4..12), (2, 4));
        assert_eq!(found("a100-80g:1x4+h100-80g:2x2", 4..8), (2, 2));
        assert_eq!(found("local:2", 0..2), (1, 2));
    }

    #[test]
    fn machines_that_are_not_alike_are_refused() {
        for (cluster, devices) in [("a100-80g:1x4+h100-80g:1x8", 0..12), ("h100-80g:2x8", 0..12)] {
            let error = machines_of(cluster, devices).expect_err(cluster).to_string();
            assert!(error.contains(cluster) && error.contains("as many devices"), "{error}");
        }
    }
}
