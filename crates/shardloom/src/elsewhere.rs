//! Plans that go to other projects and come from them.

use std::path::Path;

use shardloom_cluster::{Cluster, ClusterError};
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

/// The machines that the plan's devices are on: as many of each, of those that its cluster has.
fn machines(plan: &Plan, project: Project) -> Result<Machines> {
    let devices = plan.device_count();
    let cluster = match Cluster::parse(&plan.cluster) {
        Ok(cluster) => cluster,
        // This machine, and nothing else.
        Err(ClusterError::NoLocalProfile) => return Ok(Machines { nodes: 1, devices }),
        Err(error) => return Err(error.into()),
    };
    let mut sizes = cluster.groups().iter().map(|group| group.devices_per_node as usize);
    let size = sizes.next().unwrap_or(1);
    if devices <= size {
        return Ok(Machines { nodes: 1, devices });
    }
    if sizes.any(|other| other != size) || !devices.is_multiple_of(size) {
        let reason =
            "it is launched on machines of which each has as many devices, all of which take part";
        return Err(ExchangeError::Refused {
            project,
            key: "cluster".into(),
            value: format!("{:?} with {devices} devices in use", plan.cluster),
            reason: reason.into(),
        }
        .into());
    }
    Ok(Machines { nodes: devices / size, devices: size })
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
    use shardloom_plan::{Mesh, Uniform};

    use super::*;
    use crate::{Model, uniform_plan};

    fn machines_of(cluster: &str, devices: u32) -> Result<Machines> {
        let model = Model::load("gpt:layers=2,hidden=16,heads=2,seq=8,vocab=32")?;
        let numbers = Uniform {
            mesh: Mesh::of(devices, 1, 1),
            global_batch: devices as usize,
            ..Uniform::default()
        };
        machines(&uniform_plan(&model, &numbers, cluster)?, Project::Megatron)
    }

    #[test]
    fn a_plan_is_launched_on_the_machines_of_its_cluster() {
        let found = |cluster, devices| {
            let Machines { nodes, devices } = machines_of(cluster, devices).expect("machines");
            (nodes, devices)
        };
        assert_eq!(found("h100-80g:2x8", 16), (2, 8));
        assert_eq!(found("h100-80g:4x8", 24), (3, 8));
        assert_eq!(found("h100-80g:2x8", 4), (1, 4));
        assert_eq!(found("local:2", 2), (1, 2));
    }

    #[test]
    fn machines_that_are_not_alike_are_refused() {
        for (cluster, devices) in [("a100-80g:1x4+h100-80g:1x8", 12), ("h100-80g:2x8", 12)] {
            let error = machines_of(cluster, devices).expect_err(cluster).to_string();
            assert!(error.contains(cluster) && error.contains("as many devices"), "{error}");
        }
    }
}
