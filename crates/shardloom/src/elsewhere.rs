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
