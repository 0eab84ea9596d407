//! Plans that go to other projects and come from them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use shardloom_cluster::{Cluster, ClusterError, DeviceId, NodeId};
use shardloom_exchange::{
    ExchangeError, Exported, Given, Imported, Machines, Project, cuts_itself, export, import,
    own_cuts, takes,
};
use shardloom_graph::{Graph, ModelSpec};
use shardloom_plan::{Number, Plan, Precision, Uniform};
use shardloom_search::{Request, Runner, judge, usual_precision};
use shardloom_sim::MemoryFit;

use crate::optimizer::optimizer_text;
use crate::{Model, Planned, Result, find_plan, read_plan_and_model};

/// The software stack that runs of a project are predicted under where nobody says another, if it is not the one that
/// machines usually have: its own, or the closest to it.
pub fn stack_of(project: Project) -> Option<&'static str> {
    match project {
        Project::Nanotron => Some("nanotron"),
        // Without torchtitan's compiler.
        Project::Torchtitan => Some("fsdp-eager"),
        // It trains Hugging Face's models.
        Project::Accelerate => Some("pytorch"),
        Project::Megatron | Project::DeepSpeed => None,
    }
}

/// A plan file as the configuration of another project.
///
/// # Errors
/// If the file holds no plan that fits its model, or says what the project has no word for.
pub fn export_plan(path: &Path, project: Project) -> Result<Exported> {
    let (plan, model) = read_plan_and_model(path)?;
    let exported = machines(&plan, project)
        .and_then(|machines| Ok(export(project, &plan, model.spec(), model.graph(), machines)?));
    // Whether another plan of the same model would do.
    let has_others =
        plan.parameters.is_empty() && of_one_device(&model, &Request::like(&plan), project).is_ok();
    exported.map_err(|error| match error {
        crate::Error::Exchange(source) if has_others => {
            let (source, command) = (Box::new(source), command(&plan, project));
            crate::Error::Unexportable { source, project, command }
        }
        other => other,
    })
}

/// What each rank of a plan file needs and has, on machines that are not this one: none for a plan for `local`, which
/// may not have been measured.
///
/// # Errors
/// If the file holds no plan that fits its model and its machines.
pub fn memory_of_plan(path: &Path) -> Result<Vec<MemoryFit>> {
    let (plan, model) = read_plan_and_model(path)?;
    match Cluster::parse(&plan.cluster) {
        Ok(cluster) => Ok(judge(model.graph(), &cluster, &plan)?.memory),
        Err(ClusterError::NoLocalProfile) => Ok(vec![]),
        Err(error) => Err(error.into()),
    }
}

/// What finds the fastest plan of those that a project runs, for what a plan was made for.
fn command(plan: &Plan, project: Project) -> String {
    let Plan { model, cluster, global_batch, precision, optimizer, .. } = plan;
    let usual = Cluster::parse(cluster).ok().map(|cluster| usual_precision(&cluster).compute);
    let format = match precision {
        Precision { fp8_products: true, .. } => " --fp8".to_owned(),
        Precision { compute, .. } if usual == Some(*compute) => String::new(),
        Precision { compute, .. } => format!(" --precision {}", compute.name()),
    };
    let optimizer = match &*optimizer_text(optimizer) {
        "adamw" => String::new(),
        text => format!(" --optimizer {text}"),
    };
    format!(
        "shardloom plan '{model}' --cluster {cluster} --global-batch {global_batch}{format}{optimizer} \
         --for {}",
        project.name()
    )
}

/// Whether a project takes plans of a model, by one for a single device.
fn of_one_device(
    model: &Model,
    request: &Request,
    project: Project,
) -> std::result::Result<(), ExchangeError> {
    let numbers = Uniform {
        precision: request.precision,
        optimizer: request.optimizer,
        clip_norm: request.clip_norm,
        ..Uniform::default()
    };
    takes(project, model.spec(), &numbers, 1)
}

/// Finds the fastest plan of those that a project runs: of all that [`export_plan`] writes for it. Where it does not
/// compute in the format that is usual for the machines, the plan is in 32 bits, and its notes say so.
///
/// ```
/// use shardloom::exchange::Project;
/// use shardloom::{LocalProfile, Model, find_plan_for, load_cluster, usual_request};
///
/// let model = Model::load("llama:layers=4,hidden=256,heads=4,ffn=512,seq=128,vocab=512")?;
/// let local = LocalProfile::at("none".as_ref());
/// let cluster = load_cluster("a100-80g:4", &local, &mut |_, _| {})?;
/// let request = usual_request(&model, &cluster, "a100-80g:4", 64);
/// let planned = find_plan_for(&model, &cluster, &request, Project::Nanotron)?;
/// assert!(planned.outcome.plan.sync.zero <= 1);
/// # Ok::<(), shardloom::Error>(())
/// ```
///
/// # Errors
/// As [`find_plan`]; if the project takes no plan of this model, or with what the request asks for.
pub fn find_plan_for(
    model: &Model,
    cluster: &Cluster,
    request: &Request,
    project: Project,
) -> Result<Planned> {
    if let Some(group) = request.frozen.first() {
        let reason = "it trains all parameters";
        return Err(ExchangeError::Refused {
            project,
            key: "parameters".into(),
            value: format!("{:?}, frozen", group.names),
            reason: reason.into(),
        }
        .into());
    }
    let mut request = request.clone();
    let mut note = None;
    if let Err(error) = of_one_device(model, &request, project) {
        let wide =
            Request { precision: Precision::FP32, formats_by_machines: false, ..request.clone() };
        let is_usual = request.formats_by_machines && request.precision.compute == Number::Fp16;
        if !is_usual || of_one_device(model, &wide, project).is_err() {
            return Err(error.into());
        }
        note = Some(format!("in 32 bits, as {error}"));
        request = wide;
    }
    request.runner = Some(Arc::new(Elsewhere::of(project, model, cluster)));
    let mut planned = find_plan(model, cluster, &request)?;
    planned.outcome.notes.extend(note);
    Ok(planned)
}

/// A project as who runs the plans of a model.
#[derive(Debug)]
struct Elsewhere {
    project: Project,
    name: String,
    spec: ModelSpec,
    graph: Graph,
    own_cuts: Option<BTreeMap<usize, Vec<usize>>>,
}

impl Elsewhere {
    fn of(project: Project, model: &Model, cluster: &Cluster) -> Elsewhere {
        let (spec, graph) = (model.spec().clone(), model.graph().clone());
        let most = graph.blocks().len().min(cluster.device_count() as usize);
        let own_cuts = cuts_itself(project).then(|| {
            let cut = |stages| Some((stages, own_cuts(project, &spec, stages)?));
            (1..=most).filter_map(cut).collect()
        });
        Elsewhere { project, name: project.to_string(), spec, graph, own_cuts }
    }

    /// What the project is told of a plan for these machines, if it runs that.
    fn exported(&self, cluster: &Cluster, plan: &Plan) -> Option<Exported> {
        let machines = machines_of(plan, cluster, self.project).ok()?;
        export(self.project, plan, &self.spec, &self.graph, machines).ok()
    }
}

impl Runner for Elsewhere {
    fn name(&self) -> &str {
        &self.name
    }

    fn runs_on(&self, cluster: &Cluster, devices: u32) -> bool {
        let mut left = devices;
        let mut shares = vec![];
        for group in cluster.groups() {
            let here = left.min(group.devices());
            left -= here;
            let (whole, rest) = (here / group.devices_per_node, here % group.devices_per_node);
            shares.extend([(whole, group.devices_per_node), (rest.min(1), rest)]);
        }
        shares.retain(|&(machines, _)| machines > 0);
        left == 0 && shares.iter().all(|&(_, each)| each == shares[0].1)
    }

    fn runs_numbers(&self, numbers: &Uniform, chunks: usize) -> bool {
        takes(self.project, &self.spec, numbers, chunks).is_ok()
    }

    fn why_not(&self, numbers: &Uniform, chunks: usize) -> Option<String> {
        takes(self.project, &self.spec, numbers, chunks).err().map(|error| error.to_string())
    }

    fn runs(&self, cluster: &Cluster, plan: &Plan) -> bool {
        self.exported(cluster, plan).is_some()
    }

    fn takes_bucket_size(&self, cluster: &Cluster, plan: &Plan) -> bool {
        let says = |it: Exported| it.unsaid.iter().all(|unsaid| unsaid.key != "sync.bucket_bytes");
        self.exported(cluster, plan).is_some_and(says)
    }

    fn own_cuts(&self) -> Option<&BTreeMap<usize, Vec<usize>>> {
        self.own_cuts.as_ref()
    }
}

/// The machines that the plan's devices are on: as many of each.
fn machines(plan: &Plan, project: Project) -> Result<Machines> {
    match Cluster::parse(&plan.cluster) {
        Ok(cluster) => machines_of(plan, &cluster, project),
        // This machine, and nothing else.
        Err(ClusterError::NoLocalProfile) => {
            Ok(Machines { nodes: 1, devices: plan.device_count() })
        }
        Err(error) => Err(error.into()),
    }
}

/// The same for a plan of devices of this cluster.
fn machines_of(plan: &Plan, cluster: &Cluster, project: Project) -> Result<Machines> {
    let devices = plan.device_count();
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
